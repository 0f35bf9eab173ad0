"""Rows of the transaction table and the records that name their transactions, in one buffer: for readers of the whole table.

A row contains hashes of producer group and transaction id. The names are in the record of its verdict, or in the record of its half while
it is undecided. Columns of all rows are compared at once, since only few rows of an old table are undecided.

    entry, 144 bytes: half index 8 | start of its record among the records 4 | length of the record 4 | row 128

A length of 0 means that the log no longer has the record, or that none was asked for; -1 that it is damaged. Halves of one transaction
share the record of its verdict.
"""

import struct
import sys
from array import array
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import StoreDamaged
from halfmq.model.records import RECORD_HEAD_BYTES
from halfmq.store.commit_log import RECORD_BYTES_MAX, BeforeLogStart, CommitLog
from halfmq.store.half_names import HALF_KINDS, VERDICT_KINDS, without_body
from halfmq.store.layout import ROW_EMPTY, ROW_UNDECIDED, TRANSACTION_ROW, TRANSACTION_ROW_BYTES
from halfmq.store.record_codec import kind_and_size

#: Half index, start and length of the record; the row follows.
ENTRY_HEAD: Final = struct.Struct(">qIi")
ENTRY_BYTES: Final = ENTRY_HEAD.size + TRANSACTION_ROW_BYTES

_AT: Final = TRANSACTION_ROW.at
_ROW_WORDS: Final = TRANSACTION_ROW_BYTES // 8
#: What one block may read of the log, and what a read costs besides; bounds the time to some ms.
_READ_BYTES_MAX: Final = 4 << 20
#: What is read at once where the records of the next rows are near, as they are in a table that is read in its order; and of others.
_AHEAD_BYTES: Final = 1 << 16
_ALONE_BYTES: Final = 1 << 10
_DAMAGED: Final = -1


class Wanted(Enum):
    """Which rows, and which records with them."""

    #: All rows, without records.
    ROWS = "rows"
    #: All rows, each with the record that names its transaction: of its verdict, else of its half, without bodies.
    TRANSACTIONS = "transactions"
    #: Rows that were undecided at the position, without records.
    UNDECIDED = "undecided"
    #: The same, each with the whole record of its half.
    HALVES = "halves"


class TableBlock(NamedTuple):
    """``data``: free bytes, as many as requested; then ``rows`` entries; then the records."""

    rows: int
    #: The half index after the last row that was looked at.
    next_half: int
    topic_ids: frozenset[int]
    record_bytes: int
    data: bytearray


def read_block(
    rows: bytes,
    first: int,
    log: CommitLog,
    position: int,
    wanted: Wanted,
    rows_max: int,
    bytes_max: int,
    free_bytes: int,
) -> TableBlock:
    """The wanted ones of the encoded ``rows``, of which the first has half index ``first``, as of log offset ``position``.

    At most ``rows_max`` rows with ``bytes_max`` bytes of records; the first row always fits.
    """
    count = len(rows) // TRANSACTION_ROW_BYTES
    words = array("q", rows[: count * TRANSACTION_ROW_BYTES])
    if sys.byteorder == "little":
        words.byteswap()
    states = rows[_AT["state"] :: TRANSACTION_ROW_BYTES]
    originals, currents, verdicts = (
        words[_AT[name] // 8 :: _ROW_WORDS] for name in ("original_offset", "current_offset", "verdict_position")
    )
    if wanted in (Wanted.ROWS, Wanted.TRANSACTIONS):
        chosen = [number for number, state in enumerate(states) if state != ROW_EMPTY and originals[number] < position]
    else:
        chosen = _undecided(states, originals, currents, verdicts, position)
    is_all = len(chosen) <= rows_max
    del chosen[rows_max:]
    records = _Records(log, bytes_max, wanted)
    has_records = wanted in (Wanted.TRANSACTIONS, Wanted.HALVES)
    entries: list[bytes] = []
    place: tuple[int, int] | None = 0, 0
    for number in chosen:
        if has_records:
            is_verdict = states[number] > ROW_UNDECIDED and wanted is Wanted.TRANSACTIONS
            place = records.add(verdicts[number] if is_verdict else currents[number], is_verdict=is_verdict)
        if place is None:
            is_all = False
            break
        at = number * TRANSACTION_ROW_BYTES
        entries += (ENTRY_HEAD.pack(first + number, *place), rows[at : at + TRANSACTION_ROW_BYTES])
    del chosen[len(entries) // 2 :]
    # A set first: few topics, many rows.
    places = [number * TRANSACTION_ROW_BYTES + _AT["topic_id"] for number in chosen]
    topic_ids = frozenset([int.from_bytes(raw, "big", signed=True) for raw in {rows[at : at + 4] for at in places}])
    data = bytearray(free_bytes) + b"".join(entries) + b"".join(records.found)
    return TableBlock(len(chosen), first + (count if is_all else chosen[-1] + 1), topic_ids, records.bytes, data)


def _undecided(
    states: bytes, originals: "array[int]", currents: "array[int]", verdicts: "array[int]", position: int
) -> list[int]:
    """Numbers of the rows that were undecided at ``position``."""
    found: Iterable[int]
    if max(verdicts, default=0) >= position:
        found = [
            number
            for number, state in enumerate(states)
            if state == ROW_UNDECIDED or (state > ROW_UNDECIDED and not 0 < verdicts[number] < position)
        ]
    else:
        found = _places(states, ROW_UNDECIDED)
    return [number for number in found if originals[number] < position and currents[number] > 0]


def _places(states: bytes, state: int) -> Iterable[int]:
    place = states.find(state)
    while place >= 0:
        yield place
        place = states.find(state, place + 1)


class _Records:
    """The records of a block, read from the log."""

    def __init__(self, log: CommitLog, bytes_max: int, wanted: Wanted) -> None:
        self.found: list[bytes] = []
        #: Of ``found``.
        self.bytes = 0
        self._log = log
        self._bytes_max = bytes_max
        self._with_bodies = wanted is Wanted.HALVES
        self._read = 0
        #: Bytes of the log, and the log offset of the first one.
        self._window = b""
        self._start = 0
        #: Log offset -> (start, length).
        self._places: dict[int, tuple[int, int]] = {}

    def add(self, offset: int, *, is_verdict: bool) -> tuple[int, int] | None:
        """(start, length) of the record at ``offset``; None if the block is full."""
        place = self._places.get(offset)
        if place is not None:
            return place
        try:
            at = offset - self._start
            if at < 0 or at + RECORD_HEAD_BYTES > len(self._window):
                if self._read >= _READ_BYTES_MAX:
                    return None
                at = self._load(offset, RECORD_HEAD_BYTES)
            kind, size = kind_and_size(self._window, at)
            if not RECORD_HEAD_BYTES <= size <= RECORD_BYTES_MAX or kind not in (
                VERDICT_KINDS if is_verdict else HALF_KINDS
            ):
                return 0, _DAMAGED
            if at + size > len(self._window):
                at = self._load(offset, size)
            data = self._window[at : at + size]
            if len(data) < size:
                return 0, _DAMAGED
            if not is_verdict and not self._with_bodies:
                data = without_body(memoryview(data))
        except BeforeLogStart:
            return 0, 0
        except (LookupError, ValueError, struct.error, StoreDamaged):
            return 0, _DAMAGED
        if self.found and self.bytes + len(data) > self._bytes_max:
            return None
        place = self._places[offset] = self.bytes, len(data)
        self.found.append(data)
        self.bytes += len(data)
        return place

    def _load(self, offset: int, length: int) -> int:
        """Read ``length`` bytes or more from ``offset`` on. Returns the place of ``offset`` in the window."""
        is_near = 0 <= offset - self._start < 2 * _AHEAD_BYTES
        self._window = self._log.read_at(offset, max(length, _AHEAD_BYTES if is_near else _ALONE_BYTES))
        self._start = offset
        self._read += len(self._window) + limits.TABLE_READ_COST_BYTES
        return 0
