"""The engine on a ``Store``, without loop, sockets and threads: plain messages, transactions of one half, trims.

For tests of the store as a whole. It starts, decides, appends and redoes as the broker does, and notes what its records make visible, so
that a test can compare what readers see after any crash.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from halfmq.broker.recovery import recover
from halfmq.core.commands import Command, CopyForward, EndTransaction, RequestedVerdict, TrimLog
from halfmq.core.decision import Done
from halfmq.core.engine import Engine, NoNextSegment
from halfmq.core.snapshot import encode_rows
from halfmq.core.state import State, Undecided
from halfmq.errors import StoreFull
from halfmq.model import properties as props
from halfmq.model.records import Batch, Committed, HalfRecord, MessageRecord, RolledBack, Trim
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import Disk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.group_flush import Job
from halfmq.store.layout import ROW_COMMITTED, ROW_ROLLED_BACK, ROW_UNDECIDED
from halfmq.store.store import Durability, Store
from tests.support import core_log
from tests.support import log_records as make
from tests.support.hand_flush import HandFlush
from tests.support.steps import result_of

#: The only topic, by its first message.
TOPIC = 1
QUEUES = 3


class Written(msgspec.Struct):
    """What one batch says."""

    end: int
    #: (queue, queue offset, visible at, body)
    visible: list[tuple[int, int, int, bytes]]
    #: half index -> (row state, position)
    rows: dict[int, tuple[int, int]]
    #: tx id -> position of its verdict
    settled: dict[str, int]
    trims_to: int = 0


class SmallBroker:
    """``start`` opens the store; ``turn`` appends; ``sync`` makes it durable and publishes it."""

    def __init__(self, disk: Disk, directory: Path, durability: Durability = Durability.FSYNC) -> None:
        self.disk = disk
        self.directory = directory
        self.durability = durability
        self.store: Store
        self.engine: Engine
        self.flush: HandFlush | None = None
        self.redone = 0
        self.now_ms = 1_000
        self.written: list[Written] = []
        self._unpublished: list[Batch] = []
        #: half index -> body
        self._bodies: dict[int, bytes] = {}
        self._sent = 0

    # --- start

    def start(self, *, segment_bytes: int = make.SEGMENT) -> "SmallBroker":
        self.flush = None
        self._unpublished = []
        self.store = Store.open(
            self.disk,
            self.directory,
            entropy=SystemEntropy(),
            segment_bytes=segment_bytes,
            durability=self.durability,
            make_syncer=self._make_syncer,
            reserve_bytes=0,
        )
        settings = BrokerSettings(
            segment_bytes=self.store.segment_bytes, default_topic_queues=QUEUES, dedup_window_ms=0
        )
        self.engine, self.redone = recover(self.store, settings)
        self.now_ms = max(self.now_ms, self.state.batch_time_ms)
        return self

    def _make_syncer(self, job: Job) -> HandFlush:
        self.flush = HandFlush(job)
        return self.flush

    @property
    def state(self) -> State:
        return self.engine.state

    @property
    def undecided(self) -> dict[str, Undecided]:
        group = self.state.producer_groups.get(make.GROUP)
        return group.undecided if group is not None else {}

    # --- write

    def turn(self, actions: list[tuple[Any, ...]]) -> int:
        """("send", queue, body), ("prepare", tx, queue, body), ("commit", tx), ("roll_back", tx), each in one step with the others as far
        as they fit a batch; ("trim", to) alone. Returns the end of the log.
        """
        self.now_ms += 10
        if actions[0][0] == "trim":
            while self._step([CopyForward(actions[0][1], 64)]) == [Done(again=True)]:
                pass
            assert self._step([TrimLog(actions[0][1])]) == [Done()]
        else:
            self._step([getattr(self, "_" + name)(*arguments) for name, *arguments in actions])
        self.store.request_sync(self.store.log.end)
        return self.store.log.end

    def _step(self, commands: list[Command]) -> list[Any]:
        if not self.state.loaded:
            self._write(
                self.engine.begin_epoch(self.store.epoch, self.now_ms, self.now_ms, plausible_ms=0, trust_clock=True)
            )
        replies: list[Any] = []
        while len(replies) < len(commands):
            step = self.engine.step(commands[len(replies) :], self.now_ms)
            for problem in step.problems:
                raise StoreFull(problem.text) if isinstance(problem, NoNextSegment) else AssertionError(problem)
            if step.batch is not None:
                self._write(step.batch)
            replies += step.replies
        return replies

    def _write(self, batch: Batch) -> None:
        # Noted before the write: a crash may happen during it, and the whole batch may be on the disk.
        self.written.append(self._note(batch))
        self.store.append(batch.records, batch.broker_time_ms)
        self._unpublished.append(batch)

    def _send(self, queue: int, body: bytes) -> Any:
        self._sent += 1
        name = f"{self.store.epoch}-{self._sent}"
        return core_log.message(f"K{name}", KEYS=f"k{name}", queue=queue, body=body, queues=QUEUES)

    def _prepare(self, tx_id: str, queue: int, body: bytes) -> Any:
        half = core_log.half(tx_id, queue=queue, body=body, group=make.GROUP, queues=QUEUES)
        return replace(half, searched_to=self.state.log_end)

    def _commit(self, tx_id: str, verdict: RequestedVerdict = RequestedVerdict.COMMIT) -> EndTransaction:
        first = self.undecided[tx_id].halves[0]
        return core_log.end(
            tx_id, None, verdict, group=make.GROUP, half_index=first.half_index, log_offset=first.first_offset
        )

    def _roll_back(self, tx_id: str) -> EndTransaction:
        return self._commit(tx_id, RequestedVerdict.ROLLBACK)

    def _note(self, batch: Batch) -> Written:
        written = Written(batch.end, [], {}, {})
        for record in batch.records:
            if isinstance(record, MessageRecord):
                message = record.message
                written.visible.append((message.queue_id, record.queue_offset, record.offset, message.body))
            elif isinstance(record, HalfRecord):
                self._bodies[record.half_index] = record.message.body
                written.rows[record.half_index] = (ROW_UNDECIDED, 0)
            elif isinstance(record, Committed):
                for ref in record.refs:
                    body = self._bodies[ref.half_index]
                    written.visible.append((ref.queue_id, ref.queue_offset, record.offset, body))
                    written.rows[ref.half_index] = (ROW_COMMITTED, record.offset)
                written.settled[record.tx_id] = record.offset
            elif isinstance(record, RolledBack):
                written.rows |= dict.fromkeys(record.half_indexes, (ROW_ROLLED_BACK, record.offset))
                written.settled[record.tx_id] = record.offset
            elif isinstance(record, Trim):
                written.trims_to = record.log_start
        return written

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
        self.store.checkpoint(self.store.high_watermark, list(encode_rows(self.engine.capture())))

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
                place = f"queue {queue} offset {queue_offset}"
                if entry.visible_at != visible_at:
                    found.append(f"{place}: {entry.visible_at}, not {visible_at}")
                elif entry.offset < store.log.start <= visible_at:
                    found.append(f"{place}: its body is gone")
                elif entry.offset >= store.log.start:
                    message = store.log.read_message(entry.offset)
                    key = props.to_dict(message.properties).get("KEYS")
                    if message.body != body:
                        found.append(f"{place}: another body")
                    elif key is not None and not result_of(store.find_by_key(TOPIC, "orders", key, 1)):
                        found.append(f"{place}: not found by its key")
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
        settled = [tx_id for tx_id in self.undecided if index.find(make.GROUP, tx_id)]
        return found + [f"the index has a verdict of {tx_id}, which is undecided" for tx_id in settled]
