"""Invariants of the state, checked by full computation: all derived state is compared with its source.

The simulation runs it after each event.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from halfmq import limits
from halfmq.core.base_bytes import (
    OFFSET_BYTES,
    comparison_bytes,
    coordinator_bytes,
    group_bytes,
    more_group_bytes,
    producer_bytes,
    query_bytes,
    setting_bytes,
    topic_bytes,
    user_bytes,
)
from halfmq.core.derived import lowest_half_index
from halfmq.core.state import (
    CHECK_BUCKET_MS,
    NEVER_MS,
    CoordinatorKey,
    Delayed,
    DerivedState,
    ProducerGroup,
    State,
    holders_bytes,
)
from halfmq.core.transaction.queries import key_of, key_of_id
from halfmq.errors import InvariantViolated
from halfmq.model.placement import segment_start
from halfmq.model.records import Half
from halfmq.model.share import share_of


def check(state: State) -> int:
    """Check all invariants. Returns the number of facts checked, so that the caller can see that it is not zero.

    Raises:
        InvariantViolated: with all violations. Stop, and keep the log.
    """
    wrong: list[str] = []
    looked_at = 0
    for text in _problems(state):
        looked_at += 1
        if text:
            wrong.append(text)
    if wrong:
        raise InvariantViolated("; ".join(wrong[:20]))
    return looked_at


def _problems(state: State) -> Iterator[str]:
    """One string for each fact: the violation, or an empty string."""
    yield from _topics(state)
    for group in state.producer_groups.values():
        yield from _group(state, group)
    yield from _windows(state)
    yield from _delayed(state)
    yield from _copies(state)
    yield from _queries(state)
    yield from _coordinators(state)
    for name in state.producer_settings:
        yield "" if name in state.producer_groups else f"settings of group {name}, which is forgotten"
    groups = state.producer_groups.values()
    for name, says, is_ in (
        ("undecided transactions", state.derived.undecided_count, sum(len(group.undecided) for group in groups)),
        ("bytes of them", state.derived.undecided_bytes, sum(map(_halves_bytes, groups))),
        ("delayed messages in half batches", state.derived.undecided_delayed, sum(map(_delayed_messages, groups))),
        ("groups with any", state.derived.undecided_groups, sum(bool(group.undecided) for group in groups)),
    ):
        yield "" if says == is_ else f"{says} {name} are counted, which are {is_}"
    of_users, bytes_of_users = Counter[str](), Counter[str]()
    for known in [known for group in groups for known in group.undecided.values() if known.user]:
        of_users[known.user] += 1
        bytes_of_users[known.user] += sum(half.message_bytes for half in known.halves)
    held_by = state.derived.undecided_of_user
    says = {name: (held.transactions, held.message_bytes) for name, held in held_by.items()}
    is_ = {name: (of_users[name], bytes_of_users[name]) for name in of_users}
    yield "" if says == is_ else f"{says} of users, {is_}"
    own = [user.limits.undecided for user in state.users.values() if user.limits.undecided]
    least = min([share_of(state.settings.undecided_total_max), *own])
    limited_from = state.derived.users_limited_from
    yield (
        ""
        if limited_from in (0, least) or not state.users
        else f"users are limited from {limited_from} on, not {least}"
    )
    yield from _settings(state)
    for name in state.derived.policies_due:
        yield "" if name in state.derived.policies else f"group {name} is to be looked at and has no policy"
    administrators = sum(user.is_administrator for user in state.users.values())
    yield "" if administrators or not state.users else "users without an administrator among them"
    counted = recount(state)
    said = (state.derived.base_bytes, state.derived.groups_bytes, state.derived.queries_bytes)
    yield "" if said == counted else f"a base of {said} bytes is counted, which is {counted}"
    for name, fresh in state.session.fresh_offsets.items():
        yield "" if fresh.keys() <= state.offsets.get(name, {}).keys() else f"{name}: an offset is not logged"
    held = sum(holders_bytes(holders) for holders in state.holders.values())
    strange = state.holders.keys() - state.groups.keys()
    yield (
        ""
        if state.derived.holders_bytes == held and not strange
        else f"{state.derived.holders_bytes} bytes of holders, {held}; {strange}"
    )
    locks = sum(len(session.locks) for session in state.session.consumers.values())
    yield (
        ""
        if state.session.locks_held == locks
        else f"{state.session.locks_held} queue locks are counted, which are {locks}"
    )
    owners = Counter(
        lock.owner for session in state.session.consumers.values() for lock in session.locks.values() if lock.owner
    )
    yield "" if state.session.locks_of_owner == owners else f"{state.session.locks_of_owner} locks of owners, {owners}"
    yield "" if state.log_start <= state.log_end else f"log start {state.log_start} after its end {state.log_end}"
    for start in state.bases:
        yield "" if state.log_start <= start <= state.log_end else f"a base at {start} outside of the log"


def _halves_bytes(group: ProducerGroup) -> int:
    return sum(half.message_bytes for known in group.undecided.values() for half in known.halves)


def _delayed_messages(group: ProducerGroup) -> int:
    return sum(half.delayed_messages for known in group.undecided.values() for half in known.halves)


def _topics(state: State) -> Iterator[str]:
    pending: dict[int, int] = {}
    for group in state.producer_groups.values():
        for known in group.undecided.values():
            for half in known.halves:
                pending[half.topic_id] = pending.get(half.topic_id, 0) + 1
    for delayed in state.delayed.values():
        pending[delayed.topic_id] = pending.get(delayed.topic_id, 0) + 1
    for topic_id in pending:
        yield "" if topic_id in state.topics_by_id else f"messages wait for topic {topic_id}, which is gone"
    for topic_id, topic in state.topics_by_id.items():
        name = topic.name
        yield "" if state.topics_by_name.get(name) is topic else f"topic {name} is not found by its name"
        yield "" if 0 < topic_id < state.next_topic_id else f"topic {name} has an id that is still to be given"
        yield (
            ""
            if topic.derived.pending == pending.get(topic_id, 0)
            else f"topic {name} counts {topic.derived.pending} waiting"
        )
        yield (
            "" if all(0 <= low <= end for low, end in zip(topic.mins, topic.ends, strict=False)) else f"ends of {name}"
        )
        queues = {len(topic.mins), len(topic.ends), len(topic.wakes), len(topic.half_suffixes)}
        yield "" if len(queues) == 1 else f"queues of {name}"


def _group(state: State, group: ProducerGroup) -> Iterator[str]:
    scheduled = {tx_id: bucket for bucket, ids in group.derived.scheduled.items() for tx_id in ids}
    due = set(group.session.due)
    past = set(group.policy.session.past) if group.policy is not None else set()
    heap = set(state.derived.group_deadlines)
    halves_bytes = 0
    yield "" if sum(map(len, group.derived.scheduled.values())) == len(scheduled) else f"{group.name}: scheduled twice"
    known_ids = scheduled.keys() | group.derived.parked.keys()
    yield "" if known_ids <= group.undecided.keys() else f"{group.name}: a settled transaction is scheduled"
    for tx_id, known in group.undecided.items():
        what = f"{group.name}/{tx_id}"
        places = [(half.attempt, half.index) for half in known.halves]
        indexes = [half.index for half in known.halves]
        batches = any(half.batch is not None for half in known.halves)
        halves_bytes += sum(half.message_bytes for half in known.halves)
        yield "" if (known.group, known.tx_id) == (group.name, tx_id) else f"{what}: stands under another name"
        yield "" if places and places == sorted(set(places)) else f"{what}: indexes {indexes}"
        alike = all((half.batch is not None) == batches for half in known.halves)
        yield "" if alike else f"{what}: single halves and half batches"
        most = limits.TRANSACTION_HALF_BATCHES_MAX if batches else limits.TRANSACTION_MESSAGES_MAX
        yield "" if len(places) <= most else f"{what}: {len(places)} messages"
        first = known.halves[0].batch if known.halves else None
        of_query = ":" in tx_id and first is not None and first.attempt
        key = key_of_id(state, tx_id, first.query_topic) if of_query and first is not None else ("", "")
        yield (
            ""
            if (tx_id in state.derived.undecided_of_query.get(key, {})) == any(attempt for attempt, _ in places)
            else f"{what}: of a query or not, and it does not know"
        )
        last = max(indexes, default=-1)
        yield "" if not known.count or last < known.count else f"{what}: index {last} of {known.count}"
        yield "" if tx_id not in group.settled else f"{what}: undecided and settled"
        check = known.next_check
        parked = known.parked is not None
        yield "" if parked == (tx_id in group.derived.parked) else f"{what}: parked or not, and nobody knows"
        if parked:
            yield "" if tx_id not in scheduled else f"{what}: parked and scheduled"
        else:
            yield "" if known.grace_until_ms <= check else f"{what}: a check inside the grace period"
            bucket = (check + CHECK_BUCKET_MS - 1) & -CHECK_BUCKET_MS
            in_bucket = scheduled.get(tx_id) == bucket and (bucket, group.name) in heap
            waits = tx_id not in scheduled and (tx_id in due or tx_id in past)
            yield "" if in_bucket or waits else f"{what}: nobody will ask"
        for half in known.halves:
            placed = state.log_start <= half.offset < state.log_end and half.first_offset <= half.offset
            yield "" if placed else f"{what}: its bytes at {half.offset} are not in the log"
            yield "" if half.half_index < state.next_half_index else f"{what}: half index {half.half_index}"
    yield (
        ""
        if group.derived.bytes == halves_bytes
        else f"{group.name}: counts {group.derived.bytes} bytes of {halves_bytes}"
    )
    reachable = (group.session.due or group.session.early) and (group.session.members or group.session.held_polls)
    full_until_ms = group.session.full_until_ms
    waits = not reachable or group.name in state.session.asking or full_until_ms > 0
    yield "" if waits else f"{group.name}: has checks that are due and takes no turn"
    yield "" if not full_until_ms or (full_until_ms, group.name) in heap else f"{group.name}: nobody sees it overdue"
    yield (
        ""
        if group.session.held_polls.keys() <= group.session.pollers.keys()
        else f"{group.name}: somebody waits who never came"
    )
    has_policy = group.name in state.derived.policies
    yield "" if has_policy == (group.policy is not None) else f"{group.name}: its policy is not looked after"
    if group.policy is not None:
        at_ms = group.policy.session.scan_at_ms
        rests = not (group.policy.session.past or group.policy.session.scan)
        looked = rests and (at_ms >= NEVER_MS or (at_ms, group.name) in heap)
        yield (
            "" if looked or group.name in state.derived.policies_due else f"{group.name}: nobody looks after its policy"
        )
    for tx_id in group.session.in_flight:
        yield "" if tx_id in group.undecided else f"{group.name}/{tx_id}: settled and in flight"


def _queries(state: State) -> Iterator[str]:
    runs = {(query.name, query.run): query for query in state.queries.values()}
    yield "" if runs == state.derived.query_of_run and len(runs) == len(state.queries) else "newest runs of queries"
    for name, query in state.queries.items():
        key = key_of(state, query.name, query.topic)
        yield "" if key == query.key and (query.topic or not query.stream) else f"query {name}: found as {key}"
        undecided = key in state.derived.undecided_of_query
        yield (
            ""
            if (key in state.derived.unused_queries) == (not undecided and (query.is_over or not query.decisions))
            and (key in state.derived.idle_queries)
            == (not undecided and not query.is_over and len(query.decisions) > 1)
            else f"query {name}: unused or idle, or not"
        )
        batches = list(query.decisions)
        ordered = batches == sorted(set(batches)) and len(batches) <= limits.QUERY_DECISIONS_MAX
        yield "" if query.key == name and ordered else f"query {name}: decisions {batches}"
        yield "" if query.run and query.run not in query.superseded else f"query {name}: run {query.run}"
    ages = state.derived.unused_queries, state.derived.idle_queries
    yield "" if all(list(of.values()) == sorted(of.values()) for of in ages) else "ages of queries are out of order"
    yield "" if all(of.keys() <= state.queries.keys() for of in ages) else "the age of a forgotten query"
    for name, ids in state.derived.undecided_of_query.items():
        group = state.producer_groups[state.queries[name].group]
        yield (
            "" if ids and ids.keys() <= group.undecided.keys() else f"query {name}: a settled batch counts as undecided"
        )
    for position, lowest in state.ties.items():
        yield "" if state.log_start <= lowest < position else f"a tie from {lowest} to {position} in a trimmed log"


def _coordinators(state: State) -> Iterator[str]:
    undecided: dict[CoordinatorKey, dict[int, str]] = {}
    for group in state.producer_groups.values():
        for tx_id, known in group.undecided.items():
            if known.coordinator is not None:
                key = group.name, known.coordinator.name
                undecided.setdefault(key, {})[lowest_half_index(known)] = tx_id
                taken = state.coordinators.get(key)
                fits = taken is not None and 0 < known.coordinator.epoch <= taken.epoch
                yield "" if fits else f"{group.name}/{tx_id}: of {known.coordinator}, and {taken} was taken"
    derived = state.derived
    yield "" if derived.undecided_of_coordinator == undecided else "undecided transactions of coordinators"
    counts: dict[str, int] = {}
    for (group_name, name), taken in state.coordinators.items():
        counts[group_name] = counts.get(group_name, 0) + 1
        yield (
            "" if taken.epoch <= state.coordinator_epoch else f"coordinator {name}: an epoch that is still to be given"
        )
    yield "" if derived.coordinators_of_group == counts else f"{derived.coordinators_of_group} coordinators, {counts}"


def _copies(state: State) -> Iterator[str]:
    copied: dict[int, int] = {}
    alive: list[Half | Delayed] = list(state.delayed.values())
    for group in state.producer_groups.values():
        for known in group.undecided.values():
            alive += known.halves
    for one in alive:
        if one.offset != one.first_offset:
            start = segment_start(one.offset, state.settings.segment_bytes)
            copied[start] = copied.get(start, 0) + one.message_bytes
    yield "" if copied == state.derived.copied else f"copies by segment: {state.derived.copied}, counted {copied}"


def _windows(state: State) -> Iterator[str]:
    settled = sum(len(group.settled) for group in state.producer_groups.values())
    yield "" if settled == len(state.verdicts) else f"{settled} verdicts by id, {len(state.verdicts)} in order"
    positions = [verdict.position for verdict in state.verdicts]
    yield "" if positions == sorted(set(positions)) else "two verdicts at one position, or out of order"
    bound = state.settings.dedup_ids_max
    yield "" if len(positions) <= bound and len(state.sent) <= bound else "more is remembered than allowed"
    yield "" if not positions or positions[0] >= state.log_start else "a verdict from before the log"
    yield "" if not state.sent or state.sent[0].log_offset >= state.log_start else "a sent message from before the log"
    kept = {id(sent) for sent in state.sent}
    for topic in state.topics_by_id.values():
        yield (
            "" if all(id(sent) in kept for sent in topic.derived.sent.values()) else f"{topic.name} remembers for ever"
        )


def _delayed(state: State) -> Iterator[str]:
    heap = set(state.derived.delayed_heap)
    for first_offset, delayed in state.delayed.items():
        yield "" if delayed.first_offset == first_offset else f"delayed {first_offset} stands under another offset"
        waits = ((delayed.due_ms, first_offset) in heap) != (first_offset in state.session.delayed_postponed)
        yield "" if waits else f"delayed {first_offset} is never shown, or is postponed and shown"
        placed = state.log_start <= delayed.offset < state.log_end
        yield "" if placed else f"delayed {first_offset}: its bytes at {delayed.offset} are not in the log"


def _settings(state: State) -> Iterator[str]:
    """Decisions read the recorded settings and else those of the configuration; producer groups have copies of two."""
    for field in fields(state.settings):
        recorded = state.recorded_settings.get(field.name)
        is_ = getattr(state.configured, field.name) if recorded is None else recorded.value
        says = getattr(state.settings, field.name)
        yield "" if says == is_ else f"setting {field.name} is {says}, not {is_}"
    for group in state.producer_groups.values():
        own = state.producer_settings.get(group.name)
        for name in ("undecided_max", "undecided_bytes_max"):
            given = -1 if own is None else getattr(own, name)
            is_ = getattr(state.settings, name) if given < 0 else given
            yield "" if getattr(group, name) == is_ else f"{name} of group {group.name} is not {is_}"


class Recount(NamedTuple):
    """The values that ``DerivedState.base_bytes``, ``groups_bytes`` and ``queries_bytes`` must have."""

    base: int
    groups: int
    queries: int


def recount(state: State) -> Recount:
    topics = sum(map(topic_bytes, state.topics_by_id.values()))
    groups = sum(map(group_bytes, state.groups))
    held = sum(map(more_group_bytes, state.groups.values()))
    producers = sum(map(producer_bytes, state.producer_settings.values()))
    queries = sum(map(query_bytes, state.queries.values()))
    coordinators = sum(coordinator_bytes(key, taken) for key, taken in state.coordinators.items())
    compared = sum(map(comparison_bytes, state.comparisons.values()))
    users = sum(user_bytes(*item) for item in state.users.items())
    settings = sum(setting_bytes(*item) for item in state.recorded_settings.items())
    offsets = sum(group_bytes(group) + OFFSET_BYTES * len(offsets) for group, offsets in state.offsets.items())
    return Recount(
        DerivedState().base_bytes
        + topics
        + groups
        + held
        + producers
        + offsets
        + queries
        + coordinators
        + compared
        + users
        + settings,
        groups,
        queries,
    )
