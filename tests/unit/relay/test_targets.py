"""What every target of the relay does, each with its real server: one suite for RabbitMQ, Apache Kafka and Apache RocketMQ."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from tests.support.waiting import soon, until
from tests.unit.relay.targets import TARGETS, TOO_LARGE, WRITTEN_AT_MS, Read, Target, batch, fresh_name, row

from halfmq.errors import ConnectError
from halfmq.relay.publisher import OutboxMessage, Published, Publisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def published_until_done(publisher: Publisher, messages: Sequence[OutboxMessage]) -> None:
    """As a relay: what was not confirmed is published again, with the rows before it of its key first."""
    left = list(messages)

    async def is_done() -> bool:
        nonlocal left
        try:
            done = await publisher.publish(batch(left[: publisher.messages_max]))
        except ConnectError:
            return False
        assert not done.refused
        left = [one for one in left if one.seq not in done.confirmed]
        return not left

    await until(is_done, "every message is confirmed")


def first_of_each(found: Sequence[Read]) -> list[Read]:
    """Without duplicates, which must be equal."""
    first: dict[str, Read] = {}
    for one in found:
        assert first.setdefault(one.message_id, one) == one
    return list(first.values())


def by_key(pairs: Sequence[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for key, body in pairs:
        found[key].append(body)
    return found


async def test_everything_of_a_row_arrives(target: Target) -> None:
    topic = fresh_name()
    await target.create(topic)
    rows = [
        row(topic, bytes(range(256)), "customer ü", tag="paid", keys=["k1", "k2"], properties={"source": "wéb"}),
        row(topic, b"bare"),
        row(topic, b"keyed", "k"),
        row(topic, b"named", "k", properties={"source": "shop"}),
    ]
    publisher = target.publisher()
    await publisher.open()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert result == Published(frozenset(one.seq for one in rows))
    assert sorted(await target.read(topic), key=lambda one: one.body) == [
        Read(rows[0].message_id, bytes(range(256)), "customer ü", {"TAGS": "paid", "KEYS": "k1 k2", "source": "wéb"}, WRITTEN_AT_MS),
        Read(rows[1].message_id, b"bare", "", {}, WRITTEN_AT_MS),
        Read(rows[2].message_id, b"keyed", "k", {}, WRITTEN_AT_MS),
        Read(rows[3].message_id, b"named", "k", {"source": "shop"}, WRITTEN_AT_MS),
    ]  # fmt: skip
    assert await publisher.recover(batch(rows)) == Published(frozenset())


async def test_messages_of_a_key_arrive_in_their_order(target: Target) -> None:
    topic = fresh_name()
    await target.create(topic)
    rows = [row(topic, b"%d" % number, f"key{number % 50}") for number in range(5_000)]
    publisher = target.publisher()
    await publisher.open()
    for at in range(0, len(rows), publisher.messages_max):
        part = rows[at : at + publisher.messages_max]
        result = await publisher.publish(batch(part))
        assert result.confirmed == {one.seq for one in part}
    await publisher.close()
    found = await target.read(topic)
    assert len(found) == 5_000
    assert by_key([(one.key, one.body) for one in found]) == by_key([(one.order_key, one.body) for one in rows])


async def test_a_refused_message_stops_its_key_and_nothing_else(target: Target) -> None:
    topic, other = fresh_name(), fresh_name()
    for name in (topic, other):
        await target.create(name)
    rows = [
        row(topic, b"a1", "a"), row(topic, b"b1", "b"), row(topic, b"free"),
        row(topic, b"b2" * TOO_LARGE, "b"), row(topic, b"c1", "c"), row(topic, b"a2", "a"),
        # The next of the key, where it could be taken.
        row(topic, b"b3", "b"), row(other, b"b4", "b"), row(other, b"c2", "c"),
    ]  # fmt: skip
    publisher = target.publisher()
    await publisher.open()
    result = await publisher.publish(batch(rows))
    assert result.refused.keys() == {rows[3].seq}
    assert result.refused[rows[3].seq]
    assert (result.confirmed, result.unavailable) == ({rows[n].seq for n in (0, 1, 2, 4, 5, 8)}, "")
    # Alone it is refused as well, and the rest of its key goes when it is out of the way.
    assert (await publisher.publish(batch([rows[3]]))).refused.keys() == {rows[3].seq}
    assert (await publisher.publish(batch(rows[6:8]))).confirmed == {rows[6].seq, rows[7].seq}
    await publisher.close()
    found = first_of_each(await target.read(topic)) + first_of_each(await target.read(other))
    keys = by_key([(one.key, one.body) for one in found])
    assert keys == {"": [b"free"], "a": [b"a1", b"a2"], "b": [b"b1", b"b3", b"b4"], "c": [b"c1", b"c2"]}


@pytest.mark.filterwarnings("default:RabbitMQ lost")
@pytest.mark.parametrize(
    "target",
    [TARGETS[0], *(pytest.param(*one.values, marks=[*one.marks, pytest.mark.thorough]) for one in TARGETS[1:])],
    indirect=True,
)
async def test_after_a_kill_nothing_confirmed_is_lost_and_the_rest_is_published_again(target: Target) -> None:
    """The server is killed when it has a part of the batch. Keys alternate between topics, so that a target waits for confirmations."""
    topics = [fresh_name(), fresh_name()]
    for topic in topics:
        await target.create(topic)
    rows = [row(topics[number // 50 % 2], b"%d" % number, f"key{number % 50}") for number in range(10_000)]
    publisher = target.publisher(timeout_s=3.0, messages_max=len(rows))
    await publisher.open()
    publishing = asyncio.ensure_future(publisher.publish(batch(rows)))
    await until(lambda: has_some(target, topics[0]), "the first messages")
    assert not publishing.done()
    target.kill()
    result = await soon(publishing)
    assert result.unavailable
    assert 0 < len(result.confirmed) < len(rows)
    assert not result.refused
    lost = await asyncio.to_thread(target.start_again)
    gone = {one.seq for one in rows if one.topic in lost and one.seq in result.confirmed}
    await published_until_done(publisher, [one for one in rows if one.seq not in result.confirmed])
    await publisher.close()
    found = [one for topic in topics for one in await target.read(topic)]
    once = first_of_each(found)
    kept = [one for one in rows if one.seq not in gone]
    assert {one.message_id for one in once} == {one.message_id for one in kept}
    # Between two topics there is no order to look at.
    for topic in topics:
        expected = by_key([(one.order_key, one.body) for one in kept if one.topic == topic])
        of_topic = {one.message_id for one in rows if one.topic == topic}
        assert by_key([(one.key, one.body) for one in once if one.message_id in of_topic]) == expected
    repeated = Counter(one.message_id for one in found)
    assert not {one.message_id for one in rows if repeated[one.message_id] > 1 and one.seq in result.confirmed}


async def has_some(target: Target, topic: str) -> bool:
    return await target.count(topic) >= 100


async def test_a_server_that_is_away_is_a_connect_error_in_time(target: Target) -> None:
    loop = asyncio.get_running_loop()
    publisher = target.nobody(wait_s=1.0)
    began = loop.time()
    with pytest.raises(ConnectError):
        await publisher.open()
    try:
        result = await publisher.publish(batch([row("t")]))
    except ConnectError:
        pass
    else:
        assert result.unavailable
        assert not result.confirmed
    await publisher.close()
    assert loop.time() - began < 10


async def test_batches_may_overlap(target: Target) -> None:
    topic = fresh_name()
    await target.create(topic)
    batches = [
        [row(topic, b"%d/%d" % (part, number), f"key{part}.{number % 7}") for number in range(70)] for part in range(8)
    ]
    poison = row(topic, b"x" * TOO_LARGE, "poison")
    batches[3].insert(10, poison)
    publisher = target.publisher()
    await publisher.open()
    results = await asyncio.gather(*(publisher.publish(batch(one)) for one in batches))
    await publisher.close()
    assert [bool(one.refused) for one in results] == [number == 3 for number in range(8)]
    assert [one.unavailable for one in results] == [""] * 8
    assert sum(len(one.confirmed) for one in results) == 560
    found = first_of_each(await target.read(topic))
    rows = [one for part in batches for one in part if one is not poison]
    assert by_key([(one.key, one.body) for one in found]) == by_key([(one.order_key, one.body) for one in rows])


async def test_opening_and_closing_leaves_no_task_and_no_thread(target: Target) -> None:
    topic = fresh_name()
    await target.create(topic)
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    publisher = target.publisher()
    for _ in range(5):
        await publisher.open()
        assert (await publisher.publish(batch([row(topic)]))).confirmed
        await publisher.close()
    await publisher.close()
    nobody = target.nobody(wait_s=0.2)
    with pytest.raises(ConnectError):
        await nobody.open()
    await nobody.close()
    assert await target.count(topic) == 5
    await until(lambda: asyncio.all_tasks() <= tasks, "no task is left")
    assert {
        one.name for one in threading.enumerate() if one not in threads and not one.name.startswith("asyncio")
    } == set()


async def test_a_cancelled_batch_leaves_a_publisher_that_works(target: Target) -> None:
    topic = fresh_name()
    await target.create(topic)
    rows = [row(topic, b"%d" % number, f"key{number % 50}") for number in range(2_000)]
    publisher = target.publisher(messages_max=len(rows))
    await publisher.open()
    publishing = asyncio.ensure_future(publisher.publish(batch(rows)))
    await asyncio.sleep(0)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await published_until_done(publisher, rows)
    await publisher.close()
    once = first_of_each(await target.read(topic))
    assert by_key([(one.key, one.body) for one in once]) == by_key([(one.order_key, one.body) for one in rows])
