"""A query with a checkpoint from before a restore of the broker's store stops and names both stores, over the wire and from the files."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import spark_queries
from tests.support.served import Served
from tests.support.spark_queries import QueryFailed
from typer.testing import CliRunner

from halfmq import Client
from halfmq.cli import backup, restore

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def output(app: Any, *arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def read(spark: Any, checkpoint: Path, **source: str) -> list[bytes]:
    """What a run of the query reads until it has caught up."""
    rows: list[bytes] = []
    frame = spark.readStream.format("halfmq").options(subscribe="orders", startingOffsets="earliest", **source).load()
    writer = frame.writeStream.foreachBatch(
        lambda found, batch: rows.extend(bytes(row.value) for row in found.select("value").collect())
    )
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    spark_queries.run(writer.start)
    return sorted(rows)


def test_a_checkpoint_from_before_the_restore_is_refused_by_the_names_of_both_stores(
    spark: Any, tmp_path: Path
) -> None:
    data, checkpoints = tmp_path / "data", tmp_path / "checkpoints"
    served = Served(data, tmp_path / "log", "--segment-bytes", str(1 << 20))
    sources = {"wire": {"url": served.url}, "files": {"path": str(data)}}
    served.start()
    try:
        with Client(served.url, group="P") as client:
            client.send("orders", b"one")
        made = output(backup.app, tmp_path / "backup", "--url", served.url)
        for name, source in sources.items():
            assert read(spark, checkpoints / name, **source) == [b"one"]
        served.stop()
        found = output(restore.app, tmp_path / "backup", tmp_path / "restored")
        assert found["restored_from"] == made["store"]
        data.rename(tmp_path / "lost")
        (tmp_path / "restored").rename(data)
        served.start()
        with Client(served.url, group="P") as client:
            client.send("orders", b"two")
        for name, source in sources.items():
            with pytest.raises(
                QueryFailed, match=f"this is store {found['store']}, the query has read store {made['store']}"
            ):
                read(spark, checkpoints / name, **source)
            assert read(spark, checkpoints / f"new {name}", **source) == [b"one", b"two"]
    finally:
        served.stop()
