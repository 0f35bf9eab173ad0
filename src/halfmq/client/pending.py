"""``Pending``: who waits for an answer, by what the answer names, each with a deadline.

One timer serves all of them, since most are answered before their deadline. ``connection`` keeps the requests of one connection in it, by
opaque; ``request_reply`` the requests of a client, by correlation id.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Generic, TypeVar

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

#: Granularity of deadlines, seconds.
_TICK_S: Final = 0.05


class Pending(Generic[_Key, _Answer]):
    """Futures by key. It belongs to one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        late: Callable[[], Exception],
        when_late: Callable[[list[float]], None] = lambda _: None,
    ) -> None:
        """``late``: makes the exception of a future whose deadline has passed. ``when_late``: called after that with the times at which
        those futures were added, on the loop's clock."""
        self._loop = loop
        self._late = late
        self._when_late = when_late
        #: Key -> the future, its deadline, and when it was added, on the loop's clock.
        self._waiting: dict[_Key, tuple[asyncio.Future[_Answer], float, float]] = {}
        #: Fires at ``_timer_at``, not later than the earliest deadline.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: _Key, timeout_s: float) -> "asyncio.Future[_Answer]":
        """A future that ends with the answer, with ``late()`` after ``timeout_s`` seconds, or as ``end`` says."""
        future: asyncio.Future[_Answer] = self._loop.create_future()
        now = self._loop.time()
        deadline = now + timeout_s
        self._waiting[key] = future, deadline, now
        if deadline < self._timer_at:
            self._arm(deadline)
        return future

    def answer(self, key: _Key, answer: _Answer) -> bool:
        """Give ``answer`` to who waits for it. False: nobody does, or does any more."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return False
        if not waiting[0].done():
            waiting[0].set_result(answer)
        return True

    def forget(self, key: _Key) -> None:
        """Nobody waits for it any more."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting[0].cancel()

    def end(self, error: Callable[[], Exception]) -> None:
        """All that wait get ``error()``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = inf
        waiting, self._waiting = self._waiting, {}
        for future, _, _ in waiting.values():
            if not future.done():
                future.set_exception(error())

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._timer_at = inf
        now = self._loop.time()
        added_at = []
        for key in [key for key, (_, deadline, _) in self._waiting.items() if deadline <= now]:
            future, _, added = self._waiting.pop(key)
            added_at.append(added)
            if not future.done():
                future.set_exception(self._late())
        if added_at:
            self._when_late(added_at)
        if self._waiting:
            earliest = min(deadline for _, deadline, _ in self._waiting.values())
            self._arm(max(earliest, now + _TICK_S))
