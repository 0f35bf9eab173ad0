"""Reads SQLSTATE, SQLite result codes and MySQL error numbers from exceptions, without importing a driver or the
library above it, and says whether an exception of COMMIT proves that the transaction was rolled back.

SQLAlchemy has the driver's exception as ``.orig``, Django as ``__cause__``; asyncio dialects wrap it once more, so ``__cause__`` is
followed.

It is certain in two cases only. COMMIT was not sent: then the transaction ends with the connection at the latest. Or the server
answered COMMIT with an error that, by its documentation, means that the transaction was aborted. Everything else (lost
connection, timeout, cancelled task, I/O error, exception of a hook after COMMIT) is unknown: the half messages are left alone,
and the check decides. A wrong "unknown" costs seconds. A wrong "rolled back" loses messages of a committed order.
"""

import re
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final, NamedTuple

#: SQLite's result code of a statement that names a table or a column that is not there; of what is locked or unreadable it has others.
SQLITE_ERROR: Final = 1
_UNDEFINED_TABLE: Final = "42P01"
_MYSQL_NO_SUCH_TABLE: Final = 1146
#: Wrappers seen: SQLAlchemy -> asyncpg adapter -> asyncpg. More than this is a loop.
_DEPTH_MAX = 5


def driver_error(error: BaseException) -> BaseException:
    """What the driver raised: ``.orig`` of an exception of SQLAlchemy, others themselves (Django's have the driver's arguments)."""
    orig = getattr(error, "orig", None)
    return orig if isinstance(orig, BaseException) else error


def _layers(error: BaseException) -> Iterator[BaseException]:
    layer: BaseException | None = driver_error(error)
    for _ in range(_DEPTH_MAX):
        if layer is None:
            return
        yield layer
        layer = layer.__cause__


def sqlstate(error: BaseException) -> str | None:
    """PostgreSQL's five-character SQLSTATE, from psycopg (``sqlstate``), psycopg2 (``pgcode``) or asyncpg; None if there is none.

    MySQL's are left out: they are coarser than its numbers, and PyMySQL sets the same attribute.
    """
    if mysql_error_number(error) is not None:
        return None
    for layer in _layers(error):
        for name in ("sqlstate", "pgcode"):
            value = getattr(layer, name, None)
            if isinstance(value, str) and len(value) == 5:
                return value
    return None


def sqlite_error_code(error: BaseException) -> int | None:
    """SQLite's extended result code (``sqlite3.Error.sqlite_errorcode``), or None."""
    for layer in _layers(error):
        code = getattr(layer, "sqlite_errorcode", None)
        if isinstance(code, int):
            return code
    return None


def mysql_error_number(error: BaseException) -> int | None:
    """The server's error number: the first argument in PyMySQL, mysqlclient, aiomysql and asyncmy; or None.

    Also of other exceptions whose first argument is a number, such as an ``OSError``: ask only about those of the database.
    """
    for layer in _layers(error):
        if layer.args and isinstance(layer.args[0], int):
            return layer.args[0]
    return None


def is_check_violation(error: BaseException) -> bool:
    """Whether a CHECK constraint has refused the row."""
    if (code := sqlite_error_code(error)) is not None:
        return code == 275
    if (state := sqlstate(error)) is not None:
        return state == "23514"
    return mysql_error_number(error) in (3819, 4025)


#: Statements that need their tables; what creates or removes one says of itself what is not there.
_NEEDS_TABLES: Final = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH)\b", re.IGNORECASE)


def missing_table(error: BaseException, statement: str, tables: Collection[str]) -> str | None:
    """Which of ``tables`` the database does not have, if ``statement`` has failed for that reason.

    PostgreSQL and MySQL say it in the language of the server, so that only the name is looked for, in the first line: PostgreSQL quotes the
    statement behind it.
    """
    text = str(driver_error(error)).partition("\n")[0]
    if (code := sqlite_error_code(error)) is not None:
        is_missing = code == SQLITE_ERROR and text.startswith("no such table")
    elif (state := sqlstate(error)) is not None:
        is_missing = state == _UNDEFINED_TABLE
    else:
        is_missing = mysql_error_number(error) == _MYSQL_NO_SUCH_TABLE
    if not is_missing or _NEEDS_TABLES.match(statement) is None:
        return None
    return next((name for name in tables if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)), None)


#: PostgreSQL aborts the transaction with any ERROR during COMMIT. Left out, so unknown: connection exceptions (08),
#: resources (53), operator intervention (57: also sent while the commit record may be written), system and internal
#: errors (58, F0, XX), and 40003, statement completion unknown.
_ABORTED_CLASSES: Final = frozenset({"21", "22", "23", "25", "27", "40", "42", "44", "55", "P0"})
_COMPLETION_UNKNOWN: Final = "40003"

#: SQLite's primary codes after which nothing of the transaction is in the file: BUSY, LOCKED, CONSTRAINT.
#: Left out on purpose: IOERR and FULL (the commit frame may already stand in the WAL).
_SQLITE_ABORTED: Final = frozenset({5, 6, 19})

#: MySQL and MariaDB: deadlock, certification failure of a Galera cluster.
_MYSQL_ABORTED: Final = frozenset({1213, 3101})


class CommitFailure(Enum):
    """What a failed COMMIT did to the local transaction."""

    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class FailedCommit(NamedTuple):
    """An exception of COMMIT, and what it means for the transaction."""

    meaning: CommitFailure
    error: BaseException


def classify_commit_failure(
    error: BaseException,
    *,
    commit_sent: bool,
    is_of_database: bool,
    is_connection_lost: bool,
    is_integrity_error: bool,
) -> CommitFailure:
    """Whether the local transaction whose commit raised ``error`` is certainly rolled back.

    ``commit_sent``: the COMMIT statement was handed to the driver (before that, flushes and hooks run). The others are what the
    database library says of ``error``. ``is_of_database``: it raised it for the driver's; an exception of anything else says nothing
    about COMMIT, whatever numbers it has. ``is_integrity_error``: a constraint was violated; asked where the driver gives no code.
    """
    if not commit_sent:
        return CommitFailure.ROLLED_BACK
    if is_of_database and not is_connection_lost and _server_aborted(error, is_integrity_error):
        return CommitFailure.ROLLED_BACK
    return CommitFailure.UNKNOWN


def _server_aborted(error: BaseException, is_integrity_error: bool) -> bool:
    if (code := sqlite_error_code(error)) is not None:
        return code & 0xFF in _SQLITE_ABORTED
    if (state := sqlstate(error)) is not None:
        return state != _COMPLETION_UNKNOWN and state[:2] in _ABORTED_CLASSES
    if mysql_error_number(error) in _MYSQL_ABORTED:
        return True
    return is_integrity_error
