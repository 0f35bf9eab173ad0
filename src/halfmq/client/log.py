"""The client's logger: standard ``logging``. Without a handler of the application Python prints warnings and errors on stderr, with their
tracebacks; uvicorn configures its own loggers only, so a ``NullHandler`` here would hide handlers that fail.

What peers chose is made printable before: the arguments of a line, and the text of an exception, whose lines are indented, so that none
looks like a line of the log.
"""

import logging
from collections.abc import Mapping
from numbers import Number
from typing import Any, Final

from halfmq.printable import printable, traceback_lines


class _Printable(logging.Filter):
    """Changes records of its logger; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple([_shown(value) for value in record.args])
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            # Formatters of the standard library use this text instead of their own.
            record.exc_text = "\n".join([f"  {line}" for line in traceback_lines(record.exc_info[1])])
        return True


class _Shown:
    """Prints another object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, Number):
        return value
    return printable(value) if isinstance(value, str) else _Shown(value)


def logger(name: str) -> logging.Logger:
    """The logger of one part of what runs in the application's process."""
    made = logging.getLogger(name)
    if not made.filters:
        made.addFilter(_Printable())
    return made


log: Final = logger("halfmq.client")
