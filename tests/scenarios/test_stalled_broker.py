"""A broker that is stopped (SIGSTOP) does not take the database connections of the service with it."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, QueuePool, Table, create_engine, event, insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.support.served import Served
from tests.support.waiting import until

from halfmq import AsyncClient, Client, ConnectError, HalfmqError
from halfmq.sql import MarkerTable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

REQUESTS = 30


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "broker.log")
    served.start()
    try:
        yield served
    finally:
        assert served.process is not None
        served.process.send_signal(signal.SIGCONT)
        served.stop()


class Service:
    """Requests that store an order and send a message, on a pool of two database connections."""

    def __init__(self, directory: Path) -> None:
        self.metadata = MetaData()
        self.markers = MarkerTable(self.metadata)
        self.orders = Table("orders", self.metadata, Column("id", Integer, primary_key=True))
        self.path = directory / "shop.db"
        #: Connections that were taken from the pool.
        self.checkouts = 0

    def count(self, pool: Any) -> None:
        def taken(*_: Any) -> None:
            self.checkouts += 1

        event.listen(pool, "checkout", taken)

    async def open(self, stack: AsyncExitStack, face: str, url: str) -> tuple[Callable[[], Awaitable[None]], Any]:
        if face == "blocking":
            engine = create_engine(f"sqlite:///{self.path}", poolclass=QueuePool, pool_size=2, max_overflow=0)
            self.metadata.create_all(engine)
            self.count(engine.pool)
            mq = stack.enter_context(Client(url, group="shop"))
            mq.answer_checks(self.markers, lambda: Session(engine))

            def order() -> None:
                with Session(engine) as session, mq.transaction(session, markers=self.markers, timeout=1.0) as tx:
                    session.execute(insert(self.orders))
                    tx.send("t", b"x")

            return lambda: asyncio.to_thread(order), mq
        async_engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}", pool_size=2, max_overflow=0)
        stack.push_async_callback(async_engine.dispose)
        async with async_engine.begin() as connection:
            await connection.run_sync(self.metadata.create_all)
        self.count(async_engine.sync_engine.pool)
        async_mq = await stack.enter_async_context(AsyncClient(url, group="shop"))
        async_mq.answer_checks(self.markers, lambda: AsyncSession(async_engine))

        async def async_order() -> None:
            async with (
                AsyncSession(async_engine) as session,
                async_mq.transaction(session, markers=self.markers, timeout=1.0) as tx,
            ):
                await session.execute(insert(self.orders))
                tx.send("t", b"x")

        return async_order, async_mq


@pytest.mark.parametrize("face", ["blocking", "async"])
async def test_blocks_fail_without_a_database_connection_until_the_broker_goes_on(
    broker: Served, tmp_path: Path, face: str
) -> None:
    service = Service(tmp_path)
    assert broker.process is not None
    async with AsyncExitStack() as stack:
        order, mq = await service.open(stack, face, broker.url)
        await order()
        os.kill(broker.process.pid, signal.SIGSTOP)

        async def noticed() -> bool:
            with pytest.raises(HalfmqError):
                await order()
            return not mq.is_ready

        await until(noticed, "the stall")
        service.checkouts = 0
        for _ in range(REQUESTS):
            with pytest.raises(ConnectError, match="has answered"):
                await order()
        assert service.checkouts == 0
        os.kill(broker.process.pid, signal.SIGCONT)
        await until(lambda: mq.is_ready, "the broker's answer, which no call asks for")
        await order()
        assert service.checkouts == 1
