"""Commands of coordinators, and of administrators for them (29019 to 29021), translated to and from ``services.coordinators``."""

from typing import Any

from halfmq.broker.remoting.administration import guarded
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.coordinators import Coordinators
from halfmq.core.decision import CoordinatorForgotten, EpochTaken, Refused
from halfmq.core.engine import Failed
from halfmq.wire.remoting.codes import HMQ_COORDINATORS, HMQ_FORGET_COORDINATOR, HMQ_TAKE_EPOCH, ResponseCode
from halfmq.wire.remoting.coordinators import COORDINATORS, EXT_EPOCH, EXT_TAKEN_BY
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    EXT_COORDINATOR,
    EXT_GROUP,
    EXT_OPERATOR,
    EXT_REASON,
)


class CoordinatorCommands:
    """Gives epochs to coordinators, lists coordinators, and forgets one (29019 to 29021)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, coordinators: Coordinators) -> None:
        self._gateway = gateway
        self._coordinators = coordinators
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers |= {
            HMQ_TAKE_EPOCH: self.take,
            HMQ_COORDINATORS: self.list,
            **guarded(gateway, {HMQ_FORGET_COORDINATOR: self.forget}),
        }

    def take(self, connection: Connection, request: Request[Any]) -> None:
        """29019: the next epoch of a coordinator."""
        group, name = _meant(request)
        taken_by = request.ext.get(EXT_TAKEN_BY, "")
        request = request.to_answer(None)
        self._coordinators.take(
            connection, group, name, taken_by, lambda reply: self._answer(connection, request, reply)
        )

    def list(self, connection: Connection, request: Request[Any]) -> None:
        """29020: a page of coordinators."""
        if asked := self._durably.requested_page(connection, request):
            page = self._coordinators.page(*asked)
            self._durably.tell_page(connection, request, page, COORDINATORS.encode(page.rows))

    def forget(self, connection: Connection, request: Request[Any]) -> None:
        """29021: the broker forgets a coordinator."""
        group, name = _meant(request)
        operator, reason = request.ext.get(EXT_OPERATOR, ""), request.ext.get(EXT_REASON, "")
        request = request.to_answer(None)
        self._coordinators.forget(
            connection, group, name, operator, reason, lambda reply: self._answer(connection, request, reply)
        )

    def _answer(
        self, connection: Connection, request: Request[Any], reply: EpochTaken | CoordinatorForgotten | Refused | Failed
    ) -> None:
        if isinstance(reply, Refused | Failed):
            self._gateway.answer(connection, request, *refusal(reply))
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {EXT_EPOCH: reply.epoch})


def _meant(request: Request[Any]) -> tuple[str, str]:
    """(producer group, coordinator) of the request."""
    return request.ext.get(EXT_GROUP, ""), request.ext.get(EXT_COORDINATOR, "")
