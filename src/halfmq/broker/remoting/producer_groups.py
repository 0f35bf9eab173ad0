"""What an administrator asks about producer groups: figures (29008), and limits and policy, to see or to change (29007).

A change is a record like any other, so it is durable when it is answered, behind one that says who made it, why, and from
where; the broker's output says so too, since a policy settles transactions that their application has not decided.
"""

import logging
from typing import Any, Final

from msgspec.structs import asdict

from halfmq import limits
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.pages import page_start
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import Actor, SetProducer
from halfmq.core.decision import PolicyActed, ProducerIsSet, Refused, Reply
from halfmq.core.engine import Failed
from halfmq.core.transaction.listing import group_stats, groups_from
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.model.records import AsideBecause
from halfmq.model.settings import PastLimit, ProducerSettings
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    EXT_FROM,
    EXT_GROUP,
    EXT_NEXT,
    EXT_OPERATOR,
    EXT_REASON,
    OPERATOR_CHARS_MAX,
    REASON_CHARS_MAX,
)
from halfmq.wire.remoting.producer_groups import (
    HMQ_PRODUCER,
    HMQ_STATS,
    ProducerChange,
    ProducerLimits,
    decode_change,
    encode_limits,
    encode_stats,
)

log = logging.getLogger("halfmq.operators")

#: Groups that one page of figures shows.
GROUPS_PER_PAGE_MAX: Final = 1_000


class ProducerGroups:
    def __init__(self, gateway: Gateway, sequencer: Sequencer, time: BrokerTime) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._time = time
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers |= {HMQ_PRODUCER: self.limits, HMQ_STATS: self.stats}

    def stats(self, connection: Connection, request: Request[Any]) -> None:
        start = page_start(request.ext.get(EXT_FROM))
        if isinstance(start, Refused):
            self._gateway.answer(connection, request, *refusal(start))
            return
        view, group = self._sequencer.view, request.ext.get(EXT_GROUP, "")
        groups, following = groups_from(view, start, GROUPS_PER_PAGE_MAX)
        found = group_stats(view, group, self._time.now_ms(), groups=groups)
        ext = {EXT_NEXT: following} if following and not group else {}
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, encode_stats(found))

    def limits(self, connection: Connection, request: Request[Any]) -> None:
        change = decode_change(request.body)
        name = request.ext.get(EXT_GROUP, "")
        operator, reason = request.ext.get(EXT_OPERATOR, "").strip(), request.ext.get(EXT_REASON, "").strip()
        wrong = _wrong_name(name)
        if wrong:
            self._wrong(connection, request, wrong)
        elif change.is_empty:
            self._durably.tell(
                connection, request, ResponseCode.SUCCESS, body=encode_limits(self._limits(self._standing(name)))
            )
        elif not operator or len(operator) > OPERATOR_CHARS_MAX or not operator.isprintable():
            self._wrong(connection, request, f"{EXT_OPERATOR}: who sets this, 1 to {OPERATOR_CHARS_MAX} characters")
        elif len(reason) > REASON_CHARS_MAX or not reason.isprintable():
            self._wrong(connection, request, f"{EXT_REASON}: one line of at most {REASON_CHARS_MAX} characters")
        else:
            by = Actor(operator, reason, connection.address)
            self._sequencer.submit(_command(name, change, by), self._set, (connection, request))

    def _set(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        connection, request = context
        if not isinstance(reply, ProducerIsSet):
            self._gateway.answer(connection, request, *refusal(reply))
            return
        settings = reply.settings
        # Each group is said by itself, and those of a flood now and then: each change has its record in the log.
        self._gateway.say(
            log, logging.WARNING, ("limits", settings.name), connection,
            "operator %s from %s set producer group %s: check limit %d, then %s; skip age %d ms; at most %d undecided, %d "
            "bytes (-1: as the broker's)",
            settings.set_by, connection.address, settings.name, settings.check_limit, settings.past_limit.value,
            settings.skip_age_ms, settings.undecided_max, settings.undecided_bytes_max,
        )  # fmt: skip
        # What was set, and not what stands in memory by now: a later change may not be durable yet.
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_limits(self._limits(settings)))

    def _standing(self, name: str) -> ProducerSettings:
        return self._sequencer.view.producer_settings.get(name) or ProducerSettings(name)

    def _limits(self, now: ProducerSettings) -> ProducerLimits:
        view = self._sequencer.view
        return ProducerLimits(
            now.name, now.check_limit, now.past_limit.value, now.skip_age_ms, now.undecided_max, now.undecided_bytes_max,
            now.set_by, view.settings.undecided_max, view.settings.undecided_bytes_max,
        )  # fmt: skip

    def _wrong(self, connection: Connection, request: Request[Any], text: str) -> None:
        self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)


def _command(name: str, change: ProducerChange, by: Actor) -> SetProducer:
    """Only what changes: what else stands is seen when it is decided, behind the changes before it."""
    given = {field: value for field, value in asdict(change).items() if value is not None}
    if change.past_limit is not None:
        given["past_limit"] = PastLimit(change.past_limit)
    return SetProducer(ProducerSettings(name, **given, set_by=by.name), tuple(given), by)


def _wrong_name(name: str) -> str:
    """Why no producer group can have this name; empty: one can."""
    if not name:
        return f"{EXT_GROUP}: which producer group"
    try:
        checked_name(name, "group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return str(error)
    return ""


def tell_policy(acted: PolicyActed) -> None:
    """Say in the broker's output what a policy did to a transaction."""
    what = "rolled back" if acted.rolled_back else "set aside"
    why = f"after {acted.checks} checks" if acted.because is AsideBecause.CHECKS else "because of its age"
    log.warning("the policy of group %s: transaction %s was %s %s", acted.group, acted.tx_id, what, why)
