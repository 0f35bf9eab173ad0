"""The engine owns all state of the broker and is the only way to change it.

    step(commands, now_ms) -> Step    decide each command and apply its records, so that the next command sees them
    replay(offset, time, records)     redo at a start, with the same ``apply``
    note(event)                       change session state, which is never logged: connections, the high watermark
    next_deadline_ms()                when the next ``Tick`` is due
    view                              read-only access

A step is one batch. The caller writes it before the next step, because a decision may copy a message of an earlier batch.
A step therefore ends early if its batch must end: before a command that needs the next segment, after
``limits.BATCH_BYTES_MAX``, and when its ``Pace`` says so. ``Step.replies`` has one reply for each command that was decided;
pass the remaining commands to the next step.

The engine begins segments. If the records of a command may not fit in the current segment, the step begins in the next one,
after its base record. The engine asks the disk two questions, through ``LogAccess``: can the next segment be written, and is a
message that is to be copied intact.

A decision changes nothing by itself. Either its records are applied and its session events happen, or neither. A decision
that raises therefore fails only its own command. A wrong bound does no harm either: the engine detects records that do not
fit before it applies them, and decides the command again in the next segment. ``Step.problems`` reports such cases; this
module does not log.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.apply import apply, apply_all, close_batch, open_batch
from halfmq.core.base import make_base
from halfmq.core.base_space import why_no_base
from halfmq.core.clock_jumps import jump_of_start
from halfmq.core.commands import (
    Command,
    CopyForward,
    EndTransaction,
    ResolveTransaction,
    SendBatch,
    SendHalf,
    SendMessage,
    Tick,
)
from halfmq.core.decide import DECIDE, comes_before, decide, next_deadline_ms, size_bound
from halfmq.core.decision import Done, Effect, Refused, Reply, Why
from halfmq.core.events import DecisionEvent, DelayedPostponed
from halfmq.core.queues.ordering import reserve_for_holders
from halfmq.core.schema import epoch_started
from halfmq.core.session import DiskSpace, Event, MembersChanged, apply_session
from halfmq.core.snapshot import Snapshot, snapshot_rows
from halfmq.core.state import State, next_offset
from halfmq.core.view import View
from halfmq.errors import InvariantViolated, StoreFull
from halfmq.model.placement import fits, next_segment_start, segment_start
from halfmq.model.records import CopiedDelayed, CopiedHalf, CopiedHalfBatch, Decided, Record, Released

#: Number of sends and verdicts between two calls of ``Pace.after_command``; they take about 0.5 ms.
PACE_COMMANDS: Final = 64

#: Commands of the hot path. They are small in almost all cases, so neither their bound nor their time is estimated: far from the end
#: of a segment (``_small_fit_until``) the engine does not check the size of their records. Their size is limited elsewhere: the
#: largest frame limits a send, and ``core.transaction.admission`` limits a transaction. The largest case, a commit that copies
#: 64 MiB of half messages, is therefore in this set; ``_SMALL_BYTES_MAX`` leaves space for it.
SMALL: Final[frozenset[type]] = frozenset({SendHalf, SendMessage, EndTransaction})
_SMALL_BYTES_MAX: Final = limits.TRANSACTION_BYTES_MAX + 2 * limits.FRAME_BYTES_MAX

#: Records that contain a copy, or need what other records contain. If a decision has any, its first record is one.
_EXAMINED: Final = frozenset({CopiedHalf, CopiedDelayed, CopiedHalfBatch, Decided})

_NO_BASE_AT_START: Final = (
    "nothing is lost, and nothing more can be written: read it with `halfmq store dump`, and begin a new store with larger "
    "--segment-bytes"
)


class Failed(NamedTuple):
    """The decision raised, or a message that it must copy is damaged. Nothing was changed. The broker logs the details."""

    text: str


class DecisionFailed(NamedTuple):
    """The decision of ``command`` raised ``error``. The reply was ``Failed``; nothing was changed."""

    command: Command
    error: Exception


class BoundWrong(NamedTuple):
    """``size_bound`` of ``command`` was too small, or raised. ``failed``: the reply was ``Failed``."""

    command: Command
    error: Exception
    failed: bool


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
    """The next segment could not begin: the disk is full (``disk_full``), or the base does not fit in a segment."""

    text: str
    disk_full: bool


Problem = DecisionFailed | BoundWrong | NotCopied | DelayedNotShown | NoNextSegment


class Batch(NamedTuple):
    """The unit of writing. ``end``: log offset after its last byte, padding included."""

    offset: int
    end: int
    broker_time_ms: int
    records: tuple[Record, ...]


class Step(NamedTuple):
    """The outcome of ``Engine.step``. The caller writes ``batch``, and withholds replies and effects until the log is durable up to its
    end after the step. Commands beyond the number of ``replies`` were not decided: pass them to the next step.
    """

    #: Write it before the next step. None: the step logged nothing.
    batch: Batch | None
    #: One reply for each decided command, in order.
    replies: list[Reply | Failed]
    effects: list[Effect]
    problems: list[Problem]


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
        """Called after a command of type ``kind``, or after ``PACE_COMMANDS`` small ones, the last of this type. True ends the step."""
        ...


class NoPace:
    """No limit: a step ends when all commands are decided."""

    def before(self) -> None:
        pass

    def after_command(self, kind: type[Command]) -> bool:
        return False


class _Parts(NamedTuple):
    """The parts of a ``Decision``, or their replacement if it failed."""

    records: tuple[Record, ...]
    reply: Reply | Failed
    effects: tuple[Effect, ...] = ()
    events: tuple[DecisionEvent, ...] = ()


class _TooLarge(NamedTuple):
    """A command whose records exceeded its bound, and their size in bytes."""

    command: Command
    size: int


_Damaged = list[tuple[CopiedHalf | CopiedDelayed | CopiedHalfBatch | Decided, str]]


class Engine:
    """One for each log. Not thread-safe."""

    def __init__(self, state: State, log_access: LogAccess) -> None:
        """``state``: a new one, or one loaded from a snapshot. The engine owns it from now on."""
        self.state = state
        #: Read-only.
        self.view: View = state
        self._log_access = log_access
        self._segment_bytes = state.settings.segment_bytes
        #: Of the open batch, and of the running step.
        self._records: list[Record] = []
        self._problems: list[Problem] = []
        self._batch_start = 0
        #: The command that the next step begins with, after a roll.
        self._too_large: _TooLarge | None = None
        #: No roll before this log offset because of records that exceeded their bound.
        self._no_roll_before = 0

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
        small_fit_until = self._small_fit_until()
        reply: Reply | Failed
        left = iter(commands)
        kind: type[Command] = SendMessage
        more_to_do = True
        while more_to_do:
            wanted = len(replies) + PACE_COMMANDS
            for command in islice(left, PACE_COMMANDS):
                kind = type(command)
                small = kind in SMALL
                if small and state.log_end < small_fit_until:
                    try:  # inlined ``decide``: a function call for each command costs 1 %
                        decided, reply, more, events = decide_by[kind](state, command, now_ms)
                    except Exception as error:  # noqa: BLE001 - judged in ``_broken``
                        decided, reply, more, events = self._broken(command, error)
                    if decided and type(decided[0]) in _EXAMINED:
                        decided, reply, more, events = self._copied(
                            command, _Parts(decided, reply, more, events), now_ms
                        )
                else:
                    parts = self._decide_near_end(command, now_ms, pace)
                    if parts is None:
                        more_to_do = False
                        break
                    decided, reply, more, events = parts
                    small_fit_until = self._small_fit_until()
                if decided:
                    if not state.batch_open:
                        self._open(state.log_end, now_ms)
                    if not small or kind is SendMessage:  # only ``apply`` of plain messages asks for it
                        session.sender = getattr(command, "connection", 0)
                    apply_all(state, decided)
                    records += decided
                if events:
                    for event in events:
                        apply_session(state, event)
                if more:
                    effects += more
                replies.append(reply)
                if not small and pace.after_command(kind):
                    more_to_do = False
                    break
            more_to_do = more_to_do and len(replies) == wanted and not pace.after_command(kind)
        return Step(self._closed(), replies, effects, problems)

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

    def next_deadline_ms(self) -> int | None:
        """Broker time of the next ``Tick``, ms. None: no tick until something else happens."""
        return next_deadline_ms(self.state)

    def begin_epoch(self, epoch: int, wall_ms: int, now_ms: int, *, plausible_ms: int, trust_clock: bool) -> Batch:
        """The first batch of a run: a record of its start, after a base record if a segment begins. Write it before anything else.

        ``plausible_ms``: how far ``now_ms`` may be ahead of the log; see ``core.clock_jumps``.

        Raises:
            StoreFull: the disk is full, or the base does not fit in a segment. Nothing was changed.
        """
        state = self.state
        reserve_for_holders(state, now_ms)
        jump_ms = jump_of_start(state, now_ms, plausible_ms, trusted=trust_clock)
        record = epoch_started(0, epoch, wall_ms, state.settings.check_immunity_ms, jump_ms)
        if not state.loaded or not fits(state.log_end, False, record.size, self._segment_bytes):
            text = why_no_base(state, record.size)
            if text:
                raise StoreFull(text, hint=_NO_BASE_AT_START)
            self._roll(now_ms)
        else:
            self._open(state.log_end, now_ms)
        record = replace(record, offset=next_offset(state))
        apply(state, record)
        self._records.append(record)
        batch = self._closed()
        assert batch is not None
        return batch

    # --- one command -----------------------------------------------------------------------------------------

    def _decide_near_end(self, command: Command, now_ms: int, pace: Pace) -> _Parts | None:
        """Decide a command that may not fit in the segment: make space first, then check the size of its records. None: the step
        ends before this command.
        """
        state = self.state
        if state.batch_open and state.log_end - self._batch_start > limits.BATCH_BYTES_MAX:
            return None
        try:
            first = comes_before(state, command, now_ms)
            if first is not None:
                apply_session(state, first)
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            return self._broken(command, error)
        before = self._too_large if self._too_large is not None and self._too_large.command is command else None
        bound = before.size if before is not None else self._bound(command)
        if not fits(state.log_end, state.batch_open, bound, self._segment_bytes):
            if bound > state.record_bytes_max and isinstance(command, SendHalf | SendMessage | SendBatch):
                # Probably too large for any segment. Decide first, so that a client cannot roll segments with rejected sends.
                refusal = self._decided(command, now_ms)
                if not refusal.records:
                    return refusal
            if state.batch_open:
                return None
            refused = self._roll_for(command, bound, now_ms)
            if refused is not None:
                return _Parts((), refused)
        self._too_large = None
        pace.before()  # the time of a roll does not count for the command
        decision = self._decided(command, now_ms)
        if not decision.records or self._fit(decision.records):
            return decision
        return self._exceeded_bound(command, decision, now_ms, pace, rolled=before is not None)

    def _decided(self, command: Command, now_ms: int) -> _Parts:
        try:
            decision = _Parts(*decide(self.state, command, now_ms))
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            decision = self._broken(command, error)
        if decision.records and type(decision.records[0]) in _EXAMINED:  # copies come first, if there are any
            decision = self._copied(command, decision, now_ms)
        return decision

    def _broken(self, command: Command, error: Exception) -> _Parts:
        """The replacement for a decision that raised. Nothing was changed, so the next command can be decided."""
        if isinstance(error, InvariantViolated):
            raise error
        self._problems.append(DecisionFailed(command, error))
        return _Parts((), Failed(f"{type(error).__name__}: {error}"))

    def _exceeded_bound(
        self, command: Command, decision: _Parts, now_ms: int, pace: Pace, *, rolled: bool
    ) -> _Parts | None:
        """Handle records that exceed the bound of ``command``: decide it again in the next segment.

        If its records do not fit there either, the command fails. Such a roll happens at most once for each half segment of log, so
        that failing commands cannot fill the disk. Records larger than any decision may need fail without a roll.
        """
        state = self.state
        size = _size(decision.records)
        text = (
            f"{type(command).__name__} came to {size} bytes of records, which do not fit in the log at {state.log_end}"
        )
        if rolled:
            self._no_roll_before = segment_start(state.log_end, self._segment_bytes) + self._segment_bytes // 2
        failed = rolled or size > state.record_bytes_max or state.log_end < self._no_roll_before
        self._problems.append(BoundWrong(command, InvariantViolated(text), failed))
        if failed:
            return _Parts((), Failed(text))
        self._too_large = _TooLarge(command, size)
        return None if state.batch_open else self._decide_near_end(command, now_ms, pace)

    def _bound(self, command: Command) -> int:
        """The bound of ``size_bound``, or 0 if that raises; then only the check after the decision applies."""
        try:
            return size_bound(self.state, command)
        except Exception as error:  # noqa: BLE001 - a bound changes nothing; the decision may still succeed
            self._problems.append(BoundWrong(command, error, failed=False))
            return 0

    # --- what a decision wants copied ------------------------------------------------------------------------

    def _copied(self, command: Command, decision: _Parts, now_ms: int) -> _Parts:
        """``decision``, if every message that it copies is intact; else its replacement. Call it before any record is applied.

        A tick continues without the delayed messages that cannot be copied: they stay delayed until a start finds them intact.
        """
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
        return _Parts((), Failed(text))

    def _without(self, damaged: _Damaged, released: Record, now_ms: int) -> _Parts:
        """The decision of a tick without the ``damaged`` messages of the copies that ``released`` names. A tick copies nothing else.

        It only postpones those messages. Others may be damaged as well; the next tick, which is due at once, checks them.
        """
        assert isinstance(released, Released)
        postponed = [record for record, _ in damaged if isinstance(record, CopiedDelayed)]
        self.note(DelayedPostponed(tuple([record.first_offset for record in postponed])))
        tick = Tick(len(released.refs) - len(damaged))
        try:
            decision = _Parts(*decide(self.state, tick, now_ms))
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            return self._broken(tick, error)
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
            if isinstance(record, CopiedHalf | CopiedDelayed):
                problem = log.why_not_copied(record.source, record.message_bytes)
            elif isinstance(record, CopiedHalfBatch):
                problem = log.why_not_copied(record.source, record.size)
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

    def _small_fit_until(self) -> int:
        """Log offset up to which any command of ``SMALL`` fits in both the segment and the batch."""
        end = self.state.log_end
        place = end % self._segment_bytes
        if place == 0:
            return 0
        start = self._batch_start if self.state.batch_open else end
        return min(end - place + self._segment_bytes - _SMALL_BYTES_MAX, start + limits.BATCH_BYTES_MAX)

    def _roll_for(self, command: Command, size: int, now_ms: int) -> Refused | None:
        """Roll so that ``command`` can be decided in the next segment. Returns a refusal if there is no next segment."""
        state = self.state
        # After the roll a verdict may have to copy its half messages.
        verdict = isinstance(command, EndTransaction | ResolveTransaction)
        text = why_no_base(state, state.record_bytes_max if verdict else size)
        if text:
            text += " (delete topics, or take limits of producer groups away)"
            self._problems.append(NoNextSegment(text, disk_full=False))
            return Refused(Why.STORE_FULL, text)
        try:
            self._roll(now_ms)
        except StoreFull as error:
            if not state.session.disk_full:
                self.note(DiskSpace(True))
                self._problems.append(NoNextSegment(str(error), disk_full=True))
            return Refused(Why.STORE_FULL, f"{error}; verdicts are accepted while the current segment has space")
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
