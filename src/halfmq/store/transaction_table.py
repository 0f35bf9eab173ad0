"""The transaction table: one row of 128 bytes for each half message, addressed by its half index.

The half index is RocketMQ's ``tranStateTableOffset``. The table tells the outcome of a transaction without a search and without memory
that grows with history; Spark reads it by columns.

Rows change in pages of 32 that stay in memory for a while, since a commit usually follows its prepare soon. ``flush`` writes the changed
pages, adjacent ones in one write. A row is zeros first, then UNDECIDED, then permanently COMMITTED or ROLLED_BACK. Recovery
writes rows again from the log and from the undecided transactions of the snapshot.
"""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.model.cached import Cached
from halfmq.model.half_batch import half_of
from halfmq.model.ids import hash64
from halfmq.model.records import MESSAGE_AT, PARKED_MS, Copied, DecidedBy, Half, HalfBatch, HalfRecord
from halfmq.runtime.disk import Disk
from halfmq.store.consume_queue import list_bases
from halfmq.store.layout import (
    ROW_COMMITTED,
    ROW_EMPTY,
    ROW_ROLLED_BACK,
    ROW_UNDECIDED,
    TRANSACTION_FILE_ROWS,
    TRANSACTION_ROW,
    TRANSACTION_ROW_BYTES,
    entries_with,
)
from halfmq.store.open_files import OpenFiles

_PAGE_ROWS: Final = 32
_PAGE_BYTES: Final = _PAGE_ROWS * TRANSACTION_ROW_BYTES
_FILE_PAGES: Final = TRANSACTION_FILE_ROWS // _PAGE_ROWS
_FILE_BYTES: Final = TRANSACTION_FILE_ROWS * TRANSACTION_ROW_BYTES
#: Maximum number of pages in memory: 4 MiB, 32,768 rows, some seconds of traffic.
_PAGES_MAX: Final = 1_024

#: Maximum number of rows that a search for a verdict returns: very few other transactions have the same hashes.
CANDIDATES_MAX: Final = 8

#: Places of the fields that change later.
_AT: Final = TRANSACTION_ROW.at
_FIRST_HALF: Final = TRANSACTION_ROW.part("first_half")
_CURRENT: Final = TRANSACTION_ROW.part("current_offset", "message_bytes")
_HALVES: Final = TRANSACTION_ROW.part("halves")
_HASHES: Final = TRANSACTION_ROW.part("group_hash", "id_hash")
_ID_HASH: Final = TRANSACTION_ROW.part("id_hash")
_CHECKS: Final = TRANSACTION_ROW.part("next_check_at_ms", "checks")
_VERDICT: Final = TRANSACTION_ROW.part(
    "state", "decided_by", "flags", "verdict_position", "settled_at_ms", "queue_offset", "due_ms"
)
_QUEUE_OFFSET: Final = TRANSACTION_ROW.part("queue_offset")
_STATE_AT: Final = _AT["state"]
_DECIDED_BY_AT: Final = _AT["decided_by"]
#: A row as written by ``prepared``; fields that only checks and verdicts set are 0 without being passed, which the hot path saves.
_PREPARED: Final = TRANSACTION_ROW.only(
    "first_half", "original_offset", "current_offset", "message_bytes", "topic_id", "queue_id", "number", "halves",
    "group_hash", "id_hash", "prepared_at_ms", "state", "queue_offset",
)  # fmt: skip
_VERDICT_POSITION: Final = TRANSACTION_ROW.only("verdict_position")


class TransactionRow(NamedTuple):
    """One half message and its state. Offsets are log offsets; times are broker time, ms."""

    #: Half index of the transaction's first half; -1 if unknown (only during a redo).
    first_half: int
    original_offset: int
    current_offset: int
    message_bytes: int
    topic_id: int
    queue_id: int
    #: Number of the half in its transaction, from 0, and the number of halves; 0 if not stated yet.
    number: int
    halves: int
    group_hash: int
    id_hash: int
    prepared_at_ms: int
    next_check_at_ms: int
    checks: int
    state: int
    decided_by: int
    flags: int
    verdict_position: int
    settled_at_ms: int
    #: In the message's queue; -1 if the message is not visible.
    queue_offset: int
    due_ms: int


class SearchResult(NamedTuple):
    """Result of a search for a verdict by hashes. Equal hashes prove nothing: the caller compares names in the log."""

    #: (half index, row) of settled halves, newest first, at most ``CANDIDATES_MAX``.
    found: list[tuple[int, TransactionRow]]
    #: Number of rows searched, and whether that was the whole table.
    rows: int
    whole: bool


class UndecidedHalf(NamedTuple):
    """An undecided half in the recovered state, with all fields of its row."""

    half: Half
    #: Half index of the first half of the transaction, and how many it has.
    first_half: int
    halves: int
    group: str
    tx_id: str
    prepared_at_ms: int
    next_check_at_ms: int
    checks: int


assert TransactionRow._fields == tuple(TRANSACTION_ROW.fields)


def row_hash(text: str) -> int:
    """The hash of a group or id in a row."""
    return hash64(text.encode())


_group_hashes: Final[Cached[str, int]] = Cached(row_hash, 4_096)


class TransactionTable:
    """One thread writes and reads."""

    def __init__(self, disk: Disk, directory: Path, files: OpenFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        #: Page number -> its bytes, in order of loading.
        self._pages: dict[int, bytearray] = {}
        #: Numbers of pages that differ from the file.
        self._dirty: set[int] = set()
        #: First half of undecided transactions with several halves.
        self._first_halves: dict[tuple[str, str], int] = {}

    # --- writing

    def prepared(self, record: HalfRecord, now_ms: int) -> None:
        """A half was prepared at broker time ``now_ms``: write a new, undecided row. Call ``flush`` later, as after each change."""
        offset = record.offset
        half_index = record.queue_offset
        group = record.group
        index = record.index
        count = record.count
        if index == 0:
            first = half_index
            if count != 1:
                self._first_halves[(group, record.tx_id)] = half_index
        else:
            first = self._first_halves.get((group, record.tx_id), -1)
        number = half_index >> 5
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        self._dirty.add(number)
        _PREPARED.pack_into(
            page,
            (half_index & 31) << 7,
            first,
            offset,
            offset,
            record.size - MESSAGE_AT,
            record.topic_id,
            record.queue_id,
            index,
            count,
            _group_hashes[group],
            record.id_hash,
            now_ms,
            ROW_UNDECIDED,
            -1,
        )

    def copied(self, record: Copied) -> None:
        """The half was copied. Writes the whole row: its first record may be trimmed."""
        self._put(record.half, record, record.prepared_at_ms, record.next_check_at_ms, record.checks)

    def batch_prepared(self, record: HalfBatch, now_ms: int) -> None:
        """As ``prepared``, of a half batch."""
        self._put(half_of(record), record, now_ms, 0, 0)

    def _put(self, half: Half, of: Copied | HalfBatch, *times: int) -> None:
        first = self.first_half_of(half, of.group, of.tx_id)
        self.put_undecided(UndecidedHalf(half, first, of.count, of.group, of.tx_id, *times))

    def first_half_of(self, half: Half, group: str, tx_id: str) -> int:
        """Half index of the first half of the half's transaction; -1 if unknown. The first one of a batch of a query is any that
        comes first, since each attempt begins at index 0.
        """
        if half.index == 0 and not half.attempt:
            return half.half_index
        return self._first_halves.get((group, tx_id), half.half_index if half.attempt else -1)

    def settled(
        self, half_index: int, state: int, decided_by: int, position: int, now_ms: int, queue_offset: int, due_ms: int
    ) -> None:
        """The half was settled, ``state`` ROW_COMMITTED or ROW_ROLLED_BACK, by the record at log offset ``position``.

        ``now_ms``: broker time of the verdict. ``queue_offset``: -1 if the message is not visible. ``due_ms``: broker time at which a
        delayed message becomes visible; 0 if it is not delayed.
        """
        number = half_index >> 5
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        self._dirty.add(number)
        _VERDICT.pack_into(
            page, ((half_index & 31) << 7) + _STATE_AT, state, decided_by, 0, position, now_ms, queue_offset, due_ms
        )

    def settled_together(self, group: str, tx_id: str, half_indexes: Iterable[int], first: int, count: int) -> None:
        """Set which halves belong together, for a transaction of several halves, and for rows whose first record was trimmed."""
        self._first_halves.pop((group, tx_id), None)
        for half_index in half_indexes:
            page, at = self._row_for_change(half_index)
            _FIRST_HALF.pack_into(page, at + _AT["first_half"], first)
            _HALVES.pack_into(page, at + _AT["halves"], count)
            _HASHES.pack_into(page, at + _AT["group_hash"], row_hash(group), row_hash(tx_id))

    def moved(self, half_index: int, offset: int, message_bytes: int) -> None:
        """The stored message was copied to log offset ``offset``."""
        page, at = self._row_for_change(half_index)
        _CURRENT.pack_into(page, at + _AT["current_offset"], offset, message_bytes)

    def released(self, half_index: int, queue_offset: int) -> None:
        """A delayed message became visible at ``queue_offset``."""
        page, at = self._row_for_change(half_index)
        _QUEUE_OFFSET.pack_into(page, at + _AT["queue_offset"], queue_offset)

    def checked(self, half_index: int, checks: int, next_check_at_ms: int) -> None:
        """Set the number of checks, and the broker time of the next one. A missing row stays missing."""
        page, at = self._row_for_change(half_index)
        state = page[at + _STATE_AT]
        if state != ROW_EMPTY:
            _CHECKS.pack_into(page, at + _AT["next_check_at_ms"], next_check_at_ms, checks)
        if state == ROW_UNDECIDED:
            page[at + _DECIDED_BY_AT] = 0  # resumed, if it was parked

    def park(self, half_index: int, checks: int, next_check_at_ms: int, decided_by: int) -> None:
        """The transaction was parked: an undecided row that names who decided that."""
        self.checked(half_index, checks, next_check_at_ms)
        page, at = self._row_for_change(half_index)
        if page[at + _STATE_AT] == ROW_UNDECIDED:
            page[at + _DECIDED_BY_AT] = decided_by

    def is_empty(self, half_index: int) -> bool:
        """Whether this half has no row."""
        return self._page(half_index >> 5)[((half_index & 31) << 7) + _STATE_AT] == ROW_EMPTY

    def put_undecided(self, undecided: UndecidedHalf) -> None:
        """Write the whole row of an undecided half, whatever it contained."""
        half, first, halves, group, tx_id, prepared_at_ms, next_check_at_ms, checks = undecided
        page, at = self._row_for_change(half.half_index)
        if halves != 1:
            self._first_halves[(group, tx_id)] = first
        parked_by = DecidedBy.POLICY if next_check_at_ms >= PARKED_MS else 0
        TRANSACTION_ROW.pack_into(
            page, at, first, half.first_offset, half.offset, half.message_bytes, half.topic_id, half.queue_id,
            half.index, halves, _group_hashes[group], row_hash(tx_id), prepared_at_ms, next_check_at_ms, checks,
            ROW_UNDECIDED, parked_by, 0, 0, 0, -1, 0,
        )  # fmt: skip

    def flush(self) -> None:
        """Write the changed pages, adjacent ones together; then drop the oldest pages from memory.

        Raises:
            OSError: a write failed; the next flush writes these pages again, and until then they are read from memory.
        """
        numbers = sorted(self._dirty)
        self._write(numbers)
        self._dirty.clear()
        pages = self._pages
        while len(pages) > _PAGES_MAX:
            del pages[next(iter(pages))]

    def _write(self, numbers: list[int]) -> None:
        pages = self._pages
        start = 0
        while start < len(numbers):
            first = numbers[start]
            stop = start + 1
            while stop < len(numbers) and numbers[stop] == first + stop - start and numbers[stop] % _FILE_PAGES:
                stop += 1
            base = first // _FILE_PAGES * TRANSACTION_FILE_ROWS
            key = (-1, -1, base)
            file = self._files.files.get(key) or self._files.create(key, self._path(base), _FILE_BYTES)
            data = b"".join([pages[number] for number in numbers[start:stop]])
            file.write(first % _FILE_PAGES * _PAGE_BYTES, [data])
            self._files.dirty[file] = None
            start = stop

    # --- life

    def load(self) -> None:
        """Drop everything in memory, including changes: rows are read from the files again."""
        self._pages.clear()
        self._dirty.clear()
        self._first_halves.clear()

    def cut(self, next_half_index: int) -> None:
        """Zero the rows from ``next_half_index`` on: halves of an end of the log that did not survive."""
        self.flush()
        self._pages.clear()
        for base in self.bases():
            if base >= next_half_index:
                self._files.remove((-1, -1, base), self._path(base))
            elif base + TRANSACTION_FILE_ROWS > next_half_index:
                file = self._files.get((-1, -1, base), self._path(base))
                self._files.lengthen(file, _FILE_BYTES)
                self._files.zero(file, (next_half_index - base) * TRANSACTION_ROW_BYTES, _FILE_BYTES)

    def reset(self) -> None:
        """Remove all files. A redo from the log's start must follow."""
        self.load()
        for base in self.bases():
            self._files.remove((-1, -1, base), self._path(base))

    def bases(self) -> list[int]:
        """First half index of each file."""
        return list_bases(self._disk, self._directory, ".tx")

    def full(self) -> list[int]:
        """Files that get no new rows: all but the newest. Writer's thread, since changes may still be in memory."""
        return self.bases()[:-1]

    def expired(self, log_start: int, full: Iterable[int]) -> list[int]:
        """Those of the ``full`` files whose rows were all settled before ``log_start``: these verdicts are past retention.

        Reads only; about 5 ms for each file, so call it on a maintenance thread.
        """
        return [base for base in full if self._is_expired(base, log_start)]

    def drop(self, base: int) -> None:
        self._files.remove((-1, -1, base), self._path(base))
        first = base // _PAGE_ROWS
        for number in [number for number in self._pages if first <= number < first + _FILE_PAGES]:
            del self._pages[number]

    def _is_expired(self, base: int, log_start: int) -> bool:
        with closing(self._disk.open(self._path(base), writable=False)) as file:
            rows = file.read(0, _FILE_BYTES)
        states = rows[_STATE_AT::TRANSACTION_ROW_BYTES]
        if states.count(ROW_UNDECIDED):
            return False
        whole = memoryview(rows)[: len(rows) - len(rows) % TRANSACTION_ROW_BYTES]  # the file may be truncated
        return all(position < log_start for (position,) in _VERDICT_POSITION.iter_unpack(whole))

    # --- reading

    def row(self, half_index: int) -> TransactionRow | None:
        """The row; None if there is none (never prepared here, or past retention)."""
        if half_index < 0:
            return None
        page = self._page(half_index >> 5)
        row = TransactionRow._make(TRANSACTION_ROW.unpack_from(page, (half_index & 31) << 7))
        return row if row.state != ROW_EMPTY else None

    def read_encoded(self, half_index: int, rows_max: int) -> bytes:
        """Encoded rows from ``half_index`` on, at most to the end of their file; empty if there is none. Flushed changes only."""
        base = half_index - half_index % TRANSACTION_FILE_ROWS
        path = self._path(base)
        if not self._disk.exists(path):
            return b""
        at = (half_index - base) * TRANSACTION_ROW_BYTES
        length = min(rows_max * TRANSACTION_ROW_BYTES, _FILE_BYTES - at)
        return self._files.get((-1, -1, base), path).read(at, length)

    def find_settled(self, group: str, tx_id: str) -> SearchResult:
        """Settled halves of this transaction in the pages in memory, a few megabytes. Writer's thread.

        Empty ``group``: of any producer group.
        """
        pattern, at = _pattern(group, tx_id)
        found: list[tuple[int, TransactionRow]] = []
        for number in sorted(self._pages, reverse=True):
            found += _settled_in(self._pages[number], number * _PAGE_ROWS, pattern, at, CANDIDATES_MAX - len(found))
        return SearchResult(found, len(self._pages) * _PAGE_ROWS, False)

    def search_settled(self, group: str, tx_id: str, files_max: int) -> SearchResult:
        """The same in the files, newest first, until something is found; in at most ``files_max`` files.

        Any thread; a file in the page cache takes a few milliseconds. Unflushed rows are not found.
        """
        pattern, at = _pattern(group, tx_id)
        bases = self.bases()
        looked_at = 0
        for number, base in enumerate(reversed(bases)):
            if number >= files_max:
                return SearchResult([], looked_at, False)
            try:
                with closing(self._disk.open(self._path(base), writable=False)) as file:
                    rows = file.read(0, _FILE_BYTES)
            except FileNotFoundError:  # trimmed meanwhile, and so are all before it
                return SearchResult([], looked_at, True)
            looked_at += TRANSACTION_FILE_ROWS
            found = _settled_in(rows, base, pattern, at, CANDIDATES_MAX)
            if found:
                return SearchResult(found, looked_at, False)
        return SearchResult([], looked_at, True)

    def _row_for_change(self, half_index: int) -> tuple[bytearray, int]:
        number = half_index >> 5
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        self._dirty.add(number)
        return page, (half_index & 31) << 7

    def _page(self, number: int) -> bytes | bytearray:
        page = self._pages.get(number)
        if page is not None:
            return page
        return self._read(number)

    def _load(self, number: int) -> bytearray:
        page = self._pages[number] = bytearray(self._read(number))
        return page

    def _read(self, number: int) -> bytes:
        base = number // _FILE_PAGES * TRANSACTION_FILE_ROWS
        key = (-1, -1, base)
        file = self._files.files.get(key)
        if file is None:
            path = self._path(base)
            if not self._disk.exists(path):
                return bytes(_PAGE_BYTES)
            file = self._files.get(key, path)
        return file.read(number % _FILE_PAGES * _PAGE_BYTES, _PAGE_BYTES).ljust(_PAGE_BYTES, b"\0")

    def _path(self, base: int) -> Path:
        return self._directory / f"{base:020d}.tx"


def _pattern(group: str, tx_id: str) -> tuple[bytes, int]:
    """(the bytes that a row of this transaction contains, their place in the row)."""
    if group:
        return _HASHES.pack(row_hash(group), row_hash(tx_id)), _AT["group_hash"]
    return _ID_HASH.pack(row_hash(tx_id)), _AT["id_hash"]


def _settled_in(
    rows: bytes | bytearray, first: int, pattern: bytes, at: int, found_max: int
) -> list[tuple[int, TransactionRow]]:
    """(half index, row) of settled rows with ``pattern`` at ``at``, from the end; ``first``: half index of the first row."""
    found: list[tuple[int, TransactionRow]] = []
    for number in entries_with(pattern, rows, TRANSACTION_ROW_BYTES, at):
        if len(found) >= found_max:
            break
        if (number + 1) * TRANSACTION_ROW_BYTES <= len(rows):
            row = TransactionRow._make(TRANSACTION_ROW.unpack_from(rows, number * TRANSACTION_ROW_BYTES))
            if row.state in (ROW_COMMITTED, ROW_ROLLED_BACK):
                found.append((first + number, row))
    return found
