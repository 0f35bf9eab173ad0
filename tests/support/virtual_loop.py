"""Many processes on one thread and one virtual clock: each has an asyncio event loop in which waiting takes no real time.

A ``Scheduler`` contains all future events, ordered by virtual time. Each simulated process has a ``ProcessLoop``: for the code in
it an ordinary event loop (tasks, futures, timers; ``asyncio.get_running_loop()`` finds it), for the scheduler a queue of
callbacks that run turn by turn. The delay until a process gets its next turn is drawn from the seed, so that processes
overtake each other in every possible order.

A process can be

    killed    its callbacks never run again, and whatever its tasks do while they are discarded has no effect, as after
              SIGKILL: no ``finally`` block sends anything
    paused    SIGSTOP: time passes, everything due waits, and runs when the process is resumed

There are no sockets, threads or signals, and no real time. The same seed and the same calls give the same run, whatever
PYTHONHASHSEED is.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

#: Wall clock at virtual time 0: Unix time in ms.
WALL_AT_START_MS: Final = 1_800_000_000_000
#: A coroutine that awaits in ``except BaseException`` must be closed once per such place.
_CLOSED_AGAIN_MAX: Final = 20
#: Finished tasks are forgotten whenever a process has created this many.
_TASKS_KEPT: Final = 256


_push = heapq.heappush


class VirtualHandle:
    """A pending callback, as ``call_soon`` and ``call_at`` return it. Cheaper than asyncio's own."""

    __slots__ = ("args", "callback", "context", "when_us")

    def __init__(
        self, callback: Callable[..., object] | None, args: tuple[Any, ...], context: Context | None, when_us: int
    ) -> None:
        #: None: cancelled or done.
        self.callback = callback
        self.args = args
        self.context = context
        self.when_us = when_us

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        """The time on the loop's clock, seconds."""
        return self.when_us / 1_000_000


class Deadlock(AssertionError):
    """A process waits, and nothing will ever happen."""


class Scheduler:
    """Virtual time, and all future events in order. All processes share one."""

    def __init__(self, seed: object, *, turn_us_max: int = 500) -> None:
        """``turn_us_max``: maximum delay until a process with pending work gets its next turn."""
        self.now_us = 0
        self._waiting: list[tuple[int, int, ProcessLoop | None, VirtualHandle | None]] = []
        self._count = 0
        self._rng = random.Random(f"{seed}/turns").random
        self._turn_us_max = turn_us_max
        #: Number of turns of all processes.
        self.turns = 0
        #: All processes ever created.
        self.processes: list[ProcessLoop] = []

    def call_at(self, when_us: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> VirtualHandle:
        """An event of the environment, not of a process: network, disk, fault."""
        handle = VirtualHandle(callback, args, None, when_us)
        self.push(when_us, None, handle)
        return handle

    def call_later(self, delay_us: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> VirtualHandle:
        return self.call_at(self.now_us + delay_us, callback, *args)

    def push(self, when_us: int, process: "ProcessLoop | None", handle: VirtualHandle | None) -> None:
        """``handle`` None: a turn of ``process``."""
        self._count = count = self._count + 1
        now_us = self.now_us
        if when_us < now_us:
            when_us = now_us
        _push(self._waiting, (when_us, count, process, handle))

    def push_turn(self, process: "ProcessLoop") -> None:
        self._count = count = self._count + 1
        _push(self._waiting, (self.now_us + int(self._rng() * self._turn_us_max), count, process, None))

    def discard(self) -> None:
        """The end of the simulation: every process is dead, and what its tasks hold is released now, without effects."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.discard()
        self._waiting.clear()

    def run(self, until_us: int, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass until ``until_us``, or until ``stop()`` is true after an event. Returns whether ``stop`` ended it.

        Exceptions of callbacks of the environment propagate.
        """
        waiting = self._waiting
        pop = heapq.heappop
        while waiting:
            when_us = waiting[0][0]
            if when_us > until_us:
                break
            _, _, process, handle = pop(waiting)
            self.now_us = when_us
            if process is None:
                if handle is not None and handle.callback is not None:
                    handle.callback(*handle.args)
            elif handle is None:
                self.turns += 1
                process.run_turn()
            elif handle.callback is not None:
                process.ready(handle)
            if stop is not None and stop():
                return True
        self.now_us = max(self.now_us, until_us)
        return False


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process.

    ``on_raised`` is called with exceptions of callbacks. It must raise those that no process may survive.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, on_raised: Callable[["ProcessLoop", BaseException], None]
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.alive = True
        self.paused = False
        self.on_raised = on_raised
        #: Called after each turn, outside of the process.
        self.after_turn: Callable[[], None] | None = None
        self._ready: deque[VirtualHandle] = deque()
        self._has_turn = False
        #: Kept, so that no task of a killed process is destroyed, and runs a ``finally``, whenever the garbage collector
        #: happens to run.
        self._tasks: list[asyncio.Task[Any]] = []
        scheduler.processes.append(self)

    # --- controls ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: from now on nothing of this process has any effect."""
        self.alive = False
        self._ready.clear()

    def discard(self) -> None:
        """Discard the remains of a killed process. Coroutines that continue when they are closed are closed again."""
        for task in self._tasks:
            coroutine = task.get_coro()
            for _ in range(_CLOSED_AGAIN_MAX):
                try:
                    coroutine.close()
                except Exception:
                    continue
                break
        self._tasks.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self._ready and not self._has_turn:
            self._has_turn = True
            self.scheduler.push_turn(self)

    def ready(self, handle: VirtualHandle) -> None:
        """``handle`` is due: it runs in the next turn."""
        if self.alive:
            self._ready.append(handle)
            if not self._has_turn and not self.paused:
                self._has_turn = True
                self.scheduler.push_turn(self)

    def run_turn(self) -> None:
        """Run what is ready now; callbacks that become ready meanwhile wait for the next turn."""
        self._has_turn = False
        if self.paused:
            return
        ready = self._ready
        pop = ready.popleft
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if not ready:  # killed meanwhile
                    break
                handle = pop()
                callback = handle.callback
                if callback is None:
                    continue
                handle.callback = None
                try:
                    if handle.context is None:
                        callback(*handle.args)
                    else:
                        handle.context.run(callback, *handle.args)
                except BaseException as error:
                    self.on_raised(self, error)
        finally:
            events._set_running_loop(None)
        if ready and not self._has_turn and not self.paused:
            self._has_turn = True
            self.scheduler.push_turn(self)
        if self.after_turn is not None and self.alive:
            self.after_turn()

    # --- the interface of an event loop ------------------------------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.now_us / 1_000_000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> VirtualHandle:
        handle = VirtualHandle(callback, args, context, 0)
        if self.alive:
            self._ready.append(handle)
            if not self._has_turn and not self.paused:
                self._has_turn = True
                self.scheduler.push_turn(self)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> VirtualHandle:
        when_us = self.scheduler.now_us + round(delay * 1_000_000)
        handle = VirtualHandle(callback, args, context, when_us)
        if self.alive:
            self.scheduler.push(when_us, self, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> VirtualHandle:
        when_us = round(when * 1_000_000)
        handle = VirtualHandle(callback, args, context, when_us)
        if self.alive:
            self.scheduler.push(when_us, self, handle)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name or "", context=context)
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > _TASKS_KEPT and self.alive:
            tasks[:] = [task for task in tasks if not task.done()]
        return task

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def get_debug(self) -> bool:
        return False

    def run_in_executor(self, *_: object) -> Any:
        raise AssertionError("a simulated process has no threads: give the code a RunBlocking that runs in place")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task or future failed, and nobody retrieved the exception."""
        error = context.get("exception")
        if self.alive and error is not None:
            self.on_raised(self, error)


class VirtualClock:
    """The clocks of a machine. ``step`` changes its wall clock, as an administrator or a bad NTP server does.

    ``look_us``: how far ``elapsed_s`` advances with each call, as if handling took that long.
    """

    def __init__(self, scheduler: Scheduler, wall_offset_ms: int = 0, *, look_us: int = 0) -> None:
        self._scheduler = scheduler
        self._look_us = look_us
        self._looked_us = 0
        self._offset_ms = WALL_AT_START_MS + wall_offset_ms
        #: Maximum of the wall clock ahead of virtual time, and behind it.
        self.ahead_ms = max(0, wall_offset_ms)
        self.behind_ms = max(0, -wall_offset_ms)

    def wall_ms(self) -> int:
        return self._offset_ms + self._scheduler.now_us // 1_000

    def monotonic_ms(self) -> int:
        return self._scheduler.now_us // 1_000

    def elapsed_s(self) -> float:
        self._looked_us += self._look_us
        return (self._scheduler.now_us + self._looked_us) / 1e6

    def step(self, by_ms: int) -> None:
        self._offset_ms += by_ms
        self.ahead_ms = max(self.ahead_ms, self._offset_ms - WALL_AT_START_MS)
        self.behind_ms = max(self.behind_ms, WALL_AT_START_MS - self._offset_ms)


class SeededEntropy:
    """The rng of one process: the same name and seed give the same ids and streams."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rng = random.Random(name)

    def token(self, nbytes: int) -> bytes:
        return self._rng.randbytes(nbytes)

    def stream(self, purpose: str) -> random.Random:
        return random.Random(f"{self._name}/{purpose}")
