"""Calls a consumer's handler function: decodes the body as its annotation says, optionally in an inbox transaction, in which it may send."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, get_type_hints

from halfmq.client.handler_transaction import HandlerTransaction
from halfmq.client.log import log
from halfmq.client.message import Message, Sends
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.user_code import RunBlocking, call, is_async, plain_result
from halfmq.errors import HalfmqError, OutcomeMixed, UsageError


class InboxPort(Protocol):
    """The part of ``halfmq.sql.Inbox`` that a handler uses."""

    def once(
        self, session: Any, message: Message, *, group: str
    ) -> AbstractContextManager[bool] | AbstractAsyncContextManager[bool]:
        """A block that yields True for the first delivery of ``message``, and commits ``session`` at its end."""
        ...


class Handler:
    """One handler function. Its first parameter's annotation says what it receives: the message, or the decoded body.

    With an ``inbox`` the open session is its second argument, and duplicates are acknowledged without calling it. With a ``transaction``
    the third one sends messages in it. Its shape was checked by ``shapes``.

    Raises:
        UsageError: an annotation cannot be read.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        group: str,
        inbox: InboxPort | None,
        sessions: Callable[[], Any] | None,
        run_blocking: RunBlocking,
        transaction: HandlerTransaction | None = None,
    ) -> None:
        self._function = function
        self._transaction = transaction
        self._group = group
        self._inbox = inbox
        self._sessions = sessions
        self._run_blocking = run_blocking
        self._into = _first_type(function)

    async def __call__(self, message: Message, otherwise: OutgoingMessage | None = None) -> None:
        """Handle one message, then send its reply: what the function said with ``message.reply``, else ``otherwise``. The caller acknowledges it
        after a normal return.

        Raises: any exception of the function or of the decoding; the caller hands the message back.
        """
        with message._replying() as replies:
            await self._handled(message)
        for reply in replies or ([] if otherwise is None else [otherwise]):
            await answer(message, reply)

    async def _handled(self, message: Message) -> None:
        """Returns when what the function wrote is committed."""
        if self._inbox is None or self._sessions is None:
            await call(self._run_blocking, self._function, self._argument(message))
        elif is_async(self._function):
            await self._once_async(self._inbox, self._sessions, message)
        else:
            await self._run_blocking(self._once, self._inbox, self._sessions, message, asyncio.get_running_loop())

    def _plain(self, *given: Any) -> None:
        plain_result(
            self._function(*given), "a plain handler", "make it a coroutine function, with an async_sessionmaker"
        )

    def _argument(self, message: Message) -> Any:
        return message if self._into is None else message.decode(self._into)

    async def _once_async(self, inbox: InboxPort, sessions: Callable[[], Any], message: Message) -> None:
        async with sessions() as session:
            block = inbox.once(session, message, group=self._group)
            if not isinstance(block, AbstractAsyncContextManager):
                raise UsageError("a coroutine function needs an async_sessionmaker for its inbox")
            async with block as first:
                if not first:
                    return
                if self._transaction is None:
                    await self._function(self._argument(message), session)
                    return
                try:
                    async with self._transaction.block_async(session) as sends:
                        with message._sending(sends):
                            await self._function(self._argument(message), session, sends)
                except OutcomeMixed as mixed:
                    _is_handled(message, sends, mixed)

    def _once(
        self, inbox: InboxPort, sessions: Callable[[], Any], message: Message, loop: asyncio.AbstractEventLoop
    ) -> None:
        with sessions() as session:
            block = inbox.once(session, message, group=self._group)
            if not isinstance(block, AbstractContextManager):
                raise UsageError("a plain function needs a sessionmaker for its inbox, not an async one")
            with block as first:
                if not first:
                    return
                if self._transaction is None:
                    self._plain(self._argument(message), session)
                    return
                try:
                    with self._transaction.block(session, loop) as sends, message._sending(sends):
                        self._plain(self._argument(message), session, sends)
                except OutcomeMixed as mixed:
                    _is_handled(message, sends, mixed)


def _is_handled(message: Message, sends: Sends, mixed: OutcomeMixed) -> None:
    """The message's own transaction is committed, its inbox row included, so the message is consumed: who waits for what was sent must hear of it
    from the log. ``mixed`` of another transaction is raised, as any exception of the function."""
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


def _first_type(function: Callable[..., Any]) -> type | None:
    """The type to decode the body into, from the first parameter's annotation; None: pass the message."""
    parameters = list(inspect.signature(function).parameters)
    # Of a partial or an object that is called: what they call.
    annotated: Any = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        hint = get_type_hints(annotated).get(parameters[0])
    except NameError as error:
        raise UsageError(f"an annotation of {function!r} cannot be read: {error}") from error
    if hint is None or hint is Any or hint is Message:
        return None
    return hint  # type: ignore[no-any-return]
