"""A store made record by record with the store's own log and indexes, but without a broker, for tests of readers.

Everything is visible to readers after ``publish``. A small ``segment_bytes`` gives many segments. Broker time is explicit, so
expected timestamps are exact.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from halfmq.model import properties as props
from halfmq.model.ids import java_string_hash
from halfmq.model.placement import fits, next_segment_start
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    TRIM_SIZE,
    Base,
    Batch,
    Checked,
    Committed,
    CopiedHalf,
    DelayedRecord,
    Half,
    HalfRecord,
    Record,
    Ref,
    Released,
    RolledBack,
    TopicDeleted,
    TopicSet,
    Trim,
    base_size,
    checked_size,
    committed_size,
    copied_half_size,
    payload_record_size,
    released_size,
    rolled_back_size,
)
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.runtime.disk import RealDisk
from halfmq.store.commit_log import CommitLog
from halfmq.store.identity import Identity, read_identity, write_identity
from halfmq.store.indexes import Indexes
from halfmq.store.segment import SegmentFiles
from halfmq.store.watermark_page import WatermarkPage
from tests.support import log_records as make
from tests.support.log_records import Make, delayed_record_size, message_record_size

V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
V6 = bytes(15) + b"\x01\x00\x00\x2a\x9f"
GROUP = "writers"


class StoreWriter:
    def __init__(self, directory: Path, *, segment_bytes: int = 1 << 16, epoch: int = 1) -> None:
        self.disk = RealDisk()
        self.directory = directory
        self.shard = directory / "shard-0"
        self.disk.make_directories(self.shard / "log")
        identity = read_identity(self.disk, directory)
        if identity is None:
            identity = Identity(os.urandom(16), segment_bytes)
            write_identity(self.disk, directory, identity)
        self.store_id = identity.store_id
        self.segment_bytes = identity.segment_bytes
        self.epoch = epoch
        self.now_ms = 1_700_000_000_000
        self.files = SegmentFiles(self.disk, self.shard / "log", self.segment_bytes)
        self.log = CommitLog(self.disk, self.files, epoch=epoch)
        self.indexes = Indexes.open(
            self.disk, self.shard, store=self.store_id.hex(), segment_bytes=self.segment_bytes, redo_from=0, log_start=0,
            log=self.log,
        )  # fmt: skip
        self.indexes.reset()
        self.indexes.cut(0, 0)
        self.page = WatermarkPage.open(self.disk, self.shard / "published", self.store_id, epoch)
        self.topics: dict[str, int] = {}
        self.ends: dict[tuple[int, int], int] = {}
        self.halves = 0
        self.prepared_ms: dict[int, int] = {}
        self.topic_ids = 0
        self.log_start = 0
        self.batch: list[Record] = []
        self._batch_end = 0

    # --- records

    def topic(self, name: str, queues: int = 4) -> int:
        self.topic_ids += 1
        self.topics[name] = self.topic_ids
        payload = msgspec.msgpack.encode([self.topic_ids, name, queues, queues, 6])
        size = payload_record_size(payload)
        self._put(size, lambda at: TopicSet(at, size, self.topic_ids, name, queues, queues, 6, payload))
        return self.topic_ids

    def delete_topic(self, name: str) -> None:
        number = self.topics.pop(name)
        payload = msgspec.msgpack.encode([number])
        size = payload_record_size(payload)
        self._put(size, lambda at: TopicDeleted(at, size, number, payload))

    def message(
        self, topic: str, queue: int, body: bytes, properties: bytes, queue_offset: int, *, sys_flag: int = 0, host: bytes = V4
    ) -> StoredMessage:  # fmt: skip
        return StoredMessage(
            topic, queue, queue_offset, 0, sys_flag, 1, host, self.now_ms, V4, 0, 0, body, body_crc_of(body), properties
        )

    def send(
        self, topic: str, queue: int, body: bytes, properties: bytes = b"", *, sys_flag: int = 0, host: bytes = V4
    ) -> int:
        """Append a plain message; returns its queue offset."""
        number = self.topics[topic]
        offset = self._take(number, queue)
        size = message_record_size(topic, len(body), len(properties), len(host))
        message = self.message(topic, queue, body, properties, offset, sys_flag=sys_flag, host=host)
        unique_id = (props.find(properties, props.UNIQ_KEY) or b"").decode()
        self._put(size, lambda at: make.message_record(at, size, number, message, unique_id))
        return offset

    def prepare(self, tx_id: str, messages: Sequence[tuple[str, int, bytes, bytes]]) -> list[HalfRecord]:
        """Half messages of one transaction: (topic, queue, body, properties) each."""
        halves = []
        for index, (topic, queue, body, properties) in enumerate(messages):
            number = self.topics[topic]
            properties += b"" if b"TRAN_MSG" in properties else b"TRAN_MSG\x01true\x02"
            half_index = self.halves
            self.halves += 1
            self.prepared_ms[half_index] = self.now_ms
            size = message_record_size(topic, len(body), len(properties))
            stored = self.message(topic, queue, body, properties, half_index)
            count = len(messages) if index == len(messages) - 1 else 0

            def made(at: int, args: tuple[object, ...] = (size, number, stored, half_index, index, count)) -> Record:
                size, number, stored, half_index, index, count = args
                return make.half_record(at, size, number, stored, half_index, GROUP, tx_id, index, count)  # type: ignore[arg-type]

            halves.append(self._put(size, made))
        return halves  # type: ignore[return-value]

    def commit(self, tx_id: str, halves: Sequence[HalfRecord]) -> int:
        """Make them visible; halves of an older segment are copied first. Returns the position."""
        sizes = [copied_half_size(half.size - 16) for half in halves]
        size = committed_size(GROUP, tx_id, len(halves))
        self._room(sum(sizes) + size)
        refs = []
        for half, carried_size in zip(halves, sizes, strict=True):
            offset = half.offset
            message = half.message
            message_bytes = half.size - 16
            if offset // self.segment_bytes != self._batch_end // self.segment_bytes:
                self._flush_batch()
                carried = self._put(
                    carried_size,
                    lambda at, half=half, carried_size=carried_size, message_bytes=message_bytes: CopiedHalf(  # type: ignore[misc]
                        at, carried_size, half.offset,
                        Half(
                            half.index, half.half_index, at, half.offset, half.topic_id, half.message.queue_id, message_bytes, 0, 0, 0
                        ),
                        GROUP, tx_id, half.count, self.prepared_ms[half.half_index], 0, 0, 0,
                    ),
                )  # fmt: skip
                offset = carried.offset
            tag = props.find(message.properties, props.TAGS)
            refs.append(
                Ref(
                    offset, message_bytes, half.offset, half.half_index, half.topic_id, message.queue_id,
                    self._take(half.topic_id, message.queue_id), 0, java_string_hash(tag.decode()) if tag else 0, 0,
                )
            )  # fmt: skip
        return self._put(size, lambda at: Committed(at, size, GROUP, tx_id, 1, tuple(refs))).offset

    def roll_back(self, tx_id: str, halves: Sequence[HalfRecord]) -> None:
        size = rolled_back_size(GROUP, tx_id, len(halves))
        self._put(size, lambda at: RolledBack(at, size, GROUP, tx_id, 1, tuple(half.half_index for half in halves)))

    def roll_back_by(self, acted: Make, tx_id: str, halves: Sequence[HalfRecord], *, decided_by: int = 4) -> None:
        """A rollback after the record ``acted``, which names the operator."""
        self._put(acted(0).size, acted)
        size = rolled_back_size(GROUP, tx_id, len(halves))
        indexes = tuple(half.half_index for half in halves)
        self._put(size, lambda at: RolledBack(at, size, GROUP, tx_id, decided_by, indexes))

    def checked(self, tx_id: str, half: HalfRecord, checks: int) -> None:
        size = checked_size(half.group, tx_id)
        self._put(size, lambda at: Checked(at, size, half.group, tx_id, half.half_index, checks, self.now_ms + 5_000))

    def delayed(self, topic: str, queue: int, body: bytes, properties: bytes = b"") -> None:
        """A delayed message and its release."""
        number = self.topics[topic]
        size = delayed_record_size(topic, len(body), len(properties))
        message = self.message(topic, queue, body, properties, -1)
        released = released_size(1)
        self._room(size + released)
        record = self._put(size, lambda at: DelayedRecord(at, size, number, *message, "", self.now_ms, 0, 0))
        ref = Ref(record.offset, size - 32, record.offset, -1, number, queue, self._take(number, queue), 0, 0, 0)
        self._put(released, lambda at: Released(at, released, (ref,)))

    def trim(self) -> None:
        """Trim everything before the current segment."""
        self.publish()
        self.log_start = self.log.end - self.log.end % self.segment_bytes
        self._put(TRIM_SIZE, lambda at: Trim(at, TRIM_SIZE, self.log_start))
        self.publish()
        self.indexes.keys.trim(self.log_start)
        for number in self.files.numbers():
            if (number + 1) * self.segment_bytes <= self.log_start:
                self.files.remove(number)

    def publish(self) -> int:
        """Make everything so far readable. Returns the high watermark."""
        self._flush_batch()
        self.page.publish(self.log.end, self.log_start, self.now_ms, 0)
        return self.log.end

    def tick(self, ms: int = 1) -> None:
        """Advance the broker time of the next records."""
        self._flush_batch()
        self.now_ms += ms

    # --- placement

    def _take(self, topic_id: int, queue: int) -> int:
        offset = self.ends.get((topic_id, queue), 0)
        self.ends[topic_id, queue] = offset + 1
        return offset

    def _put(self, size: int, make):  # type: ignore[no-untyped-def]
        self._room(size)
        record = make(self._batch_end)
        self.batch.append(record)
        self._batch_end += size
        if len(self.batch) >= 4_096:
            self._flush_batch()
        return record

    def _room(self, size: int) -> None:
        """Open a batch with space for ``size`` bytes of records; in a new segment, its base first."""
        if self.batch and not fits(self._batch_end, True, size, self.segment_bytes):
            self._flush_batch()
        if not self.batch:
            end = self.log.end
            if end == 0 or not fits(end, False, size, self.segment_bytes):
                start = (
                    0
                    if end == 0
                    else end
                    if end % self.segment_bytes == 0
                    else next_segment_start(end, self.segment_bytes)
                )
                self._batch_end = start + BATCH_HEADER_BYTES
                base = Base(self._batch_end, base_size(b""), end, b"")
                self.batch.append(base)
                self._batch_end += base.size
            else:
                self._batch_end = end + BATCH_HEADER_BYTES

    def _flush_batch(self) -> None:
        if not self.batch:
            return
        records, self.batch = self.batch, []
        start = records[0].offset - BATCH_HEADER_BYTES
        end = self.log.append(records, self.now_ms)
        self.indexes.stage(Batch(start, end, self.now_ms, records))
        self.indexes.flush()
