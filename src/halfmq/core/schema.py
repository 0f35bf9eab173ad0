"""The format of durable state: how each item is encoded and loaded.

Topics, consumer groups (with the holders of their queues), and limits and policy of a producer group have a payload, which is in the
record that sets them, in each base and in a snapshot.

``ROW_KINDS`` has the kinds of rows of a snapshot; most of them are parts of a base as well (``core.base``). A base does not contain

    queue minimums                   they are the queue ends of the base that the log begins with
    ties, bases                      they are between two segments, or the bases themselves
    undecided and delayed messages   they are copied forward before a trim
    verdicts, sent messages          they are forgotten with the log that contains them

Loading also computes derived state, so a loaded state is complete.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from dataclasses import replace as replace_settings
from enum import IntFlag
from functools import partial
from itertools import chain
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
    setting_bytes,
    topic_bytes,
    user_bytes,
)
from halfmq.core.clock_jumps import note_start
from halfmq.core.copies import note_copy
from halfmq.core.derived import (
    add_delayed,
    add_query,
    count_half,
    count_of_user,
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
    users_limited_from,
)
from halfmq.model.records import (
    Compared,
    ComparisonResult,
    CoordinatorEpoch,
    EpochStarted,
    GroupDeleted,
    GroupSet,
    ProducerSet,
    QueryForgotten,
    Restored,
    SettingSet,
    TopicSet,
    UserSet,
    payload_of,
    payload_record_size,
)
from halfmq.model.runtime_settings import CHANGEABLE, RecordedSetting
from halfmq.model.settings import BrokerSettings, GroupSettings, PastLimit, ProducerSettings
from halfmq.model.users import User

_decode: Final = msgspec.msgpack.decode
#: Settings that decisions read and that may change; ``core`` keeps the others for the broker.
OF_CORE: Final = frozenset({field.name for field in fields(BrokerSettings)} & set(CHANGEABLE))

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


def user_set(offset: int, name: str, user: User | None) -> UserSet:
    """The record after which this is the user; None: after which there is none of this name."""
    payload = payload_of(name, user)
    return UserSet(offset, payload_record_size(payload), name, payload)


def restored(offset: int, store: str, position: int) -> Restored:
    """The record after which the store is the restored one, of store ``store`` up to ``position``."""
    payload = payload_of(store, position)
    return Restored(offset, payload_record_size(payload), store, position, payload)


_decode_user: Final = msgspec.msgpack.Decoder(tuple[str, User | None]).decode


def read_user(state: State, payload: bytes) -> None:
    """Make, change or remove the user that ``payload`` describes."""
    set_user(state, *_decode_user(payload))


def set_user(state: State, name: str, user: User | None) -> None:
    """Let this be the user; None: remove it."""
    state.derived.base_bytes += user_bytes(name, user) - user_bytes(name, state.users.pop(name, None))
    if user is not None:
        state.users[name] = user
    state.derived.users_limited_from = users_limited_from(state)


def setting_set(offset: int, name: str, recorded: RecordedSetting | None) -> SettingSet:
    """The record after which this is the setting; None: after which the configuration says it."""
    values = () if recorded is None else (recorded.value, recorded.configured, recorded.by)
    payload = payload_of(name, *values)
    return SettingSet(offset, payload_record_size(payload), name, payload)


def read_setting(state: State, payload: bytes) -> None:
    """Change the setting that ``payload`` describes. It is set when its batch is written."""
    name, *values = _decode(payload)
    recorded = None
    if values:
        value, configured, by = values[:3]
        recorded = RecordedSetting(value, configured, by, state.batch_time_ms)
    set_setting(state, name, recorded)


def set_setting(state: State, name: str, recorded: RecordedSetting | None) -> None:
    """Let this be the setting; None: that of the configuration. A name of another version has no effect, and stays."""
    before = state.recorded_settings.pop(name, None)
    state.derived.base_bytes += setting_bytes(name, recorded) - setting_bytes(name, before)
    if recorded is not None:
        state.recorded_settings[name] = recorded
    if name not in OF_CORE:
        return
    value: Any = getattr(state.configured, name) if recorded is None else recorded.value
    state.settings = replace_settings(state.settings, **{name: value})
    if name == "undecided_total_max":
        state.derived.users_limited_from = users_limited_from(state)
    elif name in ("undecided_max", "undecided_bytes_max"):
        for group in state.producer_groups.values():  # each has a copy
            own = state.producer_settings.get(group.name)
            if own is None or getattr(own, name) < 0:
                setattr(group, name, value)


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


OffsetRow = tuple[str, list[tuple[int, int, int]]]
#: Producer group, name, and the fields of ``state.TakenEpoch``.
CoordinatorRow = tuple[str, str, int, str, int]
#: A user and its name.
UserRow = tuple[str, User]
#: A setting, by its name.
SettingRow = tuple[str, RecordedSetting]
#: Position of a verdict, lowest log offset of what it shows.
TieRow = tuple[int, int]
#: Start of a segment; (topic id, end of each queue) at that time.
BaseRow = tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]


#: Order of dictionary keys: ``iter``, or ``sorted`` if equal states must give equal bytes.
Order = Callable[[Iterable[Any]], Iterable[Any]]
_Load = Callable[[State, Any], None]


class RowKind(NamedTuple):
    """One kind of rows. Rows contain immutable values or copies, so they can be encoded while the state changes."""

    name: str
    #: Type of its rows, for the decoder.
    type: Any
    #: Of the state, and of the ``Order`` of its items if the kind is part of a base.
    rows: Callable[..., Sequence[Any]]
    load: _Load


def _each(load: Callable[[State, Any], object]) -> _Load:
    """Loads rows one by one."""

    def load_rows(state: State, rows: Iterable[Any]) -> None:
        for row in rows:
            load(state, row)

    return load_rows


def _load_head(state: State, head: Head) -> None:
    for field, value in head._asdict().items():
        setattr(state, field, value)


def _load_grace(state: State, rows: list[int]) -> None:
    state.epoch_grace_ms, *jumps = rows
    state.jumps = tuple(map(Jump._make, zip(jumps[::3], jumps[1::3], jumps[2::3], strict=True)))


def topic_rows(state: State, order: Order = iter) -> list[TopicRow]:
    topics = [state.topics_by_id[topic_id] for topic_id in order(state.topics_by_id)]
    return [TopicRow(topic_payload(topic), list(topic.ends), list(topic.mins)) for topic in topics]


def load_topic(state: State, row: TopicRow) -> None:
    topic = read_topic(state, row.payload)
    keep_queues(state, topic, len(row.ends))  # including queues from before the topic was reduced
    topic.ends[:] = row.ends
    topic.mins[:] = row.mins


def _group_rows(state: State, order: Order = iter) -> list[bytes]:
    return [group_payload(state.groups[name], state.holders.get(name)) for name in order(state.groups)]


def _producer_rows(state: State, order: Order = iter) -> list[bytes]:
    return [producer_payload(state.producer_settings[name]) for name in order(state.producer_settings)]


def _offset_rows(state: State, order: Order = iter) -> list[OffsetRow]:
    offsets = state.offsets
    return [(group, [(*key, offsets[group][key]) for key in order(offsets[group])]) for group in order(offsets)]


def _load_offsets(state: State, row: OffsetRow) -> None:
    group, entries = row
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


def _load_query(state: State, row: QueryRow) -> None:
    query = Query((row.name, "" if row.is_first else row.topic), row.group)
    query.topic, query.stream = row.topic, row.stream
    query.superseded, query.rolled_back_batch = row.superseded, row.rolled_back_batch
    query.decisions = {decision.batch: decision for decision in row.decisions}
    query.is_over = row.is_over
    add_query(state, query)
    set_run(state, query, row.run)
    note_query(state, query, query_bytes(query))


def _load_coordinator_epoch(state: State, rows: list[int]) -> None:
    (state.coordinator_epoch,) = rows


def _load_restored(state: State, rows: list[int]) -> None:
    (state.restored_half_index,) = rows


def _coordinator_rows(state: State, order: Order = iter) -> list[CoordinatorRow]:
    return [(*key, *astuple(state.coordinators[key])) for key in order(state.coordinators)]


def _load_coordinator(state: State, row: CoordinatorRow) -> None:
    group, name, epoch, taken_by, taken_at_ms = row
    set_coordinator(state, (group, name), TakenEpoch(epoch, taken_by, taken_at_ms))


def _user_rows(state: State, order: Order = iter) -> list[UserRow]:
    return [(name, state.users[name]) for name in order(state.users)]


def _load_user(state: State, row: UserRow) -> None:
    set_user(state, *row)


def _setting_rows(state: State, order: Order = iter) -> list[SettingRow]:
    return [(name, state.recorded_settings[name]) for name in order(state.recorded_settings)]


def _load_setting(state: State, row: SettingRow) -> None:
    set_setting(state, *row)


def _comparison_rows(state: State, order: Order = iter) -> list[Comparison]:
    return [state.comparisons[key] for key in order(state.comparisons)]


def _undecided(state: State) -> list[Undecided]:
    return [known for group in state.producer_groups.values() for known in group.undecided.values()]


def _load_undecided(state: State, row: Undecided) -> None:
    group = state.producer_group(row.group)
    count_undecided(state, group)
    # ``group.name``: one string for all transactions of the group instead of one for each row.
    known = group.undecided[row.tx_id] = replace(row, group=group.name)
    enter_of_coordinator(state, known)
    count_of_user(state, known.user, 1, sum([half.message_bytes for half in known.halves]))
    schedule_or_park(state, group, known.tx_id, known.next_check)
    enter_of_query(state, known.tx_id, known.halves[0])
    for half in known.halves:
        count_half(state, group, half)
        note_copy(state, half)


def _load_verdict(state: State, row: Verdict) -> None:
    group = state.producer_group(row.group)
    verdict = replace(row, group=group.name)
    group.settled[verdict.tx_id] = verdict
    state.verdicts.append(verdict)


def _load_sent(state: State, row: RecentMessage) -> None:
    sent = replace(row, connection=0)  # of an earlier run, whose connection numbers mean nothing now
    state.sent.append(sent)
    topic = state.topics_by_id.get(row.topic_id)
    if topic is not None:
        topic.derived.sent[row.unique_id] = sent


#: In the order of a snapshot: each kind depends on the ones before it.
ROW_KINDS: Final = (
    RowKind("head", list[Head], lambda state: [Head(*map(partial(getattr, state), Head._fields))], _each(_load_head)),
    # The grace period, named as on disk, and the numbers of each jump.
    RowKind("immunity", list[int], lambda state: [state.epoch_grace_ms, *chain(*state.jumps)], _load_grace),
    RowKind("topics", list[TopicRow], topic_rows, _each(load_topic)),
    RowKind("groups", list[bytes], _group_rows, _each(read_group)),
    RowKind("producers", list[bytes], _producer_rows, _each(read_producer)),
    RowKind("offsets", list[OffsetRow], _offset_rows, _each(_load_offsets)),
    RowKind(
        "bases", list[BaseRow], lambda state: list(state.bases.items()), lambda state, rows: state.bases.update(rows)
    ),
    RowKind("queries", list[QueryRow], query_rows, _each(_load_query)),
    RowKind("coordinator epoch", list[int], lambda state: [state.coordinator_epoch], _load_coordinator_epoch),
    RowKind("coordinators", list[CoordinatorRow], _coordinator_rows, _each(_load_coordinator)),
    RowKind("compared", list[Comparison], _comparison_rows, _each(set_comparison)),
    RowKind(
        "restored",
        list[int],
        lambda state: [state.restored_half_index] if state.restored_half_index >= 0 else [],
        _load_restored,
    ),
    RowKind("users", list[UserRow], _user_rows, _each(_load_user)),
    RowKind("settings", list[SettingRow], _setting_rows, _each(_load_setting)),
    RowKind("ties", list[TieRow], lambda state: list(state.ties.items()), lambda state, rows: state.ties.update(rows)),
    RowKind("undecided", list[Undecided], _undecided, _each(_load_undecided)),
    RowKind("delayed", list[Delayed], lambda state: list(state.delayed.values()), _each(add_delayed)),
    RowKind("decided", list[Verdict], lambda state: list(state.verdicts), _each(_load_verdict)),
    RowKind("sent", list[RecentMessage], lambda state: list(state.sent), _each(_load_sent)),
)
ROW_KIND: Final = {kind.name: kind for kind in ROW_KINDS}
