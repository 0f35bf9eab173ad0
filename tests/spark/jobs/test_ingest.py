"""The job ``ingest`` on a broker: every message in bronze, and in one of silver and quarantine, once."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.served import Served
from tests.support.spark_queries import again

from halfmq.client.sync import Client
from halfmq.errors import UsageError
from halfmq.spark.jobs import ingest, table_job, tables
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import JobFailed
from halfmq.spark.sink.checkpoint import BatchInput, Checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "id long, amount decimal(10,2), at timestamp"
GOOD = [json.dumps({"id": number, "amount": "1.50", "at": "2100-01-01T00:00:00Z"}) for number in range(20)]
#: Body -> reason, and a part of the sentence.
BAD = {
    "{broken": ("not JSON", "byte 1"),
    '{"id": "x", "amount": "1.50"}': ("wrong type", "$.id"),
    '{"amount": "1.50"}': ("missing", "id"),
    '{"id": 1, "amount": "1.505"}': ("wrong type", "$.amount"),
    "[1]": ("not an object", "array"),
    '{"id": 7, "at": "2000-01-01T00:00:00Z"}': ("late", "at is"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log", "--segment-bytes", str(1 << 20))
    served.start()
    yield served
    served.stop()
    shutil.rmtree(work)


def send(broker: Served, topic: str, bodies: list[str]) -> None:
    with Client(broker.url, group="service") as mq:
        for body in bodies:
            mq.send(topic, body.encode(), key="k", tag="t")


def run(broker: Served, output: Path, topic: str, **given: Any) -> list[str]:
    said: list[str] = []
    values = {"schema": SCHEMA, "required": ("id",), "event_time": "at", "late_after": "2h", "max_rows": 15, **given}
    settings = ingest.Settings(output=str(output), url=broker.url, topics=(topic,), **values)
    assert again(lambda: ingest.run(settings, SparkSettings(), said.append)) == 0
    return said


def bodies(spark: Any, output: Path, name: str) -> list[str]:
    return sorted(bytes(row.value).decode() for row in tables.read(spark, output / name).collect())


@pytest.mark.parametrize("form", ["parquet", pytest.param("delta", marks=pytest.mark.thorough)])
def test_every_message_is_in_bronze_and_in_one_of_the_others(
    spark: Any, broker: Served, tmp_path: Path, form: tables.Format
) -> None:
    topic, output = f"all-{form}", tmp_path / "out"
    send(broker, topic, GOOD[:10] + list(BAD))
    run(broker, output, topic, format=form)
    send(broker, topic, GOOD[10:])
    said = run(broker, output, topic, format=form)
    assert f"bronze: {len(GOOD) + len(BAD)} rows; silver: {len(GOOD)} rows; quarantine: {len(BAD)} rows" in "\n".join(
        said
    )
    assert bodies(spark, output, "bronze") == sorted(GOOD + list(BAD))
    silver = tables.read(spark, output / "silver").orderBy("id").collect()
    assert [row.id for row in silver] == list(range(20))
    assert {str(row.amount) for row in silver} == {"1.50"}
    assert {row.message_topic for row in silver} == {topic}
    for row in tables.read(spark, output / "quarantine").collect():
        reason, part = BAD[bytes(row.value).decode()]
        assert row.reason == reason
        assert part in row.detail
    (row,) = tables.read(spark, output / "bronze").where("offset = 0 and queue = 0").collect()
    assert (row.key, row.tag) == (b"k", "t")


def test_run_that_ends_between_two_tables_is_made_good(
    spark: Any, broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, "torn", GOOD + list(BAD))
    published = tables.ParquetTable.publish

    def publish(table: tables.ParquetTable, batch: int, *given: Any) -> None:
        if (table.location.name, batch) == ("silver", 1):
            raise RuntimeError("as the test wants it")
        published(table, batch, *given)

    # After a power loss of the driver's machine, Spark could otherwise put other rows into a batch that is partly in the tables.
    order: list[tuple[str, int]] = []
    secured, written = Checkpoint.secure, tables.write_split

    def secure(checkpoint: Checkpoint, batch: int) -> BatchInput:
        order.append(("input synced", batch))
        return secured(checkpoint, batch)

    def write(into: Any, batch: int, *given: Any) -> None:
        order.append(("written", batch))
        written(into, batch, *given)

    with monkeypatch.context() as patch:
        patch.setattr(tables.ParquetTable, "publish", publish)
        patch.setattr(Checkpoint, "secure", secure)
        patch.setattr(tables, "write_split", write)
        with pytest.raises(Exception, match="as the test wants it"):
            run(broker, tmp_path / "out", "torn")
    assert order == [("input synced", 0), ("written", 0), ("input synced", 1), ("written", 1)]
    assert len(bodies(spark, tmp_path / "out", "bronze")) == len(GOOD) + len(BAD)
    run(broker, tmp_path / "out", "torn")
    assert bodies(spark, tmp_path / "out", "bronze") == sorted(GOOD + list(BAD))
    assert sorted(row.id for row in tables.read(spark, tmp_path / "out" / "silver").collect()) == list(range(20))
    assert bodies(spark, tmp_path / "out", "quarantine") == sorted(BAD)


def test_checkpoint_that_is_restored_to_an_older_state_stops_the_job(
    spark: Any, broker: Served, tmp_path: Path
) -> None:
    """The tables know a batch by its number. One that is made again of the same messages is the same."""
    plain: dict[str, Any] = {"schema": None, "required": (), "event_time": None, "late_after": None}
    output, checkpoint = tmp_path / "out", tmp_path / "out" / table_job.CHECKPOINT

    def restore() -> None:
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "copy", checkpoint)

    send(broker, "restored", GOOD[:1])
    run(broker, output, "restored", **plain)
    shutil.copytree(checkpoint, tmp_path / "copy")
    send(broker, "restored", GOOD[1:2])
    run(broker, output, "restored", **plain)
    restore()
    run(broker, output, "restored", **plain)
    restore()
    send(broker, "restored", GOOD[2:3])
    with pytest.raises(JobFailed, match="was written with other input than it has now"):
        run(broker, output, "restored", **plain)
    assert bodies(spark, output, "bronze") == sorted(GOOD[:2])


def test_only_bronze_without_a_schema_and_other_settings_are_refused(
    spark: Any, broker: Served, tmp_path: Path
) -> None:
    send(broker, "raw", GOOD[:3])
    plain: dict[str, Any] = {"required": (), "event_time": None, "late_after": None}
    run(broker, tmp_path / "out", "raw", schema=None, **plain)
    assert bodies(spark, tmp_path / "out", "bronze") == sorted(GOOD[:3])
    assert not (tmp_path / "out" / "silver").exists()
    with pytest.raises(UsageError, match="begun with"):
        run(broker, tmp_path / "out", "raw")
    for wrong in ({"schema": "id lon"}, {"schema": "id long, id string"}, {"required": ("name",)}):
        with pytest.raises(UsageError, match=r"schema|twice"):
            run(broker, tmp_path / "other", "raw", **{**plain, **wrong})
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
