"""``halfmq.sql`` on the simulated database: an asynchronous DB-API driver and a dialect for SQLAlchemy.

The shipped modules of ``halfmq.sql.rules`` and ``halfmq.sql.alchemy`` run unchanged on a real ``AsyncSession``. For them the
database is PostgreSQL. Each statement, COMMIT and ROLLBACK is a request that takes time, and whose response may be lost
(``database``).

Replaced are clocks and random numbers, so that a seed repeats exactly, and **pruning**. ``MarkerTable.prune`` rejects
ages below an hour, and moves a horizon before which a missing marker is answered with UNKNOWN, so that an operator must
decide. A history here lasts some seconds, so every undecided transaction would be before the horizon. Instead,
``Database.forget`` deletes old markers, and asks the broker which of them must stay, as the shipped module does.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import Engine, MetaData, make_url
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only

from halfmq.client.outcome import Outcome
from halfmq.runtime.clock import Clock
from halfmq.sql import MarkerTable
from halfmq.sql.alchemy import identity_rows
from halfmq.sql.alchemy.checks import MarkerChecks
from halfmq.sql.alchemy.marker_rows import MarkerRows
from halfmq.sql.rules.check import AgeGuard, Asked
from tests.simulation import database as simulated
from tests.simulation.database import MARKERS, Database, DatabaseSession, LockTimeout, Lost
from tests.support.virtual_loop import ProcessLoop, Scheduler

#: Maximum wait of a statement for a lock, ms, unless the statement sets it; and the interval of attempts.
_LOCK_WAIT_MS: Final = 10_000
_ATTEMPT_MS: Final = 20
_SET_LOCK_WAIT: Final = "SET LOCAL lock_timeout = "


class Cursor:
    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self.arraysize = 1

    def execute(self, statement: str, parameters: Any = None) -> None:
        self._rows, columns, self.rowcount = self._connection.execute(statement, dict(parameters or {}))
        self.description = [(name, None, None, None, None, None, None) for name in columns] or None

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return self.fetchall()

    def setinputsizes(self, *sizes: Any) -> None:
        return

    def close(self) -> None:
        self._rows = []

    async def _async_soft_close(self) -> None:
        return


class Connection:
    """The client's end. A killed process has no effect: whatever SQLAlchemy does during its cleanup is lost."""

    def __init__(self, database: Database, process: ProcessLoop) -> None:
        self._database = database
        self._process = process
        self._session = DatabaseSession(database, process)
        self._lock_wait_ms = _LOCK_WAIT_MS
        self._has_written = False
        self.closed = False

    def cursor(self, *_: Any, **__: Any) -> Cursor:
        return Cursor(self)

    def execute(self, statement: str, parameters: dict[str, Any]) -> tuple[list[Any], list[str], int]:
        if statement.startswith(_SET_LOCK_WAIT):
            self._lock_wait_ms = int(statement.removeprefix(_SET_LOCK_WAIT))
            return [], [], -1
        session = self._session
        writes = not statement.startswith("SELECT")
        self._has_written |= writes
        waited_ms = 0
        while True:
            try:
                return self._ask(lambda: session.execute(statement, parameters))
            except LockTimeout:
                if waited_ms >= self._lock_wait_ms:
                    raise
            self._sleep(_ATTEMPT_MS)
            waited_ms += _ATTEMPT_MS

    def commit(self) -> None:
        self._end(lambda: self._database.commit(self._process, self._session))

    def rollback(self) -> None:
        self._end(lambda: self._database.ask(self._process, self._session.rollback))

    def _end(self, request: Callable[[], Awaitable[None]]) -> None:
        self._lock_wait_ms = _LOCK_WAIT_MS
        if self._has_written and not self.closed:
            self._has_written = False
            self._answer_of(request)

    def _ask(self, work: Callable[[], Any]) -> Any:
        return self._answer_of(lambda: self._database.ask(self._process, work))

    def _answer_of(self, request: Callable[[], Awaitable[Any]]) -> Any:
        if self.closed or not self._process.alive:
            raise Lost("the connection is closed")
        try:
            return await_only(request())
        except Lost:
            self.terminate()
            raise

    def _sleep(self, ms: int) -> None:
        if not self._process.alive:
            raise Lost("the connection is closed")
        woken = self._process.create_future()
        self._process.call_later(ms / 1000, woken.set_result, None)
        await_only(woken)

    def terminate(self) -> None:
        """The database notices that the connection is closed, and rolls back."""
        if not self.closed and self._process.alive:
            self._session.rollback()
        self.closed = True

    close = terminate


class Dialect(PGDialect):
    driver = "simulated"
    is_async = True
    has_terminate = True
    supports_statement_cache = True
    default_paramstyle = "named"

    def initialize(self, connection: Any) -> None:
        self.server_version_info = (16, 0)
        self.default_schema_name = "public"
        self.default_isolation_level = "READ COMMITTED"

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        return "READ COMMITTED"

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        return

    def reset_isolation_level(self, dbapi_conn: Any) -> None:
        return

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return isinstance(e, Lost)

    def do_terminate(self, dbapi_connection: Any) -> None:
        dbapi_connection.terminate()


_DBAPI: Final = SimpleNamespace(
    paramstyle="named",
    Error=simulated.DatabaseError,
    DatabaseError=simulated.DatabaseError,
    IntegrityError=simulated.IntegrityError,
    OperationalError=simulated.OperationalError,
)


_DIALECT: Final = Dialect(dbapi=_DBAPI)
_DIALECT.initialize(None)


def sessions_of(database: Database, process: ProcessLoop) -> "async_sessionmaker[AsyncSession]":
    """Sessions of one process; each session has its own connection."""
    pool = NullPool(lambda: Connection(database, process), dialect=_DIALECT)  # type: ignore[arg-type, return-value]
    engine = Engine(pool, _DIALECT, make_url(f"postgresql+simulated:///{database.name}"))
    return async_sessionmaker(AsyncEngine(engine))


class Markers(MarkerTable):
    """The shipped marker table, with the clock of one machine."""

    def __init__(self, clock: Clock, min_age_ms: int) -> None:
        super().__init__(MetaData(), MARKERS, name="marker", min_age_s=min_age_ms / 1_000)
        self._clock = clock
        self._markers = MarkerRows(MetaData(), MARKERS, clock.wall_ms)

    def checker(self, sessions: Callable[[], Any]) -> Callable[[Asked], Outcome | Awaitable[Outcome]]:
        checks = MarkerChecks(self._markers, sessions, min_age_ms=self._min_age_ms, lock_wait_ms=self._lock_wait_ms)
        checks._guard = AgeGuard(self._min_age_ms, self._clock.wall_ms, self._clock.monotonic_ms)
        return checks.check_function()


@contextmanager
def repeatable(seed: int, scheduler: Scheduler) -> Iterator[None]:
    """Identities of marker tables come from the seed, and time is virtual."""
    usual = identity_rows.secrets, identity_rows.time
    numbers = random.Random(f"{seed}/identity")
    identity_rows.secrets = SimpleNamespace(randbits=numbers.getrandbits)  # type: ignore[assignment]
    identity_rows.time = SimpleNamespace(monotonic=lambda: scheduler.now_us / 1e6)  # type: ignore[assignment]
    try:
        yield
    finally:
        identity_rows.secrets, identity_rows.time = usual
