"""Files of entries: written in log order, cut at a crash, removed with their segment. More, with keys, in ``test_key_index``."""

import errno
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk

from halfmq.store.open_files import OpenFiles
from halfmq.store.segment_entries import SegmentEntries

ROOT = Path("/e")
SEGMENT = 1 << 16


def whole(entries: SegmentEntries, start: int) -> bytes:
    return b"".join(reversed(list(entries.parts(start))))


def entries(disk: FaultyDisk) -> SegmentEntries:
    return SegmentEntries(disk, ROOT, ".e", -9, OpenFiles(disk), SEGMENT)


def entry(offset: int) -> bytes:
    return b"%08d" % (offset % 10**8) + offset.to_bytes(8, "big")


def gives(first: bytes, offset: int) -> bool:
    return entry(offset)[:8] == first


def add(to: SegmentEntries, *offsets: int) -> None:
    for offset in offsets:
        to.staged(offset).append(entry(offset))


def test_entries_are_written_in_order_to_the_file_of_their_segment() -> None:
    disk = FaultyDisk()
    one = entries(disk)
    add(one, 64, 200, SEGMENT + 64)
    assert disk.list(ROOT) == []
    one.flush()
    add(one, SEGMENT + 300)
    one.flush()
    assert whole(one, 0) == entry(64) + entry(200)
    assert whole(one, SEGMENT) == entry(SEGMENT + 64) + entry(SEGMENT + 300)


def test_entries_that_could_not_be_written_are_still_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    one = entries(FaultyDisk())
    add(one, 64, SEGMENT + 64)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr(OpenFiles, "write", fail)
        with pytest.raises(OSError, match="full"):
            one.flush()
    add(one, SEGMENT + 300)
    one.flush()
    assert whole(one, 0) + whole(one, SEGMENT) == entry(64) + entry(SEGMENT + 64) + entry(SEGMENT + 300)


@pytest.mark.parametrize("position", [64, 65, 200, 250, 300, 1_000, SEGMENT + 64, 2 * SEGMENT])
def test_a_load_keeps_what_lies_before_its_position_and_a_cut_the_rest_away(position: int) -> None:
    disk = FaultyDisk()
    one = entries(disk)
    offsets = (64, 200, 300, SEGMENT + 64, SEGMENT + 300)
    add(one, *offsets)
    one.flush()
    again = entries(disk)
    again.load(position, gives)
    again.cut()
    kept = b"".join(whole(again, start) for start in sorted(again.ends))
    assert kept == b"".join(entry(offset) for offset in offsets if offset < position)
    assert sum(len(disk.content(again.path(start))) for start in again.ends) == len(kept)


@pytest.mark.parametrize("kept", range(16))
def test_an_entry_of_a_write_that_was_cut_short_does_not_count(kept: int) -> None:
    disk = FaultyDisk()
    one = entries(disk)
    add(one, SEGMENT + 64, 2 * SEGMENT - 8)
    one.flush()
    path = one.path(SEGMENT)
    disk.put(path, disk.content(path)[: 16 + kept] + bytes(16 - kept))
    again = entries(disk)
    again.load(2 * SEGMENT - 8, gives)
    assert whole(again, SEGMENT) == entry(SEGMENT + 64)


@pytest.mark.parametrize("error", [LookupError, ValueError])
def test_an_entry_whose_record_cannot_be_read_does_not_count(error: type[Exception]) -> None:
    disk = FaultyDisk()
    one = entries(disk)
    add(one, 64)
    one.flush()

    def cannot(first: bytes, offset: int) -> bool:
        raise error(offset)

    one.load(200, cannot)
    assert whole(one, 0) == b""


def test_a_file_goes_with_its_segment_and_a_reset_removes_all() -> None:
    disk = FaultyDisk()
    one = entries(disk)
    add(one, 64, SEGMENT + 64, 2 * SEGMENT + 64)
    one.flush()
    one.trim(2 * SEGMENT - 1)
    assert sorted(one.ends) == [SEGMENT, 2 * SEGMENT]
    one.trim(2 * SEGMENT)
    assert disk.list(ROOT) == [one.path(2 * SEGMENT).name]
    one.reset()
    assert disk.list(ROOT) == []
