"""``with mq.transaction(session, markers=...) as tx``: one outcome for the database transaction and its messages.

The steps, and what a failure in each means:

1. Begin, insert the marker ``(tx_id, 'C')``.  The database's error; nothing was sent.
2. The body of the block. ``tx.send`` only collects.  Its exception; rolled back, nothing was sent.
3. Flush, then send all half messages and wait for their acknowledgements.  Rolled back; the client sends ROLLBACK for
   acknowledged halves; one whose response was lost is settled by the check, which finds no marker.
4. COMMIT.  Certainly rolled back: ROLLBACK is sent, and the database's error is raised. Anything less certain: the half
   messages are left alone, ``TransactionUnknown`` is raised, and the check reads the marker.
5. Send COMMIT to the broker.  Does not affect the caller: the local commit is durable, the client retries, and the check is
   the fallback. ``tx.receipt`` is then None.

Half messages are sent late, so that they are undecided only during one local COMMIT, and an exception of the body sends none.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from types import TracebackType

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from halfmq.client import forks
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.errors import HalfmqError, TransactionUnknown
from halfmq.sql.commit_failure import CommitFailure
from halfmq.sql.local_work import FailedCommit, LocalWork
from halfmq.sql.marker import MarkerRows

_log = logging.getLogger(__name__)


class SqlTransaction:
    """The object that the body of an ``mq.transaction`` block receives."""

    def __init__(self, tx_id: str, work: LocalWork) -> None:
        self._id = tx_id
        self._work = work
        self._receipt: TransactionReceipt | None = None

    @property
    def id(self) -> str:
        """The key of the marker row, and the transaction's id at the broker."""
        return self._id

    @property
    def receipt(self) -> TransactionReceipt | None:
        """After the block: the broker's receipt for COMMIT. None: nothing was sent, or COMMIT is not acknowledged yet, which
        does not affect the caller."""
        return self._receipt

    def send(
        self,
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Collect a message, which becomes visible if the transaction commits. No I/O.

        Inside ``session.begin_nested()`` it belongs to the savepoint: if that is rolled back, it is not sent.

        Raises:
            UsageError, InvalidName, MessageTooLarge: an argument is wrong, or the block has ended.
        """
        self._work.collect(
            topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
        )


class Block(AbstractContextManager[SqlTransaction]):
    """The block on a ``Session``. Made by ``Client.transaction``."""

    def __init__(
        self, client: BlockingTransactionCalls, name: str, markers: MarkerRows, session: Session, query_id: str
    ) -> None:
        self._client = client
        self._name = name
        self._markers = markers
        self._session = session
        self._query_id = query_id

    def __enter__(self) -> SqlTransaction:
        self._begun_in = forks.generation
        tx_id = self._client.new_transaction_id()
        self._work = LocalWork(self._session, self._markers, tx_id)
        self._work.begin()
        self._transaction = SqlTransaction(tx_id, self._work)
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._begun_in != forks.generation:  # the parent uses the same database connection: do not touch it
            if error is None:
                forks.refuse_in_child(
                    self._begun_in,
                    f"transaction {self._transaction.id}",
                    "leave its block to the parent; fork outside of blocks",
                )
            return
        if error is not None:
            self._work.abandon()
            return
        prepared = self._prepare()
        failed = self._work.commit()
        if failed is not None:
            if prepared is not None and failed.meaning is CommitFailure.ROLLED_BACK:
                self._send_rollback(prepared)
            raise_failed(failed, self._transaction.id, sent=prepared is not None)
        if prepared is not None:
            self._send_commit(prepared)

    def _prepare(self) -> Prepared | None:
        try:
            messages = self._work.ready()
            if not messages:
                return None
            return self._client.prepare(messages, tx_id=self._transaction.id, name=self._name, query_id=self._query_id)
        except BaseException:
            self._work.abandon()
            raise

    def _send_commit(self, prepared: Prepared) -> None:
        try:
            self._transaction._receipt = self._client.commit(prepared)
        except HalfmqError as error:
            log_unconfirmed("COMMIT", prepared, error)

    def _send_rollback(self, prepared: Prepared) -> None:
        try:
            self._client.rollback(prepared)
        except HalfmqError as error:
            log_unconfirmed("ROLLBACK", prepared, error)


class AsyncBlock(AbstractAsyncContextManager[SqlTransaction]):
    """The block on an ``AsyncSession``. Made by ``AsyncClient.transaction``."""

    def __init__(
        self, client: TransactionCalls, name: str, markers: MarkerRows, session: AsyncSession, query_id: str
    ) -> None:
        self._client = client
        self._name = name
        self._markers = markers
        self._session = session
        self._query_id = query_id

    async def __aenter__(self) -> SqlTransaction:
        tx_id = self._client.new_transaction_id()
        self._work = LocalWork(self._session.sync_session, self._markers, tx_id)
        await self._session.run_sync(lambda _: self._work.begin())
        self._transaction = SqlTransaction(tx_id, self._work)
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abandon()
            return
        prepared = await self._prepare()
        failed = await self._session.run_sync(lambda _: self._work.commit())
        if failed is not None:
            if prepared is not None and failed.meaning is CommitFailure.ROLLED_BACK:
                await self._send_rollback(prepared)
            raise_failed(failed, self._transaction.id, sent=prepared is not None)
        if prepared is not None:
            await self._send_commit(prepared)

    async def _abandon(self) -> None:
        await self._session.run_sync(lambda _: self._work.abandon())

    async def _prepare(self) -> Prepared | None:
        try:
            messages = await self._session.run_sync(lambda _: self._work.ready())
            if not messages:
                return None
            return await self._client.prepare(
                messages, tx_id=self._transaction.id, name=self._name, query_id=self._query_id
            )
        except BaseException:
            await self._abandon()
            raise

    async def _send_commit(self, prepared: Prepared) -> None:
        try:
            self._transaction._receipt = await self._client.commit(prepared)
        except HalfmqError as error:
            log_unconfirmed("COMMIT", prepared, error)

    async def _send_rollback(self, prepared: Prepared) -> None:
        try:
            await self._client.rollback(prepared)
        except HalfmqError as error:
            log_unconfirmed("ROLLBACK", prepared, error)


def raise_failed(failed: FailedCommit, tx_id: str, *, sent: bool) -> None:
    """Raise the exception for a failed COMMIT.

    Raises:
        TransactionUnknown: the outcome is unknown; the check reads the marker.
        Exception: the database's own, if the transaction is certainly rolled back.
    """
    if failed.meaning is CommitFailure.ROLLED_BACK:
        raise failed.error
    raise TransactionUnknown(
        f"the outcome of the local COMMIT of {tx_id} is unknown: {failed.error}",
        tx_id=tx_id,
        hint="look for your row, or for the marker; do not simply retry"
        + ("; the broker checks until the marker answers" if sent else ""),
    ) from failed.error


def log_unconfirmed(verdict: str, prepared: Prepared, error: HalfmqError) -> None:
    """Log a verdict without acknowledgement; the client retries it, and the check is the fallback."""
    _log.warning(
        "%s of %s was not confirmed (%s); the check settles it", verdict, prepared.tx_id, error, exc_info=error
    )
