"""Bugs that the program survives and only logs: a handler that raised, a decision that failed, a task that ended.

Errors of the environment and of the application's own code are logged too and are not bugs; a bug is logged with an
exception of another type.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.simulation.machine import Expected

_NO_BUGS: Final = (OSError, *Expected)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.bugs: list[tuple[str, BaseException]] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _NO_BUGS):
            self.bugs.append((f"{record.name}: {record.getMessage()}", error))


_collector = _Collector()


@contextmanager
def listening() -> Iterator[None]:
    """Broker and client log injected faults, which costs time: only errors are examined and nothing is printed, unless more was
    requested. Afterwards the logger is as before for other tests of the process."""
    logger = logging.getLogger("halfmq")
    level, propagated = logger.level, logger.propagate
    logger.setLevel(level or logging.ERROR)
    logger.propagate = propagated and logger.level < logging.ERROR
    logger.addHandler(_collector)
    try:
        yield
    finally:
        logger.removeHandler(_collector)
        logger.setLevel(level)
        logger.propagate = propagated


def taken() -> list[tuple[str, BaseException]]:
    """What was logged since the last call."""
    found = list(_collector.bugs)
    _collector.bugs.clear()
    return found
