"""The targets of the relay behind one face: create a topic, publish, look from outside with another client, kill, start again."""

import asyncio
import contextlib
import itertools
import json
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aio_pika
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.compat.stock_broker import StockBroker, ask
from tests.support.kafka import KafkaBroker
from tests.support.rabbitmq import RabbitMqServer
from tests.support.waiting import PATIENCE_S, soon, until

from halfmq.client.async_client import AsyncClient
from halfmq.client.outgoing import compose
from halfmq.model import properties as names
from halfmq.relay.kafka import MESSAGE_ID, KafkaPublisher
from halfmq.relay.publisher import Batch, OutboxMessage, Publisher
from halfmq.relay.rabbitmq import RabbitMqPublisher
from halfmq.relay.rocketmq import RocketMqPublisher
from halfmq.wire.remoting.codes import RequestCode

_seqs = itertools.count(1)
#: Whole seconds, which is what AMQP has.
WRITTEN_AT_MS = int(time.time()) * 1_000
#: In one message, refused by every target of these tests. Bytes.
TOO_LARGE = 3 << 20
#: A queue that is not there so long after its server answers is lost. Seconds.
RECOVERY_MAX_S = 20


#: Fixtures of them.
TARGETS = (
    pytest.param("rabbit", marks=pytest.mark.rabbitmq),
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java]),
    pytest.param("rocket_target", marks=pytest.mark.java),
)


class Read(NamedTuple):
    """A message as a consumer gets it. ``properties``: of the application, tag and keys."""

    message_id: str
    body: bytes
    key: str
    properties: dict[str, str]
    written_at_ms: int


class Target(Protocol):
    """One server of a session."""

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which the programs in ``examples/`` find it."""
        ...

    def publisher(self, **options: Any) -> Publisher: ...

    def nobody(self, wait_s: float) -> Publisher:
        """At an address where nobody listens, for which it waits that long."""
        ...

    async def create(self, topic: str) -> None: ...

    async def count(self, topic: str) -> int: ...

    async def read(self, topic: str) -> list[Read]:
        """Everything that is there now, in its order by key."""
        ...

    def kill(self) -> None: ...

    def start_again(self) -> frozenset[str]:
        """On the same data. Returns the topics that the server itself lost with everything in them; they exist again."""
        ...


def row(topic: str, body: bytes = b"x", key: str = "", **composed: Any) -> OutboxMessage:
    """The next one of the outbox."""
    # Targets have names that RocketMQ does not allow, such as "orders.created".
    message = compose("t", b"x", sharding_key=key or None, **composed)
    seq = next(_seqs)
    return OutboxMessage(
        seq, uuid.uuid4().hex.upper(), topic, body, message.properties, key, f"tx-{seq}", WRITTEN_AT_MS
    )


def batch(messages: Sequence[OutboxMessage]) -> Batch:
    return Batch(uuid.uuid4().hex, tuple(messages))


def fresh_name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name in ("TAGS", "KEYS") or name not in names.SYSTEM}


class Rabbit:
    def __init__(self, server: RabbitMqServer) -> None:
        self.server = server
        self.kill = server.kill
        self._queues: list[str] = []

    def start_again(self) -> frozenset[str]:
        """Two of five runs of the gate on one machine had it, hundreds of other kills had not: RabbitMQ 3.10 was without a durable queue
        whose messages it had confirmed, at each of five starts. What it lost is its own; that it did is said in a warning."""
        self.server.start_server()
        lost = [topic for topic in self._queues if not asyncio.run(self._returns(topic))]
        if lost:
            on_disk = self.server.control("eval", "mnesia:dirty_all_keys(rabbit_durable_queue).")
            message = f"RabbitMQ lost the durable queues {lost}; on disk it has {on_disk}\n{self.server.log()}"
            warnings.warn(message, stacklevel=2)
        for topic in lost:
            asyncio.run(self._declare(topic))
        return frozenset(lost)

    @property
    def environment(self) -> dict[str, str]:
        return {"AMQP_URL": self.server.url}

    def publisher(self, **options: Any) -> RabbitMqPublisher:
        return RabbitMqPublisher(self.server.url, **options)

    def nobody(self, wait_s: float) -> RabbitMqPublisher:
        return RabbitMqPublisher("amqp://guest:guest@127.0.0.1:1/", connect_timeout_s=wait_s)

    @contextlib.asynccontextmanager
    async def _channel(self) -> Any:
        connection = await soon(aio_pika.connect(self.server.url))
        try:
            yield await soon(connection.channel())
        finally:
            await soon(connection.close())

    async def create(self, topic: str) -> None:
        await self._declare(topic)
        self._queues.append(topic)

    async def _declare(self, topic: str, passive: bool = False) -> None:
        async with self._channel() as channel:
            await soon(channel.declare_queue(topic, durable=True, passive=passive))

    async def _returns(self, topic: str) -> bool:
        deadline = time.monotonic() + RECOVERY_MAX_S
        while time.monotonic() < deadline:
            with contextlib.suppress(aio_pika.exceptions.ChannelNotFoundEntity):
                await self._declare(topic, passive=True)
                return True
            await asyncio.sleep(0.5)  # real time: the server recovers
        return False

    async def count(self, topic: str) -> int:
        async with self._channel() as channel:
            queue = await soon(channel.declare_queue(topic, passive=True))
            return int(queue.declaration_result.message_count)

    async def read(self, topic: str) -> list[Read]:
        found: list[Read] = []
        async with self._channel() as channel:
            queue = await soon(channel.declare_queue(topic, passive=True))
            expected = queue.declaration_result.message_count
            if expected:
                messages = queue.iterator(no_ack=True)
                while len(found) < expected:
                    one = await soon(anext(messages))
                    assert one.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
                    headers = {name: str(value) for name, value in one.headers.items()}
                    key = headers.pop(names.SHARDING_KEY, "")
                    written_at_ms = round(one.timestamp.timestamp() * 1_000)
                    found.append(Read(one.message_id, one.body, key, headers, written_at_ms))
        return found


class Kafka:
    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.kill = broker.kill

    def start_again(self) -> frozenset[str]:
        self.broker.start_broker()
        return frozenset()

    @property
    def environment(self) -> dict[str, str]:
        return {"KAFKA_SERVERS": self.broker.address}

    def publisher(self, **options: Any) -> KafkaPublisher:
        return KafkaPublisher(self.broker.address, **{"topic.metadata.propagation.max.ms": 500, **options})

    def nobody(self, wait_s: float) -> KafkaPublisher:
        return KafkaPublisher("127.0.0.1:1", connect_timeout_s=wait_s)

    async def create(self, topic: str) -> None:
        await asyncio.to_thread(self.broker.create_topic, topic, 4)

    async def count(self, topic: str) -> int:
        return await asyncio.to_thread(self._count, topic)

    async def read(self, topic: str) -> list[Read]:
        return await asyncio.to_thread(self._read, topic)

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.broker.address, "group.id": "reader", "enable.auto.commit": False})

    def _ends(self, consumer: Consumer, topic: str) -> dict[int, int]:
        known = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_S)[1]
            for number in known
        }

    def _count(self, topic: str) -> int:
        consumer = self._consumer()
        try:
            return sum(self._ends(consumer, topic).values())
        finally:
            consumer.close()

    def _read(self, topic: str) -> list[Read]:
        consumer = self._consumer()
        try:
            ends = self._ends(consumer, topic)
            consumer.assign([TopicPartition(topic, number, 0) for number in ends])
            found: list[Read] = []
            while len(found) < sum(ends.values()):
                one = consumer.poll(PATIENCE_S)
                assert one is not None
                assert one.error() is None, one.error()
                headers = {name: value.decode() for name, value in one.headers()}
                message_id = headers.pop(MESSAGE_ID)
                key = (one.key() or b"").decode()
                found.append(Read(message_id, one.value() or b"", key, headers, one.timestamp()[1]))
            return found
        finally:
            consumer.close()


class Rocket:
    #: Larger messages are refused.
    SETTINGS = {"maxMessageSize": str(1 << 20), "transactionCheckInterval": "3600000"}  # noqa: RUF012

    def __init__(self, stock: StockBroker) -> None:
        self.stock = stock
        self.kill = stock.kill_broker

    def start_again(self) -> frozenset[str]:
        self.stock.start_broker()
        return frozenset()

    @property
    def url(self) -> str:
        return f"rocketmq://{self.stock.names}"

    @property
    def environment(self) -> dict[str, str]:
        return {"NAMESRV_ADDR": self.stock.names}

    def publisher(self, **options: Any) -> RocketMqPublisher:
        return RocketMqPublisher(self.url, **options)

    def nobody(self, wait_s: float) -> RocketMqPublisher:
        return RocketMqPublisher("rocketmq://127.0.0.1:1", timeout_s=wait_s)

    async def create(self, topic: str, permission: int = 6) -> None:
        wanted = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
            "perm": str(permission), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        answer = await asyncio.to_thread(ask, self.stock.broker_port, RequestCode.UPDATE_AND_CREATE_TOPIC, wanted)
        assert answer.code == 0, answer.remark

        def is_known() -> bool:
            return ask(self.stock.name_port, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0

        await until(lambda: asyncio.to_thread(is_known), "the topic at the name server")

    async def count(self, topic: str) -> int:
        def is_dispatched() -> bool:
            answer = ask(self.stock.broker_port, RequestCode.GET_BROKER_RUNTIME_INFO, {})
            return int(json.loads(answer.body)["table"]["dispatchBehindBytes"]) == 0

        def ends() -> int:
            answers = [
                ask(self.stock.broker_port, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(number)})
                for number in range(4)
            ]
            return sum(int(answer.ext["offset"]) for answer in answers)

        # RocketMQ confirms what is in its log, and writes the queues later.
        await until(lambda: asyncio.to_thread(is_dispatched), "what was stored is in the queues")
        return await asyncio.to_thread(ends)

    async def read(self, topic: str) -> list[Read]:
        expected = await self.count(topic)
        found: list[Read] = []
        async with AsyncClient(self.url) as mq, mq.consumer(topic, group=fresh_name()) as messages:
            while len(found) < expected:
                one = await messages.get(PATIENCE_S)
                assert one is not None, f"{len(found)} of {expected}"
                one.ack()
                key = one.properties.get(names.SHARDING_KEY, "")
                found.append(Read(one.message_id, one.body, key, _own(one.properties), WRITTEN_AT_MS))
        return found


def rocket(directory: Path, *, is_measured: bool = False) -> StockBroker:
    return StockBroker("5.5.0", directory, is_measured=is_measured, **Rocket.SETTINGS)
