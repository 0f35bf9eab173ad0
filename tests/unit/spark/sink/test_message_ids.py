"""Ids of messages are distinct, and their hashes are those that the broker computes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.model.ids import hash64
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink.hashes import NUMBER_MAX, id_prefix, message_ids, repeatable_ids

B7 = QueryBatch("q", 7, "r")


@settings(deadline=None)
@given(st.text(max_size=9), st.integers(0, NUMBER_MAX - 20), st.integers(1, 20))
def test_ids_and_their_hashes(name: str, first: int, count: int) -> None:
    prefix = id_prefix(name, "0.1")
    ids, hashes = message_ids(prefix, first, count)
    texts = [row.tobytes() for row in ids]
    assert texts == [prefix + f"{number:08X}".encode() for number in range(first, first + count)]
    assert hashes.tolist() == [hash64(text) for text in texts]


def test_every_digit_of_the_number_counts() -> None:
    for bit in range(32):
        ids, hashes = message_ids(id_prefix("q:0:r", "0.1"), 1 << bit, 1)
        assert hashes.tolist() == [hash64(ids[0].tobytes())]


def test_attempts_differ() -> None:
    names = [
        ("q:0:r", "0.1"),
        ("q:0:r", "0.2"),
        ("q:1:r", "0.1"),
        ("q:0:s", "0.1"),
        ("p:0:r", "0.1"),
    ]
    assert len({id_prefix(*name) for name in names}) == len(names)


def test_too_many_messages() -> None:
    with pytest.raises(OverflowError):
        message_ids(b"0" * 24, NUMBER_MAX, 2)


def texts(ids: Any) -> list[str]:
    return [row.tobytes().decode() for row in ids]


def test_repeatable_ids_depend_on_task_content_and_number_alone() -> None:
    sums = np.array([[1] * 8, [2] * 8, [255] * 8], np.uint8)
    found = texts(repeatable_ids(B7, 3, 250, sums))
    assert [one[24:] for one in found] == ["000000FA", "000000FB", "000000FC"]
    assert {one[20:24] for one in found} == {"0000"}  # where RocketMQ's tools read a time
    parts = texts(repeatable_ids(B7._replace(run="s"), 3, 250, sums[:1])) + texts(repeatable_ids(B7, 3, 251, sums[1:]))
    assert parts == found
    of_others = [B7._replace(query="p"), B7._replace(batch=8), B7._replace(topic="T"), B7._replace(topic="*")]
    others = [*((batch, 3, 250) for batch in of_others), (B7, 2, 250), (B7, 3, 251)]
    assert len({one for other in others for one in texts(repeatable_ids(*other, sums))}) == len(others) * len(sums)
    assert all(not set(found) & set(texts(repeatable_ids(*other, sums))) for other in others)


def test_rows_in_another_order_have_other_ids() -> None:
    first, second = (
        texts(repeatable_ids(B7, 0, 0, np.array(sums, np.uint8))) for sums in ([[5] * 8, [6] * 8], [[6] * 8, [5] * 8])
    )
    assert not set(first) & set(second)


def test_repeatable_ids_end() -> None:
    repeatable_ids(B7, 0, NUMBER_MAX, np.zeros((1, 8), np.uint8))
    with pytest.raises(OverflowError, match="at most 4294967296"):
        repeatable_ids(B7, 0, NUMBER_MAX, np.zeros((2, 8), np.uint8))
