"""Log lines to standard error, without ever blocking the broker.

Lines are formatted and cut in the thread that logs, and written by one of their own (``line_queue``). At the end they are written within a
deadline; lines that are left then are dropped.

A line contains text chosen by clients: it is cut, and unprintable characters are escaped, so that nobody can forge a line or control
a terminal. ``log_throttle`` limits repetitions at the place where a line is logged.
"""

import enum
import json
import logging
import os
import select
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from halfmq import limits
from halfmq.broker.line_queue import LineQueue
from halfmq.printable import printable, printable_json, traceback_lines

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Maximum time at the end to write the queue, s.
CLOSE_S: Final = 1.0
#: Interval of retries on a non-blocking descriptor that is full, s.
_FULL_S: Final = 0.5


#: Where a log call has fields besides its text: ``extra={FIELDS: {...}}``. Lines of text do not show them.
FIELDS: Final = "fields"


class LogFormat(enum.Enum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


class LogOutput(logging.Handler):
    """``write``: as ``os.write``. Lines after ``end`` are dropped."""

    def __init__(
        self, fd: int, *, log_format: LogFormat = LogFormat.TEXT, write: Callable[[int, bytes], int] = os.write
    ) -> None:
        super().__init__()
        self._is_json = log_format is LogFormat.JSON
        self.setFormatter(OneObject() if self._is_json else OneLine(FORMAT))
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
        self._put(json_line("CRITICAL", "halfmq.serve", line) if self._is_json else printable(line), always=True)

    def end(self, wait_s: float = CLOSE_S) -> bool:
        """Write the queue and stop. False: it could not be written completely in time."""
        return self._queue.end(wait_s)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in the base class
        """Not to standard error, where it would block."""
        text = f"a log line of {record.name} could not be formatted: {record.msg!r:.200}"
        self._put(json_line("ERROR", __name__, text) if self._is_json else text)

    def _put(self, text: str, *, always: bool = False) -> None:
        self._queue.put(text.encode("utf-8", "backslashreplace") + b"\n", always=always)

    # --- the thread

    def _write_all(self, chunk: bytes, dropped: int) -> None:
        if dropped:
            text = f"{dropped} log lines were dropped: nobody read them in time"
            chunk += (json_line("WARNING", __name__, text) if self._is_json else text).encode() + b"\n"
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


class OneObject(logging.Formatter):
    """One JSON object for each record, in one line: time, level, logger, text, the fields that its call gave, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. Texts are cut as those of ``OneLine``; JSON's escapes take the place of Python's."""
        fields = getattr(record, FIELDS, {})
        more: dict[str, object] = {
            name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()
        }
        if record.exc_info and record.exc_info[1] is not None:
            more["traceback"] = "\n".join(traceback_lines(record.exc_info[1]))[-limits.LOG_TRACE_CHARS_MAX :]
        return json_line(record.levelname, record.name, record.getMessage(), record.created, more)


def json_line(
    level: str, logger: str, text: str, at_s: float | None = None, more: Mapping[str, object] | None = None
) -> str:
    """A log line as a JSON object. ``at_s``: when, seconds since 1970; None: now."""
    at = datetime.now(UTC) if at_s is None else datetime.fromtimestamp(at_s, UTC)
    line = {
        "time": at.isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "text": _cut(text),
        **(more or {}),
    }
    return printable_json(
        json.dumps(line, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
    ).decode()


def _cut(text: str) -> str:
    more = len(text) - limits.LOG_LINE_CHARS_MAX
    return f"{text[: limits.LOG_LINE_CHARS_MAX]}... ({more} more characters)" if more > 0 else text


def one_line(text: str, chars_max: int = limits.LOG_LINE_CHARS_MAX) -> str:
    """``text`` in one line, cut after ``chars_max`` characters, with unprintable characters escaped."""
    more = len(text) - chars_max
    if more > 0:
        return f"{printable(text[:chars_max])}... ({more} more characters)"
    return printable(text)
