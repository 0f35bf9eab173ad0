"""What ``Inbox`` and ``Barrier`` have in common, and the block behind their ``once``: a row says that this was handled, and is committed
with what the handler wrote.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import ClassVar, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from halfmq.errors import UsageError
from halfmq.sql.alchemy.declared import Declared
from halfmq.sql.alchemy.transaction_guard import (
    TransactionGuard,
    is_open,
    refuse_autocommit,
    refuse_nested,
    roll_back,
    was_committed_by_block,
)
from halfmq.sql.rules.marker import WhichUndecided


class HandledRows(Declared):
    """A table with a row for each thing that was handled, which goes by its age."""

    table: Table
    #: Name of the column with the time of a row, ms.
    at_column: ClassVar[str]

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.table,)

    def prune_page(self, connection: Connection, older_than_s: float, undecided: WhichUndecided | None) -> int:
        before_ms = time.time_ns() // 1_000_000 - round(older_than_s * 1000)
        return connection.execute(delete(self.table).where(self.table.c[self.at_column] < before_ms)).rowcount

    def prune(self, session: Session, *, older_than_s: float) -> int:
        """Delete rows older than ``older_than_s`` seconds in ``session``'s transaction, which the caller commits.

        Returns the number deleted. What arrives again after that is handled again: keep rows longer than the broker keeps messages, or at
        least longer than a consumer may be down, have its offsets reset, or a request be on its way.
        """
        connection = session.connection(bind_arguments={"clause": self.table})
        return self.prune_page(connection, older_than_s, None)


class Claimed(NamedTuple):
    """``is_first``: the handler is to run. ``row``: condition of the row that the transaction wrote and must not lose; None: none."""

    is_first: bool
    row: ColumnElement[bool] | None


class Claims(NamedTuple):
    """What a block claims. ``place``: the call, for messages, and ``instead``: what to use inside of a transaction of one's own."""

    table: Table
    #: Writes the row in the session's transaction.
    claim: Callable[[Session], Claimed]
    place: str
    instead: str
    #: What is handled, for the log.
    what: str


def once_block(
    session: Session | AsyncSession, claims: Claims
) -> AbstractContextManager[bool] | AbstractAsyncContextManager[bool]:
    """A block that claims, yields ``is_first``, and commits ``session`` at its end. An exception rolls everything back.

    Raises:
        UsageError: the session is inside a savepoint or an ``mq.transaction`` block. Any exception of ``claim``.
    """
    if isinstance(session, AsyncSession):
        return _once_async(session, claims)
    return _once(session, claims)


class _Once:
    """The transaction of one block, on a synchronous session."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session = session
        self._claims = claims
        self._claimed = Claimed(False, None)
        self._guard: TransactionGuard | None = None

    def begin(self) -> bool:
        self._refuse_open_block_or_savepoint()
        place = self._claims.place
        connection = self._session.connection(bind_arguments={"clause": self._claims.table})
        refuse_autocommit(connection, place)
        self._guard = TransactionGuard(self._session, connection, place, may_commit=lambda: is_open(self._session))
        self._claimed = self._claims.claim(self._session)
        if self._claimed.row is not None:
            self._transaction = self._session.get_transaction()
            self._guard.start()
        else:
            self._stop()
            self._guard = None
        return self._claimed.is_first

    def _refuse_open_block_or_savepoint(self) -> None:
        place, instead = self._claims.place, self._claims.instead
        refuse_nested(
            self._session, f"{place} outside and mq.transaction inside works, or {instead} inside mq.transaction"
        )
        if self._session.in_nested_transaction():
            raise UsageError(
                "the session is inside a savepoint",
                hint=f"{place} commits the whole transaction at its end; use {instead} inside your own",
            )

    def end(self) -> None:
        """Prove that the row and the effect are still in the transaction that is committed now.

        Raises:
            UsageError: that transaction has ended; the message must not be acknowledged.
        """
        if self._guard is not None and not was_committed_by_block(self._session, self._transaction):
            self._guard.flush()
            self._guard.prove(self._found, lambda: self._found() == 1)
        self._session.commit()
        self._stop()

    def _found(self) -> int:
        assert self._guard is not None
        assert self._claimed.row is not None
        table = self._claims.table
        connection = self._session.connection(bind_arguments={"clause": table})
        first_column = next(iter(table.primary_key.columns))
        rows = connection.execute(select(first_column).where(self._claimed.row, self._guard.written_by_this))
        return len(rows.all())

    def abandon(self) -> None:
        self._stop()
        roll_back(self._session, self._claims.what)

    def _stop(self) -> None:
        if self._guard is not None:
            self._guard.stop()


@contextmanager
def _once(session: Session, claims: Claims) -> Iterator[bool]:
    once = _Once(session, claims)
    try:
        yield once.begin()
        once.end()
    except BaseException:
        once.abandon()
        raise


@asynccontextmanager
async def _once_async(session: AsyncSession, claims: Claims) -> AsyncIterator[bool]:
    once = _Once(session.sync_session, claims)
    try:
        yield await session.run_sync(lambda _: once.begin())
        await session.run_sync(lambda _: once.end())
    except BaseException:
        await session.run_sync(lambda _: once.abandon())
        raise
