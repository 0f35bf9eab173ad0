"""Exactly once for an application that repeats its last batch after a crash: half batches and decisions over raw frames."""

import asyncio
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.support.half_batches import QueryRun, bodies, messages
from tests.support.in_process import serving
from tests.support.waiting import until

from halfmq import limits
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqBatchReader
from halfmq.store import consume_queue, indexes
from halfmq.store.verify import verify_store


async def test_winners_become_visible_at_once_and_losers_never(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        for answer in (
            await run.prepare(0, "0.1", messages("a", 3)),
            await run.prepare(0, "0.2", messages("lost", 2)),
            await run.prepare(0, "0.1", messages("b", 2), queue=1),
            await run.prepare(0, "1.3", messages("c", 1)),
        ):
            assert answer.code == 0, answer
        assert await bodies(client) == []
        decided = await run.decide(0, "0.1", "1.3")
        assert (decided.code, decided.ext["repeated"]) == (0, "false")
        assert await bodies(client) == [b"a-0", b"a-1", b"a-2", b"c-0"]
        assert await bodies(client, queue=1) == [b"b-0", b"b-1"]
        assert running.state.derived.undecided_count == 0
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_decision_is_repeated_with_its_digest_and_contradicted_with_another(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        await run.prepare(0, "0.1", messages("a", 3))
        first = await run.decide(0, "0.1")
        again = await run.decide(0, "0.1")
        assert (again.code, again.ext["repeated"], again.ext["position"]) == (0, "true", first.ext["position"])
        other = await run.decide(0, "0.1", digest="other")
        assert (other.code, other.ext["HMQ_VERDICT"], other.ext["HMQ_POSITION"]) == (
            604, "COMMITTED", first.ext["position"],
        )  # fmt: skip
        late = await run.prepare(0, "0.2", messages("late", 1))
        assert (late.code, late.ext["HMQ_VERDICT"]) == (604, "COMMITTED")
        assert await bodies(client) == [b"a-0", b"a-1", b"a-2"]


async def test_missing_half_batch_of_a_winner_refuses_the_decision(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        await run.prepare(0, "0.1", messages("a", 3))
        run.prepared[0, "0.1"][0] += 1
        missing = await run.decide(0, "0.1")
        assert (missing.code, missing.ext.get("missing")) == (604, "true"), missing
        run.prepared[0, "0.1"][0] -= 1
        run.prepared[0, "0.1"][2] ^= 1
        assert (await run.decide(0, "0.1")).ext.get("missing") == "true"
        assert (await run.decide(0, "0.1", "7.7")).ext.get("missing") == "true"
        run.prepared[0, "0.1"][2] ^= 1
        assert (await run.decide(0, "0.1")).code == 0
        assert len(await bodies(client)) == 3


async def test_new_run_supersedes_what_the_old_one_has_prepared(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        old = await QueryRun.begin(client)
        await old.prepare(0, "0.1", messages("old", 3))
        new = await QueryRun.begin(client, run="r2")
        assert (await new.prepare(0, "0.1", messages("new", 2))).code == 0
        assert running.state.derived.undecided_count == 1
        for answer in (
            await old.prepare(0, "0.2", messages("late", 1)),
            await old.decide(0, "0.1"),
            await old.decision(0),
        ):
            assert (answer.code, answer.ext.get("fenced")) == (604, "true"), answer
        assert (await new.decide(0, "0.1")).code == 0
        assert await bodies(client) == [b"new-0", b"new-1"]


async def test_empty_batch_is_decided_and_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        found = await run.decision(5)
        assert (found.ext["decided"], found.ext["lastBatch"]) == ("false", "-1")
        assert (await run.decide(5)).code == 0
        found = await run.decision(5)
        assert (found.ext["decided"], found.ext["digest"], found.ext["lastBatch"]) == ("true", f"{ord('d'):032x}", "5")
        early = await run.decision(4)
        assert (early.ext["decided"], early.ext["digest"]) == ("true", "")
        assert (await run.decide(4)).ext["HMQ_VERDICT"] == "COMMITTED"


async def test_decisions_and_prepared_batches_survive_a_restart_and_a_rebuild(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        await run.prepare(0, "0.1", messages("a", 3, KEYS="k1 k2", TAGS="red"))
        await run.decide(0, "0.1")
        await run.prepare(1, "0.1", messages("b", 2))
    for removed in ((), ("queues", "transactions", "keys", "topics.json", "checkpoint")):
        for name in removed:
            shutil.rmtree(tmp_path / "shard-0" / name, ignore_errors=True)
            (tmp_path / "shard-0" / name).unlink(missing_ok=True)
        async with serving(tmp_path) as running:
            client = await running.client()
            run.client = client
            assert (await run.decide(0, "0.1")).ext["repeated"] == "true"
            assert await bodies(client) == [b"a-0", b"a-1", b"a-2"]
            by_key = await client.ask(
                12, {"topic": "T", "key": "k2", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
            )
            assert by_key.body.count(b"a-") >= 3
            assert running.state.derived.undecided_count == 1
        assert not verify_store(RealDisk(), tmp_path).findings
    async with serving(tmp_path) as running:
        client = await running.client()
        run.client = client
        assert (await run.decide(1, "0.1", digest="e")).ext["repeated"] == "false"
        assert await bodies(client) == [b"a-0", b"a-1", b"a-2", b"b-0", b"b-1"]
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_transaction_of_half_batches_without_a_query_ends_like_any_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        plain = {"query": "", "txId": "tx-1"}
        one = await run.prepare(0, "", messages("a", 3), **plain, index=0)
        end = {
            "producerGroup": "SPARK", "tranStateTableOffset": one.ext["halfIndex"], "commitLogOffset": one.ext["offset"],
            "msgId": "tx-1", "transactionId": "tx-1", "fromTransactionCheck": "false", "commitOrRollback": "8",
        }  # fmt: skip
        assert (await client.ask(37, end)).code == 604  # incomplete
        two = await run.prepare(0, "", messages("b", 2), **plain, index=1, count=2, queue=0)
        assert two.code == 0, two
        ended = await client.ask(37, end)
        assert (ended.code, ended.ext["HMQ_VERDICT"]) == (0, "COMMITTED"), ended
        assert (await client.ask(37, end)).ext["HMQ_REPEATED"] == "true"
        assert await bodies(client) == [b"a-0", b"a-1", b"a-2", b"b-0", b"b-1"]
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_batch_is_decided_also_by_a_request_that_comes_together_with_its_half_batches(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        found = messages("a", 3)
        payload = run.payload(found, "T", 0)
        run.prepared[0, "0.1"] = [1, 3, crc32(payload)]
        preparing = asyncio.ensure_future(run.prepare(0, "0.1", found, index=0, payload=payload))
        decided = asyncio.ensure_future(run.decide(0, "0.1"))
        assert (await preparing).code == 0
        assert (await decided).code == 0, await decided
        assert await bodies(client) == [b"a-0", b"a-1", b"a-2"]


async def test_rotten_entries_refuse_a_decision_until_they_are_repaired(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        stored = await run.prepare(0, "0.1", messages("a", 3))
        offset = int(stored.ext["offset"])
        (segment, *_) = sorted((tmp_path / "shard-0" / "log").glob("*.seg"))
        head = HALF_BATCH_PAYLOAD_AT + len(run.payload(messages("a", 3), "T", 0))
        flip(segment, offset + head - 5)
        refused = await run.decide(0, "0.1")
        assert refused.code != 0
        assert "do not have their checksum" in (refused.remark or ""), refused
        assert await bodies(client) == []
        flip(segment, offset + head - 5)
        assert (await run.decide(0, "0.1")).code == 0
        assert await bodies(client) == [b"a-0", b"a-1", b"a-2"]
    assert not verify_store(RealDisk(), tmp_path).findings


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes((byte ^ 4,)))


@pytest.mark.parametrize("rounds", [12])
async def test_batches_across_segments_stay_whole_through_copies_and_trims(tmp_path: Path, rounds: int) -> None:
    """Segments of 64 KiB: every batch crosses some, and undecided ones are copied forward."""
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        slow = await QueryRun.begin(client, query="slow", group="SLOW")
        assert (await slow.prepare(0, "0.1", messages("slow", 20), topic="S")).code == 0
        expected = []
        for batch in range(rounds):
            for part in range(5):
                found = messages(f"{batch}.{part}", 40)
                assert (await run.prepare(batch, "0.1", found)).code == 0
                expected += [message.body for message in found]
            decided = await run.decide(batch, "0.1")
            assert decided.code == 0, decided
        assert await bodies(client) == expected
        assert running.state.log_end > 5 << 16
        assert (await slow.decide(0, "0.1")).code == 0
        assert len(await bodies(client, topic="S")) == 20
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_retention_removes_tied_segments_together_and_a_stream_of_large_batches_cannot_stop_it(
    tmp_path: Path,
) -> None:
    """Each batch takes more than a segment, so each decision refers to an earlier segment."""
    settings = BrokerSettings(dedup_window_ms=0)
    async with serving(
        tmp_path, segment_bytes=1 << 16, settings=settings, retention_bytes=1 << 18, retention_check_ms=10
    ) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        ties = readable = 0
        for batch in range(30):
            for part in range(10):
                assert (await run.prepare(batch, "0.1", messages(f"{batch}.{part}", 60))).code == 0
            decided = await run.decide(batch, "0.1")
            assert decided.code == 0, decided
            ties += bool(running.state.ties)
            low, high = await run.bounds()
            assert high == 600 * (batch + 1)
            first = await client.pull("T", low)
            assert first.code == 0 or (await run.bounds())[0] > low, "the first message that is there must be readable"
            readable += first.code == 0
        assert ties > 10
        assert readable > 10, "the others were trimmed between the two looks"
        await until(lambda: running.state.log_start > 10 << 16)
        assert (await run.decide(0, "0.1")).ext["repeated"] == "true"
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        run.client = client
        assert (await run.decide(0, "0.1")).ext["repeated"] == "true"
        low, high = await run.bounds()
        assert high == 18_000
        assert len(await bodies(client, first=low)) == high - low
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_spark_reads_messages_of_half_batches_from_files_and_over_the_network_alike(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        assert (await run.prepare(0, "0.1", messages("lost", 30))).code == 0
        expected = []
        for part in range(5):
            found = messages(f"won{part}", 40, KEYS="k1 k2", TAGS="red")
            assert (await run.prepare(0, "0.2", found)).code == 0
            assert (await client.send("T", b"plain")).code == 0
            expected += [message.body for message in found]
        assert (await run.decide(0, "0.2")).code == 0
        assert (await run.prepare(1, "0.1", messages("open", 30))).code == 0
        columns = "key,value,queue,offset,timestamp,tag,keys,message_id,transaction_id"

        def read(**source: str) -> list[dict[str, Any]]:
            options = {"subscribe": "T", "columns": columns, "minPartitions": "3", **source}
            reader = HalfmqBatchReader(parse_options(options).for_batch())
            return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

        loop = asyncio.get_running_loop()
        direct = await loop.run_in_executor(None, lambda: read(path=str(tmp_path)))
        wire = await loop.run_in_executor(None, lambda: read(url=f"rocketmq://127.0.0.1:{running.ports.names}"))
    assert direct == wire
    assert [row["value"] for row in direct] == [b"plain"] * 5 + expected
    assert [row["offset"] for row in direct] == list(range(205))
    first = direct[5]
    assert (first["key"], first["tag"], first["keys"], first["transaction_id"]) == (b"k1", "red", "k1 k2", None)
    assert first["message_id"].startswith("won0")


async def test_a_decision_is_visible_at_once_although_its_queue_entries_are_written_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One half batch in each round of the loop, and a reader in each. Files have the entries before readers may see them."""
    monkeypatch.setattr(limits, "SEQUENCER_STAGE_S", 0.0)
    monkeypatch.setattr(consume_queue, "MANY_BYTES_MAX", 1)
    monkeypatch.setattr(indexes, "_HALF_BATCH_COST", indexes._MESSAGES_AT_ONCE)
    async with serving(tmp_path) as running:
        client, store = await running.client(), running.broker._store
        assert store is not None
        query = await QueryRun.begin(client)
        attempts = [f"{number}.0" for number in range(60)]
        for number, attempt in enumerate(attempts):
            assert (await query.prepare(0, attempt, messages(attempt, 2), queue=number % 4)).code == 0
        deciding = asyncio.create_task(query.decide(0, *attempts))
        seen = []
        topic_id = running.state.topics_by_name["T"].topic_id
        while not deciding.done():
            ends = {store.bounds(topic_id, queue)[1] for queue in range(4)}
            seen.append((ends, store.queues.entries_written, len(store.read_queue(topic_id, 0, 0, 99))))
            await asyncio.sleep(0)
        assert (await deciding).code == 0
        assert all(ends == ({number} if number else {0}) for ends, _, number in seen)
        assert {number for _, _, number in seen} == {0, 30}
        assert len({written for ends, written, _ in seen if ends == {0}}) > 40, "it was read in between"
        assert [await bodies(client, queue=queue) for queue in range(4)] == [
            [f"{number}.0-{one}".encode() for number in range(queue, 60, 4) for one in range(2)] for queue in range(4)
        ]
