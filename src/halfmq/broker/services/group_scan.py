"""What can be found only by a look at every producer group: a part of them in each turn, so that others are served meanwhile.

Producer groups are as many as clients make up names. A request that names none (a transaction by its id alone, which of some
ids are undecided anywhere) looks through all of them; one such look at a time, and few wait for theirs.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from halfmq.core.view import ProducerGroupView, View

#: What one turn looks at: groups, or transactions in them; about a millisecond.
EXAMINED_PER_TURN_MAX: Final = 4_096
#: Looks that wait, the one that is under way among them.
WAITING_MAX: Final = 256

#: Looks at one group, and says how much there was to look at.
Look = Callable[[ProducerGroupView], int]


class GroupScan:
    """Walks the groups in steps, so that a thousand of them do not hold up others."""

    def __init__(self, view: View, loop: asyncio.AbstractEventLoop) -> None:
        self._view = view
        self._loop = loop
        self._waiting: deque[tuple[Look, Callable[[], None]]] = deque()

    def run(self, look: Look, then: Callable[[], None]) -> bool:
        """``look`` at each group that is there now, then call ``then``: at once where they are few. False: too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append((look, then))
        if len(self._waiting) == 1:
            self._begin()
        return True

    def _begin(self) -> None:
        self._step(deque(self._view.producer_groups.values()))

    def _step(self, groups: "deque[ProducerGroupView]") -> None:
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
