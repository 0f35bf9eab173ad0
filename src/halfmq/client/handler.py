"""Calls a consumer's handler function: decodes the body as its annotation says, optionally in an inbox transaction in which it may send."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from halfmq.client.handler_arguments import arguments_of
from halfmq.client.log import log
from halfmq.client.loop_thread import run_on
from halfmq.client.message import Message, Sends
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.client.retry_policy import UNDECODABLE, NotDecoded
from halfmq.client.user_code import RunBlocking, call, is_async, plain_result, run_result
from halfmq.errors import HalfmqError, OutcomeMixed, UsageError

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient
    from halfmq.client.marker_table import MarkerTable


class HandlerTransaction(NamedTuple):
    """``markers``: with half messages; ``outbox``: as its rows; both: as rows if the broker does not answer."""

    client: "AsyncClient"
    markers: "MarkerTable | None"
    outbox: Any

    def block_async(self, session: Any) -> AbstractAsyncContextManager[Sends]:
        """For an ``AsyncSession``, on the client's loop. At its end it commits the session, if there are ``markers``.

        Raises: as ``AsyncClient.transaction``.
        """
        if self.markers is None:
            return nullcontext(_Rows(self.outbox, session))
        return self.client.transaction(session, markers=self.markers, outbox=self.outbox)

    def block(self, session: Any, loop: asyncio.AbstractEventLoop) -> AbstractContextManager[Sends]:
        """The same for a ``Session``, in another thread than that of ``loop``, the client's."""
        if self.markers is None:
            return nullcontext(_Rows(self.outbox, session))
        options = self.client._transaction_options(self.markers, self.outbox)
        return self.markers.bind(_FromThread(self.client, loop), session, **options)


class _Rows:
    """Sends as rows of an outbox."""

    def __init__(self, outbox: Any, session: Any) -> None:
        self._outbox = outbox
        self._session = session

    def send(self, topic: str, body: object, **named: Any) -> None:
        self._outbox.send(self._session, topic, body, **named)


class _FromThread:
    """The calls of a client in another thread than that of its loop."""

    def __init__(self, client: "AsyncClient", loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self.group = client.group
        self.new_transaction_id = client.new_transaction_id

    def prepare(self, messages: Sequence[OutgoingMessage], **named: Any) -> Prepared:
        return run_on(self._loop, self._client.prepare(messages, **named), self._refuse_if_ended)

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        return run_on(self._loop, self._client.commit(prepared), self._refuse_if_ended)

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return run_on(self._loop, self._client.rollback(prepared), self._refuse_if_ended)

    def _refuse_if_ended(self) -> None:
        if self._loop.is_closed() or not self._loop.is_running():
            raise UsageError("the event loop of the app has ended, and with it this handler's transaction")


class InboxPort(Protocol):
    """The part of ``halfmq.sql.Inbox`` that a handler uses."""

    def once(self, session: Any, message: Message, *, group: str) -> "Block":
        """A block that yields True for the first delivery of ``message``, and commits ``session`` at its end."""
        ...


Block = AbstractContextManager[bool] | AbstractAsyncContextManager[bool]
#: Begins the block of a message in an open session; ``InboxPort.once`` or its like.
Once = Callable[[Any, Message], Block]


@dataclass(eq=False, kw_only=True)
class Handler:
    """One handler function. Its annotations say what it receives: the message, the decoded body, or both (``handler_arguments``).

    With ``once`` the open session is its second argument, and duplicates are acknowledged without calling it. With a ``transaction``
    the third one sends messages in it. Its shape was checked by ``shapes``.

    Raises:
        UsageError: an annotation cannot be read.
    """

    function: Callable[..., Any] = field(kw_only=False)
    once: Once | None
    sessions: Callable[[], Any] | None
    run_blocking: RunBlocking
    transaction: HandlerTransaction | None = None

    def __post_init__(self) -> None:
        self._takes = arguments_of(self.function)

    async def __call__(self, message: Message, otherwise: OutgoingMessage | None = None) -> None:
        """Handle one message, then send its reply: what the function said with ``message.reply``, else ``otherwise``. The caller
        acknowledges it after a normal return.

        Raises: NotDecoded: the body is not what the function takes. Any exception of the function. The caller hands the message back.
        """
        with message._replying() as replies:
            await self._handled(message)
        for reply in replies or ([] if otherwise is None else [otherwise]):
            await answer(message, reply)

    async def _handled(self, message: Message) -> None:
        """Returns when what the function wrote is committed."""
        if self.once is None or self.sessions is None:
            await call(self.run_blocking, self.function, *self._given(message))
        elif is_async(self.function):
            await self._unit_async(self.once, self.sessions, message)
        else:
            await self.run_blocking(self._unit, self.once, self.sessions, message, asyncio.get_running_loop())

    def _plain(self, *given: Any) -> None:
        plain_result(
            self.function(*given), "a plain handler", "make it a coroutine function, with an async_sessionmaker"
        )

    async def _awaited(self, *given: Any) -> None:
        run_result(await self.function(*given), "a handler")

    def _given(self, message: Message, *others: Any) -> list[Any]:
        """The arguments of the function. ``others``: a session, and what sends."""
        into, message_at = self._takes.into, self._takes.message_at
        given = [message if into is None else _decoded(message, into), *others]
        if message_at is not None:
            given.insert(message_at, message)
        return given

    async def _unit_async(self, once: Once, sessions: Callable[[], Any], message: Message) -> None:
        async with sessions() as session:
            block = once(session, message)
            if not isinstance(block, AbstractAsyncContextManager):
                raise UsageError("a coroutine function needs an async_sessionmaker for its inbox")
            async with block as first:
                if not first:
                    return
                if self.transaction is None:
                    await self._awaited(*self._given(message, session))
                    return
                try:
                    async with self.transaction.block_async(session) as sends:
                        with message._sending(sends):
                            await self._awaited(*self._given(message, session, sends))
                except OutcomeMixed as mixed:
                    _is_handled(message, sends, mixed)

    def _unit(self, once: Once, sessions: Callable[[], Any], message: Message, loop: asyncio.AbstractEventLoop) -> None:
        with sessions() as session:
            block = once(session, message)
            if not isinstance(block, AbstractContextManager):
                raise UsageError("a plain function needs a sessionmaker for its inbox, not an async one")
            with block as first:
                if not first:
                    return
                if self.transaction is None:
                    self._plain(*self._given(message, session))
                    return
                try:
                    with self.transaction.block(session, loop) as sends, message._sending(sends):
                        self._plain(*self._given(message, session, sends))
                except OutcomeMixed as mixed:
                    _is_handled(message, sends, mixed)


def _decoded(message: Message, into: Any) -> Any:
    try:
        return message.decode(into)
    except UNDECODABLE as error:
        name = getattr(into, "__qualname__", into)
        raise NotDecoded(f"its body into {name}: {type(error).__name__}: {error}") from error


def _is_handled(message: Message, sends: Sends, mixed: OutcomeMixed) -> None:
    """The message's own transaction is committed, its inbox row included, so the message is consumed: who waits for what was sent must hear
    of it from the log. ``mixed`` of another transaction is raised, as any exception of the function.
    """
    if mixed.tx_id != getattr(sends, "id", None):
        raise mixed
    log.error("%r is handled, and what was sent with it is lost: %s", message, mixed)


async def answer(message: Message, reply: OutgoingMessage) -> None:
    """Send the reply, if its requester still waits, and do not wait long for that to be connected. It does not raise: what was handled is
    handled."""
    delivery = message._required_delivery()

    async def send() -> None:
        try:
            await delivery.reply(message, reply)
        except HalfmqError as error:
            log.info("nobody gets the reply to %r: %s", message, error)
        except asyncio.CancelledError:
            log.info("nobody gets the reply to %r: the client was closed", message)
            raise

    await delivery.answer(send(), len(reply.body))
