"""Property strings of many messages at once: the same rules as one at a time."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.model import properties as props
from halfmq.spark.properties_arrow import PropertyTable

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


def test_of_two_pairs_with_one_name_the_last_wins() -> None:
    assert table([b"a\x011\x02b\x012\x02a\x013\x02"] * 2).maps().to_pylist() == [[("b", "2"), ("a", "3")]] * 2


def test_bytes_that_are_not_utf8_do_not_stop_a_read() -> None:
    assert table([b"a\x01\xff\x02", b"b\x01x\x02"]).maps().to_pylist() == [[("a", "\ufffd")], [("b", "x")]]


def test_no_messages() -> None:
    assert table([]).maps().to_pylist() == []
    assert table([]).text("TAGS").to_pylist() == []
