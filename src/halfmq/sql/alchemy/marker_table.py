"""``MarkerTable``: the marker table as the application declares it; it implements the client's interface of that name."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from halfmq import limits
from halfmq.client.arguments import PrepareOptions, refuse_misspelt
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
from halfmq.client.marker_table import MarkerTable as MarkerTablePort
from halfmq.client.outcome import Outcome
from halfmq.client.user_code import run_result
from halfmq.errors import UsageError
from halfmq.sql.alchemy.checks import MarkerChecks
from halfmq.sql.alchemy.database import connection_of
from halfmq.sql.alchemy.declared import Declared, Upgrade, declare
from halfmq.sql.alchemy.joined import join, one_at_a_time
from halfmq.sql.alchemy.marker_rows import MarkerRows
from halfmq.sql.alchemy.outbox import Outbox
from halfmq.sql.alchemy.session_work import SessionWork
from halfmq.sql.rules.block import AsyncBlock, Block, SqlTransaction
from halfmq.sql.rules.check import FENCE_LOCK_WAIT_MS, Asked
from halfmq.sql.rules.marker import OldRow, WhichUndecided


class MarkerTable(Declared):
    """The marker table. Declare it once beside your own tables, in the **same database** as the business rows.

    >>> metadata = MetaData()
    >>> markers = MarkerTable(metadata)

    It is an ordinary ``Table`` in your ``MetaData``: ``create_all`` creates it, and Alembic detects it.

    ``name`` is sent with each half message and routes the check to this table; the default is derived from the table's name.
    All processes of one producer group must use the same database for it: the broker may check with any of them, and one
    that looks in another database can only answer UNKNOWN. For two databases use two groups, or two marker tables with
    different names.

    ``min_age_s``: a transaction without a marker is UNKNOWN until this many seconds after its prepare; only then does a
    check insert a rollback marker for it. ``lock_wait_ms``: how long a check waits for the row lock of a local transaction
    that is committing.
    """

    kind = "markers"

    def __init__(
        self,
        metadata: MetaData,
        table: str = "mq_tx",
        *,
        name: str | None = None,
        min_age_s: float = limits.CHECK_IMMUNITY_MS / 1000,
        lock_wait_ms: int = FENCE_LOCK_WAIT_MS,
    ) -> None:
        self._markers = MarkerRows(metadata, table)
        self._name = name if name is not None else f"sql.{table}"
        self._min_age_ms = round(min_age_s * 1000)
        self._lock_wait_ms = lock_wait_ms
        declare(metadata, self)

    @property
    def name(self) -> str:
        """The transaction name that routes checks to this table."""
        return self._name

    @property
    def table(self) -> Table:
        """The SQLAlchemy table."""
        return self._markers.table

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self._markers.table,)

    @property
    def upgrades(self) -> tuple[Upgrade, ...]:
        knows_prepared = f"the outcome 'P' in {self.table.fullname}"
        return (Upgrade(knows_prepared, self._markers.needs_upgrade, self._markers.upgrade),)

    def prune_page(self, connection: Connection, older_than_s: float, undecided: WhichUndecided | None) -> int:
        assert undecided is not None
        return self._markers.prune(connection, older_than_s=older_than_s, undecided=undecided)

    def bind(
        self,
        client: BlockingTransactionCalls,
        session: Session | scoped_session[Any],
        *,
        outbox: Outbox | None = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractContextManager[SqlTransaction]:
        """The context manager behind ``Client.transaction(session, markers=self)``.

        Raises:
            UsageError: not a ``Session``.
        """
        refuse_misspelt(options, MarkerTable.bind)
        if isinstance(session, scoped_session):
            session = session()
        if not isinstance(session, Session):
            raise UsageError(
                f"Client.transaction needs a Session, not {type(session).__name__}",
                hint="an AsyncSession goes with AsyncClient",
            )
        return Block(client, self._name, partial(SessionWork, session, self._markers, outbox), options)

    def bind_async(
        self,
        client: TransactionCalls,
        session: AsyncSession | async_scoped_session[Any],
        *,
        outbox: Outbox | None = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractAsyncContextManager[SqlTransaction]:
        """The context manager behind ``AsyncClient.transaction(session, markers=self)``.

        Raises:
            UsageError: not an ``AsyncSession``.
        """
        refuse_misspelt(options, MarkerTable.bind_async)
        if isinstance(session, async_scoped_session):
            session = session()
        if not isinstance(session, AsyncSession):
            raise UsageError(
                f"AsyncClient.transaction needs an AsyncSession, not {type(session).__name__}",
                hint="a Session goes with Client",
            )

        def on_connection(function: Callable[[], Any]) -> Awaitable[Any]:
            return session.run_sync(lambda _: function())

        make_work = partial(SessionWork, session.sync_session, self._markers, outbox)
        return AsyncBlock(client, self._name, make_work, options, on_connection)

    async def join_async(
        self,
        client: TransactionCalls,
        session: AsyncSession | async_scoped_session[Any],
        **options: Unpack[PrepareOptions],
    ) -> SqlTransaction:
        """The transaction of ``session``, which **the application commits or rolls back itself**, to send messages in. It is begun if none
        is open; in the same transaction the result is always the same. Several tasks may call it at once, though otherwise an
        ``AsyncSession`` is for one task at a time.

        ``session.commit()`` then sends the half messages before COMMIT, and the verdict after it. If it raises, roll back. An error of
        COMMIT is the database's own; where it has committed nevertheless, the check finds that out.

        ``client``: an open ``AsyncClient`` that answers checks from this table. ``options``: for its ``prepare``.

        Raises:
            UsageError: not an ``AsyncSession``; or it is inside a savepoint, or inside a block that commits it.
            Exception: the database's own; the transaction is rolled back.
        """
        refuse_misspelt(options, MarkerTable.join_async)
        if isinstance(session, async_scoped_session):
            session = session()
        if not isinstance(session, AsyncSession):
            raise UsageError(f"a message joins the transaction of an AsyncSession, not of a {type(session).__name__}")
        async with one_at_a_time(session.sync_session):
            return await session.run_sync(lambda sync: join(sync, self._markers, client, self._name, options))

    def checker(self, sessions: Callable[[], Any]) -> Callable[[Asked], Outcome | Awaitable[Outcome]]:
        """The check function that answers from the table. ``sessions``: your sessionmaker, bound to the primary.

        ``client.answer_checks(markers, sessions)`` registers it.

        Raises:
            UsageError: not a sessionmaker, or one without an engine for this table.
        """
        return MarkerChecks(
            self._markers, sessions, min_age_ms=self._min_age_ms, lock_wait_ms=self._lock_wait_ms
        ).check_function()

    def prune(self, session: Session, *, older_than_s: float, undecided: Collection[str] | WhichUndecided) -> int:
        """Delete old markers that no check can need any more, in ``session``'s transaction. Returns the number deleted.

        >>> while markers.prune(session, older_than_s=86_400, undecided=mq.undecided):
        ...     session.commit()

        Deletes at most 1,000 rows a call; commit, and repeat until it returns 0.

        ``undecided``: ``mq.undecided`` of a ``Client`` that reaches **all** brokers with transactions of this table. It
        keeps the markers of transactions that are still undecided, parked ones included, whatever their age. A
        collection of the ids of all of them is accepted too. For Apache RocketMQ, which gives up after 15 checks (about
        15 minutes by default), it may be empty if ``older_than_s`` is longer than that.

        Raises:
            UsageError: ``older_than_s`` is less than an hour.
            ConnectError: the broker is unreachable; nothing was deleted. Try again later.
        """
        connection = connection_of(session, self.table, "markers.prune")
        return self._markers.prune(connection, older_than_s=older_than_s, undecided=undecided)

    async def prune_async(
        self,
        session: AsyncSession,
        *,
        older_than_s: float,
        undecided: Callable[[list[str]], Awaitable[Collection[str]]],
    ) -> int:
        """``prune`` for an ``AsyncSession``, with ``undecided=mq.undecided`` of an ``AsyncClient``. Raises: as it."""
        if not isinstance(session, AsyncSession | async_scoped_session):
            raise UsageError(
                f"markers.prune_async needs an AsyncSession, not {type(session).__name__}",
                hint="markers.prune(session, ...)",
            )
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
            found = undecided(ids)
            if not isinstance(found, Awaitable):
                raise UsageError("undecided= returned no awaitable", hint="mq.undecided of an AsyncClient")
            keep = run_result(await found, "undecided=")
            gone = await session.run_sync(
                lambda sync, rows=rows, keep=keep: markers.forget(  # type: ignore[misc]
                    sync.connection(bind_arguments=bind), rows, keep
                )
            )
            if gone:
                return int(gone)
            after = rows[-1]

    def upgrade(self, session: Session) -> None:
        """Bring the table of an earlier release up to date, in ``session``'s transaction. Harmless if it is.

        Earlier releases did not know the outcome 'P'. A block raises ``UsageError`` as long as the table does not allow it. Processes of
        the earlier release may go on with an upgraded table. With an ``AsyncSession``: ``await session.run_sync(markers.upgrade)``.
        """
        self._markers.upgrade(connection_of(session, self.table, "markers.upgrade"))

    def restored(self, session: Session) -> None:
        """Declare, in ``session``'s transaction, that markers may be missing: the table gets a new identity.

        Call it, and commit, before the application starts on a database that is a copy of another one, or in which the
        marker table was restored to an earlier time than the business rows. For a transaction begun before that, a marker
        that is present still answers the check; a missing one is answered UNKNOWN, and an operator decides.
        With an ``AsyncSession``: ``await session.run_sync(markers.restored)``.
        """
        self._markers.restored(connection_of(session, self.table, "markers.restored"))


if TYPE_CHECKING:
    #: Type-checked conformance to the client's interface.
    _conforms: type[MarkerTablePort] = MarkerTable
