"""The single writer: commands in, records to the log, replies and effects out when a crash can no longer take them back.

One turn of the event loop takes all commands that arrived, and ends after ``SEQUENCER_TURN_S``; what is not decided by then
comes in the next. The engine decides them in steps, and each step's batch is written in one go:

    submit ... submit -> turn: step, write, step, write, ... -> sync -> publish -> replies, effects

Replies and effects wait with the log's end at their turn, **also when their command wrote nothing**: a repeated commit
must not be confirmed before the first one is safe. With durability ``memory`` a written batch counts as durable and
everything leaves in the same turn; with ``fsync`` the sync thread reports positions and one sync covers all the turns
that were written before it began (group commit).

After a failed write or sync nothing is known about the disk: the sequencer takes no more commands, lets no reply out, and
tells the process to stop. What was not answered may or may not have happened; recovery finds out.

A full disk is no failed disk. Where there is no room for another segment, commands are refused, and where there is none
for derived files, these fall behind: answers leave, since the log has what they say, but nothing newer is published, so
consumers wait. Where not even the published page can be written, which keeps its room, answers wait too. In all three cases
core refuses new messages from that moment on.

It knows no connections: a reply goes to ``deliver(context, reply)``, given with its command.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.problems import Problems, log_no_space
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import Command, NoteTime
from halfmq.core.decision import Effect, Reply, WakeQueue
from halfmq.core.engine import SMALL, Batch, Disk, Engine, Failed
from halfmq.core.session import DiskSpace, Published
from halfmq.errors import HalfmqError, InvariantViolated, StoreFull
from halfmq.model.records import Record

log = logging.getLogger("halfmq.sequencer")

#: Commands of one turn: longer turns are cut, so that reading sockets and timers are not starved.
TURN_COMMANDS_MAX: Final = 4_096
#: What a command of another type is expected to take before one was decided, s.
_UNKNOWN_S: Final = 0.001
#: A costly command is expected again, by a part less with each of its kind that was cheaper.
_FORGETS: Final = 16
#: Replies that wait for the disk; above it the gateways stop reading (a client has few requests in flight each).
BACKLOG_MAX: Final = 65_536

#: Stands where an answer was read from memory, for a command.
_READ: Final = NoteTime()

Deliver = Callable[[Any, "Reply | Failed"], None]
#: A command, who gets its reply (None: nobody), and what that one is given with it.
_Submitted = tuple[Command, Deliver | None, Any]
_command_of: Final = itemgetter(0)


class Log(Disk, Protocol):
    """What the sequencer asks of the store."""

    @property
    def durable_position(self) -> int:
        """The log is durable below it."""
        ...

    def append(self, records: Sequence[Record], broker_time_ms: int) -> int:
        """Write one batch; returns its end."""
        ...

    def request_sync(self, position: int) -> None:
        """Have the log synced up to ``position``; ``Sequencer.durable`` is called when it is."""
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
    #: As many.
    replies: list[Reply | Failed]
    effects: list[Effect]
    #: ``Sequencer.decided`` behind it.
    decided: int = 0
    #: The indexes are written before its answers leave.
    at_once: bool = False


class _TurnPace:
    """When a turn is over, and how long commands take: by type, of those that are not ``SMALL``, the longest, forgotten
    slowly, so that cheap ones do not hide costly ones. ``clock``: as ``Clock.elapsed_s``.
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

    def behind(self, kind: type[Command]) -> bool:
        now_s = self.clock()
        if kind not in SMALL:
            before_s = self.took_s.get(kind, 0.0)
            self.took_s[kind] = max(now_s - self._began_s, before_s - before_s / _FORGETS)
        self.is_over = now_s >= self._until_s
        return self.is_over

    def expected_s(self, kind: type[Command]) -> float:
        return 0.0 if kind in SMALL else self.took_s.get(kind, _UNKNOWN_S)


class Sequencer:
    """Runs on the loop thread only. Call ``durable`` there too, whenever the store's durable position moved."""

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
        #: To read.
        self.view: Final = engine.view
        self.failed: BaseException | None = None
        #: Replies decided but not released. Gateways stop reading above ``BACKLOG_MAX``.
        self.backlog = 0
        self._store = store
        self._loop = loop
        self._time = time
        self._problems = problems
        self._on_effects = on_effects
        self._on_released = on_released
        self._on_deadline = on_deadline
        self._on_fatal = on_fatal
        #: What was submitted and is not decided.
        self._pending: list[_Submitted] = []
        self._scheduled = False
        #: How many commands were decided, and how many of these are durable and answered: see ``intake``.
        self.decided = 0
        self.released = 0
        #: How long it will take to decide what is pending, about, s.
        self.expected_s = 0.0
        self.pace = _TurnPace(clock)
        #: Called behind each turn.
        self.on_turn: Callable[[], None] = lambda: None
        #: In log order; each ends at or behind the one before.
        self._held: deque[_Turn] = deque()
        #: Whether the indexes have not followed to what was released, for want of room on the disk.
        self.behind = False
        #: What is held up to here was given to the store already; 0: nothing was.
        self._staged = 0
        #: ``_write_late`` comes.
        self._write_scheduled = False
        #: A command of the next turn is answered with a receipt: what it shows is written before that leaves.
        self._receipt_wanted = False
        #: Queues whose new messages are not published yet.
        self._late_wakes: dict[WakeQueue, None] = {}

    # --- in --------------------------------------------------------------------------------------------------

    def submit(self, command: Command, deliver: Deliver | None, context: Any = None) -> None:
        """Decide ``command`` in this turn. ``deliver(context, reply)`` runs once it is durable, or never if the sequencer fails.

        ``deliver`` is None where nobody waits for the reply, as for one-way requests.
        """
        self.expected_s += self.pace.expected_s(type(command))
        self.submit_small(command, deliver, context)

    def submit_small(self, command: Command, deliver: Deliver | None, context: Any = None) -> None:
        """As ``submit``, of a send or a verdict: nobody asks what it will take."""
        self._pending.append((command, deliver, context))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def submit_for_receipt(self, command: Command, deliver: Deliver, context: Any) -> None:
        """As ``submit_small``, of a verdict whose sender waits for its receipt: other processes can read, too, what it shows."""
        self._receipt_wanted = True
        self.submit_small(command, deliver, context)

    def submit_first(self, command: Command) -> None:
        """Decide ``command`` in this turn before what waits already: it says that something decided earlier did not happen."""
        self.submit(command, None)
        self._pending.insert(0, self._pending.pop())

    def after_durable(self, deliver: Deliver, context: Any, reply: Reply) -> None:
        """Hold an answer that was read from memory until all that memory says is durable; at once if it is."""
        if self.failed is not None:
            return
        if self._held:
            self._held[-1].submitted.append((_READ, deliver, context))
            self._held[-1].replies.append(reply)
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

    def update_deadline(self) -> None:
        """Session view changed outside of a turn: see when the next ``Tick`` is due now."""
        self._on_deadline(self.engine.next_deadline_ms())

    @property
    def submitted(self) -> int:
        """How many commands were submitted, decided or not."""
        return self.decided + len(self._pending)

    @property
    def idle(self) -> bool:
        """Nothing is waiting to be decided, written or released."""
        return not self._pending and not self._held

    @property
    def waits_for_space(self) -> bool:
        """Answers are held back since the disk is so full that nothing can say that they are durable."""
        return self._staged > 0

    def waits_ms(self, now_ms: int) -> int:
        """How long the oldest answer that is held back has waited for the disk, about, ms."""
        return max(0, now_ms - self._held[0].batches[0].broker_time_ms) if self._held and self._held[0].batches else 0

    def begin_epoch(
        self, epoch: int, wall_ms: int, *, plausible_ms: int = limits.CHECK_TIMES_MAX_MS, trust_clock: bool = False
    ) -> None:
        """Write the first batch of this run; see ``Engine.begin_epoch``.

        Nothing is answered before it is durable, since everything else stands behind it.

        Raises:
            StoreFull: no room on the disk, or none for a base in a segment; nothing was written.
            StorePoisoned: the disk failed.
        """
        batch = self.engine.begin_epoch(
            epoch, wall_ms, self._time.now_ms(), plausible_ms=plausible_ms, trust_clock=trust_clock
        )
        self._write(batch)
        self._held.append(_Turn(batch.end, [batch], [], [], []))
        self._store.request_sync(batch.end)
        self._on_deadline(self.engine.next_deadline_ms())
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
        except Exception as error:  # noqa: BLE001 - whatever it is, memory and log may differ now: stop
            self._fail(error)
        self.on_turn()

    def _go_on_later(self, pending: list[_Submitted], done: int) -> None:
        """What is not done comes in the next turn, before whatever was submitted meanwhile."""
        if done < len(pending):
            self._pending[:0] = pending[done:]
        elif not (self._pending or self.expected_s):
            return
        if self._pending and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)
        self.expected_s = sum([self.pace.expected_s(type(command)) for command, _, _ in self._pending])

    def _decide(self, pending: list[_Submitted]) -> _Turn:
        """As many as one turn may have, at least one, in steps; the batch of each is written before the next."""
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
            for problem in step.problems:
                self._problems.tell(problem)
            replies += step.replies
            effects += step.effects
            done = len(replies)
        self._on_deadline(engine.next_deadline_ms())
        at_once, self._receipt_wanted = self._receipt_wanted, self._receipt_wanted and done < len(pending)
        return _Turn(engine.view.log_end, batches, pending[:done], replies, effects, self.decided + done, at_once)

    def _write(self, batch: Batch) -> None:
        end = self._store.append(batch.records, batch.broker_time_ms)
        if end != batch.end:
            raise InvariantViolated(f"the store wrote up to {end}, decisions end at {batch.end}")

    def space_is_low(self) -> None:
        """New messages are refused from now on; who looks at the free space says when there is room again."""
        if not self.view.session.disk_full:
            log_no_space()
            self.engine.note(DiskSpace(True))

    # --- out -------------------------------------------------------------------------------------------------

    def durable(self) -> None:
        """Release what the store's durable position allows."""
        try:
            self._release()
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a disk that failed
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
            if self._store.is_lagging and not self.behind:  # a reader wanted what waited, and the disk had no space
                self._begin_to_lag()
            staged = self._staged
            new = [batch for batch in batches if batch.end > staged] if staged else batches
            try:
                published = self._store.publish(
                    due[-1].end,
                    batches[-1].broker_time_ms,
                    new,
                    at_once=self.behind or any(turn.at_once for turn in due),
                )
            except StoreFull:  # nothing says that these are durable: they are answered when ``catch_up`` finds room
                self._staged = due[-1].end
                held.extendleft(reversed(due))
                if not self.behind:
                    self._begin_to_lag()
                return
            self._staged = 0
            self.engine.note(Published(published, due[-1].end))
            if published < due[-1].end or self.behind:
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
        """Write what the indexes were left without, if nobody read it in the meantime."""
        if self.failed is not None:
            return
        try:
            lags = self._store.write_indexes() < self.view.session.published
        except StoreFull:
            lags = True
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a disk that failed
            self._fail(error)
            return
        if lags and not self.behind:
            self._begin_to_lag()

    def _begin_to_lag(self) -> None:
        """The disk has no space for the indexes. What waited to be written was announced already, to readers who do not see it
        now: so each queue is announced again when there is space."""
        self.behind = True
        for topic in self.view.topics_by_id.values():
            self._late_wakes |= dict.fromkeys(WakeQueue(topic.topic_id, queue) for queue in range(len(topic.ends)))
        self.space_is_low()

    def _follow_late(self, published: int, due: Sequence[_Turn]) -> None:
        """The indexes lag, or have caught up: then held pulls look again."""
        lags = published < due[-1].end
        if lags and not self.behind:
            self._begin_to_lag()
        self.behind = lags
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
        log.info("the indexes have caught up with the log at %d", self.view.session.published)
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
            if not self._store.is_lagging:
                self.engine.note(Published(published, self.view.session.answered))
                self._wake_late()
                self._on_released()
        except StoreFull:
            return False
        except Exception as error:  # noqa: BLE001 - an index that cannot be written is a disk that failed
            self._fail(error)
        return not self.behind

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self._pending.clear()
            self._held.clear()
            if not isinstance(error, HalfmqError | OSError):
                log.error("the sequencer stops: a bug", exc_info=error)
            self._on_fatal(error)

    def sync_failed(self, error: BaseException) -> None:
        """The sync thread reports a failed sync: nothing after the durable position may be answered, ever."""
        self._fail(error)
