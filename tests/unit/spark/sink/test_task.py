"""A task prepares its rows, or nothing if its batch is decided; nothing is visible before the decision."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.half_batches import bodies
from tests.support.in_process import serving
from tests.support.sink_runs import arrow, options, prepare
from tests.support.waiting import PATIENCE_S

from halfmq.errors import TransactionRefused, UsageError
from halfmq.model.ids import java_string_hash
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import task
from halfmq.spark.sink.broker import SinkBroker
from halfmq.wire.remoting.half_batches import WinnerRow

BATCH = QueryBatch("q", 0, "r1")


def decide(port: int, batch: QueryBatch, *messages: task.Prepared) -> bool:
    broker = SinkBroker(options(port))
    winners = [WinnerRow(one.attempt, one.half_batches, one.messages, one.checksum) for one in messages]
    try:
        return broker.decide(batch, bytes(16), winners)
    finally:
        broker.close()


async def all_bodies(client: Any, topic: str = "T", queues: int = 4) -> list[bytes]:
    return [body for queue in range(queues) for body in await bodies(client, topic, queue)]


async def test_rows_are_invisible_until_the_decision_and_counted_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        values = [f"{n:04}".encode() * 100 for n in range(100)]
        found = await prepare(running, BATCH, "0.1", arrow(*values[:60]), arrow(*values[60:]), maxHalfBatchBytes="8k")
        assert (found.decided, found.messages, found.attempt, found.query_id) == (False, 100, "0.1", "spark-id")
        assert found.half_batches > 5
        assert await all_bodies(client) == []
        assert await asyncio.to_thread(decide, running.ports.names, BATCH, found) is False
        assert sorted(await all_bodies(client)) == values
        by_queue = [len(await bodies(client, "T", queue)) for queue in range(4)]
        assert min(by_queue) > 0, by_queue  # half batches without a queue are distributed


async def test_decided_batch_is_not_prepared_and_its_rows_are_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        first = await prepare(running, BATCH, "0.1", arrow(b"a"))
        await asyncio.to_thread(decide, running.ports.names, BATCH, first)
        end = running.state.log_end
        invalid = pa.record_batch({"value": pa.array([None], pa.binary())})
        source = iter([arrow(b"b"), invalid])  # not even looked at
        again = await asyncio.to_thread(
            task.write, source, options(running.ports.names), task.Attempt(BATCH._replace(run="r2"), "0.2"), 0, ""
        )
        assert (again.decided, again.half_batches) == (True, 0)
        assert list(source) == []
        assert running.state.log_end == end
        assert await all_bodies(client) == [b"a"]


async def test_batch_that_is_decided_meanwhile_counts_as_decided(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        first = await prepare(running, BATCH, "0.1", arrow(b"a"))
        loop = asyncio.get_running_loop()

        def rows() -> Any:
            yield arrow(b"x" * 5_000)
            deciding = asyncio.run_coroutine_threadsafe(
                asyncio.to_thread(decide, running.ports.names, BATCH, first), loop
            )
            deciding.result(PATIENCE_S)
            for _ in range(5):
                yield arrow(b"y" * 5_000)
                ended.append(False)

        ended: list[bool] = []
        given = options(running.ports.names, maxHalfBatchBytes="4k")
        found = await asyncio.to_thread(task.write, rows(), given, task.Attempt(BATCH, "0.2"), 0, "")
        assert found.decided
        assert len(ended) == 5  # read to the end, or Spark's writer of the pipe would block


async def test_task_of_an_old_run_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await prepare(running, BATCH, "0.1", arrow(b"a"))
        await prepare(running, BATCH._replace(run="r2"), "0.1", arrow(b"a"))
        with pytest.raises(TransactionRefused, match="another run of this query"):
            await prepare(running, BATCH, "0.2", arrow(b"a"))


async def test_invalid_row_fails_the_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        bad = pa.record_batch({"value": pa.array([b"a", None], pa.binary())})
        with pytest.raises(UsageError, match="value is null in 1 of 2 rows"):
            await prepare(running, BATCH, "0.1", bad)


async def test_rows_of_many_queues_are_collected_and_keep_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        batches = [
            arrow(*[f"{n:03}".encode() for n in range(start, start + 8)], sharding_key=[f"s{n % 3}" for n in range(start, start + 8)])
            for start in range(0, 160, 8)
        ]  # fmt: skip
        found = await prepare(running, BATCH, "0.1", *batches)
        queues = {abs(hash_) % 4 for hash_ in map(java_string_hash, ("s0", "s1", "s2"))}
        assert found.half_batches == len(queues)
        await asyncio.to_thread(decide, running.ports.names, BATCH, found)
        for queue in range(4):
            in_queue = await bodies(client, "T", queue)
            assert in_queue == sorted(in_queue)
        assert len(await all_bodies(client)) == 160
