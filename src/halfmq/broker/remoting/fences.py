"""The fence (29026), translated to and from ``services.fences``."""

from typing import Any

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.fences import Fences
from halfmq.core.decision import Fenced, Reply
from halfmq.core.engine import Failed
from halfmq.wire.remoting.codes import EXT_POSITION, EXT_VERDICT, HMQ_FENCE, ResponseCode
from halfmq.wire.remoting.fence import read_fence
from halfmq.wire.remoting.header import Request


class FenceCommands:
    """Fences a transaction, or says where the log ends now (29026)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, fences: Fences) -> None:
        self._gateway = gateway
        self._fences = fences
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers |= {HMQ_FENCE: self.fence}

    def fence(self, connection: Connection, request: Request[Any]) -> None:
        """29026."""
        fields = read_fence(request.ext)
        waits = request.to_answer(None)
        if fields is None:
            ext = {EXT_POSITION: self._fences.position}
            self._durably.tell(connection, waits, ResponseCode.SUCCESS, None, ext)
            return
        self._fences.fence(
            connection.number, fields.group, fields.tx_id, fields.since, self._fenced, (connection, waits)
        )

    def _fenced(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        connection, request = context
        if isinstance(reply, Fenced):
            ext: dict[str, object] = {EXT_VERDICT: reply.standing}
            if reply.position >= 0:
                ext[EXT_POSITION] = reply.position
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext)
        else:
            self._gateway.answer(connection, request, *refusal(reply))
