"""One connection per server, introduced before use; who asks meanwhile shares the attempt."""

import asyncio
import gc

import pytest
from tests.support.scripted_broker import BROKER, Network, ScriptedBroker
from tests.support.virtual_time import in_virtual_time

from halfmq.client.connection import Connection, NoAnswer
from halfmq.client.connection_pool import ConnectionPool
from halfmq.errors import ConnectError
from halfmq.model.address import Address


class World:
    def __init__(self) -> None:
        self.server = ScriptedBroker()
        self.network: Network = self.server.network()
        self.introduced: list[Connection] = []
        self.lost: list[Address] = []
        self.fail: Exception | None = None
        self.delay_s = 0.0
        self.cut = False
        self.connection_pool = ConnectionPool(
            self.network,
            on_push=lambda *_: None,
            on_lost=self.lost.append,
            introduce=self.introduce,
            connect_timeout_s=5.0,
        )

    async def introduce(self, connection: Connection) -> None:
        await asyncio.sleep(self.delay_s)
        if self.fail is not None:
            raise self.fail
        if self.cut:
            connection.connection_lost(None)
        self.introduced.append(connection)


@in_virtual_time
async def test_callers_share_one_attempt_and_one_connection() -> None:
    world = World()
    world.delay_s = 1.0
    found = await asyncio.gather(*(world.connection_pool.get(BROKER) for _ in range(5)))
    assert len({id(connection) for connection in found}) == 1
    assert world.network.connects == [BROKER]
    assert await world.connection_pool.get(BROKER) is found[0]
    assert world.connection_pool.existing(BROKER) is found[0]


@in_virtual_time
async def test_cancelled_caller_does_not_end_the_attempt_of_others() -> None:
    world = World()
    world.delay_s = 1.0
    first, second = (asyncio.ensure_future(world.connection_pool.get(BROKER)) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    assert (await second).address == BROKER
    assert first.cancelled()


@in_virtual_time
async def test_refused_connection_is_a_connect_error_at_once() -> None:
    world = World()
    world.server.up = False
    start = asyncio.get_running_loop().time()
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:10911.*refused"):
        await world.connection_pool.get(BROKER)
    assert asyncio.get_running_loop().time() == start
    world.server.up = True
    assert await world.connection_pool.get(BROKER)


@in_virtual_time
async def test_server_that_accepts_and_is_silent_is_given_up_after_the_timeout() -> None:
    world = World()
    world.delay_s = 60.0
    with pytest.raises(ConnectError, match="within 5 s"):
        await world.connection_pool.get(BROKER)
    assert world.connection_pool.existing(BROKER) is None
    assert world.lost == []


@in_virtual_time
async def test_connection_lost_while_it_is_introduced_is_a_connect_error() -> None:
    world = World()
    world.fail = NoAnswer("gone")
    with pytest.raises(ConnectError, match="gone"):
        await world.connection_pool.get(BROKER)
    assert world.connection_pool.established() == []


@in_virtual_time
async def test_connection_that_ends_at_the_end_of_its_introduction_is_a_connect_error() -> None:
    world = World()
    world.cut = True
    with pytest.raises(ConnectError, match="closed at once"):
        await world.connection_pool.get(BROKER)
    assert world.connection_pool.established() == []
    world.cut = False
    assert not (await world.connection_pool.get(BROKER)).closed


@in_virtual_time
async def test_failure_that_nobody_waits_for_any_more_is_not_reported_as_unseen() -> None:
    """``run`` fails when the loop is told of one."""
    world = World()
    world.delay_s = 1.0
    world.fail = NoAnswer("gone")
    waiting = asyncio.ensure_future(world.connection_pool.get(BROKER))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.sleep(2)
    assert waiting.cancelled()
    assert world.connection_pool.established() == []
    del waiting
    gc.collect()


@in_virtual_time
async def test_loss_is_reported_once_and_the_next_caller_gets_a_new_connection() -> None:
    world = World()
    first = await world.connection_pool.get(BROKER)
    world.server.stop()
    await asyncio.sleep(0.01)
    assert first.closed
    assert world.lost == [BROKER]
    world.server.start()
    assert await world.connection_pool.get(BROKER) is not first


@pytest.mark.parametrize("cancelled", [False, True])
@in_virtual_time
async def test_close_ends_everything_and_reports_no_loss(cancelled: bool) -> None:
    """A caller that is cancelled meanwhile, as all are at the end of a loop, is so: one that goes on instead never ends."""
    world = World()
    world.delay_s = 1.0
    waiting = asyncio.ensure_future(world.connection_pool.get(BROKER))
    await asyncio.sleep(0.1)
    world.connection_pool.close()
    if cancelled:
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else ConnectError):
        await waiting
    with pytest.raises(ConnectError, match="closed"):
        await world.connection_pool.get(BROKER)
    assert world.lost == []
    await asyncio.sleep(0.01)
    assert not world.server.peers, "nobody would ever close this connection"
