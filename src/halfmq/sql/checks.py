"""Answers the broker's checks from the marker table, without user code.

A check uses a connection of its own from the engine to which the application's sessions bind the marker table. The engine
must be the primary: a replica may not have the row yet.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from halfmq import limits
from halfmq.client.log import logger
from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.sql.marker import FENCE_LOCK_WAIT_MS, CheckResult, MarkerRows, wall_ms
from halfmq.wire.remoting.codes import DECIDED_BY_MARKER

#: Transactions remembered by ``AgeGuard``.
_YOUNG_MAX: Final = 65_536

#: Checks that this database cannot answer are logged at most once per interval and table identity, ms: they come every few
#: seconds for each transaction.
_WARN_INTERVAL_MS: Final = 60_000
_WARNED_MAX: Final = 1_024

_log = logger(__name__)


class Asked(Protocol):
    """The attributes of ``halfmq.client``'s ``Transaction`` that a check uses."""

    #: Set by the check: who answered, for the broker's log, and the reason for UNKNOWN.
    decided_by: str
    remark: str

    @property
    def id(self) -> str:
        """The transaction id."""
        ...

    @property
    def marker(self) -> str:
        """HMQ_TX_MARKER of the half; empty if it has none."""
        ...

    @property
    def prepared_at_ms(self) -> int | None:
        """When the broker stored the first half, wall clock, ms; None if the check did not say."""
        ...


class AgeGuard:
    """Prevents rollback markers for recent transactions, which are probably only slow and would be made to fail.

    It protects availability, not agreement: an early rollback marker makes the local commit fail, so both sides agree
    anyway. The age is that of the broker's timestamp, or the time since the first check in this process, whichever is longer,
    so that a slow clock cannot keep a transaction undecided forever.
    """

    def __init__(
        self,
        min_age_ms: int,
        now_ms: Callable[[], int] = wall_ms,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._min_age_ms = min_age_ms
        self._now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self._first_asked_ms: dict[str, int] = {}

    def is_new(self, asked: Asked) -> bool:
        """Whether the transaction is younger than ``min_age_ms``."""
        prepared_at_ms = asked.prepared_at_ms
        if prepared_at_ms is not None and self._now_ms() - prepared_at_ms >= self._min_age_ms:
            self._first_asked_ms.pop(asked.id, None)
            return False
        now = self.monotonic_ms()
        if len(self._first_asked_ms) >= _YOUNG_MAX:
            # An evicted transaction counts as younger, which is safe.
            self._first_asked_ms.pop(next(iter(self._first_asked_ms)))
        return now - self._first_asked_ms.setdefault(asked.id, now) < self._min_age_ms


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
        self._guard = AgeGuard(min_age_ms)
        #: When it was last logged, by the table identity in the half.
        self._warned_ms: dict[str, int] = {}

    def check_function(self) -> Callable[[Asked], Outcome | Awaitable[Outcome]]:
        """A plain function for a ``sessionmaker``, a coroutine function for an ``async_sessionmaker``.

        Raises:
            UsageError: ``sessions`` is neither, or its sessions are not bound to an engine for the marker table.
        """
        if isinstance(self._sessions, Session | AsyncSession) or not callable(self._sessions):
            raise _no_sessionmaker(self._sessions)
        session = self._sessions()
        if isinstance(session, AsyncSession):
            engine = AsyncEngine(self._engine_of(session.sync_session))

            async def check_async(asked: Asked) -> Outcome:
                return await self._ask_async(engine, asked)

            return check_async
        if isinstance(session, Session):
            sync_engine = self._engine_of(session)

            def check(asked: Asked) -> Outcome:
                return self._ask(sync_engine, asked)

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

    def _ask(self, engine: Engine, asked: Asked) -> Outcome:
        with engine.connect() as connection:
            decided = self._decide(connection, asked)
        return self._outcome(decided, asked, engine)

    async def _ask_async(self, engine: AsyncEngine, asked: Asked) -> Outcome:
        async with engine.connect() as connection:
            decided = await connection.run_sync(lambda sync: self._decide(sync, asked))
        return self._outcome(decided, asked, engine.sync_engine)

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
            asked.remark = f"{decided.remark} (asked: {_place(engine.url)})"
            self._warn(asked)
        return decided.outcome

    def _warn(self, asked: Asked) -> None:
        # By identity: one wrong database concerns many transactions.
        about, now_ms = asked.marker.partition(".")[0], self._guard.monotonic_ms()
        last_ms = self._warned_ms.get(about)
        if last_ms is not None and now_ms - last_ms < _WARN_INTERVAL_MS:
            return
        if len(self._warned_ms) >= _WARNED_MAX:
            self._warned_ms.clear()
        self._warned_ms[about] = now_ms
        _log.warning("transaction %s stays undecided: %s", asked.id, asked.remark)


def _place(url: URL) -> str:
    """The database URL for messages, without user, password and options."""
    host = f"{url.host or ''}{f':{url.port}' if url.port else ''}"
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"
