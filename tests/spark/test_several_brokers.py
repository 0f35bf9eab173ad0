"""Two halfmq brokers behind one name service, read by one stream while one of them is killed, comes back, and is replaced."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import spark_queries
from tests.support.name_service import NameService
from tests.support.pair_service import Service
from tests.support.served import Served
from tests.support.spark_queries import QueryFailed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(400)]

TOPICS = ("orders", "loyalty")


class Brokers:
    """ "east" and "west", and their name service. Only "east" runs at first."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.served = {"east": self.made("east"), "west": self.made("west")}
        self.services: list[Service] = []
        self.served["east"].start()
        self.names = NameService({"east": self.served["east"].name_port})

    def made(self, name: str) -> Served:
        return Served(
            self.work / name, self.work / f"{name}.log", "--segment-bytes", str(1 << 20),
            "--check-immunity-ms", "500", "--check-interval-ms", "500",
        )  # fmt: skip

    def join(self, name: str, served: Served) -> None:
        served.start()
        self.served[name] = served
        self.names.brokers[name] = served.name_port

    def service(self, name: str, first: int) -> Service:
        made = Service(self.served[name].url, first)
        self.services.append(made)
        made.start()
        return made

    def close(self) -> None:
        for service in self.services:
            service.close()
        self.names.close()
        for served in self.served.values():
            served.stop()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    made.close()


class Stream:
    """One checkpoint, over several runs. ``batches``: rows of each batch; one that is run again replaces the first attempt."""

    def __init__(self, spark: Any, url: str, work: Path) -> None:
        self.spark = spark
        self.options = {"url": url, "subscribe": ",".join(TOPICS), "columns": "broker,topic,queue,offset,value"}
        self.checkpoint = work / "checkpoint"
        self.batches: dict[int, list[Any]] = {}

    def writer(self, **trigger: Any) -> Any:
        frame = self.spark.readStream.format("halfmq").options(startingOffsets="earliest", **self.options).load()
        return (
            frame.writeStream.foreachBatch(lambda rows, batch: self.batches.update({batch: rows.collect()}))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
        )

    def run(self) -> None:
        spark_queries.run(self.writer(availableNow=True).start)

    def rows(self) -> list[Any]:
        return [row for batch in list(self.batches.values()) for row in batch]

    def numbers(self, name: str | None) -> Counter[tuple[str, int]]:
        return Counter((row.topic, int(row.value)) for row in self.rows() if row.broker == name)

    def offset(self) -> Any:
        last = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return json.loads(last.read_text().splitlines()[2])


def both(*services: Service) -> Counter[tuple[str, int]]:
    return Counter((topic, number) for one in services for topic in TOPICS for number in one.committed)


def test_two_brokers_are_read_together_through_a_kill_of_one(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    first = brokers.service("east", 0)
    stream = Stream(spark, brokers.names.url, tmp_path)
    wait_until(lambda: first.committed, "transaction")
    first.stop()
    stream.run()
    assert stream.offset()["v"] == 1
    alone = stream.rows()
    assert alone
    assert {row.broker for row in alone} == {None}

    # The topics appear on a second broker, which is killed while both are read.
    brokers.join("west", brokers.served["west"])
    east, west = brokers.service("east", 1_000_000), brokers.service("west", 2_000_000)
    query = spark_queries.start(stream.writer(processingTime="0 seconds").start)

    def wait(condition: Any) -> None:
        spark_queries.until(query, condition, "rows")

    try:
        wait(lambda: min(len(stream.numbers(name)) for name in ("east", "west")) > 50)
        assert stream.offset()["v"] == 2
        brokers.served["west"].kill()
        brokers.served["west"].start()
        seen = len(stream.numbers("west"))
        wait(lambda: len(stream.numbers("west")) > seen + 50)

        # It is killed when it has been read: the rows of the other flow on while it is away.
        west.stop()
        wait(lambda: stream.numbers("west") == both(west))
        brokers.served["west"].kill()
        seen = len(stream.numbers("east"))
        wait(lambda: len(stream.numbers("east")) > seen + 200)
        brokers.served["west"].start()
        again = brokers.service("west", 3_000_000)
        wait(lambda: len(stream.numbers("west")) > len(both(west)) + 50)
        again.stop()
        east.stop()
        wait(lambda: stream.numbers("west") >= both(west, again))
    finally:
        query.stop()

    # From the checkpoint: what was left, nothing lost, nothing twice, and transactions are whole in each batch.
    stream.run()
    assert stream.numbers("west") == both(west, again)
    assert stream.numbers("east") + stream.numbers(None) == both(first, east)
    for number, rows in stream.batches.items():
        found = {topic: {(row.broker, row.value) for row in rows if row.topic == topic} for topic in TOPICS}
        assert found["orders"] == found["loyalty"], number
    batch = spark.read.format("halfmq").options(**stream.options, minPartitions="4").load()
    rows = batch.collect()
    assert Counter((row.broker, row.topic, int(row.value)) for row in rows) == Counter(
        [("east", *one) for one in both(first, east)] + [("west", *one) for one in both(west, again)]
    )

    # Another store takes the place of one of them.
    brokers.served["west"].stop()
    brokers.join("west", brokers.made("other"))
    other = brokers.service("west", 4_000_000)
    wait_until(lambda: other.committed, "transaction")
    with pytest.raises(QueryFailed, match=r"broker west: this is store \w+, the query has read store"):
        stream.run()
