"""No answer leaves before what it reveals is durable; batches, rolls and failures of the one writer."""

import asyncio
import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.faulty_disk import FaultyDisk
from tests.support.in_process import Calls, Hand, Running, serving, serving_by_hand
from tests.support.invariants import check
from tests.support.raw_client import Answer, RawClient, command, end_ext, send_ext
from tests.support.waiting import soon, turns, until

from halfmq import limits
from halfmq.core import engine
from halfmq.core.commands import RELEASES_MAX, EnsureGroup, SendMessage
from halfmq.core.decide import DECIDE
from halfmq.core.decision import Decision
from halfmq.errors import StoreFull, StorePoisoned
from halfmq.model.records import Record
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.store.commit_log import CommitLog
from halfmq.store.store import Durability, Store
from halfmq.store.watermark_page import Watermark, read_watermark_page

COMMIT, ROLLBACK = 8, 12
SMALL = 1 << 16
ID = "AC10000100002A9F0000000000000001"


async def half_in_flight(running: Running) -> tuple[RawClient, "asyncio.Task[Answer]"]:
    client = await running.client()
    task = asyncio.create_task(client.half("T", b"one", unique=ID))
    await until(lambda: running.state.producer_groups, "the decision")
    await turns()  # in which an answer would leave
    return client, task


async def test_no_answer_leaves_before_its_batch_is_synced(tmp_path: Path) -> None:
    async with serving_by_hand(tmp_path) as (running, hand):
        _, task = await half_in_flight(running)
        assert not task.done()
        assert running.broker._sequencer.backlog == 1
        assert await hand.sync()
        assert (await soon(task)).code == 0
        assert running.broker._sequencer.idle


async def test_a_sync_lets_out_the_turns_that_it_covers_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_by_hand(tmp_path) as (running, hand):
        client, first = await half_in_flight(running)
        covered = running.state.log_end
        second = asyncio.create_task(client.half("T", b"two", unique="B" * 32))
        await until(lambda: running.state.log_end > covered)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "durable_position", property(lambda store: covered))
            running.broker._sequencer.durable()
            assert (await soon(first)).code == 0
            await turns()
            assert not second.done()
        assert await hand.sync()
        assert (await soon(second)).code == 0


async def test_sequencer_that_answers_before_the_sync_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above, against a store that calls every written batch durable: it must see the early answer."""
    monkeypatch.setattr(Store, "durable_position", property(lambda store: store.log.end))
    async with serving(tmp_path, make_syncer=Hand(), durability=Durability.FSYNC) as running:
        _, task = await half_in_flight(running)
        assert task.done(), "the wait above is long enough for an answer"


async def test_repeated_commit_waits_for_the_sync_of_the_first(tmp_path: Path) -> None:
    """An answer to a command that wrote nothing reveals a verdict that a crash could still take back."""
    async with serving_by_hand(tmp_path) as (running, hand):
        client, task = await half_in_flight(running)
        await hand.sync()
        half = await soon(task)
        first = asyncio.create_task(client.end(half, ID, COMMIT))
        await until(lambda: running.broker._sequencer.backlog == 1)
        second = asyncio.create_task((await running.client()).end(half, ID, COMMIT))
        await until(lambda: running.broker._sequencer.backlog == 2)
        await turns()
        assert not first.done()
        assert not second.done()
        await hand.sync()
        assert (await soon(second)).ext["HMQ_REPEATED"] == "true"
        assert first.done()


async def test_committed_message_is_not_pulled_before_the_sync(tmp_path: Path) -> None:
    async with serving_by_hand(tmp_path) as (running, hand):
        client, task = await half_in_flight(running)
        await hand.sync()
        half = await soon(task)
        consumer = await running.client()
        made = asyncio.create_task(consumer.pull("T"))
        await until(lambda: "C" in running.state.groups)
        await hand.sync()
        assert (await soon(made)).code == 19
        client.tell(37, end_ext(half, ID, COMMIT))
        await until(lambda: not running.state.producer_groups["P"].undecided)
        assert (await consumer.pull("T")).code == 19
        parked = asyncio.create_task(consumer.pull("T", wait_ms=3_600_000))
        await until(lambda: running.broker._pulls.held == 1)
        assert not parked.done()
        await hand.sync()
        assert (await soon(parked)).code == 0


async def test_one_sync_releases_every_turn_before_it(tmp_path: Path) -> None:
    async with serving_by_hand(tmp_path) as (running, hand):
        client = await running.client()
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(client.send("T", b"x", unique=f"{number:032d}")))
            await until(lambda: running.broker._sequencer.backlog == len(tasks))
        await hand.sync()
        assert [answer.code for answer in await soon(asyncio.gather(*tasks))] == [0] * 5


async def test_commands_of_one_read_are_one_batch_and_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []

    async with serving(tmp_path) as running:
        append = running.broker._store.append

        def counted(records: Sequence[Record], broker_time_ms: int) -> int:
            batches.append(len(records))
            return append(records, broker_time_ms)

        client = await running.client()
        assert (await client.send("T", b"first", unique="0" * 32)).code == 0
        monkeypatch.setattr(running.broker._store, "append", counted)
        for first in range(500, 700, 32):
            batches.clear()
            opaques = range(first, first + 32)
            waiting = [client.expect(opaque) for opaque in opaques]
            client.write(
                b"".join(
                    command(310, opaque, send_ext("T", "P", 0, {"UNIQ_KEY": f"{opaque:032d}"}), b"x")
                    for opaque in opaques
                )
            )
            await soon(asyncio.gather(*waiting))
            assert sum(batches) == 32
            if len(batches) == 1:  # where the process was stopped in between, a turn has used up its time
                break
        assert batches == [32]


async def test_command_that_fits_no_segment_is_refused_and_the_next_one_served(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        assert (await client.send("T", b"small", unique="2" * 32)).code == 0
        before = running.log_bytes()
        for size in (40_000, 60_000, 100_000):
            refused = await client.send("T", bytes(size), unique="1" * 32)
            assert refused.code == 13, refused
        assert running.log_bytes() == before, "no segment was rolled for what is refused"
        assert (await client.send("T", b"small", unique="3" * 32)).code == 0


async def test_failed_write_stops_the_broker_and_lets_no_answer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()

        def broken(*_: Any) -> int:
            raise StorePoisoned("the disk is gone")

        monkeypatch.setattr(running.broker._store, "append", broken, raising=False)
        task = asyncio.create_task(client.send("T", b"x", unique="1" * 32))
        assert isinstance(await soon(running.broker.failed), StorePoisoned)
        with pytest.raises(ConnectionError):
            await task


async def test_failed_sync_stops_the_broker_and_lets_no_answer_out(tmp_path: Path) -> None:
    async with serving_by_hand(tmp_path) as (running, hand):
        _, task = await half_in_flight(running)
        store = running.broker._store
        assert store is not None

        def broken(*_: Any) -> None:
            raise OSError(errno.EIO, "fdatasync failed")

        store.log._sync_range = broken  # type: ignore[method-assign]
        await hand.sync()
        assert isinstance(await soon(running.broker.failed), StorePoisoned)
        with pytest.raises(ConnectionError):
            await task


async def test_no_room_for_the_next_segment_refuses_and_keeps_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise StoreFull("no room for the next log segment")

    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        monkeypatch.setattr(running.broker._store, "reserve_roll", full)
        answers = [await client.send("T", bytes(9_000), unique=f"{number:032d}") for number in range(10)]
        assert answers[0].code == 0
        assert answers[-1].code == 14
        refused = next(answer for answer in answers if answer.code)
        assert (
            refused.remark
            == "no room for the next log segment; verdicts are accepted while the current segment has space"
        )
        monkeypatch.undo()
        running.maintenance.check_free_space()
        await until(lambda: not running.state.session.disk_full)
        assert (await client.send("T", bytes(9_000), unique="9" * 32)).code == 0


async def test_a_start_without_room_for_a_segment_does_not_speak_of_what_goes_on(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail("allocate", errno.ENOSPC, path_ends=".seg", times=10_000)
    with pytest.raises(
        StoreFull,
        match=r"no space for a log segment .*\.seg \(free some space there, or .*: nothing is in the log yet\)$",
    ):
        async with serving(tmp_path, disk=disk):
            pytest.fail("it serves")


async def test_messages_are_refused_from_the_moment_on_that_the_next_segment_finds_no_room(tmp_path: Path) -> None:
    """Goal: what is left of the segment is kept for verdicts. Method: nobody looks at the free space; the sync that makes
    the next segment finds none."""
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk, durability=Durability.FSYNC) as running:
        running.maintenance.stop()
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        disk.fail("allocate", errno.ENOSPC, path_ends=".seg", times=10_000)
        for number in range(140):  # up to the next segment, which is there already, and beyond
            code = (await client.send("T", bytes(9_000), unique=f"{number:032d}")).code
            if code:
                break
        assert code == 14
        assert running.state.session.disk_full
        assert running.state.log_end % running.broker.config.segment_bytes < 40_000, "a fresh segment, nearly unused"
        assert (await client.end(half, ID, COMMIT)).ext["HMQ_VERDICT"] == "COMMITTED"
        assert running.broker._sequencer.failed is None


async def test_answers_wait_where_not_even_the_published_page_can_be_written(tmp_path: Path) -> None:
    """Only the page says that what was answered last was durable. It has its room; a file system that never writes in place
    may still find none. Nothing is refused as damaged or taken back for it: what waited is answered when there is room."""
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as running:
        maintenance = running.maintenance
        maintenance.stop()
        client, consumer = await running.client(), await running.client()
        half = await client.half("T", b"one", unique=ID)
        assert (await consumer.pull("T")).code == 19
        parked = asyncio.create_task(consumer.pull("T", wait_ms=3_600_000))
        await until(lambda: running.broker._pulls.held == 1)
        disk.fail("write", errno.ENOSPC, path_ends="published", times=10_000)
        ends = []
        for _ in range(3):  # the later ones find the first one waiting
            ends.append(asyncio.create_task(client.end(half, ID, COMMIT)))
            await until(lambda: running.broker._sequencer.backlog == len(ends))
            maintenance.check_free_space()
            await running.offloaded()
        await turns()
        assert not any(one.done() for one in ends)
        assert not parked.done()
        assert running.state.session.disk_full
        disk.heal()
        maintenance.check_free_space()
        answers = [await soon(one) for one in ends]
        assert {one.ext["HMQ_VERDICT"] for one in answers} == {"COMMITTED"}
        assert b"one" in (await soon(parked)).body
        assert not running.broker._sequencer.indexes_lag
        assert not running.state.session.disk_full
        page = read_watermark_page(disk, tmp_path / "shard-0" / "published")
        assert isinstance(page, Watermark)
        assert page.position == running.state.log_end
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).ext == {"offset": "1"}
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0
        assert running.broker._sequencer.failed is None
    disk.kill()
    async with serving(tmp_path, disk=disk) as running:
        client = await running.client()
        assert (await client.end(half, ID, COMMIT)).ext["HMQ_POSITION"] == answers[0].ext["HMQ_POSITION"]


@pytest.mark.parametrize("file", [".q", ".tx"])
async def test_no_room_for_derived_files_stops_neither_verdicts_nor_the_broker(tmp_path: Path, file: str) -> None:
    """Goal: a full disk takes nothing back, tears nothing and is over when it is over. Method: writes to one kind of
    derived file find no room while a consumer waits; then they do again, and the broker starts anew."""
    disk = FaultyDisk()
    other = "AC10000100002A9F0000000000000002"
    async with serving(tmp_path, disk=disk) as running:
        maintenance = running.maintenance
        maintenance.stop()
        client, consumer = await running.client(), await running.client()
        half = await client.half("T", b"one", unique=ID)
        back = await client.half("T", b"two", unique=other)
        assert (await consumer.pull("T")).code == 19
        parked = asyncio.create_task(consumer.pull("T", wait_ms=3_600_000))
        await until(lambda: running.broker._pulls.held == 1)
        disk.fail("write", errno.ENOSPC, path_ends=file, times=10_000)
        committed = await client.end(half, ID, COMMIT)
        assert committed.ext["HMQ_VERDICT"] == "COMMITTED"
        assert running.broker._sequencer.indexes_lag
        assert (await client.send("T", b"x", unique="1" * 32)).code == 14
        assert (await client.half("T", b"x", unique="2" * 32)).code == 14
        assert (await client.end(half, ID, 12)).ext["HMQ_VERDICT"] == "COMMITTED", "the first verdict stands"
        assert (await client.end(back, other, 12)).ext["HMQ_VERDICT"] == "ROLLED_BACK"
        assert (await client.pull("T")).code == 19
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).ext == {"offset": "0"}
        taken: list[None] = []
        maintenance.checkpoint(lambda: taken.append(None))
        await until(lambda: taken)
        assert not disk.exists(tmp_path / "shard-0" / "checkpoint")
        maintenance.check_free_space()
        await running.offloaded()
        assert running.state.session.disk_full, "there is still no room"
        assert not parked.done()
        disk.heal()
        maintenance.check_free_space()
        assert b"one" in (await soon(parked)).body
        assert not running.state.session.disk_full
        assert not running.broker._sequencer.indexes_lag
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).ext == {"offset": "2"}
        assert running.broker._sequencer.failed is None
    disk.kill()
    async with serving(tmp_path, disk=disk) as running:
        client = await running.client()
        assert (await client.end(half, ID, COMMIT)).ext["HMQ_POSITION"] == committed.ext["HMQ_POSITION"]
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).ext == {"offset": "2"}


# --- a body that is damaged on the disk -------------------------------------------------------------------------


async def filled(client: RawClient, count: int = 20) -> None:
    for number in range(count):
        assert (await client.send("Fill", bytes(8_000), unique=f"FILL{number:028d}")).code == 0


def damage(directory: Path, body: bytes) -> None:
    """Flip a bit of ``body``, wherever the log has it."""
    for path in (directory / "shard-0" / "log").iterdir():
        data = bytearray(path.read_bytes())
        at = data.find(body)
        if at >= 0:
            data[at + 3] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"{body!r} is nowhere in the log")


async def test_commit_that_cannot_copy_its_half_is_refused_and_all_else_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: one damaged body costs one transaction its commit, and nothing else. Method: a half in an older segment, a
    flipped bit; then a commit, other traffic, the commit again, a restart, a rollback."""
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        half = await client.half("T", b"undecided body", unique=ID)
        await filled(client)
        await running.broker.drain()
    damage(tmp_path, b"undecided body")
    for _ in range(2):
        async with serving(tmp_path, segment_bytes=SMALL) as running:
            client = await running.client()
            for _ in range(2):
                refused = await client.end(half, ID, COMMIT)
                assert refused.code == 1
                for said in (ID, "stays undecided", "00000000000000000000.seg", "restore", "roll"):
                    assert said in refused.remark
            assert (await client.send("T", b"x", unique="F" * 32)).code == 0
            assert (await client.pull("T")).code == 0
            assert not running.broker.failed.done()
    assert sum("stays undecided" in line for line in caplog.messages) == 2, "once for each start"
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        assert (await client.end(half, ID, ROLLBACK)).ext["HMQ_VERDICT"] == "ROLLED_BACK"


async def test_trim_that_cannot_copy_what_is_alive_stops_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the transaction is rolled back, the log is trimmed again."""
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        half = await client.half("T", b"undecided body", unique=ID)
        await filled(client)
        await running.broker.drain()
    damage(tmp_path, b"undecided body")
    keeping = {
        "segment_bytes": SMALL,
        "retention_bytes": 1 << 16,
        "retention_check_ms": 20,
        "retention_ms": 0,
        "settings": BrokerSettings(dedup_window_ms=0),
    }
    async with serving(tmp_path, **keeping) as running:
        client = await running.client()
        await filled(client, 3)
        await until(lambda: "the log is not trimmed now" in caplog.text)
        await Calls(monkeypatch, Store, "closed_segments").more(3)
        assert running.state.log_start == 0
        assert not running.broker.failed.done()
        assert sum("the log is not trimmed now" in line for line in caplog.messages) == 1, "at the later tries too"
        assert (await client.end(half, ID, ROLLBACK)).code == 0
        await until(lambda: running.state.log_start > 0)


class _Later(SystemClock):
    def wall_ms(self) -> int:
        return super().wall_ms() + 100_000


async def test_delayed_message_that_cannot_be_copied_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        for number in range(3):
            sent = await client.send("T", b"delayed body %d" % number, unique=f"{number:032d}", TIMER_DELAY_MS="60000")
            assert sent.code == 0
        await filled(client)
        await running.broker.drain()
    damage(tmp_path, b"delayed body 1")
    async with serving(tmp_path, segment_bytes=SMALL, clock=_Later()) as running:
        client = await running.client()
        await until(lambda: running.state.topics_by_name["T"].ends[0] == 2)
        pulled = await client.pull("T")
        assert (pulled.code, b"delayed body 0" in pulled.body, b"delayed body 2" in pulled.body) == (0, True, True)
        assert len(running.state.delayed) == 1
        assert not running.broker.failed.done()
        assert (await client.half("T", b"one", unique=ID)).code == 0
    assert sum("not be delivered before the next start" in line for line in caplog.messages) == 1


async def test_many_delayed_messages_that_cannot_be_copied_are_put_aside_together_and_a_tick_looks_at_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the loop is free between two ticks, whatever is damaged. Method: more delayed messages than two ticks release,
    all but each hundredth damaged, due at a start; looks are counted by the batch that they belong to."""
    count = 560
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        bodies = [b"whole" if number % 100 == 50 else b"soon damaged" for number in range(count)]
        delayed = [client.send("T", body, TIMER_DELAY_MS="60000") for body in bodies]
        assert {answer.code for answer in await asyncio.gather(*delayed)} == {0}
        await filled(client, 8)
        await running.broker.drain()
    segments = 0
    for path in (tmp_path / "shard-0" / "log").iterdir():
        data = path.read_bytes()
        path.write_bytes(data.replace(b"soon damaged", b"damaged now!"))
        segments += b"soon damaged" in data
    looked: Counter[int] = Counter()
    look = CommitLog.why_not_copied

    def counted(log: CommitLog, source: int, message_bytes: int) -> str | None:
        looked[running.broker._sequencer.decided] += 1
        return look(log, source, message_bytes)

    monkeypatch.setattr(CommitLog, "why_not_copied", counted)
    async with serving(tmp_path, segment_bytes=SMALL, clock=_Later()) as running:
        await until(lambda: not running.state.derived.delayed_heap)
        assert running.state.topics_by_name["T"].ends[0] == 6
        assert len(running.state.delayed) == 554
        check(running.state)
    assert max(looked.values()) <= RELEASES_MAX
    assert sum(looked.values()) == count, "each once"
    told = [line for line in caplog.messages if "not be delivered before the next start" in line]
    assert len(told) == segments + 1
    named = sum(int(line.partition(" of one segment")[0].rpartition(" ")[2]) for line in told[:-1])
    assert told[-1].startswith(f"{554 - named} more")
    assert told[-1].endswith("554 in all")


@pytest.mark.parametrize("times", range(1, 6))
async def test_room_that_comes_back_between_two_tries_lets_waiting_answers_out(tmp_path: Path, times: int) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as running:
        maintenance = running.maintenance
        maintenance.stop()
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        disk.fail("write", errno.ENOSPC, path_ends="published", times=times)
        end = asyncio.create_task(client.end(half, ID, COMMIT))
        await until(lambda: running.broker._sequencer.waits_for_space)
        for _ in range(times + 2):
            maintenance.check_free_space()
            await running.offloaded()
        assert (await soon(end)).ext["HMQ_VERDICT"] == "COMMITTED"
        assert not running.state.session.disk_full


async def test_a_drain_does_not_wait_for_a_disk_that_stays_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        disk.fail("write", errno.ENOSPC, path_ends="published", times=100_000)
        end = asyncio.create_task(client.end(half, ID, COMMIT))
        await until(lambda: running.broker._sequencer.waits_for_space)
        await soon(running.broker.drain())
        assert "1 replies are withheld and no checkpoint is written: the disk is full" in caplog.text
        end.cancel()
    disk.heal()
    async with serving(tmp_path, disk=disk) as running:
        client = await running.client()
        assert (await client.end(half, ID, COMMIT)).ext["HMQ_VERDICT"] == "COMMITTED"


# --- the end of a segment ----------------------------------------------------------------------------------------


async def bodies_up_to_the_end(running: Running) -> RawClient:
    """Fill the first segment until less than one more body fits."""
    client = await running.client()
    number = 0
    while running.state.log_end % SMALL < SMALL - 6_000:
        assert (await client.send("T", bytes(5_000), unique=f"{number:032d}")).code == 0
        number += 1
    return client


async def test_what_fits_no_segment_fails_alone_and_rolls_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: one broken decision costs its command only. Method: a decision of more than any segment holds."""
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await bodies_up_to_the_end(running)
        real = DECIDE[SendMessage]

        def too_much(state: Any, command: Any, now_ms: int) -> Any:
            decision = Decision._make(real(state, command, now_ms))
            record = decision.records[-1]
            return decision._replace(records=(*decision.records[:-1], replace(record, size=SMALL)))

        with monkeypatch.context() as patch:
            patch.setitem(DECIDE, SendMessage, too_much)
            before = running.log_bytes()
            refused = await client.send("T", bytes(9_000), unique="1" * 32)
            assert refused.code == 1
            assert "do not fit in the log at" in refused.remark
            assert running.log_bytes() == before, "nothing was rolled for it"
        assert (await client.send("T", bytes(9_000), unique="3" * 32)).code == 0
        assert sum("everything else continues" in line for line in caplog.messages) == 1
        assert running.broker._sequencer.failed is None


async def test_checks_of_a_tick_that_was_decided_anew_go_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BrokerSettings(check_immunity_ms=0, check_interval_ms=60_000)
    async with serving(tmp_path, segment_bytes=SMALL, settings=settings) as running:
        client = await running.client()
        fits, refused = engine.fits, []

        def one_no(end: int, is_open: bool, size: int, segment: int) -> bool:
            if size and not refused:
                refused.append(size)
                return False
            return fits(end, is_open, size, segment)

        for number in range(5):
            await client.half("T", b"x", unique=f"{number:032d}")
        monkeypatch.setattr(engine.Engine, "_end_max", lambda self: 0)
        monkeypatch.setattr(engine, "fits", one_no)
        await client.heartbeat("c", producers=["P"])
        checks = [await soon(client.pushes.get()) for _ in range(5)]
        assert len(refused) == 1
        assert len({check.ext["transactionId"] for check in checks}) == 5
        assert (await client.ask(106)).code == 0
        assert client.pushes.empty(), "nothing came before that answer"
        assert all(known.checks == 1 for known in running.state.producer_groups["P"].undecided.values())


async def test_a_step_of_a_trim_that_breaks_halfway_forgets_nothing_of_what_it_was_to_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halfmq.core.transaction import retention

    copy, calls = retention._copy, []

    def broken(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 5:
            raise ZeroDivisionError("a bug")
        return copy(*arguments)

    async with serving(
        tmp_path, segment_bytes=SMALL, retention_ms=0, retention_check_ms=3_600_000, settings=BrokerSettings(dedup_window_ms=0),
    ) as running:  # fmt: skip
        client = await running.client()
        halves = [await client.half("T", bytes(1_000), unique=f"{number:032d}") for number in range(8)]
        while running.state.log_end < SMALL:
            assert (await client.send("T", bytes(2_000), unique=f"P{running.state.log_end:031d}")).code == 0
        monkeypatch.setattr(retention, "_copy", broken)
        maintenance = running.maintenance
        for _ in range(2):
            maintenance._trimming = SMALL
            maintenance._copy_forward()
            await until(lambda: maintenance._trimming is None)
        assert running.state.log_start == SMALL
        for number, half in enumerate(halves):
            assert (await client.end(half, f"{number:032d}", COMMIT)).ext["HMQ_VERDICT"] == "COMMITTED"


async def test_what_is_submitted_during_a_turn_that_is_cut_comes_behind_its_rest(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        cut = running.broker._sequencer
        now = [0.0]

        def clock() -> float:
            now[0] += 0.008
            return now[0]

        cut.pace.clock = clock
        done: list[int] = []
        on_deadline = cut._on_deadline

        def submit_one(at_ms: int | None) -> None:
            cut._on_deadline = on_deadline
            cut.submit(EnsureGroup("late"), lambda context, _: done.append(context), 10)
            on_deadline(at_ms)

        cut._on_deadline = submit_one
        for number in range(10):
            cut.submit(EnsureGroup(f"G{number}"), lambda context, _: done.append(context), number)
        while len(done) < 11:
            await asyncio.sleep(0)
        assert done == list(range(11))


async def test_a_turn_that_takes_long_is_cut_and_order_and_counts_stay(tmp_path: Path) -> None:
    """A clock that goes on by 8 ms at each look: a turn has room for few commands that are looked at."""
    async with serving(tmp_path) as running:
        cut = running.broker._sequencer
        now = [0.0]

        def clock() -> float:
            now[0] += 0.008
            return now[0]

        cut.pace.clock = clock
        done: list[int] = []
        called: list[int] = []
        first = cut.submitted
        for number in range(10):
            cut.submit(EnsureGroup(f"G{number}"), lambda context, _: done.append(context), number)
        assert cut.expected_s > 0
        assert cut.after_turn(lambda: called.append(len(done)))
        turns_seen = []
        while len(done) < 10 or not called:
            await asyncio.sleep(0)
            assert cut.submitted == first + 10
            assert cut.decided == first + len(done)
            turns_seen.append(len(done))
        assert done == list(range(10))
        assert len(set(turns_seen)) >= 5
        assert called == [10], "what is to come behind them does"
        assert (cut.expected_s, cut.idle) == (0, True)
        cut.submit(EnsureGroup("H"), None)
        assert cut.expected_s >= 0.008, "it has learned"


async def test_one_command_that_took_long_is_soon_forgotten_and_a_roll_is_not_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        sequencer = running.broker._sequencer
        now = [0.0]
        step_s = [1.0]

        def clock() -> float:
            now[0] += step_s[0]
            return now[0]

        sequencer.pace.clock = clock
        sequencer.submit(EnsureGroup("slow"), None)
        await turns()
        assert sequencer.pace.expected_s(EnsureGroup) >= 1.0
        step_s[0] = 0.0001
        for number in range(60):
            sequencer.submit(EnsureGroup(f"G{number}"), None)
        while not sequencer.idle:
            await turns(1)
        assert sequencer.pace.expected_s(EnsureGroup) < 0.03

        roll = running.broker._store.reserve_roll

        def slow_roll() -> None:
            now[0] += 10
            roll()

        running.broker._store.reserve_roll = slow_roll
        await bodies_up_to_the_end(running)
        for number in range(200):
            sequencer.submit(EnsureGroup(f"H{number}".ljust(100, "h")), None)
            await turns(1)
        assert len(running.state.bases) >= 2
        assert sequencer.pace.expected_s(EnsureGroup) < 1


def _page_position(directory: Path) -> int:
    page = read_watermark_page(RealDisk(), directory / "shard-0" / "published")
    assert isinstance(page, Watermark)
    return page.position


async def test_other_processes_see_a_message_a_moment_after_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await client.send("T", b"first", unique="0" * 32)).code == 0
        await until(lambda: not running.broker._sequencer._write_scheduled)
        loop = asyncio.get_running_loop()
        before = loop.call_later  # a moment that never comes, so that nothing depends on the machine's pace
        loop.call_later = lambda delay, *rest: before(3_600 if delay == limits.INDEX_WAIT_S else delay, *rest)  # type: ignore[method-assign]
        assert (await client.send("T", b"second", unique="1" * 32)).code == 0
        assert _page_position(tmp_path) < running.state.log_end
        loop.call_later = before  # type: ignore[method-assign]
        running.broker._sequencer._write_late()
        assert _page_position(tmp_path) == running.state.log_end


async def test_a_receipt_is_not_answered_before_other_processes_can_read_what_it_is_of(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(5):
            unique = f"{number:032d}"
            half = await client.half("T", b"one", unique=unique)
            receipt = await client.end(half, unique, COMMIT)
            assert _page_position(tmp_path) > int(receipt.ext["HMQ_POSITION"])


async def test_no_room_for_what_waits_refuses_new_messages_and_wakes_who_waited(tmp_path: Path) -> None:
    """Goal: a disk that fills up between a message's answer and its queue entry takes nothing back."""
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as running:
        maintenance = running.maintenance
        maintenance.stop()
        client, consumer = await running.client(), await running.client()
        assert (await client.send("T", b"first", unique="0" * 32)).code == 0
        assert (await consumer.pull("T", offset=0)).code == 0
        parked = asyncio.create_task(consumer.pull("T", offset=1, wait_ms=3_600_000))
        await until(lambda: running.broker._pulls.held == 1)
        disk.fail("write", errno.ENOSPC, path_ends=".q", times=10_000)
        assert (await client.send("T", b"second", unique="1" * 32)).code == 0
        await until(lambda: running.broker._sequencer.indexes_lag)
        assert not parked.done()
        assert running.state.session.disk_full
        disk.heal()
        maintenance.check_free_space()
        assert b"second" in (await soon(parked)).body
        assert not running.broker._sequencer.indexes_lag


@pytest.mark.parametrize("by_reader", [False, True], ids=["found by the next write", "found by a reader"])
async def test_who_waits_for_what_a_full_disk_took_back_is_woken_when_there_is_space(
    tmp_path: Path, by_reader: bool
) -> None:
    """Goal: no pull sleeps on a message. Method: a message is answered and not written; then nobody can write it, a pull looks
    for it and parks; space comes back behind a message of another topic."""
    disk = FaultyDisk()
    async with serving(tmp_path, disk=disk) as running:
        maintenance = running.maintenance
        maintenance.stop()
        sequencer = running.broker._sequencer
        sequencer._write_scheduled = True  # as if the 2 ms never passed
        client, consumer = await running.client(), await running.client()
        for topic in ("A", "B"):
            assert (await client.send(topic, b"first", unique=topic * 32)).code == 0
            assert (await consumer.pull(topic, offset=0)).code == 0
        assert (await client.send("A", b"second", unique="1" * 32)).code == 0
        assert running.broker._store.indexes_wait  # type: ignore[union-attr]
        disk.fail("write", errno.ENOSPC, path_ends=".q", times=10_000)
        if by_reader:
            parked = asyncio.create_task(consumer.pull("A", offset=1, wait_ms=3_600_000))
            await until(lambda: running.broker._pulls.held == 1)
            disk.heal()
            assert (await client.send("B", b"second", unique="2" * 32)).code == 0
        else:
            half = await client.half("B", b"second", unique="3" * 32)
            assert (await client.end(half, "3" * 32, COMMIT)).code == 0
            parked = asyncio.create_task(consumer.pull("A", offset=1, wait_ms=3_600_000))
            await until(lambda: running.broker._pulls.held == 1)
            assert not parked.done()
            disk.heal()
            maintenance.check_free_space()
        assert b"second" in (await soon(parked)).body
        assert not sequencer.indexes_lag
