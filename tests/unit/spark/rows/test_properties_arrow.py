"""Property strings of many messages at once: the same rules as one at a time."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.model import properties as props
from halfmq.spark.rows.properties_arrow import PropertyTable, _UniformRows

#: Every shape that a peer may send: separators anywhere, repeats, no separator at the end, empty.
names = st.sampled_from(
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "HMQ_TX_ID",
        "K",
        "TAGS2",
        "XTAGS",
        "a-name-that-is-long-X",
        "a-name-that-is-long-Y",
        "",
    ]
)
values = st.text(alphabet=st.sampled_from("ab c\x01é"), max_size=14)
rows = st.lists(
    st.one_of(
        st.lists(st.tuples(names, values), max_size=5).map(
            lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
        ),
        st.lists(st.tuples(names, values), max_size=5).map(
            lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        ),
        st.text(alphabet=st.sampled_from("ab\x01\x02"), max_size=12),
    ),
    max_size=12,
)


def table(strings: list[bytes]) -> PropertyTable:
    lengths = np.array([len(string) for string in strings], np.int64)
    return PropertyTable(pa.py_buffer(b"".join(strings)), np.cumsum(lengths) - lengths, lengths)


@settings(deadline=None)  # the machine may be busy
@given(rows)
def test_maps_hold_what_the_plain_reader_finds(strings: list[str]) -> None:
    found = table([string.encode() for string in strings]).maps().to_pylist()
    assert [dict(pairs) for pairs in found] == [props.to_dict(string) for string in strings]
    assert [len(pairs) for pairs in found] == [len(props.to_dict(string)) for string in strings]


@settings(deadline=None)  # the machine may be busy
@given(rows)
def test_lists_hold_what_the_plain_reader_finds_without_the_excluded_names(strings: list[str]) -> None:
    excluded = {"TAGS", "a-name-that-is-long-X"}
    found = table([string.encode() for string in strings]).lists(pa.array(sorted(excluded))).to_pylist()
    for pairs, string in zip(found, strings, strict=True):
        wanted = {name: value for name, value in props.to_dict(string).items() if name not in excluded}
        assert (pairs is None) == (not wanted)
        assert {pair["key"]: pair["value"].decode() for pair in pairs or ()} == wanted
        assert len(pairs or ()) == len(wanted)


def test_a_list_has_the_order_and_the_bytes_of_the_message() -> None:
    (first, second) = (
        table([b"b\x01\xff\x02TAGS\x01t\x02a\x012\x02", b"TAGS\x01t\x02"]).lists(pa.array(["TAGS"])).to_pylist()
    )
    assert first == [{"key": "b", "value": b"\xff"}, {"key": "a", "value": b"2"}]
    assert second is None


@settings(deadline=None)  # the machine may be busy
@given(rows, st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "HMQ_TX_ID", "K"]))
def test_one_name_is_found_as_by_the_plain_reader(strings: list[str], name: str) -> None:
    assert table([string.encode() for string in strings]).text(name).to_pylist() == [
        props.to_dict(string).get(name) for string in strings
    ]


@settings(deadline=None)  # the machine may be busy
@given(rows)
def test_the_first_token_is_what_stands_before_the_first_space(strings: list[str]) -> None:
    def first(string: str) -> bytes | None:
        tokens = [token for token in props.to_dict(string).get("KEYS", "").split(" ") if token]
        return tokens[0].encode() if tokens else None

    found = table([string.encode() for string in strings]).first_token("KEYS").to_pylist()
    assert found == [first(string) for string in strings]


@st.composite
def alike_rows(draw: st.DrawFn) -> list[bytes]:
    """Rows with the same names in the same order, as one producer sends them."""
    keys = draw(st.lists(names.filter(bool), min_size=1, max_size=5))
    end = draw(st.sampled_from(["", "\x02"]))
    value = st.text(alphabet=st.sampled_from("ab é"), min_size=1, max_size=14)
    row = st.lists(value, min_size=len(keys), max_size=len(keys)).map(
        lambda values: "\x02".join(f"{key}\x01{value}" for key, value in zip(keys, values, strict=True)) + end
    )
    return [string.encode() for string in draw(st.lists(row, min_size=1, max_size=8))]


@settings(deadline=None)  # the machine may be busy
@given(alike_rows(), st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "K"]))
def test_rows_of_one_producer_are_known_by_their_shape_and_read_the_same(strings: list[bytes], name: str) -> None:
    made = table(strings)
    assert isinstance(made._pairs, _UniformRows)
    wanted = [props.to_dict(string.decode()) for string in strings]
    assert made.text(name).to_pylist() == [pairs.get(name) for pairs in wanted]
    assert [dict(pairs) for pairs in made.maps().to_pylist()] == wanted


@pytest.mark.parametrize(
    "other",
    [
        b"a-name-that-is-LONG-X\x011\x02K\x012\x02",  # one byte of a name, in its middle
        b"a-name-that-is-long-Y\x011\x02K\x012\x02",
        b"a-name-that-is-long-X\x011\x02L\x012\x02",
        b"a-name-that-is-long-X\x011\x02K\x01\x02",  # an empty value
        b"\x011\x02K\x012\x02",  # an empty name
        b"a-name-that-is-long-X\x011\x02K\x012",  # no separator at the end
        b"a-name-that-is-long-X\x011\x01K\x012\x02",
        b"a-name-that-is-long-X\x011\x02K\x02\x012",
        b"a-name-that-is-long-X\x011\x02K\x012\x02x",
        b"a-name-that-is-long-X\x011\x02K\x012\x00\x02",
        b"a-name-that-is-long-X\x011\x02",
        b"",
    ],
)
def test_one_row_that_differs_is_enough_to_look_at_each_by_itself(other: bytes) -> None:
    usual = b"a-name-that-is-long-X\x011\x02K\x012\x02"
    for strings in ([usual, other, usual], [other, usual]):
        made = table(strings)
        assert not isinstance(made._pairs, _UniformRows)
        assert [dict(pairs) for pairs in made.maps().to_pylist()] == [
            props.to_dict(string.decode()) for string in strings
        ]


def test_of_two_pairs_with_one_name_the_last_wins() -> None:
    assert table([b"a\x011\x02b\x012\x02a\x013\x02"] * 2).maps().to_pylist() == [[("b", "2"), ("a", "3")]] * 2


def test_bytes_that_are_not_utf8_do_not_stop_a_read() -> None:
    assert table([b"a\x01\xff\x02", b"b\x01x\x02"]).maps().to_pylist() == [[("a", "\ufffd")], [("b", "x")]]


def test_no_messages() -> None:
    assert table([]).maps().to_pylist() == []
    assert table([]).text("TAGS").to_pylist() == []
