"""``HalfmqMessage``: a received message, as FastStream's handlers and middlewares see it; and how one is made from halfmq's ``Message``."""

from contextvars import ContextVar
from typing import Any, Final

from faststream._internal.basic_types import DecodedMessage
from faststream.message import AckStatus, StreamMessage, decode_message

from halfmq import Message
from halfmq.integrations import REPLY_TO_CLIENT, SYSTEM, UNDECODABLE, NotDecoded, is_reserved

#: Properties in which FastStream's brokers say what their messages are.
CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"


class Settlement:
    """What is said of one delivery while FastStream handles it; what is said first counts. Who delivers it carries it out.

    ``acks_at_once``: an acknowledgement does not wait for the end of the handler (``AckPolicy.ACK_FIRST``). False in a test broker, whose
    messages have no broker that could hear of it.
    """

    def __init__(self, *, acks_at_once: bool) -> None:
        self.acks_at_once = acks_at_once
        self.status: AckStatus | None = None
        #: Seconds until the message is delivered again; None: as the policy says.
        self.delay_s: float | None = None


#: Of the delivery that the current task handles. A context variable, since FastStream makes its message from ours alone; and what is in it
#: is changed, not replaced, so that plain handlers in threads reach it too.
settlement_now: Final[ContextVar[Settlement | None]] = ContextVar("faststream_halfmq_settlement", default=None)


class HalfmqMessage(StreamMessage[Message]):
    """A message of halfmq. ``raw_message`` is halfmq's ``Message``, with its tag, keys, attempt and times."""

    def __init__(self, raw_message: Message, **named: Any) -> None:
        super().__init__(raw_message, raw_message.body, **named)
        self._settlement = settlement_now.get()

    def _is_settled(self) -> bool:
        return self.committed is not None or (self._settlement is not None and self._settlement.status is not None)

    async def ack(self) -> None:
        """Acknowledge it, at once; its offset is committed within about a second."""
        if self._is_settled():
            return
        if self._settlement is None or self._settlement.acks_at_once:
            await self.raw_message.ack()
        if self._settlement is not None:
            self._settlement.status = AckStatus.ACKED
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Have it delivered again, when the handler has ended. ``delay``: seconds; None: as the subscriber's ``Retry`` says. A message with
        a sharding key holds up those of its key, so it always waits as ``Retry`` says.

        Raises:
            UsageError: ``delay`` is no such number, for a message of ``get_one`` or of an iteration.
        """
        if self._is_settled():
            return
        if self._settlement is None:
            await self.raw_message.retry(delay)
        else:
            self._settlement.status, self._settlement.delay_s = AckStatus.NACKED, delay
        await super().nack()

    async def reject(self) -> None:
        """Make it a dead letter, when the handler has ended."""
        if self._is_settled():
            return
        if self._settlement is None:
            await self.raw_message.reject()
        else:
            self._settlement.status = AckStatus.REJECTED
        await super().reject()


class HalfmqParser:
    """Makes FastStream's message, and decodes its body. Has no state."""

    async def parse_message(self, message: Message) -> HalfmqMessage:
        properties = message.properties
        headers = {name: value for name, value in properties.items() if name not in SYSTEM and not is_reserved(name)}
        return HalfmqMessage(
            message,
            headers=headers,
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID) or message.message_id,
            message_id=message.message_id,
            reply_to=properties[REPLY_TO_CLIENT] if message.is_request else "",
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> DecodedMessage:
        """Raises:
        NotDecoded: the body is not what its content type says, and no attempt will change that: a dead letter at once.
        """
        try:
            return decode_message(msg)
        except UNDECODABLE as error:
            raise NotDecoded(f"its body as {msg.content_type}: {type(error).__name__}: {error}") from error
