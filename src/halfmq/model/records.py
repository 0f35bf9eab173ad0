"""The records of the log: one type for each kind, and the size of each. A record states one decision, such as "this transaction
is committed": ``core`` decides it, ``store`` appends it and returns an equal one at a redo, and ``core.apply`` changes the state by
it in both cases.

A record begins with ``offset`` (its place in the log) and ``size`` (encoded bytes, head included), both set by the decision:
replies contain log offsets, before anything is written. So the size functions are here, at the end, below ``core`` and ``store``.
Encoding and decoding are in ``store/record_codec.py``, the layout is in ``docs/storage-format.md``.

To add a kind: its number in ``Kind``, its type, ``Record``, ``TYPE_OF_KIND``, and its size here. What is forgotten then fails in:
    the import of each module with a table made by ``for_each_kind`` (``record_codec``, ``apply``, ``indexes``, ``verify``)
    tests/unit/model/test_records.py         the number, or the union ``Record``
    tests/unit/store/test_record_codec.py    the example in its ``KINDS``, the bytes in tests/vectors/records.txt, a wrong size
    ``store/batch_codec.py`` at each append  a ``size`` that is not the encoded one: InvariantViolated
Nothing fails without its part of ``docs/storage-format.md`` and, if indexes follow it, of tests/support/random_log.py.

A record with a message contains the message's fields instead of a message object: from the decision to the log a half or a
message is a single object, since every object costs time. On disk, a record with a ``payload`` consists of its head and the payload;
only a Base also has ``previous_end``, between the two. The payload is a msgpack array that **begins with the fields between** ``size``
**and** ``payload``, **in order** (``payload_of``); what follows, and the whole payload of a Base, belongs to ``core``. After a redo, ``source`` of a copied
record is its own offset (its bytes are there now), and the fields of a record with a payload come from the payload.

FMQ source (3.3.1) to ours: MESSAGE -> Message; PREPARE + PRE_MESSAGE -> Half; REF_MESSAGE and COMMIT -> Committed; TX_MESSAGE ->
CopiedHalf directly before Committed; ROLLBACK -> RolledBack.
"""

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from halfmq.errors import InvariantViolated
from halfmq.model.coordinator import Coordinator
from halfmq.model.stored_message import StoredMessage, size_of

#: Head before each record: kind 1, flags 1, reserved 2, record length 4.
RECORD_HEAD_BYTES: Final = 8
#: Head before each batch of records. Batches start and end on multiples of 8.
BATCH_HEADER_BYTES: Final = 64
#: The end of a batch is padded with zeros to a multiple of this, so that a search for the next header can skip.
BATCH_ALIGNMENT: Final = 8


class Kind(IntEnum):
    """First byte of a record. Numbers are on users' disks: add, never renumber."""

    MESSAGE = 1
    HALF = 2
    COPIED_HALF = 3
    COMMITTED = 4
    ROLLED_BACK = 5
    CHECKED = 6
    DELAYED = 7
    COPIED_DELAYED = 8
    RELEASED = 9
    COORDINATOR_EPOCH = 10
    COMPARED = 11
    TOPIC_SET = 16
    TOPIC_DELETED = 17
    GROUP_SET = 18
    OFFSETS = 19
    EPOCH_STARTED = 20
    BASE = 21
    TRIM = 22
    PRODUCER_SET = 23
    PARKED = 24
    GROUP_DELETED = 25
    HALF_BATCH = 26
    COPIED_HALF_BATCH = 27
    DECIDED = 28
    QUERY_FORGOTTEN = 30
    #: From 32 on: records that only describe the record directly after them.
    OPERATOR_ACTED = 32


#: The number, among those of ``Kind``, of a message in a half batch: not a record, but with a head like one; see ``model.half_batch``.
BATCHED: Final = 29


class DecidedBy(IntEnum):
    """Who settled a transaction (promise 2: nobody else may)."""

    PRODUCER = 1
    CHECK = 2
    MARKER = 3
    OPERATOR = 4
    POLICY = 5
    #: Somebody else's coordinator, in its newest epoch (``model.coordinator``).
    COORDINATOR = 6
    #: Of an id that nobody had prepared; the record names no halves.
    FENCE = 7


class _Record(Struct, frozen=True, gc=False):
    offset: int
    size: int


class StoredRecord(_Record, frozen=True, gc=False):
    """A record with a message: its topic, and the fields of ``StoredMessage`` in their order."""

    topic_id: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    store_time_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    body_crc: int
    properties: bytes

    @property
    def message(self) -> StoredMessage:
        return StoredMessage(
            self.topic, self.queue_id, self.queue_offset, self.flag, self.sys_flag, self.born_time_ms, self.born_host,
            self.store_time_ms, self.store_host, self.reconsume_times, self.prepared_offset, self.body, self.body_crc,
            self.properties,
        )  # fmt: skip


# A decoder passes a ``StoredMessage`` as positional arguments, behind offset, size and topic id.
assert StoredRecord.__struct_fields__[3:] == StoredMessage._fields


class MessageRecord(StoredRecord, frozen=True, gc=False):
    """A plain message, visible at once at ``queue_offset``."""

    unique_id: str
    #: The last three are not on disk but in the properties, from which a decoder computes them like the decision did.
    tag_hash: int
    key_hash: int
    #: The value of KEYS.
    keys: bytes


class HalfRecord(StoredRecord, frozen=True, gc=False):
    """One half message of a transaction, under its own topic and queue, invisible.

    ``queue_offset`` is the half index, since the message has no place in its queue yet. ``index`` and ``count`` are in the prefix of the
    record. Everything else that recovery needs (group, transaction id, name, grace period) is in the message's properties, so that it is
    written once.
    """

    group: str
    tx_id: str
    index: int
    #: Number of halves in the transaction; 0 if not stated (only the last half states it).
    count: int
    #: From here on as ``model.message_facts.half_facts`` computes it from the properties; nothing of it is on disk. The first two go to
    #: the queue entry at commit; ``id_hash`` is ``hash64`` of ``tx_id``.
    tag_hash: int
    key_hash: int
    id_hash: int
    delay: int
    #: Requested grace period, ms; -1: the broker's setting.
    grace_ms: int
    #: The value of KEYS.
    keys: bytes
    #: Whether a marker in the application's database says what became of it (HMQ_TX_MARKER).
    has_marker: bool = False
    #: Of its transaction; in the properties as well.
    coordinator: Coordinator | None = None

    @property
    def half_index(self) -> int:
        return self.queue_offset


class CopiedHalf(_Record, frozen=True, gc=False):
    """A half whose bytes are written again, before its segment is trimmed or before a commit in another segment.

    ``source`` is the current place of the bytes; the store copies them, the decision never sees them. The identity of the half
    (``first_offset``, ``half_index``) stays; ``offset`` is its new place. The record contains everything that replay from here needs, since
    the first record may be gone. ``prepared_at_ms``, ``grace_until_ms``, ``checks`` and ``next_check_at_ms`` belong to the transaction. The
    last five fields are on disk only inside of the message: a decoder takes ``queue_id`` from it and the others from its properties
    with ``model.message_facts``.
    """

    source: int
    first_offset: int
    half_index: int
    topic_id: int
    message_bytes: int
    group: str
    tx_id: str
    index: int
    count: int
    prepared_at_ms: int
    grace_until_ms: int
    checks: int
    next_check_at_ms: int
    queue_id: int
    tag_hash: int
    key_hash: int
    #: As returned by ``message_facts.delay_of``.
    delay: int
    #: As in ``HalfRecord``.
    coordinator: Coordinator | None = None
    has_marker: bool = False


class Ref(Struct, frozen=True, gc=False):
    """Reference to one message in a commit or release: the place of its body, and the content of its queue entry.

    The queue entry can be written without reading the message. ``offset`` is in the segment of the record.
    """

    offset: int
    message_bytes: int
    first_offset: int
    #: -1 in a release of a message that was never a half.
    half_index: int
    topic_id: int
    queue_id: int
    #: -1 if ``due_ms`` is not 0: the release assigns the queue offset.
    queue_offset: int
    #: 0: visible with this record; else broker time, ms, at which a Released record makes it visible.
    due_ms: int
    tag_hash: int
    key_hash: int


class Committed(_Record, frozen=True, gc=False):
    """The atomic point: all halves of one transaction become visible at this record's offset."""

    group: str
    tx_id: str
    decided_by: int
    refs: tuple[Ref, ...]


class HalfBatch(_Record, frozen=True, gc=False):
    """Several half messages of a transaction for one queue, in one record: one half index, one row in the transaction table.

    ``attempt`` is not empty if the transaction is a batch of a query (``model.query_batch``): then it is the attempt of a task, and the
    query decides which attempts become visible. Else ``index`` and ``count`` are those of a half.
    """

    topic_id: int
    queue_id: int
    half_index: int
    group: str
    tx_id: str
    attempt: str
    index: int
    count: int
    messages: int
    #: CRC-32 of ``payload``, and of the entries in it.
    checksum: int
    entries_checksum: int
    #: As in ``HalfRecord``.
    grace_ms: int
    #: Whether a message has KEYS.
    has_keys: bool
    #: As in ``model.half_batch``.
    payload: bytes
    #: The end of the payload, as in ``model.half_batch``, if its messages have delays; else empty.
    delayed_entries: bytes = b""
    #: As in ``model.query_batch.QueryBatch``.
    query_topic: str = ""
    stream: str = ""


class CopiedHalfBatch(_Record, frozen=True, gc=False):
    """A half batch that is written again before its segment is trimmed, like ``CopiedHalf``; a verdict does not need it."""

    source: int
    first_offset: int
    topic_id: int
    queue_id: int
    half_index: int
    group: str
    tx_id: str
    attempt: str
    index: int
    count: int
    messages: int
    checksum: int
    entries_checksum: int
    has_keys: bool
    prepared_at_ms: int
    grace_until_ms: int
    checks: int
    next_check_at_ms: int
    #: As in ``HalfBatch``.
    delayed_entries: bytes = b""
    query_topic: str = ""
    stream: str = ""
    #: As in ``HalfRecord``, of its first message; a decoder reads it there.
    has_marker: bool = False


class BatchRef(Struct, frozen=True, gc=False):
    """Reference to a half batch in a verdict: the place of its record, and of its messages in their queue."""

    offset: int
    first_offset: int
    half_index: int
    #: Of its first message; each further one has the next. -1: its messages have delays, and each gets its own when it is released.
    queue_offset: int
    record_bytes: int
    messages: int
    topic_id: int
    queue_id: int


class Decided(_Record, frozen=True, gc=False):
    """The verdict on a transaction of half batches. The atomic point: the messages of ``refs`` become visible at this offset, those of
    ``lost`` never.

    A reference may be to an earlier segment, which retention then removes together with this one.
    """

    group: str
    tx_id: str
    decided_by: int
    #: What the query says its batch contains, 16 bytes; empty if the transaction is not a batch of a query.
    digest: bytes
    refs: tuple[BatchRef, ...]
    #: Half indexes of the half batches whose attempts did not win.
    lost: tuple[int, ...]
    #: Whether the query has no further batches: it is forgotten once this record is trimmed.
    is_last: bool = False
    #: As in ``HalfBatch``.
    query_topic: str = ""
    stream: str = ""


class RolledBack(_Record, frozen=True, gc=False):
    group: str
    tx_id: str
    decided_by: int
    half_indexes: tuple[int, ...]


class Checked(_Record, frozen=True, gc=False):
    """A check was sent, or got a response: the new values of the transaction's check fields."""

    group: str
    tx_id: str
    half_index: int
    checks: int
    next_check_at_ms: int


class ParkedBecause(IntEnum):
    """Why no further checks of an undecided transaction are sent automatically."""

    #: It had the maximum number of checks of its group's policy.
    CHECKS = 1
    #: It is older than its group's policy allows.
    AGE = 2


#: ``next_check_at_ms`` of a parked transaction is this plus the reason: later than any time.
PARKED_MS: Final = 1 << 62


class Parked(_Record, frozen=True, gc=False):
    """No further checks of the transaction are sent automatically. It stays undecided; a later Checked resumes it."""

    group: str
    tx_id: str
    half_index: int
    #: Number of checks sent.
    checks: int
    decided_by: int
    #: A ``ParkedBecause``.
    because: int


class OperatorAction(IntEnum):
    """An operator's action: the record directly after an ``OperatorActed``. Add, never renumber."""

    #: A verdict by hand.
    COMMIT = 1
    ROLL_BACK = 2
    #: Limits and policy of a producer group.
    SET_PRODUCER = 3
    DELETE_TOPIC = 4
    SET_TOPIC = 5
    SET_GROUP = 6
    #: The offset of a consumer group, set by somebody who is not a member of it.
    RESET_OFFSET = 7
    DELETE_GROUP = 8
    FORGET_QUERY = 9
    FORGET_DAMAGE = 10
    FORGET_COORDINATOR = 11


class ComparisonResult(IntEnum):
    """What became of comparing a verdict with what the application's database did. Add, never renumber."""

    #: Directly after a verdict that neither the application nor its marker gave: it is to be compared.
    EXPECTED = 1
    AGREES = 2
    #: A finding, which stays until an operator lets the broker forget it.
    CONTRADICTS = 3
    FORGOTTEN = 4


class Compared(_Record, frozen=True, gc=False):
    """A step of comparing the verdict on a transaction with its local outcome. The payload contains all that is known of it."""

    group: str
    tx_id: str
    #: A ``ComparisonResult``.
    result: int
    #: Who reported the local outcome; "" if nobody has.
    source: str
    payload: bytes


class OperatorActed(_Record, frozen=True, gc=False):
    """Who requested the action of the record directly after this one, and why. It is in the same batch, and changes nothing.

    Its last four bytes repeat its size, so that it can be found from the start of the record after it.
    """

    #: An ``OperatorAction``.
    action: int
    #: Object of the action: the transaction id, or the name of the topic or group.
    subject: str
    #: As stated by the operator, not verified; "" if the request has no field for it, as those of mqadmin.
    name: str
    reason: str
    #: ``ip:port`` of the request.
    peer: str


class DelayedRecord(StoredRecord, frozen=True, gc=False):
    """A message that becomes visible at ``due_ms`` (delay levels, retries, timers). Identified by its offset."""

    unique_id: str
    due_ms: int
    tag_hash: int
    key_hash: int


class CopiedDelayed(_Record, frozen=True, gc=False):
    """A delayed message written again, like ``CopiedHalf``."""

    source: int
    first_offset: int
    half_index: int
    topic_id: int
    queue_id: int
    message_bytes: int
    due_ms: int
    tag_hash: int
    key_hash: int


class Released(_Record, frozen=True, gc=False):
    """Delayed messages that were due become visible here; every reference has its queue offset now."""

    refs: tuple[Ref, ...]


class TopicSet(_Record, frozen=True, gc=False):
    """A topic was created or changed."""

    topic_id: int
    name: str
    read_queues: int
    write_queues: int
    #: RocketMQ permission bits: 4 read, 2 write, 1 inherit.
    permission: int
    payload: bytes


class TopicDeleted(_Record, frozen=True, gc=False):
    topic_id: int
    payload: bytes


class GroupSet(_Record, frozen=True, gc=False):
    """Settings of a consumer group, as a payload of ``core``."""

    name: str
    payload: bytes


class GroupDeleted(_Record, frozen=True, gc=False):
    """A consumer group was deleted; its offsets are deleted too, or kept for a later group of this name."""

    name: str
    with_offsets: bool
    payload: bytes


class ProducerSet(_Record, frozen=True, gc=False):
    """Limits and policy of a producer group, as a payload of ``core``."""

    name: str
    payload: bytes


class QueryForgotten(_Record, frozen=True, gc=False):
    """The broker knows less of a query without undecided transactions: nothing (``is_whole``), or of its decisions only the last."""

    name: str
    #: Of ``core``'s key: "" if clients that state no topic mean this query.
    topic: str
    is_whole: bool
    payload: bytes


class CoordinatorEpoch(_Record, frozen=True, gc=False):
    """A coordinator has this epoch from now on, and what an earlier one prepares or settles is refused. 0: it is forgotten."""

    group: str
    name: str
    epoch: int
    #: The client that took it, as it names itself.
    taken_by: str
    payload: bytes


class OffsetsCommitted(_Record, frozen=True, gc=False):
    """Consumer offsets: (group, topic id, queue id, offset) each."""

    entries: tuple[tuple[str, int, int, int], ...]
    payload: bytes


class EpochStarted(_Record, frozen=True, gc=False):
    epoch: int
    wall_ms: int
    payload: bytes


class Base(_Record, frozen=True, gc=False):
    """First record of a segment: durable state without messages, so that the log before it can be trimmed."""

    #: End of the last batch in the previous segment; zeros from there on prove that nothing is missing.
    previous_end: int
    payload: bytes


class Trim(_Record, frozen=True, gc=False):
    """The log starts at ``log_start`` from now on. Nothing before it is alive."""

    log_start: int


Record = (
    MessageRecord
    | HalfRecord
    | CopiedHalf
    | Committed
    | RolledBack
    | Checked
    | DelayedRecord
    | CopiedDelayed
    | Released
    | TopicSet
    | TopicDeleted
    | GroupSet
    | OffsetsCommitted
    | EpochStarted
    | Base
    | Trim
    | ProducerSet
    | Parked
    | GroupDeleted
    | OperatorActed
    | HalfBatch
    | CopiedHalfBatch
    | Decided
    | QueryForgotten
    | CoordinatorEpoch
    | Compared
)

#: The registry of record kinds: type by number in the log. A new kind is added here first; then every module with a table by type
#: (``for_each_kind``) fails at import until it handles the kind.
TYPE_OF_KIND: Final[dict[Kind, type]] = {
    Kind.MESSAGE: MessageRecord,
    Kind.HALF: HalfRecord,
    Kind.COPIED_HALF: CopiedHalf,
    Kind.COMMITTED: Committed,
    Kind.ROLLED_BACK: RolledBack,
    Kind.CHECKED: Checked,
    Kind.DELAYED: DelayedRecord,
    Kind.COPIED_DELAYED: CopiedDelayed,
    Kind.RELEASED: Released,
    Kind.COORDINATOR_EPOCH: CoordinatorEpoch,
    Kind.COMPARED: Compared,
    Kind.TOPIC_SET: TopicSet,
    Kind.TOPIC_DELETED: TopicDeleted,
    Kind.GROUP_SET: GroupSet,
    Kind.OFFSETS: OffsetsCommitted,
    Kind.EPOCH_STARTED: EpochStarted,
    Kind.BASE: Base,
    Kind.TRIM: Trim,
    Kind.PRODUCER_SET: ProducerSet,
    Kind.PARKED: Parked,
    Kind.GROUP_DELETED: GroupDeleted,
    Kind.HALF_BATCH: HalfBatch,
    Kind.COPIED_HALF_BATCH: CopiedHalfBatch,
    Kind.DECIDED: Decided,
    Kind.QUERY_FORGOTTEN: QueryForgotten,
    Kind.OPERATOR_ACTED: OperatorActed,
}
_T = TypeVar("_T")


def for_each_kind(table: Mapping[type, _T], *, nothing: Collection[type] = ()) -> dict[type, _T]:
    """``table``, checked to handle every kind of record. ``nothing``: kinds that need no handling.

    Raises:
        InvariantViolated: a kind is in neither or in both, or is unknown.
    """
    said = [*table, *nothing]
    if sorted(one.__name__ for one in said) != sorted(one.__name__ for one in TYPE_OF_KIND.values()):
        missing = [one.__name__ for one in TYPE_OF_KIND.values() if one not in said]
        raise InvariantViolated(f"each kind of record stands in a table once; missing: {missing}, in it: {len(said)}")
    return dict(table)


#: Fixed bytes between the head of a record and its message, for each kind with a message.
#: message: topic id 4, reserved 4; half: topic id 4, index 2, count 2; delayed: topic id 4, tag hash 4, due 8, key hash 8;
#: copied half: first offset 8, half index 8, topic id 4, index 2, count 2, prepared 8, grace until 8, next check 8, checks 4, reserved 4;
#: copied delayed: first offset 8, half index 8, due 8, key hash 8, tag hash 4, topic id 4.
MESSAGE_PREFIX_BYTES: Final = 8
DELAYED_PREFIX_BYTES: Final = 24
COPIED_HALF_PREFIX_BYTES: Final = 56
COPIED_DELAYED_PREFIX_BYTES: Final = 40
#: Start of the stored message, from the start of the record.
MESSAGE_AT: Final = RECORD_HEAD_BYTES + MESSAGE_PREFIX_BYTES
DELAYED_MESSAGE_AT: Final = RECORD_HEAD_BYTES + DELAYED_PREFIX_BYTES
COPIED_HALF_MESSAGE_AT: Final = RECORD_HEAD_BYTES + COPIED_HALF_PREFIX_BYTES
COPIED_DELAYED_MESSAGE_AT: Final = RECORD_HEAD_BYTES + COPIED_DELAYED_PREFIX_BYTES

#: first offset 8, half index 8, prepared 8, grace period or grace until 8, next check 8, topic id 4, queue id 4, messages 4,
#: CRC-32 of the payload 4, and of its entries 4, payload bytes 4, checks 4, index 2, count 2, flags 1, lengths of group, id and attempt 1 each. The payload
#: follows, then the three texts, then topic and stream of the query, whose lengths are in the head's reserved bytes.
HALF_BATCH_PREFIX_BYTES: Final = 76
#: Bytes from the start of a half batch record to its payload.
HALF_BATCH_PAYLOAD_AT: Final = RECORD_HEAD_BYTES + HALF_BATCH_PREFIX_BYTES
#: decided by 1, length of digest 1, group length 2, id length 2, flags 2, number of references 4, number of lost ones 4.
DECIDED_PREFIX_BYTES: Final = 16
#: offset 8, first offset 8, half index 8, queue offset 8, record bytes 4, messages 4, topic id 4, queue id 4.
BATCH_REF_BYTES: Final = 48

#: One reference: offset 8, first offset 8, half index 8, queue offset 8, due 8, key hash 8, size 4, topic id 4, queue id 4, tag hash 4.
REF_BYTES: Final = 64
#: decided by 1, reserved 1, group length 2, id length 2, ref count 2.
VERDICT_PREFIX_BYTES: Final = 8
HALF_INDEX_BYTES: Final = 8
#: half index 8, next check 8, checks 4, group length 2, id length 2.
CHECKED_PREFIX_BYTES: Final = 24
#: half index 8, checks 4, decided by 1, because 1, group length 2, id length 2, reserved 2.
PARKED_PREFIX_BYTES: Final = 20
#: action 1, reserved 1, lengths of subject, name, reason and peer 2 each, reserved 2.
OPERATOR_ACTED_PREFIX_BYTES: Final = 12
#: After the texts: the size of the record.
OPERATOR_ACTED_END_BYTES: Final = 4


def message_record_size(topic: str, body_bytes: int, properties_bytes: int, born_host_bytes: int = 8) -> int:
    """Size of a MessageRecord or HalfRecord."""
    return MESSAGE_AT + size_of(len(topic), body_bytes, properties_bytes, born_host_bytes)


def delayed_record_size(topic: str, body_bytes: int, properties_bytes: int, born_host_bytes: int = 8) -> int:
    return DELAYED_MESSAGE_AT + size_of(len(topic), body_bytes, properties_bytes, born_host_bytes)


def copied_half_size(message_bytes: int) -> int:
    return COPIED_HALF_MESSAGE_AT + message_bytes


def copied_delayed_size(message_bytes: int) -> int:
    return COPIED_DELAYED_MESSAGE_AT + message_bytes


def half_batch_size(
    group: str, tx_id: str, attempt: str, payload_bytes: int, query_topic: str = "", stream: str = ""
) -> int:
    """Size of a HalfBatch, and of its copy."""
    texts = len(group) + len(tx_id) + len(attempt) + len(query_topic) + len(stream)
    return HALF_BATCH_PAYLOAD_AT + payload_bytes + texts


def decided_size(
    group: str, tx_id: str, digest: bytes, refs: int, lost: int, query_topic: str = "", stream: str = ""
) -> int:
    texts = len(group) + len(tx_id) + len(digest) + len(query_topic) + len(stream)
    return RECORD_HEAD_BYTES + DECIDED_PREFIX_BYTES + texts + refs * BATCH_REF_BYTES + lost * HALF_INDEX_BYTES


def committed_size(group: str, tx_id: str, refs: int) -> int:
    return RECORD_HEAD_BYTES + VERDICT_PREFIX_BYTES + len(group) + len(tx_id) + refs * REF_BYTES


def rolled_back_size(group: str, tx_id: str, halves: int) -> int:
    return RECORD_HEAD_BYTES + VERDICT_PREFIX_BYTES + len(group) + len(tx_id) + halves * HALF_INDEX_BYTES


def checked_size(group: str, tx_id: str) -> int:
    return RECORD_HEAD_BYTES + CHECKED_PREFIX_BYTES + len(group) + len(tx_id)


def parked_size(group: str, tx_id: str) -> int:
    return RECORD_HEAD_BYTES + PARKED_PREFIX_BYTES + len(group) + len(tx_id)


def operator_acted_size(subject: str, name: str, reason: str, peer: str) -> int:
    texts = len(subject.encode()) + len(name.encode()) + len(reason.encode()) + len(peer.encode())
    return RECORD_HEAD_BYTES + OPERATOR_ACTED_PREFIX_BYTES + texts + OPERATOR_ACTED_END_BYTES


def released_size(refs: int) -> int:
    return RECORD_HEAD_BYTES + VERDICT_PREFIX_BYTES + refs * REF_BYTES


def payload_of(*fields: object) -> bytes:
    """The payload of a record with these fields between ``size`` and ``payload``; more may follow them."""
    return msgspec.msgpack.encode(fields)


def payload_record_size(payload: bytes) -> int:
    """Size of a record that consists of a payload (topics, groups, offsets, epochs)."""
    return RECORD_HEAD_BYTES + len(payload)


def base_size(payload: bytes) -> int:
    return RECORD_HEAD_BYTES + 8 + len(payload)


TRIM_SIZE: Final = RECORD_HEAD_BYTES + 8
