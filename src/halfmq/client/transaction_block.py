"""``async with mq.begin(...) as tx``: several messages, one outcome, without a marker table.

Messages are collected, and sent as half messages at the end of the block, directly before COMMIT. An exception before that
sends nothing. **If the block commits locally before that and the process then dies, the messages are lost.** To prevent it,
call ``await tx.prepare()`` before the local commit, so that the check decides after a crash, or use
``mq.transaction(session, markers=...)``.

After ``prepare`` an exception does not prove that the local commit failed: only its response may be lost.

- With a check for the transaction (``add_check``, ``add_listener``, the ``check`` of ``@app.transaction``, or
  ``checked_elsewhere``) the outcome is UNKNOWN, and the check decides.
- A block with a name and no check is rejected before it begins.
- A block without a name has no check. It is for messages only, without a local commit: an ``Exception`` means ROLLBACK. If it is
  cancelled or interrupted, the transaction stays undecided until an operator settles it.

``tx.rollback()`` always rolls back.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack

from halfmq.client import forks
from halfmq.client.log import log
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
from halfmq.client.notes import Notes, PrepareOptions, note_pairs
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.errors import HalfmqError, UsageError

if TYPE_CHECKING:
    from halfmq.client.marker_table import CheckFunction
    from halfmq.client.message import Message
    from halfmq.client.verdicts import Verdicts

_MISSING: Final[Any] = object()


class BlockCalls(TransactionCalls, Protocol):
    """The calls of ``AsyncClient`` that a block uses; documented there."""

    def check_functions(self) -> "dict[str, CheckFunction]": ...

    async def finish(self, prepared: Prepared, outcome: Outcome, remark: str = "") -> TransactionReceipt: ...


class BlockingBlockCalls(BlockingTransactionCalls, Protocol):
    """The calls of ``Client`` that a block uses; documented at ``AsyncClient``."""

    def check_functions(self) -> "dict[str, CheckFunction]": ...

    def finish(self, prepared: Prepared, outcome: Outcome, remark: str = "") -> TransactionReceipt: ...


class Transaction:
    """A transaction: the current one in a block, or the one to answer for in a check function."""

    def __init__(
        self, tx_id: str, name: str = "", *, topic: str | None = None, query_id: str = "", **notes: Unpack[Notes]
    ) -> None:
        note_pairs(**notes)
        self.id = tx_id
        #: Routes checks to the check function.
        self.name = name
        #: The application's key for its local transaction; sent with the messages.
        self.query_id = query_id
        #: For whoever must decide in the application's place; sent with the messages, and may be set until then.
        self.advice: Outcome | None = notes.get("advice")
        self.comment: str = notes.get("comment", "")
        #: In a check: the half message. None in a block.
        self.message: Message | None = None
        #: In a check: number of checks so far, this one included, and when the broker stored the half (wall clock, ms).
        self.checks = 0
        self.prepared_at_ms: int | None = None
        #: In a check: who answers, for the broker's log; empty for the application's own code.
        self.decided_by = ""
        #: In a check: HMQ_TX_MARKER of the half, for ``MarkerTable``; may be empty.
        self.marker = ""
        #: In a check: a reason for UNKNOWN, which ``halfmq tx show`` displays; the check function may set it.
        self.remark = ""
        #: After the block: the broker's receipt; None if nothing was sent, or no verdict was acknowledged.
        self.receipt: TransactionReceipt | None = None
        self._topic = topic
        self._messages: list[OutgoingMessage] = []
        self._prepared: Prepared | None = None
        self._closed = False

    def _said(self, timeout_s: float | None) -> "PrepareOptions":
        return {"query_id": self.query_id, "timeout": timeout_s, "advice": self.advice, "comment": self.comment}

    @property
    def key(self) -> str | None:
        """In a check: the first key of the message."""
        return None if self.message is None else self.message.key

    @property
    def keys(self) -> tuple[str, ...]:
        """In a check: all keys of the message."""
        return () if self.message is None else self.message.keys

    def send(
        self,
        topic: Any,
        body: Any = _MISSING,
        /,
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Collect a message, which becomes visible if the transaction commits. No I/O.

        ``send(body)`` uses the transaction's own topic (``@app.transaction(..., topic=...)``).

        Raises:
            UsageError, InvalidName, MessageTooLarge: an argument is wrong, or the transaction is already prepared.
        """
        if body is _MISSING:
            topic, body = self._topic, topic
            if topic is None:
                raise UsageError("no topic given, and this transaction has none", hint="tx.send(topic, body)")
        if self.message is not None or self._closed:
            raise UsageError(
                "this transaction accepts no more messages", hint="it is being checked, or its block ended"
            )
        if self._prepared is not None:
            raise UsageError("this transaction is prepared: it accepts no more messages", hint="send before prepare")
        message = compose(
            topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
        )
        self._messages.append(message)

    def _close(self) -> Prepared | None:
        """End collecting. Returns the prepared transaction once: the caller that gets it must settle it."""
        self._closed = True
        self._messages.clear()
        prepared, self._prepared = self._prepared, None
        return prepared


class AsyncTransaction(Transaction):
    """The block of ``AsyncClient.begin``."""

    def __init__(
        self,
        calls: BlockCalls,
        verdicts: "Verdicts",
        name: str,
        *,
        topic: str | None,
        query_id: str,
        tx_id: str = "",
        checked_elsewhere: bool = False,
        timeout: float | None = None,
        **notes: Unpack[Notes],
    ) -> None:
        super().__init__(tx_id or calls.new_transaction_id(), name, topic=topic, query_id=query_id, **notes)
        self._calls = calls
        self._verdicts = verdicts
        self._checked_elsewhere = checked_elsewhere
        self._timeout_s = timeout

    async def prepare(self) -> None:
        """Send the half messages now, before the local commit. After a crash from here on the check decides.

        Raises: as ``Transactions.prepare``; then the local transaction must not run.
        """
        if self._prepared is None and self._messages:
            self._verdicts.opened(self.id)
            self._prepared = await self._calls.prepare(
                self._messages, tx_id=self.id, name=self.name, **self._said(self._timeout_s)
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            if error is None:
                await self.prepare()
            prepared = self._close()
            if prepared is None:
                return
            if error is None:
                self.receipt = await self._calls.commit(prepared)
            else:
                await self._after(error, prepared)
        finally:
            self._verdicts.left_open(self.id)

    async def _after(self, error: BaseException, prepared: Prepared) -> None:
        try:
            if self._checked_elsewhere or self.name in self._calls.check_functions():
                self.receipt = await self._calls.finish(prepared, Outcome.UNKNOWN, raised("the block", error))
            elif isinstance(error, Exception):
                self.receipt = await self._calls.rollback(prepared)
        except HalfmqError as lost:
            log.warning("%s; the check settles it", lost)

    async def rollback(self) -> None:
        """Discard the messages, because the local transaction did not commit and never will. The block may continue.

        Without a response ROLLBACK is retried in the background, with the check as the fallback; ``receipt`` is then None.
        """
        prepared = self._close()
        if prepared is None:
            return
        try:
            self.receipt = await self._calls.rollback(prepared)
        except UsageError:  # nothing was sent
            self._prepared = prepared
            raise
        except HalfmqError as lost:
            log.warning("%s; the check settles it", lost)


class BlockingTransaction(Transaction):
    """The block of ``Client.begin``: the same, blocking."""

    def __init__(
        self,
        calls: BlockingBlockCalls,
        verdicts: "Verdicts",
        name: str,
        *,
        topic: str | None,
        query_id: str,
        tx_id: str = "",
        checked_elsewhere: bool = False,
        timeout: float | None = None,
        **notes: Unpack[Notes],
    ) -> None:
        super().__init__(tx_id or calls.new_transaction_id(), name, topic=topic, query_id=query_id, **notes)
        self._calls = calls
        self._verdicts = verdicts
        self._checked_elsewhere = checked_elsewhere
        self._timeout_s = timeout
        self._begun_in = forks.generation

    def _refuse_in_child(self) -> None:
        """Parent and child could send different verdicts for one transaction."""
        forks.refuse_in_child(
            self._begun_in, f"transaction {self.id}", "leave its block to the parent, begin a new one here"
        )

    def prepare(self) -> None:
        """See ``AsyncTransaction.prepare``."""
        self._refuse_in_child()
        if self._prepared is None and self._messages:
            self._verdicts.opened(self.id)
            self._prepared = self._calls.prepare(
                self._messages, tx_id=self.id, name=self.name, **self._said(self._timeout_s)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._begun_in != forks.generation:
            return  # the parent settles it
        self._closed = True
        try:
            if error is None:
                self.prepare()
            prepared = self._close()
            if prepared is None:
                return
            if error is None:
                self.receipt = self._calls.commit(prepared)
            else:
                self._after(error, prepared)
        finally:
            self._verdicts.left_open(self.id)

    def _after(self, error: BaseException, prepared: Prepared) -> None:
        try:
            if self._checked_elsewhere or self.name in self._calls.check_functions():
                self.receipt = self._calls.finish(prepared, Outcome.UNKNOWN, raised("the block", error))
            elif isinstance(error, Exception):
                self.receipt = self._calls.rollback(prepared)
        except HalfmqError as lost:
            log.warning("%s; the check settles it", lost)

    def rollback(self) -> None:
        """See ``AsyncTransaction.rollback``."""
        self._refuse_in_child()
        prepared = self._close()
        if prepared is None:
            return
        try:
            self.receipt = self._calls.rollback(prepared)
        except UsageError:  # nothing was sent
            self._prepared = prepared
            raise
        except HalfmqError as lost:
            log.warning("%s; the check settles it", lost)


def raised(where: str, error: BaseException) -> str:
    """The remark sent with UNKNOWN after an exception, for the operator."""
    return f"{where} raised {type(error).__name__}: {error}"


def checked_outcome(value: object, what: str) -> Outcome:
    """``value`` if it is an Outcome.

    Raises:
        TypeError: anything else, so that a missing return is not mistaken for UNKNOWN.
    """
    if isinstance(value, Outcome):
        return value
    raise TypeError(f"{what} returned {value!r}; it must return Outcome.COMMIT, ROLLBACK or UNKNOWN")
