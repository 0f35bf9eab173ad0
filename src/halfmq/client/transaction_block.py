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

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack, overload

from halfmq.client import forks
from halfmq.client.arguments import MessageOptions, Notes, note_pairs, refuse_misspelt
from halfmq.client.faces import finished
from halfmq.client.listener import listener_name
from halfmq.client.log import log
from halfmq.client.marker_table import TransactionCalls
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.producer import unique_key
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.errors import HalfmqError, UsageError
from halfmq.model import properties as names
from halfmq.model.stored_message import SYS_PREPARED, StoredMessage, body_crc_of

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient
    from halfmq.client.listener import TransactionListener
    from halfmq.client.marker_table import CheckFunction
    from halfmq.client.verdicts import Verdicts

_MISSING: Final[Any] = object()


class BlockCalls(TransactionCalls, Protocol):
    """The calls of ``AsyncClient`` that a block uses; documented there."""

    def check_functions(self) -> "dict[str, CheckFunction]": ...

    async def finish(self, prepared: Prepared, outcome: Outcome, remark: str = "") -> TransactionReceipt: ...


class Transaction:
    """A transaction: the current one in a block, or the one to answer for in a check function."""

    def __init__(
        self, tx_id: str, name: str = "", *, topic: str | None = None, query_id: str = "", **notes: Unpack[Notes]
    ) -> None:
        refuse_misspelt(notes, Transaction.__init__)
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

    @property
    def key(self) -> str | None:
        """In a check: the first key of the message."""
        return None if self.message is None else self.message.key

    @property
    def keys(self) -> tuple[str, ...]:
        """In a check: all keys of the message."""
        return () if self.message is None else self.message.keys

    @overload
    def send(self, body: object, /, **message: Unpack[MessageOptions]) -> None: ...

    @overload
    def send(self, topic: str, body: object, /, **message: Unpack[MessageOptions]) -> None: ...

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


class _Block(Transaction):
    """The steps of both faces. ``calls``: of an ``AsyncClient``, or those of a ``Client``, ``WithoutWaiting``."""

    def __init__(
        self,
        calls: BlockCalls,
        verdicts: "Verdicts",
        name: str = "",
        *,
        topic: str | None = None,
        query_id: str = "",
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

    async def _prepare(self) -> None:
        if self._prepared is None and self._messages:
            self._verdicts.opened(self.id)
            self._prepared = await self._calls.prepare(
                self._messages,
                tx_id=self.id,
                name=self.name,
                query_id=self.query_id,
                timeout=self._timeout_s,
                advice=self.advice,
                comment=self.comment,
            )

    async def _leave(self, error: BaseException | None) -> None:
        self._closed = True
        try:
            if error is None:
                await self._prepare()
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

    async def _roll_back(self) -> None:
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


class AsyncTransaction(_Block):
    """The block of ``AsyncClient.begin``."""

    #: Awaited before the block is entered, if no broker has answered for some time; raises ConnectError.
    _entering: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def prepare(self) -> None:
        """Send the half messages now, before the local commit. After a crash from here on the check decides.

        Raises: as ``Transactions.prepare``; then the local transaction must not run.
        """
        await self._prepare()

    async def __aenter__(self) -> Self:
        if self._entering is not None:
            await self._entering()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def rollback(self) -> None:
        """Discard the messages, because the local transaction did not commit and never will. The block may continue.

        Without a response ROLLBACK is retried in the background, with the check as the fallback; ``receipt`` is then None.
        """
        await self._roll_back()


class BlockingTransaction(_Block):
    """The block of ``Client.begin``: the same, blocking."""

    def _refuse_in_child(self) -> None:
        """Parent and child could send different verdicts for one transaction."""
        forks.refuse_in_child(
            self._begun_in, f"transaction {self.id}", "leave its block to the parent, begin a new one here"
        )

    def prepare(self) -> None:
        """See ``AsyncTransaction.prepare``."""
        self._refuse_in_child()
        finished(self._prepare())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._begun_in != forks.generation:
            return  # the parent settles it
        self._refuse_in_child()
        finished(self._leave(error))

    def rollback(self) -> None:
        """See ``AsyncTransaction.rollback``."""
        self._refuse_in_child()
        finished(self._roll_back())


async def send_by_listener(
    calls: BlockCalls,
    client: "AsyncClient",
    listener: "TransactionListener",
    execute: "Callable[[Message], Awaitable[object]]",
    topic: str,
    body: object,
    *,
    tx_id: str = "",
    advice: Outcome | None = None,
    comment: str = "",
    **message: Any,
) -> TransactionReceipt:
    """The steps of ``send_in_transaction``, for both faces: the half message, ``execute``, its outcome."""
    outgoing = compose(topic, body, **message)
    tx_id = tx_id or calls.new_transaction_id()
    what, verdicts = f"{type(listener).__name__}.execute", client.verdicts
    verdicts.opened(tx_id)
    try:
        prepared = await calls.prepare(
            [outgoing], tx_id=tx_id, name=listener_name(listener), advice=advice, comment=comment
        )
        half = _half_of(outgoing, prepared, client.clock.wall_ms())
        try:
            said = await execute(half)
        except BaseException as error:
            try:
                await calls.finish(prepared, Outcome.UNKNOWN, raised("execute", error))
            except HalfmqError as lost:
                log.warning("%s: %s; the check settles it", prepared.tx_id, lost)
            raise
        return await calls.finish(prepared, checked_outcome(said, what))
    finally:
        verdicts.left_open(tx_id)


def _half_of(outgoing: OutgoingMessage, prepared: Prepared, now_ms: int) -> "Message":
    """The half message that is passed to ``TransactionListener.execute``, with the same properties as later in ``check``."""
    half = prepared.halves[0]
    own = names.encode([(names.PGROUP, prepared.group), (names.HMQ_TX_ID, prepared.tx_id), (names.TRAN_MSG, "true")])
    stored = StoredMessage(
        topic=outgoing.topic,
        queue_id=0,
        queue_offset=half.half_index,
        flag=0,
        sys_flag=SYS_PREPARED,
        born_time_ms=now_ms,
        born_host=bytes(8),
        store_time_ms=now_ms,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_offset=half.log_offset,
        body=outgoing.body,
        body_crc=body_crc_of(outgoing.body),
        properties=names.append(outgoing.properties, unique_key(half.message_id) + own),
    )
    return Message(stored, half.log_offset, outgoing.body)


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
