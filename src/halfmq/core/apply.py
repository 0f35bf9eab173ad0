"""The only way to change durable state: one function per record kind, the same live and in redo.

``apply`` changes memory only. It does not judge: a record in the log has happened. It rejects only what cannot be this log
(a record in the wrong place, a base that contradicts the state so far), since continuing would give wrong replies.

Redo may start after records that the live state saw, because a trim removed them. A verdict or a check may therefore name
halves that are unknown here. They were settled before the trim, so it did not copy them forward.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop
from typing import Any, Final

from halfmq import limits
from halfmq.core.base import apply_base
from halfmq.core.base_bytes import (
    count_group,
    drop_offset,
    forget_comparison,
    group_bytes,
    more_group_bytes,
    query_bytes,
    set_comparison,
    set_offset,
    topic_bytes,
)
from halfmq.core.clock_jumps import forget_jumps
from halfmq.core.copies import forget_copy, note_copy
from halfmq.core.derived import (
    add_delayed,
    add_query,
    count_half,
    count_of_user,
    count_undecided,
    enter_of_coordinator,
    enter_of_query,
    forget_finished_queries,
    forget_query,
    leave_coordinator,
    leave_query,
    note_query,
    schedule,
    schedule_or_park,
    set_run,
    unschedule,
)
from halfmq.core.queues.deduplication import forget_old, forget_sent, forget_verdict, remember, remember_verdict
from halfmq.core.queues.delay import due_at
from halfmq.core.queues.offsets import keys_in
from halfmq.core.schema import (
    read_comparison,
    read_epoch,
    read_group,
    read_producer,
    read_setting,
    read_topic,
    read_user,
    set_coordinator,
)
from halfmq.core.state import (
    Delayed,
    HeldByUser,
    ProducerGroup,
    Query,
    QueryDecision,
    RecentMessage,
    State,
    TakenEpoch,
    Undecided,
    Verdict,
    default_grace_ms,
    place_of,
    set_holders,
)
from halfmq.core.transaction.queries import key_of
from halfmq.errors import InvariantViolated
from halfmq.model.half_batch import delayed_items, half_of
from halfmq.model.placement import aligned, segment_start
from halfmq.model.query_batch import of_tx_id
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    DELAYED_MESSAGE_AT,
    MESSAGE_AT,
    PARKED_MS,
    Base,
    BatchRef,
    Checked,
    Committed,
    Compared,
    ComparisonResult,
    CoordinatorEpoch,
    Copied,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    DecidedBy,
    DelayedRecord,
    EpochStarted,
    GroupDeleted,
    GroupSet,
    Half,
    HalfBatch,
    HalfRecord,
    MessageRecord,
    OffsetsCommitted,
    OperatorActed,
    Parked,
    ProducerSet,
    QueryForgotten,
    Record,
    Ref,
    Released,
    Restored,
    RolledBack,
    SettingSet,
    TopicDeleted,
    TopicSet,
    Trim,
    UserSet,
    for_each_kind,
)

#: A plain number is compared faster.
_PRODUCER: Final = int(DecidedBy.PRODUCER)


def open_batch(state: State, offset: int, broker_time_ms: int) -> None:
    """Begin a batch at ``offset``: at the log's end, or at the start of a later segment. ``apply`` its records next.

    Raises:
        InvariantViolated: the batch cannot be the next one of this log.
    """
    if state.batch_open:
        raise InvariantViolated(f"a batch at {offset} begins inside the one that ends at {state.log_end}")
    if offset != state.log_end and state.loaded and offset % state.settings.segment_bytes:
        raise InvariantViolated(f"a batch begins at {offset}, the log ends at {state.log_end}")
    if offset < state.log_end:
        raise InvariantViolated(f"a batch begins at {offset}, before the log's end {state.log_end}")
    if not state.loaded:
        state.log_start = offset
    state.batch_open = True
    state.batch_time_ms = broker_time_ms
    state.log_end = offset + BATCH_HEADER_BYTES
    forget_old(state)


def close_batch(state: State) -> None:
    """End the batch: the next one starts at ``state.log_end``."""
    state.batch_open = False
    state.log_end = aligned(state.log_end)


def apply(state: State, record: Record) -> None:
    """Change the state as ``record`` says. Apply all records of a decision before the next decision.

    Raises:
        InvariantViolated: the record does not start at the end of the log. Nothing was changed; stop and keep the log.
    """
    apply_all(state, (record,))


def apply_all(state: State, records: Iterable[Record]) -> None:
    """``apply`` each record, in order."""
    for record in records:
        kind = type(record)
        if record.offset != state.log_end or not state.batch_open or not (state.loaded or kind is Base):
            raise InvariantViolated(
                f"{kind.__name__} at {record.offset}: the log ends at {state.log_end}, "
                f"batch open: {state.batch_open}, base seen: {state.loaded}"
            )
        _APPLY[kind](state, record)
        state.log_end += record.size


# --- messages --------------------------------------------------------------------------------------------------


def _message(state: State, record: MessageRecord) -> None:
    topic = state.topics_by_id[record.topic_id]
    queue_id = record.queue_id
    queue_offset = record.queue_offset
    topic.ends[queue_id] = queue_offset + 1
    if record.reconsume_times == 0 and not topic.exempt:
        remember(
            state, topic,
            RecentMessage(
                record.unique_id, record.topic_id, record.body_crc, record.offset, queue_id, queue_offset,
                state.batch_time_ms, state.session.sender,
            ),
        )  # fmt: skip


def _delayed(state: State, record: DelayedRecord) -> None:
    offset = record.offset
    topic_id = record.topic_id
    queue_id = record.queue_id
    topic = state.topics_by_id[topic_id]
    message_bytes = record.size - DELAYED_MESSAGE_AT
    add_delayed(
        state,
        Delayed(
            offset, offset, -1, topic_id, queue_id, message_bytes, record.due_ms, record.tag_hash, record.key_hash
        ),
    )  # fmt: skip
    if record.reconsume_times == 0 and not topic.exempt:
        sent = RecentMessage(
            record.unique_id, topic_id, record.body_crc, offset, queue_id, 0, state.batch_time_ms, state.session.sender
        )
        remember(state, topic, sent)


def _copied_delayed(state: State, record: CopiedDelayed) -> None:
    add_delayed(
        state,
        Delayed(
            record.offset, record.first_offset, record.half_index, record.topic_id, record.queue_id,
            record.message_bytes, record.due_ms, record.tag_hash, record.key_hash,
        ),
    )  # fmt: skip


def _released(state: State, record: Released) -> None:
    for ref in record.refs:
        topic = state.topics_by_id[ref.topic_id]
        topic.ends[ref.queue_id] = ref.queue_offset + 1
        delayed = state.delayed.pop(ref.first_offset, None)
        if delayed is not None:
            topic.derived.pending -= 1
            topic.derived.delayed -= 1
            forget_copy(state, delayed)
    heap = state.derived.delayed_heap
    while heap and heap[0][1] not in state.delayed:
        heappop(heap)


# --- transactions ----------------------------------------------------------------------------------------------


def _half(state: State, record: HalfRecord) -> None:
    offset = record.offset
    topic_id = record.topic_id
    half_index = record.queue_offset
    group_name = record.group
    tx_id = record.tx_id
    count = record.count
    grace_ms = record.grace_ms
    try:  # ``get`` takes twice as long
        group = state.producer_groups[group_name]
    except KeyError:
        group = state.producer_group(group_name)
    message_bytes = record.size - MESSAGE_AT
    half = Half(
        record.index, half_index, offset, offset, topic_id, record.queue_id, message_bytes, record.tag_hash,
        record.key_hash, record.delay, None, record.has_marker,
    )  # fmt: skip
    now_ms = state.batch_time_ms
    if grace_ms < 0:  # ``default_grace_ms`` inlined
        grace_ms = state.epoch_grace_ms if state.epoch_grace_ms >= 0 else state.settings.check_immunity_ms
    grace_until_ms = now_ms + grace_ms
    state.topics_by_id[topic_id].derived.pending += 1
    state.next_half_index = half_index + 1
    derived = state.derived
    group.derived.bytes += message_bytes
    derived.undecided_bytes += message_bytes
    undecided = group.undecided
    known = undecided.get(tx_id)
    if known is None:
        derived.undecided_count += 1
        if not undecided:
            derived.undecided_groups += 1
        coordinator = record.coordinator
        known = undecided[tx_id] = Undecided(
            group_name, tx_id, (half,), count, now_ms, grace_until_ms, 0, grace_until_ms, coordinator, record.user
        )
        if record.user:
            held = derived.undecided_of_user.get(record.user)  # ``count_of_user`` inlined
            if held is None:
                held = derived.undecided_of_user[record.user] = HeldByUser()
            held.transactions += 1
            held.message_bytes += message_bytes
        if coordinator is not None:
            enter_of_coordinator(state, known)
        schedule(state, group, tx_id, grace_until_ms)
    else:
        if known.user:
            count_of_user(state, known.user, 0, message_bytes)
        _join(state, group, known, half, count, grace_until_ms)


def _join(state: State, group: ProducerGroup, known: Undecided, half: Half, count: int, grace_until_ms: int) -> None:
    """A further half of a transaction: no check before its grace period ends, too."""
    grace_until_ms = max(known.grace_until_ms, grace_until_ms)
    _replace(
        state, group, known, _with_half(known.halves, half), max(known.count, count), known.prepared_at_ms,
        grace_until_ms, known.checks, max(known.next_check, grace_until_ms),
    )  # fmt: skip


def _with_half(halves: tuple[Half, ...], half: Half) -> tuple[Half, ...]:
    """``halves`` with ``half`` inserted in order; it replaces a half with the same attempt and index."""
    at = place_of(halves, half.attempt, half.index)
    replaces = at < len(halves) and halves[at].attempt == half.attempt and halves[at].index == half.index
    return (*halves[:at], half, *halves[at + replaces :])


def _replace(
    state: State, group: ProducerGroup, known: Undecided, halves: tuple[Half, ...], count: int, prepared_at_ms: int,
    grace_until_ms: int, checks: int, next_check: int,
) -> None:  # fmt: skip
    tx_id = known.tx_id
    if known.coordinator is not None:
        leave_coordinator(state, known)
    replaced = group.undecided[tx_id] = Undecided(
        known.group, tx_id, halves, count, prepared_at_ms, grace_until_ms, checks, next_check, known.coordinator,
        known.user,
    )  # fmt: skip
    if known.coordinator is not None:
        enter_of_coordinator(state, replaced)
    if next_check != known.next_check:
        unschedule(state, group, tx_id, known.next_check)
        schedule_or_park(state, group, tx_id, next_check)


def _copied_half(state: State, record: Copied) -> None:
    half = record.half
    group = state.producer_group(record.group)
    known = group.undecided.get(record.tx_id)
    check = record.next_check_at_ms
    before = [other for other in known.halves if other.half_index == half.half_index] if known is not None else []
    for other in before:
        forget_copy(state, other)
    note_copy(state, half)
    if not before:
        count_half(state, group, half)
    state.next_half_index = max(state.next_half_index, half.half_index + 1)
    if known is None:
        count_undecided(state, group)
        enter_of_query(state, record.tx_id, half)
        known = group.undecided[record.tx_id] = Undecided(
            record.group, record.tx_id, (half,), record.count, record.prepared_at_ms, record.grace_until_ms,
            record.checks, check, record.coordinator, record.user,
        )  # fmt: skip
        enter_of_coordinator(state, known)
        count_of_user(state, record.user, 1, half.message_bytes)
        schedule_or_park(state, group, record.tx_id, check)
        return
    if not before:
        count_of_user(state, known.user, 0, half.message_bytes)
    _replace(
        state, group, known, _with_half(known.halves, half), record.count, record.prepared_at_ms,
        record.grace_until_ms, record.checks, check,
    )  # fmt: skip


def _half_batch(state: State, record: HalfBatch) -> None:
    grace_ms = record.grace_ms if record.grace_ms >= 0 else default_grace_ms(state)
    now_ms = state.batch_time_ms
    half = half_of(record)
    batch = record.batch
    if batch.attempt:
        _begin_run(state, record.group, record.tx_id, batch.query_topic, batch.stream)
    group = state.producer_group(record.group)
    count_half(state, group, half)
    state.next_half_index = record.half_index + 1
    tx_id, count, grace_until_ms = record.tx_id, record.count, now_ms + grace_ms
    known = group.undecided.get(tx_id)
    if known is not None:
        count_of_user(state, known.user, 0, half.message_bytes)
        _join(state, group, known, half, count, grace_until_ms)
        return
    count_undecided(state, group)
    enter_of_query(state, tx_id, half)
    count_of_user(state, batch.user, 1, half.message_bytes)
    group.undecided[tx_id] = Undecided(
        record.group, tx_id, (half,), count, now_ms, grace_until_ms, 0, grace_until_ms, None, batch.user
    )
    schedule(state, group, tx_id, grace_until_ms)


def _begin_run(state: State, group: str, tx_id: str, topic: str, stream: str) -> Query:
    """A record of this run: it supersedes the run before it. It also says whose the query is, if that was unknown."""
    name, _, run = of_tx_id(tx_id)
    key = key_of(state, name, topic)
    query = state.queries.get(key)
    if query is None:
        query = Query(key, group)
        add_query(state, query)
    before = query_bytes(query)
    if not query.topic:
        query.topic, query.stream = topic, stream
    if query.run != run:
        if query.run:
            query.superseded = (query.run, *query.superseded)[: limits.QUERY_RUNS_MAX]
        set_run(state, query, run)
        query.rolled_back_batch = -1
    note_query(state, query, before)
    return query


def _decided(state: State, record: Decided) -> None:
    refs = record.refs
    group = state.producer_group(record.group)
    known = _settle(state, group, record.tx_id)
    if state.settled_now is not None:
        state.settled_now.others.append((known, record))
    for ref in refs:
        if ref.queue_offset >= 0:
            state.topics_by_id[ref.topic_id].ends[ref.queue_id] = ref.queue_offset + ref.messages
    if any(ref.queue_offset < 0 for ref in refs):
        _delay_items(state, known, refs)
    lowest = min([ref.offset for ref in refs], default=record.offset)
    if lowest < segment_start(record.offset, state.settings.segment_bytes):
        state.ties[record.offset] = lowest
    if record.digest:
        query = _begin_run(state, record.group, record.tx_id, record.query_topic, record.stream)
        before = query_bytes(query)
        query.is_over = record.is_last
        decisions = query.decisions
        _, batch, _ = of_tx_id(record.tx_id)
        decisions[batch] = QueryDecision(batch, record.digest, record.offset)
        while len(decisions) > limits.QUERY_DECISIONS_MAX:
            del decisions[next(iter(decisions))]
        note_query(state, query, before)
    halves = (*[ref.half_index for ref in refs], *record.lost)
    if halves:
        places = (*[ref.first_offset for ref in refs], *[-1] * len(record.lost))
        verdict = Verdict(
            record.group, record.tx_id, True, record.offset, state.batch_time_ms, halves, places, record.decided_by
        )
        remember_verdict(state, group, verdict)


def _delay_items(state: State, known: Undecided | None, refs: Sequence[BatchRef]) -> None:
    """The messages of half batches with delays become delayed messages like any other, which no longer refer to a half.

    Without the transaction, redo began after its half batch, as an interrupted trim allows; then these messages were copied, or released,
    by a later record.
    """
    facts = {half.half_index: half.batch for half in known.halves} if known is not None else {}
    now_ms = state.batch_time_ms
    for ref in refs:
        batch = facts.get(ref.half_index)
        if ref.queue_offset >= 0 or batch is None:
            continue
        for delay, at, message_bytes, tag_hash, key_hash in delayed_items(batch.delayed_entries):
            add_delayed(
                state,
                Delayed(
                    ref.offset + at, ref.first_offset + at, -1, ref.topic_id, ref.queue_id, message_bytes,
                    due_at(delay, now_ms) or now_ms, tag_hash, key_hash,
                ),
            )  # fmt: skip


def _checked(state: State, record: Checked | Parked) -> None:
    group = state.producer_groups.get(record.group)
    known = group.undecided.get(record.tx_id) if group is not None else None
    if group is None or known is None:
        return
    _replace(
        state, group, known, known.halves, known.count, known.prepared_at_ms, known.grace_until_ms, record.checks,
        PARKED_MS + record.because if isinstance(record, Parked) else record.next_check_at_ms,
    )  # fmt: skip


def _settle(state: State, group: ProducerGroup, tx_id: str) -> Undecided | None:
    """Remove the transaction from the undecided ones, with its derived state. Its session state goes by events of the decision
    (``CheckCancelled``) or is checked again before use."""
    undecided = group.undecided
    known = undecided.pop(tx_id, None)
    if known is None:
        return None
    of_group = group.derived
    derived = state.derived
    derived.undecided_count -= 1
    if not undecided:
        derived.undecided_groups -= 1
    topics = state.topics_by_id
    copied = derived.copied
    for half in known.halves:
        message_bytes = half.message_bytes
        of_group.bytes -= message_bytes
        derived.undecided_bytes -= message_bytes
        topics[half.topic_id].derived.pending -= 1
        if copied:
            forget_copy(state, half)
    unschedule(state, group, tx_id, known.next_check)
    if known.coordinator is not None:
        leave_coordinator(state, known)
    if known.user:
        halves = known.halves
        held = derived.undecided_of_user[known.user]  # ``count_of_user`` inlined
        held.message_bytes -= (
            halves[0].message_bytes if len(halves) == 1 else sum([half.message_bytes for half in halves])
        )
        held.transactions -= 1
        if not held.transactions:
            del derived.undecided_of_user[known.user]
    if known.halves[0].batch is not None:
        derived.undecided_delayed -= sum([half.delayed_messages for half in known.halves])
        leave_query(state, known)
    return known


def _committed(state: State, record: Committed) -> None:
    group_name = record.group
    tx_id = record.tx_id
    refs = record.refs
    try:  # ``get`` takes twice as long
        group = state.producer_groups[group_name]
    except KeyError:
        group = state.producer_group(group_name)
    known = _settle(state, group, tx_id)
    if state.settled_now is not None:  # not with a name of its own, which costs every broker
        if known is not None and record.decided_by == _PRODUCER:
            state.settled_now.commits.append(known)
        else:
            state.settled_now.others.append((known, record))
    topics = state.topics_by_id
    halves: int | tuple[int, ...]
    places: int | tuple[int, ...]
    if len(refs) == 1:  # nearly always, and a loop takes longer
        (ref,) = refs
        if ref.due_ms:
            _commit_delayed(state, ref)
        else:
            topics[ref.topic_id].ends[ref.queue_id] = ref.queue_offset + 1
        halves = ref.half_index
        places = ref.first_offset
    else:
        for ref in refs:
            if ref.due_ms:
                _commit_delayed(state, ref)
            else:
                topics[ref.topic_id].ends[ref.queue_id] = ref.queue_offset + 1
        halves = tuple([ref.half_index for ref in refs])
        places = tuple([ref.first_offset for ref in refs])
    verdict = Verdict(group_name, tx_id, True, record.offset, state.batch_time_ms, halves, places, record.decided_by)
    remember_verdict(state, group, verdict)


def _commit_delayed(state: State, ref: Ref) -> None:
    add_delayed(
        state,
        Delayed(
            ref.offset, ref.first_offset, ref.half_index, ref.topic_id, ref.queue_id, ref.message_bytes, ref.due_ms,
            ref.tag_hash, ref.key_hash,
        ),
    )  # fmt: skip


def _rolled_back(state: State, record: RolledBack) -> None:
    group_name = record.group
    tx_id = record.tx_id
    half_indexes = record.half_indexes
    group = state.producer_groups.get(group_name) or state.producer_group(group_name)
    known = _settle(state, group, tx_id)
    if state.settled_now is not None:
        state.settled_now.others.append((known, record))
    if state.queries:
        _note_rolled_back(state, group_name, tx_id)
    places = {half.half_index: half.first_offset for half in known.halves} if known is not None else {}
    halves: int | tuple[int, ...] = tuple(half_indexes)
    first: int | tuple[int, ...] = tuple([places.get(half_index, -1) for half_index in half_indexes])
    if len(half_indexes) == 1:
        (only,) = half_indexes
        halves, first = only, places.get(only, -1)
    verdict = Verdict(group_name, tx_id, False, record.offset, state.batch_time_ms, halves, first, record.decided_by)
    remember_verdict(state, group, verdict)


def _note_rolled_back(state: State, group: str, tx_id: str) -> None:
    """Remember that a run cannot prepare this batch again, also if redo did not read its half batches."""
    name, *rest = tx_id.split(":")
    query = state.derived.query_of_run.get((name, rest[1])) if len(rest) == 2 else None
    if query is not None and query.group == group and rest[0].isdigit():
        query.rolled_back_batch = max(query.rolled_back_batch, int(rest[0]))


def _query_forgotten(state: State, record: QueryForgotten) -> None:
    query = state.queries[record.name, record.topic]
    if record.is_whole:
        forget_query(state, query)
        return
    before = query_bytes(query)
    last = query.last_batch
    query.decisions = {last: query.decisions[last]}
    note_query(state, query, before)


def _coordinator_epoch(state: State, record: CoordinatorEpoch) -> None:
    taken = TakenEpoch(record.epoch, record.taken_by, state.batch_time_ms) if record.epoch else None
    set_coordinator(state, (record.group, record.name), taken)


def _compared(state: State, record: Compared) -> None:
    if record.result in (ComparisonResult.EXPECTED, ComparisonResult.CONTRADICTS):
        set_comparison(state, read_comparison(record))
    else:
        forget_comparison(state, record.group, record.tx_id)


def _user_set(state: State, record: UserSet) -> None:
    read_user(state, record.payload)


def _setting_set(state: State, record: SettingSet) -> None:
    read_setting(state, record.payload)


def _restored(state: State, record: Restored) -> None:
    """What names something after the restored position is adjusted: consumers would skip new messages, and two processes of a coordinator
    would have one epoch.
    """
    state.restored_half_index = state.next_half_index
    state.coordinator_epoch += limits.RESTORE_EPOCHS_SKIPPED
    for group, offsets in state.offsets.items():
        for key, offset in offsets.items():
            topic_id, queue_id = key
            ends = state.topics_by_id[topic_id].ends
            set_offset(state, group, key, min(offset, ends[queue_id]))


# --- settings, offsets, segments -------------------------------------------------------------------------------


def _topic_set(state: State, record: TopicSet) -> None:
    read_topic(state, record.payload)


def _topic_deleted(state: State, record: TopicDeleted) -> None:
    topic = state.topics_by_id.pop(record.topic_id)
    del state.topics_by_name[topic.name]
    state.derived.base_bytes -= topic_bytes(topic)
    for group in topic.derived.groups:
        for key in keys_in(state.offsets.get(group, {}), topic.topic_id, len(topic.ends)):
            drop_offset(state, group, key)
    for name in list(state.derived.held_by.get(record.topic_id, ())):
        kept = {
            (topic_id, queue_id): client_id
            for (topic_id, queue_id), client_id in state.holders[name].items()
            if topic_id != record.topic_id
        }
        set_holders(state, name, kept)


def _group_set(state: State, record: GroupSet) -> None:
    read_group(state, record.payload)


def _group_deleted(state: State, record: GroupDeleted) -> None:
    name = record.name
    group = state.groups.pop(name, None)
    if group is not None:
        count_group(state, -group_bytes(name))
        state.derived.base_bytes -= more_group_bytes(group)
    set_holders(state, name, {})
    if not record.with_offsets:
        return
    for topic_id, _ in state.offsets.get(name, ()):
        if topic_id in state.topics_by_id:
            state.topics_by_id[topic_id].derived.groups.pop(name, None)
    for key in list(state.offsets.get(name, ())):
        drop_offset(state, name, key)


def _producer_set(state: State, record: ProducerSet) -> None:
    read_producer(state, record.payload)


def _offsets(state: State, record: OffsetsCommitted) -> None:
    for group, topic_id, queue_id, offset in record.entries:
        if topic_id in state.topics_by_id:
            set_offset(state, group, (topic_id, queue_id), offset)


def _operator_acted(state: State, record: OperatorActed) -> None:
    """Nothing to change: the record that follows is the action."""


def _epoch_started(state: State, record: EpochStarted) -> None:
    read_epoch(state, record)


def _trim(state: State, record: Trim) -> None:
    log_start = record.log_start
    state.log_start = log_start
    forget_jumps(state)
    state.bases = {start: ends for start, ends in state.bases.items() if start >= log_start}
    for topic_id, ends in state.bases.get(log_start, ()):
        topic = state.topics_by_id.get(topic_id)
        if topic is not None:
            topic.mins[: len(ends)] = ends
    while state.verdicts and state.verdicts[0].position < log_start:
        forget_verdict(state)
    for position in [position for position in state.ties if position < log_start]:
        del state.ties[position]
    forget_finished_queries(state)
    while state.sent and state.sent[0].log_offset < log_start:
        forget_sent(state)


_APPLY: Final[dict[type, Callable[[State, Any], None]]] = for_each_kind(
    "_APPLY in core/apply.py",
    {
        MessageRecord: _message,
        HalfRecord: _half,
        CopiedHalf: _copied_half,
        Committed: _committed,
        RolledBack: _rolled_back,
        Checked: _checked,
        DelayedRecord: _delayed,
        CopiedDelayed: _copied_delayed,
        Released: _released,
        TopicSet: _topic_set,
        TopicDeleted: _topic_deleted,
        GroupSet: _group_set,
        OffsetsCommitted: _offsets,
        EpochStarted: _epoch_started,
        Base: apply_base,
        Trim: _trim,
        ProducerSet: _producer_set,
        Parked: _checked,
        GroupDeleted: _group_deleted,
        OperatorActed: _operator_acted,
        HalfBatch: _half_batch,
        CopiedHalfBatch: _copied_half,
        Decided: _decided,
        QueryForgotten: _query_forgotten,
        CoordinatorEpoch: _coordinator_epoch,
        Compared: _compared,
        UserSet: _user_set,
        SettingSet: _setting_set,
        Restored: _restored,
    },
)
