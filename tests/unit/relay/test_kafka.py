"""What Kafka refuses in ways of its own; no gap, no duplicate and nothing late where librdkafka gives up or tries again."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
from tests.support.kafka import PASSWORD, USER
from tests.support.waiting import soon, turns, until
from tests.unit.relay.targets import Kafka, batch, fresh_name, row

from halfmq.errors import NotAuthorized, UsageError
from halfmq.relay.kafka import KafkaPublisher

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.java]


def as_user(kafka: Kafka, password: str = PASSWORD) -> KafkaPublisher:
    settings: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": password,
    }  # fmt: skip
    return KafkaPublisher(kafka.broker.sasl_address, **settings)


async def test_a_record_that_only_its_topic_refuses_leaves_no_gap(kafka: Kafka) -> None:
    """The broker refuses the request in which it is, and the producer has sent the next ones already."""
    topic = fresh_name()
    await asyncio.to_thread(kafka.broker.create_topic, topic, 1, max_message_bytes="20000")
    rows = [row(topic, b"%d" % number * 100, f"k{number % 4}") for number in range(200)]
    rows[50] = row(topic, b"x" * 30_000, "k2")
    # Small requests, so that some follow the refused one.
    publisher = kafka.publisher(**{"batch.num.messages": 5})
    result = await publisher.publish(batch(rows))
    await publisher.close()
    expected = [one for number, one in enumerate(rows) if number % 4 != 2 or number < 50]
    assert result.refused.keys() == {rows[50].seq}
    assert "MSG_SIZE_TOO_LARGE" in result.refused[rows[50].seq]
    assert (result.confirmed, result.unavailable) == ({one.seq for one in expected}, "")
    found = await kafka.read(topic)
    for key in ("k0", "k1", "k2", "k3"):
        assert [one.body for one in found if one.key == key] == [one.body for one in expected if one.order_key == key]


async def test_an_unknown_topic_is_refused_and_others_are_confirmed(kafka: Kafka) -> None:
    topic, unknown = fresh_name(), fresh_name()
    await kafka.create(topic)
    rows = [row(unknown, b"1", "a"), row(topic, b"2", "a"), row(topic, b"3", "b"), row(unknown, b"4")]
    publisher = kafka.publisher()
    result = await publisher.publish(batch(rows))
    again = await publisher.publish(batch(rows[:2]))
    await publisher.close()
    assert (result.confirmed, result.refused.keys()) == ({rows[2].seq}, {rows[0].seq, rows[3].seq})
    assert "UNKNOWN_TOPIC" in result.refused[rows[0].seq]
    assert (again.confirmed, again.refused.keys()) == (frozenset(), {rows[0].seq})


async def test_a_forbidden_topic_is_refused_and_others_are_confirmed(kafka: Kafka) -> None:
    topic, forbidden = fresh_name(), fresh_name()
    for name in (topic, forbidden):
        await kafka.create(name)
    await asyncio.to_thread(kafka.broker.forbid, forbidden)
    rows = [row(forbidden, b"1", "a"), row(topic, b"2", "a"), *(row(topic, b"3", f"b{n}") for n in range(50))]
    publisher = as_user(kafka)
    await publisher.open()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert "TOPIC_AUTHORIZATION_FAILED" in result.refused[rows[0].seq]
    assert len(result.refused) == 1
    assert result.confirmed == {one.seq for one in rows[2:]}
    assert len(await kafka.read(topic)) == 50


async def test_what_can_never_work_is_said_at_once(kafka: Kafka) -> None:
    publisher = as_user(kafka, "hunter2")
    with pytest.raises(NotAuthorized) as refused:
        await publisher.open()
    await publisher.close()
    assert "hunter2" not in str(refused.value)
    for name in ("acks", "enable.idempotence", "message.timeout.ms", "transactional.id"):
        with pytest.raises(UsageError, match=name):
            kafka.publisher(**{name: "1"})
    with pytest.raises(UsageError, match="servers="):
        KafkaPublisher(["127.0.0.1:1"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r'settings: No such configuration property: "no\.such\.setting"$'):
        await kafka.publisher(**{"no.such.setting": "1"}).open()
    assert kafka.publisher().name == f"kafka {kafka.broker.address}"


@pytest.mark.thorough
async def test_more_than_the_queue_of_the_producer_takes(kafka: Kafka) -> None:
    topic = fresh_name()
    await kafka.create(topic)
    batches = [[row(topic, b"%d" % number, f"{part}.{number % 7}") for number in range(500)] for part in range(4)]
    publisher = kafka.publisher(**{"queue.buffering.max.messages": 60})
    results = await asyncio.gather(*(publisher.publish(batch(one)) for one in batches))
    await publisher.close()
    assert [len(one.confirmed) for one in results] == [500] * 4
    found = await kafka.read(topic)
    assert len(found) == 2_000
    for key in {one.key for one in found}:
        bodies = [int(one.body) for one in found if one.key == key]
        assert bodies == sorted(bodies)


@pytest.mark.thorough
async def test_a_broker_that_is_soon_back_causes_no_duplicate(kafka: Kafka) -> None:
    topics = [fresh_name(), fresh_name()]
    for topic in topics:
        await kafka.create(topic)
    rows = [row(topics[number // 50 % 2], b"%d" % number, f"key{number % 50}") for number in range(10_000)]
    publisher = kafka.publisher(timeout_s=60.0)
    await publisher.open()
    publishing = asyncio.ensure_future(publisher.publish(batch(rows)))

    async def has_some() -> bool:
        return await kafka.count(topics[0]) >= 100

    await until(has_some, "the first records")
    assert not publishing.done()
    kafka.kill()
    await asyncio.to_thread(kafka.start_again)
    result = await soon(publishing)
    await publisher.close()
    assert (len(result.confirmed), result.unavailable) == (len(rows), "")
    found = [one for topic in topics for one in await kafka.read(topic)]
    assert sorted(int(one.body) for one in found) == list(range(len(rows)))


async def test_nothing_is_sent_after_the_time_is_over(kafka: Kafka) -> None:
    topic = fresh_name()
    await kafka.create(topic)
    publisher = kafka.publisher(timeout_s=1.0)
    await publisher.open()
    loop = asyncio.get_running_loop()
    assert kafka.broker.process is not None
    os.kill(kafka.broker.process.pid, signal.SIGSTOP)
    try:
        began = loop.time()
        # The producer has not heard of the topic yet, so it keeps all of it.
        result = await publisher.publish(batch([row(topic, b"%d" % number, "k") for number in range(100)]))
        assert (result.confirmed, result.refused) == (frozenset(), {})
        assert "no confirmation within 1 s" in result.unavailable
        assert loop.time() - began < 10
    finally:
        os.kill(kafka.broker.process.pid, signal.SIGCONT)
    patient = kafka.publisher()
    last = row(topic, b"last", "k")
    assert (await patient.publish(batch([last]))).confirmed == {last.seq}
    assert (await publisher.publish(batch([row(topic, b"more", "k")]))).confirmed
    await patient.close()
    await publisher.close()
    assert [one.body for one in await kafka.read(topic)] == [b"last", b"more"]


async def test_a_batch_may_be_cancelled_at_any_moment(kafka: Kafka) -> None:
    """What is on its way is purged, for which librdkafka raises a fatal error in the thread, between reports."""
    topic = fresh_name()
    await kafka.create(topic)
    publisher = kafka.publisher()
    await publisher.open()
    rows = [row(topic, b"%d" % number * 50, f"k{number % 50}") for number in range(2_000)]
    for moment in range(30):
        publishing = asyncio.ensure_future(publisher.publish(batch(rows)))
        # Another moment each time: the loop's turns are of the length that the machine gives them.
        await turns(1 + 200 * moment)
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
    assert len((await publisher.publish(batch(rows))).confirmed) == len(rows)
    await publisher.close()
