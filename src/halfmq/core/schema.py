"""The format of durable state: how each item is encoded and loaded.

Some items have a payload, which is in the record that sets them, in each base and in a snapshot:

    topic; consumer group with the holders of its queues; limits and policy of a producer group

A base and a snapshot contain kinds of rows:

    kind       row                                           base                             snapshot
    ---------  --------------------------------------------  -------------------------------  ----------------------------
    head       numbers and positions                         epoch, next topic id and half    all of ``Head``
                                                             index
    immunity   default grace period of the epoch; jumps      without jumps                    yes
    topics     payload, queue ends, queue minimums           without minimums: its ends are   yes
                                                             the minimums of a log that
                                                             begins with it
    groups     payload                                       yes                              yes
    producers  payload                                       yes                              yes
    offsets    group, (topic id, queue id, offset) of each   yes                              yes
    queries    ``QueryRow``                                  yes                              yes
    coordina-  ``CoordinatorRow``                            yes, and the highest epoch of    yes, and likewise
    tors                                                     any of them
    compared   ``Comparison``                                yes                              yes
    ties       position, lowest log offset                   no: they are between two         yes
                                                             segments, as bases
    bases      segment start, queue ends of each topic       no: the bases contain it         yes
    undecided  ``Undecided``                                 no: copied forward before a      yes
    delayed    ``Delayed``                                   trim                             yes
    decided    ``Verdict``                                   no: removed with the log that    yes
    sent       ``RecentMessage``                                  contains them                    yes

Loading also computes derived state, so a loaded state is complete.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntFlag
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from halfmq import limits
from halfmq.core.base_bytes import (
    coordinator_bytes,
    count_group,
    group_bytes,
    keep_queues,
    label_bytes,
    more_group_bytes,
    producer_bytes,
    query_bytes,
    set_comparison,
    set_offset,
    topic_bytes,
)
from halfmq.core.clock_jumps import note_start
from halfmq.core.copies import note_copy
from halfmq.core.derived import (
    add_delayed,
    add_query,
    count_half,
    count_undecided,
    enter_of_coordinator,
    enter_of_query,
    note_query,
    schedule_or_park,
    set_run,
)
from halfmq.core.state import (
    Comparison,
    CoordinatorKey,
    Delayed,
    Half,
    Jump,
    Policy,
    Query,
    QueryDecision,
    RecentMessage,
    State,
    TakenEpoch,
    Topic,
    Undecided,
    Verdict,
    drop_stale_deadlines,
    set_holders,
)
from halfmq.core.transaction.next_check import from_number
from halfmq.model.coordinator import Coordinator
from halfmq.model.records import (
    Compared,
    ComparisonResult,
    CoordinatorEpoch,
    EpochStarted,
    GroupDeleted,
    GroupSet,
    ProducerSet,
    QueryForgotten,
    TopicSet,
    payload_of,
    payload_record_size,
)
from halfmq.model.settings import GroupSettings, PastLimit, ProducerSettings

_decode: Final = msgspec.msgpack.decode

# --- payloads and the records that hold them -----------------------------------------------------------------------


def _topic_payload(
    topic_id: int, name: str, read_queues: int, write_queues: int, permission: int, ordered: bool, message_type: str
) -> bytes:
    """Encodes the labels, which are the last two, only if there is any."""
    labels = (ordered, message_type) if ordered or message_type else ()
    return payload_of(topic_id, name, read_queues, write_queues, permission, *labels)


def topic_payload(topic: Topic) -> bytes:
    return _topic_payload(
        topic.topic_id, topic.name, topic.read_queues, topic.write_queues, topic.permission, topic.ordered, topic.message_type
    )  # fmt: skip


def topic_set(
    offset: int, topic_id: int, name: str, read_queues: int, write_queues: int, permission: int, *, ordered: bool = False,
    message_type: str = "",
) -> TopicSet:  # fmt: skip
    payload = _topic_payload(topic_id, name, read_queues, write_queues, permission, ordered, message_type)
    return TopicSet(
        offset, payload_record_size(payload), topic_id, name, read_queues, write_queues, permission, payload
    )


def read_topic(state: State, payload: bytes) -> Topic:
    """Create or change the topic that ``payload`` describes."""
    topic_id, name, read_queues, write_queues, permission, *labels = _decode(payload)
    ordered, message_type = labels or (False, "")
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        topic = Topic(state.settings, topic_id, name, read_queues, write_queues, permission)
        state.topics_by_id[topic_id] = state.topics_by_name[name] = topic
        state.next_topic_id = max(state.next_topic_id, topic_id + 1)
        state.derived.base_bytes += topic_bytes(topic)
    else:
        keep_queues(state, topic, max(read_queues, write_queues))
        topic.resize(state.settings, read_queues, write_queues)
        topic.permission = permission
    state.derived.base_bytes += label_bytes(message_type) - label_bytes(topic.message_type)
    topic.ordered, topic.message_type = ordered, message_type
    return topic


class _Rare(IntFlag):
    """Settings of a consumer group that are rarely changed; a bit says that one is not the default."""

    NO_BROADCAST = 1
    NOT_FROM_MIN = 2
    NO_NOTIFICATION = 4


def _rare_of(group: GroupSettings) -> int:
    return (
        (not group.broadcast_enabled) * _Rare.NO_BROADCAST
        | (not group.from_min_enabled) * _Rare.NOT_FROM_MIN
        | (not group.notifies_members) * _Rare.NO_NOTIFICATION
    )


def group_payload(group: GroupSettings, holders: Mapping[tuple[int, int], str] | None = None) -> bytes:
    """Encodes ``holders``, what the group holds and its rare settings only up to the last of them that there is."""
    queues: dict[str, list[int]] = {}
    for (topic_id, queue_id), client_id in sorted((holders or {}).items()):
        queues.setdefault(client_id, []).extend((topic_id, queue_id))
    rare = _rare_of(group)
    more: tuple[object, ...] = ()
    if rare:
        more = (sorted(queues.items()), (group.hold_topics, group.hold_ms), rare)
    elif group.hold_topics:
        more = (sorted(queues.items()), (group.hold_topics, group.hold_ms))
    elif queues:
        more = (sorted(queues.items()),)
    return payload_of(group.name, group.retry_max_times, group.retry_queues, group.consume_enabled, *more)


def group_set(offset: int, group: GroupSettings, holders: Mapping[tuple[int, int], str] | None) -> GroupSet:
    payload = group_payload(group, holders)
    return GroupSet(offset, payload_record_size(payload), group.name, payload)


def group_deleted(offset: int, name: str, with_offsets: bool) -> GroupDeleted:
    payload = payload_of(name, with_offsets)
    return GroupDeleted(offset, payload_record_size(payload), name, with_offsets, payload)


def read_group(state: State, payload: bytes) -> None:
    """Create or change the consumer group that ``payload`` describes, with the holders of its queues."""
    name, retry_max_times, retry_queues, consume_enabled, *more = _decode(payload)
    if name not in state.groups:
        count_group(state, group_bytes(name))
    topics, hold_ms = more[1] if len(more) > 1 else ((), limits.HOLD_MS)
    rare = _Rare(more[2] if len(more) > 2 else 0)
    group = GroupSettings(
        name, retry_max_times, retry_queues, consume_enabled, tuple(topics), hold_ms,
        _Rare.NO_BROADCAST not in rare, _Rare.NOT_FROM_MIN not in rare, _Rare.NO_NOTIFICATION not in rare,
    )  # fmt: skip
    state.derived.base_bytes += more_group_bytes(group) - more_group_bytes(state.groups.get(name))
    state.groups[name] = group
    holders = {
        (topic_id, queue_id): client_id
        for client_id, queues in (more[0] if more else ())
        for topic_id, queue_id in zip(queues[::2], queues[1::2], strict=True)
    }
    set_holders(state, name, holders)


def producer_payload(settings: ProducerSettings) -> bytes:
    """A base contains it, and redo compares bases byte by byte: encode a further field only if it is not the default, or stores of
    earlier versions are refused.
    """
    return payload_of(
        settings.name, settings.check_limit, settings.past_limit.value, settings.skip_age_ms, settings.undecided_max,
        settings.undecided_bytes_max, settings.set_by,
    )  # fmt: skip


def producer_set(offset: int, settings: ProducerSettings) -> ProducerSet:
    payload = producer_payload(settings)
    return ProducerSet(offset, payload_record_size(payload), settings.name, payload)


def read_producer(state: State, payload: bytes) -> None:
    """Set or remove the limits and policy of the producer group that ``payload`` describes."""
    name, check_limit, past_limit, age_ms, count, size, set_by = _decode(payload)[:7]
    settings = ProducerSettings(name, check_limit, PastLimit(past_limit), age_ms, count, size, set_by)
    group = state.producer_group(name)
    group.undecided_max = state.settings.undecided_max if count < 0 else count
    group.undecided_bytes_max = state.settings.undecided_bytes_max if size < 0 else size
    group.policy = Policy(settings) if check_limit or age_ms else None
    if group.policy is None:
        state.derived.policies.pop(name, None)
        state.derived.policies_due.pop(name, None)
    else:
        state.derived.policies[name] = state.derived.policies_due[name] = None
    drop_stale_deadlines(state)
    state.derived.base_bytes -= producer_bytes(state.producer_settings.pop(name, None))
    if not settings.is_default:
        state.producer_settings[name] = settings
        state.derived.base_bytes += producer_bytes(settings)


def query_forgotten(offset: int, query: Query, *, is_whole: bool) -> QueryForgotten:
    """The record after which the broker knows nothing of the query (``is_whole``), or of its decisions only the last."""
    payload = payload_of(*query.key, is_whole)
    return QueryForgotten(offset, payload_record_size(payload), *query.key, is_whole, payload)


def coordinator_epoch(offset: int, key: CoordinatorKey, epoch: int, taken_by: str = "") -> CoordinatorEpoch:
    """The record after which the coordinator has this epoch; 0: after which it is forgotten."""
    payload = payload_of(*key, epoch, taken_by)
    return CoordinatorEpoch(offset, payload_record_size(payload), *key, epoch, taken_by, payload)


def set_coordinator(state: State, key: CoordinatorKey, taken: TakenEpoch | None) -> None:
    """Let the coordinator have this epoch; None: forget it."""
    before = state.coordinators.pop(key, None)
    state.derived.base_bytes += coordinator_bytes(key, taken) - coordinator_bytes(key, before)
    of_group = state.derived.coordinators_of_group
    count = of_group.pop(key[0], 0) + (taken is not None) - (before is not None)
    if count:
        of_group[key[0]] = count
    if taken is not None:
        state.coordinators[key] = taken
        state.coordinator_epoch = max(state.coordinator_epoch, taken.epoch)


def compared(offset: int, result: ComparisonResult, comparison: Comparison) -> Compared:
    """The record of a step of ``comparison``, which is what is known of it from then on."""
    group, tx_id, *known, source, found_at_ms = astuple(comparison)
    payload = payload_of(group, tx_id, int(result), source, *known, found_at_ms)
    return Compared(offset, payload_record_size(payload), group, tx_id, int(result), source, payload)


def read_comparison(record: Compared) -> Comparison:
    """What the record says. Directly after a verdict, its own place is the one that is remembered: the verdict's was not known yet."""
    group, tx_id, _, source, *known, found_at_ms = _decode(record.payload)
    comparison = Comparison(*[group, tx_id, *known, source, found_at_ms])
    return comparison if comparison.position else replace(comparison, position=record.offset)


def epoch_started(offset: int, epoch: int, wall_ms: int, check_immunity_ms: int, jump_ms: int = 0) -> EpochStarted:
    """The record of a start. It contains the settings that its epoch's records depend on, since redo may run with others.

    ``jump_ms``: the result of ``clock_jumps.jump_of_start``.
    """
    payload = payload_of(epoch, wall_ms, check_immunity_ms, *((jump_ms,) if jump_ms else ()))
    return EpochStarted(offset, payload_record_size(payload), epoch, wall_ms, payload)


def read_epoch(state: State, record: EpochStarted) -> None:
    """Begin the epoch of ``record``."""
    _, _, grace_ms, *jump = _decode(record.payload)
    state.epoch = record.epoch
    state.epoch_grace_ms = grace_ms
    note_start(state, record.offset, *jump)


# --- rows ----------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """Fields of ``State`` with the same names."""

    log_end: int
    log_start: int
    batch_time_ms: int
    epoch: int
    next_topic_id: int
    next_half_index: int


class TopicRow(NamedTuple):
    """A topic, and the next and the first queue offset of each of its queues."""

    payload: bytes
    ends: list[int]
    mins: list[int]


class QueryRow(NamedTuple):
    """A query: see ``state.Query``."""

    name: str
    group: str
    run: str
    superseded: tuple[str, ...]
    rolled_back_batch: int
    decisions: list[QueryDecision]
    is_over: bool = False
    #: The last three are absent from the row of a query without a topic, as in stores of earlier versions.
    topic: str = ""
    stream: str = ""
    #: Whether clients that state no topic mean it: ``Query.key`` has none.
    is_first: bool = True


class CoordinatorRow(NamedTuple):
    """A coordinator: see ``state.TakenEpoch``."""

    group: str
    name: str
    epoch: int
    taken_by: str
    taken_at_ms: int


class UndecidedRow(NamedTuple):
    """Fields of ``Undecided``, ``next_check`` as a number."""

    group: str
    tx_id: str
    halves: tuple[Half, ...]
    halves_count: int
    prepared_at_ms: int
    grace_until_ms: int
    checks: int
    next_check: int
    #: Absent in stores of earlier versions.
    coordinator: Coordinator | None = None


OffsetRow = tuple[str, list[tuple[int, int, int]]]
BaseRow = tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]


#: Order of dictionary keys: ``iter``, or ``sorted`` if equal states must give equal bytes.
Order = Callable[[Iterable[Any]], Iterable[Any]]


class RowKind(NamedTuple):
    """One kind of rows. Rows contain immutable values or copies, so they can be encoded while the state changes."""

    name: str
    #: Type of its rows, for the decoder.
    type: Any
    rows: Callable[[State], Sequence[Any]]
    load: Callable[[State, Any], None]


def _head(state: State) -> list[Head]:
    return [Head(*[getattr(state, field) for field in Head._fields])]


def _load_head(state: State, rows: Iterable[Head]) -> None:
    for head in rows:
        for field, value in head._asdict().items():
            setattr(state, field, value)


def _grace(state: State) -> list[int]:
    return [state.epoch_grace_ms, *[number for jump in state.jumps for number in jump]]


def _load_grace(state: State, rows: list[int]) -> None:
    state.epoch_grace_ms, *jumps = rows
    state.jumps = tuple(map(Jump._make, zip(jumps[::3], jumps[1::3], jumps[2::3], strict=True)))


def topic_rows(state: State, order: Order = iter) -> list[TopicRow]:
    """One row for each topic, for a base or a snapshot; the other functions of rows likewise. ``load_*`` adds them to a state."""
    topics = [state.topics_by_id[topic_id] for topic_id in order(state.topics_by_id)]
    return [TopicRow(topic_payload(topic), list(topic.ends), list(topic.mins)) for topic in topics]


def load_topics(state: State, rows: Iterable[TopicRow]) -> None:
    for payload, ends, mins in rows:
        topic = read_topic(state, payload)
        keep_queues(state, topic, len(ends))  # including queues from before the topic was reduced
        topic.ends[:] = ends
        topic.mins[:] = mins


def group_rows(state: State, order: Order = iter) -> list[bytes]:
    """The payload of each consumer group, with the holders of its queues."""
    return [group_payload(state.groups[name], state.holders.get(name)) for name in order(state.groups)]


def load_groups(state: State, rows: Iterable[bytes]) -> None:
    for payload in rows:
        read_group(state, payload)


def producer_rows(state: State, order: Order = iter) -> list[bytes]:
    """The payload of each producer group with its own limits or policy."""
    return [producer_payload(state.producer_settings[name]) for name in order(state.producer_settings)]


def load_producers(state: State, rows: Iterable[bytes]) -> None:
    for payload in rows:
        read_producer(state, payload)


def offset_rows(state: State, order: Order = iter) -> list[OffsetRow]:
    """The logged offsets of each consumer group."""
    offsets = state.offsets
    return [(group, [(*key, offsets[group][key]) for key in order(offsets[group])]) for group in order(offsets)]


def load_offsets(state: State, rows: Iterable[OffsetRow]) -> None:
    for group, entries in rows:
        for topic_id, queue_id, offset in entries:
            set_offset(state, group, (topic_id, queue_id), offset)


_QUERY_FIELDS_WITHOUT_TOPIC: Final = 7


def query_rows(state: State, order: Order = iter) -> list[Any]:
    """Each query with its runs and its decisions, as a ``QueryRow``."""
    return [_query_row(state.queries[key]) for key in order(state.queries)]


def _query_row(query: Query) -> tuple[Any, ...]:
    row = QueryRow(
        query.name, query.group, query.run, query.superseded, query.rolled_back_batch, list(query.decisions.values()),
        query.is_over, query.topic, query.stream, not query.key[1],
    )  # fmt: skip
    return row if query.topic else row[:_QUERY_FIELDS_WITHOUT_TOPIC]


def load_queries(state: State, rows: Iterable[QueryRow]) -> None:
    for row in rows:
        query = Query((row.name, "" if row.is_first else row.topic), row.group)
        query.topic, query.stream = row.topic, row.stream
        query.superseded, query.rolled_back_batch = row.superseded, row.rolled_back_batch
        query.decisions = {decision.batch: decision for decision in row.decisions}
        query.is_over = row.is_over
        add_query(state, query)
        set_run(state, query, row.run)
        note_query(state, query, query_bytes(query))


def coordinator_rows(state: State, order: Order = iter) -> list[CoordinatorRow]:
    """Each coordinator with its newest epoch."""
    rows = state.coordinators
    return [CoordinatorRow(key[0], key[1], *astuple(rows[key])) for key in order(rows)]


def load_coordinators(state: State, rows: Iterable[CoordinatorRow]) -> None:
    for row in rows:
        set_coordinator(state, (row.group, row.name), TakenEpoch(row.epoch, row.taken_by, row.taken_at_ms))


def _coordinator_epoch(state: State) -> list[int]:
    return [state.coordinator_epoch]


def _load_coordinator_epoch(state: State, rows: list[int]) -> None:
    (state.coordinator_epoch,) = rows


def comparison_rows(state: State, order: Order = iter) -> list[Comparison]:
    return [state.comparisons[key] for key in order(state.comparisons)]


def load_comparisons(state: State, rows: Iterable[Comparison]) -> None:
    for row in rows:
        set_comparison(state, row)


def _ties(state: State) -> list[tuple[int, int]]:
    return list(state.ties.items())


def _load_ties(state: State, rows: list[tuple[int, int]]) -> None:
    state.ties.update(rows)


def _bases(state: State) -> list[BaseRow]:
    return list(state.bases.items())


def _load_bases(state: State, rows: list[BaseRow]) -> None:
    state.bases.update(rows)


def _undecided(state: State) -> list[Undecided]:
    rows: list[Undecided] = []
    for group in state.producer_groups.values():
        rows += group.undecided.values()
    return rows


def _load_undecided(state: State, rows: list[UndecidedRow]) -> None:
    for name, tx_id, halves, count, prepared_at_ms, grace_until_ms, checks, number, coordinator in rows:
        group = state.producer_group(name)
        check = from_number(number)
        count_undecided(state, group)
        # ``group.name``: one string for all transactions of the group instead of one for each row.
        known = group.undecided[tx_id] = Undecided(
            group.name, tx_id, halves, count, prepared_at_ms, grace_until_ms, checks, check, coordinator
        )
        enter_of_coordinator(state, known)
        schedule_or_park(state, group, tx_id, check)
        enter_of_query(state, tx_id, halves[0])
        for half in halves:
            count_half(state, group, half)
            note_copy(state, half)


def _delayed(state: State) -> list[Delayed]:
    return list(state.delayed.values())


def _load_delayed(state: State, rows: list[Delayed]) -> None:
    for row in rows:
        add_delayed(state, row)


def _decided(state: State) -> list[Verdict]:
    return list(state.verdicts)


def _load_decided(state: State, rows: list[Verdict]) -> None:
    for row in rows:
        group = state.producer_group(row.group)
        verdict = replace(row, group=group.name)
        group.settled[verdict.tx_id] = verdict
        state.verdicts.append(verdict)


def _sent(state: State) -> list[RecentMessage]:
    return list(state.sent)


def _load_sent(state: State, rows: list[RecentMessage]) -> None:
    for row in rows:
        sent = replace(row, connection=0)  # of an earlier run, whose connection numbers mean nothing now
        state.sent.append(sent)
        topic = state.topics_by_id.get(row.topic_id)
        if topic is not None:
            topic.derived.sent[row.unique_id] = sent


#: In the order of a snapshot: each kind depends on the ones before it.
ROW_KINDS: Final = (
    RowKind("head", list[Head], _head, _load_head),
    # The grace period, named as on disk. One row: version 1 reads its first number and skips the rest, the jumps.
    RowKind("immunity", list[int], _grace, _load_grace),
    RowKind("topics", list[TopicRow], topic_rows, load_topics),
    RowKind("groups", list[bytes], group_rows, load_groups),
    RowKind("producers", list[bytes], producer_rows, load_producers),
    RowKind("offsets", list[OffsetRow], offset_rows, load_offsets),
    RowKind("bases", list[BaseRow], _bases, _load_bases),
    RowKind("queries", list[QueryRow], query_rows, load_queries),
    RowKind("coordinator epoch", list[int], _coordinator_epoch, _load_coordinator_epoch),
    RowKind("coordinators", list[CoordinatorRow], coordinator_rows, load_coordinators),
    RowKind("compared", list[Comparison], comparison_rows, load_comparisons),
    RowKind("ties", list[tuple[int, int]], _ties, _load_ties),
    RowKind("undecided", list[UndecidedRow], _undecided, _load_undecided),
    RowKind("delayed", list[Delayed], _delayed, _load_delayed),
    RowKind("decided", list[Verdict], _decided, _load_decided),
    RowKind("sent", list[RecentMessage], _sent, _load_sent),
)
