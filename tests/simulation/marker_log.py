"""``mq.transaction(session, markers=...)`` over the simulated database: the block is the real one of ``halfmq.sql``.

Only what SQLAlchemy does in it is replaced: the marker's insert, the flush, COMMIT and ROLLBACK go to ``Database``.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple

from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.runtime.clock import Clock
from halfmq.sql.checks import AgeGuard, Asked
from halfmq.sql.commit_failure import CommitFailure
from halfmq.sql.local_work import FailedCommit
from halfmq.sql.transaction import AsyncBlock, SqlTransaction
from halfmq.wire.remoting.codes import DECIDED_BY_MARKER
from tests.simulation.database import Database, DatabaseError, DatabaseSession, Duplicate, Lost
from tests.support.virtual_loop import ProcessLoop


class _Step(NamedTuple):
    """Something to do in the database, and what to make of its failure."""

    kind: str
    work: Callable[[], Any]


class _Work:
    """What ``halfmq.sql.local_work.LocalWork`` is to the block."""

    def __init__(self, session: DatabaseSession, tx_id: str) -> None:
        self._session = session
        self._tx_id = tx_id
        self._messages: list[OutgoingMessage] = []

    def begin(self) -> _Step:
        return _Step("begin", lambda: self._session.insert_marker(self._tx_id))

    def collect(self, topic: str, body: object, **options: Any) -> None:
        self._messages.append(compose(topic, body, **options))

    def ready(self) -> _Step:
        return _Step("flush", lambda: self._messages)

    def commit(self) -> _Step:
        return _Step("commit", self._session.commit)

    def abandon(self) -> _Step:
        return _Step("rollback", self._session.rollback)


class Session:
    """What an ``AsyncSession`` is to the block."""

    def __init__(self, database: Database, process: ProcessLoop) -> None:
        self.inner = DatabaseSession(database, process)

    async def run_sync(self, step_of: Callable[[Any], _Step]) -> Any:
        step = step_of(None)
        try:
            return await self.inner.database.ask(self.inner.process, step.work)
        except DatabaseError as error:
            if step.kind == "commit":
                known = isinstance(error, Duplicate)
                return FailedCommit(CommitFailure.ROLLED_BACK if known else CommitFailure.UNKNOWN, error)
            if step.kind == "rollback":
                return None
            if isinstance(error, Lost) and step.kind == "begin":
                self.inner.rollback()  # the driver closes the connection, and the database rolls back
            raise


class _Block(AsyncBlock):
    async def __aenter__(self) -> SqlTransaction:
        tx_id = self._client.new_transaction_id()
        self._work = _Work(self._session.inner, tx_id)  # type: ignore[assignment,attr-defined]
        await self._session.run_sync(lambda _: self._work.begin())
        self._transaction = SqlTransaction(tx_id, self._work)
        return self._transaction


class MarkerLog:
    """A ``MarkerTable``."""

    name = "marker"

    def __init__(
        self, database: Database, process: ProcessLoop, clock: Clock, rng: random.Random, min_age_ms: int
    ) -> None:
        self._database = database
        self._process = process
        self._rng = rng
        self._guard = AgeGuard(min_age_ms, clock.wall_ms, clock.monotonic_ms)

    def bind(
        self, client: BlockingTransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractContextManager[SqlTransaction]:
        raise AssertionError("nothing here blocks")

    def bind_async(
        self, client: TransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractAsyncContextManager[SqlTransaction]:
        return _Block(client, self.name, None, session, query_id)  # type: ignore[arg-type]

    def checker(self, sessions: Any) -> Callable[[Asked], Awaitable[Outcome]]:
        async def check(asked: Asked) -> Outcome:
            young = self._guard.is_young(asked)
            asked.decided_by = DECIDED_BY_MARKER
            tx_id = asked.id
            return await self._database.ask(self._process, lambda: self._database.decide(tx_id, may_fence=not young))

        return check
