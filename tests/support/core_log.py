"""The core with a log in a list: decides, applies, rolls segments and redoes, exactly as the sequencer and recovery do.

log = CoreLog()
log.do(half("T1"))          decides, applies, appends; returns the reply
log.later(6_000)            advances broker time
log.redone()                a second state, from the records alone
"""

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from halfmq import limits
from halfmq.broker.services.send_commands import batch_command, send_command
from halfmq.core.apply import apply_all
from halfmq.core.commands import (
    Command,
    EarlierVerdict,
    EndTransaction,
    FenceTransaction,
    PrepareBatch,
    RequestedVerdict,
    SendHalf,
    SendMessage,
    SettledRow,
    Tick,
    Winner,
)
from halfmq.core.decide import comes_before
from halfmq.core.decision import Decision, Done, Failed, Refused, Reply, SendCheck, Sent, Why
from halfmq.core.engine import Engine, next_deadline_ms
from halfmq.core.session import ConsumerData, Heartbeat
from halfmq.core.snapshot import encode_rows, load_rows, snapshot_rows
from halfmq.core.state import State, Subscription
from halfmq.core.steps import STEPS
from halfmq.model import properties
from halfmq.model.half_batch import HalfMessage, build_payload, delayed_entries_of
from halfmq.model.placement import SEGMENT_BYTES_MIN, next_segment_start
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import Base, Batch, BatchFacts, Committed, Decided, DecidedBy, Record, RolledBack
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.fields import SendFields
from tests.support.invariants import check
from tests.support.steps import result_of

START_MS = 1_000_000
PEER = b"\x0a\x00\x00\x07\x00\x00\x30\x39"


class WholeDisk:
    """Always has space, and everything that is copied from it is intact."""

    def why_not_copied(self, source: int, message_bytes: int) -> str | None:
        return None

    def why_not_shown(self, offset: int, messages: int) -> str | None:
        return None

    def reserve_roll(self) -> None:
        pass


class OpenEngine(Engine):
    """Keeps its batch open after a step, so that several steps form one batch, like several commands of one step."""

    def _closed(self) -> Batch | None:
        return None

    def close(self) -> Batch | None:
        return super()._closed()

    def roll(self, now_ms: int) -> None:
        self._roll(now_ms)

    def log(self, records: Sequence[Record], now_ms: int) -> None:
        """Append and apply these records, without a decision."""
        if not self.state.batch_open:
            self._open(self.state.log_end, now_ms)
        apply_all(self.state, records)
        self._records += records

    @property
    def records(self) -> list[Record]:
        """The records of the open batch."""
        return self._records


class CoreLog:
    def __init__(self, settings: BrokerSettings | None = None, *, batch_commands: int = 1) -> None:
        self.settings = settings or BrokerSettings(segment_bytes=SEGMENT_BYTES_MIN)
        self.engine = OpenEngine(State(self.settings), WholeDisk())
        self.batches: list[Batch] = []
        self.now_ms = START_MS
        self.effects: list[Any] = []
        #: Maximum number of commands in a batch.
        self.batch_commands = batch_commands
        self._in_batch = 0
        #: (group, id) -> its newest verdict in the log.
        self._verdicts: dict[tuple[str, str], EarlierVerdict] = {}
        self.roll()

    @property
    def state(self) -> State:
        return self.engine.state

    @state.setter
    def state(self, state: State) -> None:
        self.engine = OpenEngine(state, WholeDisk())

    # --- commands ------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Decision:
        """Decide, apply, append. Checks that the records lie in one segment.

        The id of a half or a fence is searched in the log first, as ``services.chosen_ids`` does.
        """
        if (type(command) is SendHalf and command.searched_to == 0) or type(command) is FenceTransaction:
            earlier = self._verdicts.get((command.group, command.tx_id))
            command = replace(command, searched_to=self.state.log_end, earlier=earlier)
        first = comes_before(self.state, command, self.now_ms)
        if (
            first is not None and type(command) is not Tick
        ):  # the engine does this again; a second ``TimePassed`` does no harm
            self.engine.note(first)
        before = len(self.engine.records)
        left = STEPS[type(command)].left if type(command) in STEPS else None
        left_before = left(self.state, command) if left is not None else 0
        step = self.engine.step([command], self.now_ms)
        if not step.replies:  # it needs the next segment, which no open batch reaches
            self.close()
            before = 0
            step = self.engine.step([command], self.now_ms)
        for problem in step.problems:
            raise getattr(problem, "error", AssertionError(problem))
        records = tuple(self.engine.records[before:])
        rolled = bool(records) and type(records[0]) is Base
        records = records[rolled:]
        for record in records:
            if type(record) is Committed or type(record) is RolledBack or type(record) is Decided:
                verdict = EarlierVerdict(type(record) is not RolledBack, record.offset)
                self._verdicts[record.group, record.tx_id] = verdict
        for record in records:
            end = record.offset + record.size
            assert end <= next_segment_start(records[0].offset, self.settings.segment_bytes)
        self.effects += step.effects
        self._in_batch += 1
        if self._in_batch >= self.batch_commands:
            self.close()
        (reply,) = step.replies
        assert not isinstance(reply, Failed)
        if isinstance(reply, Done) and reply.again:
            assert type(command) in STEPS, "core/steps.py: each command of several steps, and what makes it end"
            # A copy forward also searches, in steps that copy nothing.
            assert left is None or not records or left(self.state, command) < left_before
        return Decision(records, reply, tuple(step.effects))

    def do(self, command: Command | Refused) -> Reply:
        """The reply. A command that a front door refuses is returned as the refusal."""
        return command if isinstance(command, Refused) else self.decide(command).reply

    def session(self, event: Any) -> Any:
        return self.engine.note(event)

    def tick(self) -> list[Any]:
        """Tick until nothing more is due, and return the effects."""
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
        """Tick at each deadline until broker time ``until_ms``, and return the effects."""
        before = len(self.effects)
        while (deadline := next_deadline_ms(self.state)) is not None and deadline <= until_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.tick()
        self.now_ms = max(self.now_ms, until_ms)
        return self.effects[before:]

    # --- batches -------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        self.close()
        self.engine.roll(self.now_ms)
        self.close()

    def close(self) -> None:
        self._in_batch = 0
        batch = self.engine.close()
        if batch is not None:
            self.batches.append(batch)

    # --- state and log -------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records] + self.engine.records

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def remaining(self) -> list[Batch]:
        """The batches that are left after a trim."""
        return [batch for batch in self.batches if batch.offset >= self.state.log_start]

    def redone(self, batches: Sequence[Batch] | None = None) -> State:
        self.close()
        return redo(State(self.settings), self.remaining() if batches is None else batches)

    def snapshot(self) -> list[bytes]:
        self.close()
        return list(encode_rows(snapshot_rows(self.state)))

    def reloaded(self, chunks: Iterable[bytes]) -> State:
        """The state from a snapshot and the log after it."""
        self.close()
        state = load_rows(self.settings, chunks)
        return redo(state, [batch for batch in self.batches if batch.offset >= state.log_end])

    def begin_epoch(self, settings: BrokerSettings | None = None, unset: Sequence[str] = ()) -> None:
        """Start as a broker does, perhaps with other settings: redo, then the record of the start, and with it ``unset``."""
        self.close()
        self.settings = settings or self.settings
        self.restart()
        wall_ms, plausible_ms = 1_700_000_000_000, limits.CHECK_TIMES_MAX_MS
        epoch = self.state.epoch + 1
        batch = Engine(self.state, WholeDisk()).begin_epoch(
            epoch, wall_ms, self.now_ms, plausible_ms=plausible_ms, trust_clock=True, unset=unset
        )
        self.batches.append(batch)

    def restore(self) -> None:
        """What is in the log becomes a restored store."""
        self.close()
        self.restart()
        self.batches.append(Engine(self.state, WholeDisk()).mark_restored("0" * 32, self.state.log_end, self.now_ms))

    def restart(self) -> None:
        """Continue with the state from redo of the remaining log; session state is lost."""
        self.state = self.redone()
        check(self.state)


def redo(state: State, batches: Iterable[Batch]) -> State:
    engine = Engine(state, WholeDisk())
    for batch in batches:
        engine.replay(batch.offset, batch.broker_time_ms, batch.records)
    return state


# --- constructors of commands ----------------------------------------------------------------------------------


def changed(command: Any, **fields: Any) -> Any:
    """``command`` with other values in these fields."""
    return command._replace(**fields) if isinstance(command, tuple) else replace(command, **fields)


def raw(properties: bytes, *, connection: int = 1, group: str = "PG", topic: str = "orders") -> Any:
    """The command of a front door for a send with this property string."""
    fields = SendFields(
        group=group, topic=topic, queue_id=0, sys_flag=0, born_time_ms=77, flag=5, properties=properties.decode(),
    )  # fmt: skip
    return send_command(connection, PEER, fields, b"body")


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
    user: str = "",
    **pairs: str,
) -> SendMessage | SendHalf | Refused:
    """The command of a front door for a send with these properties."""
    if unique_id:
        pairs["UNIQ_KEY"] = unique_id
    fields = SendFields(
        group=group, topic=topic, default_queues=queues, queue_id=queue, sys_flag=sys_flag, born_time_ms=77, flag=5,
        properties=properties.encode(pairs).decode(errors="surrogateescape"), reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times,
    )  # fmt: skip
    return send_command(connection, PEER, fields, body, user)


def batch_of(
    *entries: tuple[bytes, bytes], connection: int = 1, topic: str = "orders", queue: int = 1, sys_flag: int = 0
) -> Any:
    """The command of a front door for a send of several messages: (body, property string) each."""
    fields = SendFields(group="PG", topic=topic, queue_id=queue, sys_flag=sys_flag, born_time_ms=7, flag=0)
    return result_of(batch_command(connection, PEER, fields, [(3, one, string) for one, string in entries]))


def half(unique_id: str = "T1", **options: Any) -> Any:
    options.setdefault("group", "PG")
    options.setdefault("PGROUP", options["group"])
    return message(unique_id, TRAN_MSG="true", **options)


def part(tx_id: str, index: int, count: int = 0, **options: Any) -> Any:
    """One of several halves; pass ``count`` with the last one."""
    if count:
        options["HMQ_TX_COUNT"] = str(count)
    return half(f"{tx_id}-{index}", HMQ_TX_ID=tx_id, HMQ_TX_INDEX=str(index), **options)


def half_batch(
    batch: QueryBatch | str = QueryBatch("q1", 0, "r1"),  # noqa: B008 - a constant
    attempt: str = "0.1",
    *,
    index: int = 0,
    count: int = 0,
    messages: int = 3,
    size: int = 300,
    topic: str = "orders",
    queue: int = 0,
    group: str = "PG",
    grace_ms: int = -1,
    delays: Sequence[int] = (),
    user: str = "",
) -> PrepareBatch:
    """A half batch of a query's batch, or of a transaction. Its payload is no real one, which decisions do not read, unless its messages
    have ``delays`` (as ``message_facts.delay_in``), one each instead of ``messages``.
    """
    name = batch if isinstance(batch, str) else batch.tx_id
    payload = f"{name} {attempt} {index}".encode().ljust(size, b".")
    if delays:
        payload, messages = build_payload(
            [
                HalfMessage(0, 0, b"." * (size // len(delays)), _delayed(f"{name} {attempt} {index} {number}", delay))
                for number, delay in enumerate(delays)
            ],
            topic=topic, queue_id=queue, born_time_ms=77, born_host=PEER[:8], store_host=PEER[:8], delayed=True,
        )  # fmt: skip
    query = None if isinstance(batch, str) else batch
    facts = BatchFacts(
        attempt, messages, crc32(payload), 0, False, delayed_entries_of(payload, messages) if delays else b"",
        *(() if query is None else (query.topic, query.stream)),
    )  # fmt: skip
    return PrepareBatch(1, group, name, facts, index, count, topic, 4, queue, grace_ms, payload, batch=query, user=user)


def _delayed(unique_id: str, delay: int) -> bytes:
    timer = {"TIMER_DELAY_MS": str(delay)} if delay > 0 else {"TIMER_DELIVER_MS": str(-delay)}
    return properties.encode({"UNIQ_KEY": unique_id, "TAGS": "TagA", **timer})


def winner(*half_batches: PrepareBatch) -> Winner:
    """The attempt that consists of these."""
    return Winner(
        half_batches[0].facts.attempt, len(half_batches), sum(one.facts.messages for one in half_batches),
        sum(one.facts.checksum for one in half_batches) & 0xFFFFFFFF,
    )  # fmt: skip


def end(
    tx_id: str,
    sent: Any,
    wanted: RequestedVerdict = RequestedVerdict.COMMIT,
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
