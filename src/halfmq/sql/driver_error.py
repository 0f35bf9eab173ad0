"""Reads SQLSTATE, SQLite result codes and MySQL error numbers from driver exceptions, without importing a driver.

SQLAlchemy wraps the driver's exception as ``.orig``; asyncio dialects wrap it once more, so ``__cause__`` is followed.
"""

from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError

#: Wrappers seen: SQLAlchemy -> asyncpg adapter -> asyncpg. More than this is a loop.
_DEPTH_MAX = 5


def _layers(error: DBAPIError) -> Iterator[BaseException]:
    layer: BaseException | None = error.orig
    for _ in range(_DEPTH_MAX):
        if layer is None:
            return
        yield layer
        layer = layer.__cause__


def sqlstate(error: DBAPIError) -> str | None:
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


def sqlite_error_code(error: DBAPIError) -> int | None:
    """SQLite's extended result code (``sqlite3.Error.sqlite_errorcode``), or None."""
    for layer in _layers(error):
        code = getattr(layer, "sqlite_errorcode", None)
        if isinstance(code, int):
            return code
    return None


def mysql_error_number(error: DBAPIError) -> int | None:
    """The server's error number: the first argument in PyMySQL, mysqlclient, aiomysql and asyncmy; or None."""
    for layer in _layers(error):
        if layer.args and isinstance(layer.args[0], int):
            return layer.args[0]
    return None


def is_check_violation(error: DBAPIError) -> bool:
    """Whether a CHECK constraint has refused the row."""
    if (code := sqlite_error_code(error)) is not None:
        return code == 275
    if (state := sqlstate(error)) is not None:
        return state == "23514"
    return mysql_error_number(error) in (3819, 4025)
