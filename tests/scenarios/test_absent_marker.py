"""A marker that is not there, although the transaction committed: an older store, another database, an older database."""

import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from tests.support.in_process import Running, serving
from tests.support.postgres import postgres_database, postgres_server
from tests.support.waiting import until

from halfmq import AsyncClient
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import decode
from halfmq.sql import MarkerTable

__all__ = ["postgres_database", "postgres_server"]

QUICK = BrokerSettings(
    check_immunity_ms=40, check_interval_ms=40, check_interval_max_ms=80, check_answer_ms=100, default_topic_queues=1
)
GROUP = "orders"
DAY_MS = 86_400_000
STORY, RESOLVE = 29_003, 29_004


class Shop(NamedTuple):
    """A service's database: its orders and its marker table."""

    engine: AsyncEngine
    sessions: async_sessionmaker[AsyncSession]
    orders: Table
    log: MarkerTable

    @classmethod
    async def on(cls, url: str) -> "Shop":
        metadata = MetaData()
        orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
        log = MarkerTable(metadata, min_age_s=0, lock_wait_ms=100)
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        return cls(engine, async_sessionmaker(engine), orders, log)

    async def order_whose_commit_is_lost(self, running: Running, order: int = 1) -> str:
        """Its local COMMIT returns, the broker is gone at that moment, and so is the process then."""
        process = self.process(running, timeout=1.0, attempt_timeout=0.5)
        await process.connect()
        async with self.sessions() as session:
            event.listen(session.sync_session, "after_commit", lambda _: running.broker.close(), once=True)
            async with process.transaction(session, markers=self.log) as tx:
                await session.execute(insert(self.orders).values(id=order))
                tx.send("T", b"order %d" % order)
        assert tx.receipt is None, "COMMIT was to be lost"
        await process.close(grace=0)
        return tx.id

    def process(self, running: Running, **options: float) -> AsyncClient:
        """One that answers checks from this database."""
        mq = AsyncClient(f"rocketmq://127.0.0.1:{running.ports.names}", group=GROUP, **options)
        mq.answer_checks(self.log, self.sessions)
        return mq

    async def count_orders(self) -> int:
        async with self.engine.connect() as connection:
            return await connection.scalar(select(func.count()).select_from(self.orders)) or 0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.postgres])])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    else:
        directory = request.getfixturevalue("postgres_server").directory
        url = f"postgresql+asyncpg://postgres@/{request.getfixturevalue('postgres_database')}?host={directory}"
    shop = await Shop.on(url)
    yield shop
    await shop.engine.dispose()


def undecided(running: Running) -> set[str]:
    return set(running.state.producer_groups[GROUP].undecided)


def heard(running: Running, tx_id: str) -> bool:
    """A check was answered, with UNKNOWN or a verdict."""
    return tx_id in running.state.producer_groups[GROUP].session.last_unknown or tx_id not in undecided(running)


async def visible(running: Running) -> list[bytes]:
    client = await running.client()
    bodies: list[bytes] = []
    while (answer := await client.pull("T", len(bodies))).code == 0:
        at = 0
        while at < len(answer.body):
            message, _, size = decode(answer.body, at)
            bodies.append(message.body)
            at += size
    return bodies


async def story(running: Running, tx_id: str) -> str:
    answer = await (await running.client()).ask(STORY, {"txId": tx_id})
    return " ".join(json.loads(answer.body))


async def test_order_committed_before_a_prune_survives_the_restore_of_an_older_store(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a marker that was pruned is not taken for one that never was.

    The backup of the broker's store has the transaction undecided. After the backup it is settled, and two days later its
    marker is pruned. Then the backup is restored, and the broker asks again.
    """
    now_ms = shop.log._markers._now_ms
    shop.log._markers._now_ms = lambda: now_ms() - 2 * DAY_MS
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        tx_id = await shop.order_whose_commit_is_lost(running)
    shutil.copytree(tmp_path / "broker", tmp_path / "backup")
    async with serving(tmp_path / "broker", settings=QUICK) as running, shop.process(running):
        await until(lambda: not undecided(running), "the check settles it")
    shop.log._markers._now_ms = now_ms
    async with shop.sessions() as session:

        async def none(_ids: list[str]) -> list[str]:
            return []

        assert await shop.log.prune_async(session, older_than_s=86_400, undecided=none) == 1
        await session.commit()

    async with serving(tmp_path / "backup", settings=QUICK) as running:
        async with shop.process(running):
            await until(lambda: heard(running, tx_id), "somebody is asked")
            assert undecided(running) == {tx_id}, "the order is committed, and its message was rolled back"
            told = await story(running, tx_id)
            assert "no marker in mq_tx, where those up to" in told
            assert "`halfmq tx commit` or `halfmq tx rollback`" in told
            client = await running.client()
            await client.ask(RESOLVE, {"txId": tx_id, "verdict": "COMMIT", "operator": "ada"})
        assert await visible(running) == [b"order 1"]
    assert await shop.count_orders() == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum(f"transaction {tx_id} stays undecided: no marker" in line for line in warnings) == 1


async def test_process_with_another_database_has_no_answer_and_the_right_one_commits(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = await Shop.on(f"sqlite+aiosqlite:///{tmp_path / 'empty copy.db'}")
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        tx_id = await shop.order_whose_commit_is_lost(running)
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        async with other.process(running):
            await until(lambda: heard(running, tx_id), "somebody is asked")
            assert undecided(running) == {tx_id}, "the order is committed, and its message was rolled back"
            assert "it began in another database" in await story(running, tx_id)
        async with shop.process(running):
            await until(lambda: not undecided(running), "the right database has the answer")
        assert await visible(running) == [b"order 1"]
    (line,) = [record.getMessage() for record in caplog.records if "another database" in record.getMessage()]
    assert "empty copy.db" in line
    await other.engine.dispose()


async def test_order_that_an_older_database_does_not_have_is_rolled_back(tmp_path: Path) -> None:
    """Restored whole, the database is the judge: what it no longer has is not announced."""
    shop = await Shop.on(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    await shop.engine.dispose()
    shutil.copy(tmp_path / "shop.db", tmp_path / "backup.db")
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        await shop.order_whose_commit_is_lost(running)
    await shop.engine.dispose()
    shutil.copy(tmp_path / "backup.db", tmp_path / "shop.db")
    async with serving(tmp_path / "broker", settings=QUICK) as running, shop.process(running):
        await until(lambda: not undecided(running), "the check settles it")
        assert await visible(running) == []
        assert await shop.count_orders() == 0
    await shop.engine.dispose()


async def test_after_restored_is_said_an_absent_marker_waits_for_an_operator(tmp_path: Path) -> None:
    """The marker table alone is older than the orders, say: the order is there, its marker is not."""
    shop = await Shop.on(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        tx_id = await shop.order_whose_commit_is_lost(running)
    async with shop.sessions() as session:
        await session.execute(shop.log.table.delete().where(shop.log.table.c.tx_id == tx_id))
        await session.run_sync(shop.log.restored)
        await session.commit()
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        async with shop.process(running):
            await until(lambda: heard(running, tx_id), "somebody is asked")
            assert undecided(running) == {tx_id}
            assert "before a restore" in await story(running, tx_id)
        later = await shop.order_whose_commit_is_lost(running, 2)
    async with serving(tmp_path / "broker", settings=QUICK) as running, shop.process(running):
        await until(lambda: later not in undecided(running), "what begins afterwards is answered")
        assert await visible(running) == [b"order 2"]
    await shop.engine.dispose()
