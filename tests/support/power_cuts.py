"""A load under power losses and kills, run after run, on a disk that drops, tears and reorders what was not synced.

A test defines a run (``start``, ``load``) and what must hold after each loss. This module decides when the power fails, counts over
many seeds, and counts the seeds for which a promise is broken.
"""

import gc
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from halfmq.errors import HalfmqError
from tests.support.faulty_disk import FaultyDisk, PowerLost


class Lost(AssertionError):
    """A promise is broken; the text says which."""


class Lives:
    """One seed. It repeats exactly.

    Only ``counts`` survives it: a disk with its history takes megabytes, and a test runs thousands of seeds.
    """

    #: Disk operations until the power fails, on average.
    operations: int

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"load {seed}")
        self.disk = FaultyDisk(seed)
        self.counts: Counter[str] = Counter()

    def go(self) -> Counter[str]:
        """Two to five runs, and a final start.

        Raises:
            Lost, HalfmqError: a promise is broken.
        """
        for _ in range(self.rng.randrange(2, 6)):
            self.disk.power_fails_after(int(self.rng.expovariate(1 / self.operations)))
            try:
                self.start()
                self.load()
            except PowerLost:
                self.counts["losses"] += 1
            if self.rng.random() < 0.3:
                self.disk.kill()
                self.counts["kills"] += 1
            else:
                self.disk.crash()
            self.between_lives()
        self.start()
        return self.counts

    def start(self) -> None:
        """Recover, and check all promises."""
        raise NotImplementedError

    def load(self) -> None:
        """Write until done, or until the power fails."""
        raise NotImplementedError

    def between_lives(self) -> None:
        """Other changes of the disk between two runs."""


#: A seed takes up to 50 MB in reference cycles (disk, files and store), which the collector finds late.
_COLLECT_EVERY = 8


def _bounded(seeds: Iterable[int]) -> Iterator[int]:
    for number, seed in enumerate(seeds):
        if number % _COLLECT_EVERY == 0:
            gc.collect()
        yield seed


def counts_of(lives: type[Lives], seeds: Iterable[int]) -> Counter[str]:
    """The sum over all seeds; fails the test at the first seed that breaks a promise."""
    total: Counter[str] = Counter()
    for seed in _bounded(seeds):
        try:
            total += lives(seed).go()
        except (Lost, HalfmqError) as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    return total


def is_broken(lives: type[Lives], seeds: int, more_than: int) -> bool:
    """Whether more than ``more_than`` of these seeds break a promise; stops as soon as they do."""
    count = 0
    for seed in _bounded(range(seeds)):
        try:
            lives(seed).go()
        except (Lost, HalfmqError, ValueError):
            count += 1
            if count > more_than:
                return True
    return False


def without_fdatasync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk of this test syncs, although it reports success."""
    original = FaultyDisk.__init__

    def lying(self: FaultyDisk, seed: int = 0) -> None:
        original(self, seed)
        self.sync_is_a_lie = True

    monkeypatch.setattr(FaultyDisk, "__init__", lying)
