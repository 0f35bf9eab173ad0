"""Ids of messages are distinct, and their hashes are those that the broker computes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.model.ids import hash64
from halfmq.spark.sink.message_ids import NUMBER_MAX, id_prefix, message_ids


@settings(deadline=None)
@given(st.text(max_size=9), st.integers(0, NUMBER_MAX - 20), st.integers(1, 20))
def test_ids_and_their_hashes(name: str, first: int, count: int) -> None:
    prefix = id_prefix(name, 3, "r", "0.1")
    ids, hashes = message_ids(prefix, first, count)
    texts = [row.tobytes() for row in ids]
    assert texts == [prefix + f"{number:08X}".encode() for number in range(first, first + count)]
    assert hashes.tolist() == [hash64(text) for text in texts]


def test_every_digit_of_the_number_counts() -> None:
    for bit in range(32):
        ids, hashes = message_ids(id_prefix("q", 0, "r", "0.1"), 1 << bit, 1)
        assert hashes.tolist() == [hash64(ids[0].tobytes())]


def test_attempts_differ() -> None:
    names = [
        ("q", 0, "r", "0.1"),
        ("q", 0, "r", "0.2"),
        ("q", 1, "r", "0.1"),
        ("q", 0, "s", "0.1"),
        ("p", 0, "r", "0.1"),
    ]
    assert len({id_prefix(*name) for name in names}) == len(names)


def test_too_many_messages() -> None:
    with pytest.raises(OverflowError):
        message_ids(b"0" * 24, NUMBER_MAX, 2)
