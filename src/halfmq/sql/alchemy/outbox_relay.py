"""The outbox of a SQLAlchemy engine as the relay sees it, sync or async: each call is one transaction at READ COMMITTED."""

import asyncio
import itertools
import os
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from halfmq.errors import UsageError
from halfmq.relay.publisher import Published
from halfmq.relay.rows import DatabaseAway, Figures, Lease, Work
from halfmq.sql.alchemy.dialects import at_read_committed
from halfmq.sql.alchemy.errors import is_lock_wait, place, reason
from halfmq.sql.alchemy.notifications import listening
from halfmq.sql.alchemy.outbox_rows import MESSAGES_MAX, RowStatements, Settings
from halfmq.sql.alchemy.outbox_tables import OutboxTables
from halfmq.sql.rules.outbox import ATTEMPTS_MAX

#: How long a lane is held without being renewed, seconds: how long its rows wait when a relay is killed.
LEASE_S: Final = 10.0
#: Threads for a blocking engine: as many statements as run at a time.
_THREADS: Final = 8

#: How often a relay looks whether all lanes are there, seconds. Somebody may empty all tables, as tests of an application do.
_LANES_S: Final = 10.0

_T = TypeVar("_T")


class EngineRows:
    """Implements ``halfmq.relay.rows.OutboxRows``, which says what its methods do."""

    def __init__(
        self,
        tables: OutboxTables,
        engine: Engine | AsyncEngine,
        *,
        lease_s: float = LEASE_S,
        messages_max: int,
        attempts_max: int = ATTEMPTS_MAX,
        skips: bool = False,
        archives: bool = False,
    ) -> None:
        self.lease_s = lease_s
        self._tables = tables
        self._engine = engine
        holder = f"{socket.gethostname()}:{os.getpid()}"
        messages_max = min(messages_max, MESSAGES_MAX)
        self._statements = RowStatements(
            tables, Settings(holder, round(lease_s * 1000), messages_max, attempts_max, skips, archives)
        )
        self._numbers = itertools.count(1)
        self._rng = random.Random()  # nosec B311 # jitter of pauses
        #: When the lanes are looked at next, by the loop's clock.
        self._lanes_at_s = 0.0
        self._threads = None if isinstance(engine, AsyncEngine) else ThreadPoolExecutor(_THREADS, "halfmq-outbox")
        self._at_read_committed = at_read_committed(engine)

    @property
    def name(self) -> str:
        return f"{self._tables.name} in {place(self._engine.url)}"

    async def establish(self) -> None:
        try:
            await self._establish()
        except ProgrammingError as error:
            raise UsageError(
                f"the outbox {self.name} cannot be used: {reason(error)}",
                hint="create its tables, or bring them up to date: `halfmq db init`, `halfmq db upgrade`",
            ) from error

    async def _establish(self) -> None:
        self._lanes_at_s = asyncio.get_running_loop().time() + _LANES_S
        await self._run(self._statements.establish)

    async def claim(self) -> Work | None:
        if asyncio.get_running_loop().time() >= self._lanes_at_s:
            await self._establish()
        lanes: list[int] = await self._run(self._statements.free_lanes)
        self._rng.shuffle(lanes)
        for lane in lanes:
            work = await self._run(partial(self._statements.claim, lane=lane))
            if work is not None:
                return work
        return None

    async def renew(self, lease: Lease) -> None:
        await self._run(lambda connection: self._statements.renew(connection, lease))

    async def finish(self, work: Work, published: Published, *, goes_on: bool) -> Work | None:
        number = next(self._numbers) if goes_on else 0
        return await self._run(lambda connection: self._statements.finish(connection, work, published, number=number))

    async def figures(self) -> Figures:
        return await self._run(self._statements.figures)

    def listening(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[bool]:
        return listening(self._engine, self._tables.name if self._tables.notifies else "", wake)

    async def close(self) -> None:
        """See ``OutboxRows``. The engine is the application's, and stays open."""
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, function: Callable[[Connection], _T]) -> _T:
        try:
            if self._threads is None:
                async with self._at_read_committed.begin() as connection:
                    return await connection.run_sync(function)  # type: ignore[no-any-return]
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._in_transaction, function)
        except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
            raise DatabaseAway(f"the database of {self._tables.name}: {reason(error)}") from error
        except DBAPIError as error:
            if error.connection_invalidated or is_lock_wait(error):
                raise DatabaseAway(f"the database of {self._tables.name}: {reason(error)}") from error
            raise

    def _in_transaction(self, function: Callable[[Connection], _T]) -> _T:
        with self._at_read_committed.begin() as connection:
            return function(connection)
