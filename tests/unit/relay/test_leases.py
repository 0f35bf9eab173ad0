"""A relay and its lane during an attempt that takes longer than a lease."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import soon
from tests.unit.relay.targets import batch, row

from halfmq.relay.publisher import Batch, Published
from halfmq.relay.relay import Relay
from halfmq.relay.rows import Figures, Lease, LeaseLost, Work

#: Of an attempt. A lease is a third of it.
ATTEMPT_S = 30.0


class OneLane:
    """An ``OutboxRows`` with one batch. ``is_lost``: somebody else holds the lane when it is to be renewed."""

    lease_s = ATTEMPT_S / 3
    name = "outbox"

    def __init__(self, *, is_lost: bool) -> None:
        self._is_lost = is_lost
        self._work: Work | None = Work(Lease(7, "token"), batch([row("t")]), False)
        #: When the lane was held anew, or released.
        self.held_at_s: list[float] = []
        self.is_over = asyncio.Event()

    def _hold(self) -> None:
        self.held_at_s.append(asyncio.get_running_loop().time())

    async def establish(self) -> None: ...

    async def claim(self) -> Work | None:
        work, self._work = self._work, None
        if work is None:
            self.is_over.set()
        else:
            self._hold()
        return work

    async def renew(self, lease: Lease) -> None:
        if self._is_lost:
            raise LeaseLost("another relay holds it")
        self._hold()

    async def finish(self, work: Work, published: Published, *, goes_on: bool) -> Work | None:
        self._hold()
        return None

    async def figures(self) -> Figures:
        raise NotImplementedError

    @asynccontextmanager
    async def listening(self, wake: Callable[[], None]) -> AsyncIterator[bool]:
        yield False

    async def close(self) -> None: ...


class SlowTarget:
    """A ``Publisher`` whose confirmations take ``ATTEMPT_S``."""

    name = "slow"
    messages_max = 1
    published = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Batch) -> Published:
        await asyncio.sleep(ATTEMPT_S)
        self.published += 1
        return Published(frozenset(message.seq for message in batch.messages))

    recover = publish


@in_virtual_time
@pytest.mark.parametrize("is_lost", [False, True], ids=["held", "lost"])
async def test_a_lane_is_held_as_long_as_an_attempt_takes_and_the_attempt_ends_with_it(is_lost: bool) -> None:
    rows, target = OneLane(is_lost=is_lost), SlowTarget()
    async with Relay(rows, target, workers=1).running():
        await soon(rows.is_over.wait())
    gaps = [later - earlier for earlier, later in zip(rows.held_at_s, rows.held_at_s[1:], strict=False)]
    assert all(gap < rows.lease_s for gap in gaps)
    assert target.published == (0 if is_lost else 1)
    assert len(rows.held_at_s) == 1 if is_lost else sum(gaps) >= ATTEMPT_S
