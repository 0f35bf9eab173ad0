"""Spark as users of the broker, each with no more rights than docs/users.md says: source, view, sink. Who is refused is told so at once."""

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import spark_queries
from tests.support.served import Served, starting
from tests.support.served_users import ServedUsers
from tests.support.spark_queries import QueryFailed, again
from tests.support.user_rights import rights_of

from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.errors import HalfmqError
from halfmq.spark.jobs import archive, ingest, replay, report, transactions
from halfmq.spark.jobs.settings import SparkSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 40
#: As the page has them.
RIGHTS: Final = {
    "service": rights_of("producer, `App`", TOPIC="orders", GROUP="service"),
    "reader": rights_of("Spark, reading", TOPIC="orders"),
    "views": rights_of("Spark, views", TOPIC="orders"),
    "writer": rights_of("Spark, sink", TOPIC="out"),
    "searcher": rights_of("the same with `subscribePattern`", TOPIC="orders"),
    "archiver": rights_of("`halfmq pipeline archive --hold", TOPIC="orders", GROUP="archiver"),
    "counter": rights_of("`halfmq pipeline transactions --consumers", TOPIC="orders", GROUP="billing"),
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
            for number, lacks in enumerate(rights):
                users.add(f"{name}-without-{number}", *(right for right in rights if right != lacks))
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


def job(run: Callable[..., int], settings: Any) -> None:
    said: list[str] = []
    assert again(lambda: run(settings, SparkSettings(), said.append)) == 0, said


def programs(urls: Urls, output: Path) -> dict[str, tuple[Callable[[str], None], ...]]:
    """What each user runs, given its URL. ``output``: a directory; each time another one is made in it."""

    def new() -> str:
        return str(output / str(next(numbers)))

    numbers = itertools.count()
    topics = ("orders",)
    return {
        "reader": (
            lambda url: job(ingest.run, ingest.Settings(output=new(), url=url, topics=topics)),
            lambda url: job(archive.run, archive.Settings(output=new(), url=url, topics=topics)),
            lambda url: job(report.run, report.Settings(output=new(), url=url, topics=topics)),
        ),
        "searcher": (lambda url: job(ingest.run, ingest.Settings(output=new(), url=url, pattern="ord.*")),),
        "views": (lambda url: job(transactions.run, transactions.Settings(output=new(), url=url)),),
        "counter": (
            lambda url: job(
                transactions.run, transactions.Settings(output=new(), url=url, consumers={"billing": "orders"})
            ),
        ),
        "archiver": (
            lambda url: job(archive.run, archive.Settings(output=new(), url=url, topics=topics, hold="archiver")),
        ),
        "writer": (
            lambda url: job(
                replay.run,
                replay.Settings(url=urls("reader"), topics=topics, to_url=url, to_topic="out", state=new()),
            ),
        ),
    }


@pytest.mark.parametrize("user", ["reader", "searcher", "views", "counter", "archiver", "writer"])
def test_jobs_need_the_rights_of_their_rows_and_no_others(user: str, spark: Any, urls: Urls, tmp_path: Path) -> None:
    """Each job with all of them, the first one of the user also without each; reconcile reads as ingest does."""
    runs = programs(urls, tmp_path)[user]
    for run in runs:
        run(urls(user))
    for number, lacks in enumerate(RIGHTS[user]):
        name = f"{user}-without-{number}"
        with pytest.raises((QueryFailed, HalfmqError)) as raised:
            runs[0](urls(name))
        right, scope, *pattern = lacks.split(":")
        on = f"{scope} '" if pattern else "the broker"
        assert re.search(rf"user '{name}' has no right to ({right}|describe) on {re.escape(on)}", str(raised.value)), (
            lacks
        )
