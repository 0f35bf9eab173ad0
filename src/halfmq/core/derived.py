"""Updates of derived state, by ``apply`` for each record and when a snapshot is loaded."""

from heapq import heappush

from halfmq.core.base_bytes import count_query, query_bytes
from halfmq.core.copies import forget_copy, note_copy
from halfmq.core.state import (
    CHECK_BUCKET_MASK,
    CHECK_ROUND_UP,
    Delayed,
    HeldByUser,
    ProducerGroup,
    Query,
    State,
    Undecided,
    drop_stale_deadlines,
)
from halfmq.core.transaction.queries import key_of_id
from halfmq.model.records import PARKED_MS, Half, parked_because


def schedule(state: State, group: ProducerGroup, tx_id: str, at_ms: int) -> None:
    """Enter an undecided transaction in the bucket of its next check."""
    bucket = (at_ms + CHECK_ROUND_UP) & CHECK_BUCKET_MASK
    scheduled = group.derived.scheduled
    ids = scheduled.get(bucket)
    if ids is None:
        scheduled[bucket] = {tx_id: None}
        heappush(state.derived.group_deadlines, (bucket, group.name))
    else:
        ids[tx_id] = None


def schedule_or_park(state: State, group: ProducerGroup, tx_id: str, check: int) -> None:
    if parked_because(check) is None:
        schedule(state, group, tx_id, check)
    else:
        group.derived.parked[tx_id] = None


def unschedule(state: State, group: ProducerGroup, tx_id: str, check: int) -> None:
    """Remove an undecided transaction from its bucket, if that is not due yet, or from the parked ones."""
    if check < PARKED_MS:
        bucket = (check + CHECK_ROUND_UP) & CHECK_BUCKET_MASK
        scheduled = group.derived.scheduled
        ids = scheduled.get(bucket)
        if ids is not None:
            ids.pop(tx_id, None)
            if not ids:
                del scheduled[bucket]
                drop_stale_deadlines(state)
    else:
        del group.derived.parked[tx_id]


def count_undecided(state: State, group: ProducerGroup) -> None:
    """Count one more undecided transaction of the group, before it is added."""
    state.derived.undecided_count += 1
    state.derived.undecided_groups += not group.undecided


def count_half(state: State, group: ProducerGroup, half: Half) -> None:
    """Count one more undecided half of the group."""
    state.topics_by_id[half.topic_id].derived.pending += 1
    group.derived.bytes += half.message_bytes
    state.derived.undecided_bytes += half.message_bytes
    state.derived.undecided_delayed += half.delayed_messages


def add_query(state: State, query: Query) -> None:
    """Add a new query. The caller calls ``note_query`` once it is complete."""
    state.queries[query.key] = query
    count_query(state, query_bytes(query))


def note_query(state: State, query: Query, bytes_before: int) -> None:
    """A record of the query was applied. ``bytes_before``: its ``query_bytes`` before that."""
    count_query(state, query_bytes(query) - bytes_before)
    _note_age(state, query)


def _note_age(state: State, query: Query) -> None:
    derived = state.derived
    derived.unused_queries.pop(query.key, None)
    derived.idle_queries.pop(query.key, None)
    if query.key in derived.undecided_of_query:
        return
    if not query.decisions or query.is_over:
        derived.unused_queries[query.key] = state.batch_time_ms
    elif len(query.decisions) > 1:
        derived.idle_queries[query.key] = state.batch_time_ms


def forget_query(state: State, query: Query) -> None:
    """Forget a query that has no undecided transaction."""
    del state.queries[query.key]
    del state.derived.query_of_run[query.name, query.run]
    state.derived.unused_queries.pop(query.key, None)
    state.derived.idle_queries.pop(query.key, None)
    count_query(state, -query_bytes(query))


def set_run(state: State, query: Query, run: str) -> None:
    """Make ``run`` the newest run of the query."""
    runs = state.derived.query_of_run
    runs.pop((query.name, query.run), None)
    query.run = run
    runs[query.name, run] = query


def forget_finished_queries(state: State) -> None:
    """Forget the queries that are over and whose last decision was trimmed: nobody repeats it any more."""
    for query in [query for query in state.queries.values() if query.is_over]:
        position = query.decisions[query.last_batch].position
        if position < state.log_start and query.key not in state.derived.undecided_of_query:
            forget_query(state, query)


def enter_of_query(state: State, tx_id: str, first: Half) -> None:
    """Enter a new undecided transaction in those of its query, if ``first``, one of its halves, belongs to one."""
    if first.batch is not None and first.attempt:
        key = key_of_id(state, tx_id, first.batch.query_topic)
        state.derived.undecided_of_query.setdefault(key, {})[tx_id] = None
        _note_age(state, state.queries[key])


def leave_query(state: State, known: Undecided) -> None:
    """The transaction was settled."""
    first = known.halves[0]
    if first.batch is not None and first.attempt:
        key = key_of_id(state, known.tx_id, first.batch.query_topic)
        ids = state.derived.undecided_of_query[key]
        del ids[known.tx_id]
        if not ids:
            del state.derived.undecided_of_query[key]
            _note_age(state, state.queries[key])


def lowest_half_index(known: Undecided) -> int:
    """Of the half that arrived first: the number of an undecided transaction of a coordinator."""
    return min([half.half_index for half in known.halves])


def enter_of_coordinator(state: State, known: Undecided) -> None:
    """Enter an undecided transaction in those of its coordinator, if it has one."""
    if known.coordinator is not None:
        key = known.group, known.coordinator.name
        state.derived.undecided_of_coordinator.setdefault(key, {})[lowest_half_index(known)] = known.tx_id


def leave_coordinator(state: State, known: Undecided) -> None:
    """The transaction was settled, or gets another half."""
    if known.coordinator is not None:
        key = known.group, known.coordinator.name
        ids = state.derived.undecided_of_coordinator[key]
        del ids[lowest_half_index(known)]
        if not ids:
            del state.derived.undecided_of_coordinator[key]


def count_of_user(state: State, user: str, more: int, more_bytes: int) -> None:
    """Count ``more`` undecided transactions of a user, and bytes of their messages, if anybody is known."""
    if user:
        of_user = state.derived.undecided_of_user
        held = of_user.get(user)
        if held is None:
            held = of_user[user] = HeldByUser()
        held.transactions += more
        held.message_bytes += more_bytes
        if not held.transactions:
            del of_user[user]


def add_delayed(state: State, delayed: Delayed) -> None:
    """Enter a delayed message, new or copied to another place."""
    before = state.delayed.get(delayed.first_offset)
    if before is None:
        of_topic = state.topics_by_id[delayed.topic_id].derived
        of_topic.pending += 1
        of_topic.delayed += 1
        heappush(state.derived.delayed_heap, (delayed.due_ms, delayed.first_offset))
    else:
        forget_copy(state, before)
    state.delayed[delayed.first_offset] = delayed
    note_copy(state, delayed)
