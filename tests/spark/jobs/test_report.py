"""The job ``report``: what Spark adds up of a broker, of tables and of transactions; and the page from all of them."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.served import Served
from tests.support.spark_queries import again

from halfmq.client.sync import Client
from halfmq.errors import UsageError
from halfmq.spark.jobs import report, tables
from halfmq.spark.jobs.report_figures import LATENCY_EDGES_MS, messages_of, transactions_of
from halfmq.spark.jobs.settings import SparkSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = (
    "transaction_id string, group string, outcome string, decided_by string, prepared_at timestamp, settled_at timestamp, "
    "latency_ms long, checks int, messages int, message_bytes long, topics array<string>, first_half long"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log")
    served.start()
    with Client(served.url, group="g") as mq:
        for number in range(30):
            mq.send("report-a" if number % 3 else "report-b", b"x" * 100)
    yield served
    served.stop()
    shutil.rmtree(work)


def transaction(number: int, outcome: str, seconds: float = 0.0, checks: int = 0) -> tuple[Any, ...]:
    prepared = START + timedelta(seconds=number)
    settled = None if outcome == "UNDECIDED" else prepared + timedelta(seconds=seconds)
    latency = None if settled is None else round(seconds * 1_000)
    decided = None if settled is None else "check" if checks else "producer"
    group = "shop" if number % 2 else "loyalty"
    return f"T{number}", group, outcome, decided, prepared, settled, latency, checks, 1, 100, ["a"], number


SETTLED = [
    *(transaction(number, "COMMITTED", 0.004) for number in range(8)), transaction(8, "ROLLED_BACK", 0.0),
    transaction(9, "COMMITTED", 60, checks=7),
]  # fmt: skip
UNDECIDED = [transaction(10, "UNDECIDED", checks=2)]


@pytest.fixture
def settled_and_undecided(spark: Any, tmp_path: Path) -> Path:
    """As the job ``transactions`` writes them."""
    output = tmp_path / "transactions"
    rows = spark.createDataFrame(SETTLED, COLUMNS)
    tables.write(tables.open_table(output / "settled", "parquet", "transactions"), 0, rows)
    spark.createDataFrame(UNDECIDED, COLUMNS).write.parquet(str(output / "undecided.parquet"))
    return output


def test_page_of_a_broker_and_of_transactions(
    broker: Served, settled_and_undecided: Path, tmp_path: Path, spark: Any
) -> None:
    output, said = tmp_path / "r.html", []
    settings = report.Settings(
        output=str(output), url=broker.url, pattern="report-.*",
        transactions=str(settled_and_undecided),
    )  # fmt: skip
    assert again(lambda: report.run(settings, SparkSettings(), said.append)) == 0
    text = output.read_text()
    assert text.count("<svg") == 5
    for figure in (
        "<td>20</td><td>2.0 KiB</td>",
        "<td>10</td><td>1,000 B</td>",
        ">T10<",
        "share of 10 settled",
        "1 min",
    ):
        assert figure in text
    assert said[-1] == f"wrote {output}"


def test_figures_of_transactions(spark: Any) -> None:
    found = transactions_of(spark.createDataFrame(SETTLED + UNDECIDED, COLUMNS))
    assert found is not None
    assert [(one.name, one.committed, one.rolled_back, one.undecided, one.checks) for one in found.groups] == [
        ("loyalty", 4, 1, 1, 2),
        ("shop", 5, 0, 0, 7),
    ]
    assert found.decided_by == [("producer", 9), ("check", 1)]
    assert found.latencies is not None
    assert (found.latencies.settled, found.latencies.percentiles[:2], found.latencies.max) == (10, [4, 4], 60_000)
    counts = {LATENCY_EDGES_MS[index]: count for index, count in enumerate(found.latencies.counts) if count}
    assert counts == {0: 1, 2: 8, 50_000: 1}
    assert (found.interval.step, found.interval.size) == (1, 70)
    # The last of the settled ones is open for a minute, the undecided one for good.
    assert (found.undecided[8], found.undecided[9], found.undecided[10], found.undecided[-1]) == (0, 1, 2, 1)
    assert (found.checks, found.total) == ([9, 0, 1, 0, 0, 1], 11)
    assert [(one.transaction_id, one.checks, one.topics) for one in found.waiting] == [("T10", 2, ["a"])]
    # Rebuilt indexes no longer know when these were prepared; the first was settled before all others.
    early = ("T20", "shop", "COMMITTED", "producer", None, START - timedelta(seconds=5), None, 0, 1, 1, ["a"], 20)
    open_ = ("T21", "shop", "UNDECIDED", None, None, None, None, 0, 1, 1, None, 21)
    unknown = transactions_of(spark.createDataFrame([*SETTLED, early, open_], COLUMNS))
    assert unknown is not None
    assert (unknown.interval.start, unknown.undecided[0], unknown.undecided[-1]) == (START.timestamp() - 5, 1, 1)
    assert [(one.transaction_id, one.prepared_at) for one in unknown.waiting] == [("T21", None)]
    assert ">T21<" in report.render(report.Settings(transactions="t"), {"transactions": unknown})
    assert transactions_of(spark.createDataFrame([], COLUMNS)) is None
    with pytest.raises(UsageError, match="transactions has no column outcome"):
        transactions_of(spark.createDataFrame([], COLUMNS).drop("outcome"))


@pytest.mark.thorough
def test_rates_of_many_topics_and_of_other_names(spark: Any) -> None:
    rows = spark.range(0, 600).selectExpr(
        "concat('t', id % 25) as message_topic", "timestamp_seconds(1767225600 + id) as message_time"
    )
    found = messages_of(rows)
    assert found is not None
    assert (found.interval.step, found.interval.size, found.others) == (5, 120, 5)
    assert len(found.topics) == 20
    assert {one.messages for one in found.topics} == {24}
    assert {one.bytes for one in found.topics} == {None}
    assert sum(sum(counts) for counts in found.series.values()) == 600
    assert sum(found.series["others"]) == 5 * 24
    assert [sum(counts[n] for counts in found.series.values()) for n in (0, 119)] == [5, 5]
    of_bodies = rows.selectExpr("*", "1.5 as value", "'x' as topic", "'noon' as timestamp")
    assert messages_of(of_bodies) == found, "columns of bodies in silver"
    assert messages_of(rows.limit(0)) is None
    with pytest.raises(UsageError, match="no column message_time or timestamp"):
        messages_of(rows.drop("message_time"))
