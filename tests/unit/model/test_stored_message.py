"""RocketMQ's stored layout: golden bytes of a real broker, both address families, both versions, and damage."""

import pytest

from halfmq.model.stored_message import (
    AT_QUEUE_OFFSET,
    MAGIC_V2,
    StoredMessage,
    body_crc_of,
    decode,
    encode,
    size_of,
)

#: Written by Apache RocketMQ 4.9.8: body `normal`, topic TopicTx, queue 1, commit-log offset 0x5ED.
ROCKETMQ = bytes.fromhex(
    "000000d4daa320a7218568e40000000100000000000000000000000000000000000005ed00000000000001a1fd046b2d7f00000100009272"
    "000001a1fd046b317f000001000051af000000000000000000000000000000066e6f726d616c07546f7069635478006c4b455953016b6579"
    "4e02554e49515f4b4559014644303030303030303030303030303030303030303030303030303030303032343046413546464432423237"
    "36383943383332443030303302434c55535445520144656661756c74436c7573746572025441475301546167"
    "42"
)  # fmt: skip
V4 = bytes((127, 0, 0, 1)) + (1).to_bytes(4, "big")
V6 = bytes(16) + (2).to_bytes(4, "big")


def message(topic: str = "T", born: bytes = V4, store: bytes = V4, body: bytes = b"body") -> StoredMessage:
    return StoredMessage(topic, 3, 5, 7, 0, 11, born, 13, store, 2, 17, body, body_crc_of(body), b"A\x011\x02")


def test_a_message_of_apache_rocketmq_is_read_and_written_byte_for_byte() -> None:
    read, physical_offset, size = decode(ROCKETMQ)
    assert (read.topic, read.queue_id, read.body, physical_offset, size) == ("TopicTx", 1, b"normal", 0x5ED, 212)
    assert body_crc_of(read.body) == read.body_crc == 0x218568E4
    assert b"".join(encode(read, physical_offset)) == ROCKETMQ


@pytest.mark.parametrize("topic", ["T", "x" * 127, "x" * 128, "x" * 255])
@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
def test_every_shape_is_read_back_and_has_the_size_that_was_foretold(topic: str, born: bytes, store: bytes) -> None:
    written = message(topic, born, store)
    encoded = b"".join(encode(written, 4_711))
    assert len(encoded) == size_of(len(topic), 4, 4, len(born), len(store))
    read, offset, size = decode(b"before" + encoded + b"behind", 6)
    assert (offset, size) == (4_711, len(encoded))
    assert read._replace(sys_flag=0) == written
    assert (int.from_bytes(encoded[4:8], "big") == MAGIC_V2) == (len(topic) > 127)


def test_the_queue_offset_lies_where_pulls_patch_it() -> None:
    encoded = b"".join(encode(message(), 0))
    assert int.from_bytes(encoded[AT_QUEUE_OFFSET : AT_QUEUE_OFFSET + 8], "big") == 5


def test_a_message_cut_anywhere_is_refused() -> None:
    for cut in range(len(ROCKETMQ)):
        with pytest.raises(ValueError, match="stored message"):
            decode(ROCKETMQ[:cut])


def test_lengths_that_do_not_add_up_are_refused() -> None:
    damaged = bytearray(ROCKETMQ)
    damaged[87] += 1  # body length
    with pytest.raises(ValueError, match="stored message"):
        decode(damaged)
