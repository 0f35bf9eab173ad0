"""A batch as bytes: what its header says, and that no changed byte goes unseen."""

import struct
from zlib import crc32

import pytest
from msgspec.structs import replace
from tests.support import log_records as make
from tests.support.vectors import vectors

from halfmq.errors import InvariantViolated
from halfmq.store.batch_codec import (
    Header,
    NotABatch,
    decode_batch,
    encode_batch,
    examine,
    previous_end_of,
    read_header,
)
from halfmq.store.record_codec import Pieces

START = 4_096


def no_copy(source: int) -> Pieces:
    raise AssertionError(source)


def batch(*makes: make.Make, start: int = START) -> bytes:
    return encode_batch(
        make.laid_out(start, makes), broker_time_ms=1_700_000_000_789, epoch=3, durable_position=2_048, copy=no_copy
    )


def mixed() -> bytes:
    return batch(make.half(1, b"body-1" * 20), make.committed(make.ref()), make.plain(b"body-2" * 5), make.checked())


def test_header_says_what_the_batch_is() -> None:
    data = mixed()
    header = examine(data, 0, START, len(data))
    assert isinstance(header, Header)
    assert header._replace(checksum=0, data_length=0) == Header(START, len(data), 0, 4, 2_048, 1_700_000_000_789, 3, 0)
    assert len(data) % 8 == 0
    assert 0 <= header.length - header.data_length < 8
    assert header.end == START + len(data)


def test_golden_batch() -> None:
    assert mixed().hex() == vectors("records")["batch"].hex()


def test_checksum_leaves_out_bodies_and_itself_and_nothing_else() -> None:
    data = bytearray(batch(make.plain(b"the body")))
    (stated,) = struct.unpack_from(">I", data, 48)
    data[48:52] = bytes(4)
    at = data.index(b"the body")
    length = struct.unpack_from(">I", data, 44)[0]
    assert crc32(bytes(data[:at] + data[at + 8 : length])) == stated


def test_records_are_read_back() -> None:
    data = mixed()
    header = examine(data, 0, START, len(data))
    assert isinstance(header, Header)
    makes = (make.half(1, b"body-1" * 20), make.committed(make.ref()), make.plain(b"body-2" * 5), make.checked())
    assert decode_batch(data, 0, header) == make.laid_out(START, makes)


def test_a_batch_is_found_in_the_middle_of_a_buffer() -> None:
    data = mixed()
    buffer = memoryview(b"\xff" * 24 + data + b"\xff" * 100)
    assert isinstance(examine(buffer, 24, START, 1 << 16), Header)


def test_any_flipped_bit_is_seen() -> None:
    data = mixed()
    header = read_header(data, 0, START, len(data))
    assert isinstance(header, Header)
    for bit in range(header.data_length * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert isinstance(examine(bytes(changed), 0, START, len(data)), NotABatch), bit


def test_a_batch_cut_at_any_byte_is_none() -> None:
    data = mixed()
    header = read_header(data, 0, START, len(data))
    assert isinstance(header, Header)
    for length in range(header.data_length):
        torn = data[:length] + bytes(len(data) - length)
        if torn != data:
            assert isinstance(examine(torn, 0, START, len(data)), NotABatch), length
        assert isinstance(examine(data[:length], 0, START, len(data)), NotABatch), length


def test_a_batch_does_not_count_where_it_does_not_belong() -> None:
    data = mixed()
    assert examine(data, 0, START + 8, len(data)) == NotABatch(f"the batch header states log offset {START}")


def test_a_batch_must_fit_the_room_that_is_left() -> None:
    data = mixed()
    found = examine(data, 0, START, len(data) - 8)
    assert isinstance(found, NotABatch)
    assert "is impossible" in found.why


def test_a_rotten_body_is_named() -> None:
    data = bytearray(mixed())
    data[data.index(b"body-2")] ^= 1
    found = examine(bytes(data), 0, START, len(data))
    assert isinstance(found, NotABatch)
    assert "does not have the CRC that it states" in found.why


def test_random_bytes_behind_a_magic_do_no_harm() -> None:
    """Lengths inside are read before the checksum is known: whatever they say, the answer is no."""
    data = mixed()
    stop = read_header(data, 0, START, len(data)).data_length  # behind it are zeros up to a multiple of eight
    for at in range(64, len(data) - 4):
        for value in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x00\x07"):
            changed = data[:at] + value + data[at + 4 :]
            if changed[:stop] != data[:stop]:
                assert isinstance(examine(changed, 0, START, len(data)), NotABatch), at


def test_a_record_that_lies_about_its_place_or_size_is_not_written() -> None:
    good = make.laid_out(START, (make.plain(), make.checked()))
    for wrong in (
        [good[0], replace(good[1], offset=good[1].offset + 8)],
        [replace(good[0], size=good[0].size + 1), good[1]],
        [good[0], replace(good[1], size=good[1].size - 1)],
    ):
        with pytest.raises(InvariantViolated):
            encode_batch(wrong, broker_time_ms=0, epoch=1, durable_position=0, copy=no_copy)


def test_the_base_says_where_the_log_ended_before() -> None:
    assert previous_end_of(batch(make.base(77)), 0) == 77
    assert previous_end_of(batch(make.checked()), 0) is None


def test_large_pieces_are_summed_like_joined_ones() -> None:
    data = bytearray(batch(make.half_batch(count=900), make.checked()))
    assert len(data) > 100_000
    (stated, length) = (struct.unpack_from(">I", data, at)[0] for at in (48, 44))
    data[48:52] = bytes(4)
    assert crc32(data[:length]) == stated
