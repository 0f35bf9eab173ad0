"""What RabbitMQ refuses in ways of its own, and a server that hangs."""

import asyncio
import signal
from typing import Any

import aio_pika
import pytest
from aiormq.connection import Connection
from tests.support.rabbitmq import EVENTS, LIMITED
from tests.support.waiting import soon
from tests.unit.relay.targets import TOO_LARGE, Rabbit, batch, fresh_name, row

from halfmq.errors import ConnectError, NotAuthorized, UsageError
from halfmq.relay.rabbitmq import RabbitMqPublisher

pytestmark = [pytest.mark.slow, pytest.mark.rabbitmq]


async def test_a_message_that_no_queue_takes_is_refused_with_the_reason(rabbit: Rabbit) -> None:
    topic, nowhere = fresh_name(), fresh_name()
    await rabbit.create(topic)
    rows = [row(topic, b"1", "a"), row(nowhere, b"2", "a"), row(topic, b"3", "a"), row(topic, b"4", "b")]
    publisher = rabbit.publisher()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert result.refused.pop(rows[1].seq) == (  # type: ignore[attr-defined]
        f"no queue gets messages of the default exchange with routing key {nowhere!r} (NO_ROUTE)"
    )
    assert (result.confirmed, result.refused) == ({rows[0].seq, rows[3].seq}, {})
    assert [one.body for one in await rabbit.read(topic)] == [b"1", b"4"]


async def test_the_number_of_a_channel_that_rabbitmq_closed_is_not_used_again(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[object] = []
    opened = Connection.channel

    async def counted(self: Connection, channel_number: int | None = None, **named: Any) -> object:
        numbers.append(channel_number)
        return await opened(self, channel_number, **named)

    topic = fresh_name()
    await rabbit.create(topic)
    monkeypatch.setattr(Connection, "channel", counted)
    publisher = rabbit.publisher()
    for _ in range(3):
        assert (await publisher.publish(batch([row(topic, b"x" * TOO_LARGE)]))).refused
    await publisher.close()
    assert None not in numbers
    assert len(set(numbers)) == len(numbers) >= 3


async def test_a_message_that_a_full_queue_rejects_is_refused(rabbit: Rabbit) -> None:
    topic = fresh_name()
    connection = await soon(aio_pika.connect(rabbit.server.url))
    channel = await soon(connection.channel())
    await soon(
        channel.declare_queue(topic, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    )
    await soon(connection.close())
    rows = [row(topic, b"%d" % number, "a") for number in range(4)]
    publisher = rabbit.publisher()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    (refused,) = result.refused
    assert "Nack" in result.refused[refused]
    assert result.confirmed == {one.seq for one in rows if one.seq < refused}


async def test_a_routing_key_without_permission_is_refused_and_others_are_confirmed(rabbit: Rabbit) -> None:
    queue = fresh_name()
    connection = await soon(aio_pika.connect(rabbit.server.url))
    channel = await soon(connection.channel())
    declared = await soon(channel.declare_queue(queue, durable=True))
    await soon(declared.bind(EVENTS, "#"))
    await soon(connection.close())
    rows = [row("allowed.1"), row("forbidden", b"1", "a"), row("allowed.2", b"2", "a"), row("allowed.3", b"3", "b")]
    publisher = RabbitMqPublisher(rabbit.server.url_of(LIMITED), EVENTS)
    await publisher.open()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert "access to topic 'forbidden'" in result.refused[rows[1].seq]
    assert (result.confirmed, len(result.refused)) == ({rows[0].seq, rows[3].seq}, 1)


async def test_a_property_that_amqp_cannot_carry_is_refused(rabbit: Rabbit) -> None:
    topic = fresh_name()
    await rabbit.create(topic)
    rows = [row(topic, properties={"n" * 300: "v"}), row(topic)]
    publisher = rabbit.publisher()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert (result.confirmed, list(result.refused)) == ({rows[1].seq}, [rows[0].seq])


async def test_a_server_that_hangs_is_unavailable_in_time(rabbit: Rabbit) -> None:
    topic = fresh_name()
    await rabbit.create(topic)
    # More than the buffers of both ends take.
    rows = [row(topic, b"x" * 500_000, "") for _ in range(60)]
    publisher = rabbit.publisher(timeout_s=1.0, connect_timeout_s=1.0)
    assert (await publisher.publish(batch([row(topic)]))).confirmed
    loop = asyncio.get_running_loop()
    rabbit.server.signal(signal.SIGSTOP)
    try:
        began = loop.time()
        result = await publisher.publish(batch(rows))
        assert (result.confirmed, "no confirmation" in result.unavailable) == (frozenset(), True)
        again = await publisher.publish(batch(rows))
        assert "did not answer" in again.unavailable
        assert loop.time() - began < 15
    finally:
        rabbit.server.signal(signal.SIGCONT)
    last = row(topic, b"last")
    patient = rabbit.publisher()
    assert (await patient.publish(batch([last]))).confirmed == {last.seq}
    await patient.close()
    await publisher.close()
    # What was not written when the time was over is not sent later.
    assert await rabbit.count(topic) < len(rows)


@pytest.mark.thorough
async def test_a_server_that_is_short_of_memory_is_waited_for_and_gets_nothing_twice(rabbit: Rabbit) -> None:
    """It blocks the connection, and reads what was written before when it goes on."""
    topic = fresh_name()
    await rabbit.create(topic)
    batches = [batch([row(topic, b"x" * 200) for _ in range(200)]) for _ in range(4)]
    publisher = rabbit.publisher(timeout_s=5.0, connect_timeout_s=5.0)
    await publisher.open()
    await asyncio.to_thread(rabbit.server.control, "set_vm_memory_high_watermark", "absolute", "1")
    try:
        publishing = [asyncio.create_task(publisher.publish(batches[0]))]
        await asyncio.sleep(0.5)  # real time: the connection is blocked
        # Others need a channel on it.
        publishing += [asyncio.create_task(publisher.publish(one)) for one in batches[1:]]
        await asyncio.sleep(12)  # real time: several time-outs
    finally:
        await asyncio.to_thread(rabbit.server.control, "set_vm_memory_high_watermark", "0.6")
    for result in await soon(asyncio.gather(*publishing)):
        assert (len(result.confirmed), result.unavailable) == (200, "")
    await publisher.close()
    assert await rabbit.count(topic) == 800


async def test_what_can_never_work_is_said_at_once(rabbit: Rabbit) -> None:
    wrong = RabbitMqPublisher(rabbit.server.url_of("guest", "hunter2"))
    with pytest.raises(NotAuthorized) as refused:
        await wrong.open()
    assert "hunter2" not in str(refused.value)
    assert wrong.name == f"rabbitmq 127.0.0.1:{rabbit.server.port}"
    with pytest.raises(ConnectError, match="virtual host"):
        await RabbitMqPublisher(rabbit.server.url + "no-such-vhost").open()
    with pytest.raises(UsageError, match="no exchange"):
        await RabbitMqPublisher(rabbit.server.url, "no-such-exchange").open()
    for url in ("http://guest:hunter2@localhost/", "amqp://", "hunter2"):
        with pytest.raises(UsageError) as bad:
            RabbitMqPublisher(url)
        assert "hunter2" not in str(bad.value)


async def test_over_tls_into_a_quorum_queue(rabbit: Rabbit) -> None:
    topic, server = fresh_name(), rabbit.server
    connection = await soon(aio_pika.connect(server.url))
    channel = await soon(connection.channel())
    await soon(channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"}))
    await soon(connection.close())
    url = f"amqps://guest:guest@127.0.0.1:{server.tls_port}/"
    rows = [row(topic, b"%d" % number, "a") for number in range(20)]
    publisher = RabbitMqPublisher(f"{url}?cafile={server.ca}")
    assert (await publisher.publish(batch(rows))).confirmed == {one.seq for one in rows}
    await publisher.close()
    assert [one.body for one in await rabbit.read(topic)] == [one.body for one in rows]
    with pytest.raises(ConnectError, match=r"no TLS with .*certificate verify failed.*cafile="):
        await RabbitMqPublisher(url).open()
    with pytest.raises(ConnectError, match="no TLS with "):
        await RabbitMqPublisher(f"amqps://guest:guest@127.0.0.1:{server.port}/?cafile={server.ca}").open()
    with pytest.raises(UsageError, match=r"cafile, .* of its URL: No such file"):
        await RabbitMqPublisher(f"{url}?cafile={server.ca}.absent").open()


async def test_an_exchange_that_vanishes_pauses_the_relay_and_refuses_nothing(rabbit: Rabbit) -> None:
    name = fresh_name()
    connection = await soon(aio_pika.connect(rabbit.server.url))
    channel = await soon(connection.channel())
    await soon(channel.declare_exchange(name))
    publisher = rabbit.publisher(exchange=name)
    await publisher.open()
    await soon(channel.exchange_delete(name))
    await soon(connection.close())
    result = await publisher.publish(batch([row("t"), row("u")]))
    await publisher.close()
    assert (result.confirmed, result.refused) == (frozenset(), {})
    assert name in result.unavailable
