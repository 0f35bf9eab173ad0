"""Writers of one SQLite file take turns, over all processes, instead of polling.

SQLite has one writer at a time. The others sleep and look again, up to 100 ms later, so that the file is idle much of
the time when many want it. A lock file hands the turn over at once; the kernel frees it when its holder is killed.
Nothing depends on it but speed: who does not take a turn (a check that fences) still finds SQLite's own lock.
"""

import fcntl
import os
from pathlib import Path
from typing import Protocol


class Turn(Protocol):
    """One worker's place in the queue."""

    def take(self) -> None: ...

    def give(self) -> None: ...


class FileTurn:
    """A file description of its own for each worker, so that threads exclude each other too."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def take(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def give(self) -> None:
        """Harmless when it was given already."""
        fcntl.flock(self._file, fcntl.LOCK_UN)


class NoTurn:
    """For databases that have many writers."""

    def take(self) -> None:
        pass

    def give(self) -> None:
        pass
