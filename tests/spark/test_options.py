"""The options of the source through Spark, over the network and from files: equal rows and equal offsets on both paths."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.served import Served

from halfmq.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

TAGS = ("red", "blue", None)


class Installation:
    """A running broker, its two ways of reading, and what was sent."""

    def __init__(self, work: Path) -> None:
        self.served = Served(work / "data", work / "broker.log", "--segment-bytes", str(1 << 20))
        self.served.start()
        self.url = f"rocketmq://127.0.0.1:{self.served.name_port}"
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


@pytest.fixture(scope="module")
def orders(installation: Installation) -> Callable[[], tuple[int, int]]:
    """Two bursts of 60 messages. Returns times between: (before the second burst, after it), ms."""
    installation.send("orders", 0, 60)
    time.sleep(0.05)
    between_ms = round(time.time() * 1_000)
    time.sleep(0.05)
    installation.send("orders", 60, 60)
    time.sleep(0.05)
    return lambda: (between_ms, round(time.time() * 1_000))


def on_both(installation: Installation, run: Callable[[dict[str, str]], Any]) -> Any:
    """What ``run`` returns for the options of a path, which must be the same for both."""
    found = {name: run(options) for name, options in installation.paths.items()}
    assert found["wire"] == found["direct"]
    return found["wire"]


def numbers(spark: Any, options: dict[str, str]) -> list[int]:
    frame = spark.read.format("halfmq").options(columns="value", **options).load()
    return sorted(int(bytes(row.value)) for row in frame.collect())


def stream(spark: Any, work: Path, options: dict[str, str]) -> Any:
    """A query until it has caught up: rows of each batch, offsets after each, and the numbers of all messages."""
    frame = spark.readStream.format("halfmq").options(columns="value", startingOffsets="earliest", **options).load()
    query = (
        frame.selectExpr("cast(cast(value as string) as int) as number")
        .writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True).start(str(work / "table"))
    )  # fmt: skip
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    files = sorted((work / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offsets = [json.loads(path.read_text().splitlines()[2])["queues"] for path in files]
    rows = spark.read.schema("number int").parquet(str(work / "table")).collect()
    return batches, offsets, sorted(row.number for row in rows)


def test_a_batch_between_two_times(spark: Any, installation: Installation, orders: Any) -> None:
    between_ms, after_ms = orders()

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
        with pytest.raises(Exception, match=f"no message at or after {after_ms} ms"):
            numbers(spark, {"subscribe": "orders", **path, "startingTimestamp": str(after_ms)})


def test_a_stream_starts_at_a_time(spark: Any, installation: Installation, orders: Any, tmp_path: Path) -> None:
    between_ms, _ = orders()

    def run(path: dict[str, str]) -> Any:
        return stream(
            spark, tmp_path / next(iter(path)), {"subscribe": "orders", **path, "startingTimestamp": str(between_ms)}
        )

    _, _, found = on_both(installation, run)
    assert found == list(range(60, 120))


def test_only_messages_with_one_of_the_tags(
    spark: Any, installation: Installation, orders: Any, tmp_path: Path
) -> None:
    def read(path: dict[str, str]) -> list[int]:
        return numbers(spark, {"subscribe": "orders", **path, "tags": "red || yellow"})

    red = [number for number in range(120) if number % 3 == 0]
    assert on_both(installation, read) == red

    def run(path: dict[str, str]) -> Any:
        limited = {"maxOffsetsPerTrigger": "50", "tags": '["red"]'}
        return stream(spark, tmp_path / next(iter(path)), {"subscribe": "orders", **path, **limited})

    batches, offsets, found = on_both(installation, run)
    assert found == red
    assert [sum(each["orders"].values()) for each in offsets] == [50, 100, 120], "the limit counts before the filter"
    assert sum(batches) == len(red)


def test_bytes_limit_the_batches_of_a_stream_alike(
    spark: Any, installation: Installation, orders: Any, tmp_path: Path
) -> None:
    def run(path: dict[str, str]) -> Any:
        limited = {"maxBytesPerTrigger": "16k", "minOffsetsPerTrigger": "1000"}
        return stream(spark, tmp_path / next(iter(path)), {"subscribe": "orders", **path, **limited})

    batches, _, found = on_both(installation, run)
    assert found == list(range(120))
    assert len(batches) > 1
    assert max(batches) < 16_384 // 120, "a stored message takes more than 120 bytes"


def test_tasks_have_at_most_the_requested_messages(spark: Any, installation: Installation, orders: Any) -> None:
    def partitions(path: dict[str, str]) -> list[int]:
        frame = spark.read.format("halfmq").options(
            subscribe="orders", columns="offset", maxRecordsPerPartition="25", **path
        )
        return [len(part) for part in frame.load().rdd.glom().collect()]

    assert on_both(installation, partitions) == [24] * 5


def test_headers_as_in_kafkas_source(spark: Any, installation: Installation, orders: Any) -> None:
    def headers(path: dict[str, str]) -> Any:
        frame = spark.read.format("halfmq").options(subscribe="orders", includeHeaders="true", **path).load()
        assert frame.columns[-1] == "headers"
        rows = frame.where("cast(value as string) = '7'").selectExpr(
            "transform(headers, h -> concat(h.key, '=', cast(h.value as string))) as all"
        )
        return [row["all"] for row in rows.collect()]

    assert on_both(installation, headers) == [["colour=green", "n=7"]]


def test_a_pattern_finds_topics_that_are_created_later(spark: Any, installation: Installation, tmp_path: Path) -> None:
    installation.send("parts-eu", 0, 5)

    def run(path: dict[str, str]) -> Any:
        return stream(spark, tmp_path / next(iter(path)), {**path, "subscribePattern": "parts-.*|no-such"})

    assert on_both(installation, run)[2] == list(range(5))
    installation.send("parts-us", 5, 5)
    installation.send("spares", 100, 5)
    _, offsets, found = on_both(installation, run)
    assert found == list(range(10))
    assert set(offsets[-1]) == {"parts-eu", "parts-us"}
    nothing = on_both(installation, lambda path: numbers(spark, {**path, "subscribePattern": "parts"}))
    assert nothing == []


def test_spark_decides_what_plans_and_progress_call_the_source(
    spark: Any, installation: Installation, orders: Any, tmp_path: Path
) -> None:
    """docs/spark-options.md says that neither can be set. If this fails with a later Spark, see what it offers."""
    path = installation.paths["direct"]
    frame = spark.read.format("halfmq").options(subscribe="orders", columns="value", **path).load()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert re.search(r"BatchScan halfmq\[value#\d+\] \(Python\)", plan)
    query = (
        spark.readStream.format("halfmq").options(subscribe="orders", startingOffsets="earliest", **path).load()
        .writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    description = query.lastProgress.sources[0].description
    assert re.fullmatch(r"org\.apache\.spark\..*\.PythonMicroBatchStreamWithTriggerAvailableNow@[0-9a-f]+", description)
