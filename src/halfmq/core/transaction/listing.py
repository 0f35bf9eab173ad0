"""What is undecided, the oldest first, for people who look after a broker.

Reads state, changes nothing. Bounded work: the undecided transactions of a group stand in the order in which they were
prepared, so the oldest ones are found without looking at the rest.
"""

from collections.abc import Iterable
from itertools import islice

from halfmq.core.state import ProducerGroup, State, Undecided
from halfmq.core.transaction.check_schedule import set_aside_in
from halfmq.core.transaction.states import standing_state
from halfmq.model.pending import GroupStats, PendingTransaction
from halfmq.model.records import SET_ASIDE_MS, AsideBecause
from halfmq.model.settings import PastLimit

#: The state of a transaction, as people are told it.
UNDECIDED = "UNDECIDED"
UNKNOWN = "UNKNOWN"
_BECAUSE = {AsideBecause.CHECKS: "checks", AsideBecause.AGE: "age"}
#: Recent verdicts that a count looks at: a millisecond's worth.
_VERDICTS_LOOKED_AT_MAX = 20_000


def oldest_undecided(
    state: State, group: str, listed_max: int, now_ms: int
) -> tuple[int, tuple[PendingTransaction, ...]]:
    """(how many are undecided, the oldest of them) of one producer group, or of all when ``group`` is empty."""
    groups: Iterable[ProducerGroup] = state.producer_groups.values()
    if group:
        known = state.producer_groups.get(group)
        groups = () if known is None else (known,)
    total = 0
    found: list[PendingTransaction] = []
    for one in groups:
        total += len(one.undecided)
        found += [_listed(state, one, known, now_ms) for known in islice(one.undecided.values(), listed_max)]
    found.sort(key=lambda listed: (-listed.age_ms, listed.group, listed.tx_id))
    return total, tuple(found[:listed_max])


def _listed(state: State, group: ProducerGroup, known: Undecided, now_ms: int) -> PendingTransaction:
    topics: dict[str, None] = {}
    for half in known.halves:
        topic = state.topics_by_id.get(half.topic_id)
        topics[topic.name if topic is not None else f"topic id {half.topic_id}"] = None
    return PendingTransaction(
        group.name,
        known.tx_id,
        max(0, now_ms - known.prepared_at_ms),
        len(known.halves),
        known.count,
        sum(half.message_bytes for half in known.halves),
        tuple(topics),
        known.checks,
        max(0, known.next_check_at_ms - now_ms) if known.next_check_at_ms < SET_ASIDE_MS else 0,
        len(group.members) + len(group.pollers),
        "" if known.next_check_at_ms < SET_ASIDE_MS else _BECAUSE[AsideBecause(known.next_check_at_ms - SET_ASIDE_MS)],
    )


def groups_of(state: State, tx_id: str) -> tuple[str, ...]:
    """Producer groups that have a transaction of this id, undecided or recently settled. Ids are unique within a group."""
    return tuple(
        group.name for group in state.producer_groups.values() if tx_id in group.undecided or tx_id in group.settled
    )


def standing(state: State, group: str, tx_id: str) -> str:
    """UNDECIDED, COMMITTED, ROLLED_BACK, or UNKNOWN: never prepared here, or settled longer ago than memory goes."""
    producers = state.producer_groups.get(group)
    if producers is None:
        return UNKNOWN
    if tx_id in producers.undecided:
        return UNDECIDED
    verdict = producers.settled.get(tx_id)
    return UNKNOWN if verdict is None else standing_state(verdict[2]).value


def undecided_among(state: State, ids: Iterable[str]) -> list[str]:
    """Those of ``ids`` that are undecided in any producer group."""
    groups = [group.undecided for group in state.producer_groups.values() if group.undecided]
    return [tx_id for tx_id in ids if any(tx_id in undecided for undecided in groups)]


def group_stats(state: State, group: str, now_ms: int) -> tuple[GroupStats, ...]:
    """Figures of one producer group, or of all that have anything; the ones with most undecided first."""
    committed: dict[str, int] = {}
    rolled_back: dict[str, int] = {}
    since_ms = now_ms
    for verdict in islice(reversed(state.verdicts), _VERDICTS_LOOKED_AT_MAX):
        counts = committed if verdict[2] else rolled_back
        counts[verdict[0]] = counts.get(verdict[0], 0) + 1
        since_ms = verdict[4]
    found = [
        _stats(state, one, committed.get(name, 0), rolled_back.get(name, 0), now_ms - since_ms, now_ms)
        for name, one in state.producer_groups.items()
        if name == group or not group
    ]
    found.sort(key=lambda stats: (-stats.undecided, stats.group))
    return tuple(found)


def _stats(
    state: State, group: ProducerGroup, committed: int, rolled_back: int, span_ms: int, now_ms: int
) -> GroupStats:
    oldest = next(iter(group.undecided.values()), None)
    settings = state.producer_settings.get(group.name)
    return GroupStats(
        group=group.name,
        undecided=len(group.undecided),
        undecided_max=group.undecided_max,
        message_bytes=group.bytes,
        message_bytes_max=group.undecided_bytes_max,
        oldest_ms=max(0, now_ms - oldest.prepared_at_ms) if oldest is not None else 0,
        set_aside=len(set_aside_in(group)),
        in_flight=len(group.in_flight),
        producers=len(group.members) + len(group.pollers),
        committed=committed,
        rolled_back=rolled_back,
        counted_ms=span_ms,
        check_limit=settings.check_limit if settings is not None else 0,
        past_limit=settings.past_limit.value if settings is not None else PastLimit.WAIT.value,
        skip_age_ms=settings.skip_age_ms if settings is not None else 0,
        set_by=settings.set_by if settings is not None else "",
    )
