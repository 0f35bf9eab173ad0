"""The back-check as a frame (39): pushed, or fetched with a long poll (29009, ``services.check_polls``)."""

from functools import partial
from typing import Any

from halfmq.broker.remoting.gateway import Connection, Gateway
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.check_polls import CheckedHalf
from halfmq.broker.services.checks import PushedCheck
from halfmq.core.decision import Refused
from halfmq.model.ids import offset_message_id
from halfmq.model.properties import HMQ_TX_ID, UNIQ_KEY, find
from halfmq.model.stored_message import decode
from halfmq.wire.remoting.check_polls import PollFields
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.message_codec import encode_check, with_check_times


class CheckPushes:
    """Encodes checks that are pushed to a producer."""

    def __init__(self, gateway: Gateway, *, store_host: bytes, broker_name: str) -> None:
        self._store_host = store_host
        self._broker_name = broker_name
        gateway.pushes[PushedCheck] = self._frame

    def _frame(self, pushed: PushedCheck, opaque: int) -> bytes:
        check, half = pushed
        properties = decode(half)[0].properties
        unique_id = find(properties, UNIQ_KEY)
        several = find(properties, HMQ_TX_ID)
        return encode_check(
            opaque,
            half,
            half_index=check.half_index,
            first_offset=check.first_offset,
            message_id=unique_id.decode("utf-8", "replace") if unique_id else check.tx_id,
            offset_id=offset_message_id(self._store_host, check.first_offset),
            checks=check.checks,
            broker_name=self._broker_name,
            tx_id=check.tx_id if several else "",
        )


class CheckPollCommands(Handlers):
    """Requests of clients that fetch their checks."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._polls = parts.check_polls

    def poll(self, connection: Connection, request: Request[Any]) -> None:
        """29009: responds with checks, or with none after the timeout."""
        asked: PollFields = request.ext
        if not asked.client_id.isprintable():
            text = "clientId: printable characters"
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)
            return
        answer = partial(self._polled, connection, request.to_answer(None))
        self._polls.poll(connection, asked.group, asked.client_id, asked.wait_ms, asked.checks_max, answer)

    def _polled(self, connection: Connection, request: Request[None], halves: list[CheckedHalf] | Refused) -> None:
        if isinstance(halves, Refused):
            self._refuse(connection, request, halves)
        else:
            body = b"".join([with_check_times(half, checks) for half, checks in halves])
            self._answer(connection, request, body=body)
