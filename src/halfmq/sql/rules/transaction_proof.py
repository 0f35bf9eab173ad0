"""Proof that a transaction that is about to be committed is the one in which a certain row was written.

That ``commit()`` returned proves nothing, nor does reading the row back (docs/decisions/0054-proof-of-the-transaction.md). So an adapter
proves both, in the last statements before COMMIT:

- the row exists: the caller's statement about it affects exactly one row
- the transaction is still the one that wrote it. PostgreSQL: the row itself names its transaction (``xmin``). SQLite, MySQL, MariaDB:
  a savepoint, which ends with its transaction. Elsewhere only the first half is proven.

A driver says of its connection, without I/O, whether a transaction is open: sqlite3 and aiosqlite, psycopg 2 and 3,
asyncpg, PyMySQL, aiomysql, asyncmy; mysqlclient does not. Until then it refuses every end of the transaction that it can see: the library's
commit, and statements whose text says so.
"""

from enum import Enum
from typing import Any, Final

from halfmq.sql.rules.driver_errors import driver_error, mysql_error_number, sqlstate
from halfmq.sql.rules.statements import Effect, read

#: Products whose transaction is recognised by a savepoint.
BY_SAVEPOINT: Final = frozenset({"sqlite", "mysql", "mariadb"})
#: PostgreSQL: the open transaction wrote the row. ``txid_current`` is the transaction's number with an epoch before its 32 bits; older
#: servers have no other function.
WRITTEN_BY_THIS: Final = "xmin::text::bigint = (txid_current() & 4294967295)"

#: PostgreSQL: in_failed_sql_transaction.
_FAILED_TRANSACTION: Final = "25P02"
#: MySQL and MariaDB: SAVEPOINT does not exist.
_NO_SAVEPOINT: Final = 1305


#: Flags that MySQL and MariaDB send with each response.
_MYSQL_IN_TRANSACTION: Final = 1
_MYSQL_AUTOCOMMIT: Final = 2


class Status(Enum):
    """What the driver says about its connection."""

    OPEN = "in a transaction"
    FAILED = "in a transaction that can only be rolled back"
    NONE = "in no transaction"
    UNKNOWN = "nothing"


def driver_status(product: str, driver: Any) -> Status:
    """``driver``: the driver's own connection."""
    match product:
        case "sqlite":
            is_open = getattr(driver, "in_transaction", None)
        case "postgresql":
            info = getattr(driver, "info", None)
            if (status := getattr(info, "transaction_status", None)) is not None:
                return {0: Status.NONE, 2: Status.OPEN, 3: Status.FAILED}.get(int(status), Status.UNKNOWN)
            ask = getattr(driver, "is_in_transaction", None)
            is_open = ask() if ask is not None else None
        case "mysql" | "mariadb":
            is_open = bool(driver.server_status & _MYSQL_IN_TRANSACTION) if has_flags(driver) else None
        case _:
            is_open = None
    return Status.UNKNOWN if is_open is None else Status.OPEN if is_open else Status.NONE


def has_flags(driver: Any) -> bool:
    """MySQL and MariaDB: whether the driver's connection keeps the flags of the last response that was no error."""
    return isinstance(getattr(driver, "server_status", None), int)


def commits_by_itself(product: str, driver: Any) -> bool:
    """Whether the driver's connection commits each statement, so that nothing could be rolled back. Ask before the first one."""
    if driver_status(product, driver) is not Status.NONE:  # an application that executes BEGIN itself
        return False
    match product:
        case "sqlite":
            mode = getattr(driver, "autocommit", -1)  # since Python 3.12; -1: ``isolation_level`` counts
            return mode is True or (mode == -1 and getattr(driver, "isolation_level", "") is None)
        case "postgresql":
            return getattr(driver, "autocommit", False) is True
        case "mysql" | "mariadb":
            return bool(driver.server_status & _MYSQL_AUTOCOMMIT)
        case _:
            return False


class Refusal(Enum):
    """Why a statement must not be executed inside the block."""

    WOULD_END = "it would end the transaction"
    HAS_ENDED = "the transaction has ended"


def refusal(statement: str, product: str, status: Status) -> Refusal | None:
    """Whether ``statement`` must not be executed; ``status``: of its connection, before it. None: it may be."""
    found = read(statement, product)
    if found is not None and found.effect is Effect.ENDS_TRANSACTION:
        return Refusal.WOULD_END
    # Another transaction would begin here, and on SQLite a savepoint would commit it.
    return Refusal.HAS_ENDED if status is Status.NONE else None


def is_committable(status: Status) -> bool:
    """Whether COMMIT may be sent on a connection of this ``status``, after the proof. A driver that says nothing does not forbid it."""
    return status not in (Status.NONE, Status.FAILED)


def is_failed_transaction(error: BaseException) -> bool:
    """Whether ``error`` only says that an earlier statement has failed, after which the database only rolls back."""
    return sqlstate(error) == _FAILED_TRANSACTION


def is_missing_savepoint(error: BaseException) -> bool:
    """Whether RELEASE SAVEPOINT failed because there is none, so that its transaction has ended."""
    return mysql_error_number(error) == _NO_SAVEPOINT or "no such savepoint" in str(driver_error(error))
