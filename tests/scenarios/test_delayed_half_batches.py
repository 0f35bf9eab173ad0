"""Half batches whose messages have delays: after the decision each is a delayed message, visible once, at its time."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.half_batches import QueryRun, bodies, messages
from tests.support.in_process import Running, ShiftedClock, serving
from tests.support.raw_client import property_string
from tests.support.waiting import until

from halfmq.core.commands import Tick
from halfmq.model.half_batch import HalfMessage
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.store.verify import verify_store


def delayed(prefix: str, delays_ms: Sequence[int], **properties: str) -> list[HalfMessage]:
    """Messages with bodies ``PREFIX-NUMBER``, each with its delay from the decision."""
    return [
        HalfMessage(
            0, 0, f"{prefix}-{number}".encode(),
            property_string(UNIQ_KEY=f"{prefix}{number:032d}", TIMER_DELAY_MS=str(delay), **properties).encode(),
        )
        for number, delay in enumerate(delays_ms)
    ]  # fmt: skip


async def advance(clock: ShiftedClock, running: Running, ms: int) -> None:
    """Let time pass. The broker sleeps in real time until the next deadline that it knows, so a request wakes it."""
    clock.passed_ms += ms
    running.broker._timer.stop()
    assert (await (await running.client()).send("OTHER", b"tick")).code == 0


async def prepare(run: QueryRun, batch: int, attempt: str, found: list[HalfMessage], **changes: object) -> None:
    answer = await run.prepare(batch, attempt, found, delayed=1, **changes)
    assert answer.code == 0, answer


async def whole(run: QueryRun, topic: str) -> tuple[list[bytes], int, int]:
    """Bodies, first and next offset of queue 0. Read again if retention removed messages meanwhile."""
    while True:
        low, high = await run.bounds(topic)
        found = await bodies(run.client, topic=topic, first=low)
        if await run.bounds(topic) == (low, high):
            return found, low, high


async def test_messages_become_visible_in_the_order_of_their_times_and_others_at_once(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        await prepare(run, 0, "0.1", delayed("a", [60_000, 20_000, 40_000]))
        assert (await run.prepare(0, "0.1", messages("now", 2))).code == 0
        await prepare(run, 0, "0.1", delayed("b", [10_000]), queue=1)
        await prepare(run, 0, "0.2", delayed("lost", [1_000]))
        await advance(clock, running, 30_000)  # a delay begins with the decision
        assert (await run.decide(0, "0.1")).code == 0
        assert await bodies(client) == [b"now-0", b"now-1"]
        assert len(running.state.delayed) == 4
        await advance(clock, running, 25_000)
        await until(lambda: len(running.state.delayed) == 2)
        assert await bodies(client) == [b"now-0", b"now-1", b"a-1"]
        assert await bodies(client, queue=1) == [b"b-0"]
        await advance(clock, running, 60_000)
        await until(lambda: not running.state.delayed)
        assert await bodies(client) == [b"now-0", b"now-1", b"a-1", b"a-2", b"a-0"]
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_point_in_time_and_past_times(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        now_ms = time.time_ns() // 1_000_000
        found = [
            HalfMessage(0, 0, body, property_string(UNIQ_KEY=body.decode(), TIMER_DELIVER_MS=str(at_ms)).encode())
            for body, at_ms in ((b"later", now_ms + 60_000), (b"past", now_ms - 1_000))
        ]
        await prepare(run, 0, "0.1", found)
        assert (await run.decide(0, "0.1")).code == 0
        await until(lambda: len(running.state.delayed) == 1)
        assert await bodies(client) == [b"past"]
        await advance(clock, running, 61_000)
        await until(lambda: not running.state.delayed)
        assert await bodies(client) == [b"past", b"later"]


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_restarts_before_and_after_the_decision_and_between_two_releases(tmp_path: Path, rebuilt: bool) -> None:
    clock = ShiftedClock()

    async def restarted(running: Running) -> QueryRun:
        run.client = await running.client()
        return run

    def lose_indexes() -> None:
        for name in ("queues", "transactions", "keys", "topics.json", "checkpoint") if rebuilt else ():
            shutil.rmtree(tmp_path / "shard-0" / name, ignore_errors=True)
            (tmp_path / "shard-0" / name).unlink(missing_ok=True)

    async with serving(tmp_path, clock=clock) as running:
        run = await QueryRun.begin(await running.client())
        await prepare(run, 0, "0.1", delayed("a", [60_000, 20_000, 40_000], KEYS="k1"))
    lose_indexes()
    async with serving(tmp_path, clock=clock) as running:
        await restarted(running)
        assert (await run.decide(0, "0.1")).code == 0
    lose_indexes()
    async with serving(tmp_path, clock=clock) as running:
        await restarted(running)
        assert len(running.state.delayed) == 3
        await advance(clock, running, 25_000)
        await until(lambda: len(running.state.delayed) == 2)
        assert await bodies(run.client) == [b"a-1"]
        assert (await run.decide(0, "0.1")).ext["repeated"] == "true"
    lose_indexes()
    async with serving(tmp_path, clock=clock) as running:
        await restarted(running)
        assert await bodies(run.client) == [b"a-1"]
        await advance(clock, running, 60_000)
        await until(lambda: not running.state.delayed)
        assert await bodies(run.client) == [b"a-1", b"a-2", b"a-0"]
        by_key = await run.client.ask(
            12, {"topic": "T", "key": "k1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        )
        assert {body for body in (b"a-0", b"a-1", b"a-2") if body in by_key.body} == {b"a-0", b"a-1", b"a-2"}
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_lookup_by_offset_finds_a_message_once_it_is_visible(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        await prepare(run, 0, "0.1", delayed("a", [20_000]))
        assert (await run.decide(0, "0.1")).code == 0
        (first_offset,) = running.state.delayed
        assert (await client.ask(33, {"offset": str(first_offset)})).code != 0
        await advance(clock, running, 20_000)
        await until(lambda: not running.state.delayed)
        found = await client.ask(33, {"offset": str(first_offset)})
        assert found.code == 0
        assert b"a-0" in found.body


async def test_copies_and_trims_keep_each_message_once(tmp_path: Path) -> None:
    """Segments of 64 KiB: the half batches are copied before and after their decisions, and their first segments are removed."""
    clock = ShiftedClock()
    settings = BrokerSettings(dedup_window_ms=0)
    async with serving(
        tmp_path, clock=clock, segment_bytes=1 << 16, settings=settings, retention_bytes=1 << 18, retention_check_ms=10
    ) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        slow = await QueryRun.begin(client, query="slow", group="SLOW")
        await prepare(slow, 0, "0.1", delayed("slow", range(100_000, 102_000, 100)), topic="S")
        for batch in range(12):
            for part in range(5):
                # A delay counts from the decision, so batches are further apart than decisions are on a slow machine.
                first_ms = 600_000 - batch * 40_000 - part * 4_000
                found = delayed(f"{batch}.{part}", [first_ms - 100 * n for n in range(40)])
                await prepare(run, batch, "0.1", found)
                assert (await client.send("T", bytes(2_000), queue=1)).code == 0
            assert (await run.decide(batch, "0.1")).code == 0

        async def is_trimmed() -> bool:
            """A trim waits for an hour, or until recent copies are the smaller part of what it removes: more messages are needed."""
            assert (await client.send("T", bytes(2_000), queue=1)).code == 0
            return running.state.log_start > 5 << 16

        await until(is_trimmed)
        assert len(running.state.delayed) == 2_400
        assert (await slow.decide(0, "0.1")).code == 0
        await advance(clock, running, 700_000)
        await until(lambda: not running.state.delayed)
        waited = [f"{batch}.{part}-{n}".encode() for batch in range(12) for part in range(5) for n in range(40)]
        for topic, expected in (("T", waited[::-1]), ("S", [f"slow-{n}".encode() for n in range(20)])):
            found, low, high = await whole(run, topic)
            assert high == len(expected)
            assert found == expected[low:]  # retention may have removed the first
        assert (await run.bounds())[0] < 2_000
    assert not verify_store(RealDisk(), tmp_path).findings


async def test_payload_that_contradicts_its_properties_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        run = await QueryRun.begin(await running.client())
        two = delayed("a", [1_000, 2_000])
        stated = run.payload(two, "T", 0, delayed=True)
        other = run.payload(delayed("a", [1_000, 9_000]), "T", 0, delayed=True)
        delays_at = len(stated) - 2 * 28
        for found, payload, said, why in (
            (two, None, 0, "is not said to have delayed messages"),
            (messages("a", 2), None, 1, "it has no delay"),
            (two, stated[:delays_at] + other[delays_at : delays_at + 16] + stated[-40:], 1, "another one"),
            (delayed("a", [1_000, 4 * 86_400_000]), None, 1, "3 days"),
            (two, stated, 0, "message 0 ends beyond|wrong|entry|bytes between|delayed"),
        ):
            payload = payload or run.payload(found, "T", 0, delayed=said == 1)
            answer = await run.prepare(0, "0.1", found, delayed=said, payload=payload)
            assert answer.code != 0
            assert any(part in (answer.remark or "") for part in why.split("|")), answer.remark
        assert running.state.derived.undecided_count == 0


async def test_limit_of_delayed_messages_counts_each_message(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(delayed_total_max=5)) as running:
        run = await QueryRun.begin(await running.client())
        too_many = await run.prepare(0, "0.1", delayed("a", [60_000] * 6), delayed=1)
        assert "--delayed-total-max" in (too_many.remark or ""), too_many
        await prepare(run, 0, "0.1", delayed("b", [60_000] * 4))
        assert (await run.decide(0, "0.1")).code == 0
        refused = await run.prepare(1, "0.1", delayed("c", [60_000] * 2), delayed=1)
        assert refused.code != 0
        assert "has 4 delayed messages" in (refused.remark or ""), refused


async def test_undecided_half_batches_count_for_the_limit_of_delayed_messages(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(delayed_total_max=10)) as running:
        run = await QueryRun.begin(await running.client())
        for _ in range(2):
            await prepare(run, 0, "0.1", delayed(f"a{run.prepared.get((0, '0.1'), [0])[0]}", [60_000] * 4))
        refused = await run.prepare(0, "0.2", delayed("b", [60_000] * 3), delayed=1)
        assert "undecided half batches have 8" in (refused.remark or ""), refused
    async with serving(tmp_path, settings=BrokerSettings(delayed_total_max=10)) as running:
        run.client = await running.client()
        assert running.state.derived.undecided_delayed == 8
        assert (await run.decide(0, "0.1")).code == 0
        assert (running.state.derived.undecided_delayed, len(running.state.delayed)) == (0, 8)


async def test_others_are_served_while_many_messages_of_one_time_are_released(tmp_path: Path) -> None:
    """Ticks follow one another, and one had taken long: nobody must wait for the last one."""
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock, segment_bytes=8 << 20) as running:
        client, other = await running.client(), await running.client()
        run = await QueryRun.begin(client)
        for part in range(4):
            await prepare(run, 0, "0.1", delayed(f"a{part}", [60_000] * 5_000))
        assert (await run.decide(0, "0.1")).code == 0
        sequencer = running.broker._sequencer
        waiting = []

        async def look() -> None:
            for _ in range(3):
                assert (await other.ask(30, {"topic": "T", "queueId": "0"})).code == 0
                waiting.append(len(running.state.delayed))
                assert sum(type(command) is Tick for command, _, _ in sequencer._pending) <= 2

        sequencer.pace.took_s[Tick] = 60.0
        await advance(clock, running, 60_000)
        sequencer.pace.took_s[Tick] = 60.0
        await look()
        assert waiting[0] > 0, "answered only after the last message"
        await until(lambda: not running.state.delayed)
        assert (await run.bounds())[1] == 20_000
