"""Producer groups for administrators: statistics, limits and policy, to read or to change.

A change is logged like any other, after an audit record with name, reason and address, so it is durable when it is confirmed. The
broker's log lines name them too, since a policy settles transactions that their application has not decided.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.actors import actor
from halfmq.broker.services.peer import Peer, ThrottledLog
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import SetProducer
from halfmq.core.decision import PolicyActed, ProducerSettingsStored, Refused, Why
from halfmq.core.engine import Failed
from halfmq.core.transaction.listing import group_stats, groups_from
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.model.pending import GroupStats
from halfmq.model.records import ParkedBecause
from halfmq.model.settings import PastLimit, ProducerSettings

log = logging.getLogger("halfmq.operators")

#: Maximum number of groups in one page of statistics.
STATS_PER_PAGE_MAX: Final = 1_000


class GroupStatsPage(NamedTuple):
    """A page of statistics of producer groups."""

    #: Those with most undecided transactions first.
    groups: tuple[GroupStats, ...]
    #: Start of the next page; 0: there is none.
    following: int


class GroupLimits(NamedTuple):
    """Current limits and policy of a producer group."""

    settings: ProducerSettings
    #: The broker's own limits, which apply where those of the group are -1.
    broker_undecided_max: int
    broker_undecided_bytes_max: int


class LimitsChange(NamedTuple):
    """The fields to change; None: unchanged. Fields as in ``ProducerSettings``."""

    check_limit: int | None = None
    past_limit: PastLimit | None = None
    skip_age_ms: int | None = None
    undecided_max: int | None = None
    undecided_bytes_max: int | None = None


class ProducerGroups:
    """Statistics, limits and policies of producer groups."""

    def __init__(self, sequencer: Sequencer, time: BrokerTime, log_throttled: ThrottledLog) -> None:
        self._sequencer = sequencer
        self._view = sequencer.view
        self._time = time
        self._log_throttled = log_throttled

    def figures(self, group: str, start: int) -> GroupStatsPage:
        """Statistics of one group, or, if ``group`` is empty, of a page of all. ``start``: ``following`` of the previous page, or 0."""
        groups, following = groups_from(self._view, start, STATS_PER_PAGE_MAX)
        found = group_stats(self._view, group, self._time.now_ms(), groups=groups)
        return GroupStatsPage(found, 0 if group else following)

    def limits(self, name: str) -> GroupLimits | Refused:
        """Current limits of this group, known or not. Refusals: INVALID_PARAMETER: an invalid name."""
        refused = _refused_name(name)
        return refused or self._limits(self._view.producer_settings.get(name) or ProducerSettings(name))

    def change(
        self,
        peer: Peer,
        name: str,
        change: LimitsChange,
        operator: str,
        reason: str,
        answer: Callable[[GroupLimits | Refused | Failed], None],
    ) -> None:
        """Change limits or policy; responds with what was set. The group may be unknown.

        Refusals: INVALID_PARAMETER: of the name, the administrator's name, or limits that contradict each other. LIMIT_REACHED.
        """
        refused = _refused_name(name)
        by = refused or actor(peer, operator, reason, "who sets this")
        if isinstance(by, Refused):
            answer(by)
            return

        def is_set(_: None, reply: Any) -> None:
            if isinstance(reply, ProducerSettingsStored):
                self._say_set(peer, reply.settings)
                # What was set, not what is in memory by now: a later change may not be durable yet.
                answer(self._limits(reply.settings))
            else:
                answer(reply)

        # Only the changed fields: the others are read at the decision, after the changes before it.
        given = {field: value for field, value in change._asdict().items() if value is not None}
        settings = ProducerSettings(name, **given, set_by=by.name)
        self._sequencer.submit(SetProducer(settings, tuple(given), by), is_set)

    def _say_set(self, peer: Peer, settings: ProducerSettings) -> None:
        # Each group is logged, and many at intervals: each change has its record in the log.
        self._log_throttled(
            log, logging.WARNING, ("limits", settings.name), peer,
            "operator %s from %s set producer group %s: check limit %d, then %s; skip age %d ms; at most %d undecided, %d "
            "bytes (-1: as the broker's)",
            settings.set_by, peer.address, settings.name, settings.check_limit, settings.past_limit.value,
            settings.skip_age_ms, settings.undecided_max, settings.undecided_bytes_max,
        )  # fmt: skip

    def _limits(self, settings: ProducerSettings) -> GroupLimits:
        broker = self._view.settings
        return GroupLimits(settings, broker.undecided_max, broker.undecided_bytes_max)


def _refused_name(name: str) -> Refused | None:
    """The refusal of an invalid name of a producer group."""
    if not name:
        return Refused(Why.INVALID_PARAMETER, "group: which producer group")
    try:
        checked_name(name, "group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return Refused(Why.INVALID_PARAMETER, str(error))
    return None


def log_policy_action(acted: PolicyActed) -> None:
    """Log what a policy did to a transaction."""
    what = "rolled back" if acted.rolled_back else "parked"
    why = f"after {acted.checks} checks" if acted.because is ParkedBecause.CHECKS else "because of its age"
    log.warning("the policy of group %s: transaction %s was %s %s", acted.group, acted.tx_id, what, why)
