"""What the faulty disk breaks, and what it must not break. The interface itself: ``tests/unit/runtime/test_disk.py``."""

import errno
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.faulty_disk import BLOCK_BYTES, SECTOR_BYTES, FaultyDisk, Operation, PowerLost

HOME = Path("/store")


def disk_with_home(seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed)
    disk.make_directories(HOME)
    disk.sync_directory(HOME.parent)
    return disk


def after_crashes(prepare: Callable[[FaultyDisk], None], look: Callable[[FaultyDisk], object]) -> Counter[object]:
    """The results of ``look`` after a crash, for 200 seeds."""
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


def test_an_unsynced_truncation_may_be_undone() -> None:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"x" * 9_000)
        disk.open(HOME / "a").truncate(0)

    seen = after_crashes(prepare, lambda disk: disk.content(HOME / "a"))
    assert {b"", b"x" * 9_000} <= set(seen)


def test_a_name_that_was_not_synced_may_be_lost_though_the_file_was_synced() -> None:
    def prepare(disk: FaultyDisk) -> None:
        file = disk.open(HOME / "a", create=True)
        file.write(0, [b"abc"])
        file.sync()

    assert set(after_crashes(prepare, lambda disk: tuple(disk.list(HOME)))) == {(), ("a",)}


def test_an_unsynced_directory_may_be_lost_with_its_files() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.make_directories(HOME / "d")
        disk.open(HOME / "d" / "a", create=True).sync()
        disk.sync_directory(HOME / "d")

    seen = after_crashes(prepare, lambda disk: (disk.exists(HOME / "d"), disk.exists(HOME / "d" / "a")))
    assert set(seen) == {(True, True), (False, False)}


def test_a_rename_is_done_or_not_never_partly() -> None:
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


def test_errors_occur_when_ordered_and_only_then() -> None:
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


def failed_sync(share: float | None) -> Callable[[FaultyDisk], None]:
    def prepare(disk: FaultyDisk) -> None:
        durable_file(disk, b"old")
        file = disk.open(HOME / "a")
        file.write(0, [b"new"])
        disk.failed_sync_keeps_share = share
        disk.fail("sync")
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        assert disk.content(HOME / "a") == b"new"
        file.sync()

    return prepare


@pytest.mark.parametrize(("share", "left"), [(0.0, {b"old"}), (1.0, {b"new"}), (None, {b"old", b"new"})])
def test_a_failed_sync_loses_pages_or_not_and_the_next_one_succeeds_without_them(
    share: float | None, left: set[bytes]
) -> None:
    assert set(after_crashes(failed_sync(share), lambda disk: disk.content(HOME / "a"))) == left


def test_what_a_failed_sync_lost_is_written_by_a_sync_after_a_new_write() -> None:
    def prepare(disk: FaultyDisk) -> None:
        failed_sync(0.0)(disk)
        file = disk.open(HOME / "a")
        file.write(0, [b"n"])
        file.sync()

    assert set(after_crashes(prepare, lambda disk: disk.content(HOME / "a"))) == {b"new"}


def test_a_killed_process_may_find_that_the_cache_dropped_what_a_failed_sync_lost() -> None:
    seen = set()
    for seed in range(20):
        disk = disk_with_home(seed)
        failed_sync(0.0)(disk)
        disk.kill()
        seen.add((disk.content(HOME / "a"), disk.faults["cache dropped"]))
    assert seen == {(b"new", 0), (b"old", 1)}
    for drop, left in ((True, b"old"), (False, b"new")):
        disk = disk_with_home()
        failed_sync(0.0)(disk)
        disk.kill(drop_cache=drop)
        assert disk.content(HOME / "a") == left


def test_pages_are_dropped_from_the_cache_alone_or_together() -> None:
    """Always whole pages: everything in the same 4,096 bytes is dropped together."""
    seen = set()
    for seed in range(60):
        disk = disk_with_home(seed)
        disk.failed_sync_keeps_share = 0.0
        file = disk.open(HOME / "a", create=True)
        file.write(0, [bytes(2 * BLOCK_BYTES)])
        file.sync()
        disk.sync_directory(HOME)
        file.write(0, [b"x" * 2 * BLOCK_BYTES])
        disk.fail("sync")
        with pytest.raises(OSError, match="error"):
            file.sync()
        disk.kill()
        content = disk.content(HOME / "a")
        pages = content[:BLOCK_BYTES], content[BLOCK_BYTES:]
        assert all(len(set(page)) == 1 for page in pages)
        seen.add(tuple(page[:1] for page in pages))
    assert len(seen) == 4


def test_a_full_disk_raises_an_error_and_a_removed_file_frees_space() -> None:
    disk = disk_with_home()
    disk.fill(5 * BLOCK_BYTES)
    file = disk.open(HOME / "a", create=True)
    file.allocate(4 * BLOCK_BYTES)
    assert disk.free_bytes(HOME) == BLOCK_BYTES
    file.write(0, [b"x" * 4 * BLOCK_BYTES])
    with pytest.raises(OSError, match="No space") as caught:
        disk.open(HOME / "b", create=True).allocate(2 * BLOCK_BYTES)
    assert caught.value.errno == errno.ENOSPC
    assert disk.content(HOME / "b") == b""
    disk.remove(HOME / "a")
    assert disk.free_bytes(HOME) == 5 * BLOCK_BYTES
    disk.open(HOME / "b").allocate(2 * BLOCK_BYTES)
    assert (disk.faults["disk full"], disk.faults["allocate ENOSPC"]) == (1, 1)


def test_a_write_on_a_full_disk_writes_what_fits() -> None:
    disk = disk_with_home()
    file = disk.open(HOME / "a", create=True)
    disk.fill(BLOCK_BYTES)
    with pytest.raises(OSError, match="No space"):
        file.write(4_000, [b"x" * 200])
    assert disk.content(HOME / "a") == bytes(4_000) + b"x" * 96
    disk.fill(BLOCK_BYTES)
    file.write(4_000, [b"x" * 200])
    assert disk.content(HOME / "a") == bytes(4_000) + b"x" * 200
    assert disk.faults == {"disk full": 1, "write ENOSPC": 1, "short write": 1, "space again": 1}


def test_a_hole_takes_no_space_until_it_is_written_and_truncation_frees_space() -> None:
    disk = disk_with_home()
    disk.fill(10 * BLOCK_BYTES)
    file = disk.open(HOME / "a", create=True)
    file.truncate(100 * BLOCK_BYTES)
    assert disk.free_bytes(HOME) == 10 * BLOCK_BYTES
    file.write(50 * BLOCK_BYTES, [b"x"])
    assert disk.free_bytes(HOME) == 9 * BLOCK_BYTES
    file.truncate(10)
    assert disk.free_bytes(HOME) == 10 * BLOCK_BYTES


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_short_write_writes_some_of_its_bytes_and_raises(code: int) -> None:
    lengths = set()
    for seed in range(30):
        disk = disk_with_home(seed)
        file = disk.open(HOME / "a", create=True)
        disk.fail("write", code, short=True)
        with pytest.raises(OSError, match=os.strerror(code)):
            file.write(0, [b"x" * 6])
        content = disk.content(HOME / "a")
        assert content == b"x" * len(content)
        lengths.add(len(content))
        assert disk.faults["short write"] == disk.faults[f"write {errno.errorcode[code]}"] == 1
    assert lengths == set(range(6))


def test_observers_are_called_before_and_after_each_operation_and_may_end_it() -> None:
    disk = disk_with_home()
    seen: list[tuple[str, str, str, int, int]] = []
    disk.before = lambda op: seen.append(("before", op.kind, op.path.name, op.at, op.length))
    disk.after = lambda op: seen.append(("after", op.kind, op.path.name, op.at, op.length))
    first = disk.steps
    file = disk.open(HOME / "a", create=True)
    file.allocate(1_000)
    file.write(7, [b"ab", b"c"])
    file.sync()
    file.truncate(10)
    disk.rename(HOME / "a", HOME / "b")
    disk.sync_directory(HOME)
    disk.remove(HOME / "b")
    operations = [
        ("create", "a", 0, 0), ("allocate", "a", 0, 1_000), ("write", "a", 7, 3), ("sync", "a", 0, 0), ("truncate", "a", 0, 10),
        ("rename", "b", 0, 0), ("sync_directory", "store", 0, 0), ("remove", "b", 0, 0),
    ]  # fmt: skip
    assert seen == [(when, *operation) for operation in operations for when in ("before", "after")]
    assert disk.steps == first + len(operations)


@pytest.mark.parametrize(("when", "left"), [("before", b""), ("after", b"abc")])
def test_power_lost_in_an_observer_stops_the_machine_there(when: str, left: bytes) -> None:
    disk = disk_with_home()
    file = disk.open(HOME / "a", create=True)

    def lose(operation: Operation) -> None:
        raise PowerLost

    setattr(disk, when, lose)
    with pytest.raises(PowerLost):
        file.write(0, [b"abc"])
    setattr(disk, when, None)
    with pytest.raises(PowerLost):  # whatever the process tries before it ends
        disk.remove(HOME / "a")
    disk.kill()
    assert disk.content(HOME / "a") == left


def test_a_process_killed_during_a_write_has_written_a_prefix() -> None:
    lengths = set()
    for seed in range(60):
        disk = disk_with_home(seed)
        file = disk.open(HOME / "a", create=True)
        disk.power_fails_after(0)
        with pytest.raises(PowerLost):
            file.write(0, [b"abcd"])
        disk.crash(power=False)
        lengths.add(disk.content(HOME / "a"))
    assert lengths == {b"", b"a", b"ab", b"abc", b"abcd"}


@pytest.mark.parametrize(("keep", "left"), [(0.0, {"a": b"old"}), (1.0, {"a": b"newer", "b": b"b"})])
def test_a_crash_keeps_nothing_or_everything_if_asked_to(keep: float, left: dict[str, bytes]) -> None:
    for seed in range(10):
        disk = disk_with_home(seed)
        durable_file(disk, b"old")
        disk.open(HOME / "a").write(0, [b"newer"])
        disk.open(HOME / "b", create=True).write(0, [b"b"])
        disk.crash(keep=keep)
        assert {name: disk.content(HOME / name) for name in disk.list(HOME)} == left


def test_a_fork_has_the_same_state_and_does_not_change_the_original() -> None:
    disk = disk_with_home(1)
    durable_file(disk, b"old" * 1_000)
    file = disk.open(HOME / "a")
    file.write(500, [b"new" * 100])
    disk.open(HOME / "b", create=True).write(0, [b"b"])
    before = disk.fingerprint()
    for keep, names in ((0.0, ["a"]), (1.0, ["a", "b"])):
        fork = disk.fork()
        assert fork.fingerprint() == before
        fork.crash(keep=keep)
        assert fork.list(HOME) == names
        assert (fork.content(HOME / "a") == b"old" * 1_000) == (keep == 0.0)
        fork.open(HOME / "a").write(0, [b"X"])
    assert disk.fingerprint() == before
    file.write(500, [b"N"])
    assert disk.fingerprint() != before
    disk.crash(keep=0.0)
    assert disk.content(HOME / "a") == b"old" * 1_000


def test_random_faults_and_crashes_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from pathlib import Path; from tests.support.faulty_disk import FaultyDisk\n"
        "disk = FaultyDisk(5); home = Path('/store'); disk.make_directories(home)\n"
        "for number in range(200):\n"
        "    file = disk.open(home / str(number % 7), create=True)\n"
        "    if number % 5 == 0: disk.fail('write', short=True)\n"
        "    try: file.write(number * 97 % 5000, [bytes([number]) * 700])\n"
        "    except OSError: pass\n"
        "    if number % 50 == 49: disk.crash()\n"
        "print(disk.fingerprint().hex(), sorted(disk.faults.items()))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert b"short write" in told.pop()
