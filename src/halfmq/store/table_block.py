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
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.errors import StoreDamaged
from halfmq.store.commit_log import BeforeLogStart
from halfmq.store.half_names import HALF_KINDS, VERDICT_KINDS, without_body
from halfmq.store.layout import ROW_EMPTY, ROW_UNDECIDED, TRANSACTION_ROW, TRANSACTION_ROW_BYTES

#: Half index, start and length of the record; the row follows.
ENTRY_HEAD: Final = struct.Struct(">qIi")
ENTRY_BYTES: Final = ENTRY_HEAD.size + TRANSACTION_ROW_BYTES

_AT: Final = TRANSACTION_ROW.at
_ROW_WORDS: Final = TRANSACTION_ROW_BYTES // 8
_ROW_INTS: Final = TRANSACTION_ROW_BYTES // 4
#: What one block may read of the log, and what a read costs besides; bounds the time to some ms.
_READ_BYTES_MAX: Final = 4 << 20
#: Records that are nearer than this are read together.
_AHEAD_BYTES: Final = 1 << 16
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


class Log(Protocol):
    """Reads of the log."""

    def record_view(self, offset: int, ahead: int) -> memoryview:
        """The record at a log offset. Raises LookupError or StoreDamaged."""
        ...


class TableBlock(NamedTuple):
    """``data``: free bytes, as many as requested; then ``rows`` entries; then the records."""

    rows: int
    #: The half index after the last row that was looked at.
    next_half: int
    topic_ids: frozenset[int]
    record_bytes: int
    data: bytearray


def read_block(
    rows: bytes, first: int, log: Log, position: int, wanted: Wanted, rows_max: int, bytes_max: int, free_bytes: int
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
    records = _Records(log, bytes_max)
    entries: list[bytes] = []
    for number in chosen:
        place = records.of(states[number], currents[number], verdicts[number], wanted)
        if place is None:
            is_all = False
            break
        at = number * TRANSACTION_ROW_BYTES
        entries += (ENTRY_HEAD.pack(first + number, *place), rows[at : at + TRANSACTION_ROW_BYTES])
    del chosen[len(entries) // 2 :]
    topic_ids = frozenset(
        int.from_bytes(rows[at : at + 4], "big", signed=True)
        for at in (number * TRANSACTION_ROW_BYTES + _AT["topic_id"] for number in chosen)
    )
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

    def __init__(self, log: Log, bytes_max: int) -> None:
        self.found: list[bytes] = []
        self._log = log
        self._bytes_max = bytes_max
        self.bytes = 0
        self._read = 0
        self._last = -1
        #: Log offset -> (start, length).
        self._places: dict[int, tuple[int, int]] = {}

    def of(self, state: int, current: int, verdict: int, wanted: Wanted) -> tuple[int, int] | None:
        """(start, length) of the record of a row; None if the block is full."""
        if wanted is Wanted.HALVES:
            return self._at(current, HALF_KINDS, bytes)
        if wanted is not Wanted.TRANSACTIONS:
            return 0, 0
        return (
            self._at(verdict, VERDICT_KINDS, bytes)
            if state > ROW_UNDECIDED
            else self._at(current, HALF_KINDS, without_body)
        )

    def _at(self, offset: int, kinds: frozenset[int], take: Callable[[memoryview], bytes]) -> tuple[int, int] | None:
        place = self._places.get(offset)
        if place is not None:
            return place
        if self._read >= _READ_BYTES_MAX:
            return None
        is_near = 0 <= offset - self._last < _AHEAD_BYTES
        ahead = _AHEAD_BYTES if is_near else 0
        try:
            record = self._log.record_view(offset, ahead)
            if record[0] not in kinds:
                raise LookupError("another kind of record")
            data = take(record)
        except BeforeLogStart:
            return 0, 0
        except (LookupError, ValueError, IndexError, struct.error, StoreDamaged):
            return 0, _DAMAGED
        if self.found and self.bytes + len(data) > self._bytes_max:
            return None
        self._read += offset - self._last if is_near else limits.TABLE_READ_COST_BYTES
        self._read += len(record)
        self._last = offset
        place = self._places[offset] = self.bytes, len(data)
        self.found.append(data)
        self.bytes += len(data)
        return place
