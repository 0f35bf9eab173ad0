"""Answers the broker's checks from the marker table, without user code.

A check uses a connection of its own from the engine to which the application's sessions bind the marker table. The engine
must be the primary: a replica may not have the row yet.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from halfmq import limits
from halfmq.client.log import logger
from halfmq.client.outcome import Outcome
from halfmq.client.user_code import plain_result
from halfmq.errors import UsageError
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.sql.alchemy.errors import place
from halfmq.sql.alchemy.marker_rows import MarkerRows, wall_ms
from halfmq.sql.rules.check import FENCE_LOCK_WAIT_MS, AgeGuard, Asked, CheckResult
from halfmq.wire.remoting.codes import DECIDED_BY_MARKER

_log = logger(__name__)

#: Checks that this database cannot answer are logged at most once in so many seconds: they come every few seconds for each transaction.
_WARN_INTERVAL_S: Final = 60.0


def _no_sessionmaker(given: object) -> UsageError:
    return UsageError(
        f"answer_checks needs a sessionmaker or an async_sessionmaker, not {type(given).__name__}",
        hint="mq.answer_checks(markers, sessionmaker(engine))",
    )


class MarkerChecks:
    """Makes the check function of one marker table, on the engine to which ``sessions`` are bound."""

    def __init__(
        self,
        markers: MarkerRows,
        sessions: Callable[[], Any],
        *,
        min_age_ms: int = limits.CHECK_IMMUNITY_MS,
        lock_wait_ms: int = FENCE_LOCK_WAIT_MS,
    ) -> None:
        self._markers = markers
        self._sessions = sessions
        self._lock_wait_ms = lock_wait_ms
        self._guard = AgeGuard(min_age_ms, wall_ms, lambda: time.monotonic_ns() // 1_000_000)
        self._warnings = LogThrottle(time.monotonic, rest_s=_WARN_INTERVAL_S)

    def check_function(self) -> Callable[[Asked], Outcome | Awaitable[Outcome]]:
        """A plain function for a ``sessionmaker``, a coroutine function for an ``async_sessionmaker``.

        Raises:
            UsageError: ``sessions`` is neither, or its sessions are not bound to an engine for the marker table.
        """
        if isinstance(self._sessions, Session | AsyncSession) or not callable(self._sessions):
            raise _no_sessionmaker(self._sessions)
        session = plain_result(self._sessions(), "sessions=", "sessionmaker(engine), or async_sessionmaker(engine)")
        if isinstance(session, AsyncSession):
            engine = AsyncEngine(self._engine_of(session.sync_session))

            async def check_async(asked: Asked) -> Outcome:
                async with engine.connect() as connection:
                    decided = await connection.run_sync(lambda sync: self._decide(sync, asked))
                return self._outcome(decided, asked, engine.sync_engine)

            return check_async
        if isinstance(session, Session):
            sync_engine = self._engine_of(session)

            def check(asked: Asked) -> Outcome:
                with sync_engine.connect() as connection:
                    decided = self._decide(connection, asked)
                return self._outcome(decided, asked, sync_engine)

            return check
        raise _no_sessionmaker(session)

    def _engine_of(self, session: Session) -> Engine:
        try:
            bind = session.get_bind(clause=self._markers.table)
        except UnboundExecutionError as error:
            raise UsageError(
                f"the sessions are bound to no engine for {self._markers.table.name}", hint="sessionmaker(engine)"
            ) from error
        if not isinstance(bind, Engine):
            raise UsageError(
                "the sessions are bound to one connection; a check needs a connection of its own",
                hint="bind the sessionmaker to an Engine",
            )
        return bind

    def _decide(self, connection: Connection, asked: Asked) -> CheckResult:
        asked.decided_by = DECIDED_BY_MARKER
        return self._markers.decide(
            connection,
            asked.id,
            origin=asked.marker,
            prepared_at_ms=asked.prepared_at_ms,
            may_fence=not self._guard.is_new(asked),
            lock_wait_ms=self._lock_wait_ms,
        )

    def _outcome(self, decided: CheckResult, asked: Asked, engine: Engine) -> Outcome:
        if decided.remark:
            asked.remark = f"{decided.remark} (asked: {place(engine.url)})"
            # By the table's identity: one wrong database concerns many transactions.
            if self._warnings.is_due(asked.marker.partition(".")[0]):
                _log.warning("transaction %s stays undecided: %s", asked.id, asked.remark)
        return decided.outcome
