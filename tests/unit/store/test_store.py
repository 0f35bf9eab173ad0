"""The store as the broker uses it: start, append, sync, publish, checkpoint, trim, restart; and what it refuses."""

import errno
import gc
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.durable_digest import durable_digest
from tests.support.faulty_disk import FaultyDisk, PowerLost
from tests.support.small_broker import TOPIC, SmallBroker
from tests.support.steps import result_of
from tests.support.waiting import PATIENCE_S

from halfmq.errors import (
    InvariantViolated,
    StoreDamaged,
    StoreFull,
    StoreInUse,
    StorePoisoned,
    UsageError,
    WrongVersion,
)
from halfmq.model.records import Kind
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.identity import read_identity
from halfmq.store.store import INDEX_RECORDS_MAX, Durability, Store
from halfmq.store.table_block import Wanted
from halfmq.store.verify import verify_store
from halfmq.store.watermark_page import Watermark, WatermarkPage, read_watermark_page

HOME = Path("/store")
SHARD = HOME / "shard-0"


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def broker(disk: FaultyDisk) -> SmallBroker:
    return SmallBroker(disk, HOME).start()


def space_is_low(store: Store) -> bool:
    return store.log.space_low or store.is_lagging


def some_traffic(broker: SmallBroker, turns: int = 40) -> None:
    for number in range(turns):
        broker.turn([("prepare", f"T{number}", number % 3, b"half %d" % number), ("send", 0, b"x" * 700)])
        if number % 3 == 0:
            broker.turn([("commit", f"T{number}")])
        elif number % 3 == 1:
            broker.turn([("roll_back", f"T{number}")])
        broker.sync()


def restart(broker: SmallBroker) -> SmallBroker:
    """Stop and start; everything that was synced is there, and readers see it."""
    broker.store.close()
    broker.start()
    assert broker.problems() == []
    return broker


# --- a new store ------------------------------------------------------------------------------------------------


def test_a_first_start_makes_a_store(disk: FaultyDisk, broker: SmallBroker) -> None:
    assert broker.store.recovery.case.letter == "A"
    assert broker.store.epoch == 1
    assert len(broker.store.uuid) == 32
    assert {"store.json", "lock", "shard-0"} <= set(disk.list(HOME))
    assert disk.list(SHARD / "log") == ["0" * 20 + ".seg"]


def test_every_start_has_an_epoch_of_its_own(broker: SmallBroker) -> None:
    uuid = broker.store.uuid
    epochs = []
    for _ in range(3):
        epochs.append(broker.store.epoch)
        broker.turn([("send", 0, b"x")])
        broker.sync()
        restart(broker)
    assert epochs == [1, 2, 3]
    assert broker.store.uuid == uuid


def test_a_start_that_wrote_nothing_does_not_give_its_epoch_away(broker: SmallBroker) -> None:
    """A reader may have seen the watermark page of that run."""
    restart(restart(broker))
    assert broker.store.epoch == 3


def test_a_store_that_is_in_use_is_refused_by_name(disk: FaultyDisk, broker: SmallBroker) -> None:
    with pytest.raises(StoreInUse, match="/store is in use"):
        Store.open(disk, HOME, entropy=SystemEntropy())
    broker.store.close()
    SmallBroker(disk, HOME).start()


def test_a_refused_start_gives_the_lock_back(disk: FaultyDisk, broker: SmallBroker) -> None:
    broker.store.close()
    text = disk.content(HOME / "store.json")
    disk.put(HOME / "store.json", text.replace(b'"format": 3', b'"format": 9'))
    for _ in range(2):
        with pytest.raises(WrongVersion, match="format 9"):
            Store.open(disk, HOME, entropy=SystemEntropy())


def test_a_log_that_is_gone_without_a_checkpoint_is_refused_too(disk: FaultyDisk, broker: SmallBroker) -> None:
    """Else a broker would begin anew, and deny all that it has confirmed, because somebody removed a directory."""
    some_traffic(broker, 5)
    broker.store.close()
    assert not disk.exists(SHARD / "checkpoint")
    for name in disk.list(SHARD / "log"):
        disk.remove(SHARD / "log" / name)
    before = disk.image()
    with pytest.raises(StoreDamaged, match="case B: the segment files are missing"):
        broker.start()
    assert disk.image() == before


def test_the_stored_segment_size_wins(broker: SmallBroker) -> None:
    broker.turn([("send", 0, b"x")])
    broker.sync()
    broker.store.close()
    broker.start(segment_bytes=1 << 20)
    assert broker.store.segment_bytes == make.SEGMENT


LARGE = 16 * make.SEGMENT


def without_room_for_a_large_segment(disk: FaultyDisk) -> SmallBroker:
    """A first start that failed."""
    disk.fill(LARGE // 2)
    broker = SmallBroker(disk, HOME)
    with pytest.raises(StoreFull, match=f"no space for a log segment of {LARGE} bytes.*--segment-bytes"):
        broker.start(segment_bytes=LARGE)
    assert disk.list(SHARD / "log") == []
    broker.store.close()
    return broker


def test_a_first_start_without_room_can_be_repeated_with_smaller_segments(disk: FaultyDisk) -> None:
    broker = without_room_for_a_large_segment(disk)
    refused = broker.store.uuid
    broker.start(segment_bytes=make.SEGMENT)
    assert broker.store.segment_bytes == make.SEGMENT
    assert broker.store.uuid != refused, "whoever looked at the store before is told"
    some_traffic(broker, 5)
    broker.store.close()
    disk.heal()
    broker.start(segment_bytes=LARGE)
    assert broker.store.segment_bytes == make.SEGMENT, "there is a log now"
    assert broker.problems() == []


def test_no_crash_in_the_repeated_start_changes_the_segment_size_of_a_log() -> None:
    """Goal: a size goes with its segments. Method: power fails at each step of the start with smaller segments; who comes
    next asks for a third size, and gets it only where no segment is."""
    seen = set()
    for steps in range(60):
        disk = FaultyDisk(steps)
        broker = without_room_for_a_large_segment(disk)
        disk.power_fails_after(steps)
        with suppress(PowerLost):
            broker.start(segment_bytes=make.SEGMENT).turn([("send", 0, b"x")])
            broker.sync()
            disk.power_fails_after(0)
        disk.crash()
        disk.heal()
        stored = read_identity(disk, HOME)
        assert stored is not None
        there = bool(disk.list(SHARD / "log"))
        broker.start(segment_bytes=2 * make.SEGMENT)
        assert broker.store.segment_bytes == (stored.segment_bytes if there else 2 * make.SEGMENT)
        broker.turn([("send", 0, b"later")])
        broker.sync()
        assert broker.store.recovery.case.letter == "A" or there
        seen.add((stored.segment_bytes, there))
    # A power loss may also take back that the file of the large segment, which found no space, was removed.
    assert seen - {(LARGE, True)} == {(LARGE, False), (make.SEGMENT, False), (make.SEGMENT, True)}


@pytest.mark.parametrize("left", ["a segment", "a checkpoint", "a high watermark", "a damaged page"])
def test_a_store_that_held_something_keeps_its_segment_size(disk: FaultyDisk, left: str) -> None:
    broker = without_room_for_a_large_segment(disk)
    disk.heal()
    page = WatermarkPage.open(disk, SHARD / "published", broker.store.store_id, 1)
    if left == "a segment":
        disk.open(SHARD / "log" / f"{0:020d}.seg", create=True)
    elif left == "a checkpoint":
        disk.open(SHARD / "checkpoint", create=True)
    elif left == "a high watermark":
        page.durable_to(4_096)
    else:
        disk.put(SHARD / "published", b"\xff" * 8_192)
    before = disk.content(HOME / "store.json")
    Store.open(disk, HOME, entropy=SystemEntropy(), segment_bytes=make.SEGMENT).close()
    assert disk.content(HOME / "store.json") == before


@pytest.mark.parametrize("size", [0, 4_096, 65_537, 100_000])
def test_a_segment_size_that_cannot_be_is_refused(disk: FaultyDisk, size: int) -> None:
    with pytest.raises(UsageError, match=f"a segment of {size} bytes"):
        Store.open(disk, HOME, entropy=SystemEntropy(), segment_bytes=size)


def test_a_log_without_its_identity_is_refused(disk: FaultyDisk, broker: SmallBroker) -> None:
    broker.store.close()
    disk.remove(HOME / "store.json")
    with pytest.raises(StoreDamaged, match=r"contains a log but no store\.json"):
        Store.open(disk, HOME, entropy=SystemEntropy())


# --- durable and published --------------------------------------------------------------------------------------


def test_a_batch_is_durable_after_the_sync_and_not_before(broker: SmallBroker) -> None:
    told: list[int] = []
    broker.store.on_durable = told.append
    end = broker.turn([("send", 0, b"x")])
    assert broker.store.durable_position == 0
    assert told == []
    assert broker.flush is not None
    broker.flush.run()
    assert broker.store.durable_position == end
    assert told == [end]


def test_readers_see_what_is_published(broker: SmallBroker) -> None:
    broker.turn([("send", 0, b"x")])
    assert broker.store.bounds(TOPIC, 0) == (0, 0)
    assert broker.store.read_queue(TOPIC, 0, 0, 10) == []
    broker.sync()
    assert broker.store.bounds(TOPIC, 0) == (0, 1)
    (entry,) = broker.store.read_queue(TOPIC, 0, 0, 10)
    assert broker.store.log.read_message(entry.offset).body == b"x"
    assert broker.store.kind_at(entry.offset) == Kind.MESSAGE
    assert len(broker.store.stored_view(entry.offset)) == entry.message_bytes
    assert result_of(broker.store.find_offset(TOPIC, 0, entry.offset)) == (0, entry)
    assert broker.store.search_by_time(TOPIC, 0, 0) == 0
    (found,) = result_of(broker.store.find_by_key(TOPIC, "orders", "k1-1", 10))
    assert found.entry == entry


def test_other_processes_see_the_high_watermark(disk: FaultyDisk, broker: SmallBroker) -> None:
    end = broker.turn([("send", 0, b"x")])
    broker.sync()
    page = read_watermark_page(disk, SHARD / "published")
    assert isinstance(page, Watermark)
    assert (page.position, page.epoch, page.rebuilding, page.store) == (end, 1, False, broker.store.store_id)


# --- derived files that are written a little later ---------------------------------------------------------------


@pytest.fixture
def quick(disk: FaultyDisk) -> SmallBroker:
    """In memory, with a first message that is written, so that what comes later waits."""
    broker = SmallBroker(disk, HOME, Durability.MEMORY).start()
    broker.turn([("send", 0, b"first")])
    broker.publish()
    return broker


def page_position(disk: FaultyDisk) -> tuple[int, int]:
    page = read_watermark_page(disk, SHARD / "published")
    assert isinstance(page, Watermark)
    return page.position, page.durable


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.read_queue(TOPIC, 0, 1, 10),
        lambda store: store.bounds(TOPIC, 0),
        lambda store: store.search_by_time(TOPIC, 0, 0),
        lambda store: result_of(store.find_offset(TOPIC, 0, 8)),
        lambda store: result_of(store.find_by_key(TOPIC, "orders", "K1", 10)),
        lambda store: store.read_table(0, 10, store.high_watermark, Wanted.ROWS, 10, 10, 0),
    ],
)
def test_what_waits_to_be_written_is_written_for_the_first_reader(
    disk: FaultyDisk, quick: SmallBroker, read: Callable[[Store], object]
) -> None:
    before, _ = page_position(disk)
    end = quick.turn([("send", 0, b"second")])
    quick.publish(at_once=False)
    assert quick.store.indexes_wait
    assert quick.store.high_watermark == end
    assert page_position(disk)[0] == before
    read(quick.store)
    assert not quick.store.indexes_wait
    assert page_position(disk)[0] == end
    assert quick.store.bounds(TOPIC, 0) == (0, 2)
    assert quick.problems() == []


def test_how_far_the_log_is_durable_is_said_before_any_answer(disk: FaultyDisk, broker: SmallBroker) -> None:
    some_traffic(broker, 3)
    before, _ = page_position(disk)
    end = broker.turn([("send", 0, b"x")])
    assert broker.flush is not None
    broker.flush.run()
    broker.publish(at_once=False)
    assert broker.store.indexes_wait
    assert page_position(disk) == (before, end)


def test_so_many_records_wait_and_no_more(disk: FaultyDisk, quick: SmallBroker) -> None:
    for number in range(1, INDEX_RECORDS_MAX + 1):
        quick.turn([("send", 0, b"x")])
        quick.publish(at_once=False)
        assert quick.store.indexes_wait == (number < INDEX_RECORDS_MAX)
    assert page_position(disk)[0] == quick.store.log.end


def test_a_trim_is_never_left_for_later(disk: FaultyDisk, quick: SmallBroker) -> None:
    some_traffic(quick, 100)
    quick.turn([("send", 0, b"x")])
    quick.publish(at_once=False)
    assert quick.store.indexes_wait
    quick.turn([("trim", make.SEGMENT)])
    quick.publish(at_once=False)
    assert not quick.store.indexes_wait


def test_a_checkpoint_of_what_is_not_written_is_refused_and_close_writes_it(
    disk: FaultyDisk, quick: SmallBroker
) -> None:
    quick.turn([("send", 0, b"x")])
    quick.publish(at_once=False)
    with pytest.raises(InvariantViolated, match="the indexes are written up to"):
        quick.store.checkpoint(quick.store.high_watermark, [])
    quick.store.close()
    assert page_position(disk)[0] == quick.store.log.end


def test_a_store_that_failed_and_is_closed_writes_no_indexes(disk: FaultyDisk, quick: SmallBroker) -> None:
    quick.turn([("send", 0, b"x")])
    quick.publish(at_once=False)
    quick.store.log.failure = OSError(errno.EIO, "the disk failed")
    quick.store.close()
    position = quick.store.high_watermark
    assert quick.store.write_indexes() == position, "a timer may still ask"


def test_no_room_for_what_waits_shows_what_was_written_before_until_there_is_some(
    disk: FaultyDisk, quick: SmallBroker
) -> None:
    before = quick.store.high_watermark
    quick.turn([("send", 0, b"x"), ("send", 1, b"y")])
    quick.publish(at_once=False)
    disk.fail("write", errno.ENOSPC, path_ends=".q", times=EVERY_TIME)
    assert quick.store.bounds(TOPIC, 0) == (0, 1)
    assert quick.store.high_watermark == before
    assert quick.store.write_indexes() == quick.store.catch_up() == before
    disk.heal()
    assert quick.store.catch_up() == quick.store.log.end
    assert quick.problems() == []


def test_another_error_under_a_reader_stops_the_broker(disk: FaultyDisk, quick: SmallBroker) -> None:
    told: list[StorePoisoned] = []
    quick.store.on_failed = told.append
    quick.turn([("send", 0, b"x")])
    quick.publish(at_once=False)
    disk.fail("write", errno.EIO, path_ends=".q")
    with pytest.raises(OSError, match="Input/output error"):
        quick.store.bounds(TOPIC, 0)
    assert [str(error).partition(":")[0] for error in told] == ["indexes cannot be written"]


def test_what_waits_at_a_crash_is_made_again_from_the_log(disk: FaultyDisk, quick: SmallBroker) -> None:
    quick.turn([("send", 0, b"x"), ("prepare", "T1", 1, b"y")])
    quick.publish(at_once=False)
    disk.kill()
    quick.start()
    assert quick.problems() == []


def test_in_memory_a_written_batch_is_durable_and_there_is_no_thread(disk: FaultyDisk) -> None:
    broker = SmallBroker(disk, HOME, Durability.MEMORY).start()
    end = broker.turn([("send", 0, b"x")])
    assert broker.store.durable_position == end
    assert broker.flush is None
    broker.publish()
    assert broker.store.bounds(TOPIC, 0) == (0, 1)
    disk.kill()
    broker.start()
    assert broker.problems() == []
    assert broker.store.log.end == end


def test_in_memory_a_power_loss_may_take_it_and_is_no_damage() -> None:
    for seed in range(30):
        disk = FaultyDisk(seed)
        broker = SmallBroker(disk, HOME, Durability.MEMORY).start()
        for _ in range(40):
            broker.turn([("send", 0, b"x" * 3_000)])
            broker.publish()
        if seed % 2:
            broker.checkpoint()
        checkpoint_at = broker.store.log.end if seed % 2 else 0
        broker.turn([("send", 1, b"y")])
        broker.publish()
        disk.crash()
        broker.start()
        end = broker.store.log.end
        assert end >= checkpoint_at, "what a checkpoint stands on was synced"
        broker.written = [batch for batch in broker.written if batch.end <= end]
        assert broker.problems() == []


def test_the_sync_thread_makes_durable(tmp_path: Path) -> None:
    store = Store.open(RealDisk(), tmp_path / "store", entropy=SystemEntropy(), segment_bytes=make.SEGMENT)
    assert list(store.redo()) == []
    store.finish_recovery(next_half_index=0, undecided=[], topics=[], broker_time_ms=0)
    reached = threading.Event()
    wanted = store.append(make.laid_out(0, [make.base(0), make.checked()]), 1)
    store.on_durable = lambda position: reached.set() if position >= wanted else None
    store.request_sync(wanted)
    assert reached.wait(PATIENCE_S)
    assert store.durable_position == wanted
    store.close()
    assert not any(thread.name == "halfmq-sync" for thread in threading.enumerate())


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_failed_sync_is_told_once_and_nothing_becomes_durable(disk: FaultyDisk, broker: SmallBroker) -> None:
    told: list[StorePoisoned] = []
    durable: list[int] = []
    broker.store.on_failed = told.append
    broker.store.on_durable = durable.append
    broker.turn([("send", 0, b"x")])
    disk.fail("sync")
    assert broker.flush is not None
    broker.flush.run()
    assert [type(error) for error in told] == [StorePoisoned]
    assert durable == []
    assert broker.store.durable_position == 0
    assert broker.store.log.failure is not None
    with pytest.raises(StorePoisoned):
        broker.turn([("send", 0, b"x")])
    broker.store.close()


def test_whatever_fails_on_the_sync_thread_is_told(broker: SmallBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(directory: Path) -> int:
        raise OSError("statvfs failed")

    told: list[StorePoisoned] = []
    broker.store.on_failed = told.append
    broker.turn([("send", 0, b"x")])
    monkeypatch.setattr(broker.disk, "free_bytes", unexpected)
    assert broker.flush is not None
    broker.flush.run()
    assert "statvfs failed" in str(told[0])


def fill_the_log(broker: SmallBroker, disk: FaultyDisk) -> None:
    disk.fill(1 << 24)  # indexes are made at their full length
    for turn in range(1_000):
        broker.turn([("send", 0, b"x" * 9_000)])
        broker.sync()
        if turn == 20:
            disk.fill(make.SEGMENT // 2)


def test_a_full_disk_is_known_early_and_goes_away(disk: FaultyDisk, broker: SmallBroker) -> None:
    broker.turn([("send", 0, b"x")])
    broker.sync()
    assert not space_is_low(broker.store)
    assert not broker.store.check_space()
    with pytest.raises(StoreFull):
        fill_the_log(broker, disk)
    assert space_is_low(broker.store)
    assert broker.store.check_space()
    assert broker.store.log.failure is None
    broker.turn([("send", 0, b"small")])
    disk.heal()
    assert not broker.store.check_space()
    assert not space_is_low(broker.store)
    broker.turn([("send", 0, b"x" * 9_000)])
    broker.sync()
    assert broker.problems() == []


#: More often than any test asks.
EVERY_TIME = 10_000
WRITES = [("write", ".q"), ("write", ".tx")]
MAKES = [("create", ".q"), ("truncate", ".q"), ("create", ".tx"), ("truncate", ".tx")]


def other_traffic(broker: SmallBroker, turns: int) -> None:
    for number in range(turns):
        broker.turn([("prepare", f"U{number}", number % 3, b"half %d" % number), ("send", number % 2, b"x" * 700)])
        broker.turn([("commit", f"U{number}")])
        broker.sync()


@pytest.mark.parametrize(
    ("before", "operation", "path_ends"),
    [(turns, *case) for turns in (0, 20) for case in (WRITES if turns else WRITES + MAKES)],
)
def test_derived_files_fall_behind_on_a_full_disk_and_catch_up(
    disk: FaultyDisk, broker: SmallBroker, operation: str, path_ends: str, before: int
) -> None:
    """Goal: no space for indexes takes nothing back and shows nothing half. Method: a full disk meets one kind of
    them, the log goes on, readers look; then there is space again."""
    some_traffic(broker, before)
    seen = [broker.store.bounds(TOPIC, queue) for queue in range(3)]
    position = broker.store.high_watermark
    disk.fail(operation, errno.ENOSPC, path_ends=path_ends, times=EVERY_TIME)
    other_traffic(broker, 12)
    store = broker.store
    assert store.high_watermark == position < store.durable_position
    assert [store.bounds(TOPIC, queue) for queue in range(3)] == seen
    for queue, (low, high) in enumerate(seen):
        assert len(store.read_queue(TOPIC, queue, low, 1_000)) == high - low
    assert store.catch_up() == position
    assert space_is_low(store)
    assert store.log.failure is None
    disk.heal()
    assert store.catch_up() == store.durable_position == store.high_watermark
    assert not space_is_low(store)
    assert broker.problems() == []
    broker.checkpoint()
    restart(broker)


def test_damage_of_what_was_answered_on_a_full_disk_is_refused(disk: FaultyDisk, broker: SmallBroker) -> None:
    """Indexes are behind, so nothing new is published; the page says all the same what is durable."""
    some_traffic(broker, 10)
    disk.fail("write", errno.ENOSPC, path_ends=".q", times=EVERY_TIME)
    position = broker.store.high_watermark
    other_traffic(broker, 2)
    end = broker.store.log.end
    assert broker.store.high_watermark == position
    disk.heal()
    disk.kill()
    disk.flip_bit(SHARD / "log" / ("0" * 20 + ".seg"), end - 10)
    with pytest.raises(StoreDamaged, match=f"the log was durable up to {end}"):
        Store.open(disk, HOME, entropy=SystemEntropy())


def test_where_the_page_cannot_be_written_nothing_is_published_until_it_can(
    disk: FaultyDisk, broker: SmallBroker
) -> None:
    some_traffic(broker, 10)
    store = broker.store
    position = store.high_watermark
    disk.fail("write", errno.ENOSPC, path_ends="published", times=EVERY_TIME)
    with pytest.raises(StoreFull, match="no space for the watermark page"):
        other_traffic(broker, 1)
    with pytest.raises(StoreFull, match="no space for the watermark page"):
        store.catch_up()
    assert space_is_low(store)
    assert store.high_watermark == position
    disk.heal()
    assert store.catch_up() == store.log.end
    assert not space_is_low(store)


def test_what_was_durable_is_said_through_a_run_at_memory(disk: FaultyDisk) -> None:
    """It publishes what is in memory only, and says no less of the disk than the run before it."""
    broker = SmallBroker(disk, HOME).start()
    for _ in range(3):
        broker.turn([("send", 0, b"x" * 3_000)])
        broker.sync()
    durable = broker.store.log.end
    disk.kill()
    for _ in range(2):  # each writes a slot
        memory = SmallBroker(disk, HOME, Durability.MEMORY).start()
        memory.turn([("send", 0, b"y")])
        memory.publish()
        disk.kill()
    disk.flip_bit(SHARD / "log" / ("0" * 20 + ".seg"), durable - 10)
    with pytest.raises(StoreDamaged, match=f"the log was durable up to {durable}"):
        Store.open(disk, HOME, entropy=SystemEntropy())


def test_a_checkpoint_goes_only_after_the_page_says_durably_what_it_said(disk: FaultyDisk) -> None:
    """A start that finds a queue file lost withdraws the checkpoint, which may be all that says how far the log was durable."""
    broker = SmallBroker(disk, HOME).start()
    for _ in range(3):
        broker.turn([("send", 0, b"x" * 3_000)])
        broker.sync()
    broker.checkpoint()
    end = broker.store.log.end
    disk.crash(keep=0.0)
    for path in disk.paths():
        if path.suffix == ".q" or path.name == "published":
            disk.remove(path)
            disk.sync_directory(path.parent)
    store = Store.open(disk, HOME, entropy=SystemEntropy())
    assert store.why_rebuild([(1, 0, 0, 99)], 0)
    assert next(store.redo())
    assert not disk.exists(SHARD / "checkpoint")
    disk.crash(keep=0.0)
    disk.flip_bit(SHARD / "log" / ("0" * 20 + ".seg"), end - 10)
    with pytest.raises(StoreDamaged, match=f"the log was durable up to {end}"):
        Store.open(disk, HOME, entropy=SystemEntropy())


def test_a_checkpoint_is_withdrawn_for_good_before_what_it_vouches_for_is_made_again(
    disk: FaultyDisk, broker: SmallBroker
) -> None:
    """A slot that comes back after a power loss would say that indexes are whole."""
    some_traffic(broker)
    broker.checkpoint()
    disk.kill()
    done: list[tuple[str, Path]] = []
    store = Store.open(disk, HOME, entropy=SystemEntropy())
    assert store.why_rebuild([(1, 0, 0, 99)], 0)
    disk.before = lambda one: done.append((one.kind, one.path))
    assert next(store.redo())
    gone = done.index(("remove", SHARD / "checkpoint"))
    assert done[gone - 2 : gone] == [("sync", SHARD / "published"), ("sync_directory", SHARD)]
    assert done[gone + 1] == ("sync_directory", SHARD)
    assert [path for kind, path in done[:gone] if kind == "remove"] == []
    assert [path for kind, path in done[gone + 2 :] if kind == "remove"]


def test_the_page_of_another_store_says_nothing_of_this_one(disk: FaultyDisk, broker: SmallBroker) -> None:
    some_traffic(broker)
    disk.kill()
    WatermarkPage.open(disk, SHARD / "published", b"another store 16", 9).publish(1 << 30, 0, 0, 1 << 30)
    assert broker.start().problems() == []


def test_a_log_that_is_lost_while_its_first_redo_runs_is_not_taken_for_a_new_one(disk: FaultyDisk) -> None:
    memory = SmallBroker(disk, HOME, Durability.MEMORY).start()
    memory.turn([("send", 0, b"x")])
    memory.publish()
    for _ in range(2):
        disk.kill()
        store = Store.open(disk, HOME, entropy=SystemEntropy(), durability=Durability.MEMORY)
        assert next(store.redo())
    disk.kill()
    for path in disk.paths():
        if path.suffix == ".seg":
            disk.remove(path)
    with pytest.raises(StoreDamaged, match="case B"):
        Store.open(disk, HOME, entropy=SystemEntropy(), durability=Durability.MEMORY)


def test_a_store_that_is_closed_while_derived_files_are_behind_makes_them_at_the_next_start(
    disk: FaultyDisk, broker: SmallBroker
) -> None:
    some_traffic(broker, 10)
    broker.checkpoint()
    disk.fail("write", errno.ENOSPC, path_ends=".q", times=EVERY_TIME)
    other_traffic(broker, 12)
    broker.store.close()
    disk.heal()
    broker.start()
    assert broker.problems() == []


def test_a_trim_behind_a_full_disk_is_followed_later(disk: FaultyDisk, broker: SmallBroker) -> None:
    some_traffic(broker, 60)
    segment = broker.store.segment_bytes
    assert broker.store.log.end > segment
    disk.fail("write", errno.ENOSPC, path_ends=".tx", times=EVERY_TIME)
    broker.turn([("trim", segment)])
    broker.turn([("send", 0, b"after")])
    broker.sync()
    assert broker.store.bounds(TOPIC, 0)[0] == 0
    disk.heal()
    broker.store.catch_up()
    assert broker.store.bounds(TOPIC, 0)[0] > 0
    broker.store.trim(segment)
    assert broker.problems() == []


def test_no_room_for_the_next_segment_is_told_by_the_sync_that_needed_it(disk: FaultyDisk, broker: SmallBroker) -> None:
    told: list[bool] = []
    broker.store.on_space_low = lambda: told.append(space_is_low(broker.store))
    disk.fail("allocate", errno.ENOSPC, path_ends=".seg", times=EVERY_TIME)
    broker.turn([("send", 0, b"x")])
    assert not told
    broker.sync()
    assert told == [True]
    assert broker.store.log.failure is None
    disk.heal()
    assert not broker.store.check_space()
    for _ in range(20):
        broker.turn([("send", 0, b"x" * 5_000)])
        broker.sync()
    assert told == [True]


@pytest.mark.parametrize(
    ("operation", "path_ends", "code"),
    [
        ("create", ".new", errno.EIO),
        ("write", ".new", errno.EIO),
        ("sync", ".new", errno.EIO),
        ("rename", ".snap", errno.EIO),
        ("write", "checkpoint", errno.EIO),
        ("write", ".new", errno.EDQUOT),
        ("write", "checkpoint", errno.EDQUOT),
    ],
)
def test_a_failed_checkpoint_leaves_the_one_before_and_no_room_is_no_failure(
    disk: FaultyDisk, broker: SmallBroker, operation: str, path_ends: str, code: int
) -> None:
    some_traffic(broker, 10)
    broker.checkpoint()
    position = broker.store.high_watermark
    some_traffic_more(broker)
    disk.fail(operation, code, path_ends=path_ends)
    with pytest.raises(StoreFull if code == errno.EDQUOT else OSError):
        broker.checkpoint()
    restart(broker)
    assert (broker.store.recovery.case.letter, broker.store.recovery.redo_from) == ("H", position)
    broker.checkpoint()


def some_traffic_more(broker: SmallBroker) -> None:
    broker.turn([("send", 1, b"more")])
    broker.sync()


# --- restart ----------------------------------------------------------------------------------------------------


def test_without_a_checkpoint_everything_is_redone(broker: SmallBroker) -> None:
    some_traffic(broker)
    batches = len(broker.written)
    restart(broker)
    assert broker.store.recovery.case.letter == "L"
    assert broker.redone == batches


def test_with_a_checkpoint_only_what_follows_is_redone(broker: SmallBroker) -> None:
    some_traffic(broker)
    broker.checkpoint()
    position = broker.store.high_watermark
    some_traffic_more(broker)
    restart(broker)
    assert broker.store.recovery.case.letter == "H"
    assert broker.store.recovery.redo_from == position
    assert broker.redone == 1


def test_the_older_snapshot_serves_when_the_newer_is_damaged(disk: FaultyDisk, broker: SmallBroker) -> None:
    positions = []
    for _ in range(3):
        some_traffic_more(broker)
        broker.checkpoint()
        positions.append(broker.store.high_watermark)
    names = disk.list(SHARD / "snapshots")
    assert names == [f"{position:020d}.snap" for position in positions[1:]], "two are kept"
    disk.flip_bit(SHARD / "snapshots" / names[1], 60)
    restart(broker)
    assert (broker.store.recovery.case.letter, broker.store.recovery.redo_from) == ("H", positions[1])


def test_without_readable_snapshots_everything_is_made_again(disk: FaultyDisk, broker: SmallBroker) -> None:
    some_traffic(broker)
    broker.checkpoint()
    (name,) = disk.list(SHARD / "snapshots")
    disk.flip_bit(SHARD / "snapshots" / name, 60)
    restart(broker)
    assert broker.store.recovery.case.letter == "N"
    disk.kill()
    broker.start()
    assert broker.store.recovery.case.letter == "L", "what the checkpoint said of indexes was withdrawn"
    assert broker.problems() == []


def test_the_log_alone_is_enough_also_after_a_trim(disk: FaultyDisk, broker: SmallBroker) -> None:
    some_traffic(broker, 150)
    starts = [next_start for _, next_start, _ in broker.store.closed_segments()]
    assert len(starts) >= 2
    broker.turn([("trim", starts[1])])
    broker.sync()
    assert broker.store.trim(starts[1]) == [0, starts[0]]
    assert broker.store.log.start == starts[1]
    some_traffic_more(broker)
    before = durable_digest(broker.state)
    broker.store.close()
    for path in disk.image():
        if path.suffix != ".seg" and SHARD in path.parents:
            disk.remove(path)
    broker.start()
    assert durable_digest(broker.state) == before
    assert broker.problems() == []


def test_a_trim_that_a_power_loss_reverts_takes_no_keys_with_it(disk: FaultyDisk) -> None:
    """At ``memory`` a Trim is followed before it is durable. Its messages are there again, and so must be their keys."""
    broker = SmallBroker(disk, HOME, Durability.MEMORY).start()
    some_traffic(broker, 100)
    broker.checkpoint()
    before = len(broker.written)
    start = next(next_start for _, next_start, _ in broker.store.closed_segments())
    broker.turn([("trim", start)])
    broker.sync()
    assert broker.store.bounds(TOPIC, 0)[0] > 0
    disk.sync_directory(SHARD / "keys")
    disk.crash(keep=0.0)
    del broker.written[before:]
    broker.start()
    assert broker.store.log.start == 0
    assert broker.problems() == []


def test_closed_segments_say_when_the_next_one_began(broker: SmallBroker) -> None:
    assert list(broker.store.closed_segments()) == []
    for _ in range(30):
        broker.turn([("send", 0, b"x" * 9_000)])
        broker.sync()
    closed = list(broker.store.closed_segments())
    assert [(start, end) for start, end, _ in closed] == [
        (number * make.SEGMENT, (number + 1) * make.SEGMENT) for number in range(len(closed))
    ]
    times = [began for _, _, began in closed]
    assert times == sorted(times)
    assert 1_000 < times[0] < times[-1] <= broker.now_ms


def test_trim_goes_no_further_than_what_is_published(broker: SmallBroker) -> None:
    for _ in range(30):
        broker.turn([("send", 0, b"x" * 9_000)])
    assert broker.store.trim(2 * make.SEGMENT) == []


@pytest.mark.parametrize("content", [b"{", b"", b"\xff" * 80, b'{"version":9}'])
def test_a_start_writes_a_damaged_topics_file_anew(
    disk: FaultyDisk, broker: SmallBroker, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    some_traffic(broker)
    broker.checkpoint()
    broker.store.close()
    whole = disk.content(SHARD / "topics.json")
    disk.put(SHARD / "topics.json", content)
    broker.start()
    assert broker.problems() == []
    assert disk.content(SHARD / "topics.json") == whole
    assert [line for line in caplog.messages if "topics.json is written anew" in line]


@pytest.mark.parametrize("damage", ["a bit", "the newest segment is gone", "it is cut short", "the first batch of all"])
@pytest.mark.parametrize("remade", [False, True])
def test_damage_of_what_was_answered_last_is_refused(disk: FaultyDisk, damage: str, remade: bool) -> None:
    """No later batch says that it was durable; the watermark page does, also when two starts got no further than that."""
    broker = SmallBroker(disk, HOME).start()
    for _ in range(1 if damage == "the first batch of all" else 40):
        broker.turn([("send", 0, b"x" * 3_000)])
        broker.sync()
    disk.kill()
    for _ in range(2 if remade else 0):  # each writes one of the page's two slots
        store = Store.open(disk, HOME, entropy=SystemEntropy())
        assert next(store.redo())
        store.close()
    newest = SHARD / "log" / disk.list(SHARD / "log")[-1]
    if not any(disk.content(newest)):  # made early
        newest = SHARD / "log" / disk.list(SHARD / "log")[-2]
    content = disk.content(newest)
    if damage == "the newest segment is gone":
        disk.remove(newest)
    elif damage == "it is cut short":
        disk.put(newest, content[:64])
    else:
        disk.flip_bit(newest, len(content.rstrip(b"\0")) - 10)
    before = disk.image()
    for durability in Durability:
        with pytest.raises(StoreDamaged, match=r"case G.*the log was durable up to \d+.*nothing was changed"):
            Store.open(disk, HOME, entropy=SystemEntropy(), durability=durability)
    assert disk.image() == before


def test_what_was_durable_stays_so_when_the_queues_are_not_those_of_the_snapshot(
    disk: FaultyDisk, broker: SmallBroker
) -> None:
    """Else a start writes again what is there, and tells the page less than it knew."""
    some_traffic(broker)
    broker.checkpoint()
    broker.turn([("send", 0, b"x")])
    broker.sync()
    disk.kill()
    store = Store.open(disk, HOME, entropy=SystemEntropy())
    assert store.recovery.durable_position == store.log.end
    assert store.why_rebuild([(1, 0, 0, 99)], 0)
    assert store.recovery.durable_position == store.log.end
    assert store.recovery.case.letter == "N"
    assert store.snapshot_chunks() is None


def test_in_memory_the_published_page_says_nothing_of_the_disk(disk: FaultyDisk) -> None:
    """And a page of the level ``fsync`` counts as far as it went."""
    broker = SmallBroker(disk, HOME).start()
    broker.turn([("send", 0, b"x")])
    broker.sync()
    durable = broker.store.log.end
    broker.store.close()
    memory = SmallBroker(disk, HOME, Durability.MEMORY).start()
    memory.turn([("send", 0, b"y" * 3_000)])
    memory.publish()
    end = memory.store.log.end
    disk.kill()
    page = read_watermark_page(disk, SHARD / "published")
    assert isinstance(page, Watermark)
    assert page.position == end
    disk.flip_bit(SHARD / "log" / ("0" * 20 + ".seg"), end - 10)
    store = Store.open(disk, HOME, entropy=SystemEntropy(), durability=Durability.MEMORY)
    assert durable <= store.log.end < end


@pytest.mark.parametrize("third", Durability)
@pytest.mark.parametrize("first", Durability)
def test_a_checkpoint_does_not_stand_on_what_a_failed_sync_left_in_the_cache(
    first: Durability, third: Durability
) -> None:
    """The start between runs at ``memory``, which syncs at checkpoints only: they would believe the sync of clean pages."""
    disk = FaultyDisk(1)
    disk.failed_sync_keeps_share = 0.0
    broker = SmallBroker(disk, HOME, first).start()
    for _ in range(3):
        broker.turn([("send", 0, b"x" * 3_000)])
        broker.sync() if first is Durability.FSYNC else broker.publish()
    broker.turn([("send", 0, b"y" * 3_000)])
    disk.fail("sync", path_ends=".seg")
    if first is Durability.FSYNC:
        assert broker.flush is not None
        broker.flush.run()
    else:
        broker.publish()
        with pytest.raises(StorePoisoned):
            broker.checkpoint()
    disk.kill(drop_cache=False)
    between = SmallBroker(disk, HOME, Durability.MEMORY).start()
    end = between.store.log.end
    between.checkpoint()
    disk.crash(keep=0.0)
    assert SmallBroker(disk, HOME, third).start().store.log.end >= end


def test_a_store_that_is_refused_leaves_nothing_open(tmp_path: Path) -> None:
    disk = RealDisk()
    broker = SmallBroker(disk, tmp_path).start()
    for _ in range(3):
        broker.turn([("send", 0, b"x" * 3_000)])
        broker.sync()
    broker.store.close()
    newest = tmp_path / "shard-0" / "log" / ("0" * 20 + ".seg")
    content = bytearray(newest.read_bytes())
    content[4_000] ^= 1
    newest.write_bytes(content)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(StoreDamaged):
            Store.open(disk, tmp_path, entropy=SystemEntropy())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("left", ["checkpoint", "published"])
def test_what_is_left_of_a_store_without_log_and_identity_is_refused_and_not_changed(left: str) -> None:
    """A new identity would be of another segment size: the log that somebody brings back then would not fit it."""
    disk = FaultyDisk()
    broker = SmallBroker(disk, HOME).start()
    broker.turn([("send", 0, b"x")])
    broker.sync()
    broker.publish()
    broker.checkpoint()
    broker.store.close()
    for path in [path for path in disk.paths() if path.parent.name == "log" or path.name == "store.json"]:
        disk.remove(path)
    for path in [HOME / "shard-0" / name for name in ("checkpoint", "published") if name != left]:
        disk.remove(path)
    before = {path: disk.content(path) for path in disk.paths() if path.name != "lock"}
    with pytest.raises(StoreDamaged, match=f"{left} belongs to a store whose log and store.json are missing"):
        Store.open(disk, HOME, entropy=SystemEntropy())
    assert {path: disk.content(path) for path in disk.paths() if path.name != "lock"} == before


@pytest.mark.parametrize("gone", ["shard-0", "shard-0/log"])
def test_a_store_without_its_log_directory_is_not_a_first_start(tmp_path: Path, gone: str) -> None:
    """A disk that is not mounted, a directory that was moved: nothing new is made in its place."""
    home = tmp_path / "store"
    disk = RealDisk()
    SmallBroker(disk, home).start().store.close()
    (home / gone).rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(
            StoreDamaged, match=rf"{home / gone} is missing beside .*store\.json: there was a log .*mount"
        ):
            Store.open(disk, home, entropy=SystemEntropy())
        assert not (home / gone).exists()
    (tmp_path / "away").rename(home / gone)
    SmallBroker(disk, home).start()


def test_the_directories_are_durable_before_the_name_of_the_store_is() -> None:
    """Otherwise a crash in the first start would leave what looks like a store that lost its log."""
    seen = set()
    for seed in range(100):
        disk = FaultyDisk(seed)
        disk.power_fails_after(seed % 20)
        with suppress(PowerLost):
            SmallBroker(disk, HOME).start()
            disk.power_fails_after(0)
        disk.crash()
        seen.add((disk.exists(HOME / "store.json"), disk.exists(SHARD / "log")))
        SmallBroker(disk, HOME).start()
    assert seen == {(False, False), (False, True), (True, True)}


@pytest.mark.parametrize("ahead", [True, False], ids=["the second stops last", "the first stops last"])
def test_what_two_writers_left_is_refused_also_where_a_snapshot_stands_behind_it(ahead: bool) -> None:
    """Goal: what verify calls damaged does not serve. Method: two on one store, which no lock keeps apart; the one that stops
    last, in order, leaves a whole snapshot of what it believes, behind all that was written over each other."""
    disk = FaultyDisk()
    first = SmallBroker(disk, HOME).start()
    some_traffic(first, 3)
    first.sync()
    disk._locked.clear()
    second = SmallBroker(disk, HOME).start()
    for number in range(30):
        first.turn([("send", 0, b"a" * (50 + number % 7))])
        first.sync()
        second.turn([("send", 1, b"b" * (90 + number % 13))])
        second.sync()
    last, other = (second, first) if ahead else (first, second)
    while last.store.log.end <= other.store.log.end:
        last.turn([("send", 2, b"c" * 500)])
        last.sync()
    other.store.close()
    last.checkpoint()
    last.store.close()
    before = disk.image()
    assert verify_store(disk, HOME).damaged
    with pytest.raises(StoreDamaged, match="batches do not follow each other, as when two brokers wrote them"):
        SmallBroker(disk, HOME).start()
    assert disk.image() == before


def test_two_writers_that_no_lock_keeps_apart_see_each_other_in_the_published_page() -> None:
    disk = FaultyDisk()
    first = SmallBroker(disk, HOME).start()
    some_traffic(first, 3)
    first.store.check_locks()
    disk._locked.clear()
    second = SmallBroker(disk, HOME).start()
    second.store.check_locks()
    with pytest.raises(
        StorePoisoned, match="another broker, of epoch 2, writes to the store in /store beside this one, of 1"
    ):
        first.store.check_locks()
    with pytest.raises(StorePoisoned):
        first.turn([("send", 0, b"x")])
    second.store.close()
    second.start().store.check_locks()


def test_a_shard_that_another_directory_leads_to_is_locked_too(tmp_path: Path) -> None:
    """A second directory with the same store.json, and a link to the shard of the first."""
    broker = SmallBroker(RealDisk(), tmp_path / "one").start()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "store.json").write_bytes((tmp_path / "one" / "store.json").read_bytes())
    (tmp_path / "two" / "shard-0").symlink_to(tmp_path / "one" / "shard-0")
    with pytest.raises(StoreInUse):
        SmallBroker(RealDisk(), tmp_path / "two").start()
    broker.store.close()
    SmallBroker(RealDisk(), tmp_path / "two").start()


def test_a_segment_that_was_removed_and_rolled_over_between_two_looks_stops_the_store_too(
    disk: FaultyDisk, broker: SmallBroker
) -> None:
    some_traffic(broker)
    store = broker.store
    assert store.check_written_segment() is None
    written = store.log.end // make.SEGMENT
    disk.remove(store.segments.path(written))
    while store.log.end // make.SEGMENT < written + 2:
        broker.turn([("send", 0, b"x" * 9_000)])
    with pytest.raises(StorePoisoned, match="was removed under a running broker, and the log continued in it"):
        store.check_written_segment()
    with pytest.raises(StorePoisoned):
        broker.turn([("send", 0, b"x")])


def test_a_segment_that_is_cut_short_behind_its_roll_is_told_and_stops_nobody(
    disk: FaultyDisk, broker: SmallBroker
) -> None:
    some_traffic(broker)
    store = broker.store
    assert store.check_written_segment() is None
    closed = store.log.end // make.SEGMENT
    while store.log.end // make.SEGMENT == closed:
        broker.turn([("send", 0, b"x" * 9_000)])
    disk.open(store.segments.path(closed)).truncate(100)
    assert store.check_written_segment() is None
    ((number, what),) = store.segments.missing(store.segments.numbers())
    assert number == closed
    assert "was cut short under a running broker" in what
    broker.turn([("send", 0, b"x")])
    disk.open(store.segments.path(store.log.end // make.SEGMENT)).truncate(100)
    with pytest.raises(StorePoisoned, match=r"was cut short .*, and the log continues in it"):
        store.check_written_segment()


def test_a_segment_that_was_trimmed_between_two_looks_is_not_missed(broker: SmallBroker) -> None:
    store = broker.store
    assert store.check_written_segment() is None
    while store.log.end < 3 * make.SEGMENT:
        broker.turn([("send", 0, b"x" * 9_000)])
        assert store.forget_segment(store.log.end // make.SEGMENT) is False
    store.log.sync(store.log.end)
    make.trim_log(store.log, 2 * make.SEGMENT)
    assert store.check_written_segment() is None
