"""How much of the log a power loss would keep, byte for byte: computed from contents and names on the disk."""

import pytest

from halfmq.store.segment import segment_name
from tests.simulation.damage import LOG
from tests.simulation.durable_replies import KeptLog
from tests.support.faulty_disk import FaultyDisk, FaultyFile

START = 1 << 16


def disk_with_segments() -> tuple[FaultyDisk, FaultyFile, FaultyFile]:
    disk = FaultyDisk(1)
    disk.make_directories(LOG)
    for parent in LOG.parents:
        disk.sync_directory(parent)
    files = []
    for start in (0, START):
        file = disk.open(LOG / segment_name(start), create=True)
        file.write(0, [b"\1" * 100])
        file.sync()
        files.append(file)
    return disk, files[0], files[1]


def test_bytes_under_a_name_that_is_not_durable_do_not_count() -> None:
    disk, _, second = disk_with_segments()
    kept = KeptLog(disk)
    assert kept.position == 0
    disk.sync_directory(LOG)
    assert kept.position > START
    second.write(100, [b"\2" * 50])
    assert kept.position == START + 100


def test_the_position_is_the_first_different_byte_and_not_its_sector() -> None:
    disk, first, _ = disk_with_segments()
    disk.sync_directory(LOG)
    kept = KeptLog(disk)
    first.write(90, [b"\1" * 10 + b"\3"])
    assert kept.position == 100
    first.sync()
    assert kept.position > START


def test_data_lost_by_a_failed_sync_does_not_count() -> None:
    disk, first, _ = disk_with_segments()
    disk.sync_directory(LOG)
    disk.failed_sync_keeps_share = 0.0
    kept = KeptLog(disk)
    first.write(100, [b"\2" * 50])
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output error"):
        first.sync()
    assert kept.position == 100
