"""Work for one request that may honestly take long, cut into turns of the event loop, so that other requests are served meanwhile.

The work is a generator (``model.steps``), which yields wherever it may be interrupted. What it reads may have changed after that. Small
work is done at once. Otherwise one part of it runs in each round of the loop, in turns with that of other requests; so a request with much
work delays others by ``limits.INTAKE_TURN_S``, as in ``peers.intake``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.core.decision import Refused, Why
from halfmq.model.steps import Steps

T = TypeVar("T")

#: Maximum number of requests whose work has begun and is not done. Protects memory, with what each peer may keep.
WAITING_MAX: Final = 256


class _Work(NamedTuple):
    peer: Peer
    owner: str
    memory_bytes: int
    steps: Steps[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    in_order: bool


class Turns:
    """Runs on the loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], flush: Callable[[], None]) -> None:
        """``clock``: as ``Clock.elapsed_s``. ``flush``: called after responses that belong to no read, so that they are sent."""
        self._loop = loop
        self._clock = clock
        self._flush = flush
        self._waiting: deque[_Work] = deque()
        self._shares = Shares("requests that take long")

    @property
    def waiting(self) -> int:
        """Number of requests whose work has begun and is not done."""
        return len(self._waiting)

    def run(
        self,
        peer: Peer,
        memory_bytes: int,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        *,
        in_order: bool,
    ) -> Refused | None:
        """Call ``done`` with the result, or ``failed`` with what was raised: at once if the work is small. Refused, with NOT_NOW: too many
        others wait; neither is called.

        ``memory_bytes``: of the request, which is kept meanwhile. ``in_order``: the peer's further requests are served after it, as for
        what is
        sent: clients send one message or half batch after the other without waiting. It is finished if the peer is gone, as other
        requests that have arrived; work that is not in order ends then.
        """
        owner = ""
        if self._waiting:
            owner = owner_of(peer)
            busy = self._shares.refusal(owner, WAITING_MAX)
            if busy is not None:
                return Refused(Why.NOT_NOW, f"{busy}: try again")
        work = _Work(peer, owner, memory_bytes, steps, done, failed, in_order)
        if not self._is_over(work):
            if not owner:
                work = work._replace(owner=owner_of(peer))
            self._shares.add(work.owner)
            peer.keep(memory_bytes)
            if in_order:
                peer.hold_requests()
            self._waiting.append(work)
            if len(self._waiting) == 1:
                self._loop.call_soon(self._go_on)
        return None

    def _go_on(self) -> None:
        work = self._waiting.popleft()
        if not (work.peer.is_open or work.in_order) or self._is_over(work):
            self._shares.add(work.owner, -1)
            work.peer.give_back(work.memory_bytes)
            if work.in_order:
                work.peer.resume_requests()
            self._flush()
        else:
            self._waiting.append(work)
        if self._waiting:
            self._loop.call_soon(self._go_on)

    def _is_over(self, work: _Work) -> bool:
        """Do a part of the work. True: it was the last one, and its end was reported."""
        until_s = self._clock() + limits.INTAKE_TURN_S
        try:
            while True:
                next(work.steps)
                if self._clock() >= until_s:
                    return False
        except StopIteration as end:
            result = end.value
        except Exception as error:  # noqa: BLE001 - judged by the front door, as if its handler had raised
            work.failed(error)
            return True
        try:
            work.done(result)
        except Exception as error:  # noqa: BLE001 - as above
            work.failed(error)
        return True
