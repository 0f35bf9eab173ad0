"""Log lines to standard error, and nobody waits for whoever should read them.

    a line is logged -> made and cut in its thread -> waits, up to ``LOG_WAITING_BYTES_MAX`` -> written by a thread of its own

A pipe that nobody reads is full after 64 KiB, and a write to it never returns: on the loop that stopped the broker. Lines
for which there is no room are dropped and counted, and the count is said when lines are written again. At the end what
waits is written within a deadline; what is not by then is lost with the process, which ends all the same.

A line holds what peers chose: it is cut, and what is no printable character is escaped, so that nobody can forge a line or
move a terminal's cursor. What is said how often is decided where it is logged (``seldom``).
"""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from halfmq import limits

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: How long the end waits for what was not written yet, s.
CLOSE_S: Final = 1.0
#: Lines that are written together, bytes: what a pipe holds.
_CHUNK_BYTES: Final = 65_536
#: A descriptor that does not block is looked at again after this, s.
_FULL_S: Final = 0.5


class LogOutput(logging.Handler):
    """``write``: as ``os.write``. Lines after ``close`` are dropped."""

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
        """Queue one line for the thread that writes; never blocks."""
        try:
            self._put(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler: a line that cannot be made stops nobody
            self.handleError(record)

    def say_last(self, line: str) -> None:
        """A line for people as it is, behind all others and whatever waits. ``close`` next."""
        self._put(line, always=True)

    def end(self, wait_s: float = CLOSE_S) -> bool:
        """Write what waits, and no more. False: not all of it could be written in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of the base class
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
                pass  # nobody will ever read it (EPIPE), or the disk under it is full: the broker goes on

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
    """One line for each record, cut and escaped; a traceback has its own lines behind it, which are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line for each record: line ends and control characters in it are escaped."""
        record.message = printable(record.getMessage())
        record.asctime = self.formatTime(record, self.datefmt)
        text = self.formatMessage(record)
        if record.exc_info and record.exc_info[0] is not None:
            trace = self.formatException(record.exc_info)[-limits.LOG_TRACE_CHARS_MAX :]
            text += "".join(f"\n  {printable(line)}" for line in trace.split("\n"))
        return text


def printable(text: str, chars_max: int = limits.LOG_LINE_CHARS_MAX) -> str:
    """``text`` in one line, cut behind ``chars_max`` characters, and what cannot be printed escaped."""
    more = len(text) - chars_max
    if more > 0:
        text = text[:chars_max]
    if not text.isprintable():
        text = "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])
    return f"{text}... ({more} more characters)" if more > 0 else text
