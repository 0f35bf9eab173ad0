"""``Message``: a received message, with its acknowledgement methods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from halfmq import limits
from halfmq.client.arguments import checked_seconds
from halfmq.client.bodies import from_json
from halfmq.client.log import log
from halfmq.client.outgoing import OutgoingMessage, compose, with_own
from halfmq.client.retry_policy import DELAY_MAX_S, UNDECODABLE, NotDecoded, Retry
from halfmq.client.user_code import Done, is_our_cancellation
from halfmq.errors import UsageError
from halfmq.model import properties as names
from halfmq.model.ids import REPLY_TOPIC_SUFFIX, offset_message_id
from halfmq.model.stored_message import StoredMessage
from halfmq.printable import printable

_T = TypeVar("_T")


class Delivery(Protocol):
    """The source of a message (a ``QueuePuller``), which gets its acknowledgement: see ``Message``."""

    def handling(self, message: "Message") -> AbstractContextManager[object]:
        """A block in which the application handles the message: a span, if the client has ``telemetry``."""
        ...

    def ack(self, message: "Message") -> None: ...

    async def retry(self, message: "Message", delay: float | None) -> None: ...

    def after_failure(self, message: "Message") -> str:
        """What ``retry`` leads to, for the log."""
        ...

    async def reject(self, message: "Message") -> None: ...

    async def reply(self, message: "Message", reply: OutgoingMessage) -> None: ...

    async def answer(self, work: Coroutine[Any, Any, None], size_bytes: int) -> None:
        """Run ``work``, which sends a reply of a handler. Returns when it is sent, or waits for its requester."""
        ...


class Sends(Protocol):
    """What sends messages in the database transaction of a handler: a block of ``mq.transaction``, or an outbox with its session."""

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
    ) -> object:
        """Add a message to the transaction. Nothing is sent before its end. The arguments are those of ``outgoing.compose``.

        Raises:
            InvalidName, MessageTooLarge, UsageError: this message cannot be sent; the transaction may go on without it.
        """
        ...


class DeadCalls(NamedTuple):
    """Calls of a consumer's ``on_dead`` for this delivery of a message, which ends with it: a later delivery begins with its handler."""

    made: int
    #: Those that count.
    failed: int


_NO_CALLS: Final = DeadCalls(0, 0)
_DONE: Final = Done()


class Message:
    """A received message. Properties are decoded on access.

    ``message_id`` is the same in every redelivery: use it to detect duplicates.

    A message that is neither acknowledged nor handed back holds back the committed offset of its queue, so it is delivered
    again after a restart. When its queue moves to another member, or its consumer leaves, it is delivered again there; then
    ``ack`` has no effect here, and ``retry`` and ``reject`` only log a warning. Redelivered messages come from the group's
    retry queue, which all consumers of the group in this client share: when any of them leaves, they are delivered again.
    """

    __slots__ = (
        "_dead_calls", "_delivery", "_failure", "_handled_here", "_log_offset", "_properties", "_replies", "_retry", "_sends", "_settled",
        "_stored", "_texts",
        "body", "offset", "queue", "topic",
    )  # fmt: skip

    def __init__(self, stored: StoredMessage, log_offset: int, body: bytes, delivery: Delivery | None = None) -> None:
        self._stored = stored
        self._properties = stored.properties
        self._texts: dict[str, str] | None = None
        self._delivery = delivery
        self._dead_calls = _NO_CALLS
        #: The exception with which this attempt failed, as a dead letter shows it.
        self._failure = ""
        #: The policy of its consumer.
        self._retry: Retry | None = None
        #: How often it was handled in this process, this time included, if its consumer retries it there; 0: the broker counts.
        self._handled_here = 0
        #: What was said of this delivery: "" or acknowledged, handed back, rejected.
        self._settled = ""
        self._sends: Sends | None = None
        self._replies: list[OutgoingMessage] | None = None
        self._log_offset = log_offset
        #: The body as sent, decompressed.
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
        """All properties, including those of the protocol."""
        if self._texts is None:
            self._texts = names.to_dict(self._properties)
        return self._texts

    def text(self) -> str:
        """The body decoded as UTF-8. Raises UnicodeDecodeError."""
        return self.body.decode()

    def json(self) -> Any:
        """The body parsed as JSON. Raises ``msgspec.DecodeError``."""
        return msgspec.json.decode(self.body)

    def decode(self, into: type[_T]) -> _T:
        """The body decoded into type ``into``: bytes, str, a dataclass, a msgspec Struct, a typed dict, a pydantic model, or a type with
        these in it, such as ``list[Order]``.

        Raises:
            msgspec.ValidationError: JSON, but not of this type. ``msgspec.DecodeError``: not JSON. ``pydantic.ValidationError``: one of
                both, of a type that is pydantic's. UnicodeDecodeError: no text. Each names the field; a note says which message it was.
        """
        try:
            return self._decoded(into)
        except UNDECODABLE as error:
            error.add_note(f"the body of {self!r}")
            raise

    def _decoded(self, into: type[_T]) -> _T:
        if into is bytes:
            return self.body  # type: ignore[return-value]
        if into is str:
            return self.body.decode()  # type: ignore[return-value]
        return from_json(self.body, into)  # type: ignore[no-any-return]

    @property
    def message_id(self) -> str:
        """The producer's unique id (UNIQ_KEY), the same in every redelivery."""
        return self._text(names.UNIQ_KEY) or self._text(names.ORIGIN_MESSAGE_ID) or self.offset_id

    @property
    def offset_id(self) -> str:
        """RocketMQ's ``offsetMsgId``: broker address and log offset. Differs in each redelivery."""
        return offset_message_id(self._stored.store_host, self._log_offset)

    @property
    def log_offset(self) -> int:
        """Log offset of this copy at its broker."""
        return self._log_offset

    @property
    def tag(self) -> str | None:
        """The tag, which subscriptions filter by."""
        return self._text(names.TAGS) or None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which tools look the message up."""
        return tuple(self._text(names.KEYS).split())

    @property
    def key(self) -> str | None:
        """The first key."""
        keys = self.keys
        return keys[0] if keys else None

    @property
    def sharding_key(self) -> str | None:
        """The key that keeps messages in order: one key is always in one queue."""
        return self._text(names.SHARDING_KEY) or None

    @property
    def attempt(self) -> int:
        """How often it is handled, this time included: 1 for the first time."""
        return self._stored.reconsume_times + max(1, self._handled_here)

    @property
    def is_last_attempt(self) -> bool:
        """Whether the message is given up if this attempt fails: it becomes a dead letter, or ``on_dead`` is called."""
        if self._retry is None:
            return False
        failed = self._handled_here - 1 if self._handled_here else self._stored.reconsume_times
        return failed >= self._retry.times

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the producer's clock; UTC."""
        return datetime.fromtimestamp(self._stored.born_time_ms / 1000, tz=UTC)

    @property
    def stored_at(self) -> datetime:
        """When it became visible, by the broker's clock; UTC."""
        return datetime.fromtimestamp(self._stored.store_time_ms / 1000, tz=UTC)

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction that sent it; None for a non-transactional message."""
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
        """Acknowledge the message, at once and with or without ``await``. The offset is committed within about a second.

        It is final: if the handler, or the block of ``processing``, raises after it, that is logged, and the message is not handled again.
        A handler need not call it, since its return acknowledges the message once what it wrote is committed; what comes after an
        earlier ``ack`` is lost if the process dies, and what is rolled back is not done again.
        """
        self._required_delivery().ack(self)
        self._settled = "acknowledged"
        return _DONE

    async def retry(self, delay: float | None = None) -> None:
        """Hand the message back for redelivery to any member of the group, with ``attempt`` incremented.

        ``delay`` in seconds, at most 3 days; None: as the consumer's ``Retry`` says, whose default lets the broker choose (10 s, 30 s, 1
        min, ...). Apache RocketMQ rounds it up to a standard delay level, the longest of which is 2 h. After the consumer's ``retries`` it
        goes to the dead-letter queue. If the broker is unreachable, it is delivered again in this process. What the handler raises after it
        is only logged. After ``ack``, ``retry`` or ``reject`` it does nothing: the first word counts.

        Raises:
            UsageError: ``delay`` is no such number, or the message did not come from a consumer.
        """
        if delay is not None:
            checked_seconds(delay, "delay", zero=True, at_most=DELAY_MAX_S)
        if self._is_settled_before_call("retry"):
            return
        await self._required_delivery().retry(self, self._delay_s(delay))
        self._settled = "handed back"

    def _delay_s(self, delay: float | None) -> float | None:
        """``delay``, or that of the policy; None: the broker chooses."""
        return self._retry.delay_s(self.attempt) if delay is None and self._retry is not None else delay

    async def reject(self) -> None:
        """Move the message to the group's dead-letter queue (``%DLQ%group``) at once. What the handler raises after it is only logged. As
        ``retry``, it does nothing after another word."""
        if self._is_settled_before_call("reject"):
            return
        await self._required_delivery().reject(self)
        self._settled = "rejected"

    # --- what the reader sends because of it ------------------------------------------------------------------------

    @property
    def compensates(self) -> str | None:
        """The id of the message for which this one makes amends; see ``compensate``."""
        return self._text(names.HMQ_COMPENSATES) or None

    @contextmanager
    def _sending(self, sends: Sends) -> Iterator[None]:
        """``compensate`` sends with ``sends`` while the block is open."""
        self._sends = sends
        try:
            yield
        finally:
            self._sends = None

    def compensate(
        self,
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str | None = None,
        sharding_key: object = None,
        properties: Mapping[str, str] | None = None,
    ) -> Awaitable[None]:
        """Send a message that makes amends for this one, in the handler's database transaction: it becomes visible if and only if the inbox
        row and the handler's rows commit. With or without ``await``; no I/O. Source: FMQ source 1.3.2.

        Its ``compensates`` is this message's id. ``keys`` and ``sharding_key`` are this message's, unless others are given.

        Raises:
            UsageError: the handler has no transaction to send in, or an argument is wrong. InvalidName, MessageTooLarge: as ``send``.
        """
        if self._sends is None:
            raise UsageError(
                "this message is not being handled in a transaction that sends",
                hint="@app.consumer(..., inbox=inbox, markers=markers), or outbox=outbox",
            )
        self._sends.send(
            topic,
            body,
            tag=tag,
            key=key,
            keys=self.keys if keys is None else keys,
            sharding_key=self.sharding_key if sharding_key is None else sharding_key,
            properties=with_own(properties, {names.HMQ_COMPENSATES: self.message_id}),
        )
        return _DONE

    @property
    def is_request(self) -> bool:
        """Whether its sender waits for a reply; see ``reply``."""
        return bool(self._text(names.REPLY_TO_CLIENT) and self._text(names.CORRELATION_ID))

    @contextmanager
    def _replying(self) -> Iterator[list[OutgoingMessage]]:
        """``reply`` adds to the list while the block is open, and sends nothing."""
        replies: list[OutgoingMessage] = []
        self._replies = replies
        try:
            yield replies
        finally:
            self._replies = None

    def _reply(self, body: object, own: Mapping[str, str]) -> OutgoingMessage:
        """The reply to this request. ``own``: properties of ours. Raises: as ``reply``."""
        if not self.is_request:
            raise UsageError(f"nobody waits for a reply to {self!r}", hint="mq.request(topic, body) sends a request")
        cluster = self._text(names.CLUSTER)
        if not cluster:
            raise UsageError(f"{self!r} does not say to which cluster a reply goes", hint="a broker notes it")
        answers = {names.MSG_TYPE: "reply", **own}
        for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL):
            answers[name] = self._text(name)
        reply = compose(cluster + REPLY_TOPIC_SUFFIX, body)
        return reply._replace(properties=names.encode(answers))

    def reply(self, body: object) -> Awaitable[None]:
        """Answer a request: its sender gets ``body``, if it still waits.

        In a handler of an ``App``, with or without ``await``: the reply is sent after the handler has returned and what it wrote is
        committed; if it raises, it is never sent. With an inbox, a message that is delivered again is neither handled nor replied to again.
        In a loop over a
        consumer, with ``await``: it is sent now.

        If its requester is not connected, because the broker has just started again, it is repeated for as long as that waits, at most 30
        s.

        Raises:
            UsageError: the message is no request, or was replied to by this call of the handler. MessageTooLarge: nothing is sent.
            RequestFailed: nobody gets it, since its requester is gone. ConnectError, SendTimeout: the broker did not answer. In a handler
                these three are logged instead.
        """
        reply = self._reply(body, {})
        if self._replies is None:
            return self._required_delivery().reply(self, reply)
        if self._replies:
            raise UsageError(f"{self!r} has been replied to", hint="one reply for each request: the first is taken")
        self._replies.append(reply)
        return _DONE

    def processing(self) -> AbstractAsyncContextManager["Message"]:
        """A block that calls ``ack`` at its end, and ``retry`` if it raises, or ``reject`` if the consumer's ``Retry`` says so of the
        exception. That is logged, not propagated. If the block has called one of them itself, what it raises is only logged.

        If the task itself is cancelled, the message stays unacknowledged and CancelledError propagates; a CancelledError from
        something that the block awaits is treated like any exception.
        """
        return self._processing()

    @asynccontextmanager
    async def _processing(self, *raised: type[Exception]) -> AsyncIterator["Message"]:
        """``raised``: propagated, with the message unacknowledged; the caller says what becomes of it."""
        try:
            with self._required_delivery().handling(self):
                yield self
        except (Exception, asyncio.CancelledError) as error:
            if is_our_cancellation(error):
                raise
            if self._is_settled_before(error):
                return
            if isinstance(error, raised):
                raise
            self._failed(error)
            if self._is_given_up_after(error):
                await self.reject()
            else:
                self._log_failure()
                await self.retry()
        else:
            self.ack()

    def _failed(self, error: BaseException) -> None:
        """Remember why, for whoever reads the dead letter."""
        self._failure = printable(f"{type(error).__name__}: {error}"[: limits.DEAD_REASON_CHARS_MAX])

    def _is_settled_before(self, error: BaseException) -> bool:
        """Whether the application has said itself what becomes of this delivery, before it raised ``error``; logs it.

        The first word counts, as with FastStream: to hand back what is acknowledged would handle it twice, and to hand it back twice would
        make two of it.
        """
        if self._settled:
            log.error("processing of %r failed after it was %s, which counts", self, self._settled, exc_info=error)
        return bool(self._settled)

    def _is_settled_before_call(self, call: str) -> bool:
        if self._settled:
            log.warning("%s() of %r does nothing, since it was %s already", call, self, self._settled)
        return bool(self._settled)

    def _is_given_up_after(self, error: BaseException) -> bool:
        """Whether no other attempt would help, as the policy says; logs it."""
        if self._retry is None or not self._retry.gives_up_on(error):
            return False
        if isinstance(error, NotDecoded):  # it says everything, and a traceback would show the decoder
            log.error("%r is given up, since it cannot be decoded: %s", self, error)
        else:
            log.error(
                "%r is given up after attempt %d, as dead_on says of this exception", self, self.attempt, exc_info=error
            )
        return True

    def _log_failure(self) -> None:
        """Log the exception that is being handled, and what comes of the message."""
        log.exception("processing of %r failed; %s", self, self._required_delivery().after_failure(self))
