"""A task with ``atLeastOnce`` sends its rows at once: visible without a decision, in the order of each queue, with ids that a repeated
attempt has again."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.half_batches import bodies
from tests.support.in_process import Running, serving
from tests.support.sink_runs import arrow, options

from halfmq.errors import UsageError
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import at_least_once
from halfmq.spark.sink.at_least_once import PlainBrokers

BATCH = QueryBatch("q", 0, "r1")


async def write(
    running: Running, *batches: pa.RecordBatch, batch: QueryBatch = BATCH, partition: int = 0, **given: str
) -> int:
    made = options(running.ports.names, guarantee="atLeastOnce", **given)
    confirmed = await asyncio.to_thread(at_least_once.write, iter(batches), made, batch, partition)
    return confirmed.messages


async def all_bodies(running: Running, topic: str = "T") -> list[bytes]:
    client = await running.client()
    return [body for queue in range(4) for body in await bodies(client, topic, queue)]


async def test_rows_are_visible_without_a_decision_in_all_queues(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        values = [f"{n:04}".encode() * 100 for n in range(100)]
        assert await write(running, arrow(*values[:60]), arrow(*values[60:]), maxHalfBatchBytes="8k") == 100
        client = await running.client()
        by_queue = [await bodies(client, "T", queue) for queue in range(4)]
        assert sorted(body for queue in by_queue for body in queue) == values
        assert min(map(len, by_queue)) > 0


async def test_rows_of_many_queues_and_topics_keep_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        batches = [
            arrow(
                *[f"{n:03}".encode() for n in range(start, start + 8)], topic=[f"T{n % 2}" for n in range(start, start + 8)],
                sharding_key=[f"s{n % 3}" for n in range(start, start + 8)],
            )
            for start in range(0, 160, 8)
        ]  # fmt: skip
        assert await write(running, *batches, topic="", maxHalfBatchBytes="4k") == 160
        for topic in ("T0", "T1"):
            queues = [await bodies(client, topic, queue) for queue in range(4)]
            assert all(found == sorted(found) for found in queues)
            assert sum(map(len, queues)) == 80


async def test_large_rows_are_ordinary_messages(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=16 << 20) as running:
        largest = b"x" * (4 << 20)
        await write(running, arrow(b"a", largest, b"b", queue=[1, 1, 1]))
        assert await bodies(await running.client(), "T", 1) == [b"a", largest, b"b"]


async def test_repeated_attempt_has_the_same_ids_and_is_no_reason_to_lose_rows(tmp_path: Path) -> None:
    """A halfmq broker drops messages with the id and the body of an earlier one; the order of the rows may have changed."""
    async with serving(tmp_path) as running:
        rows = arrow(b"a", b"b", b"a", b"c", key=["1", "2", "3", "4"])
        await write(running, rows)
        await write(running, rows.slice(0, 1), rows.slice(1, 1), rows.slice(2))  # as Spark may divide them
        assert sorted(await all_bodies(running)) == [b"a", b"a", b"b", b"c"]
        swapped = rows.take(pa.array([2, 3, 0, 1]))
        await write(running, swapped)
        assert sorted(await all_bodies(running)) == sorted([b"a", b"a", b"b", b"c"] * 2)
        await write(running, rows, partition=1)
        await write(running, rows, batch=BATCH._replace(batch=1))
        assert len(await all_bodies(running)) == 16


async def test_invalid_row_fails_the_task_and_what_was_sent_stays(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        bad = pa.record_batch({"value": pa.array([b"a", None], pa.binary())})
        with pytest.raises(UsageError, match="value is null in 1 of 2 rows"):
            await write(running, arrow(b"x" * 5_000), bad, maxHalfBatchBytes="4k")


async def test_number_of_a_queue_needs_one_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        await write(running, arrow(b"a", queue=[3]))
        with pytest.raises(UsageError, match="queue 4 does not exist in 1 rows"):
            await write(running, arrow(b"a", queue=[4]))
        monkeypatch.setattr(PlainBrokers, "brokers", lambda *_: ["a", "b"])
        with pytest.raises(UsageError, match="a number names no queue of topic T, which several brokers have: a, b"):
            await write(running, arrow(b"a", queue=[3]))
        nothing: Any = pa.array([None], pa.int32())
        await write(running, arrow(b"a", queue=nothing, sharding_key=["s"]))
