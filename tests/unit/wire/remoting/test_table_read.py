"""Reads of the transaction table: what is asked, and what is answered beside the rows."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.store.table_block import Wanted
from halfmq.wire.remoting.table_read import (
    WANTED,
    TableFound,
    TableReadFields,
    decode_found,
    decode_request_fields,
    decode_topics,
    encode_found,
    encode_request_fields,
    encode_topics,
)

FIELDS = TableReadFields("ab" * 16, "transactions", 5, 10**15, 77, 1 << 20)
FOUND = TableFound(3, 400, 8, 10**15, 0, 900, 0)


def test_requests_and_responses_come_through() -> None:
    assert decode_request_fields(encode_request_fields(FIELDS)) == FIELDS
    assert decode_found({name: str(value) for name, value in encode_found(FOUND).items()}) == FOUND
    assert decode_topics(memoryview(encode_topics({1: "orders", 20: "%RETRY%g"}))) == {1: "orders", 20: "%RETRY%g"}
    assert decode_topics(encode_topics({})) == {}


def test_the_words_of_a_request_are_those_of_the_store() -> None:
    assert set(WANTED) == {wanted.value for wanted in Wanted}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wanted": "all"}, "wanted 'all': must be one of rows"),
        ({"firstHalf": ""}, "firstHalf"),
        ({"endHalf": "4"}, "endHalf 4 is before firstHalf 5"),
        ({"position": "-1"}, "position"),
        ({"position": "1" * 19}, "position"),
        ({"maxBytes": "\u0661"}, "maxBytes"),
    ],
)
def test_a_wrong_request_is_named_by_its_field(changes: dict[str, str], says: str) -> None:
    found = decode_request_fields(encode_request_fields(FIELDS) | changes)
    assert isinstance(found, str)
    assert says in found


def test_a_malformed_response_is_refused() -> None:
    good = {name: str(value) for name, value in encode_found(FOUND).items()}
    for changed in ({"rows": "x"}, {"nextHalf": "-1"}):
        with pytest.raises(ProtocolError):
            decode_found(good | changed)
    with pytest.raises(ProtocolError):
        decode_found({})
    for topics in (b"", b"[]", b'{"x":"y"}', b'{"1":2}'):
        with pytest.raises(ProtocolError):
            decode_topics(topics)
