"""Reads SQLSTATE, SQLite result codes and MySQL error numbers from exceptions, without importing a driver or the library above it.

SQLAlchemy has the driver's exception as ``.orig``, Django as ``__cause__``; asyncio dialects wrap it once more, so ``__cause__`` is
followed.
"""

from collections.abc import Iterator

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
