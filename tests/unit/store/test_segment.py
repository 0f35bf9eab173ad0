"""Segment files: names, preallocation, what they cost in descriptors, and views that outlive them."""

import errno
import gc
import os
import threading
import time
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk

from halfmq.errors import StoreDamaged, StoreFull
from halfmq.runtime.disk import File, RealDisk
from halfmq.store import segment as module
from halfmq.store.segment import SegmentFiles, create_segment, segment_name, segment_starts

SIZE = 1 << 16
HOME = Path("/store/log")


def disk_with_home() -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_directories(HOME)
    for parent in (HOME.parent.parent, HOME.parent):
        disk.sync_directory(parent)
    return disk


def test_a_name_is_the_first_offset_in_20_digits() -> None:
    assert segment_name(65_536) == "00000000000000065536.seg"
    assert segment_starts([segment_name(0), segment_name(SIZE), "x.seg", "other", "123.seg"], HOME, SIZE) == [0, SIZE]


def test_a_name_between_two_segments_is_refused() -> None:
    with pytest.raises(StoreDamaged, match="does not begin at a multiple of the segment size"):
        segment_starts([segment_name(4_096)], HOME, SIZE)


def test_a_new_segment_is_zero_whole_and_survives() -> None:
    disk = disk_with_home()
    create_segment(disk, HOME, SIZE, SIZE)
    disk.crash()
    assert disk.content(HOME / segment_name(SIZE)) == bytes(SIZE)


def test_the_file_is_synced_before_its_name() -> None:
    disk = disk_with_home()
    steps: list[str] = []
    disk.before = lambda operation: steps.append(operation.kind)
    create_segment(disk, HOME, 0, SIZE)
    assert steps == ["create", "allocate", "sync", "sync_directory"]


def test_a_full_disk_leaves_nothing_of_it() -> None:
    disk = disk_with_home()
    disk.fill(SIZE - 1)
    with pytest.raises(StoreFull) as caught:
        create_segment(disk, HOME, 0, SIZE)
    assert caught.value.retriable
    assert disk.list(HOME) == []
    assert disk.free_bytes(HOME) == SIZE - 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_its_name_is_a_full_disk_too(code: int) -> None:
    disk = disk_with_home()
    disk.fail("create", code)
    with pytest.raises(StoreFull):
        create_segment(disk, HOME, 0, SIZE)
    assert disk.list(HOME) == []


def test_other_errors_are_no_full_disk() -> None:
    disk = disk_with_home()
    disk.fail("create")
    with pytest.raises(OSError, match="Input/output"):
        create_segment(disk, HOME, 0, SIZE)
    disk = disk_with_home()
    disk.fail("allocate")
    with pytest.raises(OSError, match="Input/output"):
        create_segment(disk, HOME, 0, SIZE)


def test_nonzero_from_looks_at_everything_behind() -> None:
    disk = disk_with_home()
    segment = create_segment(disk, HOME, 0, 3 << 20)
    assert segment.nonzero_from(0) is None
    segment.write((3 << 20) - 1, b"x")
    assert 2 << 20 <= (segment.nonzero_from(0) or 0) < 3 << 20
    assert segment.nonzero_from((3 << 20) - 1) == (3 << 20) - 1


def test_only_so_many_are_open_and_none_that_a_sync_still_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_SEGMENTS_MAX", 4)
    disk = RealDisk()
    files = SegmentFiles(disk, tmp_path, SIZE)
    for number in range(10):
        files.add(create_segment(disk, tmp_path, number * SIZE, SIZE))
    files.close_old(below=3 * SIZE)
    assert sorted(files.opened) == list(range(3, 10))
    files.close_old(below=10 * SIZE)
    assert len(files.opened) == 4
    assert files.numbers() == list(range(10))
    segment = files.get(0)
    assert segment is not None
    assert segment.start == 0
    assert files.get(10) is None


def test_who_reads_a_segment_may_finish_while_others_close_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop reads, the sync thread finds that too many are open. A closed descriptor was told as damage, and its number may
    be another file's by then."""
    monkeypatch.setattr(module, "OPEN_SEGMENTS_MAX", 0)
    disk = RealDisk()
    files = SegmentFiles(disk, tmp_path, SIZE)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2):
        files.add(create_segment(disk, tmp_path, number * SIZE, SIZE))
    segment = files.get(0)
    assert segment is not None
    segment.write(100, b"abc")
    files.close_old(below=2 * SIZE)
    files.forget(0)
    assert not files.opened
    assert segment.read(100, 3) == b"abc"
    del segment
    assert len(os.listdir("/proc/self/fd")) == before, "the last one who holds it closes it"


def test_an_open_segment_stays_readable_after_unlink(tmp_path: Path) -> None:
    disk = RealDisk()
    segment = create_segment(disk, tmp_path, 0, SIZE)
    segment.write(100, b"abc")
    segment.path.unlink()
    assert segment.read(100, 3) == b"abc"


def test_what_the_disk_cannot_read_is_told_with_file_and_log_offset() -> None:
    disk = FaultyDisk()
    disk.make_directories(Path("/log"))
    segment = create_segment(disk, Path("/log"), 2 * SIZE, SIZE)
    disk.fail("read", path_ends=segment.path.name)
    with pytest.raises(
        StoreDamaged, match=f"{segment.path} cannot be read at log offset {2 * SIZE + 100}: Input/output"
    ):
        segment.read(100, 3)
    assert segment.read(100, 3) == bytes(3)


def test_old_segments_are_closed_behind_newer_ones_that_must_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a redo: the scan before it opened the newest first."""
    monkeypatch.setattr(module, "OPEN_SEGMENTS_MAX", 4)
    disk = RealDisk()
    for number in range(10):
        create_segment(disk, tmp_path, number * SIZE, SIZE).close()
    files = SegmentFiles(disk, tmp_path, SIZE)
    for number in (6, 7, 8, 9, 0, 1, 2, 3):
        files.get(number)
        files.close_old(below=number * SIZE if number < 6 else 0)
    assert sorted(files.opened) == [3, 6, 7, 8, 9]


def test_threads_that_open_and_close_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync thread and the maintenance thread close old segments, while consumers have them opened again."""
    monkeypatch.setattr(module, "OPEN_SEGMENTS_MAX", 0)
    disk = RealDisk()
    for number in range(8):
        create_segment(disk, tmp_path, number * SIZE, SIZE).close()
    files = SegmentFiles(disk, tmp_path, SIZE)
    disk_open = RealDisk.open

    def slow_open(disk: RealDisk, path: Path) -> File:
        file = disk_open(disk, path)
        time.sleep(0.001)  # real time: as the call itself, it lets other threads run
        return file

    monkeypatch.setattr(RealDisk, "open", slow_open)
    errors: list[BaseException] = []
    before = set(os.listdir("/proc/self/fd"))

    def work(step: int) -> None:
        try:
            for at in range(100):
                files.get(at % 8)
                if step % 2:
                    files.close_old(8 * SIZE)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    files.close()
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before, "no descriptor is left behind"
