import errno
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk, Operation

from halfmq.store.open_files import OpenFiles

ROOT = Path("/d")


def test_the_oldest_file_is_closed_when_too_many_are_open_and_still_synced_later() -> None:
    disk = FaultyDisk(1)
    files = OpenFiles(disk, open_max=2)
    for number in range(5):
        file = files.create((0, 0, number), ROOT / f"{number}", 8)
        files.write(file, 0, [b"content!"])
    assert len(files.files) == 2
    files.sync()
    disk.sync_directory(Path("/"))
    disk.crash()
    for number in range(5):
        assert disk.content(ROOT / f"{number}") == b"content!"


def test_a_file_that_a_crash_cut_short_is_lengthened() -> None:
    disk = FaultyDisk()
    files = OpenFiles(disk)
    files.create((0, 0, 1), ROOT / "a", 0)
    files.close()
    assert OpenFiles(disk).create((0, 0, 1), ROOT / "a", 16).size() == 16


def test_a_failed_sync_is_told_to_the_caller() -> None:
    disk = FaultyDisk()
    files = OpenFiles(disk)
    files.write(files.create((0, 0, 1), ROOT / "a", 8), 0, [b"x"])
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="error"):
        files.sync()


def test_zero_leaves_what_lies_before_and_behind() -> None:
    disk = FaultyDisk()
    files = OpenFiles(disk)
    file = files.create((0, 0, 1), ROOT / "a", 300_000)
    files.write(file, 0, [b"\1" * 300_000])
    files.zero(file, 10, 200_000)
    assert file.read(0, 300_000) == b"\1" * 10 + bytes(199_990) + b"\1" * 100_000


def test_a_directory_that_is_removed_while_it_waits_for_its_sync_is_no_failure() -> None:
    disk = FaultyDisk()
    files = OpenFiles(disk)
    files.create((0, 0, 1), ROOT / "t" / "q" / "a", 8)
    files.sync()
    files.remove((0, 0, 1), ROOT / "t" / "q" / "a")
    files.remove_directory(ROOT / "t" / "q")
    files.remove_directory(ROOT / "t")
    files.sync()
    disk.sync_directory(Path("/"))
    disk.crash(keep=0)
    assert disk.list(ROOT) == [], "and it is durable that they are gone"


def test_a_removed_file_needs_no_sync() -> None:
    disk = FaultyDisk()
    files = OpenFiles(disk, open_max=1)
    for number in range(2):
        files.write(files.create((0, 0, number), ROOT / f"{number}", 8), 0, [b"x"])
    for number in range(2):
        files.remove((0, 0, number), ROOT / f"{number}")
    files.sync()
    assert disk.list(ROOT) == []


def test_a_checkpoint_that_comes_while_a_file_is_made_leaves_its_names_to_the_next_one() -> None:
    """The checkpoint's thread syncs between any two steps of the writer's."""
    disk = FaultyDisk()
    files = OpenFiles(disk)

    def checkpoint(operation: Operation) -> None:
        if not operation.kind.startswith("sync"):
            disk.before = None
            files.sync()
            disk.before = checkpoint

    disk.before = checkpoint
    files.write(files.create((0, 0, 0), ROOT / "queue" / "0", 8), 0, [b"content!"])
    disk.before = None
    files.sync()
    for parent in (ROOT.parent, *ROOT.parents):  # what stood before the store is the operator's
        disk.sync_directory(parent)
    disk.crash()
    assert disk.content(ROOT / "queue" / "0") == b"content!"


def test_what_is_written_while_other_files_are_synced_waits_for_the_next_sync() -> None:
    disk = FaultyDisk()
    files = OpenFiles(disk)
    made = [files.create((0, 0, number), ROOT / f"{number}", 8) for number in range(2)]
    for file in made:
        files.write(file, 0, [b"before.."])

    def writer(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path == ROOT / "1":
            disk.after = None
            files.write(made[0], 0, [b"between."])

    disk.after = writer
    files.sync()
    files.sync()
    for parent in (ROOT.parent, *ROOT.parents):
        disk.sync_directory(parent)
    disk.crash(keep=0.0)
    assert [disk.content(ROOT / f"{number}") for number in range(2)] == [b"between.", b"before.."]
