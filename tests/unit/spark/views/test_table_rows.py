"""What a row was at a position, and rows that are folded. Most is tested with whole stores: test_table_files.py, test_table_wire.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support import log_records as make

from halfmq.model.records import PARKED_MS, Kind, ParkedBecause
from halfmq.spark.options import HALF_COLUMNS, TRANSACTION_COLUMNS
from halfmq.spark.views.table_rows import (
    ROW,
    Rows,
    Table,
    TablePage,
    TransactionRows,
    checked_sizes,
    half_messages,
    merged,
    open_groups,
    record_positions,
    settled_at,
    there_at,
)
from halfmq.store.layout import ROW_COMMITTED, ROW_ROLLED_BACK, ROW_UNDECIDED, TRANSACTION_ROW
from halfmq.store.record_codec import ENCODE_BY_TYPE
from halfmq.store.transaction_table import TransactionRow


def table(*rows: dict[str, int]) -> Rows:
    """Table rows with these fields; the others are 0."""
    found = np.zeros(len(rows), ROW)
    for number, row in enumerate(rows):
        for name, value in row.items():
            found[name][number] = value
    return found


def encoded(record: Any) -> bytes:
    data = ENCODE_BY_TYPE[type(record)](record, lambda _: (b"", b"", b""))
    return data if isinstance(data, bytes) else b"".join(data)


def page(rows: Rows, *records: bytes, first: int = 0) -> TablePage:
    sizes = np.array([len(record) for record in records], np.int64)
    return TablePage(
        np.arange(first, first + len(rows)),
        rows,
        pa.py_buffer(b"".join(records) + bytes(16)),
        np.cumsum(sizes) - sizes,
        sizes,
    )


def converter(
    lost: Callable[[str], object],
    *,
    topics: dict[int, str] | None = None,
    rows_at: Callable[[Any], Rows] = lambda half_indexes: table(),
    log_start: int = 0,
) -> TransactionRows:
    """Up to position 100. ``rows_at``: the rows of halves on other pages."""
    rest = np.empty(0, np.int64)
    where = Table(topics or {}, rows_at)
    return TransactionRows(where, TRANSACTION_COLUMNS, 100, log_start, rest, lost, must_have=False)


def test_a_row_is_read_as_it_is_written() -> None:
    values = TransactionRow(*range(1, 21))
    row = np.frombuffer(TRANSACTION_ROW.pack(*values), ROW)[0]
    assert {name: int(row[name]) for name in values._fields} == values._asdict()


def test_what_a_row_was_at_a_position() -> None:
    rows = table(
        {"state": 0},
        {"state": ROW_UNDECIDED, "original_offset": 99, "current_offset": 300},
        {"state": ROW_UNDECIDED, "original_offset": 100},
        {"state": ROW_COMMITTED, "original_offset": 50, "verdict_position": 99},
        {"state": ROW_ROLLED_BACK, "original_offset": 50, "verdict_position": 100},
        # Its state was read before the rest of the verdict was written.
        {"state": ROW_COMMITTED, "original_offset": 50},
    )
    assert there_at(rows, 100).tolist() == [False, True, False, True, True, True]
    assert settled_at(rows, 100).tolist() == [False, False, False, True, False, False]
    positions, verdicts = record_positions(rows)
    assert positions.tolist()[1:5] == [300, 0, 99, 100]
    assert verdicts.tolist() == [False, False, False, True, True, True]


def test_a_record_must_be_of_the_kind_that_the_row_refers_to() -> None:
    kinds = np.array([Kind.COMMITTED, Kind.HALF, Kind.MESSAGE, Kind.DECIDED, Kind.HALF_BATCH], np.uint8)
    sizes = np.array([20, 20, 20, 15, 20])
    verdicts = np.array([True, True, True, True, False])
    assert checked_sizes(kinds, verdicts, sizes, np.full(5, 20)).tolist() == [20, -1, -1, -1, 20]
    assert checked_sizes(kinds, ~verdicts, sizes, np.full(5, 19)).tolist() == [-1] * 5


def test_halves_of_one_transaction_are_found_by_their_hashes() -> None:
    rows = table(
        *[
            {"group_hash": group, "id_hash": tx_id, "halves": halves}
            for group, tx_id, halves in ((1, -7, 0), (2, -7, 0), (1, -7, 2), (1, 5, 1), (2, -7, 0), (3, 9, 3))
        ]
    )
    found = open_groups(np.array([9, 4, 2, 1, 3, 8], np.int64), rows)
    assert sorted(group.tolist() for group in found) == [[2, 9], [3, 4], [8]]
    assert open_groups(np.empty(0, np.int64), table()) == []


def test_halves_of_a_verdict_that_other_pages_have_are_looked_up() -> None:
    row = {
        "state": ROW_COMMITTED,
        "original_offset": 1,
        "verdict_position": 50,
        "halves": 2,
        "prepared_at_ms": 5,
        "message_bytes": 10,
    }
    verdict = encoded(make.committed(make.ref(half_index=3), make.ref(half_index=90))(50))
    asked: list[list[int]] = []

    def rows_at(half_indexes: Any) -> Rows:
        asked.append(half_indexes.tolist())
        return table(*[{**row, "topic_id": 2, "checks": 4, "prepared_at_ms": 2}] * len(half_indexes))

    def rows_of(half_index: int) -> list[dict[str, Any]]:
        convert = converter(lost.append, topics={0: "orders"}, rows_at=rows_at)
        batches = convert.convert(page(table(row), verdict, first=half_index))
        return [one for batch in batches for one in batch.to_pylist()]

    lost: list[str] = []
    (found,) = rows_of(3)
    assert (found["first_half"], found["halves"], found["message_bytes"], found["checks"]) == (3, 2, 20, 4)
    assert found["topics"] == ["orders", None]
    assert rows_of(90) == [], "its lowest half stands for the transaction"
    assert (asked, lost) == ([[90]], [])
    assert rows_of(4) == []
    assert ["the transaction of half 4 cannot be read" in text for text in lost] == [True]


@pytest.mark.parametrize("user", ["", "shop"])
def test_a_verdict_that_names_a_user_is_read_as_one_that_names_none(user: str) -> None:
    lost: list[str] = []
    row = {"original_offset": 1, "verdict_position": 50, "halves": 1, "message_bytes": 10}
    for state, record in (
        (ROW_COMMITTED, make.committed(make.ref(half_index=3), user=user)(50)),
        (ROW_ROLLED_BACK, make.rolled_back(3, user=user)(50)),
    ):
        batches = converter(lost.append).convert(page(table({**row, "state": state}), encoded(record), first=3))
        (found,) = [one for batch in batches for one in batch.to_pylist()]
        assert (found["transaction_id"], found["group"], found["first_half"]) == ("T1", make.GROUP, 3)
    assert lost == []


def test_a_record_that_is_gone_since_the_plan_is_a_loss() -> None:
    lost: list[str] = []
    convert = converter(lost.append, log_start=60)
    rows = table(*[{"state": ROW_ROLLED_BACK, "original_offset": 1, "verdict_position": at} for at in (59, 60)])
    empty = page(rows, b"", b"")
    assert list(convert.convert(empty)) == []
    assert lost == [
        "1 transactions of halves 1 to 1 cannot be named: their records are past retention since the read began"
    ]


def test_a_parked_transaction_is_undecided_and_says_because_of_which_limit() -> None:
    def parked(because: int) -> tuple[Any, Any]:
        row = {
            "state": ROW_UNDECIDED, "original_offset": 1, "current_offset": 1, "halves": 1, "checks": 15, "prepared_at_ms": 5,
            "next_check_at_ms": PARKED_MS + because if because else 9_000,
        }  # fmt: skip
        found = page(table(row), encoded(make.half()(1)))
        ((one,),) = [batch.to_pylist() for batch in converter(fail).convert(found)]
        ((half,),) = [batch.to_pylist() for batch in half_messages(found, HALF_COLUMNS, {}, fail)]
        assert one["outcome"] == "UNDECIDED"
        for name in ("transaction_id", "checks", "parked"):
            assert one[name] == half[name]
        return half["parked"], half["next_check_at"]

    def fail(text: str) -> None:
        raise AssertionError(text)

    assert parked(ParkedBecause.CHECKS) == ("checks", None)
    assert parked(ParkedBecause.AGE) == ("age", None)
    assert parked(0)[1].timestamp() == 9


def test_pages_are_merged_with_their_records() -> None:
    one, two = page(table({}), b"abc"), page(table({}, {}), b"de", b"f", first=5)
    both = merged([one, two])
    assert both.half_indexes.tolist() == [0, 5, 6]
    assert [bytes(both.record(number).data) for number in range(3)] == [b"abc", b"de", b"f"]
    assert merged([one]) is one
