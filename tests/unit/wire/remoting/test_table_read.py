"""Reads of the transaction table: what is asked, and what is answered beside the rows."""

from typing import get_args

import pytest
from msgspec import ValidationError

from halfmq.errors import ProtocolError
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.store.table_block import Wanted
from halfmq.wire.remoting import table_read
from halfmq.wire.remoting.fields import read_answer_fields
from halfmq.wire.remoting.table_read import (
    TOPICS,
    TableFound,
    TableReadFields,
)

FIELDS = TableReadFields("ab" * 16, "transactions", 5, 10**15, 77, 1 << 20)
FOUND = TableFound(3, 400, 8, 10**15, 0, 900, 0)


def test_requests_and_responses_come_through() -> None:
    assert read_fields(TableReadFields, write_fields(FIELDS)) == FIELDS
    assert list(write_fields(FIELDS)) == ["store", "wanted", "firstHalf", "endHalf", "position", "maxBytes"]
    assert read_fields(TableFound, {name: str(value) for name, value in write_fields(FOUND).items()}) == FOUND
    assert list(write_fields(FOUND)) == [
        "rows", "recordBytes", "nextHalf", "position", "tableFirst", "tableEnd", "logStart",
    ]  # fmt: skip
    assert TOPICS.decode(memoryview(TOPICS.encode({1: "orders", 20: "%RETRY%g"}))) == {1: "orders", 20: "%RETRY%g"}
    assert TOPICS.decode(TOPICS.encode({})) == {}


def test_the_words_of_a_request_are_those_of_the_store() -> None:
    assert set(get_args(table_read.Wanted)) == {wanted.value for wanted in Wanted}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wanted": "all"}, "wanted"),
        ({"firstHalf": ""}, "firstHalf"),
        ({"position": "-1"}, "position"),
        ({"position": "1" * 20}, "position"),
        ({"maxBytes": "\u0661"}, "maxBytes"),
    ],
)
def test_a_wrong_request_is_named_by_its_field(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        read_fields(TableReadFields, write_fields(FIELDS) | changes)


def test_a_malformed_response_is_refused() -> None:
    good = {name: str(value) for name, value in write_fields(FOUND).items()}
    for changed in ({"rows": "x"}, {"nextHalf": "-1"}):
        with pytest.raises(ProtocolError):
            read_answer_fields(TableFound, good | changed)
    with pytest.raises(ProtocolError):
        read_answer_fields(TableFound, {})
    for topics in (b"", b"[]", b'{"x":"y"}', b'{"1":2}'):
        with pytest.raises(ProtocolError):
            TOPICS.decode(topics)
