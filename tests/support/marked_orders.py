"""Orders in a database, with a marker table, whose processes die between the steps: before the COMMIT, or before the broker hears of it."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from halfmq import AsyncClient, OutgoingMessage, Prepared, TransactionReceipt
from halfmq.errors import ConnectError, HalfmqError
from halfmq.sql import MarkerTable
from tests.support.served import Served

GROUP: Final = "marked"
#: The smallest age of a marker that ``prune_async`` accepts, seconds.
_PRUNE_AGE_S: Final = 3_600


class _Mortal:
    """The calls of a client whose process may die after its halves are stored, or after its local COMMIT."""

    def __init__(self, client: AsyncClient, rng: random.Random, left: float) -> None:
        self._client = client
        self._rng = rng
        self._left = left
        self.group = client.group

    def new_transaction_id(self) -> str:
        return self._client.new_transaction_id()

    async def prepare(self, messages: Sequence[OutgoingMessage], **names: Any) -> Prepared:
        prepared = await self._client.prepare(messages, **names)
        self._may_die("before the local COMMIT")
        return prepared

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        self._may_die("after the local COMMIT")
        return await self._client.commit(prepared)

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return await self._client.rollback(prepared)

    def _may_die(self, when: str) -> None:
        if self._rng.random() < self._left:
            raise ConnectError(f"the process dies {when}")


class MarkedOrders:
    """One database and its orders. While ``work`` runs nobody answers checks."""

    def __init__(self, directory: Path, served: Served, seed: str, *, left: float = 0.15) -> None:
        metadata = MetaData()
        self.served = served
        self.left = left
        self.rng = random.Random(seed)
        self.orders = Table("orders", metadata, Column("tx_id", String(64), primary_key=True))
        self.markers = MarkerTable(metadata, min_age_s=0, lock_wait_ms=100)
        self._metadata = metadata
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{directory / 'orders.db'}")
        self.sessions = async_sessionmaker(self.engine)
        self.over = False

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self._metadata.create_all)

    async def work(self) -> None:
        """Orders, one after the other, until they are ``over``. Whatever the broker does not take is left as it is."""
        while not self.over:
            with contextlib.suppress(HalfmqError):
                async with self.process(self.served, checks=False) as mq:
                    calls = _Mortal(mq, self.rng, self.left)
                    while not self.over:
                        with contextlib.suppress(HalfmqError):
                            await self.order(calls)
                        await asyncio.sleep(0.01)  # real time: the broker may be away
            await asyncio.sleep(0.02)  # real time: the broker is being started

    async def order(self, calls: _Mortal) -> None:
        async with self.sessions() as session, self.markers.bind_async(calls, session) as tx:
            await session.execute(insert(self.orders).values(tx_id=tx.id))
            tx.send("marked", tx.id.encode())

    @contextlib.asynccontextmanager
    async def process(self, served: Served, *, checks: bool = True) -> Any:
        """A client of ``served``, which answers ``checks`` from the markers."""
        mq = AsyncClient(served.url, group=GROUP, timeout=5.0, attempt_timeout=1.0)
        if checks:
            mq.answer_checks(self.markers, self.sessions)
        await mq.connect()
        try:
            yield mq
        finally:
            await mq.close(grace=0)

    async def prune(self, mq: AsyncClient, horizon_ms: int) -> int:
        """Delete the markers that were written before ``horizon_ms`` and that the broker of ``mq`` no longer needs, as a job that runs when
        they are old enough. Returns their number.
        """
        rows = self.markers._markers
        clock = rows._now_ms
        rows._now_ms = lambda: horizon_ms + 1_000 * _PRUNE_AGE_S
        try:
            total = 0
            async with self.sessions() as session:
                while gone := await self.markers.prune_async(
                    session, older_than_s=_PRUNE_AGE_S, undecided=mq.undecided
                ):
                    total += gone
                    await session.commit()
            return total
        finally:
            rows._now_ms = clock

    async def committed(self) -> set[str]:
        """Ids of the transactions whose order is in the database."""
        async with self.sessions() as session:
            return set((await session.scalars(select(self.orders.c.tx_id))).all())

    async def marked(self) -> dict[str, str]:
        """Id -> ``C`` or ``R``, of the markers that are there."""
        table = self.markers.table
        async with self.sessions() as session:
            rows = await session.execute(select(table.c.tx_id, table.c.outcome).where(~table.c.tx_id.startswith("#")))
            return {str(tx_id): str(outcome) for tx_id, outcome in rows}
