"""Proof that a transaction that is about to be committed is the one in which a certain row was written.

That ``commit()`` returned proves nothing: PostgreSQL answers COMMIT of an aborted transaction with ROLLBACK and no error, MariaDB
rolls a whole transaction back after a deadlock, SQLite after INSERT OR ROLLBACK, and the driver begins the next transaction
unnoticed. Nor does reading the row back: after a COMMIT in between it is still there. So the guard proves both, in the last
statements before COMMIT:

- the row exists: the caller's statement about it affects exactly one row
- the transaction is still the one that wrote it. PostgreSQL: the row itself names its transaction (``xmin``). SQLite, MySQL, MariaDB:
  a savepoint, which ends with its transaction. Elsewhere only the first half is proven.

Until then it refuses every end of the transaction that it can see: the session's commit, and statements whose text says so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, text, true
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from halfmq.errors import UsageError
from halfmq.sql.connection_events import unwatch, unwatch_session, wake, watch, watch_session
from halfmq.sql.driver_error import mysql_error_number, sqlstate
from halfmq.sql.statements import Effect, read

_BY_SAVEPOINT: Final = frozenset({"sqlite", "mysql", "mariadb"})
#: PostgreSQL: the open transaction wrote the row. ``txid_current`` is the transaction's number with an epoch before its 32 bits; older servers have no other function.
WRITTEN_BY_THIS: Final = text("xmin::text::bigint = (txid_current() & 4294967295)")
_SWALLOWED: Final = "do not catch a database error inside the block and go on; put the statement that may fail into session.begin_nested()"
_UNSEEN: Final = "a statement, or the driver, has committed it or rolled it back"
_BY_A_HOOK: Final = "what runs in before_commit has ended it, or a statement there has failed"
#: PostgreSQL: in_failed_sql_transaction.
_FAILED_TRANSACTION: Final = "25P02"
#: Flags that MySQL and MariaDB send with each response.
_MYSQL_IN_TRANSACTION: Final = 1
_MYSQL_AUTOCOMMIT: Final = 2
#: MySQL and MariaDB: SAVEPOINT does not exist.
_NO_SAVEPOINT: Final = 1305


class Status(Enum):
    """What the driver says about its connection."""

    OPEN = "in a transaction"
    FAILED = "in a transaction that can only be rolled back"
    NONE = "in no transaction"
    UNKNOWN = "nothing"


def driver_status(connection: Connection) -> Status:
    """Ask the driver, without I/O: sqlite3 and aiosqlite, psycopg 2 and 3, asyncpg, PyMySQL, aiomysql, asyncmy."""
    driver: Any = connection.connection.driver_connection
    match connection.dialect.name:
        case "sqlite":
            is_open = getattr(driver, "in_transaction", None)
        case "postgresql":
            info = getattr(driver, "info", None)
            if (status := getattr(info, "transaction_status", None)) is not None:
                return {0: Status.NONE, 2: Status.OPEN, 3: Status.FAILED}.get(int(status), Status.UNKNOWN)
            ask = getattr(driver, "is_in_transaction", None)
            is_open = ask() if ask is not None else None
        case "mysql" | "mariadb":
            flags = getattr(driver, "server_status", None)
            is_open = bool(flags & _MYSQL_IN_TRANSACTION) if isinstance(flags, int) else None
        case _:
            is_open = None
    return Status.UNKNOWN if is_open is None else Status.OPEN if is_open else Status.NONE


def refuse_autocommit(connection: Connection, place: str) -> None:
    """Raise UsageError if each statement would be committed by itself, so that nothing could be rolled back. Call it before the first."""
    option = connection.get_execution_options().get("isolation_level")
    default = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if "AUTOCOMMIT" in (option, default if option is None else None) or _commits_by_itself(connection):
        raise UsageError(
            f"the connection is in autocommit (AUTOCOMMIT): {place} could not roll anything back",
            hint="use another isolation level for this session's engine, and no autocommit in its connect_args",
        )


def _commits_by_itself(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    if driver_status(connection) is not Status.NONE:  # an application that executes BEGIN itself
        return False
    match connection.dialect.name:
        case "sqlite":
            mode = getattr(driver, "autocommit", -1)  # since Python 3.12; -1: ``isolation_level`` counts
            return mode is True or (mode == -1 and getattr(driver, "isolation_level", "") is None)
        case "postgresql":
            return getattr(driver, "autocommit", False) is True
        case "mysql" | "mariadb":
            return bool(driver.server_status & _MYSQL_AUTOCOMMIT)
        case _:
            return False


class Savepoint:
    """A savepoint that was set on the guarded connection."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class TransactionGuard:
    """Guards the transaction that is open on ``connection``. Made before the row is written; ``start`` after that, ``prove`` before
    COMMIT, ``stop`` in any case.

    ``place``: what the user calls it, for messages. ``on_rollback_to`` is called with each savepoint that was rolled back to.
    ``may_commit``: asked at a commit of the session before ``prove``; True lets it pass.
    """

    def __init__(
        self,
        session: Session,
        connection: Connection,
        place: str,
        *,
        on_rollback_to: Callable[[Savepoint], None] = lambda _: None,
        may_commit: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session = session
        self._connection = connection
        self._place = place
        self._transaction = session.get_transaction()
        self._on_rollback_to = on_rollback_to
        self._may_commit = may_commit
        self._by_savepoint = connection.dialect.name in _BY_SAVEPOINT
        self._savepoint = f"halfmq_{id(self):x}"
        #: A statement was reported; and it is guarded.
        self._hears = self._is_guarded = False
        self._is_proven = False
        #: A statement was executed after ``prove``: the caller's hooks run there.
        self._is_stale = False
        #: Connections of transactions that the session began after it had ended the guarded one.
        self._refused: list[Connection] = []
        #: Savepoints that are open now, outermost first.
        self.savepoints: tuple[Savepoint, ...] = ()
        #: A rollback to a savepoint that was not seen.
        self._unknown_rollback = ""
        #: COMMIT was handed to the driver.
        self.commit_sent = False
        self._is_there: Callable[[], bool] = lambda: True
        self._watched_before = watch(connection, self)
        self._session_before = watch_session(session, self)

    def start(self) -> None:
        """Guard from here on."""
        if not self._hears:
            wake(self._connection)
        if self._by_savepoint:
            self._connection.exec_driver_sql(f"SAVEPOINT {self._savepoint}")
            self.savepoints = ()
        self._is_guarded = True

    def stop(self) -> None:
        """Guard no longer. May be called again."""
        self._is_guarded = False
        unwatch(self._connection, self, self._watched_before)
        unwatch_session(self._session, self, self._session_before)
        for connection in self._refused:
            unwatch(connection, self)

    @property
    def written_by_this(self) -> ColumnElement[bool]:
        """The condition on a row, for ``prove``: the open transaction wrote it. True where the database cannot tell."""
        if self._connection.dialect.name == "postgresql":
            return WRITTEN_BY_THIS  # type: ignore[return-value]
        return true()

    def refuse_ended(self) -> None:
        """Raise UsageError if the session has ended the transaction."""
        if self._session.get_transaction() is not self._transaction:
            raise UsageError(
                f"the session was committed or rolled back inside {self._place}",
                hint=f"leave that to {self._place}; what was committed before is committed without the rest",
            )

    def flush(self) -> None:
        """Write what the session still holds, and release its savepoints, as its commit would. Before ``prove``."""
        self.refuse_ended()
        self._session.flush()
        while (savepoint := self._session.get_nested_transaction()) is not None:
            savepoint.commit()

    def prove(self, affected: Callable[[], int], is_there: Callable[[], bool]) -> None:
        """Prove that the transaction is still the one of ``start``. ``affected`` executes a statement about the row, with the condition
        ``written_by_this``, and returns how many rows it found. ``is_there`` is asked once more before COMMIT, if a hook has executed
        statements since.

        From here on the session may be committed.

        Raises:
            UsageError: the transaction has ended, or can only be rolled back. Roll back: nothing else is possible.
            DBAPIError: the database's own error, such as a lost connection.
        """
        if self._unknown_rollback:
            raise UsageError(
                f"{' '.join(self._unknown_rollback.split())[:60]!r} inside {self._place} went back to a savepoint that nobody saw, so which "
                "messages to send is unknown",
                hint="set savepoints with session.begin_nested(), connection.begin_nested(), or a statement of their own",
            )
        with self._failed_transaction_said():
            if self._by_savepoint:
                self._release()
            found = affected()
        if found != 1:
            raise self._ended(_UNSEEN)
        self._is_there = is_there
        self._is_proven, self._is_stale = True, False

    @contextmanager
    def _failed_transaction_said(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if sqlstate(error) != _FAILED_TRANSACTION:
                raise
            raise self._ended("a statement has failed, after which the database only rolls back") from error

    def _release(self) -> None:
        try:
            self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {self._savepoint}")
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            missing = mysql_error_number(error) == _NO_SAVEPOINT or "no such savepoint" in str(error.orig)
            if not missing:
                raise
            raise self._ended(_UNSEEN) from error

    def _ended(self, how: str) -> UsageError:
        return UsageError(f"the database transaction of {self._place} ended before its end: {how}", hint=_SWALLOWED)

    # --- what ``connection_events`` tells

    def before_statement(self, connection: Connection, statement: str) -> None:
        """Refuse what would end the transaction, and everything once it has ended."""
        self._hears = True
        if not self._is_guarded:
            return
        if connection is not self._connection:
            self.refuse_ended()
        found = read(statement, connection.dialect.name)
        if found is not None and found.effect is Effect.ENDS_TRANSACTION:
            raise UsageError(
                f"{' '.join(statement.split())[:60]!r} inside {self._place} would end its transaction",
                hint=f"leave COMMIT and ROLLBACK to {self._place}; statements that commit by themselves go before or after it",
            )
        # Another transaction would begin here, and on SQLite a savepoint would commit it.
        if driver_status(connection) is Status.NONE:
            raise self._ended(_UNSEEN)
        self._is_stale = True

    def after_statement(self, connection: Connection, statement: str) -> None:
        """Follow the savepoints."""
        found = read(statement, connection.dialect.name)
        if found is None:
            return
        name, open_ones = found.savepoint, self.savepoints
        if found.effect is Effect.SAVEPOINT:
            self.savepoints = (*open_ones, Savepoint(name))
            return
        for place in range(len(open_ones) - 1, -1, -1):
            if open_ones[place].name == name:
                if found.effect is Effect.RELEASE:
                    self.savepoints = open_ones[:place]
                else:
                    self.savepoints = open_ones[: place + 1]
                    self._on_rollback_to(open_ones[place])
                return
        if found.effect is Effect.ROLLBACK_TO:
            # Set on the driver's connection, or behind another statement in one string: what was undone with it is unknown.
            self._unknown_rollback = statement

    def begun(self, session: Session, connection: Connection) -> None:
        """Nothing is written in another transaction: this one ends with the block, and the other would not."""
        if self._is_guarded and not self._is_proven and session.get_transaction() is not self._transaction:
            self._refused.append(connection)
            watch(connection, self)
            wake(connection)

    def before_commit(self) -> None:
        """Refuse a commit that is not the one after ``prove``."""
        if not self._is_guarded:
            return
        if not self._is_proven:
            if self._may_commit():
                return
            raise UsageError(
                f"the session is committed inside {self._place}",
                hint=f"leave that to {self._place}; nothing was committed",
            )
        if driver_status(self._connection) in (Status.NONE, Status.FAILED):
            raise self._ended(_BY_A_HOOK)
        with self._failed_transaction_said():
            if self._is_stale and not self._is_there():
                raise self._ended(_BY_A_HOOK)
        self.commit_sent = True
