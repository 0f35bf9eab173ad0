"""The driver's decision: first one stands, repeated ones are successes, contradictions and losses stop the query."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.half_batches import bodies
from tests.support.in_process import Running, serving
from tests.support.sink_runs import arrow, options, prepare

from halfmq.errors import EnvironmentFailed, TransactionIncomplete, TransactionRefused
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import decide
from halfmq.spark.sink.checkpoint import read_batch_input
from halfmq.spark.sink.task import Prepared

BATCH = QueryBatch("q", 0, "r1")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    made = tmp_path / "c"
    (made / "offsets").mkdir(parents=True)
    (made / "metadata").write_text(json.dumps({"id": "spark-id"}))
    offsets(made, 0, "input")
    return made


def offsets(checkpoint: Path, batch: int, source: str) -> None:
    """Of this batch, and of the one before, without which no batch has a beginning."""
    for number, line in ((batch - 1, "before"), (batch, source)):
        if number >= 0:
            (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")


async def commit(running: Running, checkpoint: Path, number: int, *messages: Prepared) -> None:
    given = options(running.ports.names, checkpointLocation=str(checkpoint))
    await asyncio.to_thread(decide.decide_stream, messages, given, number)


async def visible(running: Running) -> list[bytes]:
    client = await running.client()
    return [body for queue in range(4) for body in await bodies(client, "T", queue)]


async def test_commit_makes_rows_of_all_tasks_visible_once(tmp_path: Path, checkpoint: Path) -> None:
    async with serving(tmp_path / "store") as running:
        one = await prepare(running, BATCH, "0.1", arrow(b"a"))
        lost = await prepare(running, BATCH, "1.2", arrow(b"lost"))
        two = await prepare(running, BATCH, "1.3", arrow(b"b"))
        empty = await prepare(running, BATCH, "2.4")
        assert (lost.half_batches, empty.half_batches) == (1, 0)
        for _ in range(2):
            await commit(running, checkpoint, 0, one, two, empty)
            assert sorted(await visible(running)) == [b"a", b"b"]


async def test_batch_without_rows_or_tasks(tmp_path: Path, checkpoint: Path) -> None:
    async with serving(tmp_path / "store") as running:
        await commit(running, checkpoint, 0)
        assert ("q", "") not in running.state.queries
        await commit(running, checkpoint, 0, await prepare(running, BATCH, "0.1"))
        assert running.state.queries["q", ""].last_batch == 0
        await commit(running, checkpoint, 0, await prepare(running, BATCH, "0.2", arrow(b"late")))
        assert await visible(running) == []


async def test_batch_that_comes_again_with_the_same_input(tmp_path: Path, checkpoint: Path) -> None:
    async with serving(tmp_path / "store") as running:
        await commit(running, checkpoint, 0, await prepare(running, BATCH, "0.1", arrow(b"a")))
        again = await prepare(running, BATCH._replace(run="r2"), "0.1", arrow(b"a"))
        assert again.decided
        await commit(running, checkpoint, 0, again)
        assert await visible(running) == [b"a"]


@pytest.mark.parametrize("known_by", ["task", "decision"])
async def test_batch_that_comes_again_with_other_input_stops(tmp_path: Path, checkpoint: Path, known_by: str) -> None:
    async with serving(tmp_path / "store") as running:
        first = await prepare(running, BATCH, "0.1", arrow(b"a"))
        await commit(running, checkpoint, 0, first)
        offsets(checkpoint, 0, "other input")
        if known_by == "task":
            first = await prepare(running, BATCH._replace(run="r2"), "0.1", arrow(b"b"))
        with pytest.raises(TransactionRefused, match="decided with other content") as caught:
            await commit(running, checkpoint, 0, first)
        assert caught.value.standing == "COMMITTED"
        assert await visible(running) == [b"a"]


def files(checkpoint: Path, batch: int, *paths: str) -> None:
    """Batch ``batch`` of a file source, whose entries have these files."""
    for number in range(batch + 1):
        (checkpoint / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"logOffset":{number}}}')
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    entries = [json.dumps({"path": path, "timestamp": 1, "batchId": batch}) for path in paths]
    (log / str(batch)).write_text("\n".join(["v1", *entries]))


async def test_restored_checkpoint_of_a_file_source_stops(tmp_path: Path, checkpoint: Path) -> None:
    """Its line of offsets is the same for other files."""
    async with serving(tmp_path / "store") as running:
        batch = BATCH._replace(batch=1)
        files(checkpoint, 1, "file:///in/b")
        for run, other in (("r1", ()), ("r2", ()), ("r3", ("file:///in/c",))):
            files(checkpoint, 1, "file:///in/b", *other)
            found = await prepare(running, batch._replace(run=run), "0.1", arrow(b"b"))
            if not other:
                await commit(running, checkpoint, 1, found)
                continue
            with pytest.raises(TransactionRefused, match="decided with other content"):
                await commit(running, checkpoint, 1, found)
        assert await visible(running) == [b"b"]


@pytest.mark.parametrize("given", [{}, {"txnAppId": "app", "txnVersion": "0"}])
async def test_batch_whose_logs_have_grown_since_is_the_same(
    tmp_path: Path, checkpoint: Path, given: dict[str, str]
) -> None:
    """a.union(b).union(c).union(c), where the newer entry of b makes it seem a.union(a).union(b).union(c)."""
    lines = ['{"logOffset":0}'] * 2 + ['{"logOffset":1}'] * 2
    offsets(checkpoint, 0, "\n".join(lines))

    def entry(source: int, number: int) -> None:
        path = checkpoint / "sources" / str(source) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1\n" + json.dumps({"path": f"{source}-{number}", "timestamp": 1, "batchId": number}))

    async def write(running: Running, run: str) -> None:
        batch = BATCH._replace(run=run)
        found = await prepare(running, batch, "0.1", arrow(b"a"))
        if not given:
            await commit(running, checkpoint, 0, found)
            return
        made = options(running.ports.names, checkpointLocation=str(checkpoint), **given)
        await asyncio.to_thread(decide.decide_batch_write, [found], made, batch)

    for source, number in ((0, 0), (1, 0), (2, 0), (2, 1)):
        entry(source, number)
    async with serving(tmp_path / "store") as running:
        await write(running, "r1")
        decided_by = read_batch_input(checkpoint, 0).digest
        entry(1, 1)
        assert read_batch_input(checkpoint, 0).digest != decided_by
        await write(running, "r2")
        assert await visible(running) == [b"a"]


async def test_unknown_source_works_and_is_warned_of_once(
    tmp_path: Path, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "store") as running:
        for number in (0, 1):
            offsets(checkpoint, number, f'{{"mine":{number}}}')
            batch = BATCH._replace(batch=number)
            await commit(running, checkpoint, number, await prepare(running, batch, "0.1", arrow(b"%d" % number)))
        assert sorted(await visible(running)) == [b"0", b"1"]
    said = [record.message for record in caplog.records if "known only by the line of their source" in record.message]
    assert len(said) == 1
    assert '{"mine":0}' in said[0]
    assert str(checkpoint) in said[0]


async def test_known_source_is_not_warned_of(
    tmp_path: Path, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "store") as running:
        files(checkpoint, 0, "file:///in/a")
        await commit(running, checkpoint, 0, await prepare(running, BATCH, "0.1", arrow(b"a")))
    assert not [record for record in caplog.records if record.name == "halfmq.spark"]


async def test_batch_of_an_old_checkpoint_stops(tmp_path: Path, checkpoint: Path) -> None:
    async with serving(tmp_path / "store") as running:
        offsets(checkpoint, 5, "input")
        batch = BATCH._replace(batch=5)
        await commit(running, checkpoint, 5, await prepare(running, batch, "0.1", arrow(b"a")))
        old = await prepare(running, BATCH._replace(batch=0, run="r2"), "0.1", arrow(b"b"))
        with pytest.raises(TransactionRefused, match=r"decided long ago .the last one is 5."):
            await commit(running, checkpoint, 0, old)


async def test_half_batch_that_is_missing_leaves_the_batch_undecided(tmp_path: Path, checkpoint: Path) -> None:
    async with serving(tmp_path / "store") as running:
        found = await prepare(running, BATCH, "0.1", arrow(b"a"))
        lost = Prepared("spark-id", BATCH, "1.2", False, 1, 1, 5)
        with pytest.raises(TransactionIncomplete, match=r"attempt 1\.2"):
            await commit(running, checkpoint, 0, found, lost)
        assert await visible(running) == []
        await commit(running, checkpoint, 0, found)


async def test_decision_that_is_gone_is_not_made_again_without_the_rows(tmp_path: Path, checkpoint: Path) -> None:
    """A task was told that the batch is decided, and the driver meets another store."""
    async with serving(tmp_path / "store") as running:
        told = Prepared("spark-id", BATCH, "0.1", True)
        with pytest.raises(TransactionRefused, match="the store of the broker was replaced"):
            await commit(running, checkpoint, 0, told)
        assert ("q", "") not in running.state.queries


async def test_offsets_are_synced_before_the_decision(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    secure, real = decide.Checkpoint.secure, decide.SinkBroker.decide
    monkeypatch.setattr(decide.Checkpoint, "secure", lambda self, n: (order.append("sync"), secure(self, n))[1])
    monkeypatch.setattr(
        decide.SinkBroker, "decide", lambda self, *a, **k: (order.append("decide"), real(self, *a, **k))[1]
    )
    async with serving(tmp_path / "store") as running:
        await commit(running, checkpoint, 0, await prepare(running, BATCH, "0.1", arrow(b"a")))
    assert order == ["sync", "decide"]


@pytest.mark.parametrize(
    ("metadata", "number", "said"),
    [
        ('{"id": "another"}', 0, "is the checkpoint of query another, not of spark-id"),
        ('{"id": "spark-id"}', 1, "Spark commits batch 1 with tasks of"),
    ],
)
async def test_wrong_checkpoint_or_batch(
    tmp_path: Path, checkpoint: Path, metadata: str, number: int, said: str
) -> None:
    (checkpoint / "metadata").write_text(metadata)
    async with serving(tmp_path / "store") as running:
        found = await prepare(running, BATCH, "0.1", arrow(b"a"))
        with pytest.raises(EnvironmentFailed, match=said):
            await commit(running, checkpoint, number, found)
        assert await visible(running) == []


async def test_batch_write_is_told_by_its_version(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as running:
        given: dict[str, Any] = {"txnAppId": "app", "txnVersion": "4"}
        made = options(running.ports.names, **given)
        for run in ("r1", "r2"):
            batch = QueryBatch("app", 4, run)
            found = await prepare(running, batch, "0.1", arrow(run.encode()), **given)
            assert found.decided == (run == "r2")
            await asyncio.to_thread(decide.decide_batch_write, [found], made, batch)
        assert await visible(running) == [b"r1"]


async def test_batch_write_with_the_checkpoint_of_its_stream_is_told_by_its_input(
    tmp_path: Path, checkpoint: Path
) -> None:
    """In ``foreachBatch``; without the checkpoint the number alone says what it is."""
    async with serving(tmp_path / "store") as running:
        given: dict[str, Any] = {"txnAppId": "app", "txnVersion": "1"}
        files(checkpoint, 1, "file:///in/b")

        async def write(run: str, **more: str) -> None:
            batch = QueryBatch("app", 1, run)
            found = await prepare(running, batch, "0.1", arrow(run.encode()), **given)
            made = options(running.ports.names, **given, **more)
            await asyncio.to_thread(decide.decide_batch_write, [found], made, batch)

        await write("r1", checkpointLocation=str(checkpoint))
        await write("r2", checkpointLocation=str(checkpoint))
        files(checkpoint, 1, "file:///in/b", "file:///in/c")
        with pytest.raises(TransactionRefused, match="decided with other content"):
            await write("r3", checkpointLocation=str(checkpoint))
        assert await visible(running) == [b"r1"]


async def test_batch_write_that_was_decided_without_a_checkpoint_is_the_same(tmp_path: Path, checkpoint: Path) -> None:
    async with serving(tmp_path / "store") as running:
        given: dict[str, Any] = {"txnAppId": "app", "txnVersion": "1"}
        files(checkpoint, 1, "file:///in/b")
        for run, more in (("r1", {}), ("r2", {"checkpointLocation": str(checkpoint)})):
            batch = QueryBatch("app", 1, run)
            found = await prepare(running, batch, "0.1", arrow(run.encode()), **given)
            made = options(running.ports.names, **given, **more)
            await asyncio.to_thread(decide.decide_batch_write, [found], made, batch)
        assert await visible(running) == [b"r1"]


async def test_batch_write_with_a_smaller_version_stops(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as running:
        for version in (4, 3):
            given: dict[str, Any] = {"txnAppId": "app", "txnVersion": str(version)}
            batch = QueryBatch("app", version, f"r{version}")
            found = await prepare(running, batch, "0.1", arrow(b"a"), **given)
            work = asyncio.to_thread(decide.decide_batch_write, [found], options(running.ports.names, **given), batch)
            if version == 4:
                await work
                continue
            with pytest.raises(
                TransactionRefused, match="txnVersion 3 of query app is smaller than 4, which was written last"
            ):
                await work
        assert await visible(running) == [b"a"]


async def test_failed_batch_write_is_dropped_by_the_broker_and_its_tasks_that_still_run(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as running:
        await prepare(running, BATCH, "0.1", arrow(b"a"))
        made = options(running.ports.names)
        await asyncio.to_thread(decide.abort_batch_write, made, BATCH)
        assert running.state.derived.undecided_count == 0
        assert (await prepare(running, BATCH, "1.2", arrow(b"b"))).decided
        assert await visible(running) == []


async def test_abort_after_a_commit_that_took_effect_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as running:
        made = options(running.ports.names)
        found = await prepare(running, BATCH, "0.1", arrow(b"a"))
        await asyncio.to_thread(decide.decide_batch_write, [found], made, BATCH)
        await asyncio.to_thread(decide.abort_batch_write, made, BATCH)
        assert await visible(running) == [b"a"]


async def test_abort_leaves_a_write_that_may_be_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as running:
        given: dict[str, Any] = {"txnAppId": "app", "txnVersion": "4"}
        made = options(running.ports.names, **given)
        await prepare(running, QueryBatch("app", 4, "r1"), "0.1", arrow(b"a"))
        await asyncio.to_thread(decide.abort_batch_write, made, QueryBatch("app", 4, "r1"))
        again = await prepare(running, QueryBatch("app", 4, "r2"), "0.1", arrow(b"b"))
        await asyncio.to_thread(decide.decide_batch_write, [again], made, QueryBatch("app", 4, "r2"))
        assert await visible(running) == [b"b"]


def test_abort_without_a_broker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    decide.abort_batch_write(options(1, brokerTimeout="10ms"), BATCH)
    assert "stays undecided" in caplog.text
