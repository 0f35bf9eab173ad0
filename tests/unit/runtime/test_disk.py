"""One behaviour suite for the Disk port, run by the real disk and by the faulty one, so that the two cannot drift."""

import gc
import os
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk

from halfmq.runtime.disk import Disk, RealDisk


@pytest.fixture(params=["real", "faulty"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else FaultyDisk()


@pytest.fixture
def home(disk: Disk, tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    disk.make_directories(directory)
    return directory


def test_what_was_written_is_read(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    assert file.write(3, [b"abc", b"", b"defg"]) == 7
    assert file.size() == 10
    assert file.read(0, 100) == b"\0\0\0abcdefg"
    assert file.read(5, 2) == b"cd"
    assert file.read(10, 5) == b""


def test_a_read_fills_buffers_in_order_up_to_the_end_of_the_file(disk: Disk, home: Path) -> None:
    file = disk.open(home / "f", create=True)
    file.write(0, [b"0123456789"])
    buffers = [memoryview(bytearray(size)) for size in (2, 0, 3, 4)]
    assert file.read_into(1, buffers) == 9
    assert [bytes(buffer) for buffer in buffers] == [b"12", b"", b"345", b"6789"]
    assert file.read_into(7, buffers) == 3
    assert [bytes(buffer) for buffer in buffers[:3]] == [b"78", b"", b"945"]
    assert file.read_into(10, buffers) == 0
    file.close()


def test_a_write_may_overlap_what_is_there(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    file.write(0, [b"abcdef"])
    file.write(2, [b"XY"])
    assert file.read(0, 10) == b"abXYef"


def test_a_second_opener_sees_the_writes(disk: Disk, home: Path) -> None:
    disk.open(home / "a", create=True).write(0, [b"abc"])
    assert disk.open(home / "a", writable=False).read(0, 3) == b"abc"


def test_a_file_that_is_not_there_is_not_found(disk: Disk, home: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(home / "a")
    with pytest.raises(FileNotFoundError):
        disk.open(home / "no directory" / "a", create=True)
    assert not disk.exists(home / "a")


def test_a_file_opened_for_reading_takes_no_writes(disk: Disk, home: Path) -> None:
    disk.open(home / "a", create=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.open(home / "a", writable=False).write(0, [b"x"])


def test_opening_with_create_keeps_what_is_there(disk: Disk, home: Path) -> None:
    disk.open(home / "a", create=True).write(0, [b"abc"])
    assert disk.open(home / "a", create=True).size() == 3


def test_allocate_makes_zeros_and_never_shrinks(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    file.write(0, [b"abc"])
    file.allocate(8192)
    assert file.size() == 8192
    assert file.read(0, 8192) == b"abc" + bytes(8189)
    file.allocate(100)
    assert file.size() == 8192


def test_truncate_shortens_and_lengthens_with_zeros(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    file.write(0, [b"abcdef"])
    file.truncate(2)
    assert file.read(0, 10) == b"ab"
    file.truncate(4)
    assert file.read(0, 10) == b"ab\0\0"


def test_data_ranges_leave_out_only_zeros(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    assert file.data_ranges(0) == []
    file.allocate(1 << 20)
    file.write(700_000, [b"x"])
    file.write(30_000, [b"x" * 100])
    for start in (0, 30_050, 30_100, 700_000, 700_001, 1 << 20):
        ranges = file.data_ranges(start)
        assert ranges == sorted(ranges)
        content = bytearray(file.read(0, 1 << 20))
        for low, high in ranges:
            assert start <= low < high <= 1 << 20
            content[low:high] = bytes(high - low)
        assert not any(content[start:])


def test_a_closed_file_is_not_used_again(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(0, [b"x"])


def test_rename_replaces(disk: Disk, home: Path) -> None:
    disk.open(home / "old", create=True).write(0, [b"old"])
    file = disk.open(home / "new", create=True)
    file.write(0, [b"new"])
    disk.rename(home / "new", home / "old")
    disk.sync_directory(home)
    assert disk.list(home) == ["old"]
    assert disk.open(home / "old").read(0, 9) == b"new"
    file.write(0, [b"NEW"])
    assert disk.open(home / "old").read(0, 9) == b"NEW"


def test_remove_takes_the_name_and_leaves_open_files(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    file.write(0, [b"abc"])
    disk.remove(home / "a")
    assert not disk.exists(home / "a")
    assert file.read(0, 3) == b"abc"
    with pytest.raises(FileNotFoundError):
        disk.remove(home / "a")
    with pytest.raises(FileNotFoundError):
        disk.rename(home / "a", home / "b")


def test_an_open_file_is_at_its_name_until_that_leads_elsewhere(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    other = disk.open(home / "b", create=True)
    assert file.is_at(home / "a")
    assert not file.is_at(home / "b")
    disk.rename(home / "b", home / "a")
    assert not file.is_at(home / "a")
    assert other.is_at(home / "a")
    disk.remove(home / "a")
    assert not other.is_at(home / "a")


def test_a_directory_is_removed_only_when_there_is_nothing_in_it(disk: Disk, home: Path) -> None:
    disk.make_directories(home / "d" / "e")
    disk.open(home / "d" / "e" / "a", create=True)
    assert not disk.remove_directory(home / "d" / "e")
    assert not disk.remove_directory(home / "d")
    disk.remove(home / "d" / "e" / "a")
    assert disk.remove_directory(home / "d" / "e")
    assert disk.remove_directory(home / "d")
    assert not disk.remove_directory(home / "d")
    assert disk.list(home) == []
    disk.make_directories(home / "d")
    assert disk.list(home) == ["d"]


def test_list_is_sorted_and_empty_for_what_is_not_there(disk: Disk, home: Path) -> None:
    for name in "bca":
        disk.open(home / name, create=True)
    disk.make_directories(home / "d" / "e")
    assert disk.list(home) == ["a", "b", "c", "d"]
    assert disk.list(home / "d") == ["e"]
    assert disk.list(home / "nothing") == []


def test_making_directories_twice_is_harmless(disk: Disk, home: Path) -> None:
    disk.make_directories(home / "x" / "y")
    disk.make_directories(home / "x" / "y")
    assert disk.exists(home / "x" / "y")
    disk.sync_directory(home / "x")
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(home / "z")


def test_a_lock_is_held_by_one_until_it_is_dropped(disk: Disk, home: Path) -> None:
    held = disk.lock(home / "lock")
    assert held is not None
    assert disk.lock(home / "lock") is None
    del held
    gc.collect()
    assert disk.lock(home / "lock") is not None


def test_a_lock_belongs_to_the_file_and_not_to_its_name(disk: Disk, home: Path) -> None:
    held = disk.lock(home / "lock")
    assert held is not None
    assert held.is_at(home / "lock")
    disk.remove(home / "lock")
    assert not held.is_at(home / "lock")
    other = disk.lock(home / "lock")
    assert other is not None
    assert not held.is_at(home / "lock")
    assert other.is_at(home / "lock")
    held.close()
    assert disk.lock(home / "lock") is None


def test_a_directory_is_locked_whatever_becomes_of_the_files_in_it(disk: Disk, home: Path) -> None:
    held = disk.lock_directory(home)
    assert held is not None
    assert held.is_at(home)
    assert not held.is_at(home / "elsewhere")
    disk.open(home / "a", create=True)
    disk.remove(home / "a")
    assert disk.lock_directory(home) is None
    assert disk.lock(home / "lock") is not None, "the directory and a file in it are two things"
    held.close()
    assert disk.lock_directory(home) is not None


def test_who_holds_a_lock_is_told_by_the_machine(tmp_path: Path) -> None:
    disk = RealDisk()
    assert disk.lock_holder(tmp_path / "missing") is None
    assert disk.lock_holder(tmp_path) is None
    held = disk.lock_directory(tmp_path)
    assert held is not None
    if Path("/proc/locks").exists():
        assert disk.lock_holder(tmp_path) == os.getpid()


def test_a_directory_that_was_moved_or_replaced_is_not_the_one_that_was_locked(tmp_path: Path) -> None:
    disk = RealDisk()
    home = tmp_path / "store"
    home.mkdir()
    held = disk.lock_directory(home)
    assert held is not None
    home.rename(tmp_path / "moved")
    assert not held.is_at(home)
    home.mkdir()
    assert not held.is_at(home)
    assert held.is_at(tmp_path / "moved")
    assert disk.lock_directory(tmp_path / "moved") is None


def test_the_size_of_a_name_is_what_it_leads_to_now(disk: Disk, home: Path) -> None:
    file = disk.open(home / "a", create=True)
    file.write(0, [b"abc"])
    assert disk.size(home / "a") == 3
    disk.remove(home / "a")
    assert disk.size(home / "a") is None
    assert file.size() == 3
    assert disk.size(home / "none" / "a") is None


def test_an_error_of_an_open_file_says_which(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    file = RealDisk().open(path, writable=False)
    for fails in (lambda: file.write(0, [b"x"]), lambda: file.truncate(9), lambda: file.allocate(9)):
        with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument") as caught:
            fails()
        assert str(path) in str(caught.value)
