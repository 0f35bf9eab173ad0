"""Real databases for the tests of ``halfmq.sql``: SQLite files, and servers of PostgreSQL and MariaDB that are started once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    create_engine,
    delete,
    event,
    select,
    true,
)
from sqlalchemy.orm import Session, sessionmaker
from tests.support.mariadb import mariadb_database, mariadb_server
from tests.support.postgres import postgres_database, postgres_server
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

from halfmq.sql import MarkerTable
from halfmq.sql.alchemy.marker_rows import MarkerRows
from halfmq.sql.rules.table_identity import RESERVED

__all__ = ["mariadb_database", "mariadb_server", "postgres_database", "postgres_server"]

#: For what does not depend on the database: a refusal before any I/O, what SQLAlchemy does.
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
POSTGRES = pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.postgres])
#: In the gate the endings go over it (``test_endings``), in `make test-all` everything.
_MARIADB_IN_THE_GATE = pytest.param("mariadb", marks=[pytest.mark.slow, pytest.mark.mariadb])
MARIADB = pytest.param("mariadb", marks=[pytest.mark.slow, pytest.mark.mariadb, pytest.mark.thorough])
#: For what no ending shows: how a check waits for a lock.
EACH_DATABASE = pytest.mark.parametrize("place", ["sqlite", POSTGRES, _MARIADB_IN_THE_GATE], indirect=True)


@contextmanager
def claiming(engine: Engine) -> Iterator[None]:
    """At the end of the block a thread that was started in it is sending its INSERT to the database, where it waits for the row's owner."""
    sent = threading.Event()

    def heard(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT"):
            sent.set()

    # It stays: SQLAlchemy may be going through its listeners in that thread.
    event.listen(engine, "before_cursor_execute", heard)
    yield
    assert sent.wait(PATIENCE_S), "nothing was inserted"


class Shop(NamedTuple):
    """An application: its tables, its marker, its engine."""

    metadata: MetaData
    orders: Table
    #: Its foreign key is checked at COMMIT, not before.
    lines: Table
    log: MarkerTable
    engine: Engine

    def sessions(self) -> sessionmaker[Session]:
        return sessionmaker(self.engine)

    def order_ids(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(self.orders.c.id)))


def shop_on(engine: Engine) -> Shop:
    metadata = MetaData()
    orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("note", String(40)))
    lines = Table(
        "lines",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("order_id", ForeignKey("orders.id", deferrable=True, initially="DEFERRED"))
        if engine.dialect.name not in ("mysql", "mariadb")
        else Column("order_id", ForeignKey("orders.id")),
    )
    log = MarkerTable(metadata, table="mq_tx", min_age_s=0, lock_wait_ms=100)
    metadata.create_all(engine)
    return Shop(metadata, orders, lines, log, engine)


def markers_of(table: Table) -> "Select[tuple[str, str]]":
    """(id, outcome) of the transactions in a marker table; the rows about the table itself are left out."""
    return select(table.c.tx_id, table.c.outcome).where(table.c.tx_id.not_in(RESERVED)).order_by(table.c.tx_id)


def write_marker(markers: MarkerRows, connection: Connection, tx_id: str) -> str:
    """What a block does with its marker; not committed yet."""
    origin = markers.write(connection, tx_id)
    assert markers.confirm(connection, tx_id, true()) == 1
    return origin


def lose_marker(markers: MarkerRows, connection: Connection, tx_id: str) -> None:
    """As a restore of the table to an earlier time."""
    connection.execute(delete(markers.table).where(markers.table.c.tx_id == tx_id))


def with_foreign_keys(engine: Engine) -> Engine:
    @event.listens_for(engine, "connect")
    def _on(connection, _record) -> None:  # type: ignore[no-untyped-def]
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.close()

    return engine


class Place(NamedTuple):
    """Where the database of this test is: ``kind`` and what makes its URL."""

    kind: str
    sqlite_path: Path
    socket_directory: Path
    database: str

    def url(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.sqlite_path}"
        if self.kind == "mariadb":
            return f"mariadb+pymysql://root@/{self.database}?unix_socket={self.socket_directory}"
        return f"postgresql+psycopg://postgres@/{self.database}?host={self.socket_directory}"


@pytest.fixture(params=["sqlite", POSTGRES, MARIADB])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place("sqlite", tmp_path / "shop.db", Path(), "")
    if request.param == "mariadb":
        server = request.getfixturevalue("mariadb_server")
        return Place("mariadb", Path(), server.socket, request.getfixturevalue("mariadb_database"))
    server = request.getfixturevalue("postgres_server")
    database = request.getfixturevalue("postgres_database")
    return Place("postgres", Path(), server.directory, database)


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    engine = create_engine(place.url())
    if place.kind == "sqlite":
        with_foreign_keys(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def shop(engine: Engine) -> Shop:
    return shop_on(engine)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def client(broker: MemoryBroker) -> MemoryClient:
    return MemoryClient(broker)
