"""Spark's sink and the jobs of ``halfmq pipeline`` against an unchanged Apache RocketMQ broker.

Exactly once is possible into tables. Into topics of RocketMQ it is at least once, if the query asks for that, and refused otherwise.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.errors import HalfmqError
from halfmq.spark.jobs import archive, ingest, replay, tables, transactions
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import JobFailed
from tests.compat.stock_broker import StockBroker
from tests.spark.conftest import spark as spark
from tests.support import spark_queries, stalling_sink
from tests.support.spark_queries import QueryFailed, again
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
thorough = pytest.mark.thorough

VERSION: Final = "5.5.0"
ROWS: Final = 300
BATCH_ROWS: Final = 60
#: Of the input: what the sink writes.
COLUMNS: Final = "value,key,tag,keys,properties"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockBroker]:
    with StockBroker(VERSION, tmp_path_factory.mktemp("stock")) as made:
        with Client(url(made), group="service") as mq:
            mq.send_many(
                "in",
                [
                    compose(
                        "in", {"id": number}, tag=f"tag{number % 3}", keys=[f"k{number}", f"second{number}"],
                        properties={"number": str(number)},
                    )
                    for number in range(ROWS)
                ],
            )  # fmt: skip
        yield made
        made.kill_broker()  # nothing is needed of it: its orderly end takes 15 s


def url(stock: StockBroker) -> str:
    return f"rocketmq://{stock.names}"


def read(spark: Any, stock: StockBroker, topic: str, columns: str) -> list[Any]:
    given = {"url": url(stock), "subscribe": topic, "columns": columns}
    found: list[Any] = spark.read.format("halfmq").options(**given).load().collect()
    return found


def content(row: Any) -> tuple[Any, ...]:
    return bytes(row.value), bytes(row.key), row.tag, row["keys"], row.properties["number"]


def query(spark: Any, stock: StockBroker, directory: Path, sink: str = "halfmq", **given: str) -> Any:
    """A stream from "in" to "out", not started."""
    stream = (
        spark.readStream.format("halfmq")
        .options(url=url(stock), subscribe="in", startingOffsets="earliest", columns=COLUMNS, brokerTimeout="300s")
        .options(maxOffsetsPerTrigger=str(BATCH_ROWS))
        .load()
        .withColumn("properties", _own_properties())
        .selectExpr("*", "if(properties['number'] % 2 = 0, tag, null) as sharding_key")
    )
    options = {"url": url(stock), "topic": "out", "checkpointLocation": str(directory / "checkpoint")}
    options |= {"brokerTimeout": "300s", **given}
    return stream.writeStream.format(sink).options(**options).trigger(availableNow=True)


def _own_properties() -> Any:
    from pyspark.sql import functions as f

    return f.map_filter("properties", lambda name, _: name == "number")


@thorough
def test_stream_loses_no_row_when_the_broker_is_killed(spark: Any, stock: StockBroker, tmp_path: Path) -> None:
    """It is killed in the middle of a task. Half of the rows have a sharding key, so they must wait for their queue."""
    spark.dataSource.register(stalling_sink.StallingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    (tmp_path / "moment").write_text(f"{stalling_sink.IN_WRITE} 1")
    written = query(spark, stock, tmp_path, sink="halfmq_stalling", guarantee="atLeastOnce", maxHalfBatchBytes="4k")
    stalled = tmp_path / "stalled"
    running = spark_queries.start(written.start, lambda query: stalled.exists())
    try:
        assert stalled.exists()
        stock.kill_broker()
        (tmp_path / "go").touch()
        stock.start_broker()
        spark_queries.until(running, lambda: not running.isActive, "end of the query")
    finally:
        running.stop()
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert running.exception() is None
    sent = {content(row) for row in read(spark, stock, "in", COLUMNS)}
    assert len(sent) == ROWS
    found: list[Any] = []

    def all_visible() -> bool:
        # RocketMQ makes messages visible a little after it has confirmed them.
        found[:] = read(spark, stock, "out", f"{COLUMNS},message_id")
        return {content(row) for row in found} >= sent

    wait_until(all_visible, "last row")
    assert {content(row) for row in found} == sent
    messages = {(row.message_id, content(row)) for row in found}
    assert len({name for name, _ in messages}) == len(messages) == ROWS  # what came twice has one id


def test_a_topic_is_read_and_exactly_once_is_refused_with_what_to_set(
    spark: Any, stock: StockBroker, tmp_path: Path
) -> None:
    rows = {content(row) for row in read(spark, stock, "in", COLUMNS)}
    assert rows == {(b'{"id":%d}' % n, b"k%d" % n, f"tag{n % 3}", f"k{n} second{n}", str(n)) for n in range(ROWS)}
    with pytest.raises(QueryFailed, match=r"does not know half batches.*guarantee=atLeastOnce.*visible one by one"):
        spark_queries.run(query(spark, stock, tmp_path, topic="refused").start)


@thorough
def test_jobs_write_tables_exactly_once(spark: Any, stock: StockBroker, tmp_path: Path) -> None:
    bronze = ingest.Settings(
        url=url(stock), topics=("in",), output=str(tmp_path / "ingest"), schema="id long", max_rows=150
    )
    kept = archive.Settings(url=url(stock), topics=("in",), output=str(tmp_path / "archive"), max_rows=150)
    for _ in range(2):
        assert again(lambda: ingest.run(bronze, SparkSettings(), print)) == 0
        assert again(lambda: archive.run(kept, SparkSettings(), print)) == 0
        silver = tables.read(spark, tmp_path / "ingest" / "silver").select("id").collect()
        assert sorted(row.id for row in silver) == list(range(ROWS))
        assert tables.read(spark, tmp_path / "ingest" / "bronze").count() == ROWS
        archived = tables.read(spark, tmp_path / "archive")
        assert archived.count() == archived.select("broker", "topic", "queue", "offset").distinct().count() == ROWS


@thorough
def test_what_only_halfmq_can_do_is_refused(spark: Any, stock: StockBroker, tmp_path: Path) -> None:
    here: dict[str, Any] = {"url": url(stock), "topics": ("in",)}
    with pytest.raises(HalfmqError, match="Apache RocketMQ keeps no table of transactions"):
        transactions.run(transactions.Settings(url=url(stock), output=str(tmp_path / "tx")), SparkSettings(), print)
    replayed = replay.Settings(to_url=url(stock), to_topic="again", state=str(tmp_path / "replay"), **here)
    with pytest.raises(JobFailed, match=r"chunk 1 of 1: .*does not know half batches"):
        again(lambda: replay.run(replayed, SparkSettings(), print))
    held = archive.Settings(output=str(tmp_path / "held"), hold="archive", **here)
    with pytest.raises(JobFailed, match="hold needs a halfmq broker"):
        again(lambda: archive.run(held, SparkSettings(), print))
