"""One application on each database, driver and face of the client: what a test does to a session, it does on all of them.

A test passes a plain function to ``App.play`` (a session), ``App.run`` (a block) or ``App.handle`` (a message). On the asynchronous face
it runs in ``AsyncSession.run_sync``, so that statements take the way through the asynchronous driver, and ``App.block`` and ``App.once``
enter and leave the asynchronous context manager.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cached_property
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from sqlalchemy import Column, Engine, ForeignKey, Integer, MetaData, String, Table, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, registry, sessionmaker
from sqlalchemy.util import await_only
from tests.unit.sql.conftest import markers_of, with_foreign_keys
from tests.unit.sql.memory_broker import Asked, AsyncMemoryClient, MemoryBroker, MemoryClient

from halfmq.client.outcome import Outcome
from halfmq.sql import Inbox, MarkerTable, Outbox

Body = Callable[[Session, Any], None]
T = TypeVar("T")


class Driver(NamedTuple):
    """A way to a database. ``url``: of SQLAlchemy, with the directory of a socket or file and the name of a database to fill in."""

    database: str
    name: str
    is_async: bool
    url: str

    @property
    def blocking(self) -> "Driver":
        """The blocking driver of the same database, on which tests look at it from outside."""
        return next(driver for driver in DRIVERS if driver.database == self.database and not driver.is_async)


DRIVERS = (
    Driver("sqlite", "sqlite3", False, "sqlite:///{where}/shop.db"),
    Driver("sqlite", "aiosqlite", True, "sqlite+aiosqlite:///{where}/shop.db"),
    Driver("postgresql", "psycopg", False, "postgresql+psycopg://postgres@/{name}?host={where}"),
    Driver("postgresql", "psycopg_async", True, "postgresql+psycopg://postgres@/{name}?host={where}"),
    Driver("postgresql", "asyncpg", True, "postgresql+asyncpg://postgres@/{name}?host={where}"),
    Driver("mariadb", "pymysql", False, "mariadb+pymysql://root@/{name}?unix_socket={where}"),
    Driver("mariadb", "asyncmy", True, "mariadb+asyncmy://root@/{name}?unix_socket={where}"),
)
MARKS = {
    "sqlite": (),
    "postgresql": (pytest.mark.slow, pytest.mark.postgres),
    "mariadb": (pytest.mark.slow, pytest.mark.mariadb),
}
#: In the gate these go through one walk only: another face of a database that is there whole.
_WALK_ONLY = frozenset({"psycopg_async", "asyncmy"})


def on(driver: Driver, *values: Any, name: str = "", walk: bool = False, is_rare: bool = False) -> Any:
    """A parameter for a test on ``driver``. ``walk``: also in the gate, whatever the driver. ``is_rare``: on servers not in the gate."""
    is_rare = is_rare and driver.database != "sqlite"
    rare = (pytest.mark.thorough,) if is_rare or (driver.name in _WALK_ONLY and not walk) else ()
    identity = f"{driver.name}-{name}" if name else driver.name
    return pytest.param(driver, *values, id=identity, marks=(*MARKS[driver.database], *rare))


ALL = [on(driver) for driver in DRIVERS]
ASYNC = [on(driver) for driver in DRIVERS if driver.is_async]
#: Databases that defer a constraint, so that it fails in COMMIT.
DEFERRED = [on(driver) for driver in DRIVERS if driver.database != "mariadb"]
WALK = [on(driver, walk=True) for driver in DRIVERS]


class Order:
    """A row of the table ``orders``."""

    def __init__(self, order_id: int, note: str = "") -> None:
        self.id = order_id
        self.note = note


class Line:
    """A row of the table ``lines``; its foreign key is checked at COMMIT where the database can do that."""

    def __init__(self, line_id: int, order_id: int) -> None:
        self.id = line_id
        self.order_id = order_id


class Message(NamedTuple):
    """The part of a message that the inbox reads."""

    message_id: str
    keys: tuple[str, ...] = ()


class Sorry(Exception):
    """The application's own exception."""


def wait(given: T | Awaitable[T]) -> T:
    """Inside ``App.play``: ``given`` itself, or the result of awaiting it."""
    return await_only(given) if isawaitable(given) else given  # type: ignore[arg-type, return-value]


class _Plain(AbstractContextManager[Any]):
    """Makes an asynchronous context manager usable in ``with``, inside ``App.play``."""

    def __init__(self, inner: AbstractAsyncContextManager[Any]) -> None:
        self._inner = inner

    def __enter__(self) -> Any:
        return wait(self._inner.__aenter__())

    def __exit__(self, *raised: Any) -> bool | None:
        return wait(self._inner.__aexit__(*raised))


class App:
    """The application. ``engine``: from outside, blocking. What a block does goes through ``run``."""

    def __init__(self, driver: Driver, url: str, engine: Engine) -> None:
        self.driver = driver
        self.url = url
        self.engine = engine
        self.broker = MemoryBroker()
        metadata = MetaData()
        self.metadata = metadata
        self.orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("note", String(40)))
        self.lines = Table(
            "lines", metadata,
            Column("id", Integer, primary_key=True),
            Column("order_id", ForeignKey("orders.id", deferrable=True, initially="DEFERRED")),
        ) if driver.database != "mariadb" else Table(
            "lines", metadata,
            Column("id", Integer, primary_key=True),
            Column("order_id", Integer, nullable=False),
        )  # fmt: skip
        self.log = MarkerTable(metadata, min_age_s=0, lock_wait_ms=100)
        self.inbox = Inbox(metadata)
        self.outbox = Outbox(metadata)
        mapper = registry()
        self.order_type: type[Order] = type("MappedOrder", (Order,), {})
        self.line_type: type[Line] = type("MappedLine", (Line,), {})
        mapper.map_imperatively(self.order_type, self.orders)
        mapper.map_imperatively(self.line_type, self.lines)
        metadata.create_all(engine)
        self._own: list[Engine | AsyncEngine] = []

    # --- engines

    def new_engine(self, **options: Any) -> Engine | AsyncEngine:
        """An engine of the application with other options; disposed of at the end."""
        make = create_async_engine if self.driver.is_async else create_engine
        engine = make(self.url, **options)
        if self.driver.database == "sqlite":
            with_foreign_keys(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)
        self._own.append(engine)
        return engine

    @cached_property
    def application(self) -> Engine | AsyncEngine:
        """The engine of its sessions."""
        return self.new_engine()

    @property
    def sync_engine(self) -> Engine:
        """``application``, or the blocking engine under it: for events, and for the dialect."""
        return self.application.sync_engine if isinstance(self.application, AsyncEngine) else self.application

    def sessions(self, engine: Engine | AsyncEngine | None = None) -> Any:
        """A sessionmaker of this face."""
        engine = engine or self.application
        return async_sessionmaker(engine) if isinstance(engine, AsyncEngine) else sessionmaker(engine)

    async def close(self) -> None:
        for engine in self._own:
            if isinstance(engine, AsyncEngine):
                await engine.dispose()
            else:
                engine.dispose()

    # --- what the application does

    async def play(self, scene: Callable[[Session], T], *, engine: Any = None) -> T:
        """Call ``scene`` with a new session, and return its result."""
        if not self.driver.is_async:
            with self.sessions(engine)() as session:
                return scene(session)
        async with self.sessions(engine)() as session:
            return await session.run_sync(scene)

    def block(self, session: Session, **options: Any) -> AbstractContextManager[Any]:
        """Inside ``play``: a block on its session. ``options``: ``query_id``, ``outbox``."""
        if not self.driver.is_async:
            return self.log.bind(MemoryClient(self.broker), session, **options)
        return _Plain(self.log.bind_async(AsyncMemoryClient(self.broker), async_session(session), **options))

    def once(self, session: Session, message: Message, *, group: str = "g") -> AbstractContextManager[bool]:
        """Inside ``play``: ``Inbox.once`` on its session."""
        if not self.driver.is_async:
            return self.inbox.once(session, message, group=group)
        return _Plain(self.inbox.once(async_session(session), message, group=group))  # type: ignore[arg-type]

    async def run(self, body: Body, *, engine: Any = None, **options: Any) -> Any:
        """``body`` in a block with ``options``, on a new session. Returns what ``with`` gave."""

        def scene(session: Session) -> Any:
            with self.block(session, **options) as tx:
                body(session, tx)
            return tx

        return await self.play(scene, engine=engine)

    async def handle(
        self, message: Message, body: Callable[[Session], object], *, group: str = "g", engine: Any = None
    ) -> bool:
        """``body`` in ``Inbox.once``, if the message is there for the first time. Returns whether it was; then it is acknowledged."""

        def scene(session: Session) -> bool:
            with self.once(session, message, group=group) as first:
                if first:
                    body(session)
            return first

        return await self.play(scene, engine=engine)

    async def ask(self, asked: Asked) -> Outcome:
        """One check."""
        answer = self.log.checker(self.sessions())(asked)
        return await answer if isawaitable(answer) else answer

    async def check(self) -> dict[str, Outcome]:
        """The broker's checks of everything undecided."""
        return await self.broker.check(self.log.checker(self.sessions()))

    # --- what is there

    def order_ids(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(self.orders.c.id)))

    def messages(self) -> list[str]:
        """Topics of what consumers see."""
        return [message.topic for message in self.broker.visible()]

    def markers(self) -> dict[str, str]:
        """Outcomes in the marker table, by transaction."""
        with self.engine.connect() as connection:
            return dict(connection.execute(markers_of(self.log.table)).all())  # type: ignore[arg-type]

    def in_outbox(self) -> list[tuple[str, str, str]]:
        """(topic, message id, transaction id) of the rows of the outbox."""
        rows = self.outbox.table.c
        with self.engine.connect() as connection:
            return [
                tuple(row)
                for row in connection.execute(select(rows.topic, rows.message_id, rows.tx_id).order_by(rows.seq))
            ]

    def handled(self) -> int:
        """Rows of the inbox."""
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(self.inbox.table)) or 0


def place(app: App, session: Session, tx: Any, order_id: int) -> None:
    """The order with this number, and its message."""
    session.add(app.order_type(order_id))
    tx.send(f"t{order_id}", b"x")


def agree(app: App) -> list[int]:
    """Orders and messages are of the same numbers, each once; returns them."""
    orders = app.order_ids()
    assert sorted(app.messages()) == sorted(f"t{order_id}" for order_id in orders)
    return orders


def located(request: pytest.FixtureRequest, driver: Driver, directory: Path) -> tuple[str, str]:
    """Where a fresh database is: a directory or socket, and its name."""
    if driver.database == "sqlite":
        return str(directory), ""
    if driver.database == "postgresql":
        server = request.getfixturevalue("postgres_server")
        return str(server.directory), request.getfixturevalue("postgres_database")
    return str(request.getfixturevalue("mariadb_server").socket), request.getfixturevalue("mariadb_database")


@pytest.fixture(params=ALL)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    driver: Driver = request.param
    where, name = located(request, driver, tmp_path)
    engine = create_engine(driver.blocking.url.format(where=where, name=name))
    if driver.database == "sqlite":
        with_foreign_keys(engine)
    application = App(driver, driver.url.format(where=where, name=name), engine)
    yield application
    await application.close()
    engine.dispose()
