from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk, PowerLost
from tests.support.vectors import vectors

from halfmq.errors import InvariantViolated
from halfmq.store.checkpoint import (
    WholeSnapshot,
    read_snapshot,
    remove_snapshots,
    snapshot_path,
    write_snapshot,
)
from halfmq.store.two_slots import Missing, Unreadable

STORE = bytes(range(16))
ROOT = Path("/s/snapshots")
CHUNKS = (b"topics", b"undecided" * 200_000, b"offsets")


def test_a_snapshot_has_these_bytes() -> None:
    disk = FaultyDisk()
    write_snapshot(disk, ROOT, STORE, 3, 4_096, [b"rows", b"more"])
    assert disk.content(snapshot_path(ROOT, 4_096)) == vectors("derived")["snapshot"]


def test_chunks_come_back_with_the_crc_of_the_whole_file() -> None:
    disk = FaultyDisk()
    crc = write_snapshot(disk, ROOT, STORE, 3, 4_096, iter(CHUNKS))
    path = snapshot_path(ROOT, 4_096)
    assert read_snapshot(disk, ROOT, STORE, 4_096) == WholeSnapshot(path, 3, 4_096, crc, CHUNKS)
    assert read_snapshot(disk, ROOT, STORE, 8_192) == Missing()
    assert isinstance(read_snapshot(disk, ROOT, bytes(16), 4_096), Unreadable)


def test_a_flipped_bit_anywhere_is_noticed_before_a_chunk_is_handed_out() -> None:
    disk = FaultyDisk()
    write_snapshot(disk, ROOT, STORE, 3, 4_096, [b"abc", b"defg"])
    path = snapshot_path(ROOT, 4_096)
    whole = disk.content(path)
    for at in range(len(whole)):
        disk.put(path, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert isinstance(read_snapshot(disk, ROOT, STORE, 4_096), Unreadable), at
    for length in range(len(whole)):
        disk.put(path, whole[:length])
        assert isinstance(read_snapshot(disk, ROOT, STORE, 4_096), Unreadable), length


def test_an_empty_chunk_would_be_the_end_and_is_refused() -> None:
    with pytest.raises(InvariantViolated, match="empty"):
        write_snapshot(FaultyDisk(), ROOT, STORE, 3, 4_096, [b"a", b""])


def test_a_power_loss_at_any_step_leaves_no_snapshot_or_a_whole_one() -> None:
    seen = set()
    for step in range(1, 10):
        disk = FaultyDisk(step)
        disk.make_directories(ROOT)
        disk.sync_directory(ROOT.parent)
        disk.sync_directory(ROOT.parent.parent)
        disk.power_fails_after(step)
        try:
            write_snapshot(disk, ROOT, STORE, 3, 4_096, CHUNKS)
        except PowerLost:
            pass
        disk.crash()
        found = read_snapshot(disk, ROOT, STORE, 4_096)
        assert not isinstance(found, Unreadable)
        seen.add(type(found))
    assert seen == {Missing, WholeSnapshot}


def test_only_snapshots_that_a_slot_names_stay() -> None:
    disk = FaultyDisk()
    for position in (64, 128, 4_096):
        write_snapshot(disk, ROOT, STORE, 1, position, [b"x"])
    disk.open(ROOT / "00000000000000009999.new", create=True)
    remove_snapshots(disk, ROOT, [128, 4_096])
    assert sorted(disk.list(ROOT)) == [snapshot_path(ROOT, at).name for at in (128, 4_096)]
    assert len(disk.list(ROOT)) == 2
