"""The machine of the broker: its disk and clock, and the broker's runs and restarts.

Work of threads of the real process (syncs, maintenance) is done by later events, so that a kill may occur before, between and
after them.
"""

import gc
import random
from _thread import LockType
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenlet import getcurrent, greenlet

from halfmq.broker.broker import Broker
from halfmq.broker.config import RETENTION_MS, BrokerConfig
from halfmq.errors import StoreDamaged
from halfmq.model.settings import BrokerSettings
from halfmq.store.group_flush import Job
from halfmq.store.store import Durability
from halfmq.testing.history.events import FileStarted, Started
from tests.simulation.chronicle import Chronicle
from tests.simulation.swarm import Swarm
from tests.support.faulty_disk import FaultyDisk, Operation, PowerLost
from tests.support.faulty_network import FaultyNetwork
from tests.support.page_cache import CachedFile, Mark
from tests.support.virtual_loop import ProcessLoop, Scheduler, SeededEntropy, VirtualClock

DATA = Path("/store")
#: Time until the broker is restarted, ms.
_RESTART_MS = (5, 50, 300, 2_000)


class SimulatedSync:
    """The sync thread: one sync at a time, each for the newest position requested when it began.

    It does not cover what is written while it runs.
    """

    def __init__(self, host: "BrokerHost", process: ProcessLoop, job: Job) -> None:
        self._host = host
        self._process = process
        self._job = job
        self._newest: int | None = None
        self._busy = False

    def request(self, position: int) -> None:
        self._newest = position
        if not self._busy:
            self._busy = True
            self._process.call_soon(self._begin)

    def _begin(self) -> None:
        position, self._newest = self._newest, None
        if position is None:
            self._busy = False
            return
        began = self._host.disk.syncs_begin()
        self._process.call_later(self._host.takes_us(self._host.swarm.sync_us) / 1e6, self._end, position, began)

    def _end(self, position: int, began: dict[CachedFile, Mark]) -> None:
        with self._host.disk.syncing_since(began):
            self._job(position)
        self._begin()

    def close(self) -> None:
        """Finish the requested syncs."""
        if self._newest is not None:
            self._job(self._newest)
            self._newest = None


class SimulatedOffload:
    """The maintenance thread: jobs one after another.

    A job is not atomic. After an operation of the disk, and after the lock that it holds is released, it may be interrupted: the broker
    continues, other files are written, a crash occurs; then the job continues, or never does.
    """

    def __init__(self, host: "BrokerHost", process: ProcessLoop) -> None:
        self._host = host
        self._process = process
        self._asked: deque[tuple[Callable[[], object], Callable[[Any], None]]] = deque()
        self._job: greenlet | None = None
        self._locks: list[_Lock] = []
        self._is_to_pause = False
        #: No more interruptions: the thread is to end.
        self._closing = False

    def run(self, work: Callable[[], object], done: Callable[[Any], None]) -> None:
        self._asked.append((work, done))
        if len(self._asked) == 1:
            self._later(self._work)

    def _later(self, what: Callable[[], None]) -> None:
        self._process.call_later(self._host.takes_us(self._host.swarm.offload_us) / 1e6, what)

    def _work(self) -> None:
        if not self._asked:
            return
        work, _ = self._asked[0]

        def job() -> object:
            try:
                return work()
            except Exception as error:  # as the thread does; PowerLost is no Exception
                return error

        if not self._locks:
            assert self._host.broker is not None
            self._locks = _replace_locks(self._host.broker._store, self)
        self._is_to_pause = False
        self._job = greenlet(job)
        # A job that never ends must not be garbage-collected, with its cleanup, during this history.
        self._host.jobs.append(self._job)
        self._go_on()

    def _go_on(self) -> None:
        job = self._job
        assert job is not None
        self._host.disk.after = self._operation_done
        try:
            result = job.switch()
        finally:
            self._host.disk.after = None
        if not job.dead:
            self._host.chronicle.counts["job set back"] += 1
            pause_us = self._host.takes_us(self._host.swarm.offload_us) / _PAUSES
            self._process.call_later(pause_us / 1e6, self._go_on)
            return
        self._host.jobs.remove(job)
        self._job = None
        _, done = self._asked.popleft()
        self._process.call_soon(done, result)
        if self._asked:
            self._later(self._work)

    def _operation_done(self, _: Operation) -> None:
        if getcurrent() is self._job and not self._closing and self._host.is_set_back():
            self._is_to_pause = True
            self.released()

    def released(self) -> None:
        """Continue the job later, unless it holds a lock: with one thread, whoever waits for the lock would wait for ever."""
        job = self._job
        if self._is_to_pause and getcurrent() is job and not any(lock.locked() for lock in self._locks):
            self._is_to_pause = False
            job.parent.switch()

    @property
    def is_under_way(self) -> bool:
        return self._job is not None

    def close(self) -> None:
        """Finish the current job, as the broker waits for the thread."""
        self._closing = True
        self._is_to_pause = False
        if self._job is not None:
            self._job.switch()
            self._job = None
        self._asked.clear()


#: An interrupted job waits for this fraction (1 / n) of the delay of a requested job.
_PAUSES = 8
#: Fraction of a job's operations after which it is interrupted.
_SET_BACK = 0.3
#: Fraction of the power losses after which, of the names that were not synced, the newest one is there and no other.
_ONLY_NEWEST_NAME = 0.3


class _Lock:
    """A lock of the store. A job that was to be interrupted while it held one is interrupted when it releases the last."""

    def __init__(self, offload: SimulatedOffload) -> None:
        self._offload = offload
        self._held = False

    def __enter__(self) -> None:
        assert not self._held, "a thread would wait for a job that is set back"
        self._held = True

    def acquire(self, *, blocking: bool) -> bool:
        assert not blocking
        was_held, self._held = self._held, True
        return not was_held

    def release(self, *_: object) -> None:
        self._held = False
        self._offload.released()

    __exit__ = release

    def locked(self) -> bool:
        return self._held


def _replace_locks(store: Any, offload: SimulatedOffload) -> list[_Lock]:
    """Replace the locks in all parts of the store; none is held now."""
    made: list[_Lock] = []
    known: set[int] = set()
    waiting = [store]
    while waiting:
        one = waiting.pop()
        if id(one) in known:
            continue
        known.add(id(one))
        if type(one).__module__.startswith("halfmq.store"):
            slots = [name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())]
            for name in (*getattr(one, "__dict__", ()), *slots):
                if isinstance(getattr(one, name, None), LockType):
                    made.append(_Lock(offload))
                    setattr(one, name, made[-1])
            waiting += gc.get_referents(one)
        elif isinstance(one, (dict, list, tuple)):
            waiting += gc.get_referents(one)
    return made


class BrokerHost:
    def __init__(
        self,
        swarm: Swarm,
        scheduler: Scheduler,
        network: FaultyNetwork,
        chronicle: Chronicle,
        on_raised: Callable[[ProcessLoop, BaseException], None],
    ) -> None:
        self.swarm = swarm
        self.disk = FaultyDisk(swarm.seed)
        self.clock = VirtualClock(scheduler, look_us=swarm.look_us)
        self.config = BrokerConfig(
            data=DATA,
            hosts=("10.0.0.1",),
            durability=Durability(swarm.durability),
            segment_bytes=swarm.segment_bytes,
            checkpoint_interval_ms=swarm.checkpoint_interval_ms,
            retention_bytes=swarm.retention_bytes,
            retention_ms=swarm.retention_ms or RETENTION_MS,
            retention_check_ms=swarm.retention_check_ms,
            copy_again_ms=swarm.copy_again_ms,
            disk_reserve_bytes=swarm.disk_reserve_bytes,
            settings=BrokerSettings(
                default_topic_queues=swarm.queues,
                check_immunity_ms=swarm.check_immunities_ms[0],
                check_interval_ms=swarm.check_interval_ms,
                # So short that checks are sent within a seed.
                check_interval_max_ms=2 * swarm.check_interval_ms,
                check_answer_ms=swarm.check_answer_ms,
                checks_in_flight_max=swarm.checks_in_flight_max,
                undecided_max=swarm.undecided_max,
                dedup_window_ms=swarm.dedup_window_ms,
            ),
        )
        self.lives = 0
        self.process: ProcessLoop | None = None
        self.broker: Broker | None = None
        #: Whether this run serves; False from its end until the next start has finished.
        self.serves = False
        #: Called with each broker that serves.
        self.on_started: Callable[[Broker], None] = lambda broker: None
        #: Called before a start that found damage is repeated.
        self.on_damage: Callable[[StoreDamaged], None] = lambda error: None
        #: Called at each power loss.
        self.on_power_lost: Callable[[], None] = lambda: None
        #: Called before each start but the first.
        self.on_start: Callable[[], None] = lambda: None
        #: Called after each turn of a broker that serves.
        self.on_turn: Callable[[], None] = lambda: None
        #: Called with the letter of each recovery case.
        self.on_recovered: Callable[[str], None] = lambda letter: None
        #: The cause of a cut operation of the disk: a power loss, or the death of the process only.
        self._cut_is_power = True
        #: End of the log that the last start found; the lowest one since a start that served, if several found one.
        self.left_until = 0
        self._found_ends: list[int] = []
        self._has_served = False
        self._power_was_lost = False
        self._scheduler = scheduler
        self._network = network
        self._chronicle = chronicle
        self._on_raised = on_raised
        self._rng = random.Random(f"{swarm.seed}/host")
        self._set_back = random.Random(f"{swarm.seed}/set back")
        self._names_rng = random.Random(f"{swarm.seed}/names")
        self.chronicle = chronicle
        #: Jobs of the maintenance thread that began and did not end.
        self.jobs: list[greenlet] = []

    def takes_us(self, mean_us: int) -> int:
        """A random duration, sometimes almost zero, sometimes long."""
        return int(mean_us * self._rng.choice((0.1, 0.5, 1.0, 1.0, 4.0)))

    def is_set_back(self) -> bool:
        """Whether the maintenance thread is interrupted now."""
        return self._set_back.random() < _SET_BACK

    # --- runs --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert self.process is None
        immunities_ms = self.swarm.check_immunities_ms
        settings = replace(self.config.settings, check_immunity_ms=immunities_ms[self.lives % len(immunities_ms)])
        self.config = replace(self.config, settings=settings)
        self.lives += 1
        self._has_served = False
        process = self.process = ProcessLoop(self._scheduler, f"broker.{self.lives}", self._raised)
        process.after_turn = self._turned
        self._offload = SimulatedOffload(self, process)
        self.broker = Broker(
            self.config,
            self.disk,
            self.clock,
            SeededEntropy(f"{self.swarm.seed}/{process.name}"),
            process,
            make_syncer=lambda job: SimulatedSync(self, process, job),
            offload=self._offload,
            bind=self._network.bind(process),
        )
        self._errors_at_start = self._disk_errors()
        self.broker.failed.add_done_callback(lambda _: self._stopped_by_itself(process))
        self._chronicle.note(
            FileStarted(t_us=self._scheduler.now_us, by=process.name, system="halfmq", durability=self.swarm.durability)  # type: ignore[arg-type]
        )
        task = process.create_task(self.broker.start())
        task.add_done_callback(lambda _: self._start_ended(process, task))

    def _start_ended(self, process: ProcessLoop, task: Any) -> None:
        error = task.exception()
        if error is None:
            assert self.broker is not None
            self.serves = self._has_served = True
            state = self.broker._sequencer.engine.state
            store = self.broker._store
            assert store is not None
            self._chronicle.counts[f"recovery {store.recovery.case.letter}"] += 1
            self.on_recovered(store.recovery.case.letter)
            self._chronicle.note(
                Started(
                    t_us=self._scheduler.now_us, by=process.name, whom=process.name, epoch=store.epoch,
                    log_start=state.log_start, **self._what_is_left(store),
                )
            )  # fmt: skip
            self.on_started(self.broker)
        elif isinstance(error, PowerLost):
            self._cut()
        else:
            self._chronicle.counts[f"start refused: {type(error).__name__}"] += 1
            self._end_process(close=True)
            self._again()
            if isinstance(error, StoreDamaged):
                self.on_damage(error)
            elif not isinstance(error, OSError) and type(error).__module__ != "halfmq.errors":
                self._on_raised(process, error)

    def _what_is_left(self, store: Any) -> dict[str, Any]:
        """For a start after a power loss: the fields of ``Started`` that tell the history checker what may be lost."""
        was_lost, self._power_was_lost = self._power_was_lost, False
        self.left_until = min([store.recovery.end, *self._found_ends])
        self._found_ends.clear()
        return {"durability": self.swarm.durability, "log_end": self.left_until} if was_lost else {}

    def _note_what_it_found(self) -> None:
        """A start that ends before it serves may have written already, so the next one may find a longer log."""
        if not self._has_served and self.broker is not None and self.broker._store is not None:
            self._found_ends.append(self.broker._store.recovery.end)

    def _turned(self) -> None:
        if self.serves:
            self.on_turn()

    def _raised(self, process: ProcessLoop, error: BaseException) -> None:
        if isinstance(error, PowerLost):
            self._cut()
        else:
            self._on_raised(process, error)

    def _disk_errors(self) -> int:
        """Number of errors that the disk returned, and of flipped bits: the legal reasons for a broker to stop."""
        return sum(count for name, count in self.disk.faults.items() if name.endswith("EIO") or name == "bit flip")

    def _stopped_by_itself(self, process: ProcessLoop) -> None:
        """The disk failed: the process logs this and ends."""
        if process is self.process:
            self._chronicle.counts["stopped by itself"] += 1
            if self._disk_errors() == self._errors_at_start:
                assert self.broker is not None
                self._on_raised(
                    process, AssertionError(f"it stopped, and no disk failed: {self.broker.failed.result()}")
                )
            self._end_process(close=True)
            self._again()

    # --- ends --------------------------------------------------------------------------------------------------------

    def cut_after(self, steps: int | None, *, power: bool) -> None:
        """The operation after ``steps`` more is done partly; then the power fails, or the process dies."""
        self._cut_is_power = power
        if steps is not None:
            self.disk.power_fails_after(steps)

    def _cut(self) -> None:
        if self._cut_is_power:
            self.power_fails()
        else:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; written data stays in the page cache."""
        self._end_process(close=False)
        self._again()

    def power_fails(self) -> None:
        self._note_what_it_found()
        self._power_was_lost = True
        self.on_power_lost()
        process = self.process
        if process is not None:
            self._chronicle.counts["crash within a job"] += self._offload.is_under_way
            process.kill()
            self._network.power_lost(process)
        self._network.server_is_up = False
        self.process = None
        self.serves = False
        only_newest_name = self._names_rng.random() < _ONLY_NEWEST_NAME
        self._chronicle.counts["only the newest name survives"] += only_newest_name
        self.disk.crash(only_newest_name=only_newest_name)
        self._again()

    async def _drain(self, process: ProcessLoop, broker: Broker) -> None:
        await broker.drain()
        self._scheduler.call_later(0, self._drained, process)

    def drain(self) -> None:
        """SIGTERM."""
        assert self.process is not None
        assert self.broker is not None
        self.process.create_task(self._drain(self.process, self.broker))

    def _drained(self, process: ProcessLoop) -> None:
        if process is self.process:
            self._end_process(close=True)
            self._again()

    def _end_process(self, *, close: bool) -> None:
        process, broker = self.process, self.broker
        assert process is not None
        self._note_what_it_found()
        self._chronicle.counts["crash within a job"] += not close and self._offload.is_under_way
        if close and broker is not None:
            try:
                broker.close()
            except PowerLost:
                self._cut()
                return
            except OSError as error:
                self._chronicle.counts[f"close: {type(error).__name__}"] += 1
        process.kill()
        self._network.process_died(process)
        self.process = None
        self.serves = False
        self.disk.kill()

    def _again(self) -> None:
        self._scheduler.call_later(self._rng.choice(_RESTART_MS) * 1_000, self._start_again)

    def _start_again(self) -> None:
        if self.process is None:
            if not self._network.server_is_up:
                self._network.power_back()
            self.on_start()
            self.start()
