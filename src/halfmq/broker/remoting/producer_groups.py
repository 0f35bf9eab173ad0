"""Commands of administrators for producer groups (29007, 29008), translated to and from ``services.producer_groups``."""

from typing import Any

from msgspec.structs import asdict

from halfmq.broker.remoting.administration import guarded
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.pages import page_start
from halfmq.broker.services.producer_groups import GroupLimits, LimitsChange, ProducerGroups
from halfmq.core.decision import Refused
from halfmq.core.engine import Failed
from halfmq.model.settings import PastLimit
from halfmq.wire.remoting.codes import HMQ_PRODUCER, HMQ_STATS, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import EXT_FROM, EXT_GROUP, EXT_NEXT, EXT_OPERATOR, EXT_REASON
from halfmq.wire.remoting.producer_groups import (
    LIMITS,
    STATS,
    ProducerChange,
    ProducerLimits,
    decode_change,
)


class ProducerGroupCommands:
    """Statistics, limits and policies of producer groups (29007, 29008)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, groups: ProducerGroups) -> None:
        self._gateway = gateway
        self._groups = groups
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers[HMQ_STATS] = self.stats
        gateway.handlers |= guarded(gateway, {HMQ_PRODUCER: self.limits})

    def stats(self, connection: Connection, request: Request[Any]) -> None:
        """29008: statistics of producer groups."""
        start = page_start(request.ext.get(EXT_FROM))
        if isinstance(start, Refused):
            self._gateway.answer(connection, request, *refusal(start))
            return
        figures = self._groups.figures(request.ext.get(EXT_GROUP, ""), start)
        ext = {EXT_NEXT: figures.following} if figures.following else {}
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, STATS.encode(figures.groups))

    def limits(self, connection: Connection, request: Request[Any]) -> None:
        """29007: limits and policy of one group."""
        change, name = decode_change(request.body), request.ext.get(EXT_GROUP, "")
        if not change.is_empty:
            self._change(connection, request, name, change)
            return
        stands = self._groups.limits(name)
        if isinstance(stands, Refused):
            self._gateway.answer(connection, request, *refusal(stands))
        else:
            self._durably.tell(connection, request, ResponseCode.SUCCESS, body=_encoded(stands))

    def _change(self, connection: Connection, request: Request[Any], name: str, change: ProducerChange) -> None:
        operator, reason = request.ext.get(EXT_OPERATOR, ""), request.ext.get(EXT_REASON, "")
        request = request.to_answer(None)

        def answer(reply: GroupLimits | Refused | Failed) -> None:
            if isinstance(reply, GroupLimits):
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=_encoded(reply))
            else:
                self._gateway.answer(connection, request, *refusal(reply))

        self._groups.change(connection, name, _change_of(change), operator, reason, answer)


def _change_of(change: ProducerChange) -> LimitsChange:
    past_limit = None if change.past_limit is None else PastLimit(change.past_limit)
    return LimitsChange(**{**asdict(change), "past_limit": past_limit})


def _encoded(limits: GroupLimits) -> bytes:
    now = limits.settings
    return LIMITS.encode(ProducerLimits(
        now.name, now.check_limit, now.past_limit.value, now.skip_age_ms, now.undecided_max, now.undecided_bytes_max,
        now.set_by, limits.broker_undecided_max, limits.broker_undecided_bytes_max,
    ))  # fmt: skip
