"""``app.test.deliver``: a consumer of an ``App`` handles a message as a delivery of a broker, without a broker.

The body is encoded and decoded, the handler runs in its inbox transaction, and what follows is that of ``App``: acknowledged, handed back,
given to ``on_dead``, or a dead letter. What the handler itself sends needs a running app and a broker, except the rows of an outbox.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halfmq.client import delivery as delivery_module
from halfmq.client.app_run import RegisteredConsumer
from halfmq.client.arguments import checked_count
from halfmq.client.consumer import ConsumerSpec
from halfmq.client.handler import Handler
from halfmq.client.message import Message
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.producer import unique_key
from halfmq.client.unique_ids import UniqueIds, process_ids
from halfmq.client.user_code import is_async
from halfmq.errors import UsageError
from halfmq.model import properties as names
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from halfmq.client.app import App
    from halfmq.client.context import ClientContext

#: Where it seems to be stored; offsets differ, so that deliveries are told apart in logs.
_QUEUE: Final = 0
_offsets: Final = count()


class Handling(Enum):
    """What became of a delivery."""

    #: The handler has returned, what it wrote is committed, and the message is acknowledged.
    HANDLED = "handled"
    #: The inbox or barrier knows the message: it is acknowledged, and the handler was not called.
    DUPLICATE = "duplicate"
    #: The handler has raised: the message will be delivered again.
    RETRIED = "retried"
    #: It has failed too often: ``on_dead`` has handled it, and it is acknowledged.
    COMPENSATED = "compensated"
    #: It has failed too often or for good, its body cannot be decoded, or it was rejected: it is in the dead-letter queue.
    DEAD = "dead"


class Delivered(NamedTuple):
    """The outcome of ``deliver``."""

    outcome: Handling
    #: As the handler has received it; for ``redeliver``.
    message: Message
    #: What the handler, ``on_dead`` or the decoding has raised last.
    error: BaseException | None
    #: Bodies of its replies (``message.reply``), as encoded.
    replies: tuple[bytes, ...]
    #: With RETRIED: the pause before the next delivery, s, if the handler or the client has chosen it. None: the broker does.
    delay_s: float | None = None
    #: Of the consumer, to which ``redeliver`` gives it again.
    group: str = ""


class _Delivery:
    """The ``Delivery`` of one message; notes what is said about it."""

    def __init__(self, context: "ClientContext | None") -> None:
        #: Of the app's client, if that is open.
        self._context = context
        self.outcome: Handling | None = None
        self.delay_s: float | None = None
        self.error: BaseException | None = None
        self.replies: list[bytes] = []
        self.was_called = False
        self.was_dead_called = False

    def handling(self, message: Message) -> AbstractContextManager[object]:
        return nullcontext()

    def ack(self, message: Message) -> None:
        if self.outcome is not None:
            return  # the handler has handed it back, and returned
        if self.was_dead_called:
            self.outcome = Handling.COMPENSATED
        else:
            self.outcome = Handling.HANDLED if self.was_called else Handling.DUPLICATE

    async def retry(self, message: Message, delay: float | None) -> None:
        # The broker's rule, not ``is_last_attempt``: it counts deliveries, and what is handed back after the last one is a dead letter.
        retry = message._retry
        if retry is not None and message.attempt > retry.times:
            self.outcome = Handling.DEAD
        else:
            self.outcome, self.delay_s = Handling.RETRIED, delay

    def after_failure(self, message: Message) -> str:
        return "in a test"

    async def reject(self, message: Message) -> None:
        self.outcome = Handling.DEAD

    async def reply(self, message: Message, reply: OutgoingMessage) -> None:
        self.replies.append(reply.body)

    async def answer(self, work: "Coroutine[Any, Any, None]", size_bytes: int) -> None:
        await work


class DirectConsumer:
    """What a worker of an ``App`` uses of a ``Consumer``: it has one message, and ends."""

    def __init__(self, spec: ConsumerSpec, message: Message, delivery: _Delivery) -> None:
        self.spec = spec
        self._message = message
        self._delivery = delivery

    async def __aiter__(self) -> "AsyncIterator[Message]":
        yield self._message

    def handled(self, message: Message) -> None:
        """Nobody waits for its sharding key."""

    def again(self, message: Message, after_s: float) -> None:
        self._delivery.outcome, self._delivery.delay_s = Handling.RETRIED, after_s


class DirectDeliveries:
    """``app.test``."""

    def __init__(self, app: "App") -> None:
        self._app = app

    async def deliver(
        self,
        topic: str,
        body: object,
        *,
        group: str = "",
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        properties: Mapping[str, str] | None = None,
        is_request: bool = False,
        attempt: int = 1,
    ) -> Delivered:
        """Let the consumer of ``topic`` handle a new message. An exception of the handler is in the result: a service goes on as well.

        ``group``: of the consumer, if several have the topic. ``is_request``: a sender waits for its reply. ``attempt``: of this delivery,
        from 1; beyond the consumer's ``retries`` a failure is the last. The other arguments: as for ``AsyncClient.send``.

        Raises:
            UsageError: no consumer takes such a message, several do, or an argument is wrong. Or the consumer has ``markers``, and the app
                does not run.
        """
        checked_count(attempt, "attempt", 1)
        message = compose(topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, properties=properties)
        ids = UniqueIds(self._app.client().clock, SystemEntropy())
        text = message.properties
        if is_request:
            own = [
                (names.CORRELATION_ID, ids.message_id()),
                (names.REPLY_TO_CLIENT, "test"),
                (names.CLUSTER, "test"),
                (names.TTL, "3000"),
            ]
            text = names.append(text, names.encode(own))
        text = names.append(text, unique_key(ids.message_id()))
        return await self._handle(_stored(message, text, self._app.client().clock.wall_ms(), attempt), group)

    async def redeliver(self, delivered: Delivered, *, group: str = "") -> Delivered:
        """Let the same consumer handle the message of an earlier call again, as the next attempt. An inbox knows its id if it was handled.

        ``group``: of another consumer.

        Raises:
            UsageError: as ``deliver``.
        """
        message = delivered.message
        stored = message._stored._replace(reconsume_times=message.attempt)
        return await self._handle(stored, group or delivered.group)

    async def _handle(self, stored: StoredMessage, group: str) -> Delivered:
        client = self._app.client()
        delivery = _Delivery(client._context if client.is_open else None)
        offset = next(_offsets)
        message = Message(stored._replace(queue_offset=offset), offset, stored.body, delivery)
        if message.sharding_key is not None:  # its attempts are counted in the process
            message._handled_here = stored.reconsume_times
            message._stored = message._stored._replace(reconsume_times=0)
        spec = self._spec(message, group)
        if spec.markers is not None and not client.is_open:
            raise UsageError(
                f"the handler of topic {message.topic} sends in transactions (markers=...), so the app has to run",
                hint="async with app.run():, at the broker of halfmq.testing; or outbox=... without markers, which needs no broker",
            )
        handlers = spec.handlers(client, self._app.run_blocking)
        noted = delivery_module.Handlers(
            _noted(handlers.handle, delivery),
            None if handlers.dead is None else _noted(handlers.dead, delivery, dead=True),
        )
        one: Any = DirectConsumer(spec.reads, message, delivery)
        await delivery_module.work(one, noted)
        if delivery.outcome is None:  # not said by the consumer, so the handler has ended without a word of it
            raise UsageError(f"the handler of {message!r} has neither returned nor raised")
        return Delivered(
            delivery.outcome, message, delivery.error, tuple(delivery.replies), delivery.delay_s, spec.reads.group
        )

    def _spec(self, message: Message, group: str) -> RegisteredConsumer:
        takes = [
            spec for spec in self._app._consumers
            if message.topic in spec.reads.topics and group in ("", spec.reads.group) and _subscribes(spec.reads.tags, message.tag)
        ]  # fmt: skip
        if len(takes) == 1:
            return takes[0]
        what = f"topic {message.topic!r}" + (f", tag {message.tag!r}" if message.tag else "")
        if takes:
            groups = ", ".join(sorted(spec.reads.group for spec in takes))
            raise UsageError(f"several consumers take {what}: {groups}", hint="deliver(..., group=...)")
        of_group = f" of group {group}" if group else ""
        raise UsageError(f"no consumer{of_group} takes {what}", hint="@app.consumer(topic, group=...)")


def _subscribes(tags: str, tag: str | None) -> bool:
    wanted = {one.strip() for one in tags.split("||")}
    return "*" in wanted or tags.strip() == "" or tag in wanted


def _stored(message: OutgoingMessage, properties: bytes, now_ms: int, attempt: int) -> StoredMessage:
    return StoredMessage(
        topic=message.topic,
        queue_id=_QUEUE,
        queue_offset=0,
        flag=0,
        sys_flag=0,
        born_time_ms=now_ms,
        born_host=bytes(8),
        store_time_ms=now_ms,
        store_host=bytes(8),
        reconsume_times=attempt - 1,
        prepared_offset=0,
        body=message.body,
        body_crc=body_crc_of(message.body),
        properties=properties,
    )


def as_received(outgoing: OutgoingMessage) -> Message:
    """``outgoing`` as a consumer gets it, with an id and an offset of its own. No broker has it, so it cannot be acknowledged."""
    offset = next(_offsets)
    text = names.append(outgoing.properties, unique_key(process_ids().message_id()))
    stored = _stored(outgoing, text, SystemClock().wall_ms(), attempt=1)._replace(queue_offset=offset)
    return Message(stored, offset, stored.body)


def _noted(handle: Any, delivery: _Delivery, *, dead: bool = False) -> Any:
    """A handler of the app, or a participant around one, that says to ``delivery`` whether its function was called, and what was raised."""
    inner = handle if isinstance(handle, Handler) else handle._handler
    mine = copy(inner)
    function: Callable[..., Any] = inner.function

    def called() -> None:
        delivery.was_called = True
        delivery.was_dead_called = delivery.was_dead_called or dead

    if is_async(function):

        async def handle_async(*given: Any) -> Any:
            called()
            return await function(*given)

        mine.function = handle_async
    else:

        def handle_plain(*given: Any) -> Any:
            called()
            return function(*given)

        mine.function = handle_plain
    outer = mine
    if handle is not inner:
        outer = copy(handle)
        outer._handler = mine

    async def noted(message: Message) -> None:
        try:
            await outer(message)
        except BaseException as error:
            delivery.error = error
            raise

    return noted
