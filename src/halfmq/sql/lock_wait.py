"""A short transaction with a limited lock wait.

A check must not wait for a running local transaction, which may take minutes; its answer is then UNKNOWN. MySQL, SQLite and
SQL Server have the timeout as a connection setting, which is restored before the connection returns to the application's
pool. PostgreSQL has it per transaction, which also works with a transaction pooler (PgBouncer).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from halfmq.sql.driver_error import mysql_error_number, sqlite_error_code, sqlstate

#: PostgreSQL: lock_not_available, query_canceled (statement_timeout), deadlock_detected, serialization_failure.
_POSTGRES_LOCK_STATES: Final = frozenset({"55P03", "57014", "40P01", "40001"})
#: MySQL and MariaDB: lock wait timeout, deadlock, NOWAIT.
_MYSQL_LOCK_ERRORS: Final = frozenset({1205, 1213, 3572})
#: SQLITE_BUSY and SQLITE_LOCKED; the low byte of the extended code.
_SQLITE_LOCK_CODES: Final = frozenset({5, 6})


class _ConnectionSetting(NamedTuple):
    """The statements that read and set the lock timeout of a connection."""

    read: str
    write: str
    #: From ms to the database's own unit.
    from_ms: Callable[[int], int]


def _unchanged(wait_ms: int) -> int:
    return wait_ms


def _whole_seconds(wait_ms: int) -> int:
    return max(1, round(wait_ms / 1000))


_MYSQL: Final = _ConnectionSetting(
    "SELECT @@SESSION.innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = {}", _whole_seconds
)
_ON_CONNECTION: Final = {
    "sqlite": _ConnectionSetting("PRAGMA busy_timeout", "PRAGMA busy_timeout = {}", _unchanged),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "mssql": _ConnectionSetting("SELECT @@LOCK_TIMEOUT", "SET LOCK_TIMEOUT {}", _unchanged),
}


@contextmanager
def short_transaction(connection: Connection, wait_ms: int) -> Iterator[None]:
    """One transaction on ``connection``, committed at the end of the block, that waits for a lock at most ``wait_ms``.

    ``connection`` must have no transaction open. MySQL rounds to whole seconds, at least one. On other
    databases the default lock wait applies.
    """
    setting = _ON_CONNECTION.get(connection.dialect.name)
    if setting is None:
        with connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL lock_timeout = {int(wait_ms)}"))
            yield
        return
    # On the driver's cursor: executed by SQLAlchemy it would begin a transaction.
    before = _on_cursor(connection, setting.read)
    _on_cursor(connection, setting.write.format(setting.from_ms(wait_ms)))
    try:
        with connection.begin():
            yield
    finally:
        if not connection.invalidated:
            _on_cursor(connection, setting.write.format(int(before)))


def _on_cursor(connection: Connection, statement: str) -> Any:
    """Execute on the driver's cursor; the first column of the first row, if there are rows."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
    finally:
        cursor.close()


def is_lock_wait(error: DBAPIError) -> bool:
    """Whether the statement failed only because of another transaction's lock (timeout, deadlock, serialization)."""
    if error.connection_invalidated:
        return False
    if (code := sqlite_error_code(error)) is not None:
        return code & 0xFF in _SQLITE_LOCK_CODES
    if (state := sqlstate(error)) is not None:
        return state in _POSTGRES_LOCK_STATES
    return mysql_error_number(error) in _MYSQL_LOCK_ERRORS
