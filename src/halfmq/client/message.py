"""A received message: what it carries, and what its reader may do with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

import msgspec

from halfmq.client.log import log
from halfmq.client.user_code import is_our_cancellation
from halfmq.errors import UsageError
from halfmq.model import properties as names
from halfmq.model.ids import offset_message_id
from halfmq.model.stored_message import StoredMessage

_T = TypeVar("_T")

_from_json: Final = msgspec.json.decode


class Delivery(Protocol):
    """Where a message came from, and so where its acknowledgement goes."""

    def ack(self, message: "Message") -> None: ...

    async def retry(self, message: "Message", delay: float | None) -> None: ...

    async def reject(self, message: "Message") -> None: ...


class _Done:
    """What ``ack()`` returns: it is done already; awaiting it costs nothing and is allowed."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE: Final = _Done()


class Message:
    """One message. Everything but ``body`` and the numbers is decoded when it is asked for.

    ``message_id`` stays the same when the message is delivered again, by whatever cause: recognise duplicates by it.
    A message that is neither acknowledged nor handed back holds its queue's offset, and is delivered again after a
    restart. When its queue goes to another member before that, or its consumer leaves, it is delivered again there; what is
    said of it here comes to nothing then, and ``retry`` and ``reject`` warn of it in the log. A message that came again after
    ``retry`` is in the queue that all consumers of its group in this client share: when any of them leaves, it comes anew.
    """

    __slots__ = ("_delivery", "_log_offset", "_properties", "_stored", "_texts", "body", "offset", "queue", "topic")

    def __init__(self, stored: StoredMessage, log_offset: int, body: bytes, delivery: Delivery | None = None) -> None:
        self._stored = stored
        self._properties = stored.properties
        self._texts: dict[str, str] | None = None
        self._delivery = delivery
        self._log_offset = log_offset
        #: As sent; decompressed.
        self.body = body
        self.topic = self._text(names.RETRY_TOPIC) or stored.topic if stored.topic[:1] == "%" else stored.topic
        self.queue = stored.queue_id
        self.offset = stored.queue_offset

    def __repr__(self) -> str:
        return f"<Message {self.message_id} {self.topic}[{self.queue}]@{self.offset} attempt {self.attempt}>"

    def _text(self, name: str) -> str:
        value = names.find(self._properties, name)
        return "" if value is None else value.decode("utf-8", "replace")

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, those of the protocol included."""
        if self._texts is None:
            self._texts = names.to_dict(self._properties)
        return self._texts

    def text(self) -> str:
        """The body as UTF-8. Raises UnicodeDecodeError."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON. Raises ``msgspec.DecodeError``."""
        return _from_json(self.body)

    def decode(self, into: type[_T]) -> _T:
        """The body as ``into``: bytes, str, a dataclass, a msgspec Struct, a typed dict, a pydantic model.

        Raises:
            msgspec.ValidationError: JSON, but not of this type. ``msgspec.DecodeError``: not JSON.
        """
        if into is bytes:
            return self.body  # type: ignore[return-value]
        if into is str:
            return self.body.decode()  # type: ignore[return-value]
        validate = getattr(into, "model_validate_json", None)
        if validate is not None:
            return validate(self.body)  # type: ignore[no-any-return]
        return _from_json(self.body, type=into)

    @property
    def message_id(self) -> str:
        return self._text(names.UNIQ_KEY) or self._text(names.ORIGIN_MESSAGE_ID) or self.offset_id

    @property
    def offset_id(self) -> str:
        """RocketMQ's ``offsetMsgId``: broker address and log offset. Another one for each redelivery."""
        return offset_message_id(self._stored.store_host, self._log_offset)

    @property
    def log_offset(self) -> int:
        return self._log_offset

    @property
    def tag(self) -> str | None:
        return self._text(names.TAGS) or None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._text(names.KEYS).split())

    @property
    def key(self) -> str | None:
        """The first key."""
        keys = self.keys
        return keys[0] if keys else None

    @property
    def sharding_key(self) -> str | None:
        return self._text(names.SHARDING_KEY) or None

    @property
    def attempt(self) -> int:
        """1 for the first delivery, then one more each time it was handed back with ``retry``."""
        return self._stored.reconsume_times + 1

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the sender's clock; in UTC."""
        return datetime.fromtimestamp(self._stored.born_time_ms / 1000, tz=UTC)

    @property
    def stored_at(self) -> datetime:
        """When it became visible, by the broker's clock; in UTC."""
        return datetime.fromtimestamp(self._stored.store_time_ms / 1000, tz=UTC)

    @property
    def transaction_id(self) -> str | None:
        """The transaction that sent it, None for a plain message."""
        own = self._text(names.HMQ_TX_ID)
        if own:
            return own
        return self._text(names.UNIQ_KEY) or None if self._text(names.TRAN_MSG).lower() == "true" else None

    # --- what the reader says about it ----------------------------------------------------------------------------

    def _required_delivery(self) -> Delivery:
        if self._delivery is None:
            raise UsageError(
                "this message did not come from a consumer", hint="only consumed messages are acknowledged"
            )
        return self._delivery

    def ack(self) -> Awaitable[None]:
        """Done with it. Takes effect at once, with or without ``await``; the offset is committed soon after."""
        self._required_delivery().ack(self)
        return _DONE

    async def retry(self, delay: float | None = None) -> None:
        """Hand it back: it is delivered again, to any member of the group, with ``attempt`` one higher.

        ``delay`` in seconds is rounded up to a standard level; None lets the broker choose (10 s, 30 s, 1 min, ...).
        After too many attempts it goes to the dead-letter queue. If the broker cannot be reached, it is delivered
        again here; it is never lost.
        """
        await self._required_delivery().retry(self, delay)

    async def reject(self) -> None:
        """To the group's dead-letter queue (``%DLQ%group``) at once."""
        await self._required_delivery().reject(self)

    @asynccontextmanager
    async def processing(self) -> AsyncIterator["Message"]:
        """``ack`` when the block ends, ``retry`` when it raises. The exception goes on to nobody: it is logged.

        Cancellation of the task that runs the block leaves the message unacknowledged; that of something it awaits is an
        exception like others.
        """
        try:
            yield self
        except (Exception, asyncio.CancelledError) as error:
            if is_our_cancellation(error):
                raise
            log.exception("processing of %r failed; it is delivered again later", self)
            await self.retry()
        else:
            self.ack()
