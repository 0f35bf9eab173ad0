"""An outbox on each database and driver, and what relays do with it."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from halfmq.relay.publisher import Published
from halfmq.relay.rows import Work
from halfmq.sql import Outbox
from halfmq.sql.alchemy.outbox_relay import EngineRows
from halfmq.sql.rules import outbox
from halfmq.sql.rules.outbox import lane_of
from tests.support.mariadb import mariadb_database, mariadb_server
from tests.support.postgres import postgres_database, postgres_server
from tests.systems.conftest import served
from tests.unit.sql.conftest import with_foreign_keys
from tests.unit.sql.faces import ALL, Driver, located

__all__ = [
    "mariadb_database",
    "mariadb_server",
    "postgres_database",
    "postgres_server",
    "served",
]


class Shelf:
    """An outbox in a fresh database. ``engine``: from outside, blocking; relays use the driver's."""

    def __init__(self, driver: Driver, url: str, engine: Engine) -> None:
        self.driver = driver
        self.url = url
        self.engine = engine
        self.metadata = MetaData()
        self.outbox = Outbox(self.metadata)
        self.metadata.create_all(engine)
        self._opened: list[Engine | AsyncEngine] = []
        self._rows: list[EngineRows] = []
        self._numbers = itertools.count(1)

    def new_engine(self) -> Engine | AsyncEngine:
        """An engine of a relay; disposed of at the end."""
        engine = create_async_engine(self.url) if self.driver.is_async else create_engine(self.url)
        if self.driver.database == "sqlite":
            with_foreign_keys(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)
        self._opened.append(engine)
        return engine

    async def rows(self, *, lease_s: float = 30.0, messages_max: int = 100, **options: Any) -> EngineRows:
        """The outbox as one relay sees it."""
        made = EngineRows(self.outbox._tables, self.new_engine(), lease_s=lease_s, messages_max=messages_max, **options)
        self._rows.append(made)
        await made.establish()
        return made

    def send(self, *keys: str, topic: str = "t", delay: float | None = None) -> list[str]:
        """A committed transaction with a message for each order key ('' for none). Their bodies are numbers that rise."""
        with Session(self.engine) as session, session.begin():
            return [
                self.outbox.send(session, topic, str(next(self._numbers)), sharding_key=key or None, delay=delay)
                for key in keys
            ]

    def states(self) -> dict[str, str]:
        """Body -> state of each row."""
        table = self.outbox.table
        with self.engine.connect() as connection:
            found = connection.execute(select(table.c.body, table.c.delivery).order_by(table.c.seq))
            return {bytes(body).decode(): delivery for body, delivery in found}

    def pass_time(self) -> None:
        """Every pause of a refused row is over."""
        table = self.outbox.table
        with self.engine.begin() as connection:
            connection.execute(update(table).where(table.c.due_at_ms > 0).values(due_at_ms=1))

    def end_leases(self) -> None:
        """The lease of every lane is over."""
        with self.engine.begin() as connection:
            connection.execute(update(self.outbox._tables.lanes).values(lease_until_ms=0))

    async def close(self) -> None:
        for rows in self._rows:
            await rows.close()
        for engine in self._opened:
            if isinstance(engine, AsyncEngine):
                await engine.dispose()
            else:
                engine.dispose()


def bodies(work: Work | None) -> list[str]:
    """Of the messages of a batch."""
    return [] if work is None else [message.body.decode() for message in work.batch.messages]


def other_key_in_the_lane_of(key: str) -> str:
    """An order key."""
    return next(other for number in range(10_000) if lane_of(other := f"other-{number}", "") == lane_of(key, ""))


def all_of(work: Work) -> Published:
    """Everything was confirmed."""
    return Published(frozenset(message.seq for message in work.batch.messages))


@pytest.fixture
def only_passed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses of refused rows are over after ``Shelf.pass_time`` and not before, however slow the machine is."""
    for name in ("RETRY_MIN_MS", "RETRY_MAX_MS"):
        monkeypatch.setattr(outbox, name, 86_400_000)


@pytest.fixture(params=ALL)
async def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shelf]:
    driver: Driver = request.param
    where, name = located(request, driver, tmp_path)
    engine = create_engine(driver.blocking.url.format(where=where, name=name))
    if driver.database == "sqlite":
        with_foreign_keys(engine)
    made = Shelf(driver, driver.url.format(where=where, name=name), engine)
    yield made
    await made.close()
    engine.dispose()
