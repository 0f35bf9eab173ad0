"""Checkpoints shorten a restart, retention trims, and free space decides whether new messages are taken."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient

from halfmq.errors import StoreDamaged, StorePoisoned
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.store.store import Store
from halfmq.store.verify import verify_store

ID = "AC10000100002A9F0000000000000001"
SMALL = 1 << 16
#: Otherwise nothing is trimmed for two minutes.
NO_WINDOW = BrokerSettings(sent_again_ms=0)


async def until(condition: object, seconds: float = 5) -> None:
    assert callable(condition)
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come true within {seconds} s")


async def filled(running: Running, count: int = 40) -> RawClient:
    client = await running.client()
    for number in range(count):
        assert (await client.send("Fill", bytes(8_000), unique=f"FILL{number:028d}")).code == 0
    return client


async def redone(tmp_path: Path) -> int:
    """Batches that a start redoes from the log."""
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        assert int((await (await running.client()).pull("Fill", count=1)).ext["maxOffset"]) > 0
        store = running.broker._store
        assert store is not None
        return store.recovery.end - store.recovery.redo_from


async def test_checkpoint_shortens_the_redo_and_changes_nothing_that_is_seen(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        await filled(running)
    long = await redone(tmp_path)
    async with serving(tmp_path, segment_bytes=SMALL, checkpoint_interval_ms=20) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        before = running.state.log_end
        maintenance = running.broker._maintenance
        assert maintenance is not None
        await until(lambda: maintenance._checkpoint_at >= before)
    assert await redone(tmp_path) < long / 4
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        assert (await client.end(half, ID, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
        assert (await client.pull("T")).code == 0


async def test_checkpoint_waits_until_what_it_shows_is_durable(tmp_path: Path) -> None:
    """The store refuses one beyond its published position; 200 of them under load must never ask for that."""
    async with serving(tmp_path, segment_bytes=SMALL, checkpoint_interval_ms=1) as running:
        client = await running.client()
        for number in range(60):
            await asyncio.gather(*(client.send("T", b"x", unique=f"{number:016d}{one:016d}") for one in range(5)))
        assert not running.broker.failed.done()


async def trimmed(running: Running, half: Answer | None = None) -> int:
    first = int(half.ext["msgId"][-16:], 16) if half else 0
    maintenance = running.broker._maintenance
    assert maintenance is not None
    await until(lambda: running.state.log_start > first and maintenance._trimming is None)
    start: int = running.state.log_start
    return start


@pytest.mark.parametrize("by", [{"retention_bytes": 1 << 17}, {"retention_ms": 1}], ids=["size", "age"])
async def test_retention_trims_old_segments_and_keeps_what_is_undecided(tmp_path: Path, by: dict[str, int]) -> None:
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 0, "settings": NO_WINDOW, **by}
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        delayed = await client.send("T", b"later", unique="D" * 32, TIMER_DELAY_SEC="2")
        assert delayed.code == 0
        await filled(running)
        start = await trimmed(running, half)
        files = sorted(int(path.name[:20]) for path in (tmp_path / "shard-0" / "log").iterdir())
        assert files[0] == start
        moved = await client.pull("Fill", 0)
        assert moved.code == 21
        assert int(moved.ext["nextBeginOffset"]) == int(moved.ext["minOffset"]) > 0
        assert (await client.pull("Fill", int(moved.ext["minOffset"]))).code == 0
        assert (await client.end(half, ID, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
        assert b"one" in (await client.pull("T", 0)).body
        assert b"later" in (await client.pull("T", 1, wait_ms=4_000)).body


class ShiftedClock(SystemClock):
    """Time passes when the test says so, beside the little that passes by itself."""

    passed_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.passed_ms


async def test_retention_by_age_keeps_what_is_younger(tmp_path: Path) -> None:
    """Goal: not a segment too many goes. Method: fill some, let two hours pass, fill some more; an hour is to be kept."""
    clock = ShiftedClock()
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=20, clock=clock,
        retention_ms=3_600_000, retention_bytes=0,
    ) as running:  # fmt: skip
        client = await filled(running)
        await asyncio.sleep(0.2)
        assert running.state.log_start == 0, "nothing is an hour old"
        old_end = running.state.log_end
        clock.passed_ms = 2 * 3_600_000
        for number in range(40):
            assert (await client.send("Fill", bytes(8_000), unique=f"LATE{number:028d}")).code == 0
        await trimmed(running)
        await asyncio.sleep(0.2)
        assert running.state.log_start == old_end - old_end % SMALL, "the segment that both times share stays"
        first = int((await client.pull("Fill", count=1)).ext["minOffset"])
        assert 40 - SMALL // 8_000 <= first <= 40


async def test_retention_keeps_the_window_of_messages_sent_again(tmp_path: Path) -> None:
    """A trim forgets the verdicts below it. A half that comes again, its answer having been lost, must still be told of the
    one that stands, and a plain message its place; however small the log is to be."""
    clock = ShiftedClock()
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=20, clock=clock,
        retention_ms=1, retention_bytes=SMALL, settings=BrokerSettings(sent_again_ms=60_000),
    ) as running:  # fmt: skip
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        assert (await client.end(half, ID, 8)).code == 0
        plain = await client.send("T", b"two", unique="P" * 32)
        await filled(running)
        clock.passed_ms = 50_000
        await asyncio.sleep(0.2)
        assert running.state.log_start == 0, "younger than the window"
        other = await running.client()
        assert (await other.half("T", b"one", unique=ID)).code == 604
        assert (await other.send("T", b"two", unique="P" * 32)).ext["msgId"] == plain.ext["msgId"]
        clock.passed_ms = 70_000
        await trimmed(running)


async def test_nothing_is_trimmed_without_retention(tmp_path: Path) -> None:
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=10, retention_ms=0
    ) as running:
        await filled(running, 20)
        await asyncio.sleep(0.2)
        assert running.state.log_start == 0


async def test_low_space_refuses_messages_until_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        low = True
        monkeypatch.setattr(Store, "look_at_space", lambda store: low)
        maintenance = running.broker._maintenance
        assert maintenance is not None
        maintenance.look_at_space()
        await until(lambda: running.state.disk_full)
        assert (await client.send("T", b"x", unique="1" * 32)).code == 14
        low = False
        maintenance.look_at_space()
        await until(lambda: not running.state.disk_full)
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0


async def test_failed_checkpoint_stops_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What derived files hold on the disk is not known after it."""

    def broken(*_: object) -> None:
        raise StorePoisoned("a sync failed")

    async with serving(tmp_path) as running:
        monkeypatch.setattr(Store, "checkpoint", broken)
        await (await running.client()).send("T", b"x", unique="1" * 32)
        maintenance = running.broker._maintenance
        assert maintenance is not None
        maintenance.checkpoint()
        assert isinstance(await asyncio.wait_for(running.broker.failed, 2), StorePoisoned)


async def test_files_of_a_trim_are_removed_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To unlink a gibibyte takes a while. Whoever asks for what was trimmed gets "not there" meanwhile."""
    here = threading.get_ident()
    removed: list[tuple[str, bool]] = []
    remove = RealDisk.remove
    go_on = threading.Event()

    def watched(disk: RealDisk, path: Path) -> None:
        if path.suffix == ".seg":
            removed.append((path.name, threading.get_ident() == here))
            assert go_on.wait(5)
        remove(disk, path)

    monkeypatch.setattr(RealDisk, "remove", watched)
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 1 << 17, "settings": NO_WINDOW}
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        client = await filled(running)
        try:
            await until(lambda: removed)
            assert running.state.log_start > 0
            assert (await client.pull("Fill", 0)).code == 21
            assert (await client.send("T", b"meanwhile", unique=ID)).code == 0
        finally:
            go_on.set()
        maintenance = running.broker._maintenance
        assert maintenance is not None
        await until(lambda: maintenance._trimming is None)
        first = min((tmp_path / "shard-0" / "log").iterdir())
        assert int(first.stem) == running.state.log_start
    assert removed
    assert not any(on_loop for _, on_loop in removed)
    assert [name for name, _ in removed] == sorted(name for name, _ in removed)


async def test_a_message_shown_after_its_verdict_was_trimmed_has_no_row_in_a_table_made_again(tmp_path: Path) -> None:
    """What told its transaction is gone; ``store verify`` must not miss it."""
    changes = {"segment_bytes": SMALL, "retention_bytes": 2 * SMALL, "retention_check_ms": 30, "settings": NO_WINDOW}
    async with serving(tmp_path, **changes) as running:
        client = await running.client()
        half = await client.half("T", b"later", unique=ID, DELAY="1")
        assert (await client.end(half, ID, 8)).code == 0
        await filled(running)
        await until(lambda: running.state.log_start >= SMALL)
        assert running.state.delayed, "it is not shown yet"
        await until(lambda: not running.state.delayed)
    for name in ("checkpoint", "snapshots", "transactions", "queues", "keys", "published"):
        path = tmp_path / "shard-0" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    async with serving(tmp_path, segment_bytes=SMALL, retention_check_ms=3_600_000) as running:
        assert (await (await running.client()).pull("T")).code == 0
    assert verify_store(RealDisk(), tmp_path).findings == ()


async def test_retention_goes_on_once_what_was_in_its_way_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0
    closed_segments = Store.closed_segments

    def damaged(store: Store) -> Any:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise StoreDamaged("x.seg does not begin with a batch") if looks > 1 else OSError("too many open files")
        return closed_segments(store)

    monkeypatch.setattr(Store, "closed_segments", damaged)
    async with serving(tmp_path, retention_check_ms=20):
        while looks < 6:
            await asyncio.sleep(0.01)
    said = [record.getMessage() for record in caplog.records if "the log is not trimmed now" in record.getMessage()]
    assert len(said) == 2, "each reason once"
    assert "does not begin with a batch" in said[1]


async def test_work_that_fails_comes_again(tmp_path: Path) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    async with serving(tmp_path) as running:
        maintenance = running.broker._maintenance
        assert maintenance is not None
        calls = 0

        def work() -> None:
            nonlocal calls
            calls += 1
            raise ValueError("a bug")

        maintenance._again("retention", 10, work)
        while calls < 3:
            await asyncio.sleep(0.01)
    assert len(failures) >= 3
