"""Lines that are written by a thread of their own, so that no file or pipe ever blocks the broker.

    a line is put -> queued, up to a number of bytes -> written by a dedicated thread

A pipe that nobody reads is full after 64 KiB, and a write to it never returns: on the loop that would stop the broker. So may a write to a
disk that hangs. Lines that do not fit in the queue are dropped and counted, and the writer gets the number when the queue is empty again.
At the end the queue is written within a deadline.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

#: Bytes of lines written together: the capacity of a pipe.
_CHUNK_BYTES: Final = 65_536


def _nothing_late(all_of_them: bool) -> tuple[Iterable[bytes], float | None]:
    return (), None


class LineQueue:
    """``put`` may be called by any thread. Lines end with a line end."""

    def __init__(
        self,
        write: Callable[[bytes, int], None],
        *,
        name: str,
        bytes_max: int,
        late: Callable[[bool], tuple[Iterable[bytes], float | None]] = _nothing_late,
    ) -> None:
        """``write``: writes lines, and says the number of those that were dropped after them; in the thread, must not raise. ``name``: of
        the thread. ``late``: lines that are due by now, which are never dropped, and the seconds to the next ones; True: all of them. After
        ``look`` it is asked again. It is called with the lock of the queue, and must not put.
        """
        self._write = write
        self._bytes_max = bytes_max
        self._late = late
        self._changed = threading.Condition()
        #: Guarded by ``_changed``.
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, always: bool = False) -> None:
        """Queue a line; never blocks. It is dropped if there is no space, unless ``always``, and after ``end``."""
        with self._changed:
            if self._closing:
                return
            if self._bytes + len(line) > self._bytes_max and not always:
                self._dropped += 1
                return
            self._append(line)
            self._changed.notify()

    def look(self) -> None:
        """Ask ``late`` again."""
        with self._changed:
            self._changed.notify()

    def end(self, wait_s: float) -> bool:
        """Write the queue and stop. False: it could not be written completely in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                wait_s = self._collect()
                while not (self._lines or self._dropped or self._closing):
                    self._changed.wait(wait_s)
                    wait_s = self._collect()
                chunk, dropped = self._take()
            if not chunk and not dropped:
                return
            self._write(chunk, dropped)

    def _collect(self) -> float | None:
        lines, wait_s = self._late(self._closing)
        for line in lines:
            self._append(line)
        return wait_s

    def _take(self) -> tuple[bytes, int]:
        lines = []
        size = 0
        while self._lines and size < _CHUNK_BYTES:
            line = self._lines.popleft()
            size += len(line)
            lines.append(line)
        self._bytes -= size
        dropped = 0
        if not self._lines:
            dropped, self._dropped = self._dropped, 0
        return b"".join(lines), dropped
