"""``async with mq.begin(...) as tx``: several messages, one outcome, without a database of ours.

Messages are collected, and sent as half messages at the end of the block, directly before COMMIT. An exception in the
block before that costs the broker nothing. **What the block commits locally before that is lost to the messages if the process dies
in between**; call ``await tx.prepare()`` before the local commit (then the check is asked), or use
``mq.transaction(session, markers=...)``, where the marker table takes care of it.

An exception after ``prepare`` says nothing about the local commit, whose answer may be what was lost. So where there is a
check for the transaction (``add_check``, ``add_listener``, ``@app.transaction``'s ``check``, or ``checked_elsewhere``), it is
UNKNOWN and the check decides. A block with a name and no check is refused before it begins. For one without a name and
without a check nobody could ever answer, and an ``Exception`` is ROLLBACK: it is for messages only, with no local commit. Such
a block that is cancelled or interrupted stays undecided, for an operator. ``tx.rollback()`` always rolls back.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from halfmq.client import forks
from halfmq.client.log import log
from halfmq.client.marker_table import BlockingTransactionCalls, TransactionCalls
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
    """What a block asks of ``AsyncClient``."""

    def check_functions(self) -> "dict[str, CheckFunction]": ...

    async def finish(self, prepared: Prepared, outcome: Outcome, remark: str = "") -> TransactionReceipt: ...


class BlockingBlockCalls(BlockingTransactionCalls, Protocol):
    """What a block asks of ``Client``."""

    def check_functions(self) -> "dict[str, CheckFunction]": ...

    def finish(self, prepared: Prepared, outcome: Outcome, remark: str = "") -> TransactionReceipt: ...


class Transaction:
    """One transaction: in a block the one being made, in a check the one that is asked about."""

    def __init__(self, tx_id: str, name: str = "", *, topic: str | None = None, query_id: str = "") -> None:
        self.id = tx_id
        #: Routes the check to its listener.
        self.name = name
        #: What the application looks its local transaction up by; travels with the messages.
        self.query_id = query_id
        #: In a check: the half message. None in a block.
        self.message: Message | None = None
        #: In a check: how often it was asked, this time included, and when the broker stored the half (wall clock, ms).
        self.checks = 0
        self.prepared_at_ms: int | None = None
        #: In a check: who answers, for the broker's records, where it is not the application's own code.
        self.decided_by = ""
        #: In a check: what the half says of its marker row, for ``MarkerTable``; empty if nothing.
        self.marker = ""
        #: In a check: what the broker's operator is told with UNKNOWN, if the check sets it.
        self.remark = ""
        #: After the block: the broker's receipt. None when nothing was sent, or nothing was said.
        self.receipt: TransactionReceipt | None = None
        self._topic = topic
        self._messages: list[OutgoingMessage] = []
        self._prepared: Prepared | None = None
        self._closed = False

    @property
    def key(self) -> str | None:
        """In a check: the first key of the message."""
        return None if self.message is None else self.message.key

    @property
    def keys(self) -> tuple[str, ...]:
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
        """Collect a message; it becomes visible with all others of this transaction, or not at all. No I/O.

        ``send(body)`` goes to the transaction's own topic (``@app.transaction(..., topic=...)``).

        Raises:
            UsageError, InvalidName, MessageTooLarge: what is wrong with it; or it is too late.
        """
        if body is _MISSING:
            topic, body = self._topic, topic
            if topic is None:
                raise UsageError("no topic given, and this transaction has none", hint="tx.send(topic, body)")
        if self.message is not None or self._closed:
            raise UsageError("this transaction takes no more messages", hint="it is being checked, or its block ended")
        if self._prepared is not None:
            raise UsageError("this transaction is prepared: it takes no more messages", hint="send before prepare")
        message = compose(
            topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
        )
        self._messages.append(message)

    def _close(self) -> Prepared | None:
        """No more messages. What was prepared, once: whoever gets it says what becomes of it."""
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
    ) -> None:
        super().__init__(tx_id or calls.new_transaction_id(), name, topic=topic, query_id=query_id)
        self._calls = calls
        self._verdicts = verdicts
        self._checked_elsewhere = checked_elsewhere

    async def prepare(self) -> None:
        """Send the half messages now, before the local commit. From here on the check settles what a crash leaves.

        Raises: as ``Transactions.prepare``; the local transaction must not run then.
        """
        if self._prepared is None and self._messages:
            self._verdicts.opened(self.id)
            self._prepared = await self._calls.prepare(
                self._messages, tx_id=self.id, name=self.name, query_id=self.query_id
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
        """The local transaction did not happen, and will not: throw the messages away. The block may go on without them.

        Without an answer ROLLBACK is repeated in the background, and the check gets it; ``receipt`` is then None.
        """
        prepared = self._close()
        if prepared is None:
            return
        try:
            self.receipt = await self._calls.rollback(prepared)
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
    ) -> None:
        super().__init__(tx_id or calls.new_transaction_id(), name, topic=topic, query_id=query_id)
        self._calls = calls
        self._verdicts = verdicts
        self._checked_elsewhere = checked_elsewhere
        self._begun_in = forks.generation

    def _refuse_in_child(self) -> None:
        """Parent and child would both speak for one transaction."""
        forks.refuse_in_child(
            self._begun_in, f"transaction {self.id}", "leave its block to the parent, begin a new one here"
        )

    def prepare(self) -> None:
        """See ``AsyncTransaction.prepare``."""
        self._refuse_in_child()
        if self._prepared is None and self._messages:
            self._verdicts.opened(self.id)
            self._prepared = self._calls.prepare(self._messages, tx_id=self.id, name=self.name, query_id=self.query_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._begun_in != forks.generation:
            return  # the parent says what becomes of it
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
        except HalfmqError as lost:
            log.warning("%s; the check settles it", lost)


def raised(where: str, error: BaseException) -> str:
    """The remark that tells the broker's operator why a transaction is UNKNOWN."""
    return f"{where} raised {type(error).__name__}: {error}"


def checked_outcome(value: object, what: str) -> Outcome:
    """``value`` if it is an Outcome.

    Raises:
        TypeError: a listener that forgets to return must not pass for one that does not know.
    """
    if isinstance(value, Outcome):
        return value
    raise TypeError(f"{what} returned {value!r}; it must return Outcome.COMMIT, ROLLBACK or UNKNOWN")
