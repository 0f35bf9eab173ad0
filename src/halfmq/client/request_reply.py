"""Request and reply, as RocketMQ's clients do it: a message whose sender waits for one that answers it.

    requester                          broker                          replier
    send (310) --------------------->  stores the request  --------->  reads it, as any message
    answered: 326 to the client   <--  does not store the reply  <---  reply (325), to the broker that had the request

The request names its client (REPLY_TO_CLIENT) and the number under which that waits (CORRELATION_ID); the reply repeats both. A broker
finds the client by its heartbeat. RocketMQ's names: ``DefaultMQProducer.request``, ``MessageUtil.createReplyMessage``.

A reply is for who waits at that moment. It is not stored, is sent again while the broker does not answer or has no connection of the
requester (which may be on its way, when the broker has started again), and is dropped by a requester that does not wait any more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from halfmq.client.connection import Connection, NoAnswer
from halfmq.client.context import ClientContext
from halfmq.client.log import log
from halfmq.client.message import Message
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.pending import Pending
from halfmq.client.producer import Producer, unique_key
from halfmq.client.user_code import RunBlocking
from halfmq.errors import MissingDependency, NoReply, ProtocolError, SendTimeout, UsageError
from halfmq.model import properties as names
from halfmq.model.stored_message import SYS_COMPRESSED
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.message_codec import PulledMessage, encode_send, read_pushed_reply, unpack

#: Requests of one client that wait at once: each is a future here, and a message that somebody works on there.
REQUESTS_MAX: Final = 10_000
#: Longest time for which a reply waits for its requester, seconds. Clients connect again within a few; a broker may take longer to start.
PATIENCE_S: Final = 30.0
#: After so long a handler is done, and its reply waits without it, seconds.
BEHIND_AFTER_S: Final = 0.5
#: Bytes of all replies of a client that wait so, each as at least the second number; what is more waits in its handler.
LATE_BYTES_MAX: Final = 16 << 20
_LATE_BYTES_MIN: Final = 16 << 10
#: Of a TTL in milliseconds.
_TTL_DIGITS_MAX: Final = 12
_HINT: Final = "it may have been handled, or will be: look there before you send another request"


@dataclass(eq=False)
class Requests:
    """The requests of one client that wait for their reply."""

    _context: ClientContext
    _producer: Producer
    #: Lets the brokers know the client, without which they find nobody to push a reply to; a task while that is under way.
    _register: Callable[[], "asyncio.Task[None] | None"]
    _run_blocking: RunBlocking
    _registering: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        #: By correlation id.
        self._waiting = Pending[str, PulledMessage](self._context.loop, lambda: NoAnswer("no reply came in time"))

    async def ask(self, message: OutgoingMessage, timeout_s: float) -> Message:
        """Send ``message`` and wait for its reply, ``timeout_s`` seconds in all.

        Raises: see ``AsyncClient.request``.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise UsageError(f"{REQUESTS_MAX} requests of this client wait for a reply", hint="wait for some of them")
        number = self._context.ids.message_id()
        whole = self._context.attempts(f"request to {message.topic}", timeout_s)
        replied = self._waiting.add(number, timeout_s)
        try:
            await self._registered(timeout_s)
            own = (
                (names.CORRELATION_ID, number),
                (names.REPLY_TO_CLIENT, self._context.membership.client_id),
                (names.TTL, str(max(1, round(timeout_s * 1000)))),
            )
            request = message._replace(properties=names.append(message.properties, names.encode(own)))
            try:
                await self._producer.send(request, whole.left_s())
            except SendTimeout:
                if not replied.done() or replied.exception() is not None:
                    raise
            # Else it was stored: here is its reply.
            reply = await replied
        except NoAnswer as error:
            raise NoReply(f"request to {message.topic}: {error}", hint=_HINT) from None
        finally:
            self._waiting.forget(number)
            if replied.done() and not replied.cancelled():
                replied.exception()  # it may have ended before anybody waited for it
        if reply.message.sys_flag & SYS_COMPRESSED:
            try:
                reply = await self._run_blocking(unpack, reply)
            except (ProtocolError, MissingDependency) as error:
                raise NoReply(f"request to {message.topic}: its reply cannot be read: {error}", hint=_HINT) from error
        return Message(reply.message, 0, reply.message.body)

    async def _registered(self, timeout_s: float) -> None:
        registering = self._register()
        if registering is not None:
            self._registering = registering
        if self._registering is not None:  # goes on even if this call times out
            await asyncio.wait({self._registering}, timeout=timeout_s)

    def take(self, connection: Connection, request: Request[Any]) -> None:
        """A reply (326) arrived. Nobody may wait for it any more."""
        reply = read_pushed_reply(request)
        number = names.find(reply.message.properties, names.CORRELATION_ID) or b""
        if not self._waiting.answer(number.decode(errors="replace"), reply):
            log.debug("a reply from %s came too late, or again", connection.address)
        connection.answer(request, ResponseCode.SUCCESS)

    def close(self) -> None:
        """The client is closed: nobody waits any more."""
        self._waiting.end(lambda: NoAnswer("the client was closed before a reply came"))


def patience_s(message: Message, now_ms: int) -> float:
    """For how long a reply to ``message`` waits for a requester that is not connected: as that connects again after its broker has started
    again. What is left of the time that the requester waits, by its clock and ours, and at most ``PATIENCE_S``; seconds.
    """
    ttl = message.properties.get(names.TTL, "")
    if not ttl.isdecimal() or len(ttl) > _TTL_DIGITS_MAX:
        return 0.0
    left_ms = message._stored.born_time_ms + int(ttl) - now_ms
    return min(max(0.0, left_ms / 1000), PATIENCE_S)


async def send_reply(context: ClientContext, broker: str, group: str, reply: OutgoingMessage, patient_s: float) -> None:
    """Send ``reply`` to ``broker``, which has the requester's connection. Sent again if its answer is lost: the second one is dropped. For
    ``patient_s`` seconds also if the requester is not connected.

    Raises: see ``Message.reply``.
    """
    properties = names.append(reply.properties, unique_key(context.ids.message_id()))

    async def send(connection: Connection, timeout_s: float) -> Any:
        opaque = connection.next_opaque()
        frame = encode_send(
            opaque,
            group=group,
            topic=reply.topic,
            queue_id=0,
            sys_flag=0,
            born_time_ms=context.clock.wall_ms(),
            property_string=properties,
            body=reply.body,
            reply=True,
        )
        return await connection.call(opaque, frame, timeout_s)

    attempts = context.attempts("reply to a request", max(context.timeout_s, patient_s), patient_s=patient_s)
    await attempts.ask(lambda: context.broker(broker), send)


async def behind(context: ClientContext, work: Coroutine[Any, Any, None], size_bytes: int) -> None:
    """Run ``work``, which sends a reply of ``size_bytes`` and raises nothing. If that takes long, it goes on when this has returned, until
    the client is closed: requesters that are gone must not hold the workers of an application.
    """
    task = context.spawn(work)
    await asyncio.wait({task}, timeout=BEHIND_AFTER_S)
    counted = max(size_bytes, _LATE_BYTES_MIN)
    if task.done() or context.late_reply_bytes + counted > LATE_BYTES_MAX:
        await task
        return
    context.late_reply_bytes += counted

    def ended(_: "asyncio.Task[None]") -> None:
        context.late_reply_bytes -= counted

    task.add_done_callback(ended)
