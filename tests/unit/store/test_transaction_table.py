from pathlib import Path

from tests.support import log_records as make
from tests.support.faulty_disk import FaultyDisk
from tests.support.table_rows import rows_of
from tests.support.vectors import vectors

from halfmq.model.ids import hash64
from halfmq.model.records import PARKED_MS, DecidedBy, Half, HalfRecord, ParkedBecause
from halfmq.store.layout import ROW_COMMITTED, ROW_EMPTY, ROW_ROLLED_BACK, ROW_UNDECIDED, TRANSACTION_ROW
from halfmq.store.open_files import OpenFiles
from halfmq.store.transaction_table import (
    SearchResult,
    TransactionRow,
    TransactionTable,
    UndecidedHalf,
    row_hash,
)

ROOT = Path("/t")
MASK = (1 << 64) - 1


def table(disk: FaultyDisk) -> TransactionTable:
    return TransactionTable(disk, ROOT, OpenFiles(disk))


def half(index: int, *, tx_id: str = "T1", number: int = 0, count: int = 1) -> HalfRecord:
    message = make.message(queue_offset=index, properties=make.half_properties(tx_id))
    return make.half_record(64 + index, 116, 7, message, index, "g", tx_id, number, count)


def test_a_row_has_these_bytes() -> None:
    row = TransactionRow(
        5, 0x40, 0x10040, 209, 7, 3, 1, 2, hash64(b"order-service"), hash64(b"T1"), 1_700_000_000_000, 1_700_000_006_000,
        4, ROW_COMMITTED, 2, 0, 0x10100, 1_700_000_001_000, 21, 0,
    )  # fmt: skip
    golden = vectors("derived")["transaction_row"]
    assert TRANSACTION_ROW.pack(*row) == golden
    for name, at in TRANSACTION_ROW.at.items():
        assert TRANSACTION_ROW.part(name).unpack_from(golden, at) == (getattr(row, name),)
        assert TRANSACTION_ROW.only(name).unpack(golden) == (getattr(row, name),)


def test_what_is_not_named_is_written_as_zeros() -> None:
    part = TRANSACTION_ROW.only("first_half", "state")
    assert part.pack(-1, ROW_COMMITTED) == b"\xff" * 8 + bytes(68) + bytes([ROW_COMMITTED]) + bytes(51)
    assert TRANSACTION_ROW.part("next_check_at_ms", "checks").pack(1, 2) == bytes(7) + b"\1" + bytes(3) + b"\2"


def test_a_half_is_undecided_until_it_is_settled_and_then_says_by_whom() -> None:
    rows = table(FaultyDisk())
    assert rows.row(0) is None
    assert rows.row(-1) is None
    rows.prepared(half(0), 500)
    row = rows.row(0)
    assert row is not None
    assert (row.state, row.queue_offset, row.prepared_at_ms, row.message_bytes) == (ROW_UNDECIDED, -1, 500, 100)
    rows.settled(0, ROW_ROLLED_BACK, 3, 900, 600, -1, 0)
    rows.flush()
    row = rows.row(0)
    assert row is not None
    assert (row.state, row.decided_by, row.verdict_position, row.settled_at_ms) == (ROW_ROLLED_BACK, 3, 900, 600)
    assert row.original_offset == 64


def test_a_half_that_was_parked_is_undecided_and_says_who_decided_that() -> None:
    rows = table(FaultyDisk())
    rows.prepared(half(0), 500)
    rows.park(0, 15, PARKED_MS + ParkedBecause.CHECKS, DecidedBy.POLICY)
    row = rows.row(0)
    assert row is not None
    assert (row.state, row.decided_by, row.checks, row.next_check_at_ms) == (ROW_UNDECIDED, 5, 15, (1 << 62) + 1)
    rows.checked(0, 1, 700)
    row = rows.row(0)
    assert row is not None
    assert (row.state, row.decided_by, row.checks, row.next_check_at_ms) == (ROW_UNDECIDED, 0, 1, 700), "taken up again"
    rows.settled(0, ROW_COMMITTED, 1, 900, 600, 3, 0)
    rows.park(0, 15, PARKED_MS + ParkedBecause.AGE, DecidedBy.POLICY)
    row = rows.row(0)
    assert row is not None
    assert (row.state, row.decided_by) == (ROW_COMMITTED, 1), "a verdict is not touched"
    rows.park(7, 15, PARKED_MS + ParkedBecause.AGE, DecidedBy.POLICY)
    assert rows.row(7) is None


def test_recovery_writes_that_a_half_was_parked() -> None:
    rows = table(FaultyDisk())
    for index, next_check_ms in enumerate((700, PARKED_MS + ParkedBecause.AGE)):
        rows.put_undecided(
            UndecidedHalf(Half(0, index, 64, 64, 7, 3, 100, 0, 0, 0), index, 1, "g", f"T{index}", 500, next_check_ms, 4)
        )
    assert [rows.row(index).decided_by for index in (0, 1)] == [0, 5]  # type: ignore[union-attr]


def test_halves_of_one_transaction_name_the_first_and_learn_how_many_they_are() -> None:
    rows = table(FaultyDisk())
    rows.prepared(half(10, count=0), 1)
    rows.prepared(half(11, tx_id="T2"), 1)
    rows.prepared(half(12, number=1, count=2), 1)
    assert [rows.row(n).first_half for n in (10, 11, 12)] == [10, 11, 10]  # type: ignore[union-attr]
    rows.settled_together("g", "T1", (10, 12), 10, 2)
    assert [rows.row(n).halves for n in (10, 11, 12)] == [2, 1, 2]  # type: ignore[union-attr]


def test_a_check_of_a_half_whose_row_is_gone_makes_no_row() -> None:
    rows = table(FaultyDisk())
    rows.checked(4, 3, 99)
    assert rows.row(4) is None
    rows.prepared(half(4), 1)
    rows.checked(4, 3, 99)
    row = rows.row(4)
    assert row is not None
    assert (row.checks, row.next_check_at_ms) == (3, 99)


def test_rows_are_read_from_the_file_once_their_page_is_forgotten() -> None:
    disk = FaultyDisk()
    rows = table(disk)
    for index in range(40_000):
        rows.prepared(half(index), index)
        if index % 997 == 0:
            rows.flush()
    rows.flush()
    assert len(rows._pages) <= 1_024
    assert all(rows.row(index).prepared_at_ms == index for index in range(0, 40_000, 611))  # type: ignore[union-attr]
    assert rows.bases() == [0, 32_768]
    assert list(rows_of(disk, ROOT)) == list(range(40_000))
    assert {row.state for row in rows_of(disk, ROOT).values()} == {ROW_UNDECIDED}


def test_encoded_rows_end_with_their_file() -> None:
    rows = table(FaultyDisk())
    for index in (0, 32_767, 32_768):
        rows.prepared(half(index), 5)
    rows.flush()
    first = TRANSACTION_ROW.pack(*rows.row(0))  # type: ignore[misc]
    assert rows.read_encoded(0, 2) == first + bytes(128)
    assert len(rows.read_encoded(32_767, 10)) == 128
    assert len(rows.read_encoded(32_768, 10)) == 1_280
    assert rows.read_encoded(65_536, 10) == b""


def test_cut_leaves_no_row_from_the_next_half_index_on() -> None:
    disk = FaultyDisk()
    rows = table(disk)
    for index in range(100):
        rows.prepared(half(index), index)
    rows.cut(33)
    assert list(rows_of(disk, ROOT)) == list(range(33))
    rows.cut(0)
    assert rows_of(disk, ROOT) == {}
    assert rows.bases() == []


def test_undecided_halves_are_written_whole_from_recovered_state() -> None:
    rows = table(FaultyDisk())
    rows.put_undecided(UndecidedHalf(Half(1, 9, 128, 64, 7, 3, 100, 0, 0, 0), 8, 2, "g", "T1", 500, 700, 2))
    row = rows.row(9)
    assert row is not None
    assert row[:10] == (8, 64, 128, 100, 7, 3, 1, 2, hash64(b"g"), hash64(b"T1"))
    assert row[10:] == (500, 700, 2, ROW_UNDECIDED, 0, 0, 0, 0, -1, 0)


def test_drop_forgets_pages_too() -> None:
    disk = FaultyDisk()
    rows = table(disk)
    rows.prepared(half(1), 1)
    rows.prepared(half(32_768), 1)
    rows.settled(1, ROW_COMMITTED, 1, 50, 1, 0, 0)
    rows.flush()
    assert rows.expired(51, rows.full()) == [0]
    assert rows.expired(50, rows.full()) == []
    rows.drop(0)
    assert rows.row(1) is None
    assert ROW_EMPTY == 0


def test_a_file_that_was_cut_inside_a_row_is_looked_at_as_far_as_it_goes() -> None:
    disk = FaultyDisk()
    rows = table(disk)
    for index in range(2):
        rows.prepared(half(index), index)
        rows.settled(index, ROW_COMMITTED, 1, 50, 600, 3, 0)
    rows.flush()
    path = ROOT / f"{0:020d}.tx"
    disk.open(path).truncate(200)
    assert rows.expired(51, [0]) == [0]
    assert rows.expired(50, [0]) == []


def test_a_verdict_is_found_by_names_in_memory_and_in_the_newest_file_that_has_it() -> None:
    disk = FaultyDisk()
    rows = table(disk)
    for index, tx_id in ((5, "T1"), (6, "T2"), (40_000, "T1"), (40_001, "T3")):
        rows.prepared(half(index, tx_id=tx_id), index)
    assert rows.find_settled("g", "T1").found == [], "it is undecided"
    rows.settled(5, ROW_ROLLED_BACK, 1, 100, 600, -1, 0)
    rows.settled(6, ROW_ROLLED_BACK, 1, 200, 600, -1, 0)
    rows.settled(40_000, ROW_COMMITTED, 1, 900, 600, 3, 0)
    for group in ("g", ""):
        assert [index for index, _ in rows.find_settled(group, "T1").found] == [40_000, 5]
        assert rows.search_settled(group, "T1", 9).found == [], "nothing of it is in a file yet"
    rows.flush()
    rows.load()
    assert rows.find_settled("g", "T1").found == []
    ((index, row),) = rows.search_settled("g", "T1", 9).found
    assert (index, row.verdict_position) == (40_000, 900)
    assert [index for index, _ in rows.search_settled("", "T2", 9).found] == [6]
    assert rows.search_settled("g", "T2", 1) == SearchResult([], 32_768, False), "one file only was to be looked at"
    assert rows.search_settled("g", "T3", 9) == SearchResult([], 65_536, True)
    assert rows.search_settled("other", "T1", 9).found == []
    rows.drop(0)
    assert rows.search_settled("g", "T2", 9) == SearchResult([], 32_768, True)


def test_bytes_of_a_row_that_only_look_like_the_names_are_none() -> None:
    rows = table(FaultyDisk())
    rows.prepared(half(0), 1)
    rows.settled(0, ROW_COMMITTED, 1, (row_hash("T9") & MASK) >> 1, 600, 3, (row_hash("T9") & MASK) >> 1)
    page, at = rows._row_for_change(0)
    page[at + 80 : at + 88] = row_hash("T9").to_bytes(8, "big", signed=True)
    assert rows.find_settled("", "T9").found == []
    assert len(rows.find_settled("", "T1").found) == 1
