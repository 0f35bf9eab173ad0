"""Streams go on through SIGKILL of the broker: every committed message once, by either path, transactions whole.

A service sends transactions of two messages, one to each of two topics, every fourth rolled back. Two queries run at
the same time, one over the wire and one from the store's files, while the broker is killed and started again. In the end
both tables must hold exactly the messages of the transactions that the service committed.

Which ones those are, the service's local database says, and nothing that the broker answered or did not: halves first,
then the local commit, then COMMIT; checks are answered from the database. So a row that is missing is a lost message.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.pair_service import Service
from tests.support.served import Served

from halfmq.runtime.disk import RealDisk
from halfmq.store.topics_file import read_topics

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

KILLS = 3
SEED = 20261121


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(
        tmp_path / "data", tmp_path / "broker.log", "--segment-bytes", str(1 << 20), "--checkpoint-interval-ms", "1000",
        "--check-immunity-ms", "500", "--check-interval-ms", "500",
    )  # fmt: skip
    served.start()
    yield served
    served.stop()


def start(spark: Any, work: Path, name: str, **source: str) -> Any:
    """A running query. Spark gives the Python process of a source 10 s to start, fixed, which a loaded machine may need."""
    for _ in range(3):
        query = begin(spark, work, name, **source)
        while query.isActive and query.lastProgress is None:
            time.sleep(0.2)
        if query.isActive or "failed to connect back" not in str(query.exception()):
            break
    return query


def begin(spark: Any, work: Path, name: str, **source: str) -> Any:
    frame = spark.readStream.format("halfmq").options(
        subscribe="orders,loyalty", startingOffsets="earliest", maxOffsetsPerTrigger="500",
        columns="topic,value,queue,offset,transaction_id", **source,
    )  # fmt: skip
    return (
        frame.load()
        .selectExpr("topic", "cast(cast(value as string) as int) as number", "queue", "offset", "transaction_id")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / f"{name}-checkpoint"))
        .start(str(work / name))
    )


def table(spark: Any, work: Path, name: str) -> list[Any]:
    if not list((work / name / "_spark_metadata").glob("[0-9]*")):
        return []  # no batch is committed yet, whatever files lie there
    rows: list[Any] = spark.read.parquet(str(work / name)).collect()
    return rows


def test_streams_go_on_through_kills_of_the_broker(spark: Any, broker: Served, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    url = f"rocketmq://127.0.0.1:{broker.name_port}"
    queries = {
        "wire": start(spark, tmp_path, "wire", url=url),
        "direct": start(spark, tmp_path, "direct", path=str(broker.data)),
    }
    service = Service(url)
    service.start()
    try:
        for _ in range(KILLS):
            time.sleep(rng.uniform(3, 6))
            broker.kill()
            time.sleep(rng.uniform(0.2, 2))
            broker.start()
        time.sleep(3)
        service.stopping.set()
        assert service.stopped.wait(60)
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline:
            for name, query in queries.items():
                assert query.isActive, (name, query.exception())
            if all(len(table(spark, tmp_path, name)) >= 2 * len(service.committed) for name in queries):
                break
            time.sleep(1)
        time.sleep(2)  # whatever would come too much comes now
    finally:
        service.stopping.set()
        service.ended.set()
        for query in queries.values():
            query.stop()
    assert broker.kills == KILLS
    _, topics = read_topics(RealDisk(), broker.data / "shard-0" / "topics.json")
    assert [topic.name for topic in topics] == ["orders", "loyalty"]  # reading made nothing
    assert len(service.committed) > 200
    wanted = Counter((topic, number) for topic in ("orders", "loyalty") for number in service.committed)
    for name in queries:
        rows = table(spark, tmp_path, name)
        found = Counter((row.topic, row.number) for row in rows)
        missing, phantom = wanted - found, found - wanted
        assert not missing, (name, [(one, service.odd.get(one[1])) for one in missing])
        assert not phantom, (name, [(one, service.odd.get(one[1])) for one in phantom])
        assert all(row.transaction_id for row in rows)
        places = Counter((row.topic, row.queue, row.offset) for row in rows)
        assert max(places.values()) == 1
