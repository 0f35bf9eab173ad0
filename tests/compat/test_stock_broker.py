# ruff: noqa: PT012 - what is tested is a block that raises
"""Our client against an unchanged Apache RocketMQ, name server and broker from the published jars.

One world per version: everything the client and the Spark source promise there is done in one run of the broker, because starting one takes
many seconds; the parts run side by side, because most of each is waiting. What differs from halfmq is part of the promise: several messages
of one transaction are one half each, which the receipt says; and no message is visible twice although the broker checks copies of what it
committed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from halfmq import App, AsyncClient, Client, Message, NoReply, Outcome, Transaction, TransactionListener
from halfmq.client import compose
from halfmq.errors import UsageError
from halfmq.spark.options import parse_options
from halfmq.spark.plan.offsets import from_json
from halfmq.spark.source import HalfmqBatchReader, HalfmqStreamReader
from tests.compat.stock_broker import StockBroker
from tests.support.waiting import until, wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(240)]

#: Checks come soon, and often enough to ask once more after an UNKNOWN.
SETTINGS = {"transactionCheckInterval": "2000", "transactionTimeOut": "2000"}


class Orders(TransactionListener):
    """Answers as the argument says; the first check of each is UNKNOWN."""

    def __init__(self) -> None:
        self.checked: Counter[str] = Counter()

    def execute(self, message: Message, arg: Any) -> Outcome:
        return arg  # type: ignore[no-any-return]

    async def check(self, message: Message) -> Outcome:
        self.checked[str(message.key)] += 1
        return Outcome.UNKNOWN if self.checked[str(message.key)] == 1 else Outcome.COMMIT


@pytest.fixture(scope="module", params=["5.5.0", pytest.param("4.9.7", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with StockBroker(request.param, tmp_path_factory.mktemp("stock"), **SETTINGS) as stock:
        yield f"rocketmq://{stock.names}"


async def test_client_works_against_a_stock_broker(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.TaskGroup() as parts:
        parts.create_task(plain_messages(url))
        parts.create_task(transactions(url))
        parts.create_task(a_shared_group(url))
        parts.create_task(requests(url))
        parts.create_task(a_member_without_the_topic(url, caplog))
    # Another process of the group "orders" would be asked about what this one leaves behind.
    await check_after_a_crash(url)
    await asyncio.to_thread(the_blocking_facade, url)


async def collect(url: str, topic: str, group: str, count: int, linger_s: float = 0.0, **options: Any) -> list[Message]:
    """``count`` messages, and what else comes within ``linger_s`` after them."""
    got: list[Message] = []
    async with AsyncClient(url) as mq, mq.consumer(topic, group=group, **options) as messages:
        while True:
            message = await messages.get(linger_s if len(got) >= count else 40.0)
            if message is None:
                assert len(got) >= count, f"only {[m.text() for m in got]}"
                return got
            message.ack()
            got.append(message)


async def plain_messages(url: str) -> None:
    async with AsyncClient(url, group="plain") as mq:
        receipt = await mq.send("plain", {"id": 7}, tag="web", keys=["7"], properties={"mine": "yes"})
        assert (receipt.status, receipt.broker) == ("SEND_OK", "broker-a")
        batch = await mq.send_many("plain", [b"b0", b"b1", b"b2"], tag="app")
        assert [one.offset - batch[0].offset for one in batch] == [0, 1, 2]
        await mq.send("plain", b"other", tag="other")
        await mq.send("plain", b"late", tag="app", delay=1)
        await mq.send("plain", b"huge" * 500_000, tag="web", sharding_key="k")
        async with mq.consumer("plain", group="readers", tags="web || app") as messages:
            found: dict[str, Message] = {}
            while len(found) < 6:
                message = await messages.get(40.0)
                assert message is not None, f"only {list(found)}"
                if message.key == "7" and message.attempt == 1:
                    await message.retry(delay=1)
                    continue
                message.ack()
                found[message.message_id] = message
        assert found.keys() >= {one.message_id for one in [receipt, *batch]}
        again = found[receipt.message_id]
        assert (again.attempt, again.topic, again.tag, again.json()) == (2, "plain", "web", {"id": 7})
        assert again.properties["mine"] == "yes"
        assert {m.body for m in found.values() if m.tag == "app"} == {b"b0", b"b1", b"b2", b"late"}
        async with mq.consumer("plain", group="readers", tags="web || app") as messages:
            assert await messages.get(3.0) is None  # the group goes on at its offsets
        await offsets_stay_where_the_group_left_them(url)


async def offsets_stay_where_the_group_left_them(url: str) -> None:
    """What was acknowledged last before leaving never comes again, however soon the group is left and joined.

    A stock broker handles pulls and commits on different threads (``PullMessageThread_*``, ``ConsumerManageThread_*``)
    and stores the offset that it handles last. While our pulls carried the offset too, one in 150 of these rounds was
    undone by the pull before it: the broker logged "update consumer offset less than store".
    """
    async with AsyncClient(url, group="plain") as mq:
        for number in range(20):
            sent = await mq.send("rounds", str(number))
            async with AsyncClient(url) as reader, reader.consumer("rounds", group="rounds") as messages:
                message = await messages.get(40.0)
                assert message is not None
                assert message.message_id == sent.message_id
                message.ack()


async def requests(url: str) -> None:
    """Its broker pushes our reply to our requester; a requester that is gone is an error of the replier."""
    app = App(url, group="pricing")

    @app.consumer("prices", group="pricing")
    async def price(message: Message) -> None:
        await message.reply({"of": message.json()})

    async with AsyncClient(url) as mq:
        with pytest.raises(NoReply):
            await mq.request("prices", 0, timeout=3)
        async with app.run():
            replies = await asyncio.gather(*(mq.request("prices", number, timeout=40) for number in range(1, 4)))
    assert [reply.json() for reply in replies] == [{"of": number} for number in range(1, 4)]


async def a_member_without_the_topic(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It counts what such a member hands back, but does not make a dead letter of it: the handler gets the message once more."""
    async with AsyncClient(url, group="mixed") as mq:
        await mq.send("mixed-stock", b"x")
        async with mq.consumer("mixed-stock", group="mixed", retries=1) as messages:
            message = await messages.get(40.0)
            assert message is not None
            await message.retry(delay=1)
        async with mq.consumer("mixed-orders", group="mixed", retries=1) as messages:
            await until(lambda: "of topic mixed-stock was redelivered to group mixed" in caplog.text, "it comes", 40)
            assert await messages.get(3.0) is None  # meanwhile it is handed back
        async with mq.consumer("mixed-stock", group="mixed", retries=1) as messages:
            message = await messages.get(60.0)
            assert message is not None
            assert (message.attempt, message.topic) == (3, "mixed-stock")
            message.ack()


async def transactions(url: str) -> None:
    listener = Orders()
    async with AsyncClient(url, group="orders") as mq:
        for key, outcome in (("c", Outcome.COMMIT), ("r", Outcome.ROLLBACK), ("u", Outcome.UNKNOWN)):
            receipt = await mq.send_in_transaction("tx", key, outcome, key=key, listener=listener)
            assert receipt.acknowledged is (outcome is not Outcome.UNKNOWN)
        async with mq.begin() as tx:
            tx.send("tx", "m0", key="m0")
            tx.send("tx", "m1", key="m1")
        assert tx.receipt is not None
        assert (tx.receipt.verdict, tx.receipt.acknowledged, tx.receipt.atomic) == ("COMMITTED", True, False)
        with pytest.raises(KeyError):
            async with mq.begin() as failed:
                failed.send("tx", "never")
                await failed.prepare()
                raise KeyError
        # Long enough for the broker to check everything that it may still hold for undecided.
        got = await collect(url, "tx", "tx-readers", 4, linger_s=14.0)
    assert Counter(message.text() for message in got) == Counter(["c", "u", "m0", "m1"])
    assert listener.checked == {"u": 2}
    assert {message.transaction_id for message in got if message.text().startswith("m")} == {tx.id}


async def check_after_a_crash(url: str) -> None:
    """The process that prepared is gone; another one of the group answers, by the name in the message."""
    crashed = AsyncClient(url, group="orders")
    await crashed.connect()
    await crashed.prepare([compose("crash", b"left", key="k")], tx_id="crash-1", name="order.create", query_id="42")
    await crashed.close()
    app = App(url, group="orders")
    asked: list[tuple[str, str, str | None]] = []

    @app.transaction("order.create", topic="crash")
    async def create(tx: Transaction) -> None: ...

    @create.check
    async def was_created(tx: Transaction) -> Outcome:
        asked.append((tx.id, tx.query_id, tx.key))
        return Outcome.COMMIT

    async with app.run():
        (message,) = await collect(url, "crash", "crash-readers", 1)
    assert message.transaction_id == "crash-1"
    assert asked[0] == ("crash-1", "42", "k")


async def a_shared_group(url: str) -> None:
    """Two members get some each, and the second gets the rest when the first leaves."""
    async with (
        AsyncClient(url, group="p") as one,
        AsyncClient(url, group="p") as two,
    ):
        for number in range(8):
            await one.send("shared", str(number))
        async with two.consumer("shared", group="team") as second:
            async with one.consumer("shared", group="team") as first:
                await until(lambda: [share(first), share(second)] == [2, 2], "two queues each")
            await until(lambda: share(second) == 4, "all queues with the one that is left")


def share(member: Any) -> int:
    return len([queue for queue in member.member.assigned() if queue.topic == "shared"])


def the_blocking_facade(url: str) -> None:
    with Client(url, group="orders") as mq:
        with mq.begin() as tx:
            tx.send("sync", b"x")
        with mq.consumer("sync", group="sync-readers") as messages:
            batch = next(iter(messages.batches(max=10, wait=20.0)))
            assert [message.body for message in batch] == [b"x"]
            batch.ack()


#: Plain messages for the Spark source.
MESSAGES = 300


def test_the_spark_source_reads_a_stock_cluster_like_a_halfmq_broker(url: str) -> None:
    """Route, bounds, pulls, packed bodies, transactions. Spark itself is not started."""
    options = parse_options(
        {"url": url, "subscribe": "lines", "startingOffsets": "earliest", "brokerTimeout": "20s",
         "columns": "value,queue,offset,broker,transaction_id,message_id"}
    )  # fmt: skip
    stream = HalfmqStreamReader(options.for_stream())
    start = stream.initialOffset()
    assert start["queues"] == {}
    with Client(url, group="service") as mq:
        for number in range(MESSAGES):
            mq.send("lines", f"plain {number}")
        with mq.begin() as committed:
            committed.send("lines", "committed")
        mq.rollback(mq.prepare([compose("lines", "rolled back")], tx_id=mq.new_transaction_id()))
    rows = wait_for(HalfmqBatchReader(options.for_batch()), MESSAGES + 1)
    assert sorted(row["value"].decode() for row in rows) == sorted(
        ["committed", *(f"plain {number}" for number in range(MESSAGES))]
    )
    assert {row["broker"] for row in rows} == {"broker-a"}
    assert len({(row["queue"], row["offset"]) for row in rows}) == len(rows)
    (transaction,) = [row for row in rows if row["transaction_id"]]
    assert transaction["value"] == b"committed"
    end = stream.latestOffset(start, ReadAllAvailable())
    assert from_json(end).store == "rocketmq:DefaultCluster"
    assert from_json(end).position == -1
    streamed = [
        row
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]
    assert len(streamed) == MESSAGES + 1
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.stop()


def test_the_options_of_the_spark_source_work_with_a_stock_cluster(url: str) -> None:
    """Times, sizes, tags, headers, and the topics of a pattern, without those of the cluster. Spark itself is not started."""
    topic = "options-lines"
    with Client(url, group="options") as mq:
        for number in range(40):
            mq.send(topic, f"{number:02}", tag="even" if number % 2 == 0 else "odd", properties={"colour": "red"})
            if number == 19:
                time.sleep(0.1)  # real time: messages before and after it have other timestamps
                between_ms = round(time.time() * 1_000)
                time.sleep(0.1)  # real time: as before
    given = {"url": url, "subscribe": topic, "brokerTimeout": "20s", "columns": "value,tag,headers"}

    def batch(**more: str) -> list[str]:
        reader = HalfmqBatchReader(parse_options({**given, **more}).for_batch())
        rows = wait_for(reader, 0)
        assert all(row["headers"] == [{"key": "colour", "value": b"red"}] for row in rows)
        return sorted(row["value"].decode() for row in rows)

    every = [f"{number:02}" for number in range(40)]
    wait_for(HalfmqBatchReader(parse_options(given).for_batch()), 40)
    assert batch() == every
    assert batch(startingTimestamp=str(between_ms)) == every[20:]
    assert batch(endingTimestamp=str(between_ms)) == every[:20]
    assert batch(tags="even || other") == every[::2]
    later = {"startingTimestamp": str(between_ms + 600_000)}
    with pytest.raises(UsageError, match="no message at or after"):
        batch(**later)
    assert batch(**later, startingOffsetsByTimestampStrategy="latest") == []
    pattern = {"url": url, "subscribePattern": ".*", "brokerTimeout": "20s", "startingOffsets": "earliest"}
    stream = HalfmqStreamReader(parse_options({**pattern, "maxBytesPerTrigger": "4k"}).for_stream())
    start = at = stream.initialOffset()
    assert topic in start["topics"]
    assert not any(
        "%" in name or "Cluster" in name or "broker" in name.lower() or "SYS" in name for name in start["topics"]
    )
    planned = []
    while (after := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        planned += [one for part in stream.partitions(at, after) for one in part.ranges if one.topic == topic]  # type: ignore[attr-defined]
        assert sum(one.end - one.start for part in stream.partitions(at, after) for one in part.ranges) <= 40  # type: ignore[attr-defined]
        at = after
    assert sum(one.end - one.start for one in planned) == 40
    stream.stop()


def wait_for(reader: HalfmqBatchReader, count: int) -> list[dict[str, Any]]:
    """All rows, once there are ``count``: a stock END is one-way, so its message comes a little later."""

    def rows() -> list[dict[str, Any]]:
        return [
            row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()
        ]

    found: list[dict[str, Any]] = []
    wait_until(lambda: found.__setitem__(slice(None), rows()) or len(found) >= count, f"{count} rows")
    return found
