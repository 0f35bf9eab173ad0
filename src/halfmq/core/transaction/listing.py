"""What is undecided, the oldest first, for people who look after a broker.

Reads state, changes nothing. Bounded work: the undecided transactions of a group stand in the order in which they were
prepared, so the oldest ones are found without looking at the rest.
"""

from collections.abc import Iterable
from itertools import islice

from halfmq.core.state import ProducerGroup, State, Undecided
from halfmq.core.transaction.states import standing_state
from halfmq.model.pending import PendingTransaction

#: The state of a transaction, as people are told it.
UNDECIDED = "UNDECIDED"
UNKNOWN = "UNKNOWN"


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
        max(0, known.next_check_at_ms - now_ms),
        len(group.members),
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
