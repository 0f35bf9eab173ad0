"""``HalfmqSubscriber``: a member of a consumer group that calls FastStream's handlers.

Messages are delivered as by ``halfmq.App`` (``halfmq.integrations.work``): several at once, those of one sharding key in order, and what
fails is handed back as a ``Retry`` says. FastStream decides what an exception means, by the ``AckPolicy``; this module carries that out.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import StopConsume
from faststream.message import AckStatus, StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec
from pydantic import ValidationError

from faststream_halfmq.config import HalfmqBrokerConfig, checked_ack_policy
from faststream_halfmq.logs import log
from faststream_halfmq.message import HalfmqMessage, HalfmqParser, Settlement, settlement_now
from faststream_halfmq.publisher import ReplyPublisher
from halfmq import AsyncClient, Consumer, Message, Retry, UsageError
from halfmq.integrations import (
    ConsumerSpec,
    Handler,
    Handlers,
    NotDecoded,
    checked_count,
    checked_retry,
    consumer_of,
    end_tasks,
    work,
)

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto

    from halfmq.integrations import StartFrom

#: The group of a specification that is only made to check its other arguments.
_SOME_GROUP: Final = "group"


class Rejected(Exception):
    """The handler, or the subscriber's ``AckPolicy``, rejects the message: it becomes a dead letter. The text is the reason."""


class HandedBack(Exception):
    """The handler has called ``nack``, or has ended without a word under ``AckPolicy.MANUAL``: the message is delivered again."""


@dataclass(kw_only=True)
class HalfmqSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class HalfmqSubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: HalfmqBrokerConfig

    topic: str
    group: str
    tags: str
    start: "StartFrom"
    retry: Retry
    prefetch: int | None
    max_workers: int
    parser: Any = field(default_factory=lambda: HalfmqParser().parse_message)
    decoder: Any = field(default_factory=lambda: HalfmqParser().decode_message)

    @property
    def ack_policy(self) -> AckPolicy:
        """``NACK_ON_ERROR`` by default: what fails is delivered again as its ``Retry`` says, and then a dead letter."""
        for said in (self._ack_policy, self._outer_config.ack_policy):
            if said is not EMPTY:
                return said
        return AckPolicy.NACK_ON_ERROR

    def consumer_spec(self, topic: str, group: str) -> ConsumerSpec:
        """Raises:
        UsageError, InvalidName: an argument is wrong.
        """
        retry = replace(self.retry, dead_on=(*self.retry.dead_on, Rejected))
        return ConsumerSpec(topic, group, self.tags, self.start, None, self.prefetch, retry)


class HalfmqSubscriberSpecification(SubscriberSpecification[HalfmqBrokerConfig, HalfmqSubscriberSpecificationConfig]):
    """What AsyncAPI says of a subscriber."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=MessageSpec(title=f"{self.name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        }


class HalfmqSubscriber(SubscriberUsecase[Message]):
    """Made by ``HalfmqBroker.subscriber``."""

    _outer_config: HalfmqBrokerConfig

    def __init__(
        self,
        config: HalfmqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Message],
    ) -> None:
        super().__init__(config, specification, calls)
        self._config = config
        config.consumer_spec(config.topic, config.group or _SOME_GROUP)
        self._consumer: Consumer | None = None
        self._workers: list[asyncio.Task[None]] = []
        #: ``StopConsume`` ends it from one of its own workers, which must not wait for itself.
        self._ending: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """With the prefix of its router."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    @property
    def group(self) -> str:
        """The consumer group: its own, or that of the broker."""
        return self._config.group or self._outer_config.group

    def takes(self, topic: str, tag: str | None) -> bool:
        """Whether a message of ``topic`` with ``tag`` is for it."""
        wanted = {one.strip() for one in self._config.tags.split("||")}
        return topic == self.topic and bool({"*", "", tag} & wanted)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and, if there are handlers, begin to call them.

        Raises:
            UsageError: there is no group; or another subscriber here has the group with another start or number of retries.
        """
        if self._consumer is not None:
            return
        await super().start()
        if self.calls:
            consumer = await self._open(keeps_order=True)
            handlers = Handlers(_handler(self), None)
            self._workers = [asyncio.create_task(work(consumer, handlers)) for _ in range(self._config.max_workers)]
        self._post_start()

    async def _open(self, *, keeps_order: bool) -> Consumer:
        client: AsyncClient | None = self._outer_config.client
        if client is None:
            raise UsageError(f"the subscriber of {self.topic} is in no broker", hint="broker.include_router(router)")
        consumer = consumer_of(client, self._config.consumer_spec(self.topic, self.group))
        if keeps_order:
            consumer.keep_order()
        await consumer.__aenter__()
        self._consumer = consumer
        return consumer

    async def stop(self) -> None:
        """Take no more messages, wait ``graceful_timeout`` seconds for handlers that run, and leave the group. What is not handled goes to
        other members."""
        if self._ending is not None and self._ending is not asyncio.current_task():
            await self._ending
        consumer, self._consumer = self._consumer, None
        workers, self._workers = self._workers, []
        if consumer is not None:
            consumer.stop()
        grace_s = self._outer_config.graceful_timeout
        if workers and grace_s is None:
            await asyncio.wait(workers)
        if late := await end_tasks(workers, grace_s or 0.0):
            log.warning(
                "%d handlers of %s did not finish in %g s; their messages go to other members",
                late,
                self.topic,
                grace_s,
            )
        await super().stop()
        if consumer is not None:
            await consumer.close()

    def end_soon(self) -> None:
        """``stop``, without waiting for it."""
        if self._ending is None:
            self._ending = asyncio.create_task(self.stop())

    # --- one delivery ---------------------------------------------------------------------------------------------

    async def handle(self, message: Message) -> None:
        """One delivery: a normal return acknowledges it; an exception hands it back, or makes it a dead letter, as ``Retry`` says."""
        settlement = Settlement(acks_at_once=True)
        error: BaseException | None = None
        token = settlement_now.set(settlement)
        try:
            await self.process_message(message)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - what it means is decided below
            error = raised
        finally:
            settlement_now.reset(token)
        if isinstance(error, StopConsume | SystemExit):
            self.end_soon()
        if isinstance(error, SystemExit) and (app := self._outer_config.context.get("app")):
            app.exit()
        if settlement.status is AckStatus.ACKED:
            return
        if settlement.status is AckStatus.REJECTED:
            raise Rejected(f"{type(error).__name__}: {error}" if error else "by its handler") from error
        if settlement.delay_s is not None and message.sharding_key is None:
            await message.retry(settlement.delay_s)
            return
        if isinstance(error, ValidationError) and error.title in [call.name for call in self.calls]:
            # Of the handler's parameters, whose model FastDepends names after it; any other one is the handler's own.
            raise NotDecoded(f"its body into the parameters of {error}") from None
        if isinstance(error, Exception):
            raise error
        if settlement.status is None:
            raise HandedBack("its handler has ended without ack, nack or reject") from error
        raise HandedBack("by its handler") from error

    def _make_response_publisher(self, message: StreamMessage[Message]) -> "Iterable[PublisherProto]":
        return (ReplyPublisher(message.raw_message, self._outer_config.producer),)  # type: ignore[arg-type]

    # --- without handlers -----------------------------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> HalfmqMessage | None:  # noqa: ASYNC109 - as FastStream's other brokers
        """The next message, of a subscriber without handlers; None after ``timeout`` seconds. Call its ``ack``."""
        self._refuse_with_handlers("get_one")
        consumer = self._consumer or await self._open(keeps_order=False)
        raw = await consumer.get(timeout)
        return None if raw is None else await self._processed(raw)

    async def __aiter__(self) -> AsyncIterator[HalfmqMessage]:
        self._refuse_with_handlers("iteration")
        consumer = self._consumer or await self._open(keeps_order=False)
        async for raw in consumer:
            yield await self._processed(raw)

    def _refuse_with_handlers(self, what: str) -> None:
        if self.calls:
            raise UsageError(
                f"{what} is for a subscriber without handlers", hint="broker.subscriber(topic), undecorated"
            )

    async def _processed(self, raw: Message) -> HalfmqMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message: Any = await process_msg(
            msg=raw,
            middlewares=(one(raw, context=context) for one in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        ours: HalfmqMessage = message
        return ours

    def get_log_context(self, message: StreamMessage[Message] | None) -> dict[str, str]:
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}


def _handler(subscriber: HalfmqSubscriber) -> Handler:
    """``Handler`` calls a function with the message, and sends what that says with ``message.reply``."""

    async def run_blocking(function: Callable[..., Any], *args: Any) -> Any:
        raise AssertionError("the function is a coroutine function")

    return Handler(subscriber.handle, once=None, sessions=None, run_blocking=run_blocking)


def create_subscriber(
    *,
    topic: str,
    group: str,
    tags: str,
    start: "StartFrom",
    retry: Retry | None,
    prefetch: int | None,
    max_workers: int,
    ack_policy: AckPolicy,
    no_reply: bool,
    config: HalfmqBrokerConfig,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> HalfmqSubscriber:
    calls: CallsCollection[Message] = CallsCollection()
    checked_ack_policy(ack_policy)
    specification = HalfmqSubscriberSpecification(
        config,
        HalfmqSubscriberSpecificationConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        ),
        calls,
    )
    subscriber_config = HalfmqSubscriberConfig(
        _outer_config=config,
        _ack_policy=ack_policy,
        no_reply=no_reply,
        topic=topic,
        group=group,
        tags=tags,
        start=start,
        retry=checked_retry(retry, None),
        prefetch=prefetch,
        max_workers=checked_count(max_workers, "max_workers", 1),
    )
    return HalfmqSubscriber(subscriber_config, specification, calls)
