"""Checks that clients fetch with a long poll (29009), translated to and from ``services.check_polls``."""

from functools import partial
from typing import Any

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.services.check_polls import CheckedHalf, CheckPolls
from halfmq.core.decision import Refused
from halfmq.wire.remoting.check_polls import decode_poll
from halfmq.wire.remoting.codes import HMQ_POLL_CHECKS, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.message_codec import with_check_times


class CheckPollCommands:
    """Requests of clients that fetch their checks."""

    def __init__(self, gateway: Gateway, polls: CheckPolls) -> None:
        self._gateway = gateway
        self._polls = polls
        gateway.handlers[HMQ_POLL_CHECKS] = self.poll

    def poll(self, connection: Connection, request: Request[Any]) -> None:
        """29009: responds with checks, or with none after the timeout."""
        asked = decode_poll(request.ext)
        if isinstance(asked, str):
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, asked)
            return
        answer = partial(self._answer, connection, request.to_answer(None))
        self._polls.poll(connection, asked.group, asked.client_id, asked.wait_ms, asked.checks_max, answer)

    def _answer(self, connection: Connection, request: Request[None], halves: list[CheckedHalf] | Refused) -> None:
        if isinstance(halves, Refused):
            self._gateway.answer(connection, request, *refusal(halves))
        else:
            body = b"".join([with_check_times(half, checks) for half, checks in halves])
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=body)
