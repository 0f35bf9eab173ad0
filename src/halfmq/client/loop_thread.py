"""The event loop behind the blocking facade: one daemon thread per process, started on first use.

Threads do not survive a fork, so a child starts its own. The child keeps references to its parent's loop without using it:
a destructor would act on sockets that the parent still uses.

While the interpreter is finalized, daemon threads no longer run, but ``__del__`` and open generators do. So nobody waits without a
bound: a call is refused if the thread cannot answer it any more.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from halfmq.errors import UsageError

_T = TypeVar("_T")

#: How often a waiting thread looks whether the loop thread still runs, seconds.
_LOOK_S: Final = 1.0
_ENDS_HINT: Final = "close clients and consumers before the program ends, not in a generator left open or in __del__"


class LoopThread:
    """An event loop running in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="halfmq-loop", daemon=True)

    def start(self) -> None:
        """Start the thread; returns when the loop runs. Raises UsageError if the interpreter is exiting."""
        try:
            self._thread.start()
        except RuntimeError as error:  # since Python 3.12 also in functions of ``atexit``
            raise UsageError(f"the interpreter is exiting: {error}", hint="open the client earlier") from error
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()

    def refuse_if_ended(self) -> None:
        """Raise UsageError if the thread can answer no call any more."""
        _refuse_at_exit()
        if not self._thread.is_alive() or self.loop.is_closed():
            raise UsageError(
                "the thread of the blocking clients has ended",
                hint="a check function or a callback has raised SystemExit, or stopped the loop",
            )

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the loop and wait for its result. KeyboardInterrupt in the waiting thread cancels it.

        Raises:
            UsageError: called on the loop's own thread (it would deadlock), the client was closed meanwhile, the interpreter is
                exiting, or the thread has ended; then it is not known how far ``work`` came.
        """
        try:
            self.refuse_if_ended()
            if threading.current_thread() is self._thread:
                raise UsageError("a blocking call inside the client's own loop", hint="use AsyncClient in coroutines")
        except UsageError:
            work.close()
            raise
        return run_on(self.loop, work, self.refuse_if_ended)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call ``callback`` on the loop, without waiting for it. Raises UsageError if it could not be called any more."""
        self.refuse_if_ended()
        self.loop.call_soon_threadsafe(callback, *arguments)


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T], refuse_if_ended: Callable[[], None]) -> _T:
    """Run ``work`` on a loop of another thread and wait for its result. ``refuse_if_ended``: raises UsageError if the loop can answer no
    call any more. KeyboardInterrupt in the waiting thread cancels ``work``.

    Raises:
        UsageError: the client was closed meanwhile, or the loop has ended.
    """
    future: Future[_T] = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():  # its own, or it has just ended
                    return future.result()
                refuse_if_ended()
    except CancelledError:
        raise UsageError("the client was closed during this call") from None
    except BaseException:
        future.cancel()
        raise


def _refuse_at_exit() -> None:
    if sys.is_finalizing():
        raise UsageError("the interpreter is exiting, and answers no call any more", hint=_ENDS_HINT)


_lock = threading.Lock()
_current: LoopThread | None = None
#: Loops of parent processes: referenced so that they are not collected, never used.
_of_parents: Final[list[LoopThread]] = []


def loop_thread() -> LoopThread:
    """This process's loop thread, started on first use. Afterwards found without the lock, since a signal handler (``stop``)
    may interrupt the thread that holds it.

    Raises:
        UsageError: the first use, while the interpreter is exiting.
    """
    global _current
    if _current is not None:
        return _current
    _refuse_at_exit()
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
