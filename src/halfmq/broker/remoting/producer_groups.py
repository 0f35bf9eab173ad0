"""Producer groups for administrators (29007, 29008): statistics, limits and policy, to read or to change.

A change is logged like any other, after an audit record with name, reason and address, so it is durable when it is confirmed. The
broker's log lines name them too, since a policy settles transactions that their application has not decided.
"""

import logging
from typing import Any, Final

from msgspec.structs import asdict

from halfmq.broker.log_output import FIELDS
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.actors import actor
from halfmq.core.commands import SetProducer
from halfmq.core.decision import PolicyActed, ProducerSettingsStored, Refused, Why
from halfmq.core.transaction.listing import group_stats, groups_from
from halfmq.model.ids import group_problem
from halfmq.model.records import ParkedBecause
from halfmq.model.settings import PastLimit, ProducerSettings
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import EXT_NEXT
from halfmq.wire.remoting.producer_groups import (
    LIMITS,
    STATS,
    ProducerChange,
    ProducerFields,
    ProducerLimits,
    decode_change,
)

log = logging.getLogger("halfmq.operators")

#: Maximum number of groups in one page of statistics.
STATS_PER_PAGE_MAX: Final = 1_000


class ProducerGroupCommands(Handlers):
    """Statistics, limits and policies of producer groups."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._time = parts.time

    def stats(self, connection: Connection, request: Request[Any]) -> None:
        """29008: statistics of one group, or of a page of all, those with most undecided transactions first."""
        group = request.ext.group
        groups, following = groups_from(self._view, request.ext.start, STATS_PER_PAGE_MAX)
        found = group_stats(self._view, group, self._time.now_ms(), groups=groups)
        ext = {EXT_NEXT: following} if following and not group else {}
        self._answer_durably(connection, request, ext, STATS.encode(found))

    def limits(self, connection: Connection, request: Request[Any]) -> None:
        """29007: limits and policy of one group, known or not; with a body it changes them, and responds with what was set.

        Refusals: INVALID_PARAMETER: of the name, the administrator's name, or limits that contradict each other. LIMIT_REACHED.
        """
        fields: ProducerFields = request.ext
        change, name = decode_change(request.body), fields.group
        problem = group_problem(name) if name else "group: which producer group"
        if problem:
            self._refuse(connection, request, Refused(Why.INVALID_PARAMETER, problem))
        elif change.is_empty:
            known = self._view.producer_settings.get(name) or ProducerSettings(name)
            self._answer_durably(connection, request, body=self._encoded(known))
        else:
            self._change(connection, request.to_answer(None), fields, change)

    def _change(
        self, connection: Connection, request: Request[None], fields: ProducerFields, change: ProducerChange
    ) -> None:
        by = actor(connection, fields.operator, fields.reason, "who sets this")
        if isinstance(by, Refused):
            self._refuse(connection, request, by)
            return

        def is_set(_: None, reply: Any) -> None:
            if isinstance(reply, ProducerSettingsStored):
                self._log_change(connection, reply.settings)
                # What was set, not what is in memory by now: a later change may not be durable yet.
                self._answer(connection, request, body=self._encoded(reply.settings))
            else:
                self._refuse(connection, request, reply)

        # Only the changed fields: the others are read at the decision, after the changes before it.
        given = {field: value for field, value in asdict(change).items() if value is not None}
        if change.past_limit is not None:
            given["past_limit"] = PastLimit(change.past_limit)
        settings = ProducerSettings(fields.group, **given, set_by=by.name)
        self._sequencer.submit(SetProducer(settings, tuple(given), by), is_set)

    def _log_change(self, connection: Connection, settings: ProducerSettings) -> None:
        # Each group is logged, and many at intervals: each change has its record in the log.
        connection.log_throttled(
            log, logging.WARNING, ("limits", settings.name),
            "operator %s from %s set producer group %s: check limit %d, then %s; skip age %d ms; at most %d undecided, %d "
            "bytes (-1: as the broker's)",
            settings.set_by, connection.address, settings.name, settings.check_limit, settings.past_limit.value,
            settings.skip_age_ms, settings.undecided_max, settings.undecided_bytes_max,
        )  # fmt: skip

    def _encoded(self, group: ProducerSettings) -> bytes:
        broker = self._view.settings
        return LIMITS.encode(ProducerLimits(
            group.name, group.check_limit, group.past_limit.value, group.skip_age_ms, group.undecided_max, group.undecided_bytes_max,
            group.set_by, broker.undecided_max, broker.undecided_bytes_max,
        ))  # fmt: skip


def log_policy_action(acted: PolicyActed) -> None:
    """Log what a policy did to a transaction."""
    what = "rolled back" if acted.rolled_back else "parked"
    why = {
        ParkedBecause.CHECKS: f"after {acted.checks} checks",
        ParkedBecause.AGE: "because of its age",
        ParkedBecause.RESTORED: f"after {acted.checks} checks; it is not rolled back, since the store was restored while it was undecided",
    }[acted.because]
    fields = {"group": acted.group, "tx_id": acted.tx_id, "check_count": acted.checks}
    log.warning(
        "transaction %s of group %s: %s by the check policy, %s", acted.tx_id, acted.group, what, why,
        extra={FIELDS: fields},
    )  # fmt: skip
