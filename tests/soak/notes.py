"""Where a process of the soak records events: its own history file, and a counter that other processes read."""

import mmap
import threading
from pathlib import Path

from halfmq.testing.history.events import Event
from halfmq.testing.history.recorder import Recorder, monotonic_us
from tests.soak.plan import Plan

now_us = monotonic_us


class Notes:
    """One life of one process. ``by`` names both, for example ``postgres-1.4``."""

    def __init__(self, plan: Plan, by: str, system: str = "halfmq") -> None:
        self.by = by
        self._recorder = Recorder(plan.histories / f"{by}.jsonl", by, system=system)
        self._lock = threading.Lock()

    def write(self, *events: Event) -> None:
        """Written to the page cache when this returns, so a SIGKILL of the writer cannot lose it."""
        with self._lock:
            for event in events:
                self._recorder.add(event)  # type: ignore[arg-type]


class Counter:
    """Number of transactions that a process has finished, over all its lives; one writer, any number of readers."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            if file.tell() < 8:
                file.truncate(8)
            self._map = mmap.mmap(file.fileno(), 8)
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self._map[:8] = (self.read() + 1).to_bytes(8, "little")

    def read(self) -> int:
        return int.from_bytes(self._map[:8], "little")
