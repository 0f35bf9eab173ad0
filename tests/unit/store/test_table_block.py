"""Rows and records in one buffer: which rows, as of which position, and what ends a block."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sample_store import UNDECIDED, sample_store
from tests.support.store_writer import StoreWriter

from halfmq.errors import StoreDamaged
from halfmq.store import table_block
from halfmq.store.half_names import half_names
from halfmq.store.layout import ROW_UNDECIDED
from halfmq.store.record_codec import decode_records
from halfmq.store.table_block import ENTRY_BYTES, ENTRY_HEAD, TableBlock, Wanted, read_block
from halfmq.store.transaction_table import TransactionRow

FREE = 100
#: Transactions of two halves each in the sample.
ROWS = 60


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreWriter]:
    made = sample_store(tmp_path_factory.mktemp("store"))
    yield made
    made.log.close()
    made.indexes.close()
    made.page.close()


class Log:
    """The log of the writer, with a count of its reads."""

    def __init__(self, writer: StoreWriter) -> None:
        self._log = writer.log
        self.reads = 0
        self.broken: set[int] = set()

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads += 1
        if offset in self.broken:
            raise StoreDamaged("unreadable")
        return self._log.read_at(offset, length)


def read(
    writer: StoreWriter, wanted: Wanted, *, log: Log | None = None, first: int = 0, position: int = 1 << 40, rows_max: int = 1_000,
    bytes_max: int = 1 << 20,
) -> TableBlock:  # fmt: skip
    rows = writer.indexes.table.read_encoded(first, ROWS - first)
    return read_block(rows, first, log or Log(writer), position, wanted, rows_max, bytes_max, FREE)


def entries(block: TableBlock) -> list[tuple[int, bytes, TransactionRow]]:
    """(half index, record, row)."""
    records_at = FREE + block.rows * ENTRY_BYTES
    assert len(block.data) == records_at + block.record_bytes
    found = []
    for number in range(block.rows):
        at = FREE + number * ENTRY_BYTES
        half, start, size = ENTRY_HEAD.unpack_from(block.data, at)
        row = TransactionRow._make(table_block.TRANSACTION_ROW.unpack_from(block.data, at + ENTRY_HEAD.size))
        found.append((half, bytes(block.data[records_at + start : records_at + start + max(0, size)]), row))
    return found


def test_every_row_with_the_record_that_names_its_transaction(writer: StoreWriter) -> None:
    log = Log(writer)
    block = read(writer, Wanted.TRANSACTIONS, log=log)
    assert (block.rows, block.next_half, block.topic_ids) == (ROWS, ROWS, {1, 2})
    for half, record, row in entries(block):
        assert row == writer.indexes.table.row(half)
        if row.state == ROW_UNDECIDED:
            assert half_names(record).tx_id == f"tx{half // 2}"
            assert b"h" * 300 not in record
        else:
            (verdict,) = decode_records(record, 0, len(record), row.verdict_position)
            assert verdict.tx_id == f"tx{half // 2}"  # type: ignore[union-attr]
    # Two halves share the record of their verdict, and near records are read together.
    assert log.reads < ROWS / 2
    assert {record for _, record, _ in entries(read(writer, Wanted.ROWS))} == {b""}


def test_undecided_rows_and_their_halves(writer: StoreWriter) -> None:
    undecided = read(writer, Wanted.UNDECIDED)
    assert undecided.rows == 2 * UNDECIDED
    assert undecided.next_half == ROWS
    halves = entries(read(writer, Wanted.HALVES))
    assert [half for half, _, _ in halves] == [half for half, _, _ in entries(undecided)]
    assert all((b"h" * 300 in record) == (half % 2 == 0) for half, record, _ in halves)


def test_rows_are_as_of_a_position(writer: StoreWriter) -> None:
    rows = [writer.indexes.table.row(half) for half in range(ROWS)]
    for number in (10, 31, 44):
        row = rows[number]
        assert row is not None
        position = row.original_offset
        there = [half for half, row in enumerate(rows) if row and row.original_offset < position]
        assert [half for half, _, _ in entries(read(writer, Wanted.TRANSACTIONS, position=position))] == there
        open_then = [half for half in there if (row := rows[half]) and not 0 < row.verdict_position < position]
        assert [half for half, _, _ in entries(read(writer, Wanted.HALVES, position=position))] == open_then
        assert len(open_then) > 0


@pytest.mark.parametrize("wanted", Wanted)
@pytest.mark.parametrize(("rows_max", "bytes_max"), [(7, 1 << 20), (1_000, 700), (1_000, 1)])
def test_blocks_one_after_the_other_contain_every_row_once(
    writer: StoreWriter, wanted: Wanted, rows_max: int, bytes_max: int
) -> None:
    every = entries(read(writer, wanted))
    found: list[tuple[int, bytes, TransactionRow]] = []
    at = 0
    while at < ROWS:
        block = read(writer, wanted, first=at, rows_max=rows_max, bytes_max=bytes_max)
        assert block.rows <= rows_max
        assert block.record_bytes <= max(bytes_max, 1_000)
        assert block.next_half > at
        found += entries(block)
        at = block.next_half
    assert found == every


def test_what_a_block_reads_of_the_log_is_bounded(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_block, "_READ_BYTES_MAX", 20_000)
    block = read(writer, Wanted.TRANSACTIONS)
    assert 0 < block.rows < ROWS
    assert block.next_half == block.rows


def test_damage_does_not_end_a_block_and_a_trimmed_record_is_told_from_it(writer: StoreWriter, tmp_path: Path) -> None:
    log = Log(writer)
    row = writer.indexes.table.row(0)
    assert row is not None
    log.broken.add(row.verdict_position)
    sizes = [
        ENTRY_HEAD.unpack_from(read(writer, Wanted.TRANSACTIONS, log=log).data, FREE + number * ENTRY_BYTES)[2]
        for number in range(4)
    ]
    assert sizes[:2] == [-1, -1]
    assert min(sizes[2:]) > 0
    other = sample_store(tmp_path / "trimmed")
    other.trim()
    block = read(other, Wanted.TRANSACTIONS)
    assert [record for _, record, _ in entries(block)][:2] == [b"", b""]
    assert ENTRY_HEAD.unpack_from(block.data, FREE)[2] == 0
    other.log.close()


def test_a_record_of_another_kind_is_damage(writer: StoreWriter) -> None:
    rows = bytearray(writer.indexes.table.read_encoded(0, 1))
    rows[80:88] = (64 + 8).to_bytes(8, "big")
    block = read_block(bytes(rows), 0, Log(writer), 1 << 40, Wanted.TRANSACTIONS, 9, 999, FREE)
    assert ENTRY_HEAD.unpack_from(block.data, FREE)[2] == -1


def test_no_rows(writer: StoreWriter) -> None:
    assert read_block(bytes(128), 5, Log(writer), 9, Wanted.HALVES, 9, 9, FREE) == TableBlock(
        0, 6, frozenset(), 0, bytearray(FREE)
    )
