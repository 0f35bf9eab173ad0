"""Slices of one buffer as a column."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.spark.rows.byte_slices import as_bytes, binary_column, cuts, gather, string_column


@st.composite
def slices(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    data = draw(st.binary(max_size=80))
    places = draw(st.lists(st.integers(0, len(data)), max_size=20))
    return data, [(at, draw(st.integers(0, len(data) - at))) for at in places]


def columns(places: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([at for at, _ in places], np.int64), np.array([length for _, length in places], np.int64)


@settings(deadline=None)  # the machine may be busy
@given(slices())
def test_each_row_is_its_slice(drawn: tuple[bytes, list[tuple[int, int]]]) -> None:
    data, places = drawn
    made = binary_column(pa.py_buffer(data), *columns(places))
    assert made.type == pa.binary()
    assert made.to_pylist() == [data[at : at + length] for at, length in places]


@settings(deadline=None)  # the machine may be busy
@given(slices(), slices(), st.randoms(use_true_random=False))
def test_rows_may_come_from_a_second_buffer_or_be_null(one, other, rng) -> None:  # type: ignore[no-untyped-def]
    places = [(False, one[0], place) for place in one[1]] + [(True, other[0], place) for place in other[1]]
    rng.shuffle(places)
    valid = np.array([rng.random() < 0.7 for _ in places], bool)
    made = binary_column(
        pa.py_buffer(one[0]), *columns([place for _, _, place in places]), valid=valid,
        more=pa.py_buffer(other[0]), in_more=np.array([second for second, _, _ in places], bool),
    )  # fmt: skip
    wanted = [data[at : at + length] for _, data, (at, length) in places]
    assert made.to_pylist() == [value if there else None for value, there in zip(wanted, valid, strict=True)]


def test_gather_reads_numbers_at_any_place() -> None:
    data = as_bytes(pa.py_buffer(bytes(range(16))))
    assert gather(data, np.array([1, 12]), ">u4").tolist() == [0x01020304, 0x0C0D0E0F]


def test_text_that_is_not_utf8_becomes_text_all_the_same() -> None:
    assert string_column(pa.array([b"ok", None, b"\xffx"])).to_pylist() == ["ok", None, "\ufffdx"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120), st.integers(1, 9))
def test_cuts_are_as_large_as_allowed(sizes: list[int], bytes_max: int, rows_max: int) -> None:
    found = list(cuts(np.array(sizes, np.int64), bytes_max, rows_max))
    assert [row for begin, end in found for row in range(begin, end)] == list(range(len(sizes)))
    for number, (begin, end) in enumerate(found):
        total = sum(sizes[begin:end])
        assert total <= bytes_max or end == begin + 1
        assert end - begin <= rows_max
        if number + 1 < len(found):
            assert total + sizes[end] > bytes_max or end - begin == rows_max
