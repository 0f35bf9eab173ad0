"""The sink without Spark: its tasks and its driver, in a thread, against a broker on the test's event loop."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import task
from halfmq.spark.sink.options import SinkOptions, parse_sink_options
from halfmq.spark.sink.task import Attempt, Prepared
from tests.support.in_process import Running


def options(port: int, **given: str) -> SinkOptions:
    return parse_sink_options({"url": f"rocketmq://127.0.0.1:{port}", "topic": "T", "brokerTimeout": "5", **given})


def arrow(*values: bytes, **columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **{k: pa.array(v) for k, v in columns.items()}})


async def prepare(
    running: Running, batch: QueryBatch, name: str, *batches: pa.RecordBatch, partition: int = 0, **given: str
) -> Prepared:
    """One task."""
    made = options(running.ports.names, **given)
    return await asyncio.to_thread(task.write, iter(batches), made, Attempt(batch, name), partition, "spark-id")
