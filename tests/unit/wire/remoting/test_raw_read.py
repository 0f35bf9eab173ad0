"""Raw reads: what is asked, and the response in one piece of memory."""

import pytest
from msgspec import ValidationError
from msgspec.structs import replace

from halfmq.errors import ProtocolError
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.wire.remoting.header import Request, decode, encode_response_head
from halfmq.wire.remoting.raw_read import (
    CHECKSUM_BYTES,
    HEAD_BYTES,
    FoundFields,
    RawReadFields,
    body_bytes,
    complete_frame,
    decode_found,
    is_intact,
)

FIELDS = RawReadFields("C", "ab" * 16, "orders", 3, 7, 100, 200, 1 << 20)


def test_a_request_comes_through() -> None:
    assert read_fields(RawReadFields, write_fields(FIELDS)) == FIELDS
    assert list(write_fields(FIELDS)) == [
        "consumerGroup", "store", "topic", "topicId", "queueId", "firstOffset", "endOffset", "maxBytes",
    ]  # fmt: skip
    assert write_fields(replace(FIELDS, stored_checksums=1, continues=1))["storedChecksums"] == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topic": ""}, "topic"),
        ({"topicId": ""}, "topicId"),
        ({"queueId": "-1"}, "queueId"),
        ({"firstOffset": "1" * 20}, "firstOffset"),
        ({"endOffset": "\u0661"}, "endOffset"),
        ({"maxBytes": "many"}, "maxBytes"),
    ],
)
def test_a_wrong_request_is_named_by_its_field(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        read_fields(RawReadFields, write_fields(FIELDS) | changes)


@pytest.mark.parametrize("binary", [False, True])
def test_a_response_is_a_frame_whose_checksum_covers_entries_and_messages(binary: bool) -> None:
    data = bytearray(HEAD_BYTES) + b"entries" + b"messages"
    request = Request(code=29_015, opaque=5, binary=binary, ext={})
    head = encode_response_head(request, 0, None, {"entries": 2, "runs": 1, "nextBeginOffset": 8}, body_bytes(data))
    frame = bytes(complete_frame(head, data))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    answer = decode(frame[4:])
    assert (answer.opaque, answer.code, answer.is_response) == (5, 0, True)
    assert decode_found(answer.ext) == FoundFields(2, 1, 8)
    assert answer.body[CHECKSUM_BYTES:] == b"entriesmessages"
    assert is_intact(memoryview(answer.body))
    for place in range(len(answer.body)):
        damaged = bytearray(answer.body)
        damaged[place] ^= 1
        assert not is_intact(memoryview(damaged)), place
    assert not is_intact(memoryview(b""))


def test_a_head_that_does_not_fit_is_refused() -> None:
    data = bytearray(HEAD_BYTES)
    complete_frame(bytes(HEAD_BYTES - CHECKSUM_BYTES), data)
    with pytest.raises(ProtocolError):
        complete_frame(bytes(HEAD_BYTES - CHECKSUM_BYTES + 1), data)


@pytest.mark.parametrize(
    "ext",
    [
        {},
        {"entries": "1", "runs": "1"},
        {"entries": "1", "nextBeginOffset": "1"},
        {"entries": "x", "runs": "1", "nextBeginOffset": "1"},
        {"entries": "0", "runs": "0", "nextBeginOffset": "1"},
        {"entries": "1", "runs": "2", "nextBeginOffset": "1"},
        {"entries": "1", "runs": "1", "nextBeginOffset": "0"},
    ],
)
def test_a_malformed_response_is_refused(ext: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        decode_found(ext)
