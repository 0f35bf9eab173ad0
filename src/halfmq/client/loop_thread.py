"""The event loop behind the blocking facade: one daemon thread per process, started on first use.

Threads do not survive a fork, so a child starts its own. The child keeps references to its parent's loop without using it:
a destructor would act on sockets that the parent still uses.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from halfmq.errors import UsageError

_T = TypeVar("_T")


class LoopThread:
    """An event loop running in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="halfmq-loop", daemon=True)

    def start(self) -> None:
        """Start the thread; returns when the loop runs."""
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the loop and wait for its result. KeyboardInterrupt in the waiting thread cancels it.

        Raises:
            UsageError: called on the loop's own thread (it would deadlock), or the client was closed meanwhile.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("a blocking call inside the client's own loop", hint="use AsyncClient in coroutines")
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            raise UsageError("the client was closed during this call") from None
        except BaseException:
            future.cancel()
            raise


_lock = threading.Lock()
_current: LoopThread | None = None
#: Loops of parent processes: referenced so that they are not collected, never used.
_of_parents: Final[list[LoopThread]] = []


def loop_thread() -> LoopThread:
    """This process's loop thread, started on first use. Afterwards found without the lock, since a signal handler (``stop``)
    may interrupt the thread that holds it.
    """
    global _current
    if _current is not None:
        return _current
    with _lock:
        if _current is None:
            made = LoopThread()
            made.start()
            _current = made
        return _current


def _after_fork_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _of_parents.append(_current)
        _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
