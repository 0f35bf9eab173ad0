"""The records of the log: one type for each kind, and the size of each. A record states one decision, such as "this transaction
is committed": ``core`` decides it, ``store`` appends it and returns an equal one at a redo, and ``core.apply`` changes the state by
it in both cases.

A record begins with ``offset`` (its place in the log) and ``size`` (encoded bytes, head included), both set by the decision:
replies contain log offsets, before anything is written. So the size functions are here, at the end, below ``core`` and ``store``.
Encoding and decoding are in ``store/record_codec.py``, the layout is in ``docs/storage-format.md``.

How to add a kind: ARCHITECTURE.md. What is forgotten fails at the import of a module with a table made by ``for_each_kind``, in
tests/unit/model/test_records.py or tests/unit/store/test_record_codec.py, or at each append: a ``size`` that is not the encoded one.

A record with a message contains the message's fields instead of a message object: from the decision to the log a half or a message is a
single object, since every object costs time. On disk, a record with a ``payload`` consists of its head and the payload; only a Base also
has ``previous_end``, between the two. The payload is a msgpack array that **begins with the fields between** ``size`` **and** ``payload``,
**in order** (``payload_of``); what follows, and the whole payload of a Base, belongs to ``core``. After a redo, ``source`` of a copied
record is its own offset (its bytes are there now), and the fields of a record with a payload come from the payload.

FMQ source (3.3.1) to ours: MESSAGE -> Message; PREPARE + PRE_MESSAGE -> Half; REF_MESSAGE and COMMIT -> Committed; TX_MESSAGE ->
CopiedHalf directly before Committed; ROLLBACK -> RolledBack.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from halfmq.errors import InvariantViolated
from halfmq.model.coordinator import Coordinator
from halfmq.model.layout import (
    BATCH_REF,
    CHECKED_HEAD,
    COPIED_DELAYED_HEAD,
    COPIED_HALF_HEAD,
    DECIDED_HEAD,
    DELAYED_HEAD,
    HALF_BATCH_HEAD,
    MESSAGE_HEAD,
    OPERATOR_ACTED_HEAD,
    PARKED_HEAD,
    RECORD_HEAD,
    REF,
    VERDICT_HEAD,
)
from halfmq.model.stored_message import StoredMessage

RECORD_HEAD_BYTES: Final = RECORD_HEAD.size
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
    USER_SET = 12
    SETTING_SET = 13
    RESTORED = 14
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
    #: The name of who sent it, also in the properties; "": the broker had no users.
    user: str = ""

    @property
    def half_index(self) -> int:
        return self.queue_offset


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
    #: The name of who requested it; "": nobody did, or the broker had no users.
    user: str = ""


class BatchFacts(Struct, frozen=True, gc=False, array_like=True):
    """What a half batch has besides the fields of a half. A snapshot contains it as an array of its fields, in this order.

    ``attempt`` is not empty if the transaction is a batch of a query (``model.query_batch``): then it is the attempt of a task, and the
    query decides which attempts become visible.
    """

    attempt: str
    messages: int
    #: CRC-32 of the payload, and of the entries in it.
    checksum: int
    entries_checksum: int
    #: Whether a message has KEYS.
    has_keys: bool
    #: The end of the payload, as in ``model.half_batch``, if its messages have delays: 28 bytes each, since a commit cannot read
    #: the messages. Else empty.
    delayed_entries: bytes = b""
    #: As in ``model.query_batch.QueryBatch``.
    query_topic: str = ""
    stream: str = ""
    #: As in ``HalfRecord``.
    user: str = ""


class Half(Struct, frozen=True, gc=False, array_like=True):
    """One undecided half: its place in the log and the content of its future queue entry. A snapshot contains it as ``BatchFacts``."""

    index: int
    half_index: int
    #: Current place of its bytes; differs from ``first_offset`` after a copy.
    offset: int
    #: Its identity for clients, which return it with their verdict.
    first_offset: int
    topic_id: int
    queue_id: int
    message_bytes: int
    tag_hash: int
    key_hash: int
    #: As returned by ``message_facts.delay_of``; applied at commit.
    delay: int
    #: None: a single message. For a half batch ``message_bytes`` is the size of its record, and both hashes and ``delay`` are 0.
    batch: BatchFacts | None = None
    #: As in ``HalfRecord``.
    has_marker: bool = False

    @property
    def messages(self) -> int:
        """The number of messages of a half batch; 0 if it is a single message."""
        return 0 if self.batch is None else self.batch.messages

    @property
    def delayed_messages(self) -> int:
        """The number of messages of a half batch that have delays."""
        return 0 if self.batch is None or not self.batch.delayed_entries else self.batch.messages

    @property
    def attempt(self) -> str:
        """The attempt of a half batch; "" if it has none."""
        return "" if self.batch is None else self.batch.attempt


class HalfBatch(_Record, frozen=True, gc=False):
    """Several half messages of a transaction for one queue, in one record: one half index, one row in the transaction table.

    Without an attempt, ``index`` and ``count`` are those of a half.
    """

    topic_id: int
    queue_id: int
    half_index: int
    group: str
    tx_id: str
    batch: BatchFacts
    index: int
    count: int
    #: As in ``HalfRecord``.
    grace_ms: int
    #: As in ``model.half_batch``.
    payload: bytes


class Copied(_Record, frozen=True, gc=False):
    """A half whose bytes are written again, before its segment is trimmed or before a commit in another segment.

    ``source`` is the current place of the bytes; the store copies them, the decision never sees them. The identity of the half
    (``first_offset``, ``half_index``) stays; its ``offset`` is that of this record. The record contains everything that replay from here
    needs, since the first record may be gone; the fields after ``half`` belong to the transaction.
    """

    source: int
    half: Half
    group: str
    tx_id: str
    count: int
    prepared_at_ms: int
    grace_until_ms: int
    checks: int
    next_check_at_ms: int
    #: As in ``HalfRecord``.
    coordinator: Coordinator | None = None
    user: str = ""

    @property
    def message_bytes(self) -> int:
        return self.half.message_bytes


class CopiedHalf(Copied, frozen=True, gc=False):
    """A single half. What ``model.message_facts`` computes from properties, and ``queue_id``, is on disk only inside of the message."""


class CopiedHalfBatch(Copied, frozen=True, gc=False):
    """A half batch that is written again before its segment is trimmed; a verdict does not need it."""


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
    #: As in ``BatchFacts``.
    query_topic: str = ""
    stream: str = ""
    #: As in ``Committed``.
    user: str = ""


class RolledBack(_Record, frozen=True, gc=False):
    group: str
    tx_id: str
    decided_by: int
    half_indexes: tuple[int, ...]
    #: As in ``Committed``.
    user: str = ""


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
    #: It was undecided when the store was restored from a backup, and a rollback was requested (``core.transaction.restored``).
    RESTORED = 3


#: ``next_check_at_ms`` of a parked transaction is this plus the reason: later than any time.
PARKED_MS: Final = 1 << 62


def parked_because(next_check_at_ms: int) -> ParkedBecause | None:
    """Why no check is sent automatically; None if ``next_check_at_ms`` is a time.

    Raises:
        InvariantViolated: an unknown reason. The log was not written by this state machine.
    """
    if next_check_at_ms < PARKED_MS:
        return None
    try:
        return ParkedBecause(next_check_at_ms - PARKED_MS)
    except ValueError:
        raise InvariantViolated(f"unknown parking reason {next_check_at_ms - PARKED_MS} of a transaction") from None


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
    SET_USER = 12
    REMOVE_USER = 13
    #: A setting of the broker, set or no longer set.
    SET_SETTING = 14
    #: Connections of a client, closed; the record after it says nothing.
    KICK_CLIENT = 15


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


class UserSet(_Record, frozen=True, gc=False):
    """A user was made, changed or removed. The payload, of ``core``, contains secrets: it is never shown."""

    name: str
    payload: bytes


class SettingSet(_Record, frozen=True, gc=False):
    """A setting of the broker was changed while it ran, or has its configured value again. The payload, of ``core``, has the values."""

    name: str
    payload: bytes


class Restored(_Record, frozen=True, gc=False):
    """This store begins here as a copy of another one, restored from a backup; what that one wrote after ``position`` is lost."""

    #: Id of the other one, 32 hex digits.
    store: str
    #: End of the last batch of it that was restored.
    position: int
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
    | UserSet
    | SettingSet
    | Restored
)


class Batch(NamedTuple):
    """The unit of writing. ``end``: log offset after its last byte, padding included."""

    offset: int
    end: int
    broker_time_ms: int
    records: Sequence[Record]


#: The registry of record kinds: type by number in the log. A new kind is added here first; then every module with a table by type
#: (``for_each_kind``) fails at import, with the table's name, until it handles the kind.
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
    Kind.USER_SET: UserSet,
    Kind.SETTING_SET: SettingSet,
    Kind.RESTORED: Restored,
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


def for_each_kind(name: str, table: Mapping[type, _T]) -> dict[type, _T]:
    """``table``, checked to handle every kind of record. ``name``: where it is, as the error says it.

    Raises:
        InvariantViolated: a kind is missing, or is none of ``TYPE_OF_KIND``.
    """
    if wrong := sorted(one.__name__ for one in table.keys() ^ set(TYPE_OF_KIND.values())):
        raise InvariantViolated(
            f"{name} must list each kind of record once, and nothing else: look at {', '.join(wrong)}"
        )
    return dict(table)


#: Start of the stored message, from the start of the record.
MESSAGE_AT: Final = MESSAGE_HEAD.size
DELAYED_MESSAGE_AT: Final = DELAYED_HEAD.size
COPIED_HALF_MESSAGE_AT: Final = COPIED_HALF_HEAD.size
COPIED_DELAYED_MESSAGE_AT: Final = COPIED_DELAYED_HEAD.size
#: Bytes from the start of a half batch record to its payload. Then come the texts of the transaction, then topic and stream of the query,
#: then, if a flag says so, the user and its length.
HALF_BATCH_PAYLOAD_AT: Final = HALF_BATCH_HEAD.size
REF_BYTES: Final = REF.size
HALF_INDEX_BYTES: Final = 8
#: Of a half batch with a user: after the user's name, its length.
USER_LENGTH_BYTES: Final = 1
#: After the texts: the size of the record.
OPERATOR_ACTED_END_BYTES: Final = 4


def copied_half_size(message_bytes: int) -> int:
    return COPIED_HALF_MESSAGE_AT + message_bytes


def copied_delayed_size(message_bytes: int) -> int:
    return COPIED_DELAYED_MESSAGE_AT + message_bytes


def half_batch_size(group: str, tx_id: str, batch: BatchFacts, payload_bytes: int) -> int:
    """Size of a HalfBatch, and of its copy."""
    texts = len(group) + len(tx_id) + len(batch.attempt) + len(batch.query_topic) + len(batch.stream)
    if batch.user:
        texts += len(batch.user) + USER_LENGTH_BYTES
    return HALF_BATCH_PAYLOAD_AT + payload_bytes + texts


def decided_size(
    group: str, tx_id: str, digest: bytes, refs: int, lost: int, query_topic: str = "", stream: str = "", user: str = ""
) -> int:
    texts = len(group) + len(tx_id) + len(digest) + len(query_topic) + len(stream) + len(user)
    return DECIDED_HEAD.size + texts + refs * BATCH_REF.size + lost * HALF_INDEX_BYTES


def committed_size(group: str, tx_id: str, refs: int, user: str = "") -> int:
    size = VERDICT_HEAD.size + len(group) + len(tx_id) + refs * REF_BYTES
    return size + len(user) if user else size  # a call of ``len`` for each commit otherwise


def rolled_back_size(group: str, tx_id: str, halves: int, user: str = "") -> int:
    return VERDICT_HEAD.size + len(group) + len(tx_id) + halves * HALF_INDEX_BYTES + len(user)


def checked_size(group: str, tx_id: str) -> int:
    return CHECKED_HEAD.size + len(group) + len(tx_id)


def parked_size(group: str, tx_id: str) -> int:
    return PARKED_HEAD.size + len(group) + len(tx_id)


def operator_acted_size(subject: str, name: str, reason: str, peer: str) -> int:
    texts = len(subject.encode()) + len(name.encode()) + len(reason.encode()) + len(peer.encode())
    return OPERATOR_ACTED_HEAD.size + texts + OPERATOR_ACTED_END_BYTES


def released_size(refs: int) -> int:
    return VERDICT_HEAD.size + refs * REF_BYTES


def payload_of(*fields: object) -> bytes:
    """The payload of a record with these fields between ``size`` and ``payload``; more may follow them."""
    return msgspec.msgpack.encode(fields)


def payload_record_size(payload: bytes) -> int:
    """Size of a record that consists of a payload (topics, groups, offsets, epochs)."""
    return RECORD_HEAD_BYTES + len(payload)


def base_size(payload: bytes) -> int:
    return RECORD_HEAD_BYTES + 8 + len(payload)


TRIM_SIZE: Final = RECORD_HEAD_BYTES + 8
