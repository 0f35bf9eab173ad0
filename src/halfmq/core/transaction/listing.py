"""Lists of undecided transactions, oldest first, for operators.

It reads a view and changes nothing. The work is bounded: a group keeps its undecided transactions in order of preparation, so the
oldest ones are found without a search. There may be very many groups; a request about all of them gets a page, and continues with
``groups_from``, or examines a part in each turn of the event loop.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice

from halfmq.core.state import CoordinatorKey, ProducerGroup, State, Undecided
from halfmq.core.transaction.states import standing_state
from halfmq.model.pending import GroupStats, PendingTransaction
from halfmq.model.records import ParkedBecause
from halfmq.model.settings import PastLimit

#: The state of a transaction, as shown to operators.
UNDECIDED = "UNDECIDED"
UNKNOWN = "UNKNOWN"
_BECAUSE = {
    None: "",
    ParkedBecause.CHECKS: "checks",
    ParkedBecause.AGE: "age",
    ParkedBecause.RESTORED: "restored",
}
#: Maximum number of recent verdicts that a count examines; they take about a millisecond.
_VERDICTS_LOOKED_AT_MAX = 20_000


def groups_from(view: State, number: int, groups_max: int) -> tuple[Sequence[ProducerGroup], int]:
    """(at most ``groups_max`` producer groups from this number on, start of the next page; 0 after the last page)."""
    groups = list(view.producer_groups.values())
    at = bisect_left(groups, number, key=lambda group: group.session.number)
    page = groups[at : at + groups_max]
    return page, page[-1].session.number + 1 if at + groups_max < len(groups) else 0


def oldest_undecided(
    view: State,
    group: str,
    listed_max: int,
    now_ms: int,
    *,
    groups: Sequence[ProducerGroup] | None = None,
    skipped: int = 0,
) -> tuple[int, tuple[PendingTransaction, ...]]:
    """(number of undecided transactions, the oldest of them after ``skipped``) of one producer group.

    If ``group`` is empty: of all groups, or of ``groups``. ``skipped`` applies only to a single group.
    """
    groups = _selected(view, group, groups)
    total = sum(len(one.undecided) for one in groups)
    if len(groups) == 1:
        rows = islice(groups[0].undecided.values(), skipped, skipped + listed_max)
        return total, tuple([_listed(view, groups[0], known, now_ms) for known in rows])
    found = [_listed(view, one, known, now_ms) for one, known in islice(_by_age(groups), listed_max)]
    found.sort(key=lambda listed: (-listed.age_ms, listed.group, listed.tx_id))
    return total, tuple(found)


def _selected(view: State, group: str, groups: Sequence[ProducerGroup] | None) -> Sequence[ProducerGroup]:
    if group:
        return [view.producer_groups[group]] if group in view.producer_groups else []
    return list(view.producer_groups.values()) if groups is None else groups


def undecided_of_coordinator(
    view: State, key: CoordinatorKey, listed_max: int, now_ms: int, first: int
) -> tuple[int, int, tuple[PendingTransaction, ...]]:
    """(number of undecided transactions of the coordinator, start of the next page or 0, transactions of this page).

    Sorted by half index, of which ``first`` is the least: verdicts between two pages move none of the others, so that a reader of all
    pages has seen every transaction that is undecided at the end.
    """
    ids = view.derived.undecided_of_coordinator.get(key)
    if ids is None:
        return 0, 0, ()
    group = view.producer_groups[key[0]]
    numbers = sorted(ids)
    at = bisect_left(numbers, first)
    rows = tuple([_listed(view, group, group.undecided[ids[one]], now_ms) for one in numbers[at : at + listed_max]])
    return len(ids), numbers[at + listed_max] if at + listed_max < len(numbers) else 0, rows


def _by_age(groups: Sequence[ProducerGroup]) -> Iterator[tuple[ProducerGroup, Undecided]]:
    """Oldest first. Reads one transaction of each group, and one more for each result."""
    heads = []
    for number, group in enumerate(groups):
        rest = iter(group.undecided.values())
        first = next(rest, None)
        if first is not None:
            heads.append((first.prepared_at_ms, group.name, first.tx_id, number, first, rest))
    heapify(heads)
    while heads:
        _, _, _, number, known, rest = heads[0]
        yield groups[number], known
        following = next(rest, None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (following.prepared_at_ms, following.group, following.tx_id, number, following, rest))


def _listed(view: State, group: ProducerGroup, known: Undecided, now_ms: int) -> PendingTransaction:
    messages, expected = number_of_messages(known)
    return PendingTransaction(
        group.name,
        known.tx_id,
        max(0, now_ms - known.prepared_at_ms),
        messages,
        expected,
        sum(half.message_bytes for half in known.halves),
        topics_of(view, known),
        known.checks,
        0 if known.parked else max(0, known.next_check - now_ms),
        len(group.session.members) + len(group.session.pollers),
        _BECAUSE[known.parked],
        coordinator=known.coordinator.name if known.coordinator is not None else "",
        epoch=known.coordinator.epoch if known.coordinator is not None else 0,
    )


def topics_of(view: State, known: Undecided) -> tuple[str, ...]:
    """Names of the topics that its halves are for, each once; of a deleted one its id."""
    topics: dict[str, None] = {}
    for half in known.halves:
        topic = view.topics_by_id.get(half.topic_id)
        topics[topic.name if topic is not None else f"topic id {half.topic_id}"] = None
    return tuple(topics)


def number_of_messages(known: Undecided) -> tuple[int, int]:
    """(messages that are here, messages that it will have; 0 if that is not stated yet)."""
    if known.halves[0].batch is None:
        return len(known.halves), known.count
    messages = sum([half.messages for half in known.halves])
    return messages, messages if known.count == len(known.halves) else 0


def has(view: ProducerGroup, tx_id: str) -> bool:
    """Whether the group has a transaction with this id, undecided or recently settled. Ids are unique within a group."""
    return tx_id in view.undecided or tx_id in view.settled


def transaction_state(view: State, group: str, tx_id: str) -> str:
    """UNDECIDED, COMMITTED, ROLLED_BACK, or UNKNOWN: never prepared here, or settled before the deduplication window."""
    producers = view.producer_groups.get(group)
    if producers is None:
        return UNKNOWN
    if tx_id in producers.undecided:
        return UNDECIDED
    verdict = producers.settled.get(tx_id)
    return UNKNOWN if verdict is None else standing_state(verdict.committed).value


def undecided_among(view: ProducerGroup, ids: Collection[str]) -> Iterable[str]:
    """Those of ``ids`` that are undecided in the group. Iterates over the smaller collection."""
    if len(view.undecided) < len(ids):
        return [tx_id for tx_id in view.undecided if tx_id in ids]
    return [tx_id for tx_id in ids if tx_id in view.undecided]


def group_stats(
    view: State, group: str, now_ms: int, *, groups: Sequence[ProducerGroup] | None = None
) -> tuple[GroupStats, ...]:
    """Statistics of one producer group, of all, or of ``groups``; those with most undecided transactions first."""
    groups = _selected(view, group, groups)
    committed: dict[str, int] = {}
    rolled_back: dict[str, int] = {}
    since_ms = now_ms
    for verdict in islice(reversed(view.verdicts), _VERDICTS_LOOKED_AT_MAX):
        counts = committed if verdict.committed else rolled_back
        counts[verdict.group] = counts.get(verdict.group, 0) + 1
        since_ms = verdict.settled_at_ms
    found = [
        _stats(view, one, committed.get(one.name, 0), rolled_back.get(one.name, 0), now_ms - since_ms, now_ms)
        for one in groups
    ]
    found.sort(key=lambda stats: (-stats.undecided, stats.group))
    return tuple(found)


def _stats(
    view: State, group: ProducerGroup, committed: int, rolled_back: int, span_ms: int, now_ms: int
) -> GroupStats:
    oldest = next(iter(group.undecided.values()), None)
    settings = view.producer_settings.get(group.name)
    return GroupStats(
        group=group.name,
        undecided=len(group.undecided),
        undecided_max=group.undecided_max,
        message_bytes=group.derived.bytes,
        message_bytes_max=group.undecided_bytes_max,
        oldest_ms=max(0, now_ms - oldest.prepared_at_ms) if oldest is not None else 0,
        parked=len(group.derived.parked),
        in_flight=sum(asked.until_ms > now_ms for asked in group.session.in_flight.values()),
        producers=len(group.session.members) + len(group.session.pollers),
        committed=committed,
        rolled_back=rolled_back,
        counted_ms=span_ms,
        check_limit=settings.check_limit if settings is not None else 0,
        past_limit=settings.past_limit.value if settings is not None else PastLimit.WAIT.value,
        skip_age_ms=settings.skip_age_ms if settings is not None else 0,
        set_by=settings.set_by if settings is not None else "",
    )
