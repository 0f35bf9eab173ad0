"""Searches that must examine every producer group: a part of them in each turn, so that other requests are served meanwhile.

Clients can invent any number of producer groups. A request that names none (a transaction by its id alone, which of some ids are undecided
anywhere) examines all of them; one such search runs at a time, and few may wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.core.decision import Refused, Why
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
        self._waiting: deque[tuple[str, Look, Callable[[], None]]] = deque()
        self._shares = Shares("searches of all producer groups")

    def run(self, peer: Peer, look: Look, then: Callable[[], None]) -> Refused | None:
        """Call ``look`` for each group that exists now, then call ``then``; at once if there are few. Refused, with NOT_NOW: too many
        searches wait.
        """
        owner = owner_of(peer)
        busy = self._shares.refusal(owner, WAITING_MAX)
        if busy is not None:
            return Refused(Why.NOT_NOW, f"{busy}: try again, or name the group")
        self._shares.add(owner)
        self._waiting.append((owner, look, then))
        if len(self._waiting) == 1:
            self._begin()
        return None

    def _begin(self) -> None:
        self._step(deque(self._view.producer_groups.values()))

    def _step(self, groups: "deque[ProducerGroup]") -> None:
        owner, look, then = self._waiting[0]
        looked_at = 0
        while groups and looked_at < EXAMINED_PER_TURN_MAX:
            looked_at += 1 + look(groups.popleft())
        if groups:
            self._loop.call_soon(self._step, groups)
            return
        self._waiting.popleft()
        self._shares.add(owner, -1)
        if self._waiting:
            self._loop.call_soon(self._begin)
        then()
