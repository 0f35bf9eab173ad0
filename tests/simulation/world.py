"""One thread, one clock, one faulty disk: the real broker runs on them, and a test decides what happens next.

Only the broker's dependencies are replaced: loop, clock, entropy, disk, the sync thread, the maintenance thread, and the
transports of its connections. Time advances only when the test advances it.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from halfmq.broker.broker import Broker
from halfmq.broker.config import BrokerConfig
from halfmq.broker.listener import PortPlan
from halfmq.broker.peers.peers import Admit
from halfmq.store.group_flush import Job
from tests.support.faulty_disk import FaultyDisk
from tests.support.hand_flush import HandFlush
from tests.support.raw_client import Answer, command

DATA = Path("/store")


class HandClock:
    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def elapsed_s(self) -> float:
        return self.now_ms / 1_000


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._seed = seed

    def token(self, nbytes: int) -> bytes:
        return self._rng.randbytes(nbytes)

    def stream(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}/{purpose}")


class HandLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that the broker uses, run manually."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = itertools.count()
        self.admit: Admit

    def time(self) -> float:
        return self._clock.now_ms / 1000

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context.get("exception") or AssertionError(context)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when they are due."""

    async def bind(self, plan: PortPlan, hosts: Sequence[str]) -> "_HandDoor":
        self.admit = plan.admit
        return _HandDoor(10_911 if plan.name == "broker" else 9_876)

    def run_ready(self) -> None:
        """Run everything that is due now, in order. Exceptions of callbacks propagate, including ``PowerLost``."""
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]

    def run_until(self, coroutine: Any) -> Any:
        """Run a coroutine that waits only for futures of this loop."""
        try:
            while True:
                coroutine.send(None)
                self.run_ready()
        except StopIteration as stop:
            return stop.value


class _HandDoor(NamedTuple):
    """A port without connections of its own: ``Life.connect`` opens them."""

    port: int
    addresses: tuple[str, ...] = ()

    def listen(self) -> None:
        return

    accept = close = listen


class HandOffload:
    """Slow work waits until the test runs it."""

    def __init__(self) -> None:
        self.asked: deque[tuple[Callable[[], object], Callable[[Any], None]]] = deque()

    def run(self, work: Callable[[], object], done: Callable[[Any], None]) -> None:
        self.asked.append((work, done))

    def run_one(self) -> None:
        if self.asked:
            work, done = self.asked.popleft()
            try:
                result = work()
            except Exception as error:  # as the thread does; PowerLost is no Exception
                result = error
            done(result)

    def close(self) -> None:
        self.asked.clear()


class Peer:
    """A client's end of a connection to the broker in this world; also the transport that the broker writes to."""

    def __init__(self, protocol: Any, number: int) -> None:
        self.protocol = protocol
        self.number = number
        self.answers: dict[int, Answer] = {}
        self.pushes: list[Answer] = []
        self._pending = b""
        self._opaque = itertools.count(1)
        self.closed = False
        protocol.connection_made(self)

    # --- the client

    def send(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False) -> int:
        opaque = next(self._opaque)
        self.protocol.data_received(command(code, opaque, ext or {}, body, oneway=oneway))
        return opaque

    # --- the transport

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 40_000 + self.number) if name == "peername" else default

    def write(self, data: bytes) -> None:
        import json

        data = self._pending + data
        at = 0
        while len(data) - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            header_end = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
            header = json.loads(data[at + 8 : header_end])
            answer = Answer(
                header["code"], header["opaque"], header.get("flag", 0), header.get("remark"),
                header.get("extFields") or {}, bytes(data[header_end:stop]),
            )  # fmt: skip
            if answer.flag & 1:
                self.answers[answer.opaque] = answer
            else:
                self.pushes.append(answer)
            at = stop
        self._pending = bytes(data[at:])

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def close(self) -> None:
        self.closed = True

    abort = close


class Life:
    """One run of the broker on the world's disk, from its start to the power loss that ends it."""

    def __init__(self, disk: FaultyDisk, clock: HandClock, seed: int, config: BrokerConfig) -> None:
        self.loop = HandLoop(clock)
        self.offload = HandOffload()
        self.flush: HandFlush | None = None
        self._numbers = itertools.count(1)

        def make_syncer(job: Job) -> HandFlush:
            self.flush = HandFlush(job)
            return self.flush

        self.broker = Broker(
            config,
            disk,
            clock,
            SeededEntropy(seed),
            self.loop,
            make_syncer=make_syncer,
            offload=self.offload,
            bind=self.loop.bind,
        )

    def start(self) -> None:
        self.loop.run_until(self.broker.start())
        self.loop.run_ready()

    def connect(self) -> Peer:
        return Peer(self.loop.admit("127.0.0.1"), next(self._numbers))

    def sync(self) -> None:
        """Do the work of the sync thread now."""
        if self.flush is not None:
            self.flush.run()
        self.loop.run_ready()

    def settle(self) -> None:
        """Run until nothing more is due at this moment."""
        for _ in range(50):
            self.loop.run_ready()
            self.sync()
            if self.offload.asked:
                self.offload.run_one()
            elif self.flush is None or self.flush.asked is None:
                self.loop.run_ready()
                return

    @property
    def state(self) -> Any:
        return self.broker._sequencer.engine.state
