"""The ROCKETMQ serialisation: the golden header, lengths that lie, text that is none."""

import struct

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.binary_header import decode_binary_header, encode_binary_header

PULL_HEADER = vectors("remoting")["pull_response_binary"][8:]


def test_the_header_of_a_real_broker_is_read():
    header = decode_binary_header(PULL_HEADER)
    assert (header.code, header.language, header.version, header.opaque, header.flag, header.remark) == (
        0,
        "JAVA",
        0,
        5,
        1,
        None,
    )
    assert header.ext == {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}


def test_a_header_without_remark_and_ext_is_21_bytes():
    header = encode_binary_header(34, 1, 0, None, ())
    assert len(header) == 21
    assert decode_binary_header(header).ext == {}


def test_what_is_written_is_read():
    header = decode_binary_header(
        encode_binary_header(-5, -1, 3, "caf\u00e9", [("a", "1"), ("b", ""), ("\u00fc", "\x01\x02")])
    )
    assert (header.code, header.language, header.opaque, header.flag, header.remark) == (
        -5,
        "PYTHON",
        -1,
        3,
        "caf\u00e9",
    )
    assert header.ext == {"a": "1", "\u00fc": "\x01\x02"}, "an empty value is as if missing"


def test_the_last_of_two_equal_keys_wins():
    assert decode_binary_header(encode_binary_header(1, 1, 0, None, [("k", "1"), ("k", "2")])).ext == {"k": "2"}


def test_a_language_that_nobody_knows_is_other():
    assert decode_binary_header(PULL_HEADER[:2] + b"\x63" + PULL_HEADER[3:]).language == "OTHER"


@pytest.mark.parametrize("size", [-1, 1, 1 << 30, -(1 << 31)])
def test_a_length_that_leaves_its_block_is_a_protocol_error(size):
    fixed = struct.pack(">hBhii", 0, 0, 0, 1, 0)
    long = struct.pack(">i", size)
    for header in (
        fixed + long,
        fixed + bytes(4) + long,
        fixed + bytes(4) + struct.pack(">i", 10) + struct.pack(">h", max(-1, min(size, 0x7FFF))) + b"k" + long,
        fixed
        + bytes(4)
        + struct.pack(">i", 7)
        + struct.pack(">h", 1)
        + b"k"
        + struct.pack(">i", size if size != 1 else 2),
    ):
        with pytest.raises(ProtocolError):
            decode_binary_header(header)


def test_text_that_is_not_utf_8_is_a_protocol_error():
    header = encode_binary_header(1, 1, 0, "xx", [("key", "value")])
    for place in (header.index(b"xx"), header.index(b"key"), header.index(b"value")):
        with pytest.raises(ProtocolError):
            decode_binary_header(header[:place] + b"\xff" + header[place + 1 :])
