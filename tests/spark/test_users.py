"""Spark as users of the broker, each with no more rights than docs/users.md says: source, view, sink. Who is refused is told so at once."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import spark_queries
from tests.support.served import Served, starting
from tests.support.served_users import ServedUsers
from tests.support.spark_queries import QueryFailed, again

from halfmq.client.outgoing import compose
from halfmq.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 40
RIGHTS: Final = {
    "service": ("send:topic:orders", "send:group:service"),
    "reader": ("consume:topic:orders", "consume:group:TOOLS_CONSUMER"),
    "views": ("read-undecided:broker",),
    "writer": ("send:topic:out", "send:group:halfmq-spark", "decide:topic:*", "decide:group:halfmq-spark"),
}
#: URL of a user, by its name.
Urls = Callable[[str], str]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    """``orders`` has the committed messages of ``ROWS`` transactions; one is undecided."""
    work = tmp_path_factory.mktemp("users")
    with starting(tmp_path_factory) as start:
        served: Served = start("--secrets-key-file", str(work / "secrets.key"))

        users = ServedUsers(served, work)
        for name, rights in RIGHTS.items():
            users.add(name, *rights)
        url = users.url
        with Client(url("service"), group="service") as mq:
            for number in range(ROWS):
                with mq.begin() as tx:
                    tx.send("orders", f"o{number}".encode())
            mq.prepare([compose("orders", b"undecided")], tx_id="undecided")
        yield url
        served.stop()
        shutil.rmtree(served.data)


def read(spark: Any, url: str, topic: str) -> list[str]:
    rows = spark.read.format("halfmq").load(url=url, subscribe=topic, columns="value").collect()
    return sorted(bytes(row.value).decode() for row in rows)


def test_each_does_what_it_may(spark: Any, urls: Urls, tmp_path: Path) -> None:
    sent = sorted(f"o{number}" for number in range(ROWS))
    assert read(spark, urls("reader"), "orders") == sent
    rows = spark.read.format("halfmq").load(url=urls("views"), view="transactions").collect()
    assert {row.outcome for row in rows} == {"COMMITTED", "UNDECIDED"}

    def start() -> Any:
        return (
            spark.readStream.format("halfmq")
            .options(url=urls("reader"), subscribe="orders", startingOffsets="earliest", columns="value", maxOffsetsPerTrigger="30")
            .load()
            .writeStream.format("halfmq")
            .options(url=urls("writer"), topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip

    spark_queries.run(start)
    assert read(spark, urls("alice"), "out") == sent


def test_who_is_refused_is_told_so_at_once(spark: Any, urls: Urls, tmp_path: Path) -> None:
    """At once: the time to wait for a broker is longer than that of a test."""
    wrong = tmp_path / "wrong"
    wrong.write_text("hunter2 hunter2")
    options = {"url": urls("reader").partition("?")[0] + f"?secretfile={wrong}", "brokerTimeout": "1h"}
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    attempts = {
        "source": spark.read.format("halfmq").options(subscribe="orders", **options).load().collect,
        "view": spark.read.format("halfmq").options(view="transactions", **options).load().collect,
        "sink": frame.write.format("halfmq").mode("append").options(topic="out", **options).save,
    }
    for what, attempt in attempts.items():
        with pytest.raises(QueryFailed, match="does not accept user 'reader'") as raised:
            again(attempt)
        assert "hunter2" not in str(raised.value), what
    with pytest.raises(QueryFailed, match="code 16"):
        again(spark.read.format("halfmq").load(url=urls("writer"), subscribe="orders", brokerTimeout="1h").collect)
