"""Spark over TLS, with a certificate of its own: source, views, sink, a job. Who is not trusted is told so and not waited for."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import spark_queries
from tests.support.certificates import Authority
from tests.support.served import Served, starting
from tests.support.spark_queries import QueryFailed, again

from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.spark.jobs import tables, transactions
from halfmq.spark.jobs.settings import SparkSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Served]:
    server = authority.issue("server")
    with starting(tmp_path_factory) as start:
        served = start(
            "--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--tls-client-ca", str(authority.certificate)
        )  # fmt: skip
        yield served
        served.stop()
        shutil.rmtree(served.data)


@pytest.fixture(scope="module")
def url(broker: Served, authority: Authority) -> str:
    """Transactions of two messages each, half of the rows in ``orders``, the others in ``stock``; and one that is undecided."""
    own = authority.issue("spark")
    files = f"cafile={authority.certificate}&certfile={own.certificate}&keyfile={own.key}"
    url = f"rocketmqs://127.0.0.1:{broker.name_port}?{files}"
    with Client(url, group="service") as mq:
        for number in range(ROWS // 2):
            with mq.begin() as tx:
                tx.send("orders", f"o{number}".encode())
                tx.send("stock", f"s{number}".encode())
        mq.prepare([compose("orders", b"undecided")], tx_id="undecided")
    return url


def sent(*topics: str) -> list[str]:
    return sorted(f"{topic[0]}{number}" for topic in topics for number in range(ROWS // 2))


def read(spark: Any, url: str, *topics: str) -> list[str]:
    rows = spark.read.format("halfmq").load(url=url, subscribe=",".join(topics), columns="value").collect()
    return sorted(bytes(row.value).decode() for row in rows)


def test_batch_and_view(spark: Any, url: str) -> None:
    assert read(spark, url, "orders", "stock") == sent("orders", "stock")
    rows = spark.read.format("halfmq").load(url=url, view="transactions").collect()
    assert {row.outcome for row in rows} == {"COMMITTED", "UNDECIDED"}
    assert sum(row.messages for row in rows if row.outcome == "COMMITTED") == ROWS


@pytest.mark.parametrize("guarantee", ["exactlyOnce", pytest.param("atLeastOnce", marks=pytest.mark.thorough)])
def test_stream_into_the_sink(spark: Any, url: str, tmp_path: Path, guarantee: str) -> None:
    def start() -> Any:
        return (
            spark.readStream.format("halfmq")
            .options(url=url, subscribe="orders,stock", startingOffsets="earliest", columns="value", maxOffsetsPerTrigger="30")
            .load()
            .writeStream.format("halfmq")
            .options(url=url, topic=f"out-{guarantee}", guarantee=guarantee, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip

    spark_queries.run(start)
    assert read(spark, url, f"out-{guarantee}") == sent("orders", "stock")
    spark_queries.run(start)
    assert read(spark, url, f"out-{guarantee}") == sent("orders", "stock")


@pytest.mark.thorough
def test_job(spark: Any, url: str, tmp_path: Path) -> None:
    settings = transactions.Settings(output=str(tmp_path / "out"), url=url)
    said: list[str] = []
    assert again(lambda: transactions.run(settings, SparkSettings(), said.append)) == 0
    rows = tables.read(spark, tmp_path / "out" / "settled").collect()
    assert sum(row.messages for row in rows) >= ROWS
    assert all(str(tmp_path) not in line or "rocketmqs" not in line for line in said)


def test_wrong_ca_is_said_at_once_by_source_and_sink(
    spark: Any, url: str, tmp_path: Path, authority: Authority
) -> None:
    """At once: the time to wait for a broker is longer than that of a test."""
    other = Authority(tmp_path / "other").certificate
    wrong = url.replace(f"cafile={authority.certificate}", f"cafile={other}")
    options = {"url": wrong, "brokerTimeout": "1h"}
    with pytest.raises(QueryFailed, match="cafile=FILE"):
        again(spark.read.format("halfmq").options(subscribe="orders", **options).load().collect)
    with pytest.raises(QueryFailed, match="cafile=FILE"):
        again(spark.read.format("halfmq").options(view="transactions", **options).load().collect)
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    for guarantee in ("exactlyOnce", "atLeastOnce"):
        writer = frame.write.format("halfmq").mode("append").options(topic="out", guarantee=guarantee, **options)
        with pytest.raises(QueryFailed, match="cafile=FILE"):
            again(writer.save)
