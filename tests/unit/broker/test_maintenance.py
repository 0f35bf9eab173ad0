"""Checkpoints shorten a restart, retention trims, and free space decides whether new messages are taken."""

import asyncio
import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Calls, Running, ShiftedClock, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import PATIENCE_S, soon, until

from halfmq.broker import maintenance
from halfmq.errors import StoreDamaged, StorePoisoned
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.store import indexes, verify
from halfmq.store.store import Store
from halfmq.store.topics_file import read_topics
from halfmq.store.verify import verify_store
from halfmq.store.watermark_page import Watermark, read_watermark_page

ID = "AC10000100002A9F0000000000000001"
SMALL = 1 << 16
#: Otherwise nothing is trimmed for two minutes.
NO_WINDOW = BrokerSettings(dedup_window_ms=0)


async def filled(running: Running, count: int = 40, name: str = "FILL") -> RawClient:
    client = await running.client()
    for number in range(count):
        assert (await client.send("Fill", bytes(8_000), unique=f"{name}{number:028d}")).code == 0
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
        await until(lambda: running.maintenance._checkpoint_at >= before)
    assert await redone(tmp_path) < long / 4
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        assert (await client.end(half, ID, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
        assert (await client.pull("T")).code == 0


async def test_checkpoint_waits_until_what_it_shows_is_durable(tmp_path: Path) -> None:
    """The store refuses one beyond its high watermark; 200 of them under load must never ask for that."""
    async with serving(tmp_path, segment_bytes=SMALL, checkpoint_interval_ms=1) as running:
        client = await running.client()
        for number in range(60):
            await asyncio.gather(*(client.send("T", b"x", unique=f"{number:016d}{one:016d}") for one in range(5)))
        assert not running.broker.failed.done()


async def trimmed(running: Running, half: Answer | None = None) -> int:
    first = int(half.ext["msgId"][-16:], 16) if half else 0
    await until(lambda: running.state.log_start > first and running.maintenance._trimming is None)
    start: int = running.state.log_start
    return start


def looks_at_retention(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch, Store, "closed_segments")


async def retention_decided(running: Running, looks: Calls) -> None:
    """Retention looked at what is in the log now, and did what it wanted: behind a checkpoint of all the first look begins a
    trim, and there is no look during one."""
    await until(lambda: running.maintenance._checkpoint_at == running.state.log_end)
    await looks.more(2)


async def checkpoint(running: Running) -> None:
    done = asyncio.get_running_loop().create_future()
    running.maintenance.checkpoint(lambda: done.set_result(None))
    await soon(done)
    await asyncio.sleep(0)


@pytest.mark.parametrize("by", [{"retention_bytes": 1 << 17}, {"retention_ms": 1}], ids=["size", "age"])
async def test_retention_trims_old_segments_and_keeps_what_is_undecided(tmp_path: Path, by: dict[str, int]) -> None:
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 0, "settings": NO_WINDOW, **by}
    clock = ShiftedClock()
    async with serving(
        tmp_path, clock=clock, segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        delayed = await client.send("T", b"later", unique="D" * 32, TIMER_DELAY_SEC="3600")
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
        clock.passed_ms = 3_600_000
        running.broker._tick()
        assert b"later" in (await client.pull("T", 1, wait_ms=60_000)).body


@pytest.mark.parametrize(("size", "warned"), [(0, False), (SMALL - 1, True), (SMALL, False)])
async def test_a_retention_of_less_than_a_segment_is_warned_of_and_removes_whole_segments(
    tmp_path: Path, size: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": size, "settings": NO_WINDOW}
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        lines = [line for line in caplog.messages if "is less than one segment" in line]
        assert len(lines) == warned
        if warned:
            assert f"--retention-bytes {SMALL - 1} " in lines[0]
            assert f"the log takes up to {2 * SMALL - 1} bytes. Give at least {SMALL};" in lines[0]
            await filled(running)
            await trimmed(running)
            await until(lambda: running.state.log_end - running.state.log_start <= 2 * SMALL - 1)


async def test_retention_by_age_keeps_what_is_younger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: not a segment too many goes. Method: fill some, let two hours pass, fill some more; an hour is to be kept."""
    looks, clock = looks_at_retention(monkeypatch), ShiftedClock()
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=20, clock=clock,
        retention_ms=3_600_000, retention_bytes=0, settings=NO_WINDOW,
    ) as running:  # fmt: skip
        client = await filled(running)
        await retention_decided(running, looks)
        assert running.state.log_start == 0, "nothing is an hour old"
        old_end = running.state.log_end
        clock.passed_ms = 2 * 3_600_000
        await filled(running, 40, "LATE")
        await trimmed(running)
        await retention_decided(running, looks)
        assert running.state.log_start == old_end - old_end % SMALL, "the segment that both times share stays"
        first = int((await client.pull("Fill", count=1)).ext["minOffset"])
        assert 40 - SMALL // 8_000 <= first <= 40


async def test_retention_keeps_the_window_of_messages_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trim forgets the verdicts below it. A half that comes again, its answer having been lost, must still be told of the
    one that stands, and a plain message its place; however small the log is to be."""
    looks, clock = looks_at_retention(monkeypatch), ShiftedClock()
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=20, clock=clock,
        retention_ms=1, retention_bytes=SMALL, settings=BrokerSettings(dedup_window_ms=60_000),
    ) as running:  # fmt: skip
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        assert (await client.end(half, ID, 8)).code == 0
        plain = await client.send("T", b"two", unique="P" * 32)
        await filled(running)
        clock.passed_ms = 50_000
        await retention_decided(running, looks)
        assert running.state.log_start == 0, "younger than the window"
        other = await running.client()
        assert (await other.half("T", b"one", unique=ID)).code == 604
        assert (await other.send("T", b"two", unique="P" * 32)).ext["msgId"] == plain.ext["msgId"]
        clock.passed_ms = 70_000
        await trimmed(running)


async def test_low_space_refuses_messages_until_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        low = True
        monkeypatch.setattr(Store, "check_space", lambda store: low)
        maintenance = running.maintenance
        maintenance.check_free_space()
        await until(lambda: running.state.session.disk_full)
        assert (await client.send("T", b"x", unique="1" * 32)).code == 14
        low = False
        maintenance.check_free_space()
        await until(lambda: not running.state.session.disk_full)
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0


@pytest.mark.parametrize(
    "error", [StorePoisoned("a sync failed"), OSError(errno.EIO, "Input/output error", "snapshot-1.tmp")]
)
async def test_failed_checkpoint_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """What derived files hold on the disk is not known after it."""

    def broken(*_: object) -> None:
        raise error

    async with serving(tmp_path) as running:
        monkeypatch.setattr(Store, "checkpoint", broken)
        await (await running.client()).send("T", b"x", unique="1" * 32)
        maintenance = running.maintenance
        maintenance.checkpoint()
        failed = await soon(running.broker.failed)
        assert isinstance(failed, StorePoisoned)
        if isinstance(error, OSError):
            assert "'snapshot-1.tmp'" in str(failed)
            assert "check the disk, then restart" in str(failed)
            assert str(failed) in caplog.text


async def test_a_drain_ends_a_trim_that_still_copies_and_begins_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "COPY_RECORDS_MAX", 1)
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 1 << 17, "settings": NO_WINDOW}
    async with serving(
        tmp_path, segment_bytes=SMALL, retention_check_ms=3_600_000, checkpoint_interval_ms=3_600_000, **keeping
    ) as running:
        client = await running.client()
        for number in range(20):
            assert (await client.half("T", b"one", unique=f"{number:032d}")).code == 0
        await filled(running)
        running.maintenance.checkpoint()
        await until(lambda: running.maintenance._checkpoint_at == running.state.log_end)
        running.maintenance.check_retention()
        assert running.maintenance._trimming is not None
        running.maintenance.drain()
        await until(lambda: running.maintenance._trimming is None)
        assert running.state.log_start == 0, "it did not wait for twenty steps"
        running.maintenance.check_retention()
        assert running.maintenance._trimming is None
        assert running.state.derived.undecided_count == 20


async def test_files_of_a_trim_are_removed_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To unlink a gibibyte takes a while. Whoever asks for what was trimmed gets "not there" meanwhile."""
    here = threading.get_ident()
    removed: list[tuple[str, bool]] = []
    remove = RealDisk.remove
    go_on = threading.Event()

    def watched(disk: RealDisk, path: Path) -> None:
        if path.suffix == ".seg":
            removed.append((path.name, threading.get_ident() == here))
            assert go_on.wait(PATIENCE_S)
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
        await until(lambda: running.maintenance._trimming is None)
        first = min((tmp_path / "shard-0" / "log").iterdir())
        assert int(first.stem) == running.state.log_start
    assert removed
    assert not any(on_loop for _, on_loop in removed)
    assert [name for name, _ in removed] == sorted(name for name, _ in removed)


async def test_a_message_shown_after_its_verdict_was_trimmed_has_no_row_in_a_table_made_again(tmp_path: Path) -> None:
    """What told its transaction is gone; ``store verify`` must not miss it."""
    changes = {"segment_bytes": SMALL, "retention_bytes": 2 * SMALL, "retention_check_ms": 30, "settings": NO_WINDOW}
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock, **changes) as running:
        client = await running.client()
        half = await client.half("T", b"later", unique=ID, DELAY="5")
        assert (await client.end(half, ID, 8)).code == 0
        await filled(running)
        await until(lambda: running.state.log_start >= SMALL)
        assert running.state.delayed, "it is not shown yet"
        clock.passed_ms = 60_000
        running.broker._tick()
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
        await until(lambda: looks >= 6)
    said = [record.getMessage() for record in caplog.records if "the log is not trimmed now" in record.getMessage()]
    assert len(said) == 2, "each reason once"
    assert "does not begin with a batch" in said[1]


async def undecided(running: Running, count: int, group: str = "P") -> list[Answer]:
    client = await running.client()
    return [
        await client.half("T", bytes(8_000), unique=f"{group:H<8}{number:024d}", group=group) for number in range(count)
    ]


def sized(**changes: Any) -> dict[str, Any]:
    return {
        "segment_bytes": SMALL, "retention_check_ms": 3, "checkpoint_interval_ms": 5, "retention_ms": 0,
        "retention_bytes": 2 * SMALL, "settings": NO_WINDOW, **changes,
    }  # fmt: skip


async def test_what_is_undecided_and_more_than_retention_is_copied_once_in_a_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: retention by size does not copy the same bodies round and round. Method: five times as much as it keeps is
    undecided, and nothing else is written; the log may grow by one copy of that in each period."""
    looks, clock = looks_at_retention(monkeypatch), ShiftedClock()
    async with serving(tmp_path, clock=clock, **sized()) as running:
        halves = await undecided(running, 40, "orders") + await undecided(running, 40, "bills")
        size = running.state.log_end
        for _ in range(3):
            before, quiet = running.state.log_end, 0
            while quiet < 3:
                end = running.state.log_end
                await looks.more(40)
                quiet = quiet + 1 if running.state.log_end == end else 0
                assert end <= before + 2 * size, "one copy, some in company, and what segments leave empty"
            clock.passed_ms += 3_600_001
        assert running.state.log_start > size, "once in a period it was copied, and what was before is gone"
        said = [line for line in caplog.messages if "more than the retention of 131072" in line]
        assert len(said) == 1, "however often it looked"
        maintenance = running.maintenance
        await looks.more(60)
        caplog.clear()
        maintenance._not_trimmed = LogThrottle(lambda: 0.0)
        await looks.more(3)
        said = [line for line in caplog.messages if "more than the retention of 131072" in line]
        assert "80 transactions are undecided" in said[0]
        assert "orders (40, " in said[0]
        assert "bills (40, " in said[0]
        client = await running.client()
        for number in range(40):
            ended = await client.end(halves[number], f"{'orders':H<8}{number:024d}", 8, group="orders")
            assert ended.ext["HMQ_VERDICT"] == "COMMITTED"


HOUR = 3_600_000


class WrongClock(SystemClock):
    """The wall clock is wrong by so much; the time since the start is right, and more passes when the test says so."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self.passed_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.passed_ms


def aged(**changes: Any) -> dict[str, Any]:
    """72 hours are kept, as by default; nothing by size."""
    return {
        "segment_bytes": SMALL,
        "retention_check_ms": 3,
        "checkpoint_interval_ms": 5,
        "settings": NO_WINDOW,
        **changes,
    }


async def seen(running: Running) -> int:
    """How many of the messages are still there."""
    answer = await (await running.client()).pull("Fill", count=1)
    return int(answer.ext["maxOffset"]) - int(answer.ext["minOffset"])


async def test_a_start_with_a_clock_that_is_days_ahead_trims_nothing_until_somebody_confirms_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a wrong clock loses no message. Method: starts 12 days ahead, again and again, one of them back in time."""
    async with serving(tmp_path, **aged()) as running:
        await filled(running)
    looks = looks_at_retention(monkeypatch)
    for ahead_ms in (12 * 24 * HOUR, 12 * 24 * HOUR, 0, 40 * 24 * HOUR):
        caplog.clear()
        async with serving(tmp_path, clock=WrongClock(ahead_ms), **aged()) as running:
            await looks.more(40)
            assert await seen(running) == 40
            assert running.state.log_start == 0
        said = [line for line in caplog.messages if "unconfirmed clock jump" in line]
        assert len(said) == 1
        assert "--trust-clock" in said[0]
    assert "clock jump of 39 days is excluded" in said[0] or "clock jump of 40 days is excluded" in said[0]
    assert "such starts: 2" in said[0]
    caplog.clear()
    async with serving(tmp_path, clock=WrongClock(40 * 24 * HOUR), **aged(trust_clock=True)) as running:
        await trimmed(running)
        assert await seen(running) < 20
    async with serving(tmp_path, clock=WrongClock(40 * 24 * HOUR), **aged()) as running:
        await looks.more(20)
        assert running.state.jumps == ()
    assert not [line for line in caplog.messages if "unconfirmed clock jump" in line]


async def test_retention_by_size_goes_on_behind_a_jump(tmp_path: Path) -> None:
    async with serving(tmp_path, **aged()) as running:
        await filled(running)
    async with serving(tmp_path, clock=WrongClock(12 * 24 * HOUR), **aged(retention_bytes=2 * SMALL)) as running:
        await trimmed(running)
        assert running.state.jumps
        assert 8 <= await seen(running) < 30


async def test_a_night_without_the_broker_and_a_quiet_week_are_no_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: no false alarm where nothing was written for long. Method: the broker notes the time while it runs."""
    looks, clock = looks_at_retention(monkeypatch), WrongClock()
    async with serving(tmp_path, clock=clock, **aged()) as running:
        await filled(running, 3)
        for _ in range(40):
            clock.passed_ms += 4 * HOUR + 40 * 60_000
            end = running.state.log_end
            await looks.more(3)
            assert end < running.state.log_end < end + 200
            end = running.state.log_end
            await looks.more(5)
            assert running.state.log_end == end
    week_ms = clock.passed_ms + 8 * HOUR
    async with serving(tmp_path, clock=WrongClock(week_ms), **aged()) as running:
        assert running.state.jumps == ()
    assert not [line for line in caplog.messages if "clock jump" in line]
    assert verify_store(RealDisk(), tmp_path).findings == ()


async def test_work_that_fails_comes_again(tmp_path: Path) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    async with serving(tmp_path) as running:
        maintenance = running.maintenance
        calls = 0

        def work() -> None:
            nonlocal calls
            calls += 1
            raise ValueError("a bug")

        maintenance._again("retention", 10, work)
        await until(lambda: calls >= 3)
    assert len(failures) >= 3


async def test_many_topics_are_told_to_readers_beside_the_broker_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    write = indexes.write_topics
    monkeypatch.setattr(
        indexes,
        "write_topics",
        lambda disk, path, store, topics: rows.append(len(topics)) or write(disk, path, store, topics),
    )
    for module in (indexes, verify):
        monkeypatch.setattr(module, "AT_ONCE_MAX", 20)
    count = 80
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(count):
            answer = await client.ask(
                17, {"topic": f"T{number}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            )
            assert answer.code == 0
        assert max(rows) == 20, "a write of all of them for each would cost more with every topic"
        assert not verify_store(RealDisk(), tmp_path).damaged
        page = read_watermark_page(RealDisk(), tmp_path / "shard-0" / "published")
        assert isinstance(page, Watermark)
        await checkpoint(running)
        assert rows[-1] == len(read_topics(RealDisk(), tmp_path / "shard-0" / "topics.json")[1]) == count
        later = read_watermark_page(RealDisk(), tmp_path / "shard-0" / "published")
        assert isinstance(later, Watermark)
        assert later.sequence > page.sequence, "who looked for a topic before looks again"
        assert not verify_store(RealDisk(), tmp_path).damaged
    async with serving(tmp_path) as running:
        assert len(running.state.topics_by_name) == count


async def test_segments_that_somebody_removes_or_cuts_short_are_told_once_and_trimmed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"segment_bytes": SMALL, "retention_check_ms": 10, "settings": NO_WINDOW}
    async with serving(tmp_path, retention_bytes=4 * SMALL, checkpoint_interval_ms=20, **options) as running:
        client = await filled(running, 60)
        await until(lambda: running.state.log_start > 0)
        assert not any("under a running broker" in line for line in caplog.messages)
    async with serving(tmp_path, **options) as running:
        client = await running.client()
        first, second, *_ = sorted((tmp_path / "shard-0" / "log").glob("*.seg"))
        (offset,) = [int((await client.pull("Fill", 0)).ext["minOffset"])]
        first.unlink()
        with second.open("r+b") as file:
            file.truncate(100)

        def told() -> list[str]:
            return [line for line in caplog.messages if "under a running broker" in line]

        await until(lambda: len(told()) == 2)
        assert f"{first} was removed" in told()[0]
        assert "bring the file back" in told()[0]
        assert f"{second} was cut short under a running broker: it has 100 bytes instead of {SMALL}" in told()[1]
        assert (await client.pull("Fill", offset)).code == 0, "what is open is still read"
        await looks_at_retention(monkeypatch).more(2)
        await running.offloaded()
        assert len(told()) == 2


async def test_a_trim_takes_a_segment_whose_file_is_gone_already(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": SMALL, "settings": NO_WINDOW, "retention_bytes": 1 << 17}
    async with serving(tmp_path, **options) as running:
        await filled(running)
        (tmp_path / "shard-0" / "log" / f"{0:020d}.seg").unlink()
        await checkpoint(running)
        running.maintenance.check_retention()
        start = await trimmed(running)
        assert int(min((tmp_path / "shard-0" / "log").iterdir()).stem) == start
        assert not running.broker.failed.done()


async def test_a_segment_that_cannot_be_removed_stays_with_those_behind_it_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those behind it too: a start takes a gap for damage. Method: the first file cannot be removed, over two trims and a start."""
    first = tmp_path / "shard-0" / "log" / f"{0:020d}.seg"
    stuck = True
    tried = 0
    remove = RealDisk.remove

    def refusing(disk: RealDisk, path: Path) -> None:
        nonlocal tried
        if stuck and path == first:
            tried += 1
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        remove(disk, path)

    monkeypatch.setattr(RealDisk, "remove", refusing)
    options: dict[str, Any] = {"segment_bytes": SMALL, "settings": NO_WINDOW, "checkpoint_interval_ms": 20}
    options |= {"retention_bytes": 1 << 17, "retention_check_ms": 20}

    def names() -> list[int]:
        return sorted(int(path.stem) for path in first.parent.iterdir())

    def told() -> int:
        return sum(f"{first} cannot be removed: Operation not permitted" in line for line in caplog.messages)

    async with serving(tmp_path, **options) as running:
        await filled(running)
        start = await trimmed(running)
        await filled(running, 40, "MORE")
        await until(lambda: running.state.log_start > start and tried >= 2)
        assert not running.broker.failed.done()
        assert names() == list(range(0, names()[-1] + 1, SMALL)), "no gap"
        assert told() == 1
    async with serving(tmp_path, **options) as running:
        assert told() >= 2
        start = running.state.log_start
        assert names()[0] == 0 < start
        stuck = False
        await filled(running, 40, "LAST")
        await until(lambda: running.state.log_start > start and names()[0] == running.state.log_start)


async def test_a_closed_segment_that_is_replaced_while_it_is_open_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, segment_bytes=SMALL, retention_check_ms=10, settings=NO_WINDOW) as running:
        client = await filled(running, 20)
        maintenance = running.maintenance
        maintenance.check_free_space()  # of what is written later it cannot be said which file has it
        await running.offloaded()
        (tmp_path / "copy").write_bytes((path := tmp_path / "shard-0" / "log" / f"{0:020d}.seg").read_bytes())
        (tmp_path / "copy").rename(path)

        def told() -> list[str]:
            return [line for line in caplog.messages if "under a running broker" in line]

        await until(lambda: bool(told()))
        assert f"{path} was replaced under a running broker: the name leads to another file" in told()[0]
        assert "/proc/PID/fd" in told()[0]
        assert (await client.pull("Fill", 0)).code == 0
        maintenance.check_free_space()
        maintenance.check_retention()
        await running.offloaded()
        assert len(told()) == 1
        assert not running.broker.failed.done()


@pytest.mark.parametrize("how", ["removed", "cut short", "replaced", "replaced with its directory"])
async def test_the_broker_stops_when_the_segment_that_is_written_is_removed_replaced_or_cut_short(
    tmp_path: Path, how: str
) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await filled(running, 20)
        maintenance = running.maintenance
        maintenance.check_free_space()
        await running.offloaded()
        assert not running.broker.failed.done()
        path = tmp_path / "shard-0" / "log" / f"{running.state.log_end // SMALL * SMALL:020d}.seg"
        if how == "removed":
            path.unlink()
        elif how == "cut short":
            with path.open("r+b") as file:
                file.truncate(100)
        elif how == "replaced":
            shutil.copy2(path, tmp_path / "copy")
            (tmp_path / "copy").rename(path)
        else:
            path.parent.rename(tmp_path / "moved")
            shutil.copytree(tmp_path / "moved", path.parent)
        maintenance.check_free_space()
        failed = await soon(running.broker.failed)
        assert isinstance(failed, StorePoisoned)
        assert f"{path} was {how.partition(' with')[0]} under a running broker" in str(failed)
        with pytest.raises(ConnectionError):
            await client.send("Fill", b"x", unique="1" * 32)


async def test_the_empty_segment_for_the_next_roll_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        await filled(running, 20)
        maintenance = running.maintenance
        path = tmp_path / "shard-0" / "log" / f"{(running.state.log_end // SMALL + 1) * SMALL:020d}.seg"
        path.unlink()
        maintenance.check_free_space()
        await running.offloaded()
        assert any(f"{path} was removed" in line and "it is created again" in line for line in caplog.messages)
        maintenance.check_free_space()
        await running.offloaded()
        assert path.stat().st_size == SMALL
        await filled(running, 20, "MORE")
        assert not running.broker.failed.done()
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        assert await seen(running) == 40


async def test_a_start_opens_no_work_for_the_next_checkpoint_with_idle_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names were synced before; 24,000 topics made a stop take a minute. Those of a queue that is not in the checkpoint are synced
    again.
    """
    synced: list[Path] = []
    sync = RealDisk.sync_directory
    monkeypatch.setattr(RealDisk, "sync_directory", lambda disk, path: synced.append(path) or sync(disk, path))

    def queues() -> set[str]:
        found = {str(path.relative_to(tmp_path)) for path in synced if "queues" in path.parts}
        synced.clear()
        return found

    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(30):
            await client.send(f"T{number}", b"x", unique=f"{number:032}")
        await running.broker.drain()
    assert len(queues()) == 61
    async with serving(tmp_path) as running:  # killed before its checkpoint
        client = await running.client()
        await client.send("T7", b"y", unique="1" * 32)
        await client.send("New", b"y", unique="2" * 32)
    queues()
    async with serving(tmp_path) as running:
        new = running.state.topics_by_name["New"].topic_id
        await running.broker.drain()
    root = "shard-0/queues"
    assert queues() == {root, f"{root}/{new}", f"{root}/{new}/0"}
