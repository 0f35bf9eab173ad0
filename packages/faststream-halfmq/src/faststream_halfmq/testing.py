"""``TestHalfmqBroker``: a broker in memory, for tests of handlers. What is published is handled before ``publish`` returns, and an
exception of a handler is raised there. There are no redeliveries, dead letters or delays, no order of sharding keys, and no checks, so that
what is published with ``session=`` is not handled if its commit was cancelled, though it took place: for these take the real broker in a
thread (``halfmq.testing``).
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, overload

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response.response import Response

from faststream_halfmq.broker import HalfmqBroker
from faststream_halfmq.message import Settlement, settlement_now
from faststream_halfmq.producer import HalfmqProducer
from faststream_halfmq.publisher import HalfmqPublisher
from faststream_halfmq.response import HalfmqPublishCommand
from faststream_halfmq.subscriber import HalfmqSubscriber
from halfmq import AsyncClient, Message, OutgoingMessage, Prepared, Receipt, TransactionReceipt, compose
from halfmq.integrations import COMMITTED, as_received, process_ids

if TYPE_CHECKING:
    from halfmq.integrations import Sends
    from halfmq.sql import MarkerTable

__all__ = ["TestHalfmqBroker"]


class TestHalfmqBroker(TestBroker[HalfmqBroker, EnterType], broker=HalfmqBroker):
    """``async with TestHalfmqBroker(broker) as broker:`` connects the subscribers and publishers of ``broker`` in memory.

    ``with_real``: at the broker's own address instead. Arguments and what is in the block: as for FastStream's test brokers.
    """

    @overload
    def __init__(
        self: "TestHalfmqBroker[HalfmqBroker]",
        broker: HalfmqBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "TestHalfmqBroker[tuple[HalfmqBroker, ...]]",
        *brokers: HalfmqBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(self, *brokers: HalfmqBroker, with_real: bool = False, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: HalfmqBroker, publisher: HalfmqPublisher
    ) -> tuple[HalfmqSubscriber, bool]:
        for subscriber in _subscribers(self.brokers):
            if subscriber.takes(publisher.topic, publisher.tag):
                return subscriber, True
        return broker.subscriber(publisher.topic, group="test", persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: HalfmqBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, InMemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: HalfmqBroker, *args: Any, **kwargs: Any) -> AsyncClient:  # type: ignore[override]
        """The client stays closed."""
        producer = cast(InMemoryProducer, broker.config.producer)
        producer.connect(broker.config.fd_config._serializer, broker.config.broker_codec)
        return broker.client


class InMemoryProducer(HalfmqProducer):
    """Hands what is published to the subscribers of ``brokers``."""

    def __init__(self, broker: HalfmqBroker, brokers: Sequence[HalfmqBroker]) -> None:
        super().__init__(broker.client, broker.config.broker_config.markers, broker._parser, broker._decoder)
        self._brokers = brokers

    async def publish(self, cmd: HalfmqPublishCommand) -> Receipt | None:
        if cmd.session is not None:
            await self._publish_in_session(cmd)
            return None
        (message,) = await self.encoded(cmd)
        return await self._deliver(message)

    async def publish_batch(self, cmd: HalfmqPublishCommand) -> list[Receipt]:
        return [await self._deliver(message) for message in await self.encoded(cmd)]

    async def _join(self, session: Any, markers: "MarkerTable", timeout_s: float | None) -> "Sends":
        return await markers.join_async(_InMemoryTransactions(self._deliver), session)

    async def request(self, cmd: HalfmqPublishCommand) -> Message:
        (request,) = await self.encoded(cmd)
        message = as_received(request)
        for subscriber in self._takers(message):
            answer = await _handled(subscriber, message)
            encoded, _ = await self.encoder.arguments(cmd, answer.body)
            return as_received(compose(cmd.destination, encoded))
        raise SubscriberNotFound

    async def _deliver(self, outgoing: OutgoingMessage) -> Receipt:
        message = as_received(outgoing)
        for subscriber in self._takers(message):
            await _handled(subscriber, message)
        return Receipt(message.message_id, message.topic, "test", message.queue, message.offset, message.offset_id)

    def _takers(self, message: Message) -> list[HalfmqSubscriber]:
        """One of each group."""
        by_group: dict[str, HalfmqSubscriber] = {}
        for subscriber in _subscribers(self._brokers):
            if subscriber.takes(message.topic, message.tag):
                by_group.setdefault(subscriber.group, subscriber)
        return list(by_group.values())


class _InMemoryTransactions:
    """What a marker table calls: the messages are delivered when the session has committed."""

    group = "test"

    def __init__(self, deliver: Callable[[OutgoingMessage], Awaitable[Receipt]]) -> None:
        self.new_transaction_id = process_ids().transaction_id
        self._deliver = deliver
        self._messages: Sequence[OutgoingMessage] = ()

    async def prepare(
        self, messages: Sequence[OutgoingMessage], *, tx_id: str, name: str = "", **options: Any
    ) -> Prepared:
        self._messages = messages
        return Prepared(tx_id, self.group, name, (), atomic=True)

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        for message in self._messages:
            await self._deliver(message)
        return TransactionReceipt(prepared.tx_id, COMMITTED)

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        raise AssertionError("a transaction that the application ends is rolled back by the check")


def _subscribers(brokers: Sequence[HalfmqBroker]) -> list[HalfmqSubscriber]:
    return [cast(HalfmqSubscriber, one) for broker in brokers for one in broker.subscribers]


async def _handled(subscriber: HalfmqSubscriber, message: Message) -> Response:
    """Raises: what the handler has raised."""
    token = settlement_now.set(Settlement(acks_at_once=False))
    try:
        return await subscriber.process_message(message)
    finally:
        settlement_now.reset(token)
