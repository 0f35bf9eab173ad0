"""The engine: all that the broker knows, and the one way in which it changes.

    step(commands, now_ms) -> Step    decides each command and applies what it logs, so that the next one sees it
    replay(offset, time, records)     redo after a start, a follower: the same ``apply``
    note(event)                       who is connected, what was published: session, never logged
    next_deadline_ms()                when a ``Tick`` is due
    view                              to read; nothing else changes it

A step is one batch: its caller writes it before the next step, since a decision may want to copy what an earlier batch has.
Therefore a step ends early where its batch may not go on: before a command that needs the next segment, after
``limits.BATCH_BYTES_MAX``, and where its ``Pace`` says so. ``Step.replies`` has one for each command that was decided; the
others come again in the next step.

Segments begin here: where the records of a command may not fit, the step begins in the next segment, after its base record.
Two things are asked of the disk, through ``Disk``: whether there is a next segment, and whether a body that is to be copied
is whole.

A decision changes nothing by itself: its records are applied, its session events made to happen, or neither. So one that fails
fails its command alone. A bound that was wrong does not stop anything either: records that do not fit
are found before they are applied, and the command is decided anew in the next segment. What went wrong is in
``Step.problems``, for a log; this module has none.
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
from halfmq.model.records import CopiedDelayed, CopiedHalf, Record, Released

#: So many sends and verdicts are decided between two looks at the ``Pace``, about 0.5 ms.
PACE_COMMANDS: Final = 64

#: Commands of the hot path, and more bytes of records than one of them can need: a commit that copies 64 MiB of halves
#: needs the most. Far from the end of a segment nothing is computed for them, and their records need no second look: a
#: frame bounds what a send brings, ``core.transaction.admission`` what a transaction may have, and no bound is asked.
SMALL: Final[frozenset[type]] = frozenset({SendHalf, SendMessage, EndTransaction})
_SMALL_BYTES_MAX: Final = limits.TRANSACTION_BYTES_MAX + 2 * limits.FRAME_BYTES_MAX

#: Records that hold a copy. A decision that has any begins with one.
_COPIED: Final = frozenset({CopiedHalf, CopiedDelayed})

_NO_BASE_AT_START: Final = (
    "nothing is lost, and nothing more can be written: read it with `halfmq store dump`, and begin a new store with larger "
    "--segment-bytes"
)


class Failed(NamedTuple):
    """A reply where the decision broke, or what it needs copied is damaged. Nothing was changed; the log says where."""

    text: str


class DecisionFailed(NamedTuple):
    """Deciding ``command`` raised; it was answered ``Failed``, and nothing was changed."""

    command: Command
    error: Exception


class BoundWrong(NamedTuple):
    """``size_bound`` said less than ``command`` came to, or could not say. ``failed``: the command was answered so."""

    command: Command
    error: Exception
    failed: bool


class NotCopied(NamedTuple):
    """What ``command`` wants copied from ``source`` is damaged; it was answered ``Failed``."""

    command: Command
    source: int
    text: str


class DelayedNotShown(NamedTuple):
    """These delayed messages cannot be copied, and wait for a start that finds them whole. ``more``: others may follow."""

    #: (log offset, what is wrong with its bytes) of each.
    damaged: tuple[tuple[int, str], ...]
    more: bool


class NoNextSegment(NamedTuple):
    """A segment could not begin: no space on the disk (``disk_full``), or none for a base in it."""

    text: str
    disk_full: bool


Problem = DecisionFailed | BoundWrong | NotCopied | DelayedNotShown | NoNextSegment


class Batch(NamedTuple):
    """What is written in one go. ``end``: one past its last byte, padding included."""

    offset: int
    end: int
    broker_time_ms: int
    records: tuple[Record, ...]


class Step(NamedTuple):
    #: Write it before the next step. None: nothing was logged.
    batch: Batch | None
    #: One for each command that was decided, in their order.
    replies: list[Reply | Failed]
    effects: list[Effect]
    problems: list[Problem]


class Disk(Protocol):
    """What the engine asks of whoever writes its batches."""

    def why_not_copied(self, source: int, message_bytes: int) -> str | None:
        """What is wrong with the stored message in the record at ``source``, and what to do; None: it is whole."""
        ...

    def reserve_roll(self) -> None:
        """See to it that the next segment can be written.

        Raises:
            StoreFull: there is no space for it.
        """
        ...


class Pace(Protocol):
    """How long a step may take. Told of each command that may take long, and of the others now and then."""

    def before(self) -> None:
        """A command that may take long is decided next."""
        ...

    def behind(self, kind: type[Command]) -> bool:
        """A command of this type was decided, or ``PACE_COMMANDS`` of any, the last of them of this one. True: end the step."""
        ...


class NoPace:
    """A step ends when all is decided."""

    def before(self) -> None:
        pass

    def behind(self, kind: type[Command]) -> bool:
        return False


class _Parts(NamedTuple):
    """A ``Decision``, or what stands for it."""

    records: tuple[Record, ...]
    reply: Reply | Failed
    effects: tuple[Effect, ...] = ()
    events: tuple[DecisionEvent, ...] = ()


class _TooLarge(NamedTuple):
    """A command whose records came out larger than its bound, and their size."""

    command: Command
    size: int


_Damaged = list[tuple[CopiedHalf | CopiedDelayed, str]]


class Engine:
    """One for each log. Not for several threads."""

    def __init__(self, state: State, disk: Disk) -> None:
        """``state``: new, or of a snapshot. It is the engine's from now on."""
        self.state = state
        #: To read.
        self.view: View = state
        self._disk = disk
        self._segment_bytes = state.settings.segment_bytes
        #: Of the batch that is open, and of the step that runs.
        self._records: list[Record] = []
        self._problems: list[Problem] = []
        self._batch_start = 0
        #: The next step begins with it, after a roll.
        self._too_large: _TooLarge | None = None
        #: Below this position nothing is rolled for a decision that came out larger than its bound.
        self._no_roll_before = 0

    # --- calls -----------------------------------------------------------------------------------------------

    def step(self, commands: Iterable[Command], now_ms: int, pace: Pace | None = None) -> Step:
        """Decide commands from the first on, at least one. ``now_ms``: broker time, which never goes back.

        Raises:
            InvariantViolated: the state and the log may differ now; stop, and let a start redo the log.
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
                    try:  # as ``decide`` does: a call for each command costs 1 %
                        decided, reply, more, events = decide_by[kind](state, command, now_ms)
                    except Exception as error:  # noqa: BLE001 - judged in ``_broken``
                        decided, reply, more, events = self._broken(command, error)
                    if len(decided) > 1 and type(decided[0]) in _COPIED:  # and the verdict that needs the copy
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
                    session.sender = command.connection if small else getattr(command, "connection", 0)  # type: ignore[union-attr]
                    apply_all(state, decided)
                    records += decided
                if events:
                    for event in events:
                        apply_session(state, event)
                if more:
                    effects += more
                replies.append(reply)
                if not small and pace.behind(kind):
                    more_to_do = False
                    break
            more_to_do = more_to_do and len(replies) == wanted and not pace.behind(kind)
        return Step(self._closed(), replies, effects, problems)

    def replay(self, offset: int, broker_time_ms: int, records: Iterable[Record]) -> None:
        """Apply a batch that was written before."""
        open_batch(self.state, offset, broker_time_ms)
        apply_all(self.state, records)
        close_batch(self.state)

    def note(self, event: Event) -> tuple[MembersChanged, ...]:
        """Make a session event happen; returns who is to be told. Look at ``next_deadline_ms`` afterwards."""
        return apply_session(self.state, event)

    def capture(self) -> Snapshot:
        """Durable state as it stands, between two steps. Give it to ``snapshot.encode_rows`` on another thread.

        Raises:
            InvariantViolated: a batch is open, or nothing was redone yet.
        """
        return snapshot_rows(self.state)

    def next_deadline_ms(self) -> int | None:
        """Broker time of the next ``Tick``; None: not before something else happens."""
        return next_deadline_ms(self.state)

    def begin_epoch(self, epoch: int, wall_ms: int, now_ms: int, *, plausible_ms: int, trust_clock: bool) -> Batch:
        """The first batch of a run: that it began, after a base record where a segment begins. Write it first.

        ``plausible_ms``: how far ahead of the log ``now_ms`` may be and be believed; see ``core.clock_jumps``.

        Raises:
            StoreFull: no space on the disk, or none for a base in a segment; nothing was changed.
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
        """Where what the command needs may not fit: make space first, and look at what was decided. None: the step ends
        in front of it.
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
                # Most likely too large for any segment: nobody shall be able to roll segments by sending what is refused.
                refusal = self._decided(command, now_ms)
                if not refusal.records:
                    return refusal
            if state.batch_open:
                return None
            refused = self._roll_for(command, bound, now_ms)
            if refused is not None:
                return _Parts((), refused)
        self._too_large = None
        pace.before()  # a roll is not the command's
        decision = self._decided(command, now_ms)
        if not decision.records or self._fit(decision.records):
            return decision
        return self._came_too_large(command, decision, now_ms, pace, rolled=before is not None)

    def _decided(self, command: Command, now_ms: int) -> _Parts:
        try:
            decision = _Parts(*decide(self.state, command, now_ms))
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            decision = self._broken(command, error)
        if decision.records and type(decision.records[0]) in _COPIED:
            decision = self._copied(command, decision, now_ms)
        return decision

    def _broken(self, command: Command, error: Exception) -> _Parts:
        """What stands for a decision that could not be made. Nothing was changed, so the next command may come."""
        if isinstance(error, InvariantViolated):
            raise error
        self._problems.append(DecisionFailed(command, error))
        return _Parts((), Failed(f"{type(error).__name__}: {error}"))

    def _came_too_large(
        self, command: Command, decision: _Parts, now_ms: int, pace: Pace, *, rolled: bool
    ) -> _Parts | None:
        """``command`` decided anew in the next segment, since the bound was wrong by which space was made for ``decision``.

        What does not fit there either fails. It rolls at most once for each half of a segment that is written, so that
        nobody fills the disk with what fails; what needs more than any decision may never fits, and does not roll.
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
        """What core says that ``command`` may need. Where it cannot say, nothing: what is decided is looked at again."""
        try:
            return size_bound(self.state, command)
        except Exception as error:  # noqa: BLE001 - a bound changes nothing, and its command may fare well without it
            self._problems.append(BoundWrong(command, error, failed=False))
            return 0

    # --- what a decision wants copied ------------------------------------------------------------------------

    def _copied(self, command: Command, decision: _Parts, now_ms: int) -> _Parts:
        """``decision``, if all that it copies is whole; else what stands for it. Nothing of it was applied yet.

        A tick goes on without the delayed messages that cannot be copied: they wait for a start that finds them whole.
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
            what = f"transaction {record.tx_id!r} of group {record.group!r}" if type(record) is CopiedHalf else "it"
            text = f"{what} stays undecided: {problem}; or roll the transaction back, which needs no copy"
        self._problems.append(NotCopied(command, record.source, text))
        return _Parts((), Failed(text))

    def _without(self, damaged: _Damaged, released: Record, now_ms: int) -> _Parts:
        """What a tick decides that leaves out the ``damaged`` of those that were to be ``released``; the others are whole.

        Only those are shown: the ones after them may be damaged as well, and the next tick looks at them, at once.
        """
        assert isinstance(released, Released)
        self.note(DelayedPostponed(tuple([record.first_offset for record, _ in damaged])))
        tick = Tick(len(released.refs) - len(damaged))
        try:
            decision = _Parts(*decide(self.state, tick, now_ms))
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            return self._broken(tick, error)
        more = isinstance(decision.reply, Done) and decision.reply.again
        found = tuple([(record.source, problem) for record, problem in damaged])
        self._problems.append(DelayedNotShown(found, more))
        return decision

    def _damaged(self, records: Sequence[Record]) -> _Damaged:
        """(record, what is wrong and what to do) of each record whose source cannot be copied."""
        found = []
        for record in records:
            if isinstance(record, CopiedHalf | CopiedDelayed):
                problem = self._disk.why_not_copied(record.source, record.message_bytes)
                if problem is not None:
                    found.append((record, problem))
        return found

    # --- batches and segments --------------------------------------------------------------------------------

    def _fit(self, records: Sequence[Record]) -> bool:
        """Whether the records of a decision have space where the log stands."""
        state = self.state
        return fits(state.log_end, state.batch_open, _size(records), self._segment_bytes)

    def _small_fit_until(self) -> int:
        """While the log ends before this, a command of ``SMALL`` fits the segment and the batch, whatever it is."""
        end = self.state.log_end
        place = end % self._segment_bytes
        if place == 0:
            return 0
        start = self._batch_start if self.state.batch_open else end
        return min(end - place + self._segment_bytes - _SMALL_BYTES_MAX, start + limits.BATCH_BYTES_MAX)

    def _roll_for(self, command: Command, size: int, now_ms: int) -> Refused | None:
        """Roll, so that ``command`` can be decided in the next segment. A refusal: there is none for it."""
        state = self.state
        # A verdict may have to copy its halves after the roll.
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
        """Go on in the next segment, after its base record, which stays in the open batch.

        Raises:
            StoreFull: no space for another segment; the log stands where it stood.
        """
        self._disk.reserve_roll()
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
        """The open batch, which is open no longer; None: none was."""
        state = self.state
        if not state.batch_open:
            return None
        close_batch(state)
        batch = Batch(self._batch_start, state.log_end, state.batch_time_ms, tuple(self._records))
        self._records.clear()
        return batch


def _size(records: Sequence[Record]) -> int:
    first, last = records[0], records[-1]
    return last.offset + last.size - first.offset


_NO_PACE: Final = NoPace()
