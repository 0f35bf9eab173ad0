"""The property string: both forms of writers, values that hold 0x01, and what a reader drops."""

import pytest

from halfmq.model import properties


def test_a_name_that_ends_another_name_or_stands_in_a_value_is_not_found() -> None:
    text = b"XKEYS\x011\x02A\x01KEYS\x012\x02"
    assert properties.find(text, "KEYS") is None
    assert properties.find(text, "XKEYS") == b"1"


def test_of_two_pairs_with_one_name_the_last_wins() -> None:
    text = b"K\x01first\x02K\x01last\x02"
    assert properties.find(text, "K") == b"last"
    assert properties.to_dict(text) == {"K": "last"}


def test_without_a_last_separator_pairs_are_appended_behind_one() -> None:
    assert properties.append(b"A\x011", b"B\x012\x02") == b"A\x011\x02B\x012\x02"
    assert properties.append(b"A\x011\x02", b"B\x012\x02") == b"A\x011\x02B\x012\x02"
    assert properties.append(b"", b"B\x012\x02") == b"B\x012\x02"


def test_pairs_are_taken_out_by_name() -> None:
    assert properties.to_dict(properties.without(b"A\x011\x02B\x012\x02C\x013\x02", "A", "C")) == {"B": "2"}


@pytest.mark.parametrize("pair", [("", "v"), ("a\x01b", "v"), ("a\x02", "v"), ("a", "v\x02")])
def test_what_nothing_could_escape_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"separator|empty"):
        properties.encode([pair])


def test_empty_values_are_left_out_as_a_reader_would_drop_them() -> None:
    assert properties.encode({"a": "", "b": "1"}) == b"b\x011\x02"
