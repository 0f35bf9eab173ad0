"""The one writer: commands in, records to the log, replies and effects out when a crash can no longer take them back.

One turn of the event loop is one batch, and ends after ``PUMP_TURN_S``; what is not decided by then comes in the next. All commands that arrived are decided one after another against the state, each
seeing what the ones before it did; their records are applied to memory at once and written together:

    submit ... submit -> turn: decide, apply, decide, apply, ... -> one write -> sync -> publish -> replies, effects

Replies and effects wait with the log's end at their turn, **also when their command wrote nothing**: a repeated commit
must not be confirmed before the first one is safe. With durability ``memory`` a written batch counts as durable and
everything leaves in the same turn; with ``fsync`` the sync thread reports positions and one sync covers all the turns
that were written before it began (group commit).

After a failed write or sync nothing is known about the disk: the pump takes no more commands, lets no reply out, and
tells the process to stop. What was not answered may or may not have happened; recovery finds out.

A full disk is no failed disk. Where there is no room for another segment, commands are refused, and where there is none
for derived files, these fall behind: answers leave, since the log has what they say, but nothing newer is published, so
consumers wait. Where not even the published page can be written, which keeps its room, answers wait too. In all three cases
core refuses new messages from that moment on.

A bound that is wrong is no reason to stop. Records that do not fit where the log stands are found before they are applied:
the decision is thrown away and made anew behind a roll, and where that is no better its command fails alone.

A body that is damaged on the disk is no failed disk either. What a decision wants copied is looked at before it is
applied: a commit that cannot copy its half is refused and changes nothing, and everything else goes on.

It knows no connections: a reply goes to ``deliver(context, reply)``, given with its command.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.seldom import Seldom
from halfmq.broker.timers import BrokerTime
from halfmq.core.apply import apply, apply_all, close_batch, open_batch
from halfmq.core.base import epoch_started, make_base
from halfmq.core.base_room import why_no_base
from halfmq.core.clock_jumps import jump_of_start
from halfmq.core.commands import CarryForward, Command, EndTransaction, ResolveTransaction, SendBatch, SendMessage, Tick
from halfmq.core.decide import DECIDE, decide, next_deadline_ms, size_bound
from halfmq.core.decision import Decision, Done, Effect, Refused, Reply, WakeQueue, Why
from halfmq.core.discard import discard
from halfmq.core.queues.delay import put_aside
from halfmq.core.session import DiskSpace, Published, apply_session
from halfmq.core.state import State, next_offset
from halfmq.errors import HalfmqError, InvariantViolated, StoreFull
from halfmq.model.placement import fits, next_segment_start, segment_start
from halfmq.model.records import (
    CarriedDelayed,
    CarriedHalf,
    Record,
    Released,
)

log = logging.getLogger("halfmq.pump")

#: Commands of one turn: longer turns are cut, so that reading sockets and timers are not starved.
TURN_COMMANDS_MAX: Final = 4_096
#: So many sends and verdicts are decided between two looks at the clock, about 0.5 ms.
_LOOK_COMMANDS: Final = 64
#: What a command of another type is expected to take before one was decided, s.
_UNKNOWN_S: Final = 0.001
#: Replies that wait for the disk; above it the gateways stop reading (a client has few requests in flight each).
BACKLOG_MAX: Final = 65_536

#: Commands of the hot path, and more bytes of records than one of them can need: a commit that carries 64 MiB of halves
#: needs the most. Far from the end of a segment nothing is computed for them, and their records need no second look: a
#: frame bounds what a send brings, ``core.transaction.admission`` what a transaction may have, and no bound is asked.
_SMALL: Final = frozenset({SendMessage, EndTransaction})
_SMALL_BYTES_MAX: Final = limits.TRANSACTION_BYTES_MAX + 2 * limits.FRAME_BYTES_MAX

_NO_BASE_AT_START: Final = (
    "nothing is lost, and nothing more can be written: read it with `halfmq store dump`, and begin a new store with larger "
    "--segment-bytes"
)

#: Records that hold a copy. A decision that has any begins with one.
_CARRIED: Final = frozenset({CarriedHalf, CarriedDelayed})

Deliver = Callable[[Any, "Reply | Failed"], None]


class Failed(NamedTuple):
    """A reply that ``core`` never gives: the decision broke, or what it needs copied is damaged. Nothing was changed; the
    log says where."""

    text: str


class _Broken(NamedTuple):
    """Stands for the ``Decision`` that could not be made, or not be carried out."""

    records: tuple[Record, ...]
    reply: Failed | Refused
    effects: tuple[Effect, ...] = ()


#: (a record that copies, why what it copies cannot be copied).
_Damaged = list[tuple[CarriedHalf | CarriedDelayed, str]]

#: Records, reply and effects, of a ``Decision`` or of what stands for it.
_Parts = tuple[tuple[Record, ...], Reply | Failed, tuple[Effect, ...]]


class WrittenBatch(NamedTuple):
    """What derived files need of one batch: its end and its records."""

    end: int
    broker_time_ms: int
    records: Sequence[Record]


class Log(Protocol):
    """What the pump asks of the store."""

    @property
    def durable_position(self) -> int: ...

    def append(self, records: Sequence[Record], broker_time_ms: int) -> int: ...

    def why_not_copied(self, source: int, message_bytes: int) -> str | None: ...

    def reserve_roll(self) -> None: ...

    def request_sync(self, position: int) -> None: ...

    def publish(self, position: int, broker_time_ms: int, batches: Iterable[WrittenBatch]) -> int: ...

    def catch_up(self) -> int: ...


class _Turn(NamedTuple):
    end: int
    batches: list[WrittenBatch]
    replies: list[tuple[Deliver, Any, "Reply | Failed"]]
    effects: list[Effect]
    #: ``Pump.decided`` behind it.
    decided: int = 0


class Pump:
    """Runs on the loop thread only. Call ``durable`` there too, whenever the store's durable position moved."""

    def __init__(
        self,
        state: State,
        store: Log,
        loop: asyncio.AbstractEventLoop,
        time: BrokerTime,
        clock: Callable[[], float],
        *,
        segment_bytes: int,
        on_effects: Callable[[list[Effect]], None],
        on_released: Callable[[], None],
        on_deadline: Callable[[int | None], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.state = state
        self.failed: BaseException | None = None
        #: Replies decided but not released. Gateways stop reading above ``BACKLOG_MAX``.
        self.backlog = 0
        self._store = store
        self._loop = loop
        self._time = time
        self._segment_bytes = segment_bytes
        self._on_effects = on_effects
        self._on_released = on_released
        self._on_deadline = on_deadline
        self._on_fatal = on_fatal
        self._pending: list[tuple[Command, Deliver | None, Any]] = []
        self._scheduled = False
        #: How many commands were decided, and how many of these are durable and answered: see ``intake``.
        self.decided = 0
        self.released = 0
        #: How long it will take to decide what is pending, about, s; and by type of command (never ``_SMALL`` ones) how long
        #: one took: the longest, forgotten slowly, so that cheap ones do not hide costly ones.
        self.expected_s = 0.0
        #: As ``Clock.elapsed_s``.
        self.clock = clock
        self._took_s: dict[type[Command], float] = {}
        #: Called behind each turn.
        self.on_turn: Callable[[], None] = lambda: None
        #: In log order; each ends at or behind the one before.
        self._held: deque[_Turn] = deque()
        self._records: list[Record] = []
        self._batch_time_ms = 0
        self._batch_start = 0
        self._written: list[WrittenBatch] = []
        #: Whether derived files have not followed to what was released, for want of room on the disk.
        self.behind = False
        #: What is held up to here was given to the store already; 0: nothing was.
        self._staged = 0
        self._damage_said = Seldom(loop.time)
        #: Delayed messages that were put aside and are in no line of the log yet.
        self._aside_untold = 0
        #: Below this position nothing is rolled for a decision that came out larger than its bound.
        self._no_roll_before = 0
        self._wrong_said = Seldom(loop.time)
        #: Queues whose new messages are not published yet.
        self._late_wakes: dict[WakeQueue, None] = {}

    # --- in --------------------------------------------------------------------------------------------------

    def submit(self, command: Command, deliver: Deliver | None, context: Any = None) -> None:
        """Decide ``command`` in this turn. ``deliver(context, reply)`` runs once it is durable, or never if the pump fails.

        ``deliver`` is None where nobody waits for the reply, as for one-way requests.
        """
        if type(command) not in _SMALL:
            self.expected_s += self._took_s.get(type(command), _UNKNOWN_S)
        self.submit_small(command, deliver, context)

    def submit_small(self, command: Command, deliver: Deliver | None, context: Any = None) -> None:
        """As ``submit``, of a send or a verdict: nobody asks what it will take."""
        self._pending.append((command, deliver, context))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def submit_first(self, command: Command) -> None:
        """Decide ``command`` in this turn before what waits already: it says that something decided earlier did not happen."""
        self.submit(command, None)
        self._pending.insert(0, self._pending.pop())

    def after_durable(self, deliver: Deliver, context: Any, reply: Reply) -> None:
        """Hold an answer that was read from memory until all that memory says is durable; at once if it is."""
        if self.failed is not None:
            return
        if self._held:
            self._held[-1].replies.append((deliver, context, reply))
            self.backlog += 1
        else:
            deliver(context, reply)

    def after_turn(self, call: Callable[..., None], *arguments: Any) -> bool:
        """If commands wait to be decided: call later, behind their turn, and then let answers out. False: none do."""
        if not self._scheduled:
            return False

        number = self.submitted

        def behind() -> None:
            if self.failed is None and self.decided < number:  # a turn may be cut
                self._loop.call_soon(behind)
                return
            call(*arguments)
            self._on_released()

        self._loop.call_soon(behind)
        return True

    def look_at_deadline(self) -> None:
        """Session state changed outside of a turn: see when the next ``Tick`` is due now."""
        self._on_deadline(next_deadline_ms(self.state))

    @property
    def submitted(self) -> int:
        """How many commands were submitted, decided or not."""
        return self.decided + len(self._pending)

    @property
    def idle(self) -> bool:
        """Nothing is waiting to be decided, written or released."""
        return not self._pending and not self._held

    @property
    def waits_for_room(self) -> bool:
        """Answers are held back since the disk is so full that nothing can say that they are durable."""
        return self._staged > 0

    def waits_ms(self, now_ms: int) -> int:
        """How long the oldest answer that is held back has waited for the disk, about, ms."""
        return max(0, now_ms - self._held[0].batches[0].broker_time_ms) if self._held and self._held[0].batches else 0

    def begin_epoch(
        self, epoch: int, wall_ms: int, *, plausible_ms: int = limits.CHECK_TIMES_MAX_MS, trust_clock: bool = False
    ) -> None:
        """Write the first batch of this run: that it began, behind a base record where a segment begins.

        ``plausible_ms``: how far ahead of the log its time may be and be believed; see ``core.clock_jumps``.

        Nothing is answered before it is durable, since everything else stands behind it.

        Raises:
            StoreFull: no room on the disk, or none for a base in a segment; nothing was written.
            StorePoisoned: the disk failed.
        """
        state = self.state
        now_ms = self._time.now_ms()
        jump_ms = jump_of_start(state, now_ms, plausible_ms, trusted=trust_clock)
        record = epoch_started(0, epoch, wall_ms, state.settings.check_immunity_ms, jump_ms)
        if not state.loaded or not fits(state.log_end, False, record.size, self._segment_bytes):
            text = why_no_base(state, record.size)
            if text:
                raise StoreFull(text, hint=_NO_BASE_AT_START)
            self._roll(now_ms)
        else:
            self._open(state.log_end, now_ms)
        record = record._replace(offset=next_offset(state))
        apply(state, record)
        self._records.append(record)
        self._close()
        written, self._written = self._written, []
        self._held.append(_Turn(state.log_end, written, [], []))
        self._store.request_sync(state.log_end)
        self._on_deadline(next_deadline_ms(state))
        self._release()

    # --- one turn --------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        if self.failed is not None:
            return
        pending = self._pending
        self._pending = []
        try:
            turn = self._decide_all(pending)
            self._go_on_later(pending[turn.decided - self.decided :])
            self.decided = turn.decided
            self.backlog += len(turn.replies)
            self._held.append(turn)
            if turn.batches:
                self._store.request_sync(turn.end)
            self._release()
        except Exception as error:  # noqa: BLE001 - whatever it is, memory and log may differ now: stop
            self._fail(error)
        self.on_turn()

    def _go_on_later(self, rest: list[tuple[Command, Deliver | None, Any]]) -> None:
        """``rest`` comes in the next turn, before whatever was submitted meanwhile."""
        if not (rest or self._pending or self.expected_s):
            return
        self._pending[:0] = rest
        if self._pending and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)
        took_s = self._took_s
        self.expected_s = sum(
            took_s.get(type(command), _UNKNOWN_S) for command, _, _ in self._pending if type(command) not in _SMALL
        )

    def _decide_all(self, pending: list[tuple[Command, Deliver | None, Any]]) -> _Turn:
        """Decide as many as one turn may, at least one."""
        state = self.state
        now_ms = self._time.now_ms()
        replies: list[tuple[Deliver, Any, Reply | Failed]] = []
        effects: list[Effect] = []
        records = self._records
        plenty_until = self._plenty_until()
        clock = self.clock
        until_s = clock() + limits.PUMP_TURN_S
        began_s = 0.0
        near = late = False
        by_kind = DECIDE
        due = pending if len(pending) <= TURN_COMMANDS_MAX else pending[:TURN_COMMANDS_MAX]
        commands = iter(due)
        while not late and length_hint(commands):
            for command, deliver, context in islice(commands, _LOOK_COMMANDS):
                kind = type(command)
                if state.log_end >= plenty_until or kind not in _SMALL:
                    near = True
                    began_s = clock()
                    decided, reply, more = self._decide_near(command, now_ms)
                    plenty_until = self._plenty_until()
                else:
                    try:  # as ``decide`` does: a call for each command costs 1 %
                        decided, reply, more = by_kind[kind](state, command, now_ms)
                    except Exception as error:  # noqa: BLE001 - judged in ``_broken``
                        decided, reply, more = self._broken(command, error)
                    if len(decided) > 1 and type(decided[0]) in _CARRIED:  # and the verdict that needs the copy
                        decided, reply, more = self._copied(command, (decided, reply, more), now_ms)
                if decided:
                    if not state.batch_open:
                        self._open(state.log_end, now_ms)
                    apply_all(state, decided)
                    records += decided
                if more:
                    effects += more
                if deliver is not None:
                    replies.append((deliver, context, reply))
                if near:
                    near = False
                    late = self._note_time(type(command), began_s, clock()) >= until_s
                    if late:
                        break
            else:
                late = clock() >= until_s
        self._close()
        written, self._written = self._written, []
        self._on_deadline(next_deadline_ms(state))
        return _Turn(state.log_end, written, replies, effects, self.decided + len(due) - length_hint(commands))

    def _decide_near(self, command: Command, now_ms: int) -> _Parts:
        """Where what the command needs may not fit: make room first, and look at what was decided."""
        reply = self._make_room(command, now_ms)
        if reply is not None:
            return (), reply, ()
        try:
            decision: _Parts = decide(self.state, command, now_ms)
        except Exception as error:  # noqa: BLE001 - judged in ``_broken``
            decision = self._broken(command, error)
        if decision[0] and type(decision[0][0]) in _CARRIED:
            decision = self._copied(command, decision, now_ms)
        if decision[0] and not self._fit(decision[0]):
            decision = self._behind_a_roll(command, decision, now_ms)
        return decision

    def _note_time(self, kind: type[Command], began_s: float, now_s: float) -> float:
        """A command of that type was decided. Returns ``now_s``."""
        if kind not in _SMALL:
            took_s = self._took_s
            before_s = took_s.get(kind, 0.0)
            took_s[kind] = max(now_s - began_s, before_s - before_s / 256)
        return now_s

    def _broken(self, command: Command, error: Exception) -> "_Broken":
        """What stands for a decision that could not be made. Nothing was changed, so the next command may come."""
        if isinstance(error, InvariantViolated):
            raise error
        discard(self.state, command, (), (), self._time.now_ms())  # what a trim was to carry was taken off its list
        if self._damage_said.is_due((type(command), type(error))):
            log.error("decision failed on %s; nothing was changed", type(command).__name__, exc_info=error)
        return _Broken((), Failed(f"{type(error).__name__}: {error}"))

    # --- what a decision wants copied ------------------------------------------------------------------------

    def _copied(self, command: Command, decision: _Parts, now_ms: int) -> _Parts:
        """``decision``, if all that it copies is whole; else what stands for it. Nothing of it was applied yet.

        A tick goes on without the delayed messages that cannot be copied: they wait for a start that finds them whole.
        """
        damaged = self._damaged(decision[0])
        if not damaged:
            return decision
        if type(command) is Tick:
            return self._without(damaged, decision[0][-1], now_ms)
        record, problem = damaged[0]
        discard(self.state, command, decision[0], decision[2], now_ms)
        if type(command) is CarryForward:
            text = f"what is alive in the segments to go must be copied, and cannot be: {problem}"
        else:
            what = f"transaction {record.tx_id!r} of group {record.group!r}" if type(record) is CarriedHalf else "it"
            text = f"{what} stays undecided: {problem}; or roll the transaction back, which needs no copy"
        if self._damage_said.is_due((type(command), record.source)):
            log.error("%s", text)
        return _Broken((), Failed(text))

    def _without(self, damaged: _Damaged, released: Record, now_ms: int) -> _Parts:
        """What a tick decides that leaves out the ``damaged`` of those that were to be ``released``; the others are whole.

        Only those are shown: the ones behind them may be damaged as well, and the next tick looks at them, at once.
        """
        assert isinstance(released, Released)
        put_aside(self.state, *[record.first_offset for record, _ in damaged])
        decision = decide(self.state, Tick(len(released.refs) - len(damaged)), now_ms)
        by_segment: dict[int, list[str]] = {}
        for record, problem in damaged:
            by_segment.setdefault(segment_start(record.source, self._segment_bytes), []).append(problem)
        for start, problems in by_segment.items():
            if self._damage_said.is_due(("aside", start)):
                log.error(
                    "delayed messages are not shown before the next start, %d of one segment so far: %s",
                    len(problems),
                    problems[0],
                )
            else:
                self._aside_untold += len(problems)
        more_now = isinstance(decision.reply, Done) and decision.reply.again
        if self._aside_untold and not more_now and self._damage_said.is_due("aside"):
            log.error(
                "%d more delayed messages of such segments are not shown before the next start: %d in all",
                self._aside_untold,
                len(self.state.delayed_aside),
            )
            self._aside_untold = 0
        return decision

    def _damaged(self, records: Sequence[Record]) -> _Damaged:
        """(record, what is wrong and what to do) of each record whose source cannot be copied."""
        found = []
        for record in records:
            if isinstance(record, CarriedHalf | CarriedDelayed):
                problem = self._store.why_not_copied(record.source, record.message_bytes)
                if problem is not None:
                    found.append((record, problem))
        return found

    # --- batches and segments --------------------------------------------------------------------------------

    def _fit(self, records: Sequence[Record]) -> bool:
        """Whether the records of a decision have room where the log stands."""
        state = self.state
        size = records[-1][0] + records[-1][1] - records[0][0]
        return fits(state.log_end, state.batch_open, size, self._segment_bytes)

    def _behind_a_roll(self, command: Command, decision: _Parts, now_ms: int) -> _Parts:
        """``command`` decided anew in the next segment, since the bound was wrong by which room was made for ``decision``.

        What does not fit there either fails. It rolls at most once for each half of a segment that is written, so that
        nobody fills the disk with what fails; what needs more than any decision may never fits, and does not roll.
        """
        state = self.state
        for rolled in (False, True):
            records, _, effects = decision
            size = records[-1][0] + records[-1][1] - records[0][0]
            discard(state, command, records, effects, now_ms)
            what = type(command).__name__
            text = f"{what} came to {size} bytes of records, which do not fit the log at {state.log_end}"
            if rolled or size > state.record_bytes_max or state.log_end < self._no_roll_before:
                break
            if self._wrong_said.is_due(what):
                log.error(
                    "the bound of %s was wrong: decided anew in the next segment",
                    what,
                    exc_info=InvariantViolated(text),
                )
            refused = self._roll_for(command, size, now_ms)
            if refused is not None:
                return _Broken((), refused)
            try:
                decision = decide(state, command, now_ms)
            except Exception as error:  # noqa: BLE001 - judged in ``_broken``
                decision = self._broken(command, error)
            if decision[0] and type(decision[0][0]) in _CARRIED:
                decision = self._copied(command, decision, now_ms)
            if not decision[0] or self._fit(decision[0]):
                return decision
            self._no_roll_before = segment_start(state.log_end, self._segment_bytes) + self._segment_bytes // 2
        if self._wrong_said.is_due((what, "failed")):
            log.error("%s failed; nothing was changed, everything else goes on", what, exc_info=InvariantViolated(text))
        return _Broken((), Failed(text))

    def _bound(self, command: Command) -> int:
        """What core says that ``command`` may need. Where it cannot say, nothing: what is decided is looked at again."""
        try:
            return size_bound(self.state, command)
        except Exception as error:  # a bound changes nothing, and its command may fare well without it
            if self._wrong_said.is_due((type(command), "bound")):
                log.error("no bound for %s; it is decided all the same", type(command).__name__, exc_info=error)
            return 0

    def _plenty_until(self) -> int:
        """While the log ends before this, a command of ``_SMALL`` fits the segment and the batch, whatever it is."""
        end = self.state.log_end
        place = end % self._segment_bytes
        if place == 0:
            return 0
        start = self._batch_start if self.state.batch_open else end
        return min(end - place + self._segment_bytes - _SMALL_BYTES_MAX, start + limits.BATCH_BYTES_MAX)

    def _make_room(self, command: Command, now_ms: int) -> Reply | Failed | None:
        """See to it that the command's records fit where the log stands: cut the batch, roll the segment.

        Returns a reply when the command is done with that. Behind a roll every decision fits: core bounds them so.
        """
        state = self.state
        if state.batch_open and state.log_end - self._batch_start > limits.BATCH_BYTES_MAX:
            self._close()
        bound = self._bound(command)
        if fits(state.log_end, state.batch_open, bound, self._segment_bytes):
            return None
        if bound > state.record_bytes_max and isinstance(command, SendMessage | SendBatch):
            # Most likely too large for any segment: nobody shall be able to roll segments by sending what is refused.
            try:
                decision: Decision | _Broken = decide(state, command, now_ms)
            except Exception as error:  # noqa: BLE001 - judged in ``_broken``
                decision = self._broken(command, error)
            if not decision.records:
                return decision.reply
        return self._roll_for(command, bound, now_ms)

    def _roll_for(self, command: Command, bound: int, now_ms: int) -> Refused | None:
        """Roll, so that ``command`` can be decided in the next segment. A refusal: there is none for it."""
        state = self.state
        # A verdict may have to copy its halves behind the roll.
        verdict = isinstance(command, EndTransaction | ResolveTransaction)
        text = why_no_base(state, state.record_bytes_max if verdict else bound)
        if text:
            text += " (delete topics, or take limits of producer groups away)"
            if self._damage_said.is_due("no base"):
                log.error("no next segment, so what needs one is refused: %s", text)
            return Refused(Why.STORE_FULL, text)
        try:
            self._roll(now_ms)
        except StoreFull as error:
            self.space_is_low()
            return Refused(Why.STORE_FULL, f"{error}; verdicts go on while the current segment lasts")
        return None

    def space_is_low(self) -> None:
        """New messages are refused from now on; who looks at the free space says when there is room again."""
        if not self.state.disk_full:
            log.warning("no room on the disk: new messages are refused; verdicts and checks go on")
            apply_session(self.state, DiskSpace(True))

    def _open(self, offset: int, now_ms: int) -> None:
        self._batch_start = offset
        self._batch_time_ms = now_ms
        open_batch(self.state, offset, now_ms)

    def _close(self) -> None:
        """Write the open batch, if there is one."""
        if not self.state.batch_open:
            return
        close_batch(self.state)
        records = tuple(self._records)
        self._records.clear()
        end = self._store.append(records, self._batch_time_ms)
        if end != self.state.log_end:
            raise InvariantViolated(f"the store wrote up to {end}, decisions end at {self.state.log_end}")
        self._written.append(WrittenBatch(end, self._batch_time_ms, records))

    def _roll(self, now_ms: int) -> None:
        """Go on in the next segment, behind its base record, which stays in the open batch.

        Raises:
            StoreFull: no room for another segment; the log stands where it stood.
        """
        self._close()
        self._store.reserve_roll()
        previous_end = self.state.log_end
        full = previous_end % self._segment_bytes == 0
        self._open(previous_end if full else next_segment_start(previous_end, self._segment_bytes), now_ms)
        base = make_base(self.state, previous_end)
        apply(self.state, base)
        self._records.append(base)

    # --- out -------------------------------------------------------------------------------------------------

    def durable(self) -> None:
        """Release what the store's durable position allows."""
        try:
            self._release()
        except Exception as error:  # noqa: BLE001 - a derived file that cannot be written is a disk that failed
            self._fail(error)

    def _release(self) -> None:
        held = self._held
        position = self._store.durable_position
        if self.failed is not None or not held or held[0].end > position:
            return
        due = []
        while held and held[0].end <= position:
            due.append(held.popleft())
        batches = [batch for turn in due for batch in turn.batches]
        if batches:
            staged = self._staged
            new = [batch for batch in batches if batch.end > staged] if staged else batches
            try:
                published = self._store.publish(due[-1].end, batches[-1].broker_time_ms, new)
            except StoreFull:  # nothing says that these are durable: they are answered when ``catch_up`` finds room
                self._staged = due[-1].end
                held.extendleft(reversed(due))
                self.behind = True
                self.space_is_low()
                return
            self._staged = 0
            apply_session(self.state, Published(published, due[-1].end))
            if published < due[-1].end or self.behind:
                self._follow_late(published, due)
        self.released = max(self.released, due[-1].decided)
        for turn in due:
            self.backlog -= len(turn.replies)
            for deliver, context, reply in turn.replies:
                try:
                    deliver(context, reply)
                except Exception:
                    log.exception("a reply could not be delivered: %r", reply)
        for turn in due:
            if turn.effects:
                self._on_effects(turn.effects)
        self._on_released()

    def _follow_late(self, published: int, due: Sequence[_Turn]) -> None:
        """Derived files fell behind, or have caught up: then parked pulls look again."""
        end = due[-1].end
        self.behind = published < end
        for turn in due:
            self._late_wakes |= dict.fromkeys(effect for effect in turn.effects if type(effect) is WakeQueue)
        if self.behind:
            self.space_is_low()
        else:
            self._wake_late()

    def _wake_late(self) -> None:
        late: list[Effect] = list(self._late_wakes)
        self._late_wakes = {}
        self.behind = False
        log.info("derived files have caught up with the log at %d", self.state.published)
        if late:
            self._on_effects(late)

    def catch_up(self) -> bool:
        """Try again to publish what a full disk kept back. False: there is still no room. Call it now and then."""
        if not self.behind or self.failed is not None:
            return not self.behind
        try:
            self._release()
            if not self.behind or self._staged:  # done, or answers still wait: they go first
                return not self.behind
            published = self._store.catch_up()
            if published > self.state.published:
                apply_session(self.state, Published(published, self.state.answered))
                self._wake_late()
                self._on_released()
        except StoreFull:
            return False
        except Exception as error:  # noqa: BLE001 - a derived file that cannot be written is a disk that failed
            self._fail(error)
        return not self.behind

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self._pending.clear()
            self._held.clear()
            if not isinstance(error, HalfmqError | OSError):
                log.error("the pump stops: a bug", exc_info=error)
            self._on_fatal(error)

    def sync_failed(self, error: BaseException) -> None:
        """The sync thread reports a failed sync: nothing after the durable position may be answered, ever."""
        self._fail(error)
