"""Answers to people who look after a broker."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.model.pending import PendingTransaction
from halfmq.wire.remoting.codes import HMQ_RESOLVE, HMQ_TRANSACTIONS
from halfmq.wire.remoting.header import decode, encode_request, encode_response
from halfmq.wire.remoting.operators import (
    EXT_TOTAL,
    STORY,
    decode_ids,
    decode_pending,
    encode_ids,
    encode_pending,
)

ROW = PendingTransaction("shop", "T-1", 90_000, 2, 3, 4_711, ("orders", "stock"), 4, 0, 1)


@pytest.mark.parametrize("binary", [False, True])
def test_lists_come_through_both_serialisations(binary: bool) -> None:
    request = decode(encode_request(HMQ_TRANSACTIONS, 5, {"group": "", "max": "7"}, binary=binary)[4:])
    assert (request.code, request.ext["max"]) == (HMQ_TRANSACTIONS, "7")
    response = decode(encode_response(request, 0, ext={EXT_TOTAL: 12}, body=encode_pending([ROW]))[4:])
    assert decode_pending(response.ext, response.body) == (12, [ROW])


def test_words_of_people_come_through_binary_headers() -> None:
    fields = {"operator": "Jürgen Ž.", "reason": "ticket 4711: the shop's database says paid"}
    request = decode(encode_request(HMQ_RESOLVE, 1, fields, binary=True)[4:])
    assert {name: request.ext[name] for name in fields} == fields


def test_the_bytes_of_a_list() -> None:
    assert encode_pending([ROW]) == (
        b'[{"group":"shop","tx_id":"T-1","age_ms":90000,"messages":2,"expected":3,"message_bytes":4711,'
        b'"topics":["orders","stock"],"checks":4,"next_check_in_ms":0,"producers":1,"set_aside":"",'
        b'"name":"","advice":"","comment":"","branch":"","coordinator":"","epoch":0}]'
    )


def test_stories_are_lists_of_sentences() -> None:
    assert STORY.decode(STORY.encode(("One.", "Two."))) == ["One.", "Two."]


def test_ids_come_through_and_are_bounded() -> None:
    assert decode_ids(encode_ids(("T-1", "T-2"))) == ["T-1", "T-2"]
    for body in (b"{}", b"[1]", encode_ids(["x"] * 1_001)):
        with pytest.raises(ProtocolError):
            decode_ids(body)


@pytest.mark.parametrize(
    ("ext", "body"), [({}, b"[]"), ({"total": "x"}, b"[]"), ({"total": "1"}, b"{"), ({"total": "1"}, b'[{"group":1}]')]
)
def test_what_is_no_list_is_refused(ext: dict[str, str], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_pending(ext, body)
    if body != b"[]":
        with pytest.raises(ProtocolError):
            STORY.decode(body)


@pytest.mark.parametrize("read", [STORY.decode, decode_ids, lambda body: decode_pending({"total": "1"}, body)])
def test_a_body_that_is_nested_too_deep_is_a_protocol_error(read):
    with pytest.raises(ProtocolError):
        read(b'[{"skipped":' * 5_000)
    with pytest.raises(ProtocolError):
        read(b"[" * 5_000)
