"""The sink through Spark, against a broker in a process of its own: rows are visible exactly once, however the driver dies.

The letters are those of the table in docs/spark-options.md, "What happens if the query is killed". One driver process runs a query for each of
the moments at which it is to be killed; each query stops at its moment (``tests.support.stalling_sink``), and one SIGKILL of the
process group ends them all. Then each is started again here, on its checkpoint.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.support import sink_driver, stalling_sink
from tests.support.half_batches import bodies
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.sink_runs import arrow, options

from halfmq.client.sync import Client
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import decide, task
from halfmq.spark.sink.attempt import Attempt
from halfmq.spark.sink.checkpoint import digest_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: Rows in each input topic, of two batches; half of a row's bytes fill a half batch of 4 KiB.
ROWS: Final = 20
_QUEUES: Final = 4
#: When each query of the driver that is killed stops.
MOMENTS: Final = {
    "a": f"{stalling_sink.BEFORE_COMMIT} 1",
    "b": f"{stalling_sink.AFTER_COMMIT} 1",
    "c": f"{stalling_sink.IN_WRITE} 1",
    "d1": f"{stalling_sink.KILL_FIRST_WORKER} 1",
    "e": "",
    "f1": f"{stalling_sink.AFTER_COMMIT} 1",
    "f2": f"{stalling_sink.AFTER_COMMIT} 1",
    "z": f"{stalling_sink.BEFORE_COMMIT} 1",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log", "--checkpoint-interval-ms", "1000")
    served.start()
    yield served
    served.stop()
    shutil.rmtree(served.data)


@pytest.fixture(scope="module")
def sink(spark: Any) -> Any:
    spark.dataSource.register(stalling_sink.StallingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    yield spark
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def url(broker: Served) -> str:
    return f"rocketmq://127.0.0.1:{broker.name_port}"


def rows(name: str, start: int, count: int) -> list[bytes]:
    return [f"{name}-{number}".encode().ljust(2_500) for number in range(start, start + count)]


def send(broker: Served, name: str, start: int, count: int) -> None:
    with Client(url(broker), group="service") as mq:
        for row in rows(name, start, count):
            mq.send(f"in-{name}", row)


def visible(broker: Served, topic: str) -> list[bytes]:
    """All messages of a topic, as a consumer sees them."""

    async def read() -> list[bytes]:
        client = await RawClient.connect(broker.port)
        try:
            return [body for queue in range(_QUEUES) for body in await bodies(client, topic, queue)]
        finally:
            await client.close()

    return asyncio.run(read())


def wait_for(condition: Callable[[], object], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {seconds} s"
        time.sleep(0.05)


class Row:
    """A query, its checkpoint, and what is expected in its output."""

    def __init__(self, spark: Any, broker: Served, directory: Path) -> None:
        self.spark, self.broker, self.directory = spark, broker, directory
        self.name = directory.name

    def run(self, **options: Any) -> None:
        """Run it here until it has caught up. Raises its error."""
        query = sink_driver.start(self.spark, url(self.broker), self.directory, availableNow=True, **options)
        try:
            assert query.awaitTermination(180)
        finally:
            query.stop()

    def stall(self, where: str, batch: int) -> None:
        self.directory.mkdir(exist_ok=True)
        for name in ("stalled", "go"):
            (self.directory / name).unlink(missing_ok=True)
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
def work(tmp_path_factory: pytest.TempPathFactory, broker: Served) -> Path:
    """A directory for each row, with its input sent."""
    directory = tmp_path_factory.mktemp("rows")
    for name, moment in MOMENTS.items():
        (directory / name).mkdir()
        (directory / name / "moment").write_text(moment)
        send(broker, name, 0, ROWS)
    return directory


@pytest.fixture(scope="module")
def killed(work: Path, broker: Served, sink: Any) -> dict[str, str]:
    """Kill the driver when all its queries are at their moments. Returns how the query of row z ended before that."""
    log = work / "driver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sink_driver", url(broker), str(work), "exactlyOnce", *MOMENTS],
            stdout=output, stderr=output, start_new_session=True, env={**os.environ, "PYTHONPATH": "src:."},
        )  # fmt: skip
    try:
        found = {}
        for name in MOMENTS:
            row = Row(sink, broker, work / name)
            at = (
                (lambda r=row: {0, 1} <= r.logged("commits"))
                if name in ("d1", "e")
                else (row.directory / "stalled").exists
            )
            # The start of eight queries takes a minute of two idle cores.
            wait_for(lambda: process.poll() is not None or at(), f"moment of row {name}", 400)  # noqa: B023
            assert process.poll() is None, log.read_text()[-3_000:]
        row = Row(sink, broker, work / "z")
        (row.directory / "moment").unlink()
        row.run()
        row.assert_once()
        (row.directory / "go").touch()
        wait_for((row.directory / "ended").exists, "end of the paused driver")
        found["z"] = (row.directory / "ended").read_text()
        return found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.fixture
def row(request: pytest.FixtureRequest, killed: dict[str, str], work: Path, broker: Served, sink: Any) -> Row:
    """The row of the kill table that the test's name begins with."""
    name = request.node.name.split("_")[1]
    made = Row(sink, broker, work / name)
    (made.directory / "moment").unlink()
    return made


# --- kill -9 of the driver ------------------------------------------------------------------------------------


def test_a_killed_before_the_decision(row: Row) -> None:
    assert (row.logged("offsets"), row.logged("commits")) == ({0, 1}, {0})
    row.assert_first_batch()
    row.run()
    row.assert_once()


def test_b_killed_after_the_decision(row: Row) -> None:
    assert (row.logged("offsets"), row.logged("commits")) == ({0, 1}, {0})
    row.assert_once()
    row.run()
    assert row.logged("commits") == {0, 1}
    row.assert_once()


def test_c_killed_in_a_task(row: Row) -> None:
    assert row.logged("commits") == {0}
    row.assert_first_batch()
    row.run()
    row.assert_once()


def test_d1_killed_worker_of_a_task_that_is_tried_again(row: Row) -> None:
    assert (row.directory / "stalled").exists()
    assert row.logged("commits") == {0, 1}
    row.assert_once()


def test_e_killed_after_the_batch(row: Row) -> None:
    assert row.logged("commits") == {0, 1}
    send(row.broker, "e", ROWS, 10)
    row.run()
    assert row.logged("commits") == {0, 1, 2}
    row.assert_once(ROWS + 10)


def test_f1_restarted_with_another_limit(row: Row) -> None:
    row.run(rows=15)
    row.assert_once()


def test_f2_lost_offsets_and_another_range_stop_the_query(row: Row) -> None:
    for leftover in (row.directory / "checkpoint" / "offsets").glob("*1*"):
        leftover.unlink()
    send(row.broker, "f2", ROWS, 10)
    for _ in range(2):
        with pytest.raises(Exception, match="decided with other content"):
            row.run(rows=15)
        assert row.logged("commits") == {0}
        row.assert_once()


def test_d2_task_that_fails_for_good(work: Path, broker: Served, sink: Any) -> None:
    row = Row(sink, broker, work / "d2")
    row.stall(stalling_sink.RAISE_IN_WRITE, 1)
    send(broker, "d2", 0, ROWS)
    with pytest.raises(Exception, match="as the test wants it"):
        row.run()
    assert (row.directory / "aborted-1").exists()
    row.assert_first_batch()
    (row.directory / "moment").unlink()
    row.run()
    row.assert_once()


def test_d3_commit_that_fails_after_the_decision(work: Path, broker: Served, sink: Any) -> None:
    row = Row(sink, broker, work / "d3")
    row.stall(stalling_sink.RAISE_AFTER_COMMIT, 1)
    send(broker, "d3", 0, ROWS)
    with pytest.raises(Exception, match="as the test wants it"):
        row.run()
    assert (row.directory / "aborted-1").exists()
    row.assert_once()
    (row.directory / "moment").unlink()
    row.run()
    assert row.logged("commits") == {0, 1}
    row.assert_once()


def test_z_paused_driver_changes_nothing_and_stops(
    killed: dict[str, str], work: Path, broker: Served, sink: Any
) -> None:
    assert "CONCURRENT" in killed["z"]
    Row(sink, broker, work / "z").assert_once()


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
    frame.write.format("halfmq").mode("append").options(url=url(broker)).save()
    columns = "key,value,topic,queue,offset,tag,keys,message_id,properties"
    found = sink.read.format("halfmq").options(url=url(broker), subscribe="even,odd", columns=columns).load().collect()
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


def test_batch_write_with_a_version_is_written_once(sink: Any, broker: Served) -> None:
    def write(version: int, start: int) -> None:
        frame = sink.range(start, start + 10).selectExpr("cast(id as string) as value")
        given = {"url": url(broker), "topic": "versions", "txnAppId": "job", "txnVersion": str(version)}
        frame.write.format("halfmq").mode("append").options(**given).save()

    write(1, 0)
    write(1, 0)
    write(2, 10)
    with pytest.raises(Exception, match="is smaller than"):
        write(0, 20)
    assert sorted(map(int, visible(broker, "versions"))) == list(range(20))


def test_rows_with_a_delay_become_visible_once_at_their_time_also_if_the_broker_is_killed(
    sink: Any, broker: Served
) -> None:
    """Four kinds of rows: without a delay, with one, for a point in time, and for one that has passed."""
    began = time.time()
    frame = sink.range(0, 400, 1, 2).selectExpr(
        "cast(id as string) as value",
        "if(id % 4 = 1, 12000 + id, null) as delay_ms",
        f"case id % 4 when 2 then timestamp_millis({round(began * 1_000)} + 15000 + id) when 3 then timestamp_millis(1) end as deliver_at",
    )
    frame.write.format("halfmq").mode("append").options(
        url=url(broker), topic="delayed", txnAppId="delays", txnVersion="1"
    ).save()
    decided = time.time()
    broker.kill()
    broker.start()

    def numbers() -> list[int]:
        return sorted(map(int, visible(broker, "delayed")))

    at_once = [number for number in range(400) if number % 4 in (0, 3)]
    wait_for(lambda: numbers() == at_once, "rows without a delay, and no others", 10)
    seen: dict[int, float] = {}
    while len(seen) < 200 and time.time() < decided + 60:
        for number in set(numbers()).difference(at_once, seen):
            seen[number] = time.time()
        time.sleep(0.1)
    broker.kill()
    broker.start()
    assert numbers() == list(range(400))
    for number, at in seen.items():
        assert at >= (began + 12 + number / 1_000 if number % 4 == 1 else began + 15 + number / 1_000)
    frame.write.format("halfmq").mode("append").options(
        url=url(broker), topic="delayed", txnAppId="delays", txnVersion="1"
    ).save()
    assert numbers() == list(range(400))


def test_failed_batch_write_shows_nothing(sink: Any, broker: Served) -> None:
    frame = sink.range(0, 40, 1, 2).selectExpr("if(id = 39, null, rpad(id, 3000, '-')) as value")
    with pytest.raises(Exception, match="value is null in 1 of"):
        frame.write.format("halfmq").mode("append").options(
            url=url(broker), topic="failed", maxHalfBatchBytes="4k"
        ).save()
    assert visible(broker, "failed") == []


@pytest.mark.parametrize(
    ("given", "mode", "said"),
    [
        ({"topic": "t", "maxHalfBatch": "1"}, "append", "unknown option maxHalfBatch"),
        ({}, "append", "neither option topic nor column topic"),
        ({"topic": "t"}, "overwrite", "cannot be overwritten"),
    ],
)
def test_what_cannot_be_written_is_said_in_words(
    sink: Any, broker: Served, given: dict[str, str], mode: str, said: str
) -> None:
    frame = sink.range(1).selectExpr("'a' as value")
    with pytest.raises(Exception, match=f"(?i){said}"):
        frame.write.format("halfmq").mode(mode).options(url=url(broker), **given).save()


def test_checkpoint_of_the_session_configuration_is_refused(sink: Any, broker: Served, tmp_path: Path) -> None:
    send(broker, "conf", 0, 1)
    sink.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        stream = (
            sink.readStream.format("halfmq")
            .options(url=url(broker), subscribe="in-conf", startingOffsets="earliest")
            .load()
        )
        stream = stream.select("value")
        query = stream.writeStream.format("halfmq").options(url=url(broker), topic="out-conf")
        with pytest.raises(Exception, match="option checkpointLocation is not set on this query"):
            query.trigger(availableNow=True).start().awaitTermination(180)
    finally:
        sink.conf.unset("spark.sql.streaming.checkpointLocation")
