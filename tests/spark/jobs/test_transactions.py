"""The job ``transactions`` on a broker: each transaction once in the table, also those that settle between two runs."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.served import Served
from tests.support.spark_queries import again
from tests.support.table_reads import read_view
from tests.support.waiting import wait_until

from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.client.transaction import Prepared
from halfmq.errors import DataLost, UsageError
from halfmq.spark.jobs import tables, transactions
from halfmq.spark.jobs.settings import SparkSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "broker.log", "--segment-bytes", str(1 << 20))
    served.start()
    yield served
    served.stop()
    shutil.rmtree(tmp_path / "data")


def prepare(mq: Client, name: str, count: int = 1) -> Prepared:
    """With messages for two topics if there are several."""
    topics = ("orders", "returns", "orders")
    return mq.prepare([compose(topics[number], f"{name}-{number}") for number in range(count)], tx_id=name)


@pytest.mark.parametrize("form", ["parquet", pytest.param("delta", marks=pytest.mark.thorough)])
def test_each_transaction_is_in_the_table_once(
    spark: Any, broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tables.Format
) -> None:
    url, output = broker.url, tmp_path / "out"
    said: list[str] = []

    def run() -> dict[str, str]:
        settings = transactions.Settings(
            output=str(output), url=url, consumers={"billing": "orders,returns"}, format=form
        )
        assert again(lambda: transactions.run(settings, SparkSettings(), said.append)) == 0
        rows = tables.read(spark, output / "settled").collect()
        assert max(Counter(row.transaction_id for row in rows).values()) == 1
        undecided = pq.read_table(output / "undecided.parquet")["transaction_id"].to_pylist()
        return {row.transaction_id: row.outcome for row in rows} | dict.fromkeys(undecided, "UNDECIDED")

    with Client(url, group="service") as mq:
        first, second, third = prepare(mq, "T-1"), prepare(mq, "T-2", 3), prepare(mq, "T-3")
        mq.finish(first, Outcome.COMMIT)
        mq.finish(third, Outcome.ROLLBACK)
        assert run() == {"T-1": "COMMITTED", "T-2": "UNDECIDED", "T-3": "ROLLED_BACK"}
        fourth = prepare(mq, "T-4")
        mq.finish(fourth, Outcome.COMMIT)

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        # The end of a run is lost: what it wrote is there, and is not written again.
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "_save", killed)
            with pytest.raises(KeyboardInterrupt):
                run()
        mq.finish(second, Outcome.COMMIT)
        everything = {"T-1": "COMMITTED", "T-2": "COMMITTED", "T-3": "ROLLED_BACK", "T-4": "COMMITTED"}
        assert run() == everything
        assert "3 committed, 1 rolled back, 0 undecided" in said[-2]
        assert "billing: 3 transactions not read" in said[-1]

        with mq.consumer(["orders", "returns"], group="billing", start="earliest") as messages:
            for _ in range(5):
                message = messages.get(30)
                assert message is not None
                message.ack()
        assert run() == everything
        assert "billing: 0 transactions not read" in said[-1]
    (row,) = tables.read(spark, output / "settled").where("transaction_id = 'T-2'").collect()
    assert (row.group, row.messages, row.topics, row.decided_by) == ("service", 3, ["orders", "returns"], "producer")


@pytest.mark.thorough
def test_an_output_belongs_to_the_store_of_its_rows(spark: Any, broker: Served, tmp_path: Path) -> None:
    other = Served(tmp_path / "other", tmp_path / "other.log", "--segment-bytes", str(1 << 20))
    other.start()
    try:
        output = str(tmp_path / "out")
        for served in (broker, other):
            with Client(served.url, group="service") as mq:
                mq.finish(prepare(mq, "T-1"), Outcome.COMMIT)

        def run(**source: str) -> None:
            settings = transactions.Settings(output=output, **source)
            assert again(lambda: transactions.run(settings, SparkSettings(), print)) == 0

        run(url=broker.url)
        with pytest.raises(UsageError, match="begun with store = "):
            run(url=other.url)
        run(path=str(broker.data))  # the files of the same store
    finally:
        other.stop()
        shutil.rmtree(tmp_path / "other")


def test_an_undecided_transaction_may_outlive_retention(spark: Any, tmp_path: Path) -> None:
    """What was settled beside it is past retention at the next run, and was read by the last one."""
    options = (
        "--segment-bytes", "65536", "--retention-bytes", "1", "--retention-check-ms", "50", "--checkpoint-interval-ms", "50",
        "--dedup-window-ms", "0", "--durability", "memory", "--disk-reserve-bytes", "0",
    )  # fmt: skip
    served = Served(tmp_path / "data", tmp_path / "broker.log", *options)
    served.start()
    url, output = served.url, tmp_path / "out"

    def run() -> dict[str, str]:
        settings = transactions.Settings(output=str(output), url=url)
        assert again(lambda: transactions.run(settings, SparkSettings(), print)) == 0
        rows = tables.read(spark, output / "settled").collect()
        assert len({row.transaction_id for row in rows}) == len(rows)
        return {row.transaction_id: row.outcome for row in rows}

    def fill() -> None:
        """Until retention has removed all that was settled before."""
        settled = first_halves(only_settled=True)
        for _ in range(30):
            mq.send("plain", os.urandom(8_000))  # nothing to compress
        wait_until(lambda: not first_halves() & settled, "retention")

    def first_halves(*, only_settled: bool = False) -> set[int]:
        rows = read_view("transactions", url=url, failOnDataLoss="false")
        return {row["first_half"] for row in rows if row["outcome"] != "UNDECIDED" or not only_settled}

    try:
        with Client(url, group="service") as mq:
            old, late = prepare(mq, "old"), prepare(mq, "late")
            mq.finish(prepare(mq, "T-1"), Outcome.COMMIT)
            assert run() == {"T-1": "COMMITTED"}
            fill()
            mq.finish(prepare(mq, "T-2"), Outcome.COMMIT)
            mq.finish(old, Outcome.ROLLBACK)
            assert run() == {"T-1": "COMMITTED", "T-2": "COMMITTED", "old": "ROLLED_BACK"}
            mq.finish(late, Outcome.COMMIT)
            fill()
            with pytest.raises(DataLost, match="undecided at the last run are past retention: late"):
                run()
    finally:
        served.stop()
        shutil.rmtree(tmp_path / "data")
