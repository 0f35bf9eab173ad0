"""The composition root: a start recovers what was there, a failed start leaves nothing behind, a drain ends well."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.hand_flush import HandFlush
from tests.support.in_process import config, serving
from tests.support.waiting import until

from halfmq.broker.broker import Broker
from halfmq.core.commands import Tick
from halfmq.errors import EnvironmentFailed, PortTaken, StoreFull, StoreInUse, UsageError
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.group_flush import Job
from halfmq.store.store import Durability, Store

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


async def test_second_broker_on_one_directory_is_refused_and_frees_its_ports(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        second = Broker(config(tmp_path), RealDisk(), SystemClock(), SystemEntropy(), asyncio.get_running_loop())
        with pytest.raises(StoreInUse):
            await second.start()
        second.close()
        assert (await (await running.client()).ask(106)).code == 0
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(106)).code == 0


async def test_taken_port_is_refused_before_the_store_is_touched(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as running:
        taken = config(tmp_path / "two", port=running.ports.broker)
        second = Broker(taken, RealDisk(), SystemClock(), SystemEntropy(), asyncio.get_running_loop())
        with pytest.raises(PortTaken) as caught:
            await second.start()
        second.close()
        assert str(running.ports.broker) in str(caught.value)
        assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("host", ["203.0.113.7", "999.1.1.1"])
async def test_host_that_is_none_of_ours_is_said_and_nobody_is_told_to_stop_a_process(
    tmp_path: Path, host: str
) -> None:
    broker = Broker(
        config(tmp_path / "two", host=host), RealDisk(), SystemClock(), SystemEntropy(), asyncio.get_running_loop()
    )
    with pytest.raises(EnvironmentFailed) as caught:
        await broker.start()
    broker.close()
    assert "--host is not an address" in caught.value.hint
    assert host in str(caught.value)
    assert not caught.value.retriable
    assert not (tmp_path / "two").exists()


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
    broker = Broker(config(tmp_path), RealDisk(), Late(), SystemEntropy(), asyncio.get_running_loop())
    await broker.start()
    assert broker._sequencer.engine.state.batch_time_ms >= last
    broker.close()


async def test_drain_leaves_a_checkpoint_so_that_the_next_start_redoes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, durability=Durability.FSYNC) as running:
        client = await running.client()
        for number in range(10):
            await client.send("T", b"x", unique=f"{number:032d}")
        await running.broker.drain()
        assert not running.broker.failed.done()
    async with serving(tmp_path) as running:
        store = running.broker._store
        assert store is not None
        assert store.recovery.redo_from == store.recovery.end
        assert (await (await running.client()).pull("T")).ext["maxOffset"] == "10"


async def test_release_that_has_no_room_is_tried_again_at_leisure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a full disk does not make the broker spin. Method: a delayed message falls due at the end of a segment."""
    tried = 0

    def full(store: Store) -> None:
        nonlocal tried
        tried += 1
        raise StoreFull("no room for the next log segment")

    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        await client.send("T", bytes(28_000), unique="0" * 32, TIMER_DELAY_MS="300")
        await client.send("Fill", bytes(28_000), unique="1" * 32)
        monkeypatch.setattr(Store, "reserve_roll", full)
        for number in range(60):  # until nothing fits any more
            await client.send("Fill", bytes(100), unique=f"2{number:031d}")
        await asyncio.sleep(0.5)
        before = tried
        await asyncio.sleep(0.5)
        assert tried - before <= 2
        monkeypatch.undo()
        assert (await client.pull("T", wait_ms=5_000)).code == 0


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
            await asyncio.sleep(0.3)
            if run % 2:
                await running.broker.drain()
    assert not [line for line in caplog.messages if "are rebuilt from the log" in line]


async def test_sync_that_ends_after_the_close_is_reported_to_nobody(tmp_path: Path) -> None:
    """Goal: a broker that is closed says nothing more. Method: its last sync is under way when it is closed."""
    flushes: list[HandFlush] = []

    def make_syncer(job: Job) -> HandFlush:
        flushes.append(HandFlush(job))
        return flushes[0]

    async with serving(tmp_path, make_syncer=make_syncer, durability=Durability.FSYNC) as running:
        broker = running.broker
        assert flushes[0].asked is not None, "its first batch is not synced yet; closing does that"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not broker.failed.done()


async def test_failed_disk_closes_the_connections_of_every_front_door(tmp_path: Path) -> None:
    """RocketMQ's port and the HTTP port: open connections end without a further answer; only /health answers on a new one."""

    async def answer(target: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.http)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            return await asyncio.wait_for(reader.readline(), 0.2)
        except TimeoutError:
            return b""
        finally:
            writer.close()

    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        assert (await client.ask(106)).code == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.http)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"}")
        running.broker._sequencer.sync_failed(OSError(5, "Input/output error"))
        assert await asyncio.wait_for(running.broker.failed, 5)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b"", "the connection was closed"
        writer.close()
        assert await answer(b"/transactions/undecided") == b""
        assert b"503" in await answer(b"/health")
        for port in (running.ports.broker, running.ports.names):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)


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
