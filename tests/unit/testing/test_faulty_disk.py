"""What the faulty disk breaks, and what it must not break. The port itself: ``tests/unit/runtime/test_disk.py``."""

import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from halfmq.testing.faulty_disk import SECTOR_BYTES, FaultyDisk, PowerLost

HOME = Path("/store")


def disk_with_home(seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed)
    disk.make_directories(HOME)
    disk.sync_directory(HOME.parent)
    return disk


def after_crashes(prepare: Callable[[FaultyDisk], None], look: Callable[[FaultyDisk], object]) -> Counter[object]:
    """What ``look`` sees after a crash, over 200 seeds."""
    seen: Counter[object] = Counter()
    for seed in range(200):
        disk = disk_with_home(seed)
        prepare(disk)
        disk.crash()
        seen[look(disk)] += 1
    return seen


def durable_file(disk: FaultyDisk, content: bytes) -> None:
    file = disk.open(HOME / "a", create=True)
    file.write(0, [content])
    file.sync()
    disk.sync_directory(HOME)


def test_what_was_synced_survives_every_crash() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"abc" * 1000)

    assert after_crashes(prepare, lambda disk: disk.content(HOME / "a")) == {b"abc" * 1000: 200}


def test_unsynced_sectors_are_kept_lost_and_torn_in_any_order() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, bytes(3 * SECTOR_BYTES))
        disk.open(HOME / "a").write(0, [b"x" * 3 * SECTOR_BYTES])

    def sectors(disk: FaultyDisk) -> str:
        content = disk.content(HOME / "a")
        parts = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(part in (b"x" * SECTOR_BYTES, bytes(SECTOR_BYTES)) for part in parts)
        return "".join("x" if part[0] else "0" for part in parts)

    assert set(after_crashes(prepare, sectors)) == {"000", "00x", "0x0", "0xx", "x00", "x0x", "xx0", "xxx"}


def test_a_later_write_may_survive_where_an_earlier_one_does_not() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, bytes(2 * SECTOR_BYTES))
        disk.open(HOME / "a").write(0, [b"1" * 10])
        disk.open(HOME / "a").write(SECTOR_BYTES, [b"2" * 10])

    seen = after_crashes(prepare, lambda disk: (disk.content(HOME / "a")[0], disk.content(HOME / "a")[SECTOR_BYTES]))
    assert (0, ord("2")) in seen


def test_a_sector_may_have_any_content_it_had_since_the_sync() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"0")
        for digit in (b"1", b"2", b"3"):
            disk.open(HOME / "a").write(0, [digit])

    assert set(after_crashes(prepare, lambda disk: disk.content(HOME / "a"))) == {b"0", b"1", b"2", b"3"}


def test_a_length_that_was_not_synced_may_be_lost() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"abc")
        disk.open(HOME / "a").allocate(4096)

    assert set(after_crashes(prepare, lambda disk: len(disk.content(HOME / "a")))) == {3, 4096}


def test_a_name_that_was_not_synced_may_be_lost_though_the_file_was_synced() -> None:
    def prepare(disk: FaultyDisk) -> None:
        file = disk.open(HOME / "a", create=True)
        file.write(0, [b"abc"])
        file.sync()

    assert set(after_crashes(prepare, lambda disk: tuple(disk.list(HOME)))) == {(), ("a",)}


def test_a_directory_that_was_not_synced_takes_its_files_with_it() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.make_directories(HOME / "d")
        disk.open(HOME / "d" / "a", create=True).sync()
        disk.sync_directory(HOME / "d")

    seen = after_crashes(prepare, lambda disk: (disk.exists(HOME / "d"), disk.exists(HOME / "d" / "a")))
    assert set(seen) == {(True, True), (False, False)}


def test_a_rename_is_done_or_not_never_half() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"old")
        file = disk.open(HOME / "b", create=True)
        file.write(0, [b"new"])
        file.sync()
        disk.sync_directory(HOME)
        disk.rename(HOME / "b", HOME / "a")

    seen = after_crashes(prepare, lambda disk: (disk.content(HOME / "a"), disk.exists(HOME / "b")))
    assert set(seen) == {(b"old", True), (b"new", False)}


def test_a_remove_may_be_undone() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"abc")
        disk.remove(HOME / "a")

    assert set(after_crashes(prepare, lambda disk: disk.exists(HOME / "a"))) == {True, False}


def test_power_fails_in_the_middle_of_an_operation() -> None:
    disk = disk_with_home()
    durable_file(disk, bytes(100))
    disk.power_fails_after(1)
    file = disk.open(HOME / "a")
    file.write(0, [b"1"])
    with pytest.raises(PowerLost):
        file.write(1, [b"2"])
    disk.crash()
    with pytest.raises(OSError, match="gone"):
        file.read(0, 1)
    disk.open(HOME / "a").write(0, [b"3"])


def test_errors_come_when_ordered_and_only_then() -> None:
    disk = disk_with_home()
    durable_file(disk, b"abc")
    disk.fail("write", errno.EIO, path_ends="a")
    disk.open(HOME / "b", create=True).write(0, [b"x"])
    with pytest.raises(OSError, match="Input/output") as caught:
        disk.open(HOME / "a").write(0, [b"x"])
    assert caught.value.errno == errno.EIO
    assert disk.content(HOME / "a") == b"abc"
    disk.open(HOME / "a").write(0, [b"x"])
    assert disk.content(HOME / "a") == b"xbc"


def test_a_failed_sync_loses_the_pages_although_the_next_one_succeeds() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"old")
        file = disk.open(HOME / "a")
        file.write(0, [b"new"])
        disk.fail("sync")
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        assert disk.content(HOME / "a") == b"new"
        file.sync()

    assert after_crashes(prepare, lambda disk: disk.content(HOME / "a")) == {b"old": 200}


def test_a_full_disk_says_so_and_a_removed_file_gives_room() -> None:
    disk = disk_with_home()
    disk.fill(100)
    file = disk.open(HOME / "a", create=True)
    file.allocate(80)
    assert disk.free_bytes(HOME) == 20
    file.write(0, [b"x" * 80])
    with pytest.raises(OSError, match="No space") as caught:
        file.write(80, [b"x" * 21])
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        disk.open(HOME / "b", create=True).allocate(21)
    disk.remove(HOME / "a")
    assert disk.free_bytes(HOME) == 100


def test_a_flipped_bit_is_seen_and_survives() -> None:
    disk = disk_with_home()
    durable_file(disk, b"abc")
    view = disk.open(HOME / "a").view()
    disk.flip_bit(HOME / "a", 1)
    assert bytes(view) == b"acc"
    disk.crash()
    assert disk.content(HOME / "a") == b"acc"


def test_a_sync_that_lies_keeps_nothing() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"old")
        disk.sync_is_a_lie = True
        disk.open(HOME / "a").write(0, [b"new"])
        disk.open(HOME / "a").sync()

    assert set(after_crashes(prepare, lambda disk: disk.content(HOME / "a"))) == {b"old", b"new"}


def test_a_killed_process_leaves_what_it_wrote_and_a_later_loss_may_take_it() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"old")
        file = disk.open(HOME / "a")
        file.write(0, [b"new"])
        disk.kill()
        assert disk.content(HOME / "a") == b"new"
        with pytest.raises(OSError, match="gone"):
            file.read(0, 1)

    assert set(after_crashes(prepare, lambda disk: disk.content(HOME / "a"))) == {b"old", b"new"}


def test_a_crash_frees_the_locks() -> None:
    disk = disk_with_home()
    held = disk.lock(HOME / "lock")
    assert held is not None
    disk.crash()
    assert disk.lock(HOME / "lock") is not None


def test_a_seed_repeats_exactly() -> None:
    def run(seed: int) -> dict[Path, bytes]:
        disk = disk_with_home(seed)
        durable_file(disk, bytes(50_000))
        for at in range(0, 40_000, 777):
            disk.open(HOME / "a").write(at, [bytes([at % 251]) * 900])
            disk.open(HOME / f"b{at}", create=True)
        disk.crash()
        return disk.image()

    assert run(7) == run(7)
    assert run(7) != run(8)
