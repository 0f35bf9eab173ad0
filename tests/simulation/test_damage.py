"""Damage at rest and its repair: flipped bits and lost files are restored, unless they were overwritten meanwhile."""

from collections import Counter
from pathlib import Path

import pytest

from halfmq.store.watermark_page import Watermark, WatermarkPage, read_watermark_page
from tests.simulation.damage import LOG, PAGE, Damage
from tests.support.faulty_disk import FaultyDisk

SEGMENT = LOG / "00000000000000000000.seg"
CHECKPOINT = LOG.parent / "checkpoint"


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
    damage.saw(800, 900, 0)
    damage.saw(1_000, 1_000, 0)
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


def test_an_overwritten_byte_is_not_restored() -> None:
    disk = _disk()
    damage = _damage(disk)
    where = damage.flip_anywhere(0)
    at = int(where.rpartition(" ")[2])
    disk.open(SEGMENT).write(at, [b"\xff"])
    damage.restore()
    assert disk.content(SEGMENT)[at] == 0xFF


def test_nothing_is_flipped_that_no_later_batch_declares_durable() -> None:
    disk = _disk()
    damage = Damage(disk, 1 << 16, 1, Counter())
    damage.saw(1_000, 1_000, 0)
    assert damage.flip_anywhere(0) == ""


def test_a_watermark_page_on_disk_declares_batches_durable_too() -> None:
    disk = _disk()
    damage = Damage(disk, 1 << 16, 1, Counter())
    page = WatermarkPage.open(disk, PAGE, b"0123456789abcdef", 1)
    page.publish(950, 0, 0, 900)
    for directory in PAGE.parents:
        disk.sync_directory(directory)
    disk.fail("sync", path_ends="published")
    assert damage.flip_anywhere(0) == ""
    assert damage.flip_anywhere(0)
    disk.crash()
    found = read_watermark_page(disk, PAGE)
    assert isinstance(found, Watermark)
    assert found.durable == 900


def test_lost_segments_are_restored() -> None:
    disk = _disk()
    before = disk.image()
    damage = _damage(disk)
    assert damage.lose_segments(0) or disk.image() == before
    damage.restore()
    assert {path: content for path, content in disk.image().items() if path.suffix == ".seg"} == before
    assert Path("/store/shard-0/log") == LOG


@pytest.mark.parametrize("operation", ["create", "sync_directory"])
def test_a_restore_that_a_fault_interrupts_is_repeated(operation: str) -> None:
    disk = _disk()
    disk.open(CHECKPOINT, create=True).close()  # without it nothing states that there was a log
    for directory in (LOG.parent, *LOG.parent.parents):
        disk.sync_directory(directory)
    before = disk.image()
    damage = _damage(disk)
    assert any(damage.lose_segments(0) for _ in range(50))
    disk.fail(operation)
    with pytest.raises(OSError, match="error"):
        damage.restore()
    damage.restore()
    disk.crash()
    assert disk.image() == before
    assert not damage.any


def test_evidence_of_a_log_is_not_lost_while_segments_are_missing() -> None:
    disk = _disk()
    disk.open(CHECKPOINT, create=True).close()
    damage = _damage(disk)
    assert any(damage.lose_segments(0) for _ in range(50))
    assert all(damage.lose_derived() == "" for _ in range(20))
    damage.restore()
    assert any(damage.lose_derived() for _ in range(50))
