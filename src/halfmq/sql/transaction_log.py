"""``TransactionLog``: the marker table as the application declares it, and what the client asks of it."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from halfmq import limits
from halfmq.client.outcome import Outcome
from halfmq.client.transaction_log import BlockingTransactionCalls, TransactionCalls
from halfmq.client.transaction_log import TransactionLog as TransactionLogPort
from halfmq.errors import UsageError
from halfmq.sql.checks import Asked, MarkerChecks
from halfmq.sql.marker import FENCE_LOCK_WAIT_MS, MarkerTable, OldRow, WhichUndecided
from halfmq.sql.transaction import AsyncBlock, Block, SqlTransaction


class TransactionLog:
    """The marker table. Declare it once beside your own tables, in the **same database** as the business rows.

    >>> metadata = MetaData()
    >>> txlog = TransactionLog(metadata)

    It is an ordinary ``Table`` in your ``MetaData``: ``create_all`` makes it, Alembic sees it.

    ``name`` travels with each half message and brings the check back here; the default is made of the table's name.
    All processes of one producer group must use the same database for it: any of them may be asked, and one that
    looks elsewhere has no answer (UNKNOWN). Two databases are two groups, or two logs with different names.

    ``min_age_s``: how long after its preparation a transaction without a marker is left alone before it is ruled out
    for good (UNKNOWN until then). ``lock_wait_ms``: how long a check waits for a local transaction that is just
    committing.
    """

    def __init__(
        self,
        metadata: MetaData,
        table: str = "mq_tx",
        *,
        name: str | None = None,
        min_age_s: float = limits.CHECK_IMMUNITY_MS / 1000,
        lock_wait_ms: int = FENCE_LOCK_WAIT_MS,
    ) -> None:
        self._markers = MarkerTable(metadata, table)
        self._name = name if name is not None else f"sql.{table}"
        self._min_age_ms = round(min_age_s * 1000)
        self._lock_wait_ms = lock_wait_ms

    @property
    def name(self) -> str:
        return self._name

    @property
    def table(self) -> Table:
        return self._markers.table

    def bind(
        self, client: BlockingTransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractContextManager[SqlTransaction]:
        """The block of ``Client.transaction(session, log=self)``.

        Raises:
            UsageError: not a ``Session``.
        """
        if isinstance(session, scoped_session):
            session = session()
        if not isinstance(session, Session):
            raise UsageError(
                f"Client.transaction needs a Session, not {type(session).__name__}",
                hint="an AsyncSession goes with AsyncClient",
            )
        return Block(client, self._name, self._markers, session, query_id)

    def bind_async(
        self, client: TransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractAsyncContextManager[SqlTransaction]:
        """The block of ``AsyncClient.transaction(session, log=self)``.

        Raises:
            UsageError: not an ``AsyncSession``.
        """
        if isinstance(session, async_scoped_session):
            session = session()
        if not isinstance(session, AsyncSession):
            raise UsageError(
                f"AsyncClient.transaction needs an AsyncSession, not {type(session).__name__}",
                hint="a Session goes with Client",
            )
        return AsyncBlock(client, self._name, self._markers, session, query_id)

    def checker(self, sessions: Callable[[], Any]) -> Callable[[Asked], Outcome | Awaitable[Outcome]]:
        """The check function that answers from the table. ``sessions``: your sessionmaker, on the primary.

        ``client.answer_checks(txlog, sessions)`` registers it.

        Raises:
            UsageError: not a sessionmaker, or one without an engine for this table.
        """
        return MarkerChecks(
            self._markers, sessions, min_age_ms=self._min_age_ms, lock_wait_ms=self._lock_wait_ms
        ).check_function()

    def prune(self, session: Session, *, older_than_s: float, undecided: Collection[str] | WhichUndecided) -> int:
        """Delete old markers that no check will ask for any more, in ``session``'s transaction. How many.

        >>> while txlog.prune(session, older_than_s=86_400, undecided=mq.undecided):
        ...     session.commit()

        ``undecided``: ``mq.undecided`` of a ``Client`` whose brokers have **all** transactions of this table, so that
        the markers of those that are still undecided stay, whatever their age, also of those that a policy set aside. Or
        the ids themselves; see ``MarkerTable.prune``. At most 1,000 rows; commit, and repeat until it returns 0.

        Raises:
            UsageError: less than an hour. ConnectError: the broker could not be asked; nothing was deleted.
        """
        connection = session.connection(bind_arguments={"clause": self.table})
        return self._markers.prune(connection, older_than_s=older_than_s, undecided=undecided)

    async def prune_async(
        self,
        session: AsyncSession,
        *,
        older_than_s: float,
        undecided: Callable[[list[str]], Awaitable[Collection[str]]],
    ) -> int:
        """``prune`` with an ``AsyncSession`` and ``undecided=mq.undecided`` of an ``AsyncClient``."""
        markers, bind = self._markers, {"clause": self.table}
        after: OldRow | None = None
        while True:
            rows = await session.run_sync(
                lambda sync, after=after: markers.old(  # type: ignore[misc]
                    sync.connection(bind_arguments=bind), older_than_s=older_than_s, after=after
                )
            )
            if not rows:
                return 0
            ids = [tx_id for _, tx_id in rows]
            keep = await undecided(ids)
            gone = await session.run_sync(
                lambda sync, rows=rows, keep=keep: markers.forget(  # type: ignore[misc]
                    sync.connection(bind_arguments=bind), rows, keep
                )
            )
            if gone:
                return int(gone)
            after = rows[-1]

    def restored(self, session: Session) -> None:
        """Say, in ``session``'s transaction, that markers may be missing here: commit it, best before the application starts.

        For a database that is a copy of another one, or in which the marker table is older than the business rows. Of a
        transaction begun before, a marker that is here still answers; one that is not is UNKNOWN, for an operator.
        With an ``AsyncSession``: ``await session.run_sync(txlog.restored)``.
        """
        self._markers.restored(session.connection(bind_arguments={"clause": self.table}))


if TYPE_CHECKING:
    #: The type checker says so when this stops being what the client asks for.
    _conforms: type[TransactionLogPort] = TransactionLog
