"""Random logs as ``Indexes`` sees them: batches of records from a seed, and the expected content of the indexes.

The expectation is a simple fold over the records with dictionaries, independent of the code under test.
"""

import random
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import replace

from halfmq.model import properties as props
from halfmq.model.half_batch import (
    ENTRY_BYTES,
    HalfMessage,
    build_payload,
    delayed_entries_of,
    delayed_items,
    half_of,
    item_places,
)
from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.layout import PAYLOAD_ENTRY
from halfmq.model.placement import aligned, next_segment_start
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    BATCHED,
    PARKED_MS,
    TRIM_SIZE,
    Base,
    Batch,
    BatchFacts,
    BatchRef,
    Checked,
    Committed,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    DecidedBy,
    DelayedRecord,
    Half,
    HalfBatch,
    HalfRecord,
    Kind,
    MessageRecord,
    Parked,
    ParkedBecause,
    Record,
    Ref,
    Released,
    Restored,
    RolledBack,
    TopicDeleted,
    TopicSet,
    Trim,
    base_size,
    checked_size,
    committed_size,
    copied_delayed_size,
    copied_half_size,
    decided_size,
    half_batch_size,
    parked_size,
    payload_record_size,
    released_size,
    rolled_back_size,
)
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.store.consume_queue import QueueEntry
from halfmq.store.transaction_table import UndecidedHalf
from tests.support import log_records as make
from tests.support.log_records import delayed_record_size, message_record_size

SEGMENT = 1 << 16
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
GROUP = "orders"


class Open(NamedTuple):
    """An undecided transaction."""

    tx_id: str
    halves: tuple[HalfRecord | Half, ...]
    first_offsets: tuple[int, ...]
    messages: tuple[StoredMessage, ...]
    prepared_ms: int
    checks: int = 0
    next_check_ms: int = 0

    def stated(self, half: HalfRecord | Half) -> int:
        """The number of halves that ``half`` states: the last one does."""
        return len(self.halves) * (half.index == len(self.halves) - 1)


class OpenBatch(NamedTuple):
    """An undecided half batch of the transaction ``tx_id``."""

    tx_id: str
    attempt: str
    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not used
    half_index: int
    first_offset: int
    offset: int
    size: int
    messages: int
    topic_id: int
    queue_id: int
    prepared_ms: int


class RandomLog:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.batches: list[Batch] = []
        #: Record offset -> (kind, message).
        self.messages: dict[int, tuple[int, StoredMessage]] = {}
        #: Record offset -> verdict.
        self.verdicts: dict[int, Committed | RolledBack] = {}
        self.end = 0
        self.now_ms = 1_000
        self.topics: dict[int, str] = {}
        self.queue_ends: dict[tuple[int, int], int] = {}
        self.open: list[Open] = []
        self.next_half = 0
        self.delayed: list[DelayedRecord] = []
        #: Messages of decided half batches with delays, as a copy of them would be; ``offset``: where each is now.
        self.waiting: list[CopiedDelayed] = []
        self.log_start = 0
        #: Record offset -> the half batch with that payload; the undecided ones; transaction id -> half index of its first.
        self.half_batches: dict[int, HalfBatch] = {}
        self.open_batches: list[OpenBatch] = []
        self.first_of_batch: dict[str, int] = {}
        self._records: list[Record] = []
        self._at = 0
        self._number = 0

    def read_message(self, offset: int) -> StoredMessage:
        return self.messages[offset][1]

    def half_batch_entries(self, offset: int) -> memoryview:
        """The entries of the half batch at ``offset``."""
        record = self.half_batches[offset]
        return memoryview(record.payload)[-record.batch.messages * ENTRY_BYTES :]

    def half_batch_payload(self, offset: int) -> bytes:
        return self.half_batches[offset].payload

    def verdict(self, offset: int) -> Committed | RolledBack:
        return self.verdicts[offset]

    def undecided(self) -> list[UndecidedHalf]:
        """The undecided halves as in the recovered state."""
        return [
            UndecidedHalf(
                Half(
                    half.index, half.half_index, half.offset, first, half.topic_id, message.queue_id, len(_packed(message)), 0, 0, 0
                ),
                one.halves[0].half_index, one.stated(half), GROUP, one.tx_id, one.prepared_ms,
                one.next_check_ms if number == 0 else 0, one.checks if number == 0 else 0,
            )
            for one in self.open
            for number, (half, first, message) in enumerate(zip(one.halves, one.first_offsets, one.messages, strict=True))
        ] + [
            UndecidedHalf(
                Half(
                    half.index, half.half_index, half.offset, half.first_offset, half.topic_id, half.queue_id, half.size, 0, 0, 0
                ),
                self.first_of_batch[half.tx_id], 0, GROUP, half.tx_id, half.prepared_ms, 0, 0,
            )
            for half in self.open_batches
        ]  # fmt: skip

    def grow(self, batches: int) -> None:
        for _ in range(batches):
            self.batch(self.rng.randrange(1, 9))

    def batch(self, steps: int) -> None:
        self.now_ms += self.rng.randrange(0, 50)
        roll = self.end % SEGMENT > SEGMENT - 12_000 or self.end == 0
        start = self.end if not roll else (0 if self.end == 0 else next_segment_start(self.end, SEGMENT))
        self._at = start + BATCH_HEADER_BYTES
        self._records = []
        if roll:
            self._add(Base(self._at, base_size(b""), self.end, b""))
        if not self.topics:
            self.topic()
        for _ in range(steps):
            self.rng.choice(
                [self.plain, self.plain, self.prepare, self.prepare, self.settle, self.settle, self.check, self.park,
                 self.delay, self.release, self.topic, self.delete, self.prepare_batch, self.decide, self.release_of_batches]
            )()  # fmt: skip
        if len(self.batches) % 37 == 36:  # no die is thrown for it: logs of earlier seeds stay as they were
            self.restore()
        if roll and start >= 2 * SEGMENT and self.rng.random() < 0.9:
            self.trim(start - SEGMENT)
        self.end = aligned(self._at)
        self.batches.append(Batch(start, self.end, self.now_ms, self._records))

    def topic(self) -> None:
        if len(self.topics) >= 4 or (self.topics and self.rng.random() < 0.9):
            return
        number = self._next()
        self.topics[number] = f"topic-{number}"
        payload = msgspec.msgpack.encode([number, self.topics[number], 3, 3, 6])
        self._add(TopicSet(self._at, payload_record_size(payload), number, self.topics[number], 3, 3, 6, payload))

    def delete(self) -> None:
        busy = {half.topic_id for one in self.open for half in one.halves} | {one.topic_id for one in self.delayed}
        busy |= {half.topic_id for half in self.open_batches} | {one.topic_id for one in self.waiting}
        free = [number for number in self.topics if number not in busy]
        if len(self.topics) > 1 and free and self.rng.random() < 0.1:
            number = self.rng.choice(free)
            del self.topics[number]
            payload = msgspec.msgpack.encode([number])
            self._add(TopicDeleted(self._at, payload_record_size(payload), number, payload))

    def plain(self) -> None:
        topic_id, queue_id = self._queue()
        message = self._message(topic_id, queue_id, self._take(topic_id, queue_id))
        size = message_record_size(message.topic, len(message.body), len(message.properties))
        unique = (props.find(message.properties, props.UNIQ_KEY) or b"").decode()
        self._remember(1, message)
        self._add(make.message_record(self._at, size, topic_id, message, unique))

    def prepare(self) -> None:
        count = self.rng.choice([1, 1, 1, 2, 3])
        tx_id = f"tx-{self._next()}"
        halves: list[HalfRecord | Half] = []
        messages = []
        for index in range(count):
            topic_id, queue_id = self._queue()
            message = self._message(topic_id, queue_id, self.next_half)
            named = props.append(message.properties, props.encode({"HMQ_TX_ID": tx_id}))
            message = message._replace(properties=named)
            size = message_record_size(message.topic, len(message.body), len(message.properties))
            said = count if index == count - 1 else 0
            record = make.half_record(self._at, size, topic_id, message, self.next_half, GROUP, tx_id, index, said)
            self.next_half += 1
            self._remember(2, message)
            self._add(record)
            halves.append(record)
            messages.append(message)
        offsets = tuple(half.offset for half in halves)
        self.open.append(Open(tx_id, tuple(halves), offsets, tuple(messages), self.now_ms))

    def settle(self) -> None:
        if not self.open:
            return
        one = self.open.pop(self.rng.randrange(len(self.open)))
        decided_by = self.rng.randrange(1, 6)
        indexes = tuple(half.half_index for half in one.halves)
        if self.rng.random() < 0.4:
            self._add(
                RolledBack(
                    self._at, rolled_back_size(GROUP, one.tx_id, len(indexes)), GROUP, one.tx_id, decided_by, indexes
                )
            )
            return
        if any(half.offset // SEGMENT != self._at // SEGMENT for half in one.halves):
            one = self._carry(one)
        refs = tuple(
            Ref(
                half.offset, len(_packed(message)), first, half.half_index, half.topic_id, message.queue_id,
                self._take(half.topic_id, message.queue_id), 0, _tag(message), _key(message),
            )
            for half, first, message in zip(one.halves, one.first_offsets, one.messages, strict=True)
        )  # fmt: skip
        self._add(Committed(self._at, committed_size(GROUP, one.tx_id, len(refs)), GROUP, one.tx_id, decided_by, refs))

    def prepare_batch(self) -> None:
        """A half batch of a query's batch; of the open one, or of a new one."""
        topic_id, queue_id = self._queue()
        tx_id = self.open_batches[-1].tx_id if self.open_batches else f"q:{self._next()}:r1"
        attempt = self.rng.choice(["0.1", "1.2"])
        index = sum(half.attempt == attempt for half in self.open_batches)
        found = [self._message(topic_id, queue_id, 0) for _ in range(self.rng.randrange(1, 5))]
        delayed = self.rng.random() < 0.4
        if delayed:
            found = [
                one._replace(properties=props.append(one.properties, props.encode({"TIMER_DELAY_MS": "100"})))
                for one in found
            ]
        payload, count = build_payload(
            [HalfMessage(0, 0, one.body, one.properties) for one in found], topic=self.topics[topic_id],
            queue_id=queue_id, born_time_ms=1, born_host=HOST, store_host=HOST, delayed=delayed,
        )  # fmt: skip
        entries = crc32(payload[-count * ENTRY_BYTES :])
        has_keys = any(b"KEYS" in one.properties for one in found)
        facts = BatchFacts(
            attempt, count, crc32(payload), entries, has_keys, delayed_entries_of(payload, count) if delayed else b""
        )
        size = half_batch_size(GROUP, tx_id, facts, len(payload))
        record = HalfBatch(
            self._at, size, topic_id, queue_id, self.next_half, GROUP, tx_id, facts, index, 0, -1, payload
        )
        self.first_of_batch.setdefault(tx_id, self.next_half)
        self.open_batches.append(
            OpenBatch(
                tx_id, attempt, index, self.next_half, self._at, self._at, size, count, topic_id, queue_id, self.now_ms
            )
        )
        self.next_half += 1
        self._remember_batch(record, found)
        self._add(record)

    def _remember_batch(self, record: HalfBatch, found: list[StoredMessage]) -> None:
        self.half_batches[self._at] = record
        for (from_start, _), message in zip(item_places(record.payload, record.batch.messages), found, strict=True):
            self.messages[self._at + from_start] = (BATCHED, message)

    def decide(self) -> None:
        """The verdict on the open batch: one attempt wins. Half batches may be in earlier segments."""
        if not self.open_batches:
            return
        won = self.rng.choice(["0.1", "1.2"])
        refs = tuple(
            BatchRef(
                half.offset, half.first_offset, half.half_index,
                -1 if self.half_batches[half.offset].batch.delayed_entries
                else self._take(half.topic_id, half.queue_id, half.messages), half.size, half.messages, half.topic_id,
                half.queue_id,
            )
            for half in self.open_batches if half.attempt == won
        )  # fmt: skip
        for one in refs:
            items = delayed_items(self.half_batches[one.offset].batch.delayed_entries)
            self.waiting += [
                CopiedDelayed(
                    one.offset + item.at, copied_delayed_size(item.message_bytes), one.offset + item.at,
                    one.first_offset + item.at, -1, one.topic_id, one.queue_id, item.message_bytes, self.now_ms + 100,
                    item.tag_hash, item.key_hash,
                )
                for item in items
            ]  # fmt: skip
        lost = tuple(half.half_index for half in self.open_batches if half.attempt != won)
        tx_id = self.open_batches[0].tx_id
        size = decided_size(GROUP, tx_id, bytes(16), len(refs), len(lost))
        self._add(Decided(self._at, size, GROUP, tx_id, self.rng.randrange(1, 6), bytes(16), refs, lost))
        self.open_batches.clear()

    def check(self) -> None:
        if self.open:
            place = self.rng.randrange(len(self.open))
            one = self.open[place]
            one = self.open[place] = one._replace(checks=one.checks + 1, next_check_ms=self.now_ms + 500)
            first = one.halves[0].half_index
            size = checked_size(GROUP, one.tx_id)
            self._add(Checked(self._at, size, GROUP, one.tx_id, first, one.checks, one.next_check_ms))

    def park(self) -> None:
        if self.open and self.rng.random() < 0.5:
            place = self.rng.randrange(len(self.open))
            one = self.open[place]
            because = self.rng.choice(list(ParkedBecause))
            self.open[place] = one._replace(next_check_ms=PARKED_MS + because)
            first = one.halves[0].half_index
            size = parked_size(GROUP, one.tx_id)
            self._add(Parked(self._at, size, GROUP, one.tx_id, first, one.checks, DecidedBy.POLICY, because))

    def restore(self) -> None:
        """The log before this is that of another store, restored from a backup: its indexes do not change."""
        payload = msgspec.msgpack.encode(["0" * 32, self._at])
        self._add(Restored(self._at, payload_record_size(payload), "0" * 32, self._at, payload))

    def delay(self) -> None:
        topic_id, queue_id = self._queue()
        message = self._message(topic_id, queue_id, -1)
        size = delayed_record_size(message.topic, len(message.body), len(message.properties))
        due = self.now_ms + 100
        record = DelayedRecord(self._at, size, topic_id, *message, "", due, _tag(message), _key(message))
        self._remember(7, message)
        self._add(record)
        self.delayed.append(record)

    def release(self) -> None:
        """Release those of this segment; a real broker would copy the others first."""
        here = [one for one in self.delayed if one.offset // SEGMENT == self._at // SEGMENT]
        if here:
            refs = tuple(
                Ref(
                    one.offset, len(_packed(one.message)), one.offset, -1, one.topic_id, one.message.queue_id,
                    self._take(one.topic_id, one.message.queue_id), 0, one.tag_hash, one.key_hash,
                )
                for one in here
            )  # fmt: skip
            self._add(Released(self._at, released_size(len(refs)), refs))
        self.delayed = [one for one in self.delayed if one not in here]

    def release_of_batches(self) -> None:
        """Release some messages of decided half batches; those of older segments are copied first."""
        self.rng.shuffle(self.waiting)
        due, self.waiting = self.waiting[:3], self.waiting[3:]
        refs = []
        for item in due:
            one = item if item.offset // SEGMENT == self._at // SEGMENT else self._carry_delayed(item)
            queue_offset = self._take(one.topic_id, one.queue_id)
            refs.append(
                Ref(
                    one.offset, one.message_bytes, one.first_offset, -1, one.topic_id, one.queue_id, queue_offset, 0,
                    one.tag_hash, one.key_hash,
                )
            )  # fmt: skip
        if refs:
            self._add(Released(self._at, released_size(len(refs)), tuple(refs)))

    def trim(self, log_start: int) -> None:
        self.open = [self._carry(one) if one.halves[0].offset < log_start else one for one in self.open]
        self.delayed = [one for one in self.delayed if one.offset >= log_start]
        self.waiting = [self._carry_delayed(one) if one.offset < log_start else one for one in self.waiting]
        self.open_batches = [self._carry_batch(one) if one.offset < log_start else one for one in self.open_batches]
        self.log_start = log_start
        self._add(Trim(self._at, TRIM_SIZE, log_start))

    def _carry(self, one: Open) -> Open:
        halves: list[HalfRecord | Half] = []
        for number, (half, first, message) in enumerate(zip(one.halves, one.first_offsets, one.messages, strict=True)):
            size = copied_half_size(len(_packed(message)))
            copied = Half(
                half.index, half.half_index, self._at, first, half.topic_id, message.queue_id, len(_packed(message)),
                _tag(message), _key(message), 0,
            )  # fmt: skip
            record = CopiedHalf(
                self._at, size, half.offset, copied, GROUP, one.tx_id, one.stated(half), one.prepared_ms, 0,
                one.checks if number == 0 else 0, one.next_check_ms if number == 0 else 0,
            )  # fmt: skip
            self._remember(3, message)
            self._add(record)
            halves.append(copied)
        return one._replace(halves=tuple(halves))

    def _carry_delayed(self, one: CopiedDelayed) -> CopiedDelayed:
        record = replace(one, offset=self._at, source=one.offset)
        self._remember(Kind.COPIED_DELAYED, self.messages[one.offset][1])
        self._add(record)
        return record

    def _carry_batch(self, one: OpenBatch) -> OpenBatch:
        of = self.half_batches[one.offset]
        record = CopiedHalfBatch(
            self._at, of.size, one.offset, replace(half_of(of), offset=self._at, first_offset=one.first_offset), GROUP, of.tx_id,
            of.count, one.prepared_ms, 0, 0, 0,
        )  # fmt: skip
        found = [self.messages[one.offset + at][1] for at, _ in item_places(of.payload, of.batch.messages)]
        self._remember_batch(of, found)
        self._add(record)
        return one._replace(offset=record.offset)

    def _message(self, topic_id: int, queue_id: int, queue_offset: int) -> StoredMessage:
        number = self._next()
        pairs = {"UNIQ_KEY": f"id-{number}"}
        if self.rng.random() < 0.3:
            pairs["TAGS"] = self.rng.choice("abc")
        if self.rng.random() < 0.3:
            pairs["KEYS"] = f"key-{number % 7} key-{number}"
        body = self.rng.randbytes(self.rng.randrange(0, 200))
        return StoredMessage(
            self.topics[topic_id], queue_id, queue_offset, 0, 0, 1, HOST, self.now_ms, HOST, 0, 0, body,
            body_crc_of(body), props.encode(pairs),
        )  # fmt: skip

    def _queue(self) -> tuple[int, int]:
        return self.rng.choice(list(self.topics)), self.rng.randrange(3)

    def _take(self, topic_id: int, queue_id: int, messages: int = 1) -> int:
        offset = self.queue_ends.get((topic_id, queue_id), 0)
        self.queue_ends[topic_id, queue_id] = offset + messages
        return offset

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _remember(self, kind: int, message: StoredMessage) -> None:
        self.messages[self._at] = (kind, message)

    def _add(self, record: Record) -> None:
        if isinstance(record, Committed | RolledBack):
            self.verdicts[record.offset] = record
        self._records.append(record)
        self._at += record.size


class Expected:
    """What readers must find after these batches."""

    def __init__(self, batches: list[Batch]) -> None:
        self.entries: dict[tuple[int, int], dict[int, QueueEntry]] = {}
        self.mins: dict[tuple[int, int], int] = {}
        #: Half index -> (state, verdict position, queue offset, current offset, first half, number, halves, checks)
        self.rows: dict[int, dict[str, int]] = {}
        self.topics: dict[int, str] = {}
        #: Transaction id -> position of its verdict.
        self.settled: dict[str, int] = {}
        self.log_start = 0
        #: Record offset -> (half index, its entries).
        self._half_batches: dict[int, list[tuple[int, int, int, int]]] = {}
        firsts: dict[str, int] = {}
        for batch in batches:
            for record in batch.records:
                self._fold(record, batch.broker_time_ms, firsts)

    def _fold(self, record: Record, now_ms: int, firsts: dict[str, int]) -> None:
        match record:
            case MessageRecord(offset=offset, topic_id=topic_id, message=message):
                entry = QueueEntry(offset, len(_packed(message)), _tag(message), offset, now_ms, -1, _key(message))
                self.entries.setdefault((topic_id, message.queue_id), {})[message.queue_offset] = entry
            case HalfRecord(
                offset=offset, topic_id=topic_id, message=message, half_index=half_index, tx_id=tx_id, index=index,
                count=count,
            ):  # fmt: skip
                firsts.setdefault(tx_id, half_index)
                self.rows[half_index] = {
                    "state": 1, "original_offset": offset, "current_offset": offset, "topic_id": topic_id,
                    "queue_id": message.queue_id, "number": index, "halves": count, "first_half": firsts[tx_id],
                    "id_hash": hash64(tx_id.encode()), "prepared_at_ms": now_ms, "queue_offset": -1, "checks": 0,
                    "message_bytes": len(_packed(message)), "group_hash": hash64(GROUP.encode()), "next_check_at_ms": 0,
                }  # fmt: skip
            case HalfBatch():
                firsts.setdefault(record.tx_id, record.half_index)
                raw = record.payload[-record.batch.messages * ENTRY_BYTES :]
                self._half_batches[record.offset] = list(PAYLOAD_ENTRY.iter_unpack(raw))
                self.rows[record.half_index] = {
                    "state": 1, "original_offset": record.offset, "current_offset": record.offset,
                    "topic_id": record.topic_id, "queue_id": record.queue_id, "number": record.index, "halves": 0,
                    "first_half": firsts[record.tx_id], "id_hash": hash64(record.tx_id.encode()),
                    "prepared_at_ms": now_ms, "queue_offset": -1, "checks": 0, "message_bytes": record.size,
                    "group_hash": hash64(GROUP.encode()), "next_check_at_ms": 0,
                }  # fmt: skip
            case CopiedHalfBatch():
                self.rows[record.half.half_index]["current_offset"] = record.offset
                self._half_batches[record.offset] = self._half_batches[record.source]
            case Decided():
                together = [*[one.half_index for one in record.refs], *record.lost]
                settled = {
                    "verdict_position": record.offset, "settled_at_ms": now_ms, "decided_by": record.decided_by,
                    "halves": len(together), "first_half": together[0],
                }  # fmt: skip
                for one in record.refs:
                    self.rows[one.half_index].update(state=2, queue_offset=one.queue_offset, **settled)
                    if one.queue_offset < 0:
                        continue
                    entries = self.entries.setdefault((one.topic_id, one.queue_id), {})
                    for number, (at, size, tag, key) in enumerate(self._half_batches[one.offset]):
                        entry = QueueEntry(one.offset + at, size, tag, record.offset, now_ms, one.half_index, key)
                        entries[one.queue_offset + number] = entry
                for half_index in record.lost:
                    self.rows[half_index].update(state=3, **settled)
            case CopiedHalf():
                self.rows[record.half.half_index]["current_offset"] = record.offset
            case Committed(offset, _, _, tx_id, decided_by, refs):
                self.settled[tx_id] = offset
                for ref in refs:
                    self.rows[ref.half_index].update(
                        state=2, verdict_position=offset, settled_at_ms=now_ms, decided_by=decided_by,
                        queue_offset=ref.queue_offset, halves=len(refs), first_half=refs[0].half_index,
                    )  # fmt: skip
                    self._ref(ref, offset, now_ms, ref.half_index)
            case RolledBack(offset, _, _, tx_id, decided_by, halves):
                self.settled[tx_id] = offset
                for half_index in halves:
                    self.rows[half_index].update(
                        state=3, verdict_position=offset, settled_at_ms=now_ms, decided_by=decided_by,
                        halves=len(halves), first_half=halves[0],
                    )  # fmt: skip
            case Checked(_, _, _, _, half_index, checks, next_check):
                self.rows[half_index].update(checks=checks, next_check_at_ms=next_check, decided_by=0)
            case Parked(_, _, _, _, half_index, checks, decided_by, because):
                self.rows[half_index].update(checks=checks, next_check_at_ms=PARKED_MS + because, decided_by=decided_by)
            case Released(offset, _, refs):
                for ref in refs:
                    self._ref(ref, offset, now_ms, -2)
            case TopicSet(_, _, topic_id, name):
                self.topics[topic_id] = name
            case TopicDeleted(_, _, topic_id):
                del self.topics[topic_id]
                for key in [key for key in self.entries if key[0] == topic_id]:
                    del self.entries[key]
            case Trim(_, _, log_start):
                self.log_start = log_start
                for key, entries in self.entries.items():
                    kept = [offset for offset, entry in entries.items() if entry.visible_at >= log_start]
                    self.mins[key] = min(kept, default=max(entries) + 1)
            case _:
                pass

    def _ref(self, ref: Ref, position: int, now_ms: int, half_index: int) -> None:
        entry = QueueEntry(ref.offset, ref.message_bytes, ref.tag_hash, position, now_ms, half_index, ref.key_hash)
        self.entries.setdefault((ref.topic_id, ref.queue_id), {})[ref.queue_offset] = entry


def _packed(message: StoredMessage) -> bytes:
    from halfmq.model.stored_message import encode

    return b"".join(encode(message, 0))


def _tag(message: StoredMessage) -> int:
    tag = props.find(message.properties, props.TAGS)
    return java_string_hash(tag.decode()) if tag else 0


def _key(message: StoredMessage) -> int:
    unique = props.find(message.properties, props.UNIQ_KEY)
    return hash64(unique) if unique else 0
