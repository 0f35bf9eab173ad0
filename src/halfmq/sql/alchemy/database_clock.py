"""The database's clock in statements, ms since 1970: one clock for all processes that share leases."""

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement


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
    # Not UNIX_TIMESTAMP of a local time: one hour each autumn has two instants, of which it takes the later, and goes back an hour after that.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(now_ms, "sqlite")
def _sqlite(element: now_ms, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
