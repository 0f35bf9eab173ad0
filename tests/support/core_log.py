"""The core with a log that is a list: decides, applies, rolls segments and redoes, exactly as the pump and recovery do.

log = CoreLog()
log.do(half("T1"))          decides, applies, appends; the reply comes back
log.later(6_000)            broker time goes on
log.redone()                a second state, from the records alone
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from halfmq.core.apply import apply, close_batch, open_batch
from halfmq.core.base import epoch_started, make_base
from halfmq.core.commands import Command, EndTransaction, SendMessage, SettledRow, Tick, Wanted
from halfmq.core.decide import decide, next_deadline_ms, size_bound
from halfmq.core.decision import Decision, Done, Refused, Reply, SendCheck, Sent, Why
from halfmq.core.session import ConsumerData, Heartbeat, apply_session
from halfmq.core.snapshot import encode_rows, load_rows, snapshot_rows
from halfmq.core.state import State, Subscription, next_offset
from halfmq.core.transaction.invariants import check
from halfmq.model import properties
from halfmq.model.placement import SEGMENT_BYTES_MIN, fits, next_segment_start
from halfmq.model.records import DecidedBy, Record
from halfmq.model.settings import BrokerSettings

START_MS = 1_000_000
PEER = b"\x0a\x00\x00\x07\x00\x00\x30\x39"


class Batch(NamedTuple):
    offset: int
    broker_time_ms: int
    records: tuple[Record, ...]


class CoreLog:
    def __init__(self, settings: BrokerSettings | None = None, *, batch_commands: int = 1) -> None:
        self.settings = settings or BrokerSettings(segment_bytes=SEGMENT_BYTES_MIN)
        self.state = State(self.settings)
        self.batches: list[Batch] = []
        self.now_ms = START_MS
        self.effects: list[Any] = []
        #: A batch is closed after so many commands.
        self.batch_commands = batch_commands
        self._in_batch = 0
        self._records: list[Record] = []
        self._batch: tuple[int, int] = (0, 0)
        self._roll()
        self.close()

    # --- doing ---------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Decision:
        """Decide, apply, append. What was logged must fit the bound that was asked for before."""
        bound = size_bound(self.state, command)
        segment_bytes = self.settings.segment_bytes
        rolled = not fits(self.state.log_end, self.state.batch_open, bound, segment_bytes)
        if rolled:
            self._roll()
            assert fits(self.state.log_end, True, size_bound(self.state, command), segment_bytes), (command, bound)
        decision = decide(self.state, command, self.now_ms)
        if decision.records:
            logged = sum(record.size for record in decision.records)
            assert rolled or logged <= bound, f"{type(command).__name__}: {logged} bytes, said {bound}"
            if not self.state.batch_open:
                self._open(self.state.log_end)
            for record in decision.records:
                apply(self.state, record)
                assert self.state.log_end <= next_segment_start(record.offset, segment_bytes)
            self._records += decision.records
        self.effects += decision.effects
        self._in_batch += 1
        if self._in_batch >= self.batch_commands:
            self.close()
        return decision

    def do(self, command: Command) -> Reply:
        return self.decide(command).reply

    def session(self, event: Any) -> Any:
        return apply_session(self.state, event)

    def tick(self) -> list[Any]:
        """Tick until nothing more is due; the effects of it."""
        before = len(self.effects)
        for _ in range(1_000):
            if self.do(Tick()) == Done(again=False):
                break
        else:
            raise AssertionError("ticks never end")
        return self.effects[before:]

    def later(self, ms: int) -> None:
        self.now_ms += ms

    def checks_after(self, ms: int) -> list[SendCheck]:
        self.later(ms)
        return [effect for effect in self.tick() if isinstance(effect, SendCheck)]

    def run_to(self, until_ms: int) -> list[Any]:
        """Tick at each deadline until broker time ``until_ms``; the effects."""
        before = len(self.effects)
        while (deadline := next_deadline_ms(self.state)) is not None and deadline <= until_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.tick()
        self.now_ms = max(self.now_ms, until_ms)
        return self.effects[before:]

    # --- batches -------------------------------------------------------------------------------------------------

    def _open(self, offset: int) -> None:
        self._batch = (offset, self.now_ms)
        open_batch(self.state, offset, self.now_ms)

    def _roll(self) -> None:
        previous_end = self.state.log_end
        self.close()
        full = previous_end % self.settings.segment_bytes == 0
        self._open(previous_end if full else next_segment_start(previous_end, self.settings.segment_bytes))
        base = make_base(self.state, previous_end)
        apply(self.state, base)
        self._records.append(base)

    def roll(self) -> None:
        self._roll()
        self.close()

    def close(self) -> None:
        self._in_batch = 0
        if self.state.batch_open:
            close_batch(self.state)
            self.batches.append(Batch(*self._batch, tuple(self._records)))
            self._records.clear()

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records] + self._records

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def remaining(self) -> list[Batch]:
        """The batches that a trim leaves."""
        return [batch for batch in self.batches if batch.offset >= self.state.log_start]

    def redone(self, batches: Sequence[Batch] | None = None) -> State:
        self.close()
        return redo(State(self.settings), self.remaining() if batches is None else batches)

    def snapshot(self) -> list[bytes]:
        self.close()
        return list(encode_rows(snapshot_rows(self.state)))

    def reloaded(self, chunks: Iterable[bytes]) -> State:
        """From a snapshot, and the log behind it."""
        self.close()
        state = load_rows(self.settings, chunks)
        return redo(state, [batch for batch in self.batches if batch.offset >= state.log_end])

    def begin_epoch(self, settings: BrokerSettings | None = None) -> None:
        """Start as a broker does, maybe with other settings: redo, then the record of the start."""
        self.close()
        self.settings = settings or self.settings
        self.restart()
        if fits(self.state.log_end, False, 64, self.settings.segment_bytes):
            self._open(self.state.log_end)
        else:
            self._roll()
        wall_ms, immunity_ms = 1_700_000_000_000, self.settings.check_immunity_ms
        record = epoch_started(next_offset(self.state), self.state.epoch + 1, wall_ms, immunity_ms)
        apply(self.state, record)
        self._records.append(record)
        self.close()

    def restart(self) -> None:
        """Go on with what redo of the remaining log gives: session state is gone."""
        self.state = self.redone()
        check(self.state)


def redo(state: State, batches: Iterable[Batch]) -> State:
    for batch in batches:
        open_batch(state, batch.offset, batch.broker_time_ms)
        for record in batch.records:
            apply(state, record)
        close_batch(state)
    return state


# --- commands in the words of the domain ---------------------------------------------------------------------------


def message(
    unique_id: str = "",
    *,
    topic: str = "orders",
    body: bytes = b"body",
    queue: int = 0,
    group: str = "PG",
    connection: int = 1,
    reconsume_times: int = 0,
    max_reconsume_times: int = -1,
    sys_flag: int = 0,
    queues: int = 4,
    **pairs: str,
) -> SendMessage:
    if unique_id:
        pairs["UNIQ_KEY"] = unique_id
    return SendMessage(
        connection, group, topic, queues, queue, sys_flag, 77, 5, properties.encode(pairs), reconsume_times,
        max_reconsume_times, body, PEER,
    )  # fmt: skip


def half(unique_id: str = "T1", **options: Any) -> SendMessage:
    options.setdefault("group", "PG")
    options.setdefault("PGROUP", options["group"])
    return message(unique_id, TRAN_MSG="true", **options)


def part(tx_id: str, index: int, count: int = 0, **options: Any) -> SendMessage:
    """One of several halves; ``count`` on the last."""
    if count:
        options["HMQ_TX_COUNT"] = str(count)
    return half(f"{tx_id}-{index}", HMQ_TX_ID=tx_id, HMQ_TX_INDEX=str(index), **options)


def end(
    tx_id: str,
    sent: Any,
    wanted: Wanted = Wanted.COMMIT,
    *,
    group: str = "PG",
    from_check: bool = False,
    remark: str = "",
    half_index: int | None = None,
    log_offset: int | None = None,
    settled: SettledRow | None = None,
    connection: int = 1,
) -> EndTransaction:
    return EndTransaction(
        connection, group, tx_id,
        sent.queue_offset if half_index is None else half_index,
        sent.log_offset if log_offset is None else log_offset,
        wanted, DecidedBy.CHECK if from_check else DecidedBy.PRODUCER, remark, settled,
    )  # fmt: skip


def producer(connection: int, now_ms: int, *groups: str) -> Heartbeat:
    return Heartbeat(connection, f"client-{connection}", 435, "JAVA", groups or ("PG",), (), now_ms)


def consumer(
    connection: int, now_ms: int, group: str = "CG", topic: str = "orders", expression: str = "*", version: int = 1
) -> Heartbeat:
    data = ConsumerData(
        group, "CLUSTERING", "CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET",
        (Subscription(topic, expression, "TAG", version),),
    )  # fmt: skip
    return Heartbeat(connection, f"client-{connection}", 435, "JAVA", (), (data,), now_ms)


def sent(reply: Reply) -> Sent:
    assert isinstance(reply, Sent), reply
    return reply


def refused(reply: Reply, why: Why) -> Refused:
    assert isinstance(reply, Refused), reply
    assert reply.why is why, reply
    return reply
