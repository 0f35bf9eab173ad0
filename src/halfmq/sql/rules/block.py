"""``with mq.transaction(session, markers=...) as tx``: one outcome for the database transaction and its messages.

The steps, and what a failure in each means: docs/database.md, "What happens in a block". The marker turns into
``(tx_id, 'C')`` before the half messages are sent, which proves that the transaction of the block still runs; with an
outbox, and if the broker is only away, the messages are written there, and the marker becomes ``(tx_id, 'R')``, so that
the check rolls back whatever arrives at the broker, however late. Half messages are sent late, so that they are
undecided only during one local COMMIT, and an exception of the body sends none.

The database's part of the steps is a ``LocalWork``, which each adapter has.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from halfmq.client import forks
from halfmq.client.arguments import PrepareOptions
from halfmq.client.faces import WithoutWaiting, finished
from halfmq.client.log import logger
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.receipts import COMMITTED, OUTBOX, ROLLED_BACK, Prepared, TransactionReceipt
from halfmq.errors import HalfmqError, OutcomeMixed, TransactionRefused, TransactionUnknown
from halfmq.model import properties as names
from halfmq.sql.rules.driver_errors import CommitFailure, FailedCommit

_log = logger(__name__)


class LocalWork(Protocol):
    """One local transaction. ``begin``, ``collect`` any number of times, ``ready``, then ``commit``; or ``abandon``."""

    def begin(self) -> None:
        """Begin the transaction if none is open, and insert the marker before anything else of the block.

        Raises: any exception; rolled back, nothing was sent.
        """
        ...

    def refuse_ended(self) -> None:
        """Raise UsageError if no message can be collected: the transaction has ended, or an error has rolled it back."""
        ...

    def collect(self, message: OutgoingMessage) -> None:
        """Keep one message, after ``refuse_ended``. If its savepoint is rolled back, the message is dropped.

        Raises:
            UsageError: the outbox cannot take it.
        """
        ...

    def ready(self) -> list[OutgoingMessage]:
        """Execute the last statements before COMMIT, and return the messages to send. Nothing can be collected afterwards.

        Raises: any exception; nothing was sent, and the caller must call ``abandon``.
        """
        ...

    @property
    def may_fall_back(self) -> bool:
        """Whether there is an outbox for messages that the broker does not take."""
        ...

    def fall_back(self, why: HalfmqError) -> TransactionReceipt:
        """After ``ready``, if the broker did not take the messages: write them to the outbox with a transaction id of their own, and the
        rollback marker of this transaction, in the database transaction of the block. Returns the receipt for after the commit.

        Raises: any exception; the caller must call ``abandon``.
        """
        ...

    def call_after_commit(self, call: Callable[[], None]) -> bool:
        """After ``ready``, before ``commit``: have ``call`` called by the library's own hook when the transaction has committed, at once or
        after an outer block. It sends the verdict. False: there is no such hook, so that the return of ``commit`` says it.
        """
        ...

    def commit(self) -> FailedCommit | None:
        """Commit. None: committed, or within an outer block that commits. Otherwise the failure; the transaction is rolled back where that
        is possible.

        Raises: BaseExceptions (task cancellation, KeyboardInterrupt), after the same clean-up; whether it committed is then unknown. Where
            ``call_after_commit`` is True also what the application's own hooks have raised.
        """
        ...

    def abandon(self) -> None:
        """Roll back if a transaction is open, and leave the application's connection as before the block."""
        ...


class _Collected(NamedTuple):
    message: OutgoingMessage
    savepoints: Sequence[object]


class CollectedMessages:
    """What a block will send. Savepoints are compared by ``==``, so any object that stands for one will do."""

    def __init__(self) -> None:
        self._collected: list[_Collected] = []

    def __bool__(self) -> bool:
        return bool(self._collected)

    def add(self, message: OutgoingMessage, savepoints: Sequence[object]) -> None:
        """``savepoints``: those that are open now."""
        self._collected.append(_Collected(message, savepoints))

    def drop(self, savepoint: object) -> None:
        """Drop what was collected in ``savepoint``: it was rolled back."""
        self._collected = [one for one in self._collected if savepoint not in one.savepoints]

    def messages(self) -> list[OutgoingMessage]:
        """As they were collected."""
        return [one.message for one in self._collected]

    def halves(self, origin: bytes) -> list[OutgoingMessage]:
        """The half messages. ``origin``: encoded HMQ_TX_MARKER property, table identity and time of the marker; may be empty."""
        return [
            one.message._replace(properties=names.append(one.message.properties, origin)) for one in self._collected
        ]


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
        """After the block: the broker's receipt for COMMIT; its ``path`` says whether the messages are in the outbox instead. None: nothing
        was sent, or COMMIT is not acknowledged yet, which does not affect the caller."""
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
        self._work.refuse_ended()
        message = compose(
            topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
        )
        self._work.collect(message)


#: Makes the local work of a transaction id.
MakeWork = Callable[[str], LocalWork]
#: Calls a function with statements where the application's connection is used: in its thread, or its greenlet.
CallOnConnection = Callable[[Callable[[], Any]], Awaitable[Any]]


class _Steps:
    """The steps of a block, once for both faces."""

    def __init__(
        self,
        calls: TransactionCalls,
        name: str,
        make_work: MakeWork,
        options: PrepareOptions,
        on_connection: CallOnConnection,
    ) -> None:
        self._calls = calls
        self._name = name
        self._options = options
        self._on_connection = on_connection
        #: The receipt of messages that are in the outbox.
        self._fallen_back: TransactionReceipt | None = None
        tx_id = calls.new_transaction_id()
        self._work = make_work(tx_id)
        self.transaction = SqlTransaction(tx_id, self._work)

    async def enter(self) -> SqlTransaction:
        self._begun_in = forks.generation
        await self._on_connection(self._work.begin)
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
            await self._on_connection(self._work.abandon)
            return
        prepared = await self._prepare()
        is_by_hook = prepared is not None and self._work.call_after_commit(lambda: self._hooked(prepared))
        failed: FailedCommit | None = await self._on_connection(self._work.commit)
        if failed is not None:
            if prepared is not None and failed.meaning is CommitFailure.ROLLED_BACK:
                await self._send_rollback(prepared)
            raise_failed(failed, self.transaction.id, sent=prepared is not None)
        if is_by_hook:
            return
        self.transaction._receipt = self._fallen_back
        if prepared is not None:
            await self._send_commit(prepared)

    def _hooked(self, prepared: Prepared) -> None:
        """The call of a library's hook, which is a plain function: so are the calls of the blocking face that has one."""
        finished(self._send_commit(prepared))

    async def _prepare(self) -> Prepared | None:
        """None: the broker has nothing to commit."""
        try:
            messages = await self._on_connection(self._work.ready)
            if not messages:
                return None
            try:
                return await self._calls.prepare(messages, tx_id=self.transaction.id, name=self._name, **self._options)
            except HalfmqError as error:
                if not (self._work.may_fall_back and error.retriable):
                    raise
                self._fallen_back = await self._on_connection(partial(self._work.fall_back, error))
                return None
        except BaseException:
            await self._on_connection(self._work.abandon)
            raise

    async def _send_commit(self, prepared: Prepared) -> None:
        self.transaction._receipt = await send_commit(self._calls, prepared)

    async def _send_rollback(self, prepared: Prepared) -> None:
        try:
            await self._calls.rollback(prepared)
        except HalfmqError as error:
            if isinstance(error, TransactionRefused) and error.standing == COMMITTED:  # the database's error is raised
                _log.error(
                    "DAMAGE: the messages of %s are visible, and its local COMMIT failed: %s", prepared.tx_id, error
                )
            else:
                log_unconfirmed("ROLLBACK", prepared, error)


class Block(AbstractContextManager[SqlTransaction]):
    """The block of ``Client.transaction``."""

    def __init__(
        self,
        client: BlockingTransactionCalls,
        name: str,
        make_work: MakeWork,
        options: PrepareOptions,
    ) -> None:
        self._make = partial(_Steps, WithoutWaiting(client), name, make_work, options, _call)

    def __enter__(self) -> SqlTransaction:
        self._steps = self._make()
        return finished(self._steps.enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished(self._steps.leave(error))


class AsyncBlock(AbstractAsyncContextManager[SqlTransaction]):
    """The block of ``AsyncClient.transaction``."""

    def __init__(
        self,
        client: TransactionCalls,
        name: str,
        make_work: MakeWork,
        options: PrepareOptions,
        on_connection: CallOnConnection,
    ) -> None:
        self._make = partial(_Steps, client, name, make_work, options, on_connection)

    async def __aenter__(self) -> SqlTransaction:
        self._steps = self._make()
        return await self._steps.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._steps.leave(error)


async def send_commit(calls: TransactionCalls, prepared: Prepared) -> TransactionReceipt | None:
    """The verdict COMMIT, after the local one. None: it is not confirmed yet, which is logged.

    Raises:
        OutcomeMixed: the messages are rolled back.
    """
    try:
        return await calls.commit(prepared)
    except HalfmqError as error:
        if isinstance(error, TransactionRefused) and error.standing == ROLLED_BACK:
            raise outcome_mixed(prepared.tx_id, error) from error
        log_unconfirmed("COMMIT", prepared, error)
        return None


async def _call(function: Callable[[], Any]) -> Any:
    return function()


def in_outbox(tx_id: str, messages: Sequence[OutgoingMessage]) -> TransactionReceipt:
    """The receipt of messages that are in the outbox, under the transaction id ``tx_id``."""
    return TransactionReceipt(
        tx_id,
        COMMITTED,
        tuple([message.message_id for message in messages]),
        acknowledged=False,
        atomic=len(messages) == 1,
        path=OUTBOX,
    )


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


def outcome_mixed(tx_id: str, refused: TransactionRefused) -> OutcomeMixed:
    """The exception for a committed local transaction whose messages are rolled back: no check changes that."""
    return OutcomeMixed(
        f"the local transaction {tx_id} is committed, and its messages never appear: {refused}",
        tx_id=tx_id,
        standing=refused.standing,
        hint="do not repeat it: send what its messages said in a new transaction, or undo its rows; `halfmq tx damaged` lists it as soon as "
        "its marker was compared",
    )


def log_unconfirmed(verdict: str, prepared: Prepared, error: HalfmqError) -> None:
    """Log a verdict without acknowledgement; the client retries it, and the check is the fallback."""
    _log.warning(
        "%s of %s was not confirmed (%s); it is repeated, and the check settles it, unless somebody else has: then a line with DAMAGE, or "
        "`halfmq tx damaged`, says so",
        verdict, prepared.tx_id, error, exc_info=error,
    )  # fmt: skip
