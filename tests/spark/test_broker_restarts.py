"""Streams go on through SIGKILL of the broker: every committed message once, by either path, transactions whole.

A service sends transactions of two messages, one to each of two topics, every fourth rolled back. Two queries run at
the same time, one over the wire and one from the store's files, while the broker is killed and started again. In the end
both must have read exactly the messages of the transactions that the service committed.

Which ones those are, the service's local database says, and nothing that the broker answered or did not: halves first,
then the local commit, then COMMIT; checks are answered from the database. So a row that is missing is a lost message.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import spark_queries
from tests.support.pair_service import Service
from tests.support.served import Served

from halfmq.runtime.disk import RealDisk
from halfmq.store.topics_file import read_topics

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

TOPICS = ("orders", "loyalty")
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


class Stream:
    """A running query, and the rows that it has read."""

    def __init__(self, spark: Any, checkpoint: Path, **source: str) -> None:
        self.batches: dict[int, list[Any]] = {}
        frame = spark.readStream.format("halfmq").options(
            subscribe=",".join(TOPICS), startingOffsets="earliest", maxOffsetsPerTrigger="500",
            columns="topic,value,queue,offset,transaction_id", **source,
        )  # fmt: skip
        writer = frame.load().writeStream.foreachBatch(
            lambda rows, batch: self.batches.update({batch: self.batches.get(batch, []) + rows.collect()})
        )
        self.query = spark_queries.start(writer.option("checkpointLocation", str(checkpoint)).start)

    @property
    def rows(self) -> list[Any]:
        return [row for rows in list(self.batches.values()) for row in rows]

    def numbers(self) -> Counter[tuple[str, int]]:
        return Counter((row.topic, int(bytes(row.value))) for row in self.rows)

    def wait_for(self, rows: int) -> None:
        """More of them."""
        before = len(self.rows)
        spark_queries.until(self.query, lambda: len(self.rows) >= before + rows, "more rows")


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_streams_go_on_through_kills_of_the_broker(spark: Any, broker: Served, tmp_path: Path, kills: int) -> None:
    rng = random.Random(SEED)
    service = Service(broker.url)
    service.start()
    streams: dict[str, Stream] = {}
    try:
        for name, source in {"wire": {"url": broker.url}, "direct": {"path": str(broker.data)}}.items():
            streams[name] = Stream(spark, tmp_path / name, **source)
        for _ in range(kills):
            for stream in streams.values():
                stream.wait_for(rng.randrange(50, 300))
            broker.kill()
            broker.start()
        for stream in streams.values():
            stream.wait_for(100)
        service.stop()
        wanted = Counter((topic, number) for topic in TOPICS for number in service.committed)
        for stream in streams.values():
            spark_queries.until(stream.query, lambda: stream.numbers() >= wanted, "last row")  # noqa: B023
            stream.query.processAllAvailable()  # whatever would come too much has come
    finally:
        service.close()
        for stream in streams.values():
            stream.query.stop()
    assert broker.kills == kills
    _, topics = read_topics(RealDisk(), broker.data / "shard-0" / "topics.json")
    assert sorted(topic.name for topic in topics) == sorted(TOPICS), "reading made nothing"
    assert len(service.committed) > 100
    for name, stream in streams.items():
        phantom = stream.numbers() - wanted
        assert not phantom, (name, [(one, service.odd.get(one[1])) for one in phantom])
        assert all(row.transaction_id for row in stream.rows)
        places = Counter((row.topic, row.queue, row.offset) for row in stream.rows)
        assert max(places.values()) == 1
