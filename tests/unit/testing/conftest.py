"""A service with a database, as somebody has one who tests with ``halfmq.testing``."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfmq import App, AsyncClient, Client
from halfmq.sql import Inbox, MarkerTable
from halfmq.testing import Broker


class Shop:
    """Orders in a database, and a message for each."""

    def __init__(self, url: str, engine: Engine, async_engine: AsyncEngine) -> None:
        self.url = url
        self.engine = engine
        metadata = MetaData()
        self.orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
        self.parcels = Table("parcels", metadata, Column("id", Integer, primary_key=True))
        self.markers = MarkerTable(metadata)
        self.inbox = Inbox(metadata)
        metadata.create_all(engine)
        self.sessions = sessionmaker(engine)
        self.async_sessions = async_sessionmaker(async_engine)

    def client(self) -> Client:
        client = Client(self.url, group="shop")
        client.answer_checks(self.markers, self.sessions)
        return client

    def async_client(self) -> AsyncClient:
        client = AsyncClient(self.url, group="shop")
        client.answer_checks(self.markers, self.async_sessions)
        return client

    def place(self, client: Client, number: int) -> None:
        with self.sessions() as session, client.transaction(session, markers=self.markers) as tx:
            session.execute(insert(self.orders).values(id=number))
            tx.send("order-created", {"id": number}, key=number)

    async def place_async(self, client: AsyncClient, number: int) -> None:
        async with self.async_sessions() as session, client.transaction(session, markers=self.markers) as tx:
            await session.execute(insert(self.orders).values(id=number))
            tx.send("order-created", {"id": number}, key=number)

    def app(self, *, awaits: bool, sends: bool = False) -> App:
        """Makes a parcel of each order, and sends a message for it if it ``sends``."""
        app = App(self.url, group="parcels", sessions=self.async_sessions if awaits else self.sessions)
        options: dict[str, Any] = {"group": "parcels", "inbox": self.inbox, "concurrency": 2}
        if sends:
            options["markers"] = self.markers

        def packed(event: dict[str, int], session: Any, tx: Any = None) -> Any:
            if tx is not None:
                tx.send("parcel-packed", event)
            return insert(self.parcels).values(id=event["id"])

        if awaits:

            async def pack_async(event: dict[str, int], session: Any) -> None:
                await session.execute(packed(event, session))

            async def pack_and_send_async(event: dict[str, int], session: Any, tx: Any) -> None:
                await session.execute(packed(event, session, tx))

            app.consumer("order-created", **options)(pack_and_send_async if sends else pack_async)
            return app

        def pack(event: dict[str, int], session: Any) -> None:
            session.execute(packed(event, session))

        def pack_and_send(event: dict[str, int], session: Any, tx: Any) -> None:
            session.execute(packed(event, session, tx))

        app.consumer("order-created", **options)(pack_and_send if sends else pack)
        return app

    def rows(self, table: Table) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(table.c.id)))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
async def shop(broker: Broker, tmp_path: Path) -> AsyncIterator[Shop]:
    broker.clear()
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    yield Shop(broker.url, engine, async_engine)
    await async_engine.dispose()
    engine.dispose()
