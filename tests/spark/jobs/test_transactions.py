"""The job ``transactions`` on a broker: each transaction once in the table, also those that settle between two runs."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.served import Served

from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.client.transaction import Prepared
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
    return mq.prepare([compose("orders", f"{name}-{number}") for number in range(count)], tx_id=name)


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_each_transaction_is_in_the_table_once(
    spark: Any, broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tables.Format
) -> None:
    url, output = f"rocketmq://127.0.0.1:{broker.name_port}", tmp_path / "out"
    said: list[str] = []

    def run() -> dict[str, str]:
        settings = transactions.Settings(output=str(output), url=url, consumers={"billing": "orders"}, format=form)
        assert transactions.run(settings, SparkSettings(), said.append) == 0
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

        with mq.consumer("orders", group="billing", start="earliest") as messages:
            for _ in range(5):
                message = messages.get(30)
                assert message is not None
                message.ack()
        assert run() == everything
        assert "billing: 0 transactions not read" in said[-1]
    (row,) = tables.read(spark, output / "settled").where("transaction_id = 'T-2'").collect()
    assert (row.group, row.messages, row.topics, row.decided_by) == ("service", 3, ["orders"], "producer")
