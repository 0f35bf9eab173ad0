import struct
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk

from halfmq.store.layout import SLOT_BYTES
from halfmq.store.two_slots import Missing, Unreadable, decode_slot, read_slots, write_slot

LAYOUT = struct.Struct(">4sIqiI")
MAGIC, VERSION = b"HMQT", 1


def page(*slots: tuple[int, int]) -> tuple[FaultyDisk, Path]:
    disk, path = FaultyDisk(), Path("/page")
    file = disk.open(path, create=True)
    for sequence, value in slots:
        write_slot(file, LAYOUT, MAGIC, VERSION, sequence, value)
    return disk, path


def slot() -> bytes:
    disk, path = page((2, -7))
    return disk.content(path)[: LAYOUT.size]


def decoded(data: bytes) -> object:
    return decode_slot(LAYOUT, MAGIC, VERSION, data)


def test_a_slot_comes_back_as_it_was_written() -> None:
    assert len(slot()) == LAYOUT.size
    assert decoded(slot() + b"what lies behind") == (2, -7)


def test_each_write_leaves_the_slot_before() -> None:
    disk, path = page((1, 10), (2, 20), (3, 30))
    assert read_slots(disk.open(path), LAYOUT, MAGIC, VERSION) == [(2, 20), (3, 30)]
    disk.flip_bit(path, SLOT_BYTES + 20)
    assert isinstance(read_slots(disk.open(path), LAYOUT, MAGIC, VERSION)[1], Unreadable)
    disk, path = page((1, 10))
    assert read_slots(disk.open(path), LAYOUT, MAGIC, VERSION) == [Missing(), (1, 10)]


@pytest.mark.parametrize("at", range(LAYOUT.size))
def test_a_bit_that_flipped_anywhere_makes_it_unreadable(at: int) -> None:
    data = bytearray(slot())
    data[at] ^= 0x10
    assert isinstance(decoded(bytes(data)), Unreadable)


def test_a_slot_of_another_version_is_unreadable() -> None:
    assert decode_slot(LAYOUT, MAGIC, 2, slot()) == Unreadable("the slot has version 1, this program reads 2")


@pytest.mark.parametrize("length", range(LAYOUT.size))
def test_a_slot_cut_short_is_unreadable_and_zeros_are_missing(length: int) -> None:
    assert isinstance(decoded(slot()[:length]), Missing if length == 0 else Unreadable)
    assert isinstance(decoded(bytes(length)), Missing)
