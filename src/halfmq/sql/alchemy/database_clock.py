"""The database's clock in statements, ms since 1970: one clock for all processes that share leases."""

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement


class now_ms(FunctionElement[int]):  # noqa: N801 - used like a function
    """The current time, not that of the transaction's begin."""

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
    return "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)"


@compiles(now_ms, "sqlite")
def _sqlite(element: now_ms, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
