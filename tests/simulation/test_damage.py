"""Damage at rest and its repair: what is flipped or lost is put right, and not what was written over meanwhile."""

from collections import Counter
from pathlib import Path

from halfmq.testing.faulty_disk import FaultyDisk
from tests.simulation.damage import LOG, Damage

SEGMENT = LOG / "00000000000000000000.seg"


def _disk() -> FaultyDisk:
    disk = FaultyDisk(1)
    disk.make_directories(LOG)
    for name in ("00000000000000000000.seg", "00000000000000065536.seg", "00000000000000131072.seg"):
        file = disk.open(LOG / name, create=True)
        file.write(0, [bytes(range(1, 251)) * 4])
        file.sync()
    disk.sync_directory(LOG)
    return disk


def _damage(disk: FaultyDisk) -> Damage:
    damage = Damage(disk, 1 << 16, 1, Counter())
    damage.saw(800, 900)
    damage.saw(1_000, 1_000)
    return damage


def test_a_flipped_bit_is_restored() -> None:
    disk = _disk()
    before = disk.content(SEGMENT)
    damage = _damage(disk)
    assert damage.flip_anywhere(0)
    assert disk.content(SEGMENT) != before
    damage.restore()
    assert disk.content(SEGMENT) == before
    assert not damage.any


def test_a_byte_that_was_written_over_is_left_alone() -> None:
    disk = _disk()
    damage = _damage(disk)
    where = damage.flip_anywhere(0)
    at = int(where.rpartition(" ")[2])
    disk.open(SEGMENT).write(at, [b"\xff"])
    damage.restore()
    assert disk.content(SEGMENT)[at] == 0xFF


def test_nothing_is_flipped_where_no_later_batch_vouches() -> None:
    disk = _disk()
    damage = Damage(disk, 1 << 16, 1, Counter())
    damage.saw(1_000, 1_000)
    assert damage.flip_anywhere(0) == ""


def test_lost_segments_come_back() -> None:
    disk = _disk()
    before = disk.image()
    damage = _damage(disk)
    assert damage.lose_segments(0) or disk.image() == before
    damage.restore()
    assert {path: content for path, content in disk.image().items() if path.suffix == ".seg"} == before
    assert Path("/store/shard-0/log") == LOG
