"""Streams through Spark, from the store's files: limits, restarts, retention."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import spark_queries
from tests.support.spark_queries import QueryFailed
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
        writer = (
            frame.selectExpr("cast(cast(value as string) as int) as number")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.work / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = spark_queries.run(lambda: writer.start(str(self.work / "table")))
        self.progress = [progress for progress in query.recentProgress if progress.numInputRows]
        return [progress.numInputRows for progress in self.progress]

    def forget_the_last_batch(self) -> None:
        """As a crash leaves it that came after the batch was planned and before it was done."""
        last = max(int(path.name) for path in (self.work / "checkpoint" / "commits").glob("[0-9]*"))
        for log in ("checkpoint/commits", "table/_spark_metadata"):
            for name in (f"{last}", f".{last}.crc"):
                (self.work / log / name).unlink()

    def numbers(self) -> list[int]:
        return sorted(row.number for row in self.spark.read.parquet(str(self.work / "table")).collect())

    def offsets(self) -> list[Any]:
        """The source's offset after each batch, as the checkpoint has it."""
        files = sorted((self.work / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[2]) for path in files]


def test_a_young_topic_then_limited_batches_of_which_the_last_is_run_again(
    spark: Any, writer: StoreWriter, tmp_path: Path
) -> None:
    query = Query(spark, writer, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert query.run() == []
    writer.topic("orders", 2)
    send(writer, 0, 100)
    assert query.run() == [40, 40, 20]
    newest = query.progress[0].sources[0]
    assert json.loads(newest.latestOffset)["queues"] == {"orders": {"0": 50, "1": 50}}
    assert json.loads(newest.endOffset)["queues"] == {"orders": {"0": 20, "1": 20}}
    query.forget_the_last_batch()
    send(writer, 100, 30)
    assert query.run() == [20, 30], "the same batch as before, whatever has come since"
    assert query.numbers() == list(range(130))
    last = query.offsets()[-1]
    assert last["queues"] == {"orders": {"0": 65, "1": 65}}
    assert (last["v"], last["store"], last["position"]) == (1, writer.store_id.hex(), writer.log.end)


def test_retention_before_the_stream_stops_it_or_is_passed_over_and_another_store_stops_it(
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
    with pytest.raises(QueryFailed, match="past retention"):
        query.run()
    query.source["failOnDataLoss"] = "false"
    assert query.run() == [kept]
    other = StoreWriter(tmp_path / "other")
    other.topic("orders", 2)
    send(other, 0, 99)
    query.source |= {"path": str(other.directory), "failOnDataLoss": "true"}
    with pytest.raises(QueryFailed, match=f"this is store {other.store_id.hex()}"):
        query.run()
