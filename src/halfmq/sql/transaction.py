"""``with mq.transaction(session, markers=...) as tx``: one outcome for the database transaction and its messages.

The steps, and what a failure in each means:

1. Begin, insert the marker ``(tx_id, 'P')``.  The database's error; nothing was sent.
2. The body of the block. ``tx.send`` only collects.  Its exception; rolled back, nothing was sent.
3. Flush, and turn the marker into ``(tx_id, 'C')``, which proves that the transaction of step 1 still runs.  Rolled back, nothing was
   sent.
4. Send all half messages and wait for their acknowledgements.  Rolled back; the client sends ROLLBACK for
   acknowledged halves; one whose response was lost is settled by the check, which finds no marker.
5. COMMIT.  Certainly rolled back: ROLLBACK is sent, and the database's error is raised. Anything less certain: the half
   messages are left alone, ``TransactionUnknown`` is raised, and the check reads the marker.
6. Send COMMIT to the broker.  Does not affect the caller: the local commit is durable, the client retries, and the check is
   the fallback. ``tx.receipt`` is then None.

Half messages are sent late, so that they are undecided only during one local COMMIT, and an exception of the body sends none.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from halfmq.client import forks
from halfmq.client.log import logger
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.errors import HalfmqError, TransactionUnknown
from halfmq.sql.commit_failure import CommitFailure
from halfmq.sql.local_work import FailedCommit, LocalWork
from halfmq.sql.marker import MarkerRows

_T = TypeVar("_T")

_log = logger(__name__)


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


class _Steps:
    """The steps of a block, once for both faces. ``in_session`` calls a function with statements on the block's session."""

    def __init__(
        self,
        calls: TransactionCalls,
        name: str,
        markers: MarkerRows,
        session: Session,
        query_id: str,
        timeout: float | None,
        in_session: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._calls = calls
        self._name = name
        self._query_id = query_id
        self._timeout = timeout
        self._in_session = in_session
        tx_id = calls.new_transaction_id()
        self._work = LocalWork(session, markers, tx_id)
        self.transaction = SqlTransaction(tx_id, self._work)

    async def enter(self) -> SqlTransaction:
        self._begun_in = forks.generation
        await self._in_session(self._work.begin)
        return self.transaction

    async def leave(self, error: BaseException | None) -> None:
        if self._begun_in != forks.generation:  # the parent uses the same database connection: do not touch it
            if error is None:
                forks.refuse_in_child(
                    self._begun_in,
                    f"transaction {self.transaction.id}",
                    "leave its block to the parent; fork outside of blocks",
                )
            return
        if error is not None:
            await self._in_session(self._work.abandon)
            return
        prepared = await self._prepare()
        failed: FailedCommit | None = await self._in_session(self._work.commit)
        if failed is not None:
            if prepared is not None and failed.meaning is CommitFailure.ROLLED_BACK:
                await self._send_rollback(prepared)
            raise_failed(failed, self.transaction.id, sent=prepared is not None)
        if prepared is not None:
            await self._send_commit(prepared)

    async def _prepare(self) -> Prepared | None:
        try:
            messages = await self._in_session(self._work.ready)
            if not messages:
                return None
            return await self._calls.prepare(
                messages,
                tx_id=self.transaction.id,
                name=self._name,
                query_id=self._query_id,
                timeout=self._timeout,
            )
        except BaseException:
            await self._in_session(self._work.abandon)
            raise

    async def _send_commit(self, prepared: Prepared) -> None:
        try:
            self.transaction._receipt = await self._calls.commit(prepared)
        except HalfmqError as error:
            log_unconfirmed("COMMIT", prepared, error)

    async def _send_rollback(self, prepared: Prepared) -> None:
        try:
            await self._calls.rollback(prepared)
        except HalfmqError as error:
            log_unconfirmed("ROLLBACK", prepared, error)


class Block(AbstractContextManager[SqlTransaction]):
    """The block on a ``Session``. Made by ``Client.transaction``."""

    def __init__(
        self,
        client: BlockingTransactionCalls,
        name: str,
        markers: MarkerRows,
        session: Session,
        query_id: str,
        timeout: float | None,
    ) -> None:
        self._make = partial(_Steps, _WithoutWaiting(client), name, markers, session, query_id, timeout, _call)

    def __enter__(self) -> SqlTransaction:
        self._steps = self._make()
        return _finished(self._steps.enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _finished(self._steps.leave(error))


class AsyncBlock(AbstractAsyncContextManager[SqlTransaction]):
    """The block on an ``AsyncSession``. Made by ``AsyncClient.transaction``."""

    def __init__(
        self,
        client: TransactionCalls,
        name: str,
        markers: MarkerRows,
        session: AsyncSession,
        query_id: str,
        timeout: float | None,
    ) -> None:
        def in_session(function: Callable[[], Any]) -> Awaitable[Any]:
            return session.run_sync(lambda _: function())

        self._make = partial(_Steps, client, name, markers, session.sync_session, query_id, timeout, in_session)

    async def __aenter__(self) -> SqlTransaction:
        self._steps = self._make()
        return await self._steps.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._steps.leave(error)


class _WithoutWaiting:
    """The calls of a blocking client as coroutines that return without waiting for an event loop."""

    def __init__(self, client: BlockingTransactionCalls) -> None:
        self._client = client
        self.group = client.group
        self.new_transaction_id = client.new_transaction_id

    async def prepare(self, messages: Sequence[OutgoingMessage], **named: Any) -> Prepared:
        return self._client.prepare(messages, **named)

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        return self._client.commit(prepared)

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return self._client.rollback(prepared)


async def _call(function: Callable[[], Any]) -> Any:
    return function()


def _finished(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits to its end."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(_T, done.value)
    raise RuntimeError("a step of a blocking block has waited for an event loop")


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
