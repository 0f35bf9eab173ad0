"""The composition root: a start recovers what was there, a failed start leaves nothing behind, a drain ends well."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Calls, Hand, ShiftedClock, serving
from tests.support.waiting import soon, turns, until

from halfmq.broker.timers import DeadlineTimer
from halfmq.core.commands import Tick
from halfmq.errors import StoreFull, UsageError
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.store.store import Durability

ID = "AC10000100002A9F0000000000000001"


async def test_start_recovers_topics_groups_offsets_halves_and_verdicts(tmp_path: Path) -> None:
    for durability in (Durability.FSYNC, Durability.MEMORY):
        directory = tmp_path / durability.value
        async with serving(directory, durability=durability) as running:
            client = await running.client()
            await client.send("T", b"x", unique="1" * 32, queues=4)
            await client.heartbeat("me", consumers={"C": ["T"]})
            await client.half("T", b"open", unique=ID)
            epoch = running.state.epoch
        async with serving(directory, durability=durability) as running:
            assert running.state.epoch == epoch + 1
            client = await running.client()
            assert json.loads((await client.ask(105, {"topic": "T"})).body)["queueDatas"][0]["readQueueNums"] == 4
            assert "C" in running.state.groups
            assert ID in running.state.producer_groups["P"].undecided
            assert (await client.pull("T")).code == 0


async def test_segment_size_of_a_store_wins_over_the_setting(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        for number in range(20):
            await client.send("T", bytes(8_000), unique=f"{number:032d}")
    async with serving(tmp_path, segment_bytes=1 << 20) as running:
        client = await running.client()
        assert running.state.settings.segment_bytes == 1 << 16
        for number in range(20):
            assert (await client.send("T", bytes(8_000), unique=f"A{number:031d}")).code == 0
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).ext == {"offset": "40"}


async def test_time_in_the_log_never_goes_back(tmp_path: Path) -> None:
    class Late(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() - 3_600_000

    async with serving(tmp_path) as running:
        await (await running.client()).send("T", b"x", unique="1" * 32)
        last = running.state.batch_time_ms
    async with serving(tmp_path, clock=Late()) as running:
        assert running.state.batch_time_ms >= last


async def test_drain_leaves_a_checkpoint_so_that_the_next_start_redoes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, durability=Durability.FSYNC) as running:
        client = await running.client()
        for number in range(10):
            await client.send("T", b"x", unique=f"{number:032d}")
        await running.broker.drain()
        assert not running.broker.failed.done()
    async with serving(tmp_path) as running:
        recovery = running.broker._store.recovery  # type: ignore[union-attr]
        assert recovery.redo_from == recovery.end
        assert (await (await running.client()).pull("T")).ext["maxOffset"] == "10"


async def test_release_that_has_no_room_is_tried_again_at_leisure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a full disk does not make the broker spin. Method: a delayed message of an older segment falls due at the end of a segment."""
    tried = 0

    def full() -> None:
        nonlocal tried
        tried += 1
        raise StoreFull("no room for the next log segment")

    rests, clock = Calls(monkeypatch, DeadlineTimer, "rest"), ShiftedClock()
    async with serving(tmp_path, segment_bytes=1 << 16, clock=clock) as running:
        client = await running.client()
        await client.send("T", bytes(28_000), unique="0" * 32, TIMER_DELAY_MS="3600000")
        for number in (1, 2, 3):
            await client.send("Fill", bytes(28_000), unique=str(number) * 32)
        monkeypatch.setattr(running.broker._store, "reserve_roll", full)
        clock.passed_ms = 3_600_000
        running.broker._tick()
        await until(lambda: rests.seen)
        before = tried
        assert before > 0
        await turns(300)  # a tick takes one or two
        assert tried - before <= 2
        monkeypatch.undo()
        assert (await client.pull("T", wait_ms=60_000)).code == 0


async def test_a_delay_ends_when_the_clock_is_moved(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        await client.send("T", b"x", unique="0" * 32, TIMER_DELAY_MS="3600000")
        clock.passed_ms = 3_600_000
        running.broker.clock_moved()
        assert (await client.pull("T", wait_ms=60_000)).code == 0


@pytest.mark.parametrize("damage", ["gone", "half", "first entry", "last entry"])
async def test_queue_files_that_do_not_fit_the_checkpoint_are_made_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer must not take a queue file that somebody removed for messages that were trimmed."""
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(100):
            assert (await client.send("T", b"%d" % number, unique=f"{number:032d}")).code == 0
        await running.broker.drain()
    (path,) = (tmp_path / "shard-0" / "queues").glob("*/0/*.q")
    if damage == "gone":
        path.unlink()
    elif damage == "half":
        os.truncate(path, 50 * 48)
    else:
        with path.open("r+b") as file:
            file.seek(48 * (0 if damage == "first entry" else 99) + 16)
            file.write(b"\x7f")
    for again in range(2):
        async with serving(tmp_path) as running:
            client = await running.client()
            assert (await client.send("T", b"new", unique=f"{again:031d}x")).code == 0
            pulled = await client.pull("T", 0, count=1_000)
            assert (pulled.code, pulled.ext["minOffset"], pulled.ext["maxOffset"]) == (0, "0", str(101 + again))
            assert pulled.ext["nextBeginOffset"] == str(101 + again)
            await running.broker.drain()
    assert sum("are rebuilt from the log" in line for line in caplog.messages) == 1


async def test_queues_fit_the_checkpoint_after_trims_deletions_and_kills(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is no damage must not cost a redo of the whole log: queues without messages any more, topics that are gone,
    a trim behind the checkpoint."""
    keeping: dict[str, Any] = {
        "segment_bytes": 1 << 16,
        "retention_ms": 0,
        "retention_bytes": 1 << 17,
        "retention_check_ms": 20,
    }
    keeping["settings"] = BrokerSettings(dedup_window_ms=0)
    for run in range(6):
        async with serving(tmp_path, checkpoint_interval_ms=50, **keeping) as running:
            client = await running.client()
            await client.send(f"Once{run}", b"x", unique=f"{run:031d}o")
            for number in range(30):
                sent = await client.send("T", bytes(8_000), unique=f"{run}{number:031d}", queue=number % 3, queues=4)
                assert sent.code == 0
            await until(
                lambda: (
                    running.state.log_end - running.state.log_start <= 1 << 18 and running.maintenance._trimming is None
                )
            )
            if run % 2:
                await running.broker.drain()
    assert not [line for line in caplog.messages if "are rebuilt from the log" in line]


async def test_sync_that_ends_after_the_close_is_reported_to_nobody(tmp_path: Path) -> None:
    """Goal: a broker that is closed says nothing more. Method: its last sync is under way when it is closed."""
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        assert hand.flush.asked is not None, "its first batch is not synced yet; closing does that"
    await turns()
    assert not running.broker.failed.done()


async def test_failed_disk_closes_the_connections_of_every_front_door(tmp_path: Path) -> None:
    """RocketMQ's port and the HTTP port: open connections end without a further answer; only /health answers on a new one."""
    writers: list[asyncio.StreamWriter] = []

    async def asked(target: bytes) -> tuple[asyncio.StreamReader, "asyncio.Task[bytes]"]:
        """A new connection, and the first line of the answer on it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.http)
        writers.append(writer)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return reader, asyncio.create_task(reader.readline())

    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        assert (await client.ask(106)).code == 0
        reader, line = await asked(b"/health")
        assert b"200" in await soon(line)
        await soon(reader.readuntil(b"}"))
        running.broker._sequencer.sync_failed(OSError(5, "Input/output error"))
        assert await soon(running.broker.failed)
        rest = asyncio.create_task(reader.read())
        _, listed = await asked(b"/transactions/undecided")
        _, health = await asked(b"/health")
        assert b"503" in await soon(health)
        await turns()
        assert rest.done(), "the connection was closed"
        with contextlib.suppress(ConnectionError):
            assert await rest == b""
        assert not listed.done()
        for port in (running.ports.broker, running.ports.names):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        listed.cancel()
        for writer in writers:
            writer.close()


async def test_caps_that_do_not_fit_the_segments_of_the_store_are_refused_at_start(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        assert running.state.settings.segment_bytes == 1 << 16
    with pytest.raises(UsageError, match="65536") as caught:
        async with serving(tmp_path, segment_bytes=1 << 30, settings=BrokerSettings(topics_max=1_000)):
            pass
    assert "--segment-bytes" in caught.value.hint
    async with serving(tmp_path, segment_bytes=1 << 30) as running:
        assert running.state.settings.segment_bytes == 1 << 16


async def test_two_ticks_are_in_progress_at_most_and_one_that_was_wanted_meanwhile_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While much is due the timer fires after each turn: without a limit ever more ticks would be ahead of each request."""
    async with serving(tmp_path) as running:
        broker = running.broker
        await until(lambda: broker._sequencer.idle)
        submitted = []
        submit = broker._sequencer.submit

        def note(command: Any, *rest: Any) -> None:
            submitted.append(command)
            submit(command, *rest)

        monkeypatch.setattr(broker._sequencer, "submit", note)
        for _ in range(5):
            broker._tick()
        assert submitted == [Tick()] * 2
        await until(lambda: not broker._ticks)
        assert submitted == [Tick()] * 3
