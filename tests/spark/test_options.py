"""The options of the source through Spark, over the network and from files: equal rows and equal offsets on both paths."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support import spark_queries
from tests.support.served import Served
from tests.support.spark_queries import QueryFailed
from tests.support.waiting import wait_until

from halfmq.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

TAGS = ("red", "blue", None)


class Installation:
    """A running broker, its two ways of reading, and what was sent."""

    def __init__(self, work: Path) -> None:
        self.served = Served(work / "data", work / "broker.log", "--segment-bytes", str(1 << 20))
        self.served.start()
        self.url = self.served.url
        self.paths = {"wire": {"url": self.url}, "direct": {"path": str(self.served.data)}}
        self._open = ExitStack()
        self.client = self._open.enter_context(Client(self.url, group="options"))

    def send(self, topic: str, start: int, count: int) -> None:
        for number in range(start, start + count):
            tag = TAGS[number % len(TAGS)]
            self.client.send(topic, str(number), tag=tag, key=number, properties={"colour": "green", "n": str(number)})

    def close(self) -> None:
        self._open.close()
        self.served.stop()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("options"))
    yield made
    made.close()


def later() -> int:
    """A time after that of every message so far, and before that of every later one.

    The broker's time runs with the monotonic clock since its start: it may be some milliseconds before or behind the wall clock's.
    """
    after_ms = time.time_ns() // 1_000_000 + 50
    wait_until(lambda: time.time_ns() // 1_000_000 > after_ms + 50, "the time after the messages")
    return after_ms


@pytest.fixture(scope="module")
def orders(installation: Installation) -> tuple[int, int]:
    """Two bursts of 60 messages. Returns times: (before the second burst and after the first, after both), ms."""
    installation.send("orders", 0, 60)
    between_ms = later()
    installation.send("orders", 60, 60)
    after_ms = later()
    return between_ms, after_ms


def on_both(installation: Installation, run: Callable[[dict[str, str]], Any]) -> Any:
    """What ``run`` returns for the options of a path, which must be the same for both."""
    found = {name: run(options) for name, options in installation.paths.items()}
    assert found["wire"] == found["direct"]
    return found["wire"]


def numbers(spark: Any, options: dict[str, str]) -> list[int]:
    frame = spark.read.format("halfmq").options(columns="value", **options).load()
    return sorted(int(bytes(row.value)) for row in spark_queries.again(frame.collect))


class Streamed(NamedTuple):
    """What a query read: rows of each batch, offsets after each, and the numbers of all messages."""

    batches: list[int]
    offsets: list[Any]
    numbers: list[int]


def stream(spark: Any, work: Path, options: dict[str, str]) -> tuple[Streamed, Any]:
    """A query until it has caught up, and its last progress."""
    frame = spark.readStream.format("halfmq").options(columns="value", startingOffsets="earliest", **options).load()
    found: list[list[Any]] = []
    writer = (
        frame.writeStream.foreachBatch(lambda rows, batch: found.append(rows.collect()))
        .option("checkpointLocation", str(work))
        .trigger(availableNow=True)
    )
    query = spark_queries.run(writer.start)
    files = sorted((work / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offsets = [json.loads(path.read_text().splitlines()[2])["queues"] for path in files]
    numbers = sorted(int(bytes(row.value)) for rows in found for row in rows)
    return Streamed([len(rows) for rows in found if rows], offsets, numbers), query.lastProgress


def test_a_batch_between_two_times(spark: Any, installation: Installation, orders: tuple[int, int]) -> None:
    between_ms, after_ms = orders

    def read(**more: str) -> list[int]:
        return on_both(  # type: ignore[no-any-return]
            installation, lambda path: numbers(spark, {"subscribe": "orders", **path, **more})
        )

    assert read(startingTimestamp=str(between_ms)) == list(range(60, 120))
    assert read(endingTimestamp=str(between_ms)) == list(range(60))
    assert read(startingTimestamp=str(between_ms), endingTimestamp=str(after_ms)) == list(range(60, 120))
    some = json.dumps({"orders": {"0": between_ms}})
    of_queue_0 = read(startingOffsetsByTimestamp=some, endingOffsetsByTimestamp=some)
    assert 0 < len(of_queue_0) < 120, "nothing of queue 0, and all of the others"
    assert read(startingTimestamp=str(after_ms), startingOffsetsByTimestampStrategy="latest") == []
    for path in installation.paths.values():
        with pytest.raises(QueryFailed, match=f"no message at or after {after_ms} ms"):
            numbers(spark, {"subscribe": "orders", **path, "startingTimestamp": str(after_ms)})


def test_a_stream_of_one_tag_that_starts_at_a_time(
    spark: Any, installation: Installation, orders: tuple[int, int], tmp_path: Path
) -> None:
    def run(path: dict[str, str]) -> Streamed:
        given = {"maxOffsetsPerTrigger": "50", "tags": '["red"]', "startingTimestamp": str(orders[0])}
        return stream(spark, tmp_path / next(iter(path)), {"subscribe": "orders", **path, **given})[0]

    batches, offsets, found = on_both(installation, run)
    assert found == [number for number in range(60, 120) if number % 3 == 0]
    assert [sum(each["orders"].values()) for each in offsets] == [110, 120], "the limit counts before the filter"
    assert sum(batches) == len(found)


def test_a_batch_with_one_of_two_tags(spark: Any, installation: Installation, orders: tuple[int, int]) -> None:
    found = on_both(installation, lambda path: numbers(spark, {"subscribe": "orders", **path, "tags": "red || yellow"}))
    assert found == [number for number in range(120) if number % 3 == 0]


def test_bytes_limit_the_batches_of_a_stream_alike(
    spark: Any, installation: Installation, orders: tuple[int, int], tmp_path: Path
) -> None:
    # docs/spark-options.md says that nobody can set what progress calls a source. If this fails with a later Spark, see what it offers.
    called = r"org\.apache\.spark\..*\.PythonMicroBatchStreamWithTriggerAvailableNow@[0-9a-f]+"

    def run(path: dict[str, str]) -> Streamed:
        limited = {"maxBytesPerTrigger": "16k", "minOffsetsPerTrigger": "1000"}
        found, progress = stream(spark, tmp_path / next(iter(path)), {"subscribe": "orders", **path, **limited})
        assert re.fullmatch(called, progress.sources[0].description)
        return found

    batches, _, found = on_both(installation, run)
    assert found == list(range(120))
    assert len(batches) > 1
    assert max(batches) < 16_384 // 120, "a stored message takes more than 120 bytes"


def test_tasks_have_at_most_the_requested_messages(
    spark: Any, installation: Installation, orders: tuple[int, int]
) -> None:
    def partitions(path: dict[str, str]) -> list[int]:
        frame = spark.read.format("halfmq").options(
            subscribe="orders", columns="offset", maxRecordsPerPartition="25", **path
        )
        loaded = frame.load()
        # docs/spark-options.md says that nobody can set what plans call a source. If this fails with a later Spark, see what it offers.
        plan = loaded._jdf.queryExecution().executedPlan().toString()
        assert re.search(r"BatchScan halfmq\[offset#\d+L\] \(Python\)", plan)
        return [len(part) for part in loaded.rdd.glom().collect()]

    assert on_both(installation, partitions) == [24] * 5


def test_headers_as_in_kafkas_source(spark: Any, installation: Installation, orders: tuple[int, int]) -> None:
    def headers(path: dict[str, str]) -> Any:
        frame = spark.read.format("halfmq").options(subscribe="orders", includeHeaders="true", **path).load()
        assert frame.columns[-1] == "headers"
        rows = frame.where("cast(value as string) = '7'").selectExpr(
            "transform(headers, h -> concat(h.key, '=', cast(h.value as string))) as all"
        )
        return [row["all"] for row in rows.collect()]

    assert on_both(installation, headers) == [["colour=green", "n=7"]]


def test_a_pattern_finds_topics_that_are_created_later(spark: Any, installation: Installation, tmp_path: Path) -> None:
    """And those that the pattern matches only in part are left out."""
    found: dict[str, list[int]] = {name: [] for name in installation.paths}

    def start(name: str) -> Any:
        frame = spark.readStream.format("halfmq").options(columns="value", startingOffsets="earliest")
        frame = frame.options(subscribePattern="parts-.*|no-such", **installation.paths[name]).load()
        writer = frame.writeStream.foreachBatch(
            lambda rows, batch: found[name].extend(int(bytes(row.value)) for row in rows.collect())
        )
        writer = writer.option("checkpointLocation", str(tmp_path / name)).trigger(processingTime="0 seconds")
        return spark_queries.start(writer.start, lambda query: found[name])

    installation.send("parts-eu", 0, 5)
    queries = {name: start(name) for name in installation.paths}
    try:
        installation.send("spares", 100, 5)
        installation.send("parts-us", 5, 5)
        for name, query in queries.items():
            spark_queries.until(query, lambda name=name: len(found[name]) >= 10, "topic created later")
            assert sorted(found[name]) == list(range(10))
    finally:
        for query in queries.values():
            query.stop()
    assert numbers(spark, {**installation.paths["wire"], "subscribePattern": "parts"}) == []
