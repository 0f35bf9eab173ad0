"""The broker killed between the half messages of a local transaction and its COMMIT, and the asynchronous client.

The other crash points of a local transaction are those of the profile "kills" (``test_kills``).
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmq import AsyncClient, Client
from halfmq.client.admin import queue_bounds
from halfmq.errors import TopicNotFound
from halfmq.sql import MarkerTable
from tests.support.postgres import postgres_database, postgres_server
from tests.support.served import Served

__all__ = ["postgres_database", "postgres_server"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
markers = MarkerTable(metadata, min_age_s=0)
GROUP = "shop"
TOPICS = ("shop-orders", "shop-stock")
#: Longer than the grace period and the first check together, seconds.
SETTLE_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(
        tmp_path / "store", tmp_path / "broker.log",
        "--check-immunity-ms", "500", "--check-interval-ms", "500", "--segment-bytes", str(1 << 20),
    )  # fmt: skip
    served.start()
    yield served
    served.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'shop.db'}"
    else:
        name = request.getfixturevalue("postgres_database")
        url = request.getfixturevalue("postgres_server").url("psycopg", name)
    engine = create_engine(url)
    metadata.create_all(engine)
    engine.dispose()
    return url


def url_of(broker: Served) -> str:
    return f"rocketmq://127.0.0.1:{broker.name_port}"


def orders_in(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(orders)) or 0


async def visible(url: str) -> list[int]:
    """Numbers of visible messages, by topic."""
    found = []
    async with AsyncClient(url) as mq:
        for topic in TOPICS:
            try:
                found.append(sum(one.end - one.first for one in (await queue_bounds(mq, topic)).values()))
            except TopicNotFound:
                found.append(0)
    return found


async def test_a_broker_killed_between_halves_and_commit_learns_the_verdict_after_its_restart(
    broker: Served, database: str
) -> None:
    """The local COMMIT happens while the broker is dead; the verdict is sent, or found by a check, after the restart."""
    engine = create_engine(database)
    with Client(url_of(broker), group=GROUP, timeout=1.0) as mq:
        mq.answer_checks(markers, sessionmaker(engine))
        with Session(engine) as session:
            calls = KillingCalls(mq, broker)
            with markers.bind(calls, session) as tx:
                session.execute(insert(orders).values(id=1))
                for topic in TOPICS:
                    tx.send(topic, {"id": 1})
        assert calls.killed
        assert tx.receipt is None
        assert orders_in(engine) == 1
        broker.start()
        until = time.monotonic() + SETTLE_S
        while await visible(url_of(broker)) != [1, 1] and time.monotonic() < until:
            await asyncio.sleep(0.1)
    assert await visible(url_of(broker)) == [1, 1]
    engine.dispose()


class KillingCalls:
    """Kills the broker after the halves are acknowledged."""

    def __init__(self, client: Client, broker: Served) -> None:
        self._client, self._broker = client, broker
        self.group = client.group
        self.killed = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def prepare(self, *arguments: object, **names: object) -> object:
        prepared = self._client.prepare(*arguments, **names)  # type: ignore[arg-type]
        self._broker.kill()
        self.killed = True
        return prepared


async def test_async_client_and_session_with_the_broker(broker: Served, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    sessions = async_sessionmaker(engine)
    async with AsyncClient(url_of(broker), group=GROUP) as mq:
        mq.answer_checks(markers, sessions)
        async with sessions() as session, mq.transaction(session, markers=markers) as tx:
            await session.execute(insert(orders).values(id=1))
            tx.send(TOPICS[0], {"id": 1})
            tx.send(TOPICS[1], {"id": 1})
    assert tx.receipt is not None
    assert (tx.receipt.acknowledged, tx.receipt.atomic, tx.receipt.durability) == (True, True, "fsync")
    assert await visible(url_of(broker)) == [1, 1]
    await engine.dispose()
