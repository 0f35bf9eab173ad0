"""``archive`` and ``replay`` on a broker, killed while they work: every message once, as it was, in the order of its queue."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.served import Served
from tests.support.spark_queries import again
from tests.support.waiting import wait_until

from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OwnProperties, compose
from halfmq.client.sync import Client
from halfmq.errors import HalfmqError, UsageError
from halfmq.spark.jobs import archive, replay, tables
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import JobFailed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = ("orders", "loyalty")
COLUMNS = "topic,queue,value,tag,keys,headers"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log", "--segment-bytes", str(4 << 20))
    served.start()
    send(served, 0, 300)
    yield served
    served.stop()
    shutil.rmtree(work)


def send(broker: Served, start: int, end: int) -> None:
    with Client(broker.url, group="service") as mq:
        for number in range(start, end, 30):
            messages = [
                compose(
                    TOPICS[one % 2], f"body {one}".encode() + bytes(300), tag="even" if one % 2 == 0 else None, key=one,
                    properties=OwnProperties(number=str(one), HMQ_COMPENSATES=f"m{one}"), sharding_key=f"s{one % 7}" if one % 3 else None,
                )
                for one in range(number, number + 30)
            ]  # fmt: skip
            prepared = mq.prepare(messages, tx_id=mq.new_transaction_id())
            mq.finish(prepared, Outcome.COMMIT if number % 60 == 0 else Outcome.ROLLBACK)


def messages_of(spark: Any, broker: Served, topics: str = ",".join(TOPICS)) -> dict[tuple[str, int], list[Any]]:
    """By queue, in order, without what a broker gives anew."""
    found = defaultdict(list)
    read = spark.read.format("halfmq").options(url=broker.url, subscribe=topics, columns=f"{COLUMNS},offset").load()
    for row in read.orderBy("offset").collect():
        found[row.topic, row.queue].append((bytes(row.value), row.tag, row["keys"], row.headers))
    return found


def run_archive(settings: archive.Settings) -> list[str]:
    """Lines that it printed."""
    said: list[str] = []
    assert again(lambda: archive.run(settings, SparkSettings(), said.append)) == 0
    return said


def run_replay(settings: replay.Settings) -> None:
    assert again(lambda: replay.run(settings, SparkSettings(), print)) == 0


def killed_while_it_works(*arguments: str, done: Callable[[], int]) -> None:
    """Run ``halfmq pipeline`` and kill it with all its processes soon after it has done something more."""
    command = [sys.executable, "-m", "halfmq", "pipeline", *arguments]
    command += ["--master", "local[2]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]

    def attempt() -> None:
        before = done()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_until(lambda: done() > before or process.poll() is not None, "work of the job", 240)
            time.sleep(random.Random(3).uniform(0, 0.7))  # real time: any moment of what it does next
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        if process.returncode != -signal.SIGKILL:
            raise JobFailed(said.decode()[-3000:])

    again(attempt)


@pytest.mark.parametrize(
    "killed",
    [set(), pytest.param({"archive", "replay"}, marks=pytest.mark.thorough)],
    ids=lambda one: "-".join(sorted(one)),
)
def test_round_trip_with_killed_jobs(spark: Any, broker: Served, tmp_path: Path, killed: set[str]) -> None:
    out, state = tmp_path / "archive", tmp_path / "state"
    target = Served(tmp_path / "target", tmp_path / "target.log", "--segment-bytes", str(4 << 20))
    target.start()
    try:
        if "archive" in killed:
            killed_while_it_works(
                "archive", "--url", broker.url, "--topics", ",".join(TOPICS), "--output", str(out), "--max-rows", "15",
                done=lambda: len(list(out.glob("batch_id=*"))),
            )  # fmt: skip
        assert run_archive(archive.Settings(url=broker.url, topics=TOPICS, output=str(out)))[-1].endswith("150 rows")

        def chunks_done() -> int:
            progress = state / "progress.json"
            return json.loads(progress.read_text())["done"] if progress.exists() else 0

        if "replay" in killed:
            killed_while_it_works(
                "replay", "--archive", str(out), "--to-url", target.url, "--state", str(state), "--max-rows", "15",
                done=chunks_done,
            )  # fmt: skip
        replayed = replay.Settings(archive=str(out), to_url=target.url, state=str(state))
        run_replay(replayed)
        expected = messages_of(spark, broker)
        assert sum(map(len, expected.values())) == 150
        assert messages_of(spark, target) == expected
        # All chunks once more, as if the notes of what is done were lost: the broker has them.
        (state / "progress.json").unlink()
        run_replay(replayed)
        assert messages_of(spark, target) == expected
    finally:
        target.stop()


def test_topic_into_topic_by_time_and_filter(spark: Any, broker: Served, tmp_path: Path) -> None:
    rows = spark.read.format("halfmq").options(url=broker.url, subscribe="orders", columns="timestamp").load()
    times = sorted(row.timestamp for row in rows.distinct().collect())
    middle = times[len(times) // 2]
    given: dict[str, Any] = {
        "url": broker.url, "topics": ("orders",), "to_url": broker.url, "to_topic": "later",
        "from_time": f"{middle.isoformat()}", "where": "cast(properties['number'] as int) % 4 = 0",
    }  # fmt: skip
    settings = replay.Settings(state=str(tmp_path / "state"), max_rows=20, **given)
    for _ in range(2):
        run_replay(settings)
    found = [one for queue in messages_of(spark, broker, "later").values() for one in queue]
    expected = (
        spark.read.format("halfmq").options(url=broker.url, subscribe="orders", columns="value,properties,timestamp")
        .load().where(f"unix_micros(timestamp) >= {round(middle.timestamp() * 1e6)}").where(given["where"])
    )  # fmt: skip
    assert sorted(value for value, *_ in found) == sorted(bytes(row.value) for row in expected.collect())
    with pytest.raises(UsageError, match="to_topic = later"):
        replay.run(
            replay.Settings(state=str(tmp_path / "state"), **(given | {"to_topic": "other"})), SparkSettings(), print
        )


def test_the_messages_of_a_transaction_become_visible_together_again(
    spark: Any, broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: transactions of 30 messages on two topics, replayed in chunks of 40; after each chunk whole ones must be there."""
    settings = replay.Settings(
        url=broker.url, topics=TOPICS, to_url=broker.url, to_topic="together", state=str(tmp_path / "state"),
        max_rows=40,
    )  # fmt: skip
    wrote, sizes = replay._write, []

    def write(*given: Any) -> None:
        wrote(*given)
        found = [headers for queue in messages_of(spark, broker, "together").values() for *_, headers in queue]
        transactions = Counter(int(dict(map(tuple, one))["number"]) // 30 for one in found)
        assert set(transactions.values()) == {30}
        sizes.append(len(transactions))

    monkeypatch.setattr(replay, "_write", write)
    run_replay(settings)
    assert sizes == [1, 2, 3, 4, 5]


def test_a_filter_that_is_no_condition_leaves_no_state_so_the_corrected_one_is_accepted(
    spark: Any, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "url": "rocketmq://127.0.0.1:1", "topics": ("orders",), "to_url": "rocketmq://127.0.0.1:1",
        "state": str(tmp_path / "state"), "options": {"brokerTimeout": "100ms"},
    }  # fmt: skip
    for where in ("=(", "no_such_column = 1", "queue"):
        with pytest.raises(UsageError, match=r"--where .* is not a condition: \[") as caught:
            replay.run(replay.Settings(where=where, **given), SparkSettings(), print)
        assert "\n" not in str(caught.value)
    with pytest.raises(HalfmqError) as caught_later:
        replay.run(replay.Settings(where="queue = 1", **given), SparkSettings(), print)
    assert not isinstance(caught_later.value, UsageError), "only the broker is missing"


def test_a_filter_may_use_every_column_of_the_archive(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the quarantine of ingest: only what was late."""
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({"value": [b"a"], "reason": ["late"]}), file)
    monkeypatch.setattr(tables, "batches_of", lambda location: [[str(file)]])
    settings = replay.Settings(archive=str(tmp_path), to_url="u", state=str(tmp_path / "state"))
    replay._check_where(spark, settings, "reason = 'late'")
    with pytest.raises(UsageError, match="tag"):
        replay._check_where(spark, settings, "tag = 'paid'")


def test_what_cannot_be_done_is_said(spark: Any, broker: Served, tmp_path: Path) -> None:
    nobody = replay.Settings(
        url=broker.url, topics=("orders",), to_url="rocketmq://127.0.0.1:1", state=str(tmp_path / "b"),
        to_options={"brokerTimeout": "100ms"},
    )  # fmt: skip
    with pytest.raises(JobFailed, match="chunk 1 of"):
        again(lambda: replay.run(nobody, SparkSettings(), print))
    with pytest.raises(UsageError, match="--hold needs"):
        archive.run(
            archive.Settings(path="/data", topics=("orders",), output=str(tmp_path / "x"), hold="g"),
            SparkSettings(),
            print,
        )
    misspelt = archive.Settings(url=broker.url, topics=("oders", "loyalti"), output=str(tmp_path / "y"))
    with pytest.raises(UsageError, match="no topic oders, loyalti"):
        archive.run(misspelt, SparkSettings(), print)
    one_is_there = archive.Settings(url=broker.url, topics=("oders", "loyalty"), output=str(tmp_path / "z"))
    assert "there is no topic oders (yet)" in run_archive(one_is_there)


@pytest.mark.parametrize("form", ["parquet", pytest.param("delta", marks=pytest.mark.thorough)])
def test_archive_holds_and_goes_on(spark: Any, broker: Served, tmp_path: Path, form: tables.Format) -> None:
    settings = archive.Settings(
        url=broker.url, topics=TOPICS, output=str(tmp_path / "out"), hold=f"archive-{form}", format=form, max_rows=60
    )
    for _ in range(2):
        run_archive(settings)
    table = tables.read(spark, tmp_path / "out")
    assert table.count() == table.select("topic", "queue", "offset").distinct().count() == 150
    listed = subprocess.run(
        [sys.executable, "-m", "halfmq", "group", "holds", "--url", broker.url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"archive-{form}" in listed.stdout, listed


@pytest.mark.thorough
def test_a_batch_of_an_archive_is_bounded_by_bytes(spark: Any, broker: Served, tmp_path: Path) -> None:
    with Client(broker.url, group="service") as mq:
        for number in range(30):
            mq.send("large", os.urandom(20_000), key=number)  # nothing to compress
    settings = archive.Settings(url=broker.url, topics=("large",), output=str(tmp_path / "out"), max_bytes="100k")
    run_archive(settings)
    rows = [sum(pq.read_metadata(file).num_rows for file in files) for files in tables.batches_of(tmp_path / "out")]
    assert sum(rows) == 30
    assert max(rows) <= 5, "more than 100 KiB"


def test_messages_that_come_after_the_plan_are_not_sent(
    spark: Any, broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in queues that were empty then: the source reads a queue that nobody names from its start to its end."""
    with Client(broker.url, group="service") as mq:
        for number in range(20):
            mq.send("sparse", f"planned {number}", sharding_key="one queue")
    settings = replay.Settings(
        url=broker.url,
        topics=("sparse",),
        to_url=broker.url,
        to_topic="copy",
        state=str(tmp_path / "state"),
        max_rows=10,
    )
    wrote = replay._write

    def write_and_stop(*given: Any) -> None:
        wrote(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replay, "_write", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            again(lambda: replay.run(settings, SparkSettings(), print))
    with Client(broker.url, group="service") as mq:
        for number in range(8):
            mq.send("sparse", f"later {number}", sharding_key=str(number))
    run_replay(settings)
    found = [value for queue in messages_of(spark, broker, "copy").values() for value, *_ in queue]
    assert found == [b"planned %d" % number for number in range(20)]
