"""A simulated database: transactions, row locks, a unique key, and everything that goes wrong between it and its clients.

Each request travels, is executed, and its response travels back; the client may die, or the database crash, between any
two of these. COMMIT may have happened although its response is lost. A transaction whose client died is rolled back, and
its locks are released, only when the database notices. The database is the oracle: ``rows`` is what happened.

SQLite in memory executes the statements, and holds only the committed rows. An open transaction is a list of writes, which
are applied before each of its statements and undone after it, and stay at COMMIT. Locks are those of PostgreSQL as far
as they matter here: a transaction that inserts a key holds it until its end, and others wait.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from sqlalchemy import Column, MetaData, String, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from halfmq.client.outcome import Outcome
from halfmq.sql import Inbox
from halfmq.sql.alchemy.marker_rows import MarkerRows
from halfmq.sql.rules.marker import COMMITTED, FENCED
from halfmq.sql.rules.table_identity import HORIZON
from halfmq.sql.rules.transaction_proof import WRITTEN_BY_THIS
from tests.support.virtual_loop import WALL_AT_START_MS, ProcessLoop, Scheduler

T = TypeVar("T")
#: (table, primary key)
Key = tuple[str, tuple[str, ...]]
Parameters = Mapping[str, Any]
#: Minimum age of a marker that may be pruned; no local transaction here takes as long.
_PRUNE_AGE_US: Final = 1_000_000
#: Fraction of the COMMITs that fail on a deferred constraint.
_FAILED_COMMITS: Final = 0.08
#: Fractions of the COMMITs of local transactions that never arrive, and that wait, as for a standby; and how long they wait.
_LOST_COMMITS: Final = 0.08
_STALLED_COMMITS: Final = 0.06
_STALLS_US: Final = (300_000, 2_000_000, 8_000_000)

metadata = MetaData()
ORDERS: Final = "orders"
#: The business row of a local transaction, the reference for its outcome.
orders = Table(ORDERS, metadata, Column("tx_id", String(64), primary_key=True))
MARKERS: Final = "mq_tx"
#: Added to the horizon in its row; part of the table's format, see ``table_identity``.
_FAR: Final = 1 << 62
markers = MarkerRows(metadata, MARKERS)
inbox = Inbox(metadata)
#: Effects of consumers; without a key, so that an effect that happens twice is two rows.
effects = Table(
    "effects",
    metadata,
    Column("handler", String(64), nullable=False),
    Column("message_id", String(64), nullable=False),
    Column("topic", String(64), nullable=False),
)
#: Tables whose writers may fail at COMMIT.
_BUSINESS: Final = (f"INSERT INTO {ORDERS} ", f"INSERT INTO {effects.name} ")
_TABLES: Final = [str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in metadata.sorted_tables]
_KEYS: Final = {table.name: tuple(column.name for column in table.primary_key) for table in metadata.sorted_tables}
_INSERT_MARKER: Final = (
    f"INSERT INTO {MARKERS} (tx_id, outcome, written_at_ms) VALUES (:tx_id, :outcome, :written_at_ms)"
)
_MARKER_OF: Final = f"SELECT outcome FROM {MARKERS} WHERE tx_id = :tx_id"
_INSERT_ORDER: Final = f"INSERT INTO {ORDERS} (tx_id) VALUES (:tx_id)"


class DatabaseError(Exception):
    """The database rejected the statement, or the connection was lost."""

    sqlstate = ""


class IntegrityError(DatabaseError):
    """SQLAlchemy requires this name."""


class OperationalError(DatabaseError):
    """SQLAlchemy requires this name."""


class Duplicate(IntegrityError):
    """Unique key: another transaction inserted it first."""

    sqlstate = "23505"


class ConstraintFailed(Duplicate):
    """A deferred constraint failed at COMMIT."""

    sqlstate = "23503"


class LockTimeout(OperationalError):
    """Another transaction holds the row."""

    sqlstate = "55P03"


class Aborted(OperationalError):
    """An earlier statement of this transaction failed."""

    sqlstate = "25P02"


class Lost(OperationalError):
    """The connection was lost before the response: the statement may have been executed."""

    sqlstate = "08006"


class Database:
    """The database of one service (producer group), or of the consumers."""

    def __init__(self, name: str, scheduler: Scheduler, mean_us: int, seed: object) -> None:
        self.name = name
        #: Transaction id -> "C" if the business row was committed, "R" if the check inserted the rollback marker. The oracle.
        self.rows: dict[str, str] = {}
        #: (handler, message) that a consumer has handled according to this database.
        self.handled: set[tuple[str, str]] = set()
        #: When each "C" was committed, virtual us, while the row exists; and its outcome after it is pruned.
        self._written_us: dict[str, int] = {}
        self._pruned: dict[str, str] = {}
        #: ``written_at_ms`` of each marker ever inserted, rolled back or not.
        self._inserted_at_ms: dict[str, int] = {}
        self.up = True
        self.crashes = 0
        self.slow = 1
        #: Fraction of the responses that are lost although the request was executed.
        self.answers_lost = 0.02
        #: Transaction id -> when, virtual us, and in which process a check of the shipped module fenced it.
        self.fenced: dict[str, tuple[int, str]] = {}
        self._scheduler = scheduler
        self._mean_us = mean_us
        self._rng = random.Random(f"{seed}/database/{name}")
        self._store = sqlite3.connect(":memory:", isolation_level=None)
        for statement in _TABLES:
            self._store.execute(statement)
        #: Open transactions that have written.
        self._open: list[DatabaseSession] = []
        self._locks: dict[Key, DatabaseSession] = {}

    # --- faults ------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Open transactions are lost, committed ones stay."""
        self.up = False
        self.crashes += 1
        for session in list(self._open):
            session.rollback()
            session.gone = True

    def back(self) -> None:
        self.up = True

    def client_died(self, process: ProcessLoop) -> None:
        """The database notices some time later."""
        for session in list(self._open):
            if session.process is process:
                self._scheduler.call_later(self._rng.choice((100, 100_000, 2_000_000)), session.rollback)

    # --- old markers -------------------------------------------------------------------------------------------------

    def old(self) -> list[str]:
        """Transactions committed so long ago that no local transaction for them can still run."""
        until_us = self._scheduler.now_us - _PRUNE_AGE_US
        return [tx_id for tx_id, written_us in self._written_us.items() if written_us < until_us]

    def forget(self, ids: Iterable[str], keep: Collection[str]) -> None:
        for tx_id in ids:
            if tx_id not in keep and self._written_us.pop(tx_id, None) is not None:
                self._pruned[tx_id] = self.rows.pop(tx_id)
                self._store.execute(f"DELETE FROM {MARKERS} WHERE tx_id = ?", (tx_id,))

    def is_for_an_operator(self, tx_id: str) -> bool:
        """Whether it rolled back with a marker older than the horizon of a new table, because the clock of its client is an hour behind
        that of the first user of the table. Only an operator may decide it (``docs/decisions/0032-absent-marker.md``).
        """
        if self.said(tx_id) is not None or tx_id not in self._inserted_at_ms:
            return False
        found = self._store.execute(f"SELECT written_at_ms FROM {MARKERS} WHERE tx_id = ?", (HORIZON,)).fetchone()
        return found is not None and self._inserted_at_ms[tx_id] < found[0] - _FAR

    def said(self, tx_id: str) -> str | None:
        """Its row before anything was pruned."""
        return self._pruned.get(tx_id) or self.rows.get(tx_id)

    def effects_by_message(self) -> dict[tuple[str, str], int]:
        """Number of effects, by handler and message."""
        found = self._store.execute("SELECT handler, message_id, count(*) FROM effects GROUP BY handler, message_id")
        return {(handler, message_id): times for handler, message_id, times in found}

    # --- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, process: ProcessLoop, work: Callable[[], T], stall_us: int = 0) -> T:
        """Execute ``work`` in the database after a delay, and return its result after another delay.

        Raises:
            DatabaseError: raised by ``work``. Lost: the outcome is unknown.
        """
        answer: asyncio.Future[T] = process.create_future()
        self._scheduler.call_later(self._trip_us() + stall_us, self._arrived, process, work, answer)
        return await answer

    async def commit(self, process: ProcessLoop, session: "DatabaseSession") -> None:
        """Some COMMITs of local transactions take so long that checks come before them: locks are held, and rows are not visible
        yet. Others never arrive: the client cannot distinguish that, so only a check ends the transaction at the broker.

        Raises:
            DatabaseError: as ``ask``.
        """
        draw = self._rng.random() if session.has_order else 1.0
        work = session.lose if draw < _LOST_COMMITS else session.commit
        stalls = _LOST_COMMITS <= draw < _LOST_COMMITS + _STALLED_COMMITS
        await self.ask(process, work, self._rng.choice(_STALLS_US) if stalls else 0)

    def _trip_us(self) -> int:
        return int(self._mean_us * self.slow * self._rng.random() * 2)

    def _arrived(self, process: ProcessLoop, work: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        value: Any = None
        error: DatabaseError | None = None
        if not self.up:
            error = Lost("the database is down")
        else:
            try:
                value = work()
            except DatabaseError as raised:
                error = raised
            if self._rng.random() < self.answers_lost:
                error = Lost("the connection was lost while the response was on its way")
        self._scheduler.call_later(self._trip_us(), self._answered, process, value, error, self.crashes, answer)

    def _answered(
        self, process: ProcessLoop, value: Any, error: DatabaseError | None, crashes: int, answer: "asyncio.Future[Any]"
    ) -> None:
        if crashes != self.crashes:
            error = Lost("the database crashed")
        process.call_soon(self._deliver, answer, value, error)

    @staticmethod
    def _deliver(answer: "asyncio.Future[Any]", value: Any, error: DatabaseError | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)

    # --- a fence of the application's own ----------------------------------------------------------------------------

    def decide(self, tx_id: str, *, may_fence: bool) -> Outcome:
        """The check of an application without the shipped marker table, in one request: read the marker, and if there is none,
        insert the opposite one under the same key.
        """
        found = self._store.execute(_MARKER_OF, {"tx_id": tx_id}).fetchone()
        if found is not None:
            return Outcome.COMMIT if found[0] == COMMITTED else Outcome.ROLLBACK
        if (MARKERS, (tx_id,)) in self._locks or not may_fence:
            return Outcome.UNKNOWN
        self._store.execute(_INSERT_MARKER, self._marker(tx_id, FENCED))
        self.rows.setdefault(tx_id, FENCED)
        return Outcome.ROLLBACK

    def _marker(self, tx_id: str, outcome: str) -> Parameters:
        now_ms = WALL_AT_START_MS + self._scheduler.now_us // 1_000
        return {"tx_id": tx_id, "outcome": outcome, "written_at_ms": now_ms}


class DatabaseSession:
    """A connection with one transaction at a time, which begins with its first statement."""

    def __init__(self, database: Database, process: ProcessLoop) -> None:
        self.database = database
        self.process = process
        #: The transaction was open when the database crashed.
        self.gone = False
        self._aborted = False
        self._writes: list[tuple[str, Parameters]] = []
        self._keys: list[Key] = []

    @property
    def has_order(self) -> bool:
        """Whether the open transaction is a local transaction of the application."""
        return any(table == ORDERS for table, _ in self._keys)

    def execute(self, statement: str, parameters: Parameters) -> tuple[list[Any], list[str], int]:
        """Runs in the database. Returns the rows, the names of their columns, and how many rows a statement that writes found.

        Raises:
            Duplicate, LockTimeout: as named; after Duplicate the transaction is aborted. Lost: it was lost before.
        """
        self._must_be_open()
        store = self.database._store
        # What PostgreSQL reads from the row: whether this transaction wrote it.
        wrote_it = any(table in statement for table, _ in self._keys)
        statement = statement.replace(WRITTEN_BY_THIS, f"1 = {int(wrote_it)}")
        keys = [*_keys_of(statement, parameters)]
        for key in keys:
            if self.database._locks.get(key, self) is not self:
                raise LockTimeout(f"{key} is locked")
        store.execute("BEGIN")
        try:
            for written in self._writes:
                store.execute(*written)
            found = store.execute(statement, parameters)
            result = found.fetchall(), [column[0] for column in found.description or ()], found.rowcount
        except sqlite3.IntegrityError as error:
            self._aborted = True
            raise Duplicate(str(error)) from None
        finally:
            store.execute("ROLLBACK")
        if not statement.startswith("SELECT"):
            self._wrote(statement, parameters, keys)
        return result

    def _must_be_open(self) -> None:
        if self.gone:
            raise Lost("the transaction is gone")
        if self._aborted:
            raise Aborted("current transaction is aborted, commands ignored until end of transaction block")

    def _wrote(self, statement: str, parameters: Parameters, keys: list[Key]) -> None:
        database = self.database
        if not self._writes:
            database._open.append(self)
        self._writes.append((statement, parameters))
        self._keys += keys
        for table, (tx_id, *_) in keys:
            if table == MARKERS and "written_at_ms" in parameters:
                database._inserted_at_ms.setdefault(tx_id, parameters["written_at_ms"])
        database._locks.update(dict.fromkeys(keys, self))
        if not self.process.alive:  # it died while the request was in transit
            database.client_died(self.process)

    def insert_marker(self, tx_id: str) -> None:
        """Runs in the database, for an application without the shipped marker table.

        Raises:
            Duplicate: the check fenced this transaction. LockTimeout: must not happen.
        """
        self.execute(_INSERT_MARKER, self.database._marker(tx_id, COMMITTED))
        self.execute(_INSERT_ORDER, {"tx_id": tx_id})

    def commit(self) -> None:
        """Runs in the database.

        Raises:
            ConstraintFailed: certainly rolled back. Lost: the transaction was lost.
        """
        database = self.database
        if self.gone or (self._writes and self not in database._open):
            self.gone = False
            raise Lost(
                "the transaction is gone"
            )  # the database crashed meanwhile, and a driver cannot distinguish that
        writes, keys, aborted = self._writes, self._keys, self._aborted
        self.rollback()
        if aborted or not writes:
            return
        if any(written[0].startswith(_BUSINESS) for written in writes) and database._rng.random() < _FAILED_COMMITS:
            raise ConstraintFailed("a deferred constraint failed at COMMIT")
        database._store.execute("BEGIN")
        for written in writes:
            database._store.execute(*written)
        database._store.execute("COMMIT")
        self._tell_oracle(keys)

    def lose(self) -> None:
        """Runs in the database, which notices that the connection is lost.

        Raises:
            Lost: rolled back, but a driver cannot know.
        """
        self.rollback()
        raise Lost("the connection was lost before COMMIT arrived")

    def _tell_oracle(self, keys: list[Key]) -> None:
        database = self.database
        for table, (tx_id, *_) in keys:
            if table == ORDERS:
                database.rows[tx_id] = COMMITTED
                database._written_us[tx_id] = database._scheduler.now_us
            elif table == MARKERS:
                found = database._store.execute(_MARKER_OF, {"tx_id": tx_id}).fetchone()
                if found is not None and found[0] == FENCED:
                    database.rows.setdefault(tx_id, FENCED)
                    database.fenced[tx_id] = database._scheduler.now_us, self.process.name

    def rollback(self) -> None:
        database = self.database
        for key in self._keys:
            if database._locks.get(key) is self:
                del database._locks[key]
        if self in database._open:
            database._open.remove(self)
        self._writes, self._keys, self._aborted, self.gone = [], [], False, False


def _keys_of(statement: str, parameters: Parameters) -> Iterable[Key]:
    """The primary key that an INSERT locks, or the UPDATE of a marker."""
    words = statement.split(maxsplit=3)
    if words[:2] == ["UPDATE", MARKERS]:
        for name in ("of_tx", "tx_id_1"):
            if name in parameters:
                yield MARKERS, (parameters[name],)
    if words[0] == "INSERT" and (names := _KEYS[words[2]]):
        yield words[2], tuple(parameters[name] for name in names)
