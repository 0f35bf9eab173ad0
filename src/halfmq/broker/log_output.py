"""Log lines to standard error, without ever blocking the broker.

Lines are formatted and cut in the thread that logs, and written by one of their own (``line_queue``). At the end they are written within a
deadline; lines that are left then are dropped.

A line contains text chosen by clients: it is cut, and unprintable characters are escaped, so that nobody can forge a line or control
a terminal. ``log_throttle`` limits repetitions at the place where a line is logged.
"""

import logging
import os
import select
from collections.abc import Callable
from typing import Final

from halfmq import limits
from halfmq.broker.line_queue import LineQueue
from halfmq.printable import printable, traceback_lines

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Maximum time at the end to write the queue, s.
CLOSE_S: Final = 1.0
#: Interval of retries on a non-blocking descriptor that is full, s.
_FULL_S: Final = 0.5


class LogOutput(logging.Handler):
    """``write``: as ``os.write``. Lines after ``end`` are dropped."""

    def __init__(self, fd: int, *, write: Callable[[int, bytes], int] = os.write) -> None:
        super().__init__()
        self.setFormatter(OneLine(FORMAT))
        self._fd = fd
        self._write = write
        self._queue = LineQueue(self._write_all, name="halfmq-log", bytes_max=limits.LOG_WAITING_BYTES_MAX)

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
        return self._queue.end(wait_s)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in the base class
        """Not to standard error, where it would block."""
        self._put(f"a log line of {record.name} could not be formatted: {record.msg!r:.200}")

    def _put(self, text: str, *, always: bool = False) -> None:
        self._queue.put(text.encode("utf-8", "backslashreplace") + b"\n", always=always)

    # --- the thread

    def _write_all(self, chunk: bytes, dropped: int) -> None:
        if dropped:
            chunk += b"%d log lines were dropped: nobody read them in time\n" % dropped
        rest = memoryview(chunk)
        try:
            while rest:
                try:
                    rest = rest[self._write(self._fd, rest) :]  # type: ignore[arg-type]
                except BlockingIOError:
                    select.select((), (self._fd,), (), _FULL_S)
        except OSError:
            pass  # nobody will ever read it (EPIPE), or its disk is full: the broker continues


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
