"""How long a check waits for a lock, as statements of each database, and which errors mean that it waited in vain.

A check must not wait for a running local transaction, which may take minutes; its answer is then UNKNOWN. MySQL, SQLite and
SQL Server have the timeout as a connection setting, which is restored before the connection returns to the application's
pool. PostgreSQL has it per transaction, which also works with a transaction pooler (PgBouncer). On other databases the default
applies.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from halfmq.sql.rules.driver_errors import mysql_error_number, sqlite_error_code, sqlstate

#: PostgreSQL: lock_not_available, query_canceled (statement_timeout), deadlock_detected, serialization_failure.
_POSTGRES_LOCK_STATES: Final = frozenset({"55P03", "57014", "40P01", "40001"})
#: MySQL and MariaDB: lock wait timeout, deadlock, NOWAIT.
_MYSQL_LOCK_ERRORS: Final = frozenset({1205, 1213, 3572})
#: SQLITE_BUSY and SQLITE_LOCKED; the low byte of the extended code.
_SQLITE_LOCK_CODES: Final = frozenset({5, 6})


class ConnectionSetting(NamedTuple):
    """The statements that read and set the lock timeout of a connection, outside of a transaction."""

    read: str
    write: str
    #: From ms to the database's own unit.
    from_ms: Callable[[int], int]


def _unchanged(wait_ms: int) -> int:
    return wait_ms


def _whole_seconds(wait_ms: int) -> int:
    return max(1, round(wait_ms / 1000))


_MYSQL: Final = ConnectionSetting(
    "SELECT @@SESSION.innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = {}", _whole_seconds
)
#: By product; the others have none.
CONNECTION_SETTINGS: Final = {
    "sqlite": ConnectionSetting("PRAGMA busy_timeout", "PRAGMA busy_timeout = {}", _unchanged),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "mssql": ConnectionSetting("SELECT @@LOCK_TIMEOUT", "SET LOCK_TIMEOUT {}", _unchanged),
}


def transaction_setting(product: str, wait_ms: int) -> str | None:
    """The statement that limits the lock wait until the end of the open transaction; None: the product has none."""
    return f"SET LOCAL lock_timeout = {int(wait_ms)}" if product == "postgresql" else None


def is_lock_wait(error: BaseException, *, is_connection_lost: bool) -> bool:
    """Whether the statement failed only because of another transaction's lock (timeout, deadlock, serialization).

    ``error``: the database library's exception. ``is_connection_lost``: the library gave up the connection with it.
    """
    if is_connection_lost:
        return False
    if (code := sqlite_error_code(error)) is not None:
        return code & 0xFF in _SQLITE_LOCK_CODES
    if (state := sqlstate(error)) is not None:
        return state in _POSTGRES_LOCK_STATES
    return mysql_error_number(error) in _MYSQL_LOCK_ERRORS
