# ruff: noqa: PT012, SIM117 - what raises is the end of a whole block
"""A real connection that is lost in COMMIT: before it reached the server, and after it took effect."""

from collections.abc import Iterator
from typing import Any

import pytest
from demo.postgres_server import PostgresServer
from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session
from tests.support.cut_line import CutLine
from tests.unit.sql.conftest import Shop, shop_on
from tests.unit.sql.memory_broker import AsyncMemoryClient, MemoryBroker, MemoryClient

from halfmq.client.outcome import Outcome
from halfmq.errors import TransactionUnknown

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

CUTS = [("before", Outcome.ROLLBACK, 0), ("after", Outcome.COMMIT, 1)]


@pytest.fixture
def line(postgres_server: PostgresServer) -> Iterator[CutLine]:
    line = CutLine(postgres_server.directory)
    yield line
    line.close()


@pytest.fixture
def shop_on_postgres(postgres_server: PostgresServer, postgres_database: str) -> Iterator[Shop]:
    engine = create_engine(postgres_server.url("psycopg", postgres_database))
    yield shop_on(engine)
    engine.dispose()


def orders_in(shop: Shop) -> int:
    with shop.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(shop.orders)) or 0


@pytest.mark.parametrize(("cut", "outcome", "orders"), CUTS)
async def test_nothing_is_told_and_the_check_finds_the_truth(
    shop_on_postgres: Shop,
    postgres_database: str,
    line: CutLine,
    client: MemoryClient,
    broker: MemoryBroker,
    cut: Any,
    outcome: Outcome,
    orders: int,
) -> None:
    shop = shop_on_postgres
    engine = create_engine(f"postgresql+psycopg://postgres@/{postgres_database}?host={line.directory}")
    with Session(engine) as session, pytest.raises(TransactionUnknown) as caught:
        with shop.log.bind(client, session) as tx:
            session.execute(insert(shop.orders).values(id=1))
            tx.send("orders", b"x")
            line.cut = cut
    assert (line.cuts, caught.value.tx_id) == (1, tx.id)
    assert broker.calls == [("prepare", tx.id)]
    assert orders_in(shop) == orders
    assert await broker.check(shop.log.checker(shop.sessions())) == {tx.id: outcome}
    assert len(broker.visible()) == orders
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize(("cut", "outcome", "orders"), CUTS)
async def test_async_nothing_is_told_and_the_check_finds_the_truth(
    shop_on_postgres: Shop,
    postgres_database: str,
    line: CutLine,
    async_client: AsyncMemoryClient,
    broker: MemoryBroker,
    driver: str,
    cut: Any,
    outcome: Outcome,
    orders: int,
) -> None:
    shop = shop_on_postgres
    engine = create_async_engine(f"postgresql+{driver}://postgres@/{postgres_database}?host={line.directory}")
    async with async_sessionmaker(engine)() as session:
        with pytest.raises(TransactionUnknown):
            async with shop.log.bind_async(async_client, session) as tx:
                await session.execute(insert(shop.orders).values(id=1))
                tx.send("orders", b"x")
                line.cut = cut
    assert line.cuts == 1
    assert broker.calls == [("prepare", tx.id)]
    assert orders_in(shop) == orders
    assert await broker.check(shop.log.checker(shop.sessions())) == {tx.id: outcome}
    await engine.dispose()
