"""The wire path against an unchanged Apache RocketMQ: route, bounds, pulls, packed bodies, transactions. Spark not started."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.compat.stock_broker import StockBroker
from tests.compat.toolchain import VERSIONS

from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.spark.offsets import from_json
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqBatchReader, HalfmqStreamReader

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(240)]

MESSAGES = 300


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_cluster_is_read_like_a_halfmq_broker(version: str, tmp_path: Path) -> None:
    with StockBroker(version, tmp_path) as stock:
        url = f"rocketmq://{stock.names}"
        options = parse_options(
            {"url": url, "subscribe": "orders", "startingOffsets": "earliest", "brokerTimeout": "20s",
             "columns": "value,queue,offset,broker,transaction_id,message_id"}
        )  # fmt: skip
        stream = HalfmqStreamReader(options.for_stream())
        start = stream.initialOffset()
        assert start["queues"] == {}
        with Client(url, group="service") as mq:
            for number in range(MESSAGES):
                mq.send("orders", f"plain {number}")
            with mq.begin() as committed:
                committed.send("orders", "committed")
            mq.rollback(mq.prepare([compose("orders", "rolled back")], tx_id=mq.new_transaction_id()))
        rows = wait_for(HalfmqBatchReader(options.for_batch()), MESSAGES + 1)
        assert sorted(row["value"].decode() for row in rows) == sorted(
            ["committed", *(f"plain {number}" for number in range(MESSAGES))]
        )
        assert {row["broker"] for row in rows} == {"broker-a"}
        assert len({(row["queue"], row["offset"]) for row in rows}) == len(rows)
        (transaction,) = [row for row in rows if row["transaction_id"]]
        assert transaction["value"] == b"committed"
        end = stream.latestOffset(start, ReadAllAvailable())
        assert from_json(end).store == "rocketmq:DefaultCluster"
        assert from_json(end).position == -1
        streamed = [
            row
            for partition in stream.partitions(start, end)
            for batch in stream.read(partition)
            for row in batch.to_pylist()
        ]
        assert len(streamed) == MESSAGES + 1
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        stream.stop()


def wait_for(reader: HalfmqBatchReader, count: int) -> list[dict[str, object]]:
    """All rows, once there are ``count``: a stock END is one-way, so its message comes a little later."""
    rows: list[dict[str, object]] = []
    for _ in range(200):
        rows = [
            row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()
        ]
        if len(rows) >= count:
            break
    return rows
