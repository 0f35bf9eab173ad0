"""Records for tests of the log: one of each kind, and a writer that forms batches as the sequencer does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from halfmq.model import properties as props
from halfmq.model.half_batch import ENTRY_BYTES, HalfMessage, build_payload, delayed_entries_of, half_of
from halfmq.model.message_facts import common_values, coordinator_of, half_facts, plain_facts, user_of
from halfmq.model.placement import aligned
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    DELAYED_MESSAGE_AT,
    MESSAGE_AT,
    TRIM_SIZE,
    Base,
    BatchFacts,
    BatchRef,
    Checked,
    Committed,
    Compared,
    CoordinatorEpoch,
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
    OperatorAction,
    Parked,
    ParkedBecause,
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
    base_size,
    checked_size,
    committed_size,
    copied_delayed_size,
    copied_half_size,
    decided_size,
    half_batch_size,
    operator_acted_size,
    parked_size,
    payload_of,
    payload_record_size,
    released_size,
    rolled_back_size,
)
from halfmq.model.stored_message import StoredMessage, body_crc_of, size_of
from halfmq.model.users import User, UserLimits, UserSecret
from halfmq.runtime.disk import Disk
from halfmq.store.commit_log import CommitLog
from halfmq.store.recovery import CheckpointFound, Recovery, examine_log, repair
from halfmq.store.segment import SegmentFiles

HOST_V4 = b"\x0a\x01\x02\x03\x00\x00\x2a\x9f"
HOST_V6 = bytes(range(16)) + b"\x00\x00\x2a\x9f"
SEGMENT = 1 << 16
GROUP = "order-service"

SHOP = User(
    (UserSecret(b"sealed-2"), UserSecret(b"sealed-1", 1_700_000_000_000)), "$argon2id$hash",
    ("administer:broker", "send:topic:orders-*"), UserLimits(undecided=100),
)  # fmt: skip

#: Creates a record at an offset.
Make = Callable[[int], Record]


def message_record_size(topic: str, body_bytes: int, properties_bytes: int, born_host_bytes: int = 8) -> int:
    """Size of a MessageRecord or HalfRecord."""
    return MESSAGE_AT + size_of(len(topic), body_bytes, properties_bytes, born_host_bytes)


def delayed_record_size(topic: str, body_bytes: int, properties_bytes: int, born_host_bytes: int = 8) -> int:
    return DELAYED_MESSAGE_AT + size_of(len(topic), body_bytes, properties_bytes, born_host_bytes)


def message(
    *,
    topic: str = "orders",
    queue_id: int = 3,
    queue_offset: int = 17,
    body: bytes = b"hello",
    properties: bytes = b"UNIQ_KEY\x01K1\x02",
    born_host: bytes = HOST_V4,
    store_host: bytes = HOST_V4,
) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        flag=5,
        sys_flag=(0x10 if len(born_host) == 20 else 0) | (0x20 if len(store_host) == 20 else 0),
        born_time_ms=1_700_000_000_123,
        born_host=born_host,
        store_time_ms=1_700_000_000_456,
        store_host=store_host,
        reconsume_times=2,
        prepared_offset=0,
        body=body,
        body_crc=body_crc_of(body),
        properties=properties,
    )


def half_properties(tx_id: str, group: str = GROUP, **more: str) -> bytes:
    return props.encode({"UNIQ_KEY": tx_id, "TRAN_MSG": "true", "PGROUP": group, **more})


def message_record(offset: int, size: int, topic_id: int, stored: StoredMessage, unique_id: str) -> MessageRecord:
    """With the values that a decision reads from the message's properties."""
    return MessageRecord(offset, size, topic_id, *stored, unique_id, *plain_facts(common_values(stored.properties)))


def half_record(
    offset: int, size: int, topic_id: int, stored: StoredMessage, half_index: int, group: str, tx_id: str, index: int,
    count: int,
) -> HalfRecord:  # fmt: skip
    """With the values that a decision reads from the message's properties."""
    stored = stored._replace(queue_offset=half_index)
    facts = half_facts(common_values(stored.properties))
    return HalfRecord(
        offset,
        size,
        topic_id,
        *stored,
        group,
        tx_id,
        index,
        count,
        *facts,
        coordinator_of(stored.properties),
        user_of(stored.properties),
    )


def plain(body: bytes = b"hello", unique_id: str = "K1", topic: str = "orders", queue_offset: int = 17) -> Make:
    properties = props.encode({"UNIQ_KEY": unique_id, "TAGS": "new"})
    stored = message(topic=topic, body=body, properties=properties, queue_offset=queue_offset)
    size = message_record_size(topic, len(body), len(properties))
    return lambda offset: message_record(offset, size, 7, stored, unique_id)


def half(
    half_index: int = 0, body: bytes = b"hello", tx_id: str = "T1", index: int = 0, count: int = 1, **more: str
) -> Make:
    """``more``: further properties."""
    properties = half_properties(tx_id, **more)
    stored = message(body=body, properties=properties, queue_offset=half_index)
    size = message_record_size("orders", len(body), len(properties))
    return lambda offset: half_record(offset, size, 7, stored, half_index, GROUP, tx_id, index, count)


def ref(offset: int = 64, half_index: int = 0, due_ms: int = 0) -> Ref:
    return Ref(offset, 200, offset, half_index, 7, 3, -1 if due_ms else 21, due_ms, -1_234_567, 987_654_321_012)


def committed(*refs: Ref, tx_id: str = "T1", user: str = "") -> Make:
    size = committed_size(GROUP, tx_id, len(refs), user)
    return lambda offset: Committed(offset, size, GROUP, tx_id, DecidedBy.PRODUCER, refs, user)


def rolled_back(*half_indexes: int, tx_id: str = "T1", user: str = "") -> Make:
    size = rolled_back_size(GROUP, tx_id, len(half_indexes), user)
    return lambda offset: RolledBack(offset, size, GROUP, tx_id, DecidedBy.CHECK, half_indexes, user)


def half_batch(
    half_index: int = 5,
    count: int = 3,
    tx_id: str = "q1:7:r1",
    attempt: str = "0.2",
    queue_id: int = 3,
    delays_ms: Sequence[int] = (),
    query_topic: str = "",
    stream: str = "",
    user: str = "",
    **pairs: str,
) -> Make:
    """A half batch of ``count`` messages; ``pairs``: their properties besides UNIQ_KEY. ``delays_ms``: one each, from the decision."""
    timers = [{"TIMER_DELAY_MS": str(delay)} for delay in delays_ms] or [{}] * count
    found = [
        HalfMessage(
            0,
            0,
            f"{tx_id}-{number}".encode(),
            props.encode({"UNIQ_KEY": f"{tx_id}-{half_index}-{number}", **pairs, **timers[number]}),
        )
        for number in range(count)
    ]
    payload, _ = build_payload(
        found, topic="orders", queue_id=queue_id, born_time_ms=1, born_host=HOST_V4, store_host=HOST_V4,
        delayed=bool(delays_ms),
    )  # fmt: skip
    entries = crc32(payload[-count * ENTRY_BYTES :])
    batch = BatchFacts(
        attempt, count, crc32(payload), entries, "KEYS" in pairs,
        delayed_entries_of(payload, count) if delays_ms else b"", query_topic, stream, user,
    )  # fmt: skip
    size = half_batch_size(GROUP, tx_id, batch, len(payload))
    return lambda offset: HalfBatch(offset, size, 7, queue_id, half_index, GROUP, tx_id, batch, 2, 0, 60_000, payload)


def copied_half_batch(source: int, of: HalfBatch) -> Make:
    return lambda offset: CopiedHalfBatch(
        offset, of.size, source, replace(half_of(of), offset=offset, first_offset=64), GROUP, of.tx_id, of.count,
        1_700_000_000_000, 1_700_000_006_000, 4, 1_700_000_011_000, None, of.batch.user,
    )  # fmt: skip


def batch_ref(
    offset: int, half_index: int = 5, messages: int = 3, record_bytes: int = 900, queue_offset: int = 21
) -> BatchRef:
    return BatchRef(offset, offset, half_index, queue_offset, record_bytes, messages, 7, 3)


def decided(
    *refs: BatchRef,
    lost: tuple[int, ...] = (),
    tx_id: str = "q1:7:r1",
    digest: bytes = b"d" * 16,
    is_last: bool = False,
    query_topic: str = "",
    stream: str = "",
    user: str = "",
) -> Make:
    size = decided_size(GROUP, tx_id, digest, len(refs), len(lost), query_topic, stream, user)
    return lambda offset: Decided(
        offset, size, GROUP, tx_id, DecidedBy.PRODUCER, digest, refs, lost, is_last, query_topic, stream, user
    )


def checked(tx_id: str = "T1", checks: int = 1) -> Make:
    size = checked_size(GROUP, tx_id)
    return lambda offset: Checked(offset, size, GROUP, tx_id, 5, checks, 1_700_000_009_000)


def parked(tx_id: str = "T1", checks: int = 15) -> Make:
    size = parked_size(GROUP, tx_id)
    return lambda offset: Parked(offset, size, GROUP, tx_id, 5, checks, DecidedBy.POLICY, ParkedBecause.CHECKS)


def delayed(due_ms: int = 1_700_000_050_000) -> Make:
    properties = props.encode({"UNIQ_KEY": "D1", "DELAY": "3"})
    stored = message(properties=properties)
    size = delayed_record_size("orders", 5, len(properties))
    return lambda offset: DelayedRecord(offset, size, 7, *stored, "D1", due_ms, -9, 10**15)


def released(*refs: Ref) -> Make:
    return lambda offset: Released(offset, released_size(len(refs)), refs)


def copied_half(source: int, message_bytes: int, half_index: int = 0, tx_id: str = "T1") -> Make:
    return lambda offset: CopiedHalf(
        offset, copied_half_size(message_bytes), source,
        Half(0, half_index, offset, source, 7, 3, message_bytes, 0, 0, 0), GROUP, tx_id, 1,
        1_700_000_000_000, 1_700_000_006_000, 4, 1_700_000_011_000,
    )  # fmt: skip


def copied_delayed(source: int, message_bytes: int, half_index: int = -1) -> Make:
    return lambda offset: CopiedDelayed(
        offset, copied_delayed_size(message_bytes), source, source, half_index, 7, 3, message_bytes,
        1_700_000_050_000, -9, 10**15,
    )  # fmt: skip


def topic_set(name: str = "orders") -> Make:
    payload = payload_of(7, name, 8, 4, 6)
    return lambda offset: TopicSet(offset, payload_record_size(payload), 7, name, 8, 4, 6, payload)


def topic_deleted() -> Make:
    payload = payload_of(7, "more")
    return lambda offset: TopicDeleted(offset, payload_record_size(payload), 7, payload)


def group_set(name: str = GROUP, filler: bytes = b"") -> Make:
    payload = payload_of(name, filler)
    return lambda offset: GroupSet(offset, payload_record_size(payload), name, payload)


def query_forgotten(name: str = "app", topic: str = "orders", is_whole: bool = True) -> Make:
    payload = payload_of(name, topic, is_whole)
    return lambda offset: QueryForgotten(offset, payload_record_size(payload), name, topic, is_whole, payload)


def coordinator_epoch(group: str = GROUP, name: str = "transfers", epoch: int = 7, taken_by: str = "host@1") -> Make:
    payload = payload_of(group, name, epoch, taken_by)
    return lambda offset: CoordinatorEpoch(offset, payload_record_size(payload), group, name, epoch, taken_by, payload)


def compared(tx_id: str = "T1", source: str = "sql.mq_tx") -> Make:
    payload = payload_of(
        GROUP, tx_id, 3, source, False, 4, "ada", 64, 1_700_000_000_000, 1_700_000_001_000, 300, 1_700_000_002_000
    )
    return lambda offset: Compared(offset, payload_record_size(payload), GROUP, tx_id, 3, source, payload)


def restored(store: str = "0123456789abcdef" * 2, position: int = 4_096) -> Make:
    payload = payload_of(store, position)
    return lambda offset: Restored(offset, payload_record_size(payload), store, position, payload)


def setting_set(name: str = "retention_hours", *values: Any) -> Make:
    payload = payload_of(name, *(values or (24.0, 72.0, "ada")))
    return lambda offset: SettingSet(offset, payload_record_size(payload), name, payload)


def user_set(name: str = "shop", user: User | None = SHOP) -> Make:
    payload = payload_of(name, user)
    return lambda offset: UserSet(offset, payload_record_size(payload), name, payload)


def group_deleted(name: str = GROUP, with_offsets: bool = True) -> Make:
    payload = payload_of(name, with_offsets)
    return lambda offset: GroupDeleted(offset, payload_record_size(payload), name, with_offsets, payload)


def producer_set(name: str = GROUP) -> Make:
    payload = payload_of(name, 15, "rollback", 0, -1, 1 << 30, "ada")
    return lambda offset: ProducerSet(offset, payload_record_size(payload), name, payload)


def operator_acted(
    action: int = OperatorAction.COMMIT, subject: str = "T1", name: str = "gr\u00fcn", reason: str = "the bank said so"
) -> Make:
    peer = "10.0.0.1:4242"
    size = operator_acted_size(subject, name, reason, peer)
    return lambda offset: OperatorActed(offset, size, action, subject, name, reason, peer)


def offsets_committed() -> Make:
    entries = (("group-a", 7, 0, 12), ("group-b", 8, 3, 2**40))
    payload = payload_of(entries)
    return lambda offset: OffsetsCommitted(offset, payload_record_size(payload), entries, payload)


def epoch_started(epoch: int = 3) -> Make:
    payload = payload_of(epoch, 1_700_000_000_000)
    return lambda offset: EpochStarted(offset, payload_record_size(payload), epoch, 1_700_000_000_000, payload)


def base(previous_end: int, payload: bytes = b"state") -> Make:
    return lambda offset: Base(offset, base_size(payload), previous_end, payload)


def trim(log_start: int) -> Make:
    return lambda offset: Trim(offset, TRIM_SIZE, log_start)


def laid_out(start: int, makes: Sequence[Make]) -> list[Record]:
    """Records of a batch that starts at ``start``."""
    records = []
    place = start + BATCH_HEADER_BYTES
    for make in makes:
        record = make(place)
        records.append(record)
        place += record.size
    return records


def end_of(records: Sequence[Record]) -> int:
    """The end of the batch of ``records``."""
    return aligned(records[-1].offset + records[-1].size)


class LogUnderTest:
    """A log on any disk, written as by the sequencer: batches, and a base record at the start of each segment."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int = SEGMENT) -> None:
        self.disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.checkpoints: list[CheckpointFound] = []
        self.files: SegmentFiles
        self.recovery: Recovery
        self.log: CommitLog

    def make(self) -> "LogUnderTest":
        self.disk.make_directories(self.directory)
        for parent in reversed(self.directory.parents):
            self.disk.sync_directory(parent)
        return self

    def start(self, *, reserve_bytes: int = 0, published: int = 0) -> "LogUnderTest":
        """Recover, cut and sync, as ``Store`` does with durability fsync."""
        self.files = SegmentFiles(self.disk, self.directory, self.segment_bytes)
        self.recovery = examine_log(self.files, self.checkpoints, published)
        self.log = CommitLog(
            self.disk,
            self.files,
            epoch=self.recovery.epoch + 1,
            end=self.recovery.end,
            synced_position=self.recovery.durable_position,
            reserve_bytes=reserve_bytes,
        )
        repair(self.disk, self.files, self.recovery)
        self.log.sync(self.log.end)
        self.log.prepare_next()
        return self

    def append(self, *makes: Make, time_ms: int = 1_000) -> int:
        """Append one batch; if it does not fit, in the next segment, after its base. Returns the log's end."""
        end = self.log.end
        records = laid_out(end, makes)
        if end % self.segment_bytes == 0 or end % self.segment_bytes + end_of(records) - end > self.segment_bytes:
            start = -(-end // self.segment_bytes) * self.segment_bytes
            records = laid_out(start, (base(end), *makes))
        return self.log.append(records, time_ms)


def trim_log(log: CommitLog, log_start: int) -> list[int]:
    """Remove the segments before ``log_start``; their starts."""
    gone = log.detach(log_start)
    log.unlink(gone)
    return gone
