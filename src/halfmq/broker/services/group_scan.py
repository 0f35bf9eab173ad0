"""Searches that must examine every producer group: a part of them in each turn, so that other requests are served meanwhile.

Clients can invent any number of producer groups. A request that names none (a transaction by its id alone, which of some ids are undecided
anywhere) examines all of them; one such search runs at a time, and few may wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from halfmq.core.state import ProducerGroup, State

#: Maximum number of groups, or of transactions in them, that one turn examines; about a millisecond.
EXAMINED_PER_TURN_MAX: Final = 4_096
#: Maximum number of waiting searches, including the running one.
WAITING_MAX: Final = 256

#: Examines one group, and returns the number of examined items.
Look = Callable[[ProducerGroup], int]


class GroupScan:
    """Iterates over the groups in steps, so that thousands of them do not delay other requests."""

    def __init__(self, view: State, loop: asyncio.AbstractEventLoop) -> None:
        self._view = view
        self._loop = loop
        self._waiting: deque[tuple[Look, Callable[[], None]]] = deque()

    def run(self, look: Look, then: Callable[[], None]) -> bool:
        """Call ``look`` for each group that exists now, then call ``then``; at once if there are few. False: too many searches wait."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append((look, then))
        if len(self._waiting) == 1:
            self._begin()
        return True

    def _begin(self) -> None:
        self._step(deque(self._view.producer_groups.values()))

    def _step(self, groups: "deque[ProducerGroup]") -> None:
        look, then = self._waiting[0]
        looked_at = 0
        while groups and looked_at < EXAMINED_PER_TURN_MAX:
            looked_at += 1 + look(groups.popleft())
        if groups:
            self._loop.call_soon(self._step, groups)
            return
        self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._begin)
        then()
