"""When a message is handled again that waits in this process: with a sharding key, for its ``on_dead``, or because no broker took it back.

Each timer belongs to the event loop that started it. Tests let time pass for all timers of the process at once, as for its brokers
(``halfmq.testing``). Time limits of requests and connections are not here: their peers live in real time.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet


class _Timer:
    """Calls ``function`` once. Only its event loop keeps it."""

    __slots__ = ("__weakref__", "_arguments", "_due_s", "_function", "_handle", "loop")

    def __init__(self, after_s: float, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.loop = asyncio.get_running_loop()
        self._function = function
        self._arguments = arguments
        self._due_s = self.loop.time() + after_s
        self._handle = self.loop.call_at(self._due_s, self._fire)

    def _fire(self) -> None:
        with _lock:
            _pending.discard(self)
        self._function(*self._arguments)

    def shorten(self, span_s: float) -> None:
        """Fire ``span_s`` seconds earlier, or at once. On its loop."""
        with _lock:
            if self not in _pending:
                return  # it has fired meanwhile
        self._handle.cancel()
        self._due_s -= span_s
        self._handle = self.loop.call_at(self._due_s, self._fire)


_lock: Final = threading.Lock()
_pending: Final[WeakSet[_Timer]] = WeakSet()


def call_later(after_s: float, function: Callable[..., object], *arguments: Any) -> None:
    """As ``call_later`` of the running event loop, for a message that is handled again."""
    timer = _Timer(after_s, function, arguments)
    with _lock:
        _pending.add(timer)


def pass_time(span_s: float) -> None:
    """Let ``span_s`` seconds pass for all timers of the process, at once. In any thread."""
    with _lock:
        timers = list(_pending)
    for timer in timers:
        try:
            timer.loop.call_soon_threadsafe(timer.shorten, span_s)
        except RuntimeError:
            pass  # its loop was closed, and the message is delivered again to another member
