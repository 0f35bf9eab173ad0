"""Many seeds, run in chunks on several processors, and their totals."""

import gc
import hashlib
import itertools
import multiprocessing
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

from tests.simulation.run import Result, run_seed

#: Number of histories between two garbage collections.
_GARBAGE_EVERY = 10
#: Number of seeds that a process takes at once.
CHUNK = 20
#: The same with a time limit.
_CHUNK_IN_TIME = 4


class Chunk(NamedTuple):
    """The results of some consecutive seeds."""

    first: int
    events: list[int]
    faults: list[int]
    counts: Counter[str]
    red: list[Result]
    cpu_seconds: float
    #: SHA-256 of all their trace hashes, in order.
    digest: str


def run_chunk(first: int, count: int, breakage: str = "", until_red: bool = False, profile: str = "") -> Chunk:
    began = time.process_time()
    counts: Counter[str] = Counter()
    events: list[int] = []
    faults: list[int] = []
    red: list[Result] = []
    digest = hashlib.sha256()
    gc.freeze()
    for seed in range(first, first + count):
        result = run_seed(seed, breakage, profile=profile)
        if len(events) % _GARBAGE_EVERY == 0:
            gc.collect()
        counts.update(result.counts)
        events.append(result.events)
        faults.append(result.faults)
        digest.update(result.trace_hash.encode())
        if result.violation:
            red.append(result)
            if until_red:
                break
    return Chunk(first, events, faults, counts, red, time.process_time() - began, digest.hexdigest())


def run_many(
    first: int,
    count: int,
    processes: int,
    breakage: str = "",
    until_red: bool = False,
    seconds: float = 0.0,
    profile: str = "",
) -> Iterator[Chunk]:
    """Yields chunks in order: ``count`` seeds, or as many as fit into ``seconds``. ``until_red``: stop at a violation."""
    ends_at = time.monotonic() + seconds
    if seconds:
        asked: Iterator[tuple[int, int]] = ((start, _CHUNK_IN_TIME) for start in itertools.count(first, _CHUNK_IN_TIME))
        asked = itertools.takewhile(lambda _: time.monotonic() < ends_at, asked)
    else:
        asked = ((start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK))
    chunks = (
        _on_several(asked, processes, breakage, until_red, profile)
        if processes > 1
        else (run_chunk(start, length, breakage, until_red, profile) for start, length in asked)
    )
    for chunk in chunks:
        yield chunk
        if chunk.red and until_red:
            return


def _on_several(
    asked: Iterator[tuple[int, int]], processes: int, breakage: str, until_red: bool, profile: str
) -> Iterator[Chunk]:
    # Not forked: the child must not inherit what this process has loaded or begun.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: deque[Future[Chunk]] = deque()
        try:
            while True:
                for start, length in itertools.islice(asked, processes + 1 - len(running)):
                    running.append(pool.submit(run_chunk, start, length, breakage, until_red, profile))
                if not running:
                    return
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


class Sum:
    """The sum of chunks."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.events: list[int] = []
        self.faults: list[int] = []
        self.red: list[Result] = []
        self.cpu_seconds = 0.0
        self.digest = hashlib.sha256()
        self._began = time.monotonic()

    def add(self, chunk: Chunk) -> None:
        self.counts.update(chunk.counts)
        self.events += chunk.events
        self.faults += chunk.faults
        self.red += [result._replace(counts=Counter()) for result in chunk.red]
        self.cpu_seconds += chunk.cpu_seconds
        self.digest.update(chunk.digest.encode())

    @property
    def seeds(self) -> int:
        return len(self.events)

    def figures(self) -> dict[str, object]:
        return {
            "histories": self.seeds,
            "violations": len(self.red),
            "events": sum(self.events),
            "events_median": statistics.median(self.events) if self.events else 0,
            "faults": sum(self.faults),
            "faults_median": statistics.median(self.faults) if self.faults else 0,
            "seconds": round(time.monotonic() - self._began, 1),
            "cpu_ms_per_history": round(1000 * self.cpu_seconds / max(1, self.seeds), 1),
        }
