"""Log lines to standard error, without ever blocking the broker.

    a line is logged -> formatted and cut in its thread -> queued, up to ``LOG_WAITING_BYTES_MAX`` -> written by a dedicated thread

A pipe that nobody reads is full after 64 KiB, and a write to it never returns: on the loop that would stop the broker. Lines that do not
fit in the queue are dropped and counted, and the number is logged when lines are written again. At the end the queue is written within
a deadline; lines that are left then are dropped.

A line contains text chosen by clients: it is cut, and unprintable characters are escaped, so that nobody can forge a line or control
a terminal. ``log_throttle`` limits repetitions at the place where a line is logged.
"""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from halfmq import limits
from halfmq.printable import printable, traceback_lines

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Maximum time at the end to write the queue, s.
CLOSE_S: Final = 1.0
#: Bytes of lines written together: the capacity of a pipe.
_CHUNK_BYTES: Final = 65_536
#: Interval of retries on a non-blocking descriptor that is full, s.
_FULL_S: Final = 0.5


class LogOutput(logging.Handler):
    """``write``: as ``os.write``. Lines after ``end`` are dropped."""

    def __init__(self, fd: int, *, write: Callable[[int, bytes], int] = os.write) -> None:
        super().__init__()
        self.setFormatter(OneLine(FORMAT))
        self._fd = fd
        self._write = write
        self._changed = threading.Condition()
        #: Guarded by ``_changed``.
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="halfmq-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line for the writer thread; never blocks."""
        try:
            self._put(self.format(record))
        except Exception:  # noqa: BLE001 - as in every handler: a line that cannot be formatted stops nobody
            self.handleError(record)

    def say_last(self, line: str) -> None:
        """A last line for people, without time and level, after all others in the queue. Call ``end`` next."""
        self._put(printable(line), always=True)

    def end(self, wait_s: float = CLOSE_S) -> bool:
        """Write the queue and stop. False: it could not be written completely in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in the base class
        """Not to standard error, where it would block."""
        self._put(f"a log line of {record.name} could not be formatted: {record.msg!r:.200}")

    def _put(self, text: str, *, always: bool = False) -> None:
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._closing:
                return
            if self._bytes + len(line) > limits.LOG_WAITING_BYTES_MAX and not always:
                self._dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify()

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._dropped or self._closing):
                    self._changed.wait()
                chunk = self._take()
            if not chunk:
                return
            try:
                self._write_all(chunk)
            except OSError:
                pass  # nobody will ever read it (EPIPE), or its disk is full: the broker continues

    def _take(self) -> bytes:
        lines = []
        size = 0
        while self._lines and size < _CHUNK_BYTES:
            line = self._lines.popleft()
            size += len(line)
            lines.append(line)
        self._bytes -= size
        if self._dropped and not self._lines:
            lines.append(b"%d log lines were dropped: nobody read them in time\n" % self._dropped)
            self._dropped = 0
        return b"".join(lines)

    def _write_all(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            try:
                rest = rest[self._write(self._fd, rest) :]  # type: ignore[arg-type]
            except BlockingIOError:
                select.select((), (self._fd,), (), _FULL_S)


class OneLine(logging.Formatter):
    """One line for each record, cut and escaped. A traceback follows in indented lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """One line for each record: line ends and control characters in it are escaped."""
        record.message = one_line(record.getMessage())
        record.asctime = self.formatTime(record, self.datefmt)
        text = self.formatMessage(record)
        if record.exc_info and record.exc_info[1] is not None:
            trace = "\n".join(traceback_lines(record.exc_info[1]))[-limits.LOG_TRACE_CHARS_MAX :]
            text += "".join(f"\n  {one_line(line)}" for line in trace.split("\n"))
        return text


def one_line(text: str, chars_max: int = limits.LOG_LINE_CHARS_MAX) -> str:
    """``text`` in one line, cut after ``chars_max`` characters, with unprintable characters escaped."""
    more = len(text) - chars_max
    if more > 0:
        return f"{printable(text[:chars_max])}... ({more} more characters)"
    return printable(text)
