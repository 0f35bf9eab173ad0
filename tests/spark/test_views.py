"""``view=transactions`` and ``view=half`` through Spark, from files and over the network, beside a running broker."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.outcomes import TRANSACTIONS, UNDECIDED, fill
from tests.support.raw_client import RawClient
from tests.support.served import Served

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log")
    served.start()

    async def send() -> None:
        client = await RawClient.connect(served.port)
        await fill(client)
        await client.close()

    asyncio.run(send())
    yield served
    served.stop()
    shutil.rmtree(served.data)


def load(spark: Any, broker: Served, way: str, view: str, **options: str) -> Any:
    where = {"path": str(broker.data)} if way == "path" else {"url": broker.url}
    return spark.read.format("halfmq").load(**where, view=view, **options)


@pytest.mark.parametrize("way", ["path", "url"])
def test_one_row_for_each_transaction_by_outcome_and_who_decided(spark: Any, broker: Served, way: str) -> None:
    frame = load(spark, broker, way, "transactions", minPartitions="3")
    rows = {row.transaction_id: row for row in frame.collect()}
    found = {name: (row.outcome, row.decided_by, row.halves, row.messages, row.topics) for name, row in rows.items()}
    assert found == TRANSACTIONS
    assert len({row.first_half for row in rows.values()}) == len(rows)
    assert {row.group for name, row in rows.items() if not name.startswith("q1:")} == {"P"}
    for row in rows.values():
        assert (row.settled_at is None) == (row.latency_ms is None) == (row.outcome == "UNDECIDED")
        if row.settled_at is not None:
            assert row.latency_ms == round((row.settled_at - row.prepared_at).total_seconds() * 1_000)
    by_outcome = frame.groupBy("outcome").count().collect()
    assert {row["outcome"]: row["count"] for row in by_outcome} == Counter(one[0] for one in TRANSACTIONS.values())


@pytest.mark.parametrize("way", ["path", "url"])
def test_undecided_half_messages_with_their_bodies(spark: Any, broker: Served, way: str) -> None:
    frame = load(spark, broker, way, "half", columns="transaction_id,group,topic,key,tag,value,half_index,properties")
    rows = frame.collect()
    assert Counter(row.transaction_id for row in rows) == UNDECIDED
    single = next(row for row in rows if row.transaction_id == "undecided")
    assert (bytes(single.value), bytes(single.key), single.tag, single.group) == (b"body of undecided", b"k1", "a", "P")
    assert single.properties["TRAN_MSG"] == "true"
    assert {(row.topic, bytes(row.value)) for row in rows if row.transaction_id == "two-undecided"} == {
        ("orders", b"body of two-undecided-0"), ("loyalty", b"body of two-undecided-1"),
    }  # fmt: skip


def test_both_ways_give_the_same_rows(spark: Any, broker: Served) -> None:
    for view, key in (("transactions", "first_half"), ("half", "half_index")):
        files, wire = ([row.asDict() for row in load(spark, broker, way, view).collect()] for way in ("path", "url"))
        assert sorted(files, key=lambda row: (row[key], row.get("value"))) == sorted(
            wire, key=lambda row: (row[key], row.get("value"))
        )
