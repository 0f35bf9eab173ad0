"""The engine owns all state of the broker and is the only way to change it.

    step(commands, now_ms) -> Step    decide each command and apply its records, so that the next command sees them
    replay(offset, time, records)     redo at a start, with the same ``apply``
    note(event)                       change session state, which is never logged: connections, the high watermark
    next_deadline_ms(state)           when the next ``Tick`` is due
    state                             for the shells read-only: mypy refuses what changes it (``tests/support/state_is_read_only.py``)

A step is one batch. The caller writes it before the next step, because a decision may copy a message of an earlier batch.
A step therefore ends early if its batch must end: before a command that needs the next segment, after
``limits.BATCH_BYTES_MAX``, and when its ``Pace`` says so.

The engine begins segments. If the records of a decision do not fit in the current segment, the step ends before its command, the next
one begins in the next segment, after its base record, and the command is decided again. The engine asks the disk two questions, through
``LogAccess``: can the next segment be written, and is a message that is to be copied intact.

A decision changes nothing by itself, so it can be made twice. Either its records are applied and its session events happen, or
neither. A decision that raises, or that fits in no segment, therefore fails only its own command. ``Step.problems`` reports such
cases; this module does not log.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.apply import apply, apply_all, close_batch, open_batch
from halfmq.core.base import make_base
from halfmq.core.clock_jumps import jump_of_start
from halfmq.core.commands import (
    Command,
    CopyForward,
    EndTransaction,
    SendHalf,
    SendMessage,
    Tick,
)
from halfmq.core.decide import DECIDE, comes_before, decide
from halfmq.core.decision import NOTHING, Decision, Done, Effect, Failed, Reply, Why, refuse
from halfmq.core.events import DelayedPostponed
from halfmq.core.queues.delay import next_due_ms
from halfmq.core.queues.offsets import next_log_ms
from halfmq.core.queues.ordering import reserve_for_holders
from halfmq.core.schema import epoch_started, restored, setting_set
from halfmq.core.session import DiskSpace, Event, MembersChanged, apply_session
from halfmq.core.snapshot import Snapshot, snapshot_rows
from halfmq.core.state import SettledNow, State, next_offset
from halfmq.core.transaction.check_schedule import next_check_ms
from halfmq.core.transaction.query_limits import next_query_ms
from halfmq.errors import InvariantViolated, StoreFull
from halfmq.model.placement import fits, next_segment_start, segment_start
from halfmq.model.records import (
    Base,
    Batch,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    EpochStarted,
    Record,
    Released,
    Restored,
    SettingSet,
)

#: Number of sends and verdicts between two calls of ``Pace.after_command``; they take about 0.5 ms.
PACE_COMMANDS: Final = 64

#: Commands of the hot path: quick in almost all cases, so their time is not estimated, and no event precedes their decisions.
QUICK: Final[frozenset[type]] = frozenset({SendHalf, SendMessage, EndTransaction})

#: Records that contain a copy, or need what other records contain. If a decision has any, its first record is one.
_EXAMINED: Final = frozenset({CopiedHalf, CopiedDelayed, CopiedHalfBatch, Decided})


class DecisionFailed(NamedTuple):
    """The decision of ``command`` raised ``error``. The reply was ``Failed``; nothing was changed."""

    command: Command
    error: Exception


class FitsNowhere(NamedTuple):
    """The records of ``command`` fit in no segment. The reply was ``Failed``; nothing was changed."""

    command: Command
    error: Exception


class NotCopied(NamedTuple):
    """A message that ``command`` must copy from ``source`` is damaged. The reply was ``Failed``."""

    command: Command
    source: int
    text: str


class DelayedNotShown(NamedTuple):
    """These delayed messages cannot be copied. They stay delayed until a start finds them intact. ``more``: there may be others."""

    #: (log offset, description of the damage) of each message.
    damaged: tuple[tuple[int, str], ...]
    more: bool


class NoNextSegment(NamedTuple):
    """The next segment could not begin: the disk is full."""

    text: str


Problem = DecisionFailed | FitsNowhere | NotCopied | DelayedNotShown | NoNextSegment


class Step(NamedTuple):
    """The outcome of ``Engine.step``. The caller writes ``batch``, and withholds replies and effects until the log is durable up to its
    end after the step.
    """

    #: Write it before the next step. None: the step logged nothing.
    batch: Batch | None
    #: One for each decided command, in order. The commands beyond them were not decided: pass them to the next step.
    replies: list[Reply | Failed]
    effects: list[Effect]
    problems: list[Problem]
    #: What the batch settled; None: nothing, or ``Engine.report_settled`` was not called.
    settled: SettledNow | None = None


def next_deadline_ms(view: State) -> int | None:
    """Broker time of the next ``Tick``, ms. 0 or a past time: at once. None: no tick until something else happens."""
    soonest: int | None = None
    for at_ms in (next_check_ms(view), next_due_ms(view), next_log_ms(view), next_query_ms(view)):
        if at_ms is not None and (soonest is None or at_ms < soonest):
            soonest = at_ms
    return soonest


class LogAccess(Protocol):
    """What the engine needs from the writer of its batches."""

    def why_not_copied(self, source: int, message_bytes: int) -> str | None:
        """Describes the damage of the stored message in the record at ``source``, with advice; None if it is intact."""
        ...

    def why_not_shown(self, offset: int, messages: int) -> str | None:
        """Describes the damage of the half batch record at ``offset``, with advice; None if its messages can enter their queue."""
        ...

    def reserve_roll(self) -> None:
        """Make sure that the next segment can be written.

        Raises:
            StoreFull: there is not enough space on the disk.
        """
        ...


class Pace(Protocol):
    """Limits the time of a step. It is called for each command that may take long, and for the others at intervals."""

    def before(self) -> None:
        """Called before a command that may take long."""
        ...

    def after_command(self, kind: type[Command]) -> bool:
        """Called after a command of type ``kind``, or after ``PACE_COMMANDS`` quick ones, the last of this type. True ends the step."""
        ...


class NoPace:
    """No limit: a step ends when all commands are decided."""

    def before(self) -> None:
        pass

    def after_command(self, kind: type[Command]) -> bool:
        return False


_Damaged = list[tuple[CopiedHalf | CopiedDelayed | CopiedHalfBatch | Decided, str]]


class Engine:
    """One for each log. Not thread-safe."""

    def __init__(self, state: State, log_access: LogAccess) -> None:
        """``state``: a new one, or one loaded from a snapshot. The engine owns it from now on."""
        self.state = state
        self._log_access = log_access
        self._segment_bytes = state.settings.segment_bytes
        #: Of the open batch, and of the running step.
        self._records: list[Record] = []
        self._problems: list[Problem] = []
        self._batch_start = 0
        #: A command that needs the next segment, and the bytes of its records: the next step begins with a roll.
        self._needs_roll: tuple[Command, int] | None = None
        #: No roll for a command of this type before this log offset: the last one was in vain.
        self._no_roll_before: dict[type[Command], int] = {}

    # --- calls -----------------------------------------------------------------------------------------------

    def step(self, commands: Iterable[Command], now_ms: int, pace: Pace | None = None) -> Step:
        """Decide commands in order, at least one. ``now_ms``: broker time, which never decreases.

        Raises:
            InvariantViolated: state and log may differ. Stop; the next start redoes the log.
        """
        state = self.state
        session = state.session
        pace = pace or _NO_PACE
        replies: list[Reply | Failed] = []
        effects: list[Effect] = []
        problems = self._problems = []
        records = self._records
        decide_by = DECIDE
        left = iter(commands)
        if self._needs_roll is not None:
            left = self._roll_first(self._needs_roll, left, replies, now_ms)
        end_max = self._end_max()
        kind: type[Command] = SendMessage
        more_to_do = True
        is_full = False
        while more_to_do:
            wanted = len(replies) + PACE_COMMANDS
            for command in islice(left, PACE_COMMANDS):
                kind = type(command)
                is_quick = kind in QUICK
                try:  # inlined ``decide``: a function call for each command costs 1 %
                    if not is_quick:
                        self._begin(command, now_ms, pace)
                    decided, reply, more, events, begins_segment = decide_by[kind](state, command, now_ms)
                except Exception as error:  # noqa: BLE001 - judged in ``_broken``
                    decided, reply, more, events, begins_segment = self._broken(command, error)
                if decided:
                    last = decided[-1]
                    if begins_segment or last.offset + last.size > end_max or type(decided[0]) in _EXAMINED:
                        decision = Decision(decided, reply, more, events, begins_segment)
                        placed = self._placed(command, decision, now_ms, pace)
                        if placed is None:
                            more_to_do = False
                            break
                        decided, reply, more, events, _ = placed
                        end_max = self._end_max()
                        is_full = bool(decided) and decided[-1].offset + decided[-1].size > end_max
                if decided:
                    if not state.batch_open:
                        self._open(state.log_end, now_ms)
                    if not is_quick or kind is SendMessage:  # only ``apply`` of plain messages asks for it
                        session.sender = getattr(command, "connection", 0)
                    apply_all(state, decided)
                    records += decided
                if events:
                    for event in events:
                        apply_session(state, event)
                if more:
                    effects += more
                replies.append(reply)
                if (not is_quick and pace.after_command(kind)) or is_full:
                    more_to_do = False
                    break
            more_to_do = more_to_do and len(replies) == wanted and not pace.after_command(kind)
        settled = state.settled_now
        if settled is not None and (settled.commits or settled.others):
            state.settled_now = SettledNow()
            return Step(self._closed(), replies, effects, problems, settled)
        return Step(self._closed(), replies, effects, problems)

    def report_settled(self) -> None:
        """From now on, steps say what they settled."""
        self.state.settled_now = SettledNow()

    def replay(self, offset: int, broker_time_ms: int, records: Iterable[Record]) -> None:
        """Apply a batch that is already in the log."""
        open_batch(self.state, offset, broker_time_ms)
        apply_all(self.state, records)
        close_batch(self.state)

    def note(self, event: Event) -> tuple[MembersChanged, ...]:
        """Apply a session event. Returns the members to notify. Read ``next_deadline_ms`` afterwards."""
        return apply_session(self.state, event)

    def capture(self) -> Snapshot:
        """Durable state between two steps. Pass it to ``snapshot.encode_rows``, on any thread.

        Raises:
            InvariantViolated: a batch is open, or no base was applied yet.
        """
        return snapshot_rows(self.state)

    def begin_epoch(
        self,
        epoch: int,
        wall_ms: int,
        now_ms: int,
        *,
        plausible_ms: int,
        trust_clock: bool,
        unset: Sequence[str] = (),
    ) -> Batch:
        """The first batch of a run: a record of its start, after a base record if a segment begins. Write it before anything else.

        ``plausible_ms``: how far ``now_ms`` may be ahead of the log; see ``core.clock_jumps``. ``unset``: recorded settings for which the
        configuration wins; they are forgotten in the same batch, so that no decision of this run has them.

        Raises:
            StoreFull: the disk is full. Nothing was changed.
        """
        state = self.state
        reserve_for_holders(state, now_ms)
        jump_ms = jump_of_start(state, now_ms, plausible_ms, trusted=trust_clock)
        started = epoch_started(0, epoch, wall_ms, state.settings.check_immunity_ms, jump_ms)
        return self._alone((started, *[setting_set(0, name, None) for name in unset]), now_ms)

    def mark_restored(self, store: str, position: int, now_ms: int) -> Batch:
        """The first batch of a restored store, after the log of store ``store`` up to ``position`` was replayed. It may begin a segment.

        Raises:
            StoreFull: as ``LogAccess.reserve_roll``.
        """
        return self._alone((restored(0, store, position),), now_ms)

    def _alone(self, records: Sequence[EpochStarted | Restored | SettingSet], now_ms: int) -> Batch:
        """A batch of these records, whose offsets are not known yet; after a base record if a segment begins."""
        state = self.state
        size = sum([record.size for record in records])
        if not state.loaded or not fits(state.log_end, False, size, self._segment_bytes):
            self._roll(now_ms)
        else:
            self._open(state.log_end, now_ms)
        for record in records:
            placed = replace(record, offset=next_offset(state))
            apply(state, placed)
            self._records.append(placed)
        batch = self._closed()
        assert batch is not None
        return batch

    # --- one command -----------------------------------------------------------------------------------------

    def _begin(self, command: Command, now_ms: int, pace: Pace) -> None:
        """What precedes the decision on a command that may take long."""
        first = comes_before(self.state, command, now_ms)
        if first is not None:
            apply_session(self.state, first)
        pace.before()

    def _placed(self, command: Command, decision: Decision, now_ms: int, pace: Pace) -> Decision | None:
        """``decision``, if what it copies is intact and its records fit in the segment; else the decision after a roll, or a failure.

        None: the step ends before this command, since the batch is open. The next step begins with a roll.
        """
        state = self.state
        decision = self._copied(command, decision, now_ms)
        while decision.records:
            begun = len(self._records) == 1 and type(self._records[0]) is Base
            if self._fit(decision.records) and (begun or not decision.begins_segment):
                break
            size = _size(decision.records)
            if begun:
                half = self._segment_bytes // 2
                self._no_roll_before[type(command)] = segment_start(state.log_end, self._segment_bytes) + half
                return self._fits_nowhere(command, size)
            if state.batch_open:
                self._needs_roll = command, size
                return None
            failure = self._roll_for(command, size, now_ms)
            if failure is not None:
                return failure
            pace.before()  # the time of a roll does not count for the command
            decision = self._copied(command, self._decided(command, now_ms), now_ms)
        return decision

    def _decided(self, command: Command, now_ms: int) -> Decision:
        try:
            return decide(self.state, command, now_ms)
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            return self._broken(command, error)

    def _broken(self, command: Command, error: Exception) -> Decision:
        """The replacement for a decision that raised. Nothing was changed, so the next command can be decided."""
        if isinstance(error, InvariantViolated):
            raise error
        self._problems.append(DecisionFailed(command, error))
        return Decision(NOTHING, Failed(f"{type(error).__name__}: {error}"))

    def _fits_nowhere(self, command: Command, size: int) -> Decision:
        end = self.state.log_end
        text = f"{type(command).__name__} came to {size} bytes of records, which do not fit in the log at {end}"
        self._problems.append(FitsNowhere(command, InvariantViolated(text)))
        return Decision(NOTHING, Failed(text))

    # --- what a decision wants copied ------------------------------------------------------------------------

    def _copied(self, command: Command, decision: Decision, now_ms: int) -> Decision:
        """``decision``, if every message that it copies is intact; else its replacement. Call it before any record is applied.

        A tick continues without the delayed messages that cannot be copied: they stay delayed until a start finds them intact.
        """
        if not decision.records or type(decision.records[0]) not in _EXAMINED:  # copies come first, if there are any
            return decision
        try:
            damaged = self._damaged(decision.records)
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            return self._broken(command, error)
        if not damaged:
            return decision
        if type(command) is Tick:
            return self._without(damaged, decision.records[-1], now_ms)
        record, problem = damaged[0]
        if type(command) is CopyForward:
            text = f"an alive message in the segments to remove cannot be copied: {problem}"
        else:
            what = (
                "it" if isinstance(record, CopiedDelayed) else f"transaction {record.tx_id!r} of group {record.group!r}"
            )
            text = f"{what} stays undecided: {problem}; or roll the transaction back, which needs no copy"
        self._problems.append(NotCopied(command, _source(record), text))
        return Decision(NOTHING, Failed(text))

    def _without(self, damaged: _Damaged, released: Record, now_ms: int) -> Decision:
        """The decision of a tick without the ``damaged`` messages of the copies that ``released`` names. A tick copies nothing else.

        It only postpones those messages. Others may be damaged as well; the next tick, which is due at once, checks them.
        """
        assert isinstance(released, Released)
        postponed = [record for record, _ in damaged if isinstance(record, CopiedDelayed)]
        self.note(DelayedPostponed(tuple([record.first_offset for record in postponed])))
        tick = Tick(len(released.refs) - len(damaged))
        decision = self._decided(tick, now_ms)
        more = isinstance(decision.reply, Done) and decision.reply.again
        found = tuple([(_source(record), problem) for record, problem in damaged])
        self._problems.append(DelayedNotShown(found, more))
        return decision

    def _damaged(self, records: Sequence[Record]) -> _Damaged:
        """(record, description of the damage) of each record whose source cannot be copied, or whose messages cannot be shown."""
        found: _Damaged = []
        log = self._log_access
        # What this step wrote is not in the log yet, and was verified when it came; the same holds for copies of this decision.
        written_until = self._batch_start if self.state.batch_open else self.state.log_end
        for record in records:
            if isinstance(record, CopiedHalf | CopiedDelayed | CopiedHalfBatch):
                problem = log.why_not_copied(record.source, record.message_bytes)
            elif not isinstance(record, Decided):
                continue
            else:
                stored = [ref for ref in record.refs if ref.offset < written_until]
                problems = [log.why_not_shown(ref.offset, ref.messages) for ref in stored]
                problem = next((problem for problem in problems if problem is not None), None)
            if problem is not None:
                found.append((record, problem))
        return found

    # --- batches and segments --------------------------------------------------------------------------------

    def _fit(self, records: Sequence[Record]) -> bool:
        """Whether the records of a decision fit in the current segment."""
        state = self.state
        return fits(state.log_end, state.batch_open, _size(records), self._segment_bytes)

    def _end_max(self) -> int:
        """Log offset up to which records fit in both the segment and the batch."""
        end = self.state.log_end
        if end % self._segment_bytes == 0:
            return end
        batch_start = self._batch_start if self.state.batch_open else end
        return min(next_segment_start(end, self._segment_bytes), batch_start + limits.BATCH_BYTES_MAX)

    def _roll_first(
        self, needed: tuple[Command, int], left: Iterator[Command], replies: list[Reply | Failed], now_ms: int
    ) -> Iterator[Command]:
        """Roll for the command that ended the previous step, and return the commands to decide. Without a roll its reply is the failure."""
        self._needs_roll = None
        command, size = needed
        failure = self._roll_for(command, size, now_ms)
        first = next(left)
        if failure is not None and first is command:
            replies.append(failure.reply)
            return left
        return chain((first,), left)

    def _roll_for(self, command: Command, size: int, now_ms: int) -> Decision | None:
        """Roll so that ``command`` can be decided again in the next segment. Returns a failure if that is impossible, or in vain.

        A roll in vain happens at most once for each half segment of log, so that failing commands cannot fill the disk.
        """
        state = self.state
        if size >= self._segment_bytes or state.log_end < self._no_roll_before.get(type(command), 0):
            return self._fits_nowhere(command, size)
        try:
            self._roll(now_ms)
        except StoreFull as error:
            if not state.session.disk_full:
                self.note(DiskSpace(True))
                self._problems.append(NoNextSegment(str(error)))
            return refuse(Why.STORE_FULL, f"{error}; verdicts are accepted while the current segment has space")
        return None

    def _roll(self, now_ms: int) -> None:
        """Begin the next segment with its base record, which stays in the open batch.

        Raises:
            StoreFull: there is no space for another segment. Nothing was changed.
        """
        self._log_access.reserve_roll()
        previous_end = self.state.log_end
        full = previous_end % self._segment_bytes == 0
        self._open(previous_end if full else next_segment_start(previous_end, self._segment_bytes), now_ms)
        base = make_base(self.state, previous_end)
        apply(self.state, base)
        self._records.append(base)

    def _open(self, offset: int, now_ms: int) -> None:
        self._batch_start = offset
        open_batch(self.state, offset, now_ms)

    def _closed(self) -> Batch | None:
        """Close the open batch and return it; None if there is none."""
        state = self.state
        if not state.batch_open:
            return None
        close_batch(state)
        batch = Batch(self._batch_start, state.log_end, state.batch_time_ms, tuple(self._records))
        self._records.clear()
        return batch


def _source(record: CopiedHalf | CopiedDelayed | CopiedHalfBatch | Decided) -> int:
    """Log offset of the bytes that ``record`` copies; of a verdict, its first half batch."""
    return record.refs[0].offset if isinstance(record, Decided) else record.source


def _size(records: Sequence[Record]) -> int:
    first, last = records[0], records[-1]
    return last.offset + last.size - first.offset


_NO_PACE: Final = NoPace()
