"""Writing a history while it happens.

A killed process must not have acted on anything that it did not record: record a request before sending it, and a response
before acting on it. ``record`` returns after one ``write`` into the page cache, which survives a kill (but not a power loss of
the machine; record on another machine then). A caller with many events at once may ``note`` them and call ``flush`` once,
before any of them has an effect.

``MemoryRecorder`` has the same methods and keeps the events in a list, for simulations.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from halfmq.testing.history.events import AnyEvent, FileStarted


def monotonic_us() -> int:
    """The clock of a history on one machine: CLOCK_MONOTONIC, the same for all processes (and Java's ``nanoTime``)."""
    return time.monotonic_ns() // 1_000


class Recorder:
    """Appends events to ``path``, after a first ``FileStarted`` line.

    ``by``: the writer, unique among the files of a history. ``clock``: microseconds, the same clock for all files.
    ``began``: fields of the first line (``system="rocketmq 5.5.0"``, ``policy_groups``, ...).

    An existing file is continued, even if a kill left half a line at its end: a restarted process may use the same file, but
    must give its operations new names. Thread-safe.

    Raises:
        OSError: the file cannot be written. The caller must not do what it wanted to record.
    """

    def __init__(self, path: Path, by: str, clock: Callable[[], int] = monotonic_us, **began: Any) -> None:
        self.path = path
        self.by = by
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._noted: list[bytes] = []
        #: Held while writing: a thread that returns from ``flush`` knows that its events are written, even if another
        #: thread wrote them.
        self._writing = threading.Lock()
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._write(b"\n")
        self.record(FileStarted, **began)

    def record(self, kind: type[AnyEvent], /, **fields: Any) -> None:
        """Write one event with the current time, after everything noted before it."""
        self.add(kind(t_us=self._clock(), by=self.by, **fields))

    def note(self, kind: type[AnyEvent], /, **fields: Any) -> None:
        """Keep one event with the current time; the next ``record``, ``add`` or ``flush`` writes it."""
        self._keep(kind(t_us=self._clock(), by=self.by, **fields))

    def add(self, event: AnyEvent) -> None:
        """Write an event that already has its time and writer."""
        self._keep(event)
        self.flush()

    def _keep(self, event: AnyEvent) -> None:
        line = self._encode(event) + b"\n"
        with self._writing:
            self._noted.append(line)

    def flush(self) -> None:
        """Write everything noted."""
        with self._writing:
            noted, self._noted = self._noted, []
            if noted:
                self._write(b"".join(noted))

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        written = os.write(self._file, data)
        while written < len(
            data
        ):  # short write after a signal or on a nearly full disk: write the rest, or get the error
            data = data[written:]
            written = os.write(self._file, data)


class MemoryRecorder:
    """Has the methods of ``Recorder``, and appends to the list ``events``, which several recorders may share."""

    def __init__(
        self, by: str, clock: Callable[[], int] = monotonic_us, events: list[AnyEvent] | None = None, **began: Any
    ) -> None:
        self.by = by
        self._clock = clock
        self.events: list[AnyEvent] = [] if events is None else events
        self.record(FileStarted, **began)

    def record(self, kind: type[AnyEvent], /, **fields: Any) -> None:
        """See ``Recorder.record``."""
        self.events.append(kind(t_us=self._clock(), by=self.by, **fields))

    note = record

    def add(self, event: AnyEvent) -> None:
        """See ``Recorder.add``."""
        self.events.append(event)

    def flush(self) -> None:
        """Nothing to do: there is no file."""

    def close(self) -> None:
        """Nothing to do: there is no file."""
