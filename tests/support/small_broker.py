"""The smallest broker on a ``Store``: plain messages, transactions of one half, trims; its state is dicts.

For tests of the store as a whole. It decides, appends, applies and redoes like the broker, and remembers what must be visible,
so that a test can compare after any crash.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from halfmq.model import properties as props
from halfmq.model.records import (
    Base,
    Committed,
    CopiedHalf,
    DecidedBy,
    HalfRecord,
    MessageRecord,
    Record,
    Ref,
    RolledBack,
    Trim,
    committed_size,
    copied_half_size,
    message_record_size,
    rolled_back_size,
)
from halfmq.runtime.disk import Disk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.group_flush import Job
from halfmq.store.layout import ROW_COMMITTED, ROW_ROLLED_BACK, ROW_UNDECIDED
from halfmq.store.store import Durability, Store
from halfmq.store.topics_file import TopicInfo
from halfmq.store.transaction_table import UndecidedHalf
from tests.support import log_records as make
from tests.support.hand_flush import HandFlush

TOPIC = 7
QUEUES = 3
TOPICS = [TopicInfo(TOPIC, "orders", QUEUES, QUEUES, 6)]


class State(msgspec.Struct):
    """The whole state, as plain values."""

    ends: list[int]
    next_half: int = 0
    #: tx id -> offset, message bytes, first offset, half index, queue, body
    undecided: dict[str, tuple[int, int, int, int, int, bytes]] = {}
    log_start: int = 0
    now_ms: int = 1_000


class Written(msgspec.Struct):
    """One batch that was appended, or begun: its end, and its effects."""

    end: int
    #: (queue, queue offset, visible at, body)
    visible: list[tuple[int, int, int, bytes]]
    #: half index -> (row state, position)
    rows: dict[int, tuple[int, int]]
    trims_to: int = 0
    #: tx id -> position of its verdict
    settled: dict[str, int] = {}


class WrittenBatch(msgspec.Struct):
    end: int
    broker_time_ms: int
    records: list[Record]


class SmallBroker:
    """``start`` opens the store; ``turn`` appends a batch; ``sync`` makes it durable and publishes it."""

    def __init__(self, disk: Disk, directory: Path, durability: Durability = Durability.FSYNC) -> None:
        self.disk = disk
        self.directory = directory
        self.durability = durability
        self.store: Store
        self.state: State
        self.flush: HandFlush | None = None
        self.redone = 0
        self.written: list[Written] = []
        self._unpublished: list[WrittenBatch] = []
        self._records: list[Record] = []
        self._batch: Written

    # --- start

    def start(self, *, segment_bytes: int = make.SEGMENT) -> "SmallBroker":
        self.flush = None
        self._unpublished = []
        self.store = store = Store.open(
            self.disk,
            self.directory,
            entropy=SystemEntropy(),
            segment_bytes=segment_bytes,
            durability=self.durability,
            make_syncer=self._make_syncer,
            reserve_bytes=0,
        )
        chunks = store.snapshot_chunks()
        self.state = State([0] * QUEUES)
        if chunks is not None:
            self.state = msgspec.msgpack.decode(b"".join(chunks), type=State)
        self.redone = 0
        for batch in store.redo():
            self.state.now_ms = batch.broker_time_ms
            for record in batch.records:
                self.apply(record)
            self.redone += 1
        store.finish_recovery(
            next_half_index=self.state.next_half,
            undecided=self._undecided_rows(),
            topics=TOPICS,
            broker_time_ms=self.state.now_ms,
            queue_ends=[(TOPIC, queue, end) for queue, end in enumerate(self.state.ends)],
        )
        return self

    def _make_syncer(self, job: Job) -> HandFlush:
        self.flush = HandFlush(job)
        return self.flush

    def _undecided_rows(self) -> Iterator[UndecidedHalf]:
        for tx_id, (offset, size, first, half_index, queue, _) in self.state.undecided.items():
            yield UndecidedHalf(
                half_index, half_index, first, offset, size, TOPIC, queue, 0, 1, make.GROUP, tx_id, 1, 0, 0
            )

    # --- the mutation path

    def apply(self, record: Record) -> None:
        state = self.state
        if isinstance(record, MessageRecord):
            state.ends[record.message.queue_id] += 1
        elif isinstance(record, HalfRecord):
            place = (record.offset, record.size - 16, record.offset, record.half_index, record.message.queue_id)
            state.undecided[record.tx_id] = (*place, record.message.body)
            state.next_half = record.half_index + 1
        elif isinstance(record, CopiedHalf):
            known = state.undecided.get(record.tx_id)
            body = known[5] if known else b""
            state.undecided[record.tx_id] = (
                record.offset, record.message_bytes, record.first_offset, record.half_index, record.queue_id, body,
            )  # fmt: skip
            state.next_half = max(state.next_half, record.half_index + 1)
        elif isinstance(record, Committed):
            state.ends[record.refs[0].queue_id] += 1
            del state.undecided[record.tx_id]
        elif isinstance(record, RolledBack):
            del state.undecided[record.tx_id]
        elif isinstance(record, Trim):
            state.log_start = record.log_start
        elif isinstance(record, Base) and state == State([0] * QUEUES, now_ms=state.now_ms):
            now_ms = state.now_ms
            self.state = msgspec.msgpack.decode(record.payload, type=State)
            self.state.now_ms = now_ms

    def turn(self, actions: list[tuple[Any, ...]]) -> int:
        """One batch of ("send", queue, body), ("prepare", tx, queue, body), ("commit", tx), ("roll_back", tx), ("trim", to)."""
        store = self.store
        room = sum(len(action[-1]) if isinstance(action[-1], bytes) else 0 for action in actions)
        room += 400 * (len(actions) + len(self.state.undecided) + 1) + self._carried_bytes(actions)
        end = store.log.end
        self.state.now_ms += 10
        place = end + 64
        self._records = []
        if end % store.segment_bytes == 0 or end % store.segment_bytes + room > store.segment_bytes:
            start = -(-end // store.segment_bytes) * store.segment_bytes
            store.reserve_roll()
            payload = msgspec.msgpack.encode(self.state)
            self._add(make.base(end, payload)(start + 64))
            place = self._place()
        self._batch = Written(0, [], {})
        for action in actions:
            place = self._place() if self._records else place
            getattr(self, "_" + action[0])(place, *action[1:])
        records = self._records
        self._batch.end = make.end_of(records)
        # Noted before the write: a crash may happen during it, and the whole batch may be on the disk.
        self.written.append(self._batch)
        store.append(records, self.state.now_ms)
        self._unpublished.append(WrittenBatch(self._batch.end, self.state.now_ms, records))
        store.request_sync(store.log.end)
        return store.log.end

    def _carried_bytes(self, actions: list[tuple[Any, ...]]) -> int:
        return sum(len(known[5]) + 300 for known in self.state.undecided.values())

    def _place(self) -> int:
        return self._records[-1].offset + self._records[-1].size

    def _add(self, record: Record) -> None:
        self._records.append(record)
        self.apply(record)

    def _send(self, place: int, queue: int, body: bytes) -> None:
        queue_offset = self.state.ends[queue]
        properties = props.encode({"UNIQ_KEY": f"K{place}", "KEYS": f"k{place}", "TAGS": "a"})
        message = make.message(queue_id=queue, queue_offset=queue_offset, body=body, properties=properties)
        size = message_record_size("orders", len(body), len(properties))
        self._add(make.message_record(place, size, TOPIC, message, f"K{place}"))
        self._batch.visible.append((queue, queue_offset, place, body))

    def _prepare(self, place: int, tx_id: str, queue: int, body: bytes) -> None:
        properties = make.half_properties(tx_id)
        half_index = self.state.next_half
        message = make.message(queue_id=queue, queue_offset=half_index, body=body, properties=properties)
        size = message_record_size("orders", len(body), len(properties))
        self._add(make.half_record(place, size, TOPIC, message, half_index, make.GROUP, tx_id, 0, 1))
        self._batch.rows[half_index] = (ROW_UNDECIDED, 0)

    def _carry(self, place: int, tx_id: str) -> int:
        """Copy the half to ``place``; returns the place of the next record."""
        offset, size, first, half_index, queue, _ = self.state.undecided[tx_id]
        self._add(
            CopiedHalf(
                place, copied_half_size(size), offset, first, half_index, TOPIC, size, make.GROUP, tx_id, 0, 1,
                1, 0, 0, 0, queue, 0, 0, 0,
            )
        )  # fmt: skip
        return self._place()

    def _commit(self, place: int, tx_id: str) -> None:
        segment = self.store.segment_bytes
        if self.state.undecided[tx_id][0] // segment != place // segment:
            place = self._carry(place, tx_id)
        offset, size, first, half_index, queue, body = self.state.undecided[tx_id]
        queue_offset = self.state.ends[queue]
        ref = Ref(offset, size, first, half_index, TOPIC, queue, queue_offset, 0, 0, 0)
        encoded = committed_size(make.GROUP, tx_id, 1)
        self._add(Committed(place, encoded, make.GROUP, tx_id, DecidedBy.PRODUCER, (ref,)))
        self._batch.visible.append((queue, queue_offset, place, body))
        self._batch.rows[half_index] = (ROW_COMMITTED, place)
        self._batch.settled[tx_id] = place

    def _roll_back(self, place: int, tx_id: str) -> None:
        half_index = self.state.undecided[tx_id][3]
        size = rolled_back_size(make.GROUP, tx_id, 1)
        self._add(RolledBack(place, size, make.GROUP, tx_id, DecidedBy.CHECK, (half_index,)))
        self._batch.rows[half_index] = (ROW_ROLLED_BACK, place)
        self._batch.settled[tx_id] = place

    def _trim(self, place: int, log_start: int) -> None:
        for tx_id, known in list(self.state.undecided.items()):
            if known[0] < log_start:
                place = self._carry(place, tx_id)
        self._add(make.trim(log_start)(place))
        self._batch.trims_to = log_start

    # --- durable

    def sync(self) -> None:
        """Run the sync thread once, and publish."""
        if self.flush is not None:
            self.flush.run()
        self.publish()

    def publish(self, *, at_once: bool = True) -> None:
        position = self.store.durable_position
        due = [batch for batch in self._unpublished if batch.end <= position]
        if due:
            self.store.publish(due[-1].end, due[-1].broker_time_ms, due, at_once=at_once)
            self._unpublished = self._unpublished[len(due) :]

    def checkpoint(self) -> None:
        """At the high watermark, which must be the end of the log."""
        assert not self._unpublished
        encoded = msgspec.msgpack.encode(self.state)
        self.store.checkpoint(self.store.high_watermark, [encoded[:50], encoded[50:]])

    # --- compare

    def problems(self) -> list[str]:
        """Contradictions between readers of the store and ``written``, which must be cut to the content of the log."""
        store, found = self.store, []
        log_start = max([0, *(batch.trims_to for batch in self.written)])
        if self.state.log_start != log_start:
            found.append(f"log start {self.state.log_start}, it should be {log_start}")
        for queue in range(QUEUES):
            wanted = [one for batch in self.written for one in batch.visible if one[0] == queue]
            low, high = store.bounds(TOPIC, queue)
            if wanted and high != len(wanted):
                found.append(f"queue {queue} ends at {high}, it should at {len(wanted)}")
            kept = [one for one in wanted if one[2] >= log_start]
            if kept and low > kept[0][1]:
                found.append(f"queue {queue} begins at {low}, it should at {kept[0][1]}")
            entries = store.read_queue(TOPIC, queue, low, 100_000)
            if len(entries) != high - low:
                found.append(f"queue {queue} gives {len(entries)} entries of {high - low}")
            for entry, (_, queue_offset, visible_at, body) in zip(entries, wanted[low:], strict=False):
                if entry.visible_at != visible_at:
                    found.append(f"queue {queue} offset {queue_offset}: {entry.visible_at}, not {visible_at}")
                elif entry.offset >= store.log.start and store.log.read_message(entry.offset)[1].body != body:
                    found.append(f"queue {queue} offset {queue_offset}: another body")
                elif entry.offset < store.log.start <= visible_at:
                    found.append(f"queue {queue} offset {queue_offset}: its body is gone")
                elif entry.offset == visible_at and not store.find_by_key(TOPIC, "orders", f"k{entry.offset}", 1):
                    found.append(f"queue {queue} offset {queue_offset}: not found by its key")
        rows: dict[int, tuple[int, int]] = {}
        for batch in self.written:
            rows |= batch.rows
        for half_index, (state, position) in rows.items():
            row = store.transaction_row(half_index)
            if state != ROW_UNDECIDED and position < log_start:
                continue
            if row is None or (row.state, row.verdict_position) != (state, position):
                found.append(f"half {half_index} is {row}, it should be {state} at {position}")
        if store.transaction_row(len(rows)) is not None:
            found.append(f"half {len(rows)} was never prepared")
        return found + self._wrong_ids(log_start)

    def _wrong_ids(self, log_start: int) -> list[str]:
        index, found = self.store.settled_ids, []
        while (part := index.next_part) is not None:
            index.use_part(part, index.read_part(part))
        for tx_id, position in [one for batch in self.written for one in batch.settled.items()]:
            says = [one for one in index.find(make.GROUP, tx_id) if one >= log_start]
            if says != [position] * (position >= log_start):
                found.append(f"the verdict of {tx_id} is at {position}, the index says {says}")
        settled = [tx_id for tx_id in self.state.undecided if index.find(make.GROUP, tx_id)]
        return found + [f"the index has a verdict of {tx_id}, which is undecided" for tx_id in settled]
