"""The single writer: takes commands, writes records to the log, and releases replies and effects once a crash cannot revert them.

One turn of the event loop takes all commands that arrived, and ends after ``SEQUENCER_TURN_S``; the next turn takes the rest. The engine
decides them in steps, and each step's batch is written in one go:

    submit ... submit -> turn: step, write, step, write, ... -> sync -> publish -> replies, effects

Replies and effects wait for the log's end at their turn, **even if their command wrote nothing**: a repeated commit must not be
confirmed before the first one is durable. With durability ``memory`` a written batch counts as durable and everything is released in the
same turn. With ``fsync`` the sync thread reports positions, and one sync covers all turns that were written before it began (group
commit).

After a failed write or sync the state of the disk is unknown: the sequencer accepts no more commands, releases no reply, and
tells the process to stop. What was not acknowledged may or may not have happened; recovery determines it.

A full disk is not a failed disk. Without space for another segment, commands are refused. Without space for indexes, these lag: replies
are released, since the log contains what they state, but the high watermark does not advance, so consumers wait. If not even the
watermark page can be written, whose space is allocated, replies wait too. In all three cases core refuses new messages from that
moment on.

It knows no connections: a reply goes to ``deliver(context, reply)``, which was passed with its command.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.problems import Problems, log_no_space
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import Command, NoteTime, Tick
from halfmq.core.decision import BatchDecided, Effect, Failed, Reply, WakeQueue
from halfmq.core.engine import QUICK, Engine, LogAccess, next_deadline_ms
from halfmq.core.session import DiskSpace, Published
from halfmq.core.state import SettledNow
from halfmq.errors import EnvironmentFailed, HalfmqError, InvariantViolated, StoreFull
from halfmq.model.records import Batch, Record

log = logging.getLogger("halfmq.sequencer")

#: Maximum number of commands in one turn, so that sockets and timers are served in between.
TURN_COMMANDS_MAX: Final = 4_096
#: Expected time of a command of a type other than ``QUICK`` before the first one was decided, s.
_UNKNOWN_S: Final = 0.001
#: After an expensive command, the expected time of its type decreases by this fraction with each cheaper one.
_FORGETS: Final = 16

#: Placeholder for the command of a reply that was read from memory.
_READ: Final = NoteTime()

Deliver = Callable[[Any, "Reply | Failed"], None]
#: A command, the function that gets its reply (None: nobody), and the function's context.
_Submitted = tuple[Command, Deliver | None, Any]
_command_of: Final = itemgetter(0)


class Log(LogAccess, Protocol):
    """What the sequencer needs from the store."""

    @property
    def durable_position(self) -> int:
        """The log is durable up to this offset."""
        ...

    def append(self, records: Sequence[Record], broker_time_ms: int) -> int:
        """Write one batch; returns its end."""
        ...

    def request_sync(self, position: int) -> None:
        """Sync the log up to ``position``; then ``Sequencer.durable`` is called."""
        ...

    def staging(self, batches: Iterable[Batch]) -> Iterator[None]:
        """Do what ``publish`` does with these batches before it shows them, in steps. Pass it none of them then."""
        ...

    def publish(self, position: int, broker_time_ms: int, batches: Iterable[Batch], *, at_once: bool) -> int: ...

    @property
    def indexes_wait(self) -> bool: ...

    @property
    def is_lagging(self) -> bool: ...

    def write_indexes(self) -> int: ...

    def catch_up(self) -> int: ...


class _Turn(NamedTuple):
    end: int
    batches: list[Batch]
    submitted: list[_Submitted]
    #: One for each of ``submitted``.
    replies: list[Reply | Failed]
    effects: list[Effect]
    #: ``Sequencer.decided`` after it.
    decided: int = 0
    #: Whether the indexes must be written before its replies are released.
    at_once: bool = False
    #: Whether its batches may take long to publish: a batch of a query was decided.
    is_long: bool = False


#: Ticks are not part of the estimate: one slow tick, which copied many delayed messages, would keep out all requests while its follow-ups
#: run.
_NOT_EXPECTED: Final = QUICK | {Tick}


class _TurnPace:
    """Decides when a turn is over, and estimates how long commands take: for each type that is not ``QUICK`` the maximum, which decays
    slowly so that cheap commands do not hide expensive ones. ``clock``: as ``Clock.elapsed_s``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.took_s: dict[type[Command], float] = {}
        self.is_over = False
        self._until_s = self._began_s = 0.0

    def begin(self) -> None:
        self._until_s = self.clock() + limits.SEQUENCER_TURN_S
        self.is_over = False

    def before(self) -> None:
        self._began_s = self.clock()

    def after_command(self, kind: type[Command]) -> bool:
        now_s = self.clock()
        if kind not in QUICK:
            before_s = self.took_s.get(kind, 0.0)
            self.took_s[kind] = max(now_s - self._began_s, before_s - before_s / _FORGETS)
        self.is_over = now_s >= self._until_s
        return self.is_over

    def expected_s(self, kind: type[Command]) -> float:
        return 0.0 if kind in _NOT_EXPECTED else self.took_s.get(kind, _UNKNOWN_S)


class Sequencer:
    """Runs on the loop thread only. Call ``durable`` on it whenever the store's durable position advanced."""

    def __init__(
        self,
        engine: Engine,
        store: Log,
        loop: asyncio.AbstractEventLoop,
        time: BrokerTime,
        clock: Callable[[], float],
        problems: Problems,
        *,
        on_effects: Callable[[list[Effect]], None],
        on_released: Callable[[], None],
        on_deadline: Callable[[int | None], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.engine = engine
        #: Read-only.
        self.view: Final = engine.state
        self.failed: BaseException | None = None
        #: Number of replies decided but not released. Peers are not read from above ``peers.BACKLOG_MAX``.
        self.backlog = 0
        self._store = store
        self._loop = loop
        self._time = time
        self._clock = clock
        self._problems = problems
        self._on_effects = on_effects
        self._on_released = on_released
        self._on_deadline = on_deadline
        self._on_fatal = on_fatal
        #: Submitted commands that are not decided.
        self._pending: list[_Submitted] = []
        self._scheduled = False
        #: Number of submitted commands, of decided ones, and of those whose replies were released; see ``intake``.
        self.submitted = 0
        self.decided = 0
        self.released = 0
        #: Expected time to decide the pending commands, s.
        self.expected_s = 0.0
        self.pace = _TurnPace(clock)
        #: Called after each turn.
        self.on_turn: Callable[[], None] = lambda: None
        #: Called with what a step settled (``Engine.report_settled``) and its broker time, ms, **before** that is durable: withhold what
        #: shows it (``after_durable``).
        self.on_settled: Callable[[SettledNow, int], None] = lambda settled, at_ms: None
        #: Turns with withheld replies, in log order.
        self._held: deque[_Turn] = deque()
        #: Whether the indexes lag behind the released replies because the disk is full.
        self.indexes_lag = False
        #: The store already has the batches of withheld turns up to this offset; 0: none.
        self._staged = 0
        #: Whether batches of withheld turns are being staged, in several rounds of the loop.
        self._is_staging = False
        #: Whether a call of ``_write_late`` is scheduled.
        self._write_scheduled = False
        #: Whether the next turn has a command with a receipt: the indexes are written before that is released.
        self._receipt_wanted = False
        #: Queues with new messages that readers cannot see yet.
        self._late_wakes: dict[WakeQueue, None] = {}

    # --- in --------------------------------------------------------------------------------------------------

    def submit(self, command: Command, deliver: Deliver | None, context: Any = None) -> None:
        """Decide ``command`` in this turn. ``deliver(context, reply)`` is called once the reply is durable, or never if the sequencer
        fails.

        ``deliver`` None: nobody waits for the reply, as for one-way requests.
        """
        self.expected_s += self.pace.expected_s(type(command))
        self.submit_small(command, deliver, context)

    def submit_small(self, command: Command, deliver: Deliver | None, context: Any = None) -> None:
        """As ``submit``, for a send or a verdict, whose time is not estimated."""
        self._pending.append((command, deliver, context))
        self.submitted += 1
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def submit_for_receipt(self, command: Command, deliver: Deliver, context: Any) -> None:
        """As ``submit_small``, for a verdict with a receipt: other processes can read the result before the receipt is released."""
        self._receipt_wanted = True
        self.submit_small(command, deliver, context)

    def submit_first(self, command: Command) -> None:
        """Decide ``command`` in this turn before those that wait: it reports that an effect of an earlier decision failed."""
        self.submit(command, None)
        self._pending.insert(0, self._pending.pop())

    def after_durable(self, deliver: Deliver, context: Any, reply: Reply) -> None:
        """Withhold a reply that was read from memory until that state is durable; deliver it at once if it is."""
        if self.failed is not None:
            return
        if self._held:
            self._held[-1].submitted.append((_READ, deliver, context))
            self._held[-1].replies.append(reply)
            self.backlog += 1
        else:
            deliver(context, reply)

    def after_turn(self, call: Callable[..., None], *arguments: Any) -> bool:
        """If commands are pending: call it after their turn, then release replies, and return True. False: none are pending."""
        if not self._scheduled:
            return False

        number = self.submitted

        def call_when_decided() -> None:
            if self.failed is None and self.decided < number:  # the turn ended early
                self._loop.call_soon(call_when_decided)
                return
            call(*arguments)
            self._on_released()

        self._loop.call_soon(call_when_decided)
        return True

    def update_deadline(self) -> None:
        """Session state changed outside of a turn: schedule the next ``Tick`` accordingly."""
        self._on_deadline(next_deadline_ms(self.engine.state))

    @property
    def idle(self) -> bool:
        """Nothing is waiting to be decided, written or released."""
        return not self._pending and not self._held

    @property
    def waits_for_space(self) -> bool:
        """Whether replies are withheld because the disk is too full to record that they are durable."""
        return self._staged > 0

    def waits_ms(self, now_ms: int) -> int:
        """How long the oldest withheld reply has waited for the disk, approximately, ms."""
        return max(0, now_ms - self._held[0].batches[0].broker_time_ms) if self._held and self._held[0].batches else 0

    def begin_epoch(
        self,
        epoch: int,
        wall_ms: int,
        *,
        plausible_ms: int = limits.CHECK_TIMES_MAX_MS,
        trust_clock: bool = False,
        unset: Sequence[str] = (),
    ) -> None:
        """Write the first batch of this run; see ``Engine.begin_epoch``.

        No reply is released before it is durable, since everything else follows it.

        Raises:
            StoreFull: the disk is full; nothing was written.
            StorePoisoned: the disk failed.
        """
        batch = self.engine.begin_epoch(
            epoch, wall_ms, self._time.now_ms(), plausible_ms=plausible_ms, trust_clock=trust_clock, unset=unset
        )
        self._write(batch)
        self._held.append(_Turn(batch.end, [batch], [], [], []))
        self._store.request_sync(batch.end)
        self._on_deadline(next_deadline_ms(self.engine.state))
        self._release()

    # --- one turn --------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        if self.failed is not None:
            return
        pending, self._pending = self._pending, []
        try:
            turn = self._decide(pending)
            self._go_on_later(pending, turn.decided - self.decided)
            self.decided = turn.decided
            self.backlog += len(turn.replies)
            self._held.append(turn)
            if turn.batches:
                self._store.request_sync(turn.end)
            self._release()
        except Exception as error:  # noqa: BLE001 - memory and log may differ now: stop
            self._fail(error)
        self.on_turn()

    def _go_on_later(self, pending: list[_Submitted], done: int) -> None:
        """Put the undecided commands in the next turn, before those submitted meanwhile."""
        if done < len(pending):
            self._pending[:0] = pending[done:]
        elif not (self._pending or self.expected_s):
            return
        if self._pending and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)
        self.expected_s = sum([self.pace.expected_s(type(command)) for command, _, _ in self._pending])

    def _decide(self, pending: list[_Submitted]) -> _Turn:
        """Decide pending commands, at least one, up to the limits of a turn, in steps; each batch is written before the next step."""
        engine = self.engine
        now_ms = self._time.now_ms()
        count = min(len(pending), TURN_COMMANDS_MAX)
        batches: list[Batch] = []
        replies: list[Reply | Failed] = []
        effects: list[Effect] = []
        pace = self.pace
        pace.begin()
        done = 0
        while done < count and not pace.is_over:
            step = engine.step(map(_command_of, islice(pending, done, count)), now_ms, pace)
            if step.batch is not None:
                self._write(step.batch)
                batches.append(step.batch)
                if step.settled is not None:
                    self.on_settled(step.settled, step.batch.broker_time_ms)
            for problem in step.problems:
                self._problems.tell(problem)
            replies += step.replies
            effects += step.effects
            done = len(replies)
        self._on_deadline(next_deadline_ms(engine.state))
        at_once, self._receipt_wanted = self._receipt_wanted, self._receipt_wanted and done < len(pending)
        is_long = at_once and any(type(reply) is BatchDecided for reply in replies)
        return _Turn(
            engine.state.log_end, batches, pending[:done], replies, effects, self.decided + done, at_once, is_long
        )

    def _write(self, batch: Batch) -> None:
        end = self._store.append(batch.records, batch.broker_time_ms)
        if end != batch.end:
            raise InvariantViolated(f"the store wrote up to {end}, decisions end at {batch.end}")

    def space_is_low(self) -> None:
        """Refuse new messages from now on; the check of the free space ends that."""
        if self.failed is None and not self.view.session.disk_full:
            log_no_space()
            self.engine.note(DiskSpace(True))

    # --- out -------------------------------------------------------------------------------------------------

    def durable(self) -> None:
        """Release what the store's durable position allows."""
        try:
            self._release()
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a failed disk
            self._fail(error)

    def _stage(self, steps: Iterator[None], end: int) -> None:
        """Stage the batches of the held turns up to ``end``, a part in each round of the loop, then release these turns."""
        if self.failed is not None:
            return
        until_s = self._clock() + limits.SEQUENCER_STAGE_S
        try:
            for _ in steps:
                if self._clock() >= until_s:
                    self._loop.call_soon(self._stage, steps, end)
                    return
            self._is_staging, self._staged = False, end
            self._release(end)
            self._release()
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a failed disk
            self._fail(error)

    def _release(self, end: int | None = None) -> None:
        """Release what is durable; at most up to ``end``."""
        held = self._held
        position = self._store.durable_position if end is None else end
        if self.failed is not None or self._is_staging or not held or held[0].end > position:
            return
        due: list[_Turn] = []
        batches: list[Batch] = []
        is_long = at_once = False
        while held and held[0].end <= position:
            turn = held.popleft()
            due.append(turn)
            batches += turn.batches
            is_long = is_long or turn.is_long
            at_once = at_once or turn.at_once
        if batches:
            # A reader needed the staged entries, and the disk was full.
            if self._store.is_lagging and not self.indexes_lag:
                self._begin_to_lag()
            staged = self._staged
            new = [batch for batch in batches if batch.end > staged] if staged else batches
            if new and is_long:
                held.extendleft(reversed(due))
                self._is_staging = True
                self._stage(iter(self._store.staging(new)), due[-1].end)
                return
            try:
                published = self._store.publish(
                    due[-1].end, batches[-1].broker_time_ms, new, at_once=at_once or self.indexes_lag or staged > 0
                )
            except StoreFull:  # nothing records that these are durable: ``catch_up`` releases them when there is space
                self._staged = due[-1].end
                held.extendleft(reversed(due))
                if not self.indexes_lag:
                    self._begin_to_lag()
                return
            self._staged = 0
            self.engine.note(Published(published, due[-1].end))
            if published < due[-1].end or self.indexes_lag:
                self._follow_late(published, due)
            elif self._store.indexes_wait and not self._write_scheduled:
                self._write_scheduled = True
                self._loop.call_later(limits.INDEX_WAIT_S, self._write_late)
        self.released = max(self.released, due[-1].decided)
        for turn in due:
            self.backlog -= len(turn.replies)
            for (_, deliver, context), reply in zip(turn.submitted, turn.replies, strict=True):
                if deliver is None:
                    continue
                try:
                    deliver(context, reply)
                except Exception:
                    log.exception("a reply could not be delivered: %r", reply)
        for turn in due:
            if turn.effects:
                self._on_effects(turn.effects)
        self._on_released()

    def _write_late(self) -> None:
        self._write_scheduled = False
        self.write_indexes()

    def write_indexes(self) -> None:
        """Write staged index entries, unless a reader caused that meanwhile."""
        if self.failed is not None:
            return
        try:
            lags = self._store.write_indexes() < self.view.session.published
        except StoreFull:
            lags = True
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a failed disk
            self._fail(error)
            return
        if lags and not self.indexes_lag:
            self._begin_to_lag()

    def _begin_to_lag(self) -> None:
        """The disk has no space for the indexes. The staged entries were already announced to readers, who cannot see them now; so every
        queue is announced again when there is space.
        """
        self.indexes_lag = True
        for topic in self.view.topics_by_id.values():
            self._late_wakes |= dict.fromkeys(WakeQueue(topic.topic_id, queue) for queue in range(len(topic.ends)))
        self.space_is_low()

    def _follow_late(self, published: int, due: Sequence[_Turn]) -> None:
        """The indexes lag, or have caught up; in the latter case held pulls read again."""
        lags = published < due[-1].end
        if lags and not self.indexes_lag:
            self._begin_to_lag()
        self.indexes_lag = lags
        for turn in due:
            self._late_wakes |= dict.fromkeys(effect for effect in turn.effects if type(effect) is WakeQueue)
        if self.indexes_lag:
            self.space_is_low()
        else:
            self._wake_late()

    def _wake_late(self) -> None:
        late: list[Effect] = list(self._late_wakes)
        self._late_wakes = {}
        self.indexes_lag = False
        log.info("the indexes have caught up with the log at %d", self.view.session.published)
        if late:
            self._on_effects(late)

    def catch_up(self) -> bool:
        """Try again to publish what a full disk delayed. False: there is still no space. Call it at intervals."""
        if not self.indexes_lag or self.failed is not None or self._is_staging:
            return not self.indexes_lag
        try:
            self._release()
            if not self.indexes_lag or self._staged:  # done, or replies still wait, which come first
                return not self.indexes_lag
            published = self._store.catch_up()
            if not self._store.is_lagging:
                self.engine.note(Published(published, self.view.session.answered))
                self._wake_late()
                self._on_released()
        except StoreFull:
            return False
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a failed disk
            self._fail(error)
        return not self.indexes_lag

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self._end(error)
            if not isinstance(error, HalfmqError | OSError):
                log.error("the sequencer stops: a bug", exc_info=error)
            self._on_fatal(error)

    def stop(self) -> None:
        """Decide, write and answer nothing any more. Call it before the store is closed: a turn may still be scheduled, and another broker
        may own the files by then.
        """
        if self.failed is None:
            self._end(EnvironmentFailed("the broker was closed"))

    def _end(self, why: BaseException) -> None:
        self.failed = why
        self._pending.clear()
        self._held.clear()

    def sync_failed(self, error: BaseException) -> None:
        """The sync thread reports a failed sync: no reply after the durable position may ever be released."""
        self._fail(error)
