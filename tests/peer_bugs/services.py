"""Services around one broker over real sockets: their clients, their database, and what consumers see."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Column, ColumnElement, Integer, MetaData, Table, event, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from halfmq import AsyncClient, compose
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import decode
from halfmq.runtime.clock import SystemClock
from halfmq.sql import MarkerTable
from tests.support.in_process import Running

#: Checks in milliseconds instead of seconds; topics of one queue, so that order can be looked at.
QUICK = BrokerSettings(
    check_immunity_ms=40, check_interval_ms=40, check_interval_max_ms=80, check_answer_ms=100, default_topic_queues=1
)
#: Checks are not part of the story.
PATIENT = BrokerSettings(check_immunity_ms=600_000, default_topic_queues=1)
DAY_MS = 86_400_000


def url(running: Running) -> str:
    return f"rocketmq://127.0.0.1:{running.ports.names}"


def undecided(running: Running, group: str = "orders") -> set[str]:
    known = running.state.producer_groups.get(group)
    return set() if known is None else set(known.undecided)


async def visible(running: Running, topic: str = "T") -> list[bytes]:
    client = await running.client()
    bodies: list[bytes] = []
    while (answer := await client.pull(topic, len(bodies))).code == 0:
        at = 0
        while at < len(answer.body):
            message, _, size = decode(answer.body, at)
            bodies.append(message.body)
            at += size
    return bodies


async def dies_undecided(running: Running, tx_ids: list[str], *, name: str, group: str = "orders") -> None:
    """A process prepares these transactions, each with its id as body, and is gone before it says what became of them."""
    process = AsyncClient(url(running), group=group)
    await process.connect()
    for tx_id in tx_ids:
        await process.prepare([compose("T", tx_id.encode())], tx_id=tx_id, name=name)
    await process.close()


class LaterClock(SystemClock):
    """The wall clock of a machine that was off for ``days``."""

    def __init__(self, days: float) -> None:
        self._ahead_ms = round(days * DAY_MS)

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


class Shop(NamedTuple):
    """A service with a database: its orders and its marker table."""

    engine: AsyncEngine
    sessions: async_sessionmaker[AsyncSession]
    orders: Table
    log: MarkerTable

    @classmethod
    @asynccontextmanager
    async def on(cls, path: Path) -> "AsyncIterator[Shop]":
        metadata = MetaData()
        orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
        log = MarkerTable(metadata, min_age_s=0, lock_wait_ms=100)
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        try:
            yield cls(engine, async_sessionmaker(engine), orders, log)
        finally:
            await engine.dispose()

    async def order_whose_commit_is_lost(self, running: Running) -> str:
        """One order: its local COMMIT returns, and at this moment the broker goes down, so that COMMIT never reaches it.

        The process ends as well. Returns the transaction's id.
        """
        process = AsyncClient(url(running), group="orders", timeout=1.0, attempt_timeout=0.5)
        await process.connect()
        async with self.sessions() as session:
            event.listen(session.sync_session, "after_commit", lambda _: running.broker.close(), once=True)
            # It ends before anybody is asked; who comes later answers.
            async with process.transaction(session, markers=self.log, checked_elsewhere=True) as tx:
                await session.execute(insert(self.orders).values(id=1))
                tx.send("T", b"order 1")
        assert tx.receipt is None, "COMMIT was to be lost"
        await process.close(grace=0)
        return tx.id

    def _is_marker(self) -> ColumnElement[bool]:
        return self.log.table.c.tx_id.not_like("#%")

    async def grows_old(self, days: float) -> None:
        """Every marker was written that long ago."""
        written = self.log.table.c.written_at_ms
        async with self.engine.begin() as connection:
            await connection.execute(
                update(self.log.table).where(self._is_marker()).values(written_at_ms=written - round(days * DAY_MS))
            )

    async def markers(self) -> dict[str, str]:
        async with self.engine.connect() as connection:
            rows = await connection.execute(select(self.log.table).where(self._is_marker()))
            return {row.tx_id: row.outcome for row in rows}
