"""The relay's loop, over rows and a target in memory: see ``tests/outbox/test_relay.py`` for real ones."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until
from tests.unit.relay.targets import batch, row

from halfmq.relay.publisher import Batch, Published
from halfmq.relay.relay import Relay
from halfmq.relay.rows import Figures, Lease, Work


class Rows:
    """An outbox with ``claims``: what the next calls of ``claim`` do; then there is nothing to do."""

    lease_s = 10.0
    name = "rows"

    def __init__(self, *claims: Callable[[], Work | None]) -> None:
        self._claims = list(claims)
        self.wake: Callable[[], None] = lambda: None
        #: Times of the calls of ``claim``.
        self.claimed_at_s: list[float] = []
        self.finished: list[Published] = []

    async def establish(self) -> None: ...

    async def claim(self) -> Work | None:
        self.claimed_at_s.append(asyncio.get_running_loop().time())
        found = self._claims.pop(0)() if self._claims else None
        await asyncio.sleep(0.002)  # virtual: the answer is on its way
        return found

    async def renew(self, lease: Lease) -> None: ...

    async def finish(self, work: Work, published: Published, *, goes_on: bool) -> Work | None:
        self.finished.append(published)
        return None

    async def figures(self) -> Figures:
        raise NotImplementedError

    @asynccontextmanager
    async def listening(self, wake: Callable[[], None]) -> AsyncIterator[bool]:
        self.wake = wake
        yield True

    async def close(self) -> None: ...


class Target:
    """Confirms everything."""

    name = "target"
    messages_max = 100

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Batch) -> Published:
        return Published(frozenset(message.seq for message in batch.messages))

    async def recover(self, batch: Batch) -> Published:
        return Published(frozenset())


def work() -> Work:
    return Work(Lease(0, "token"), batch([row("t")]), False)


@in_virtual_time
async def test_a_commit_while_the_only_worker_looks_is_not_slept_over() -> None:
    """The notification arrives after the snapshot of the statement that finds nothing."""
    rows = Rows(lambda: rows.wake())  # type: ignore[func-returns-value]
    async with Relay(rows, Target(), workers=1).running():
        await until(lambda: len(rows.claimed_at_s) == 2, "it looks again")
    first, second = rows.claimed_at_s
    assert second - first < 0.1


@pytest.mark.parametrize("where", ["publish", "finish"])
@in_virtual_time
async def test_a_call_that_is_cancelled_from_within_is_a_failure_and_ends_nothing(where: str) -> None:
    """A library may cancel its own future, such as that of a connection that is lost."""

    async def cancelled(*_: object, **__: object) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    rows, target = Rows(work, work), Target()
    relay = Relay(rows, target, workers=1)
    owner: Any = rows if where == "finish" else target
    usual = getattr(owner, where)
    setattr(owner, where, cancelled)
    task = asyncio.create_task(relay.run(stop := asyncio.Event()))
    await until(lambda: task.done() or rows.claimed_at_s, "the first one")
    setattr(owner, where, usual)
    await until(lambda: task.done() or rows.finished, "the next one")
    assert not task.done()
    stop.set()
    await task


@in_virtual_time
async def test_a_target_that_never_answers_does_not_keep_a_relay_from_its_end() -> None:
    rows, target = Rows(work), Target()
    publishing = asyncio.Event()

    async def never(_batch: Batch) -> Published:
        publishing.set()
        await asyncio.Event().wait()
        raise AssertionError

    target.publish = never  # type: ignore[method-assign]
    async with Relay(rows, target, workers=1).running():
        await publishing.wait()
        told_at_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - told_at_s < 2 * rows.lease_s
    (published,) = rows.finished
    assert published.unavailable, "the batch stays recorded"


@in_virtual_time
async def test_a_failure_that_began_before_the_target_was_back_is_not_news(caplog: pytest.LogCaptureFixture) -> None:
    """One worker waits for an answer for long, while another one fails, and then gets an answer."""
    rows, target = Rows(work, work, work), Target()
    outcomes = iter([(5.0, "no answer"), (0.5, "away"), (0.1, "")])

    async def publish(batch: Batch) -> Published:
        took_s, unavailable = next(outcomes)
        await asyncio.sleep(took_s)  # virtual
        return Published(frozenset(), unavailable=unavailable)

    target.publish = publish  # type: ignore[method-assign]
    async with Relay(rows, target, workers=2).running():
        await until(lambda: len(rows.finished) == 3, "all three")
        await asyncio.sleep(1)  # virtual: the last one has been reported
    said = [record.getMessage() for record in caplog.records if record.name == "halfmq.relay"]
    assert ["waits, and" in line or "goes on" in line for line in said].count(True) == 2, said
