"""Streams through Spark, from the store's files: limits, restarts, retention."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.store_writer import StoreWriter

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    made = StoreWriter(tmp_path / "data")
    made.publish()
    return made


def send(writer: StoreWriter, start: int, count: int, *, topic: str = "orders") -> None:
    for number in range(start, start + count):
        writer.send(topic, number % 2, str(number).encode())
    writer.publish()


class Query:
    """A stream into Parquet that runs until it has caught up; each call is a new run on the same checkpoint."""

    def __init__(self, spark: Any, writer: StoreWriter, work: Path, **options: str) -> None:
        self.spark = spark
        self.work = work
        self.source = {"path": str(writer.directory), "subscribe": "orders", "columns": "value", **options}

    def run(self) -> list[int]:
        """Rows of each batch."""
        frame = self.spark.readStream.format("halfmq").options(**self.source).load()
        query = (
            frame.selectExpr("cast(cast(value as string) as int) as number")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.work / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.work / "table"))
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def numbers(self) -> list[int]:
        return sorted(row.number for row in self.spark.read.parquet(str(self.work / "table")).collect())

    def offsets(self) -> list[Any]:
        """The source's offset after each batch, as the checkpoint has it."""
        files = sorted((self.work / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[2]) for path in files]


def test_a_young_topic_then_limited_batches_then_a_restart(spark: Any, writer: StoreWriter, tmp_path: Path) -> None:
    query = Query(spark, writer, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert query.run() == []
    writer.topic("orders", 2)
    writer.publish()
    assert query.run() == []
    send(writer, 0, 100)
    assert query.run() == [40, 40, 20]
    send(writer, 100, 30)
    assert query.run() == [30]
    assert query.run() == []
    assert query.numbers() == list(range(130))
    last = query.offsets()[-1]
    assert last["queues"] == {"orders": {"0": 65, "1": 65}}
    assert (last["v"], last["store"], last["position"]) == (1, writer.store_id.hex(), writer.log.end)


def test_a_batch_that_was_not_committed_is_run_again_the_same(spark: Any, writer: StoreWriter, tmp_path: Path) -> None:
    writer.topic("orders", 2)
    send(writer, 0, 10)
    query = Query(spark, writer, tmp_path, startingOffsets="earliest")
    assert query.run() == [10]
    # As a crash leaves it that came after the batch was planned and before it was done.
    for leftover in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        leftover.unlink()
    for path in (tmp_path / "table").rglob("*"):
        if path.is_file():
            path.unlink()
    send(writer, 10, 5)
    assert query.run() == [10, 5]
    assert query.numbers() == list(range(15))


def test_retention_before_the_stream_stops_it_or_is_passed_over(
    spark: Any, writer: StoreWriter, tmp_path: Path
) -> None:
    writer.topic("orders", 2)
    send(writer, 0, 4)
    query = Query(spark, writer, tmp_path, startingOffsets="earliest")
    assert query.run() == [4]
    for number in range(4, 60):
        writer.send("orders", number % 2, str(number).encode().ljust(4_000))
    writer.trim()
    kept = sum(end - first for first, end in (writer.indexes.queues.bounds(1, queue) for queue in (0, 1)))
    assert 0 < kept < 56
    with pytest.raises(Exception, match="past retention"):
        query.run()
    query.source["failOnDataLoss"] = "false"
    assert query.run() == [kept]


def test_another_store_under_the_checkpoint_stops_the_stream(spark: Any, writer: StoreWriter, tmp_path: Path) -> None:
    writer.topic("orders", 2)
    send(writer, 0, 4)
    query = Query(spark, writer, tmp_path, startingOffsets="earliest")
    query.run()
    other = StoreWriter(tmp_path / "other")
    other.topic("orders", 2)
    send(other, 0, 9)
    query.source["path"] = str(other.directory)
    with pytest.raises(Exception, match=f"this is store {other.store_id.hex()}"):
        query.run()


def test_progress_shows_what_is_newest(spark: Any, writer: StoreWriter, tmp_path: Path) -> None:
    writer.topic("orders", 2)
    send(writer, 0, 6)
    frame = spark.readStream.format("halfmq").options(
        path=str(writer.directory), subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="2"
    )
    query = (
        frame.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    first = next(progress for progress in query.recentProgress if progress.numInputRows).sources[0]
    assert json.loads(first.latestOffset)["queues"] == {"orders": {"0": 3, "1": 3}}
    assert json.loads(first.endOffset)["queues"] == {"orders": {"0": 1, "1": 1}}
