"""What an order service was doing when it was killed: counters and one slot a worker in a mapped file.

SIGKILL gives no time to write anything, but what was written into a mapped page stays. One writer, the service; the
reader looks at it while the service runs and after it is dead.
"""

import mmap
import struct
import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_WORD = struct.Struct("<Q")
_COUNTERS = 16
_LATENCY_BUCKETS = 32
_SLOTS_MAX = 64
_SIZE = 8 * (_COUNTERS + _LATENCY_BUCKETS + 2 * _SLOTS_MAX)


class Phase(IntEnum):
    IDLE = 0
    #: The local transaction is open, nothing was sent.
    LOCAL = 1
    #: Half messages are being sent.
    SENDING = 2
    #: The broker has the halves; the local COMMIT has not returned.
    PREPARED = 3
    #: The local transaction is decided; the broker is being told.
    TELLING = 4


#: In these the broker holds, or is about to hold, half messages without a verdict.
OPEN = (Phase.SENDING, Phase.PREPARED, Phase.TELLING)


class Counter(IntEnum):
    #: Baskets of this service's share that are orders now, in all lives of the service.
    ORDERS = 0
    NOTHING_TO_PAY = 1
    UNKNOWN_PRODUCT = 2
    #: Attempts that failed because the broker or the database was away, and were repeated.
    REPEATED = 3
    #: COMMITs whose outcome was unknown.
    UNKNOWN = 4
    #: Found done in the database after a restart.
    RESUMED = 5
    CHECKS_COMMIT = 6
    CHECKS_ROLLBACK = 7
    CHECKS_UNKNOWN = 8
    #: 1 when its share is done and it only answers checks.
    FINISHED = 9


class Snapshot(NamedTuple):
    counters: dict[Counter, int]
    #: Microseconds (power of two) -> transactions.
    latency: list[int]
    #: Phases of the workers.
    phases: list[Phase]

    @property
    def open(self) -> int:
        return sum(phase in OPEN for phase in self.phases)

    @property
    def done(self) -> int:
        return sum(self.counters[one] for one in (Counter.ORDERS, Counter.NOTHING_TO_PAY, Counter.UNKNOWN_PRODUCT))


class FlightRecorder:
    def __init__(self, path: Path, workers: int) -> None:
        with path.open("a+b") as file:
            file.truncate(_SIZE)  # also where a kill came before it had its size; what it counted stays
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._words = memoryview(self._map).cast("Q")
        self._workers = workers
        self._lock = threading.Lock()

    def set(self, counter: Counter, value: int) -> None:
        self._words[counter] = value

    def count(self, counter: Counter) -> None:
        with self._lock:
            self._words[counter] += 1

    def latency(self, seconds: float) -> None:
        bucket = min(max(int(seconds * 1e6), 1).bit_length() - 1, _LATENCY_BUCKETS - 1)
        with self._lock:
            self._words[_COUNTERS + bucket] += 1

    def enter(self, worker: int, phase: Phase, basket_id: int = 0) -> None:
        at = _COUNTERS + _LATENCY_BUCKETS + 2 * worker
        self._words[at + 1] = basket_id
        self._words[at] = phase

    def clear_workers(self) -> None:
        for worker in range(_SLOTS_MAX):
            self.enter(worker, Phase.IDLE)


def read(path: Path) -> Snapshot:
    """What the file says now. A file that does not exist yet, or has no size yet, is a service that did nothing yet."""
    data = (path.read_bytes() if path.exists() else b"").ljust(_SIZE, b"\0")
    words = [word for (word,) in _WORD.iter_unpack(data)]
    slots = words[_COUNTERS + _LATENCY_BUCKETS :]
    return Snapshot(
        {counter: words[counter] for counter in Counter},
        words[_COUNTERS : _COUNTERS + _LATENCY_BUCKETS],
        [Phase(phase) for phase in slots[::2]],
    )


class Stopwatch:
    def __init__(self) -> None:
        self._started = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._started
