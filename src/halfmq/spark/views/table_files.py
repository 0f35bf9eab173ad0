"""The transaction table in the files of a store on this machine, for ``table_rows``.

Rows change after they were written, so they are read, not mapped, and a row says by itself what it was at a log position: a verdict
at or after the position does not count. The watermark page is written after the rows of everything before it, so no row is too old.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from halfmq.client.blocking import Unavailable
from halfmq.spark.files.store_files import StoreFiles
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Ints, cuts, gather
from halfmq.spark.rows.stored_rows import BATCH_ROWS, PACKED_BATCH_BYTES
from halfmq.spark.views.table_plan import TableSnapshot, UndecidedRows, runs
from halfmq.spark.views.table_rows import (
    HEAD_BYTES,
    ROW,
    Bools,
    Lost,
    Rows,
    TablePage,
    checked_sizes,
    joined,
    record_positions,
    settled_at,
    there_at,
)
from halfmq.store.consume_queue import list_bases
from halfmq.store.layout import ROW_EMPTY, TRANSACTION_FILE_ROWS, TRANSACTION_ROW_BYTES
from halfmq.store.topics_file import read_topics
from halfmq.store.watermark_page import Watermark

T = TypeVar("T")

#: Rows of a record batch of transactions.
_PAGE_ROWS: Final = 16_384
_NOTHING: Final = pa.py_buffer(bytes(HEAD_BYTES))


class TableFiles(StoreFiles):
    """The transaction table of the store in ``path``: a ``source.TableReader``."""

    def __init__(self, path: str, deadline: RetryDeadline) -> None:
        super().__init__(path, deadline)
        self.topics: dict[int, str] = {}

    def snapshot(self) -> TableSnapshot:
        self._identify()
        return self._look(self._snapshot_at)

    def _snapshot_at(self, page: Watermark) -> TableSnapshot:
        bases = self._bases()
        first, end = (bases[0], bases[-1]) if bases else (0, 0)
        if bases:
            there = np.flatnonzero(self._read(end, end + TRANSACTION_FILE_ROWS)["state"] != ROW_EMPTY)
            end += int(there[-1]) + 1 if len(there) else 0
        return TableSnapshot(self._store, page.position, page.log_start, first, end)

    def undecided(self, snapshot: TableSnapshot, lost: Lost) -> UndecidedRows:
        indexes: list[Ints] = [np.empty(0, np.int64)]
        found: list[Rows] = []
        for start in self._bases() if self._is_planned(snapshot, lost) else ():
            rows = self._rows(start, start + TRANSACTION_FILE_ROWS)
            chosen = np.flatnonzero(_undecided_at(rows, snapshot.position))
            indexes.append(start + chosen)
            found.append(rows[chosen])
        return UndecidedRows(np.concatenate(indexes), joined(found))

    def transactions(self, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        if self._is_planned(snapshot, lost):
            for first in range(start, end, _PAGE_ROWS):
                rows = self._kept(first, min(end, first + _PAGE_ROWS), lost)
                chosen = np.flatnonzero(there_at(rows, snapshot.position))
                yield from self._pages(first + chosen, rows[chosen], *record_positions(rows[chosen]))

    def halves(self, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        if self._is_planned(snapshot, lost):
            for first in range(start, end, _PAGE_ROWS):
                rows = self._kept(first, min(end, first + _PAGE_ROWS), lost)
                chosen = np.flatnonzero(_undecided_at(rows, snapshot.position))
                # The record of the half, also if it was decided since.
                positions = rows["current_offset"][chosen].astype(np.int64)
                for page in self._pages(first + chosen, rows[chosen], positions, np.zeros(len(chosen), np.bool_)):
                    for begin, cut in cuts(np.maximum(page.sizes, 0), PACKED_BATCH_BYTES, BATCH_ROWS):
                        yield page.only(slice(begin, cut))

    def rows_at(self, snapshot: TableSnapshot, half_indexes: Ints, lost: Lost) -> Rows:
        found = np.zeros(len(half_indexes), ROW)
        for first, end in runs(half_indexes):
            rows = self._rows(first, end)
            here = slice(*np.searchsorted(half_indexes, [first, end]))
            found[here] = rows[half_indexes[here] - first]
        return found

    def _is_planned(self, snapshot: TableSnapshot, lost: Lost) -> bool:
        self._identify()
        if self._store != snapshot.store:
            lost(f"this is store {self._store}, but store {snapshot.store} was planned")
            return False
        _, topics = read_topics(self._disk, self._shard / "topics.json")
        self.topics |= {topic.topic_id: topic.name for topic in topics}
        return True

    def _kept(self, start: int, end: int, lost: Lost) -> Rows:
        rows = self._rows(start, end)
        first = min(end, max(start, min(self._bases(), default=end)))
        if first > start:
            lost(f"transactions of halves {start} to {first - 1} are past retention since the read began")
        return rows

    def _pages(self, half_indexes: Ints, rows: Rows, positions: Ints, verdicts: Bools) -> Iterator[TablePage]:
        """The rows with the records at ``positions``, each page within one segment of the log."""
        segments = positions // self._segment_bytes
        for number in np.unique(segments).tolist():
            chosen = segments == number
            yield self._page_of(number, half_indexes[chosen], rows[chosen], positions[chosen], verdicts[chosen])

    def _page_of(self, number: int, half_indexes: Ints, rows: Rows, positions: Ints, verdicts: Bools) -> TablePage:
        nowhere = np.zeros(len(rows), np.int64)
        mapped = self._segment(number)
        if mapped is None:
            return TablePage(half_indexes, rows, _NOTHING, nowhere, nowhere)
        buffer, data = mapped
        starts = positions - number * self._segment_bytes
        inside = starts + HEAD_BYTES <= len(data)
        starts = np.where(inside, starts, 0)
        sizes = gather(data, starts + 4, ">u4").astype(np.int64)
        sizes = checked_sizes(data[starts], verdicts, sizes, np.where(inside, len(data) - starts, 0))
        return TablePage(half_indexes, rows, buffer, starts, sizes)

    def _rows(self, start: int, end: int) -> Rows:
        return self._look(lambda page: self._read(start, end))

    def _look(self, look: Callable[[Watermark], T]) -> T:
        what = f"the transaction table of {self._root}"
        return self._deadline.until(lambda: self._without_rebuild(look)[1], what)

    def _bases(self) -> list[int]:
        """First half index of each file of the table."""
        if not self._disk.exists(self._shard / "transactions"):
            raise Unavailable(f"{self._shard / 'transactions'} does not exist")
        return list_bases(self._disk, self._shard / "transactions", ".tx")

    def _read(self, start: int, end: int) -> Rows:
        """The rows [start, end); zeros where there is no file."""
        parts = []
        while start < end:
            base = start - start % TRANSACTION_FILE_ROWS
            stop = min(end, base + TRANSACTION_FILE_ROWS)
            parts.append(self._pread(base, start - base, stop - start))
            start = stop
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), ROW)

    def _pread(self, base: int, at: int, rows: int) -> bytes:
        length = rows * TRANSACTION_ROW_BYTES
        try:
            file = self._disk.open(self._shard / "transactions" / f"{base:020d}.tx", writable=False)
        except FileNotFoundError:
            return bytes(length)
        return file.read(at * TRANSACTION_ROW_BYTES, length).ljust(length, b"\0")


def _undecided_at(rows: Rows, position: int) -> Bools:
    found: Bools = there_at(rows, position) & ~settled_at(rows, position) & (rows["current_offset"] > 0)
    return found
