"""The sink through Spark, against a broker in a process of its own: rows are visible exactly once, however the driver dies.

The letters are those of the table in docs/spark-options.md, "What happens if the query is killed". One driver process runs a query for each
of the moments at which it is to be killed; each query stops at its moment, and one SIGKILL of the process group ends them all
(``tests.support.sink_driver``). Then each is started again here, on its checkpoint.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.support import sink_driver, spark_queries, stalling_sink
from tests.support.served import Served
from tests.support.sink_runs import arrow, options
from tests.support.spark_queries import QueryFailed
from tests.support.visible import visible
from tests.support.waiting import wait_until

from halfmq.client.sync import Client
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import decide, task
from halfmq.spark.sink.checkpoint import digest_of
from halfmq.spark.sink.task import Attempt

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: Rows in each input topic, of two batches; half of a row's bytes fill a half batch of 4 KiB.
ROWS: Final = 20
#: When each query of the driver that is killed stops.
MOMENTS: Final = {
    "a": f"{stalling_sink.BEFORE_COMMIT} 1",
    "c": f"{stalling_sink.IN_WRITE} 1",
    "d1": f"{stalling_sink.KILL_FIRST_WORKER} 1",
    "e": "",
    "f1": f"{stalling_sink.AFTER_COMMIT} 1",
    "f2": f"{stalling_sink.AFTER_COMMIT} 1",
    "z": f"{stalling_sink.BEFORE_COMMIT} 1",
}
thorough = pytest.mark.thorough


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log", "--checkpoint-interval-ms", "1000")
    served.start()
    yield served
    served.stop()
    shutil.rmtree(served.data)


def rows(name: str, start: int, count: int) -> list[bytes]:
    return [f"{name}-{number}".encode().ljust(2_500) for number in range(start, start + count)]


def send(broker: Served, name: str, start: int, count: int) -> None:
    with Client(broker.url, group="service") as mq:
        for row in rows(name, start, count):
            mq.send(f"in-{name}", row)


class Row:
    """A query, its checkpoint, and what is expected in its output."""

    def __init__(self, spark: Any, broker: Served, directory: Path) -> None:
        self.spark, self.broker, self.directory = spark, broker, directory
        self.name = directory.name

    def run(self, **options: Any) -> None:
        """Run it here until it has caught up. Raises its error."""
        sink_driver.run(self.spark, self.broker.url, self.directory, **options)

    def stall(self, where: str, batch: int) -> None:
        self.directory.mkdir()
        (self.directory / "moment").write_text(f"{where} {batch}")

    def logged(self, log: str) -> set[int]:
        return {int(path.name) for path in (self.directory / "checkpoint" / log).glob("[0-9]*")}

    def visible(self) -> list[bytes]:
        return visible(self.broker, f"out-{self.name}")

    def assert_first_batch(self) -> None:
        """Its rows are visible and no others; which ones they are depends on the queues of the input."""
        found = self.visible()
        assert len(set(found)) == len(found) == sink_driver.BATCH_ROWS
        assert set(found) < set(rows(self.name, 0, ROWS))

    def assert_once(self, count: int = ROWS) -> None:
        assert sorted(self.visible()) == sorted(rows(self.name, 0, count))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, broker: Served, sink: Any) -> tuple[Path, str]:
    """A driver that was killed when all its queries were at their moments: their directories, and how the query of row z had ended."""
    work = tmp_path_factory.mktemp("rows")
    for name in MOMENTS:
        send(broker, name, 0, ROWS)
    with sink_driver.stopped_at(MOMENTS, broker.url, work) as end_of:
        row = Row(sink, broker, work / "z")
        (row.directory / "moment").unlink()
        row.run()
        row.assert_once()
        (row.directory / "go").touch()
        ended = end_of("z")
    return work, ended


@pytest.fixture
def row(request: pytest.FixtureRequest, killed: tuple[Path, str], broker: Served, sink: Any) -> Row:
    """The row of the kill table that the test's name begins with."""
    return Row(sink, broker, killed[0] / request.node.name.split("_")[1])


# --- kill -9 of the driver ------------------------------------------------------------------------------------


def test_killed_between_the_decision_and_its_note(sink: Any, broker: Served, tmp_path: Path) -> None:
    """The broker has decided the batch, and Spark does not know: its rows are visible once before the restart, and once after it."""
    send(broker, "once", 0, ROWS)
    with sink_driver.stopped_at({"once": f"{stalling_sink.AFTER_COMMIT} 1"}, broker.url, tmp_path):
        row = Row(sink, broker, tmp_path / "once")
        row.assert_once()
    assert (row.logged("offsets"), row.logged("commits")) == ({0, 1}, {0})
    row.run()
    assert row.logged("commits") == {0, 1}
    row.assert_once()


@thorough
def test_a_killed_before_the_decision(row: Row) -> None:
    assert (row.logged("offsets"), row.logged("commits")) == ({0, 1}, {0})
    row.assert_first_batch()
    row.run()
    row.assert_once()


@thorough
def test_c_killed_in_a_task(row: Row) -> None:
    assert row.logged("commits") == {0}
    row.assert_first_batch()
    row.run()
    row.assert_once()


@thorough
def test_d1_killed_worker_of_a_task_that_is_tried_again(row: Row) -> None:
    assert (row.directory / "stalled").exists()
    assert row.logged("commits") == {0, 1}
    row.assert_once()


@thorough
def test_e_killed_after_the_batch(row: Row) -> None:
    assert row.logged("commits") == {0, 1}
    send(row.broker, "e", ROWS, 10)
    row.run()
    assert row.logged("commits") == {0, 1, 2}
    row.assert_once(ROWS + 10)


@thorough
def test_f1_restarted_with_another_limit(row: Row) -> None:
    row.run(rows=15)
    row.assert_once()


@thorough
def test_f2_lost_offsets_and_another_range_stop_the_query(row: Row) -> None:
    for leftover in (row.directory / "checkpoint" / "offsets").glob("*1*"):
        leftover.unlink()
    send(row.broker, "f2", ROWS, 10)
    for _ in range(2):
        with pytest.raises(QueryFailed, match="decided with other content"):
            row.run(rows=15)
        assert row.logged("commits") == {0}
        row.assert_once()


@thorough
def test_d2_task_that_fails_for_good(tmp_path: Path, broker: Served, sink: Any) -> None:
    row = Row(sink, broker, tmp_path / "d2")
    row.stall(stalling_sink.RAISE_IN_WRITE, 1)
    send(broker, "d2", 0, ROWS)
    with pytest.raises(QueryFailed, match="as the test wants it"):
        row.run()
    assert (row.directory / "aborted-1").exists()
    row.assert_first_batch()
    (row.directory / "moment").unlink()
    row.run()
    row.assert_once()


@thorough
def test_d3_commit_that_fails_after_the_decision(tmp_path: Path, broker: Served, sink: Any) -> None:
    row = Row(sink, broker, tmp_path / "d3")
    row.stall(stalling_sink.RAISE_AFTER_COMMIT, 1)
    send(broker, "d3", 0, ROWS)
    with pytest.raises(QueryFailed, match="as the test wants it"):
        row.run()
    assert (row.directory / "aborted-1").exists()
    row.assert_once()
    (row.directory / "moment").unlink()
    row.run()
    assert row.logged("commits") == {0, 1}
    row.assert_once()


@thorough
def test_z_paused_driver_changes_nothing_and_stops(killed: tuple[Path, str], row: Row) -> None:
    assert "CONCURRENT" in killed[1]
    row.assert_once()


@thorough
def test_second_driver_on_a_checkpoint_stops_itself_or_the_first_one(sink: Any, broker: Served, tmp_path: Path) -> None:
    """Both run. Spark lets one of them write a batch into the checkpoint; the other one stops. All rows are visible once, by the one that
    goes on.
    """
    send(broker, "two", 0, ROWS)
    with sink_driver.stopped_at({"two": ""}, broker.url, tmp_path):
        row = Row(sink, broker, tmp_path / "two")
        second = sink_driver.start(sink, broker.url, row.directory)
        try:
            first_ended, sent = row.directory / "ended", ROWS

            def has_one_stopped() -> bool:
                nonlocal sent
                send(broker, "two", sent, 1)
                sent += 1
                return first_ended.exists() or not second.isActive

            wait_until(has_one_stopped, "end of one of two drivers")
            reason = first_ended.read_text() if first_ended.exists() else str(second.exception())
            # Spark names the error class in some places, and not where it marks the end of a batch. The sink may be first.
            ways = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected", "only one run may write")
            assert any(way in reason for way in ways), reason
            send(broker, "two", sent, 10)
            wait_until(lambda: len(row.visible()) >= sent + 10, "rows of the driver that goes on")
            row.assert_once(sent + 10)
            assert first_ended.exists() == second.isActive
        finally:
            second.stop()


def test_broker_killed_while_a_task_sends_and_before_the_decision(broker: Served) -> None:
    """The task and the driver without Spark, which would only wait."""
    given = options(broker.name_port, topic="killed-broker", maxHalfBatchBytes="4k", brokerTimeout="60")
    batch = QueryBatch("killed-broker", 0, "run")
    kills = broker.kills

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            if number in (15, 30):
                broker.kill()
                broker.start()
            yield arrow(*rows("r", 2 * number, 2))

    prepared = task.write(batches(), given, Attempt(batch, "0.1"), 0, "")
    broker.kill()
    broker.start()
    for _ in range(2):
        decide.decide([prepared], given, batch, digest_of("input"))
        assert sorted(visible(broker, "killed-broker")) == sorted(rows("r", 0, 80))
    assert broker.kills == kills + 3


# --- batch writes, options and columns -----------------------------------------------------------------------


def test_batch_write_and_every_column_read_back(sink: Any, broker: Served) -> None:
    frame = sink.range(400).selectExpr(
        "encode(cast(id as string), 'utf-8') as value", "if(id % 2 = 0, 'even', 'odd') as topic", "concat('k', id) as key",
        "if(id % 3 = 0, null, concat('second', id)) as keys", "if(id % 5 = 0, null, concat('tag', id % 2)) as tag",
        "map('source', 'web', 'n', cast(id as string)) as properties", "concat('s', id % 7) as sharding_key",
        "if(id % 10 = 0, 2, null) as queue",
    )  # fmt: skip
    frame.write.format("halfmq").mode("append").options(url=broker.url).save()
    columns = "key,value,topic,queue,offset,tag,keys,message_id,properties"
    found = sink.read.format("halfmq").options(url=broker.url, subscribe="even,odd", columns=columns).load().collect()
    assert len(found) == len({row.message_id for row in found}) == 400
    queues: dict[tuple[str, str], set[int]] = {}
    seen = set()
    for row in found:
        number = int(row.value)
        seen.add(number)
        second = "" if number % 3 == 0 else f" second{number}"
        assert row.topic == ("odd" if number % 2 else "even")
        assert (bytes(row.key), row.keys) == (f"k{number}".encode(), f"k{number}{second}")
        assert row.tag == (None if number % 5 == 0 else f"tag{number % 2}")
        assert {"source": "web", "n": str(number), "__SHARDINGKEY": f"s{number % 7}"}.items() <= row.properties.items()
        if number % 10 == 0:
            assert row.queue == 2
        else:
            queues.setdefault((row.topic, f"s{number % 7}"), set()).add(row.queue)
    assert seen == set(range(400))
    assert len(queues) == 14
    assert {len(one) for one in queues.values()} == {1}
    assert len(set.union(*queues.values())) > 1


def test_rows_that_were_read_are_written_again(sink: Any, broker: Served) -> None:
    """Keys and headers as the source has them; what a message cannot have is written as docs/spark-options.md says, and read back."""

    def read(topic: str) -> Any:
        return sink.read.format("halfmq").options(url=broker.url, subscribe=topic, columns="Key,VALUE,headers").load()

    def write(frame: Any, topic: str) -> None:
        frame.write.format("halfmq").mode("append").options(url=broker.url, topic=topic).save()

    with Client(broker.url, group="service") as mq:
        mq.send("headers-1", b"1", key="é", properties={"b": "x\x01y", "a": "é"})
        mq.send("headers-1", b"2")
    write(read("headers-1"), "headers-2")
    first, second = ({bytes(row.value): row for row in read(topic).collect()} for topic in ("headers-1", "headers-2"))
    assert first == second
    assert [(one.key, bytes(one.value)) for one in second[b"1"].headers] == [("b", b"x\x01y"), ("a", "é".encode())]
    write(read("headers-2").selectExpr("VALUE", "KEY", "map('a', 'b') AS Headers"), "headers-3")
    assert {(bytes(row.value), row.headers[0].key) for row in read("headers-3").collect()} == {(b"1", "a"), (b"2", "a")}

    kafka = sink.createDataFrame([(b"\x00\xff", b"1"), (b"two words", None)], "key binary, value binary")
    with_value = kafka.where("value is not null")  # each row is a task's, and either of two would fail first
    for frame, said in ((with_value, r"base64\(key\)"), (kafka.selectExpr("value"), r"cast\('null' as binary\)")):
        with pytest.raises(Exception, match=said):
            write(frame, "kafka")
    write(kafka.selectExpr("base64(key) as key", "coalesce(value, cast('null' as binary)) as value"), "kafka")
    found = read("kafka").selectExpr(
        "unbase64(cast(key as string)) as key", "nullif(value, cast('null' as binary)) as value"
    )
    assert {tuple(row) for row in found.collect()} == {tuple(row) for row in kafka.collect()}


def test_rows_of_a_key_keep_their_order_at_any_number_of_tasks(sink: Any, broker: Served) -> None:
    """Task "10" comes after task "2": the order is Spark's, of partitions and then of rows, not that of names."""
    frame = sink.range(0, 1_200, 1, 12).selectExpr("cast(id as string) as value", "'one' as sharding_key")
    frame.write.format("halfmq").mode("append").options(url=broker.url, topic="tasks").save()
    assert [int(body) for body in visible(broker, "tasks")] == list(range(1_200))


def test_batch_write_with_a_version_is_written_once(sink: Any, broker: Served) -> None:
    def write(version: int, start: int) -> None:
        frame = sink.range(start, start + 10).selectExpr("cast(id as string) as value")
        given = {"url": broker.url, "topic": "versions", "txnAppId": "job", "txnVersion": str(version)}
        frame.write.format("halfmq").mode("append").options(**given).save()

    write(1, 0)
    write(1, 0)
    write(2, 10)
    with pytest.raises(Exception, match="is smaller than"):
        write(0, 20)
    assert sorted(map(int, visible(broker, "versions"))) == list(range(20))


def test_foreach_batch_writes_to_two_topics_with_one_pair(sink: Any, broker: Served, tmp_path: Path) -> None:
    """Delta's way of making ``foreachBatch`` exactly once: one txnAppId and txnVersion for all outputs. Once more from the same batch, as
    after a crash, nothing is written again.
    """
    topics = ("pair-orders", "pair-stock")

    def write(frame: Any, batch: int) -> None:
        for topic in topics:
            given = {"url": broker.url, "topic": topic, "txnAppId": "pair", "txnVersion": str(batch)}
            frame.write.format("halfmq").mode("append").options(**given).save()
        named = frame.selectExpr("value", "'pair-named' as topic")
        given = {"url": broker.url, "txnAppId": "pair", "txnVersion": str(batch)}
        named.write.format("halfmq").mode("append").options(**given).save()

    send(broker, "pair", 0, ROWS)
    for checkpoint in ("a", "b"):
        stream = sink.readStream.format("halfmq").options(
            url=broker.url,
            subscribe="in-pair",
            startingOffsets="earliest",
            columns="value",
            maxOffsetsPerTrigger=ROWS // 2,
        )
        location = str(tmp_path / checkpoint)
        query = stream.load().writeStream.foreachBatch(write).option("checkpointLocation", location)
        spark_queries.run(query.trigger(availableNow=True).start)
        for topic in (*topics, "pair-named"):
            assert sorted(visible(broker, topic)) == sorted(rows("pair", 0, ROWS)), topic


def test_second_stream_with_a_name_is_refused_by_name(sink: Any, broker: Served, tmp_path: Path) -> None:
    """Its batches would have the numbers of the first one's."""
    send(broker, "owner", 0, 1)

    def run(checkpoint: str, **options: str) -> None:
        stream = sink.readStream.format("halfmq").options(
            url=broker.url, subscribe="in-owner", startingOffsets="earliest", columns="value"
        )
        given = {"url": broker.url, "topic": "out-owner", "txnAppId": "owner", **options}
        query = stream.load().writeStream.format("halfmq").options(**given)
        query = query.option("checkpointLocation", str(tmp_path / checkpoint))
        spark_queries.run(query.trigger(availableNow=True).start)

    run("a")
    with pytest.raises(QueryFailed, match=r"query owner, topic out-owner belongs to stream .*, not to stream"):
        run("b")
    run("b", topic="other-owner")
    run("a")
    assert [visible(broker, topic) for topic in ("out-owner", "other-owner")] == [rows("owner", 0, 1)] * 2
    given = {"url": broker.url, "topic": "out-owner", "txnAppId": "owner", "txnVersion": "9"}
    batch_write = sink.range(1).selectExpr("'x' as value").write.format("halfmq").mode("append").options(**given)
    with pytest.raises(Exception, match=r"belongs to stream .*, not to batch writes"):
        batch_write.save()


@thorough
def test_rows_with_a_delay_become_visible_once_at_their_time_also_if_the_broker_is_killed(
    sink: Any, broker: Served
) -> None:
    """Four kinds of rows: without a delay, with one, for a point in time, and for one that has passed."""
    began = time.time()
    due = {1: began + 12, 2: began + 15}
    frame = sink.range(0, 400, 1, 2).selectExpr(
        "cast(id as string) as value",
        "if(id % 4 = 1, 12000 + id, null) as delay_ms",
        f"case id % 4 when 2 then timestamp_millis({round(due[2] * 1_000)} + id) when 3 then timestamp_millis(1) end as deliver_at",
    )

    def write() -> None:
        given = {"url": broker.url, "topic": "delayed", "txnAppId": "delays", "txnVersion": "1"}
        frame.write.format("halfmq").mode("append").options(**given).save()

    def numbers() -> list[int]:
        return sorted(map(int, visible(broker, "delayed")))

    write()
    broker.kill()
    broker.start()
    seen: dict[int, float] = {}

    def are_all_visible() -> bool:
        seen.update(dict.fromkeys(set(numbers()).difference(seen), time.time()))
        return len(seen) == 400

    wait_until(are_all_visible, "all rows")
    broker.kill()
    broker.start()
    assert numbers() == list(range(400))
    for number, at in seen.items():
        assert at >= due.get(number % 4, 0) + number / 1_000
    assert max(seen[number] for number in seen if number % 4 not in due) <= min(
        seen[number] for number in seen if number % 4 in due
    ), "what has no delay does not wait"
    write()
    assert numbers() == list(range(400))


def test_failed_batch_write_shows_nothing(sink: Any, broker: Served) -> None:
    frame = sink.range(0, 40, 1, 2).selectExpr("if(id = 39, null, rpad(id, 3000, '-')) as value")
    with pytest.raises(Exception, match="value is null in 1 of"):
        frame.write.format("halfmq").mode("append").options(
            url=broker.url, topic="failed", maxHalfBatchBytes="4k"
        ).save()
    assert visible(broker, "failed") == []


@pytest.mark.parametrize(
    ("given", "mode", "said"),
    [
        ({"topic": "t", "maxHalfBatch": "1"}, "append", "unknown option maxHalfBatch"),
        ({"topic": "t"}, "overwrite", "cannot be overwritten"),
    ],
)
def test_what_cannot_be_written_is_said_in_words(
    sink: Any, broker: Served, given: dict[str, str], mode: str, said: str
) -> None:
    frame = sink.range(1).selectExpr("'a' as value")
    with pytest.raises(Exception, match=f"(?i){said}"):
        frame.write.format("halfmq").mode(mode).options(url=broker.url, **given).save()


def test_output_mode_update_is_what_spark_refuses(sink: Any, tmp_path: Path) -> None:
    """And not this sink, which cannot allow it: docs/spark.md gives another way. Spark asks for a Scala trait that a Python sink cannot
    have; once that has changed, write these rows directly.
    """
    counts = sink.readStream.format("rate").load().groupBy("value").count().selectExpr("cast(count as string) as value")
    writing = counts.writeStream.format("halfmq").outputMode("update").option("checkpointLocation", str(tmp_path))
    query = writing.options(url="rocketmq://127.0.0.1:9", topic="t").start()
    with pytest.raises(Exception, match="does not support Update mode"):
        query.awaitTermination(60)


@thorough
def test_stream_with_state_from_python(sink: Any, broker: Served, tmp_path: Path) -> None:
    """``transformWithState`` needs packages that PySpark does not require; the extra ``spark`` has them."""
    from pyspark.sql import Row as Result
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._seen = handle.getValueState("seen", "seen long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
            seen = (self._seen.get()[0] if self._seen.exists() else 0) + sum(1 for _ in rows)
            self._seen.update((seen,))
            yield Result(value=f"{key[0]} {seen}")

        def close(self) -> None:
            pass

    def count() -> Any:
        stream = sink.readStream.format("halfmq").options(
            url=broker.url, subscribe="in-state", startingOffsets="earliest"
        )
        counted = stream.load().groupBy("topic").transformWithState(Count(), "value string", "Append", "None")
        writing = counted.writeStream.format("halfmq").options(url=broker.url, topic="out-state")
        return writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

    provider = "spark.sql.streaming.stateStore.providerClass"
    sink.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        for start, rows_sent in ((0, 3), (3, 2)):
            send(broker, "state", start, rows_sent)
            spark_queries.run(count)
    finally:
        sink.conf.unset(provider)
    assert sorted(visible(broker, "out-state")) == [b"in-state 3", b"in-state 5"]


@thorough
def test_checkpoint_of_the_session_configuration_is_refused(sink: Any, broker: Served, tmp_path: Path) -> None:
    send(broker, "conf", 0, 1)
    sink.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        stream = (
            sink.readStream.format("halfmq")
            .options(url=broker.url, subscribe="in-conf", startingOffsets="earliest")
            .load()
        )
        stream = stream.select("value")
        query = stream.writeStream.format("halfmq").options(url=broker.url, topic="out-conf")
        with pytest.raises(QueryFailed, match="option checkpointLocation is not set on this query"):
            spark_queries.run(query.trigger(availableNow=True).start)
    finally:
        sink.conf.unset("spark.sql.streaming.checkpointLocation")
