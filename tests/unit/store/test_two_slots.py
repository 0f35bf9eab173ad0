import struct

import pytest

from halfmq.store.two_slots import Missing, Unreadable, decode_slot, encode_slot

LAYOUT = struct.Struct(">4sIqI")


def test_a_slot_comes_back_as_it_was_written() -> None:
    data = encode_slot(LAYOUT, (b"HMQT", 1, -7))
    assert len(data) == LAYOUT.size
    assert decode_slot(LAYOUT, b"HMQT", data + b"what lies behind") == (b"HMQT", 1, -7)


@pytest.mark.parametrize("at", range(LAYOUT.size))
def test_a_bit_that_flipped_anywhere_makes_it_unreadable(at: int) -> None:
    data = bytearray(encode_slot(LAYOUT, (b"HMQT", 1, -7)))
    data[at] ^= 0x10
    assert isinstance(decode_slot(LAYOUT, b"HMQT", bytes(data)), Unreadable)


@pytest.mark.parametrize("length", range(LAYOUT.size))
def test_a_slot_cut_short_is_unreadable_and_zeros_are_missing(length: int) -> None:
    data = encode_slot(LAYOUT, (b"HMQT", 1, -7))
    found = decode_slot(LAYOUT, b"HMQT", data[:length])
    assert isinstance(found, Missing if length == 0 else Unreadable)
    assert isinstance(decode_slot(LAYOUT, b"HMQT", bytes(length)), Missing)
