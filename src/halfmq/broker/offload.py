"""Runs work that would block the loop (encoding a snapshot, checking free space) on one long-lived thread.

It is a port, so that a simulation can run the same work at a time of its choice on its only thread.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

#: Called on the loop with the result of the work, or the exception that it raised.
Done = Callable[[Any], None]


class Offload(Protocol):
    """Runs blocking work outside of the loop."""

    def run(self, work: Callable[[], object], done: Done) -> None:
        """Run ``work`` outside of the loop, in the order of the calls; then call ``done`` on the loop."""
        ...

    def close(self) -> None:
        """Finish the requested work, then stop. ``done`` may not be called any more."""
        ...


class ThreadOffload:
    """One thread, one job at a time, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: SimpleQueue[tuple[Callable[[], object], Done] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], object], done: Done) -> None:
        """Run ``work`` on the thread, then ``done`` with its result or exception on the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="halfmq-maintenance", daemon=True)
            self._thread.start()
        self._asked.put((work, done))

    def close(self) -> None:
        """Wait until every requested job has run, and end the thread. Their ``done`` may not be called."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            work, done = asked
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the caller handles it
                result = error
            try:
                self._loop.call_soon_threadsafe(done, result)
            except RuntimeError:
                return  # the loop is closed: nobody waits for the result
