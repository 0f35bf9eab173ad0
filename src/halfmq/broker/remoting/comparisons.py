"""Comparisons of verdicts (29022 to 29025; ``wire.remoting.comparisons``), translated to and from ``services.comparisons``."""

from typing import Any, Final

from halfmq.broker.remoting.administration import guarded
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.comparisons import Comparisons
from halfmq.broker.services.pages import page_start
from halfmq.core.decision import ComparisonMade, Refused, Why
from halfmq.core.engine import Failed
from halfmq.core.transaction.states import standing_state
from halfmq.wire.remoting.codes import (
    EXT_VERDICT,
    HMQ_COMPARED,
    HMQ_COMPARISONS,
    HMQ_DAMAGED,
    HMQ_FORGET_DAMAGE,
    ResponseCode,
)
from halfmq.wire.remoting.comparisons import (
    AWAITED,
    DAMAGED,
    EXT_AGREES,
    EXT_IS_MARKER,
    EXT_OUTCOME,
    EXT_SOURCE,
    EXT_WAITING,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    EXT_FROM,
    EXT_GROUP,
    EXT_ID,
    EXT_OPERATOR,
    EXT_REASON,
)

_COMMITTED: Final = {"COMMIT": True, "ROLLBACK": False}


class ComparisonCommands:
    """What readers of markers fetch and report, and what operators see of it."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, comparisons: Comparisons) -> None:
        self._gateway = gateway
        self._comparisons = comparisons
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers |= {
            HMQ_COMPARISONS: self.awaited,
            HMQ_COMPARED: self.compared,
            HMQ_DAMAGED: self.damaged,
            **guarded(gateway, {HMQ_FORGET_DAMAGE: self.forget}),
        }

    def awaited(self, connection: Connection, request: Request[Any]) -> None:
        """29022: what a reader of markers shall compare."""
        start = page_start(request.ext.get(EXT_FROM))
        if isinstance(start, Refused):
            self._gateway.answer(connection, request, *refusal(start))
            return
        page = self._comparisons.awaited(request.ext.get(EXT_GROUP, ""), start)
        self._durably.tell_page(connection, request, page, AWAITED.encode(page.rows))

    def compared(self, connection: Connection, request: Request[Any]) -> None:
        """29023: what a local transaction did."""
        ext = request.ext
        committed = _COMMITTED.get(ext.get(EXT_OUTCOME, ""))
        request = request.to_answer(None)
        if committed is None:
            refused = Refused(Why.INVALID_PARAMETER, f"{EXT_OUTCOME}: COMMIT or ROLLBACK")
            self._gateway.answer(connection, request, *refusal(refused))
            return

        def answer(reply: ComparisonMade | Refused | Failed) -> None:
            if isinstance(reply, ComparisonMade):
                told = {EXT_VERDICT: standing_state(reply.committed).value, EXT_AGREES: reply.agrees}
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)
            else:
                self._gateway.answer(connection, request, *refusal(reply))

        self._comparisons.report(
            connection, ext.get(EXT_ID, ""), ext.get(EXT_GROUP, ""), committed, ext.get(EXT_SOURCE, ""),
            is_marker=ext.get(EXT_IS_MARKER) == "true", answer=answer,
        )  # fmt: skip

    def damaged(self, connection: Connection, request: Request[Any]) -> None:
        """29024: findings."""
        if asked := self._durably.requested_page(connection, request):
            page, waiting = self._comparisons.damaged(*asked)
            self._durably.tell_page(connection, request, page, DAMAGED.encode(page.rows), **{EXT_WAITING: waiting})

    def forget(self, connection: Connection, request: Request[Any]) -> None:
        """29025: an operator lets the broker forget a finding."""
        ext = request.ext
        request = request.to_answer(None)

        def answer(reply: ComparisonMade | Refused | Failed) -> None:
            if isinstance(reply, ComparisonMade):
                told = {EXT_GROUP: reply.group, EXT_VERDICT: standing_state(reply.committed).value}
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)
            else:
                self._gateway.answer(connection, request, *refusal(reply))

        self._comparisons.forget(
            connection, ext.get(EXT_ID, ""), ext.get(EXT_GROUP, ""), ext.get(EXT_OPERATOR, ""), ext.get(EXT_REASON, ""), answer
        )  # fmt: skip
