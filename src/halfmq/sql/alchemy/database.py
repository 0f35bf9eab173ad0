"""A database for commands: the one behind a URL, or behind an application's sessions. Each call is one transaction."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session

from halfmq.errors import MissingDependency, UsageError
from halfmq.relay.rows import DatabaseAway
from halfmq.sql.alchemy.dialects import at_read_committed
from halfmq.sql.alchemy.errors import is_of_the_tables, place, reason

_T = TypeVar("_T")

_URL: Final = "postgresql+psycopg://USER@HOST/NAME"


def engine_of(sessions: Any, table: Table) -> Engine | AsyncEngine:
    """The engine of a sessionmaker for ``table``, or ``sessions`` itself, if it is an engine.

    Raises:
        UsageError: it has none.
    """
    if isinstance(sessions, Engine | AsyncEngine):
        return sessions
    made = sessions() if callable(sessions) else None
    sync = made.sync_session if isinstance(made, AsyncSession) else made
    bind = None
    if isinstance(sync, Session):
        with suppress(UnboundExecutionError):
            bind = sync.get_bind(clause=table)
    if not isinstance(bind, Engine):
        raise UsageError(
            "sessions must be an Engine, or a sessionmaker that is bound to one", hint="sessionmaker(engine)"
        )
    return AsyncEngine(bind) if isinstance(made, AsyncSession) else bind


def connection_of(session: Session, table: Table, call: str) -> Connection:
    """The connection of a blocking session for ``table``. ``call``: what it is for.

    Raises:
        UsageError: it is an ``AsyncSession``.
    """
    if isinstance(session, AsyncSession | async_scoped_session):
        raise UsageError(
            f"{call} needs a Session, not {type(session).__name__}",
            hint=f"await session.run_sync(lambda session: {call}(session, ...))",
        )
    return session.connection(bind_arguments={"clause": table})


class Database:
    """Blocking, whatever the engine is. ``close`` gives up its connections."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    def at(cls, url: str, *, must_exist: bool = False) -> Self:
        """The database at a URL of SQLAlchemy, also one with an asynchronous driver. SQLite creates a file that does not exist, unless it
        ``must_exist``.

        Raises:
            UsageError: it is no such URL. MissingDependency: its driver is not installed. DatabaseAway: there is no such file.
        """
        try:
            parsed = make_url(url)
            is_file = parsed.get_backend_name() == "sqlite" and not (parsed.database or "").startswith("file:")
            if must_exist and is_file and not Path(parsed.database or "").exists():
                raise DatabaseAway(f"there is no file {parsed.database}")
            is_async = parsed.get_dialect().is_async
            return cls(create_async_engine(parsed) if is_async else create_engine(parsed))
        except ModuleNotFoundError as error:
            raise MissingDependency(f"the driver of the database is not installed: {error}") from error
        except ArgumentError as error:
            # Its text never quotes the URL, which may have a password.
            raise UsageError(f"not the URL of a database: {error}", hint=_URL) from error
        except ValueError as error:  # this one quotes the port, which is the password where @HOST is missing
            raise UsageError("not the URL of a database: its port is no number", hint=_URL) from error

    @property
    def name(self) -> str:
        """For messages, without credentials."""
        return place(self._engine.url)

    def run(self, function: Callable[[Connection], _T]) -> _T:
        """``function`` in a transaction, which is committed.

        Raises:
            DatabaseAway: the database did not execute it; if its answer to COMMIT was lost, it may be committed.
            HalfmqError: of ``function``.
        """
        try:
            if isinstance(self._engine, AsyncEngine):
                return asyncio.run(self._run_async(self._engine, function))
            with at_read_committed(self._engine).begin() as connection:
                return function(connection)
        except DBAPIError as error:
            hint = "`halfmq db init` creates the tables" if is_of_the_tables(error) else ""
            raise DatabaseAway(f"{self.name}: {reason(error)}", hint=hint) from error
        except (SQLAlchemyError, OSError) as error:
            raise DatabaseAway(f"{self.name}: {error}") from error

    async def _run_async(self, engine: AsyncEngine, function: Callable[[Connection], _T]) -> _T:
        try:
            async with at_read_committed(engine).begin() as connection:
                return await connection.run_sync(function)  # type: ignore[no-any-return]
        finally:
            await engine.dispose()  # the next call has another loop

    def close(self) -> None:
        """Give up its connections."""
        if isinstance(self._engine, Engine):
            self._engine.dispose()
