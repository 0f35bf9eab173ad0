"""What is written differently for each database: text columns with binary comparison, the database's clock, and a short
transaction with a limited lock wait; ``rules.lock_wait`` says how each database limits it.

Transaction ids ``T-1`` and ``t-1`` are different. MySQL, MariaDB and SQL Server compare case-insensitively by default, and a
PostgreSQL database may have a case-insensitive ICU collation: the marker of one transaction would answer for the other. So
the column declares a binary collation. The clock is one for all processes that share leases, in ms since 1970.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, String, text
from sqlalchemy.dialects import mssql, mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeEngine

from halfmq.sql.rules.lock_wait import CONNECTION_SETTINGS, transaction_setting


def exact_text(length: int) -> TypeEngine[str]:
    """VARCHAR(length) with a binary collation. ``length`` in characters; the text is ASCII or UTF-8.

    MySQL: ``utf8mb4_bin`` compares code points (and pads with spaces, which no id contains). PostgreSQL: ``C``.
    SQLite and Oracle compare bytes unless told otherwise.
    """
    binary_on_mysql = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return (
        String(length)
        .with_variant(binary_on_mysql, "mysql", "mariadb")
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(mssql.VARCHAR(length, collation="Latin1_General_100_BIN2"), "mssql")
        .with_variant(String(length, collation="BINARY"), "sqlite")
    )


def at_read_committed(engine: Any) -> Any:
    """``engine``, sync or async: each statement of its transactions sees what others have committed meanwhile, such as after a wait for a
    lock.
    """
    return engine if engine.dialect.name == "sqlite" else engine.execution_options(isolation_level="READ COMMITTED")


#: Products on which a refused statement takes back itself and nothing else.
_TAKES_BACK_ITSELF: Final = frozenset({"sqlite", "mysql", "mariadb"})


def one_that_may_fail(connection: Connection) -> AbstractContextManager[object]:
    """A block for one statement that a constraint may refuse, after which the transaction goes on.

    A savepoint where it is needed only: sqlite3 begins no transaction with it, so that its RELEASE would commit.
    """
    return nullcontext() if connection.dialect.name in _TAKES_BACK_ITSELF else connection.begin_nested()


class now_ms(FunctionElement[int]):  # noqa: N801 - used like a function
    """The current time, on MySQL and MariaDB that of the statement's begin; not that of the transaction's begin, and in no time zone."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms)
def _standard(element: now_ms, compiler: Any, **options: Any) -> str:
    raise NotImplementedError(f"halfmq does not know the clock of {compiler.dialect.name}")


@compiles(now_ms, "postgresql")
def _postgresql(element: now_ms, compiler: Any, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _mysql(element: now_ms, compiler: Any, **options: Any) -> str:
    # Not UNIX_TIMESTAMP of a local time: one hour each autumn has two instants, of which it takes the later, and goes
    # back an hour after that.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(now_ms, "sqlite")
def _sqlite(element: now_ms, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@contextmanager
def short_transaction(connection: Connection, wait_ms: int) -> Iterator[None]:
    """One transaction on ``connection``, committed at the end of the block, that waits for a lock at most ``wait_ms``.

    ``connection`` must have no transaction open. MySQL rounds to whole seconds, at least one. On other
    databases the default lock wait applies.
    """
    setting = CONNECTION_SETTINGS.get(connection.dialect.name)
    if setting is None:
        with connection.begin():
            if (statement := transaction_setting(connection.dialect.name, wait_ms)) is not None:
                connection.execute(text(statement))
            yield
        return
    # On the driver's cursor: executed by SQLAlchemy it would begin a transaction.
    before = on_cursor(connection, setting.read)
    on_cursor(connection, setting.write.format(setting.from_ms(wait_ms)))
    try:
        with connection.begin():
            yield
    finally:
        if not connection.invalidated:
            on_cursor(connection, setting.write.format(int(before)))


def on_cursor(connection: Connection, statement: str) -> Any:
    """Execute on the driver's cursor; the first column of the first row, if there are rows."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
    finally:
        cursor.close()
