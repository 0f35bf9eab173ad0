"""A connection to a database that is cut at one of its calls, as ``faults`` says: at a statement, or at COMMIT."""

import contextlib
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only, greenlet_spawn

from tests.support.faults import Faults

#: What happens at the calls of the current task; None: nothing does.
AT_DATABASE: ContextVar[Faults | None] = ContextVar("AT_DATABASE", default=None)
STATEMENT, COMMIT = "statement", "COMMIT"
_CUT: Final = object()


class ConnectionCut(ConnectionError):
    """The driver did not notice, since it had nothing left to do."""


def cut_at_calls(engine: AsyncEngine) -> None:
    """Let ``AT_DATABASE`` happen at the calls of this engine. An answer is lost, or a call not sent, because the connection is cut."""
    dialect = engine.sync_engine.dialect

    def of(name: str, real: Any) -> Any:
        def called(on: Any, *arguments: Any) -> Any:
            faults = AT_DATABASE.get()
            if faults is None:
                return real(on, *arguments)

            async def call() -> Any:
                return await greenlet_spawn(real, on, *arguments)

            answer = await_only(faults.at(name, call, lambda: _CUT))
            if answer is not _CUT:
                return answer
            _cut(on)
            real(on, *arguments)
            raise ConnectionCut

        return called

    dialect.do_execute = of(STATEMENT, dialect.do_execute)  # type: ignore[method-assign]
    dialect.do_commit = of(COMMIT, dialect.do_commit)  # type: ignore[method-assign]


def _cut(on: Any) -> None:
    """``on``: a connection or a cursor of a driver, as SQLAlchemy adapts it."""
    driver = getattr(on, "_adapt_connection", on)
    driver = getattr(driver, "dbapi_connection", driver).driver_connection
    with contextlib.suppress(Exception):
        if hasattr(driver, "terminate"):  # asyncpg
            driver.terminate()
        elif (closed := driver.close()) is not None:
            await_only(closed)
