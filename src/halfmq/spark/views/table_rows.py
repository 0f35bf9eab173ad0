"""Rows of the transaction table as rows of Spark: one for each transaction, or one for each undecided half message.

A reader (``table_files``, ``table_wire``) yields ``TablePage``s: table rows, each with the record in the log that names its transaction.
That is the verdict's record once there is one, since it outlives the halves; of an undecided half, the record of the half.

Everything is as of the log position of the plan, whatever was decided since: a half that was prepared at or after it has no row, and a
verdict at or after it does not count. Nearly all transactions have one half and a verdict: these are converted by columns. The others
are folded one by one (``_Folding``): the verdict names all halves of its transaction, and the row of the lowest half index is the one
that stands for it. For undecided transactions of several halves nothing in the log says which these are, so the plan finds them
(``open_groups``), and a task gets their half indexes.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.errors import HalfmqError
from halfmq.model.half_batch import ENTRY_BYTES, item_places
from halfmq.model.layout import REF, VERDICT_HEAD
from halfmq.model.records import (
    HALF_BATCH_PAYLOAD_AT,
    PARKED_MS,
    Committed,
    Decided,
    DecidedBy,
    Kind,
    ParkedBecause,
    RolledBack,
)
from halfmq.spark.rows.byte_slices import Bytes, Ints, as_bytes, binary_column, gather, string_column
from halfmq.spark.rows.stored_rows import StoredRows, record_batch
from halfmq.spark.schema import arrow_schema
from halfmq.store.half_names import HALF_BATCHES, HALF_KINDS, VERDICT_KINDS, half_names
from halfmq.store.layout import ROW_COMMITTED, ROW_EMPTY, ROW_UNDECIDED, TRANSACTION_ROW
from halfmq.store.record_codec import decode_records, half_batch_head, message_at
from halfmq.store.transaction_table import TransactionRow

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]

#: A row of the transaction table, see ``store.transaction_table.TransactionRow``.
ROW: Final = np.dtype(TRANSACTION_ROW.dtype)
#: Column ``decided_by`` by number; a decision on a batch of a query is ``query``.
_DECIDED_BY: Final = {int(by): by.name.lower() for by in DecidedBy}
_BY_QUERY: Final = "query"
_PARKED: Final = {int(why): why.name.lower() for why in ParkedBecause}
_COMMITTED: Final = "COMMITTED"
_ROLLED_BACK: Final = "ROLLED_BACK"
_UNDECIDED: Final = "UNDECIDED"
_TIMES: Final = pa.timestamp("us", tz="UTC")
_IS_VERDICT: Final = np.isin(np.arange(256), list(VERDICT_KINDS))
_IS_HALF: Final = np.isin(np.arange(256), list(HALF_KINDS))
#: All records that a row refers to are longer.
HEAD_BYTES: Final = VERDICT_HEAD.size
#: Places in the record of COMMITTED and ROLLED_BACK: lengths of group and id, number of halves, the texts.
_LENGTHS_AT: Final = VERDICT_HEAD.at["group_bytes"]
_TEXTS_AT: Final = HEAD_BYTES
#: From the start of a reference to its half index, and of a half index in ROLLED_BACK.
_HALF_IN_REF: Final = REF.at["half_index"]

_BYTES_OF_HALF: Final = frozenset({"key", "value", "tag", "keys", "properties"})
_decode_errors: Final = (HalfmqError, ValueError, IndexError, struct.error)


class Record(NamedTuple):
    """A record that names a transaction: where it starts in ``buffer``, and its bytes. 0: the log no longer has it."""

    buffer: pa.Buffer
    start: int
    size: int

    @property
    def data(self) -> memoryview:
        return memoryview(self.buffer)[self.start : self.start + self.size]


class TablePage(NamedTuple):
    """Rows of the table, and the record of each in ``buffer``. ``sizes``: 0 if the log no longer has it, -1 if it is damaged."""

    half_indexes: Ints
    rows: Rows
    buffer: pa.Buffer
    starts: Ints
    sizes: Ints

    def record(self, number: int) -> Record:
        return Record(self.buffer, int(self.starts[number]), max(0, int(self.sizes[number])))

    def only(self, chosen: Bools | slice) -> "TablePage":
        """Some of the rows."""
        return TablePage(
            self.half_indexes[chosen], self.rows[chosen], self.buffer, self.starts[chosen], self.sizes[chosen]
        )


def merged(pages: Sequence[TablePage]) -> TablePage:
    """The rows of all pages in one: a conversion by columns costs as much for few rows as for many."""
    if len(pages) == 1:
        return pages[0]
    shifts = np.cumsum([0, *[page.buffer.size for page in pages[:-1]]])
    return TablePage(
        np.concatenate([page.half_indexes for page in pages]),
        joined(page.rows for page in pages),
        pa.py_buffer(b"".join(memoryview(page.buffer) for page in pages)),
        np.concatenate([page.starts + shift for page, shift in zip(pages, shifts, strict=True)]),
        np.concatenate([page.sizes for page in pages]),
    )


class Table(NamedTuple):
    """What the conversion asks while it reads."""

    #: Names of topics by id, as far as they are known by now. Deleted topics have none.
    topics: Mapping[int, str]
    #: The rows of these halves, which are sorted; zeros where there is none.
    rows_at: Callable[[Ints], Rows]


Lost = Callable[[str], None]


def there_at(rows: Rows, position: int) -> Bools:
    """Which rows existed at a log position."""
    found: Bools = (rows["state"] != ROW_EMPTY) & (rows["original_offset"] < position)
    return found


def settled_at(rows: Rows, position: int) -> Bools:
    """Which rows had a verdict at a log position."""
    verdicts = rows["verdict_position"]
    found: Bools = (rows["state"] > ROW_UNDECIDED) & (verdicts > 0) & (verdicts < position)
    return found


def joined(parts: Iterable[Rows]) -> Rows:
    """The rows of all parts, as they are stored; ``numpy.concatenate`` would drop the reserved bytes at their ends."""
    return np.frombuffer(b"".join([rows.tobytes() for rows in parts]), ROW)


def as_tuples(rows: Rows) -> list[TransactionRow]:
    """The rows, one by one: many fields of one row are read faster from a tuple than from a NumPy record."""
    return list(map(TransactionRow._make, TRANSACTION_ROW.iter_unpack(rows.tobytes())))


def record_positions(rows: Rows) -> tuple[Ints, Bools]:
    """(log offset of the record that names the transaction, whether it is a verdict) of each row."""
    verdicts: Bools = rows["state"] > ROW_UNDECIDED
    return np.where(verdicts, rows["verdict_position"], rows["current_offset"]).astype(np.int64), verdicts


def checked_sizes(kinds: Bytes, verdicts: Bools, sizes: Ints, space: Ints) -> Ints:
    """``sizes`` of the records that start with ``kinds``: -1 where it is no verdict or half, as ``verdicts`` says, or exceeds ``space``."""
    good = np.where(verdicts, _IS_VERDICT[kinds], _IS_HALF[kinds]) & (sizes >= HEAD_BYTES) & (sizes <= space)
    return np.where(good, sizes, -1)


def open_groups(half_indexes: Ints, rows: Rows) -> list[Ints]:
    """Half indexes of each undecided transaction of several halves, in ascending order, among rows that were all undecided."""
    several = rows["halves"] != 1
    half_indexes, rows = half_indexes[several], rows[several]
    keys = np.stack([rows["group_hash"].astype(np.int64), rows["id_hash"].astype(np.int64)], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    order = np.lexsort((half_indexes, group.reshape(-1)))
    ends = np.flatnonzero(np.diff(group.reshape(-1)[order])) + 1
    return [part for part in np.split(half_indexes[order], ends) if len(part)]


@dataclass(frozen=True)
class TransactionRows:
    """Converts pages to rows of ``view=transactions``, as of ``position``, with ``columns``.

    ``open_halves``: half indexes of the undecided transactions of several halves, sorted; ``groups`` converts these. ``log_start``: of the
    plan; transactions whose verdict is before it are left out, and with ``must_have`` (the user named the first half) reported.
    """

    table: Table
    columns: Sequence[str]
    position: int
    log_start: int
    open_halves: Ints
    lost: Lost
    must_have: bool

    def convert(self, page: TablePage) -> Iterator[pa.RecordBatch]:
        """The transactions whose lowest half index is in the page, except ``open_halves``."""
        page = page.only(
            there_at(page.rows, self.position) & ~np.isin(page.half_indexes, self.open_halves, assume_unique=True)
        )
        page = self._readable(page, settled_at(page.rows, self.position))
        if not len(page.rows):
            return
        settled = settled_at(page.rows, self.position)
        data = as_bytes(page.buffer)
        kinds = data[page.starts]
        counts = gather(data, page.starts + _LENGTHS_AT + 4, ">u2")
        usual = settled & (counts == 1) & ((kinds == Kind.COMMITTED) | (kinds == Kind.ROLLED_BACK))
        if usual.any():
            yield self._by_columns(page.only(usual))
        if not usual.all():
            folding = _Folding(self.table, self.columns, self._damaged)
            rest = page.only(~usual)
            folding.add_settled(rest.only(settled[~usual]))
            folding.add_single(rest.only(~settled[~usual]))
            yield from folding.batches()

    def groups(self, groups: Sequence[Ints], pages: Callable[[Ints], Iterator[TablePage]]) -> Iterator[pa.RecordBatch]:
        """The undecided transactions with these half indexes. ``pages``: reads these rows with their records, and may read others."""
        folding = _Folding(self.table, self.columns, self._damaged)
        wanted = np.sort(np.concatenate(groups)) if groups else np.empty(0, np.int64)
        found: dict[int, tuple[TransactionRow, Record]] = {}
        for page in pages(wanted):
            page = page.only(np.isin(page.half_indexes, wanted))
            page = self._readable(page, np.zeros(len(page.rows), np.bool_))
            for number, (half_index, row) in enumerate(
                zip(page.half_indexes.tolist(), as_tuples(page.rows), strict=True)
            ):
                found[half_index] = row, page.record(number)
        for group in groups:
            halves = [(half_index, *found[half_index]) for half_index in group.tolist() if half_index in found]
            if halves:
                folding.add_open(halves)
        yield from folding.batches()

    def _readable(self, page: TablePage, settled: Bools) -> TablePage:
        """Without the rows whose records are past retention, or damaged; these are reported."""
        expired = settled & (page.rows["verdict_position"] < self.log_start)
        if expired.any() and self.must_have:
            self.lost(_range_in_words("transactions", page.half_indexes[expired]) + " are past retention")
        missing = ~expired & (page.sizes == 0)
        if missing.any():
            self.lost(
                _range_in_words("transactions", page.half_indexes[missing])
                + " cannot be named: their records are past retention since the read began"
            )
        positions, _ = record_positions(page.rows)
        for number in np.flatnonzero(~expired & (page.sizes < 0)).tolist():
            self._damaged(int(page.half_indexes[number]), int(positions[number]))
        return page.only(~expired & (page.sizes > 0))

    def _damaged(self, half_index: int, position: int) -> None:
        self.lost(
            f"the transaction of half {half_index} cannot be read: the record at log offset {position} does not match the transaction "
            "table; run `halfmq store verify`, and do not delete the directory"
        )

    def _by_columns(self, page: TablePage) -> pa.RecordBatch:
        """Transactions of one half that have a verdict."""
        rows, data, starts = page.rows, as_bytes(page.buffer), page.starts
        group_bytes = gather(data, starts + _LENGTHS_AT, ">u2").astype(np.int64)
        id_bytes = gather(data, starts + _LENGTHS_AT + 2, ">u2").astype(np.int64)
        half_at = starts + _TEXTS_AT + group_bytes + id_bytes
        committed = rows["state"] == ROW_COMMITTED
        half_at = half_at + np.where(committed, _HALF_IN_REF, 0)
        fits = half_at + 8 <= starts + page.sizes
        named = gather(data, np.where(fits, half_at, starts), ">i8")
        good = fits & (named == page.half_indexes) & (committed == (data[starts] == Kind.COMMITTED))
        if not good.all():
            for number in np.flatnonzero(~good).tolist():
                self._damaged(int(page.half_indexes[number]), int(rows["verdict_position"][number]))
            page = page.only(good)
            rows, starts, group_bytes, id_bytes, committed = (
                page.rows, page.starts, group_bytes[good], id_bytes[good], committed[good],
            )  # fmt: skip
        count = len(rows)
        prepared = rows["prepared_at_ms"].astype(np.int64)
        settled = rows["settled_at_ms"].astype(np.int64)
        known = prepared > 0
        columns: dict[str, Callable[[], pa.Array]] = {
            "transaction_id": lambda: _texts(page.buffer, starts + _TEXTS_AT + group_bytes, id_bytes),
            "group": lambda: _texts(page.buffer, starts + _TEXTS_AT, group_bytes),
            "outcome": lambda: pa.array([_ROLLED_BACK, _COMMITTED]).take(pa.array(committed.astype(np.int8))),
            "decided_by": lambda: _by_number(_DECIDED_BY, rows["decided_by"]),
            "prepared_at": lambda: _times(prepared, known),
            "settled_at": lambda: _times(settled, np.ones(count, np.bool_)),
            "latency_ms": lambda: pa.array(settled - prepared, pa.int64(), mask=~known),
            "checks": lambda: pa.array(rows["checks"].astype(np.int32)),
            "parked": lambda: pa.nulls(count, pa.string()),
            "halves": lambda: pa.repeat(pa.scalar(1, pa.int32()), count),
            "messages": lambda: pa.array(np.ones(count, np.int64), mask=~committed),
            "message_bytes": lambda: pa.array(rows["message_bytes"].astype(np.int64), mask=~known),
            "topics": lambda: _lists(_by_number(self.table.topics, rows["topic_id"])),
            "first_half": lambda: pa.array(page.half_indexes),
            "verdict_position": lambda: pa.array(rows["verdict_position"].astype(np.int64)),
        }
        schema = arrow_schema(self.columns)
        return pa.RecordBatch.from_arrays([columns[name]() for name in self.columns], schema=schema)


@dataclass
class _Folding:
    """Transactions that are converted one by one."""

    table: Table
    columns: Sequence[str]
    damaged: Callable[[int, int], None]
    found: list[dict[str, Any]] = field(default_factory=list)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.found:
            schema = arrow_schema(self.columns)
            arrays = [
                pa.array([one[field.name] for one in self.found], pa.int64() if field.type == _TIMES else field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(
                [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
            )

    def add_settled(self, page: TablePage) -> None:
        """Transactions with a verdict on several halves, or on half batches, whose lowest half is in the page."""
        verdicts = page.rows["verdict_position"].astype(np.int64)
        _, firsts = np.unique(verdicts, return_index=True)
        wanted: list[tuple[Committed | RolledBack | Decided, list[int]]] = []
        here = set(page.half_indexes.tolist())
        for number in firsts.tolist():
            half_index, position = int(page.half_indexes[number]), int(verdicts[number])
            try:
                (record,) = decode_records(
                    bytes(page.record(number).data), 0, max(0, int(page.sizes[number])), position
                )
                assert isinstance(record, Committed | RolledBack | Decided)
            except _decode_errors:
                self.damaged(half_index, position)
                continue
            halves = _halves_of(record)
            if half_index not in halves:
                self.damaged(half_index, position)
            elif min(halves) in here:
                wanted.append((record, halves))
        every = np.unique(np.array([half for _, halves in wanted for half in halves], np.int64))
        rows = dict(zip(every.tolist(), as_tuples(_with(page, every, self.table)), strict=True))
        for record, halves in wanted:
            decided_by = _DECIDED_BY.get(record.decided_by)
            messages: int | None = None
            if isinstance(record, Decided):
                decided_by = _BY_QUERY if record.digest else decided_by
                messages = sum(ref.messages for ref in record.refs)
            elif isinstance(record, Committed):
                messages = len(record.refs)
            lead = rows[min(halves)]
            self._add(
                record.group, record.tx_id, halves, [rows[half] for half in halves], messages,
                _ROLLED_BACK if isinstance(record, RolledBack) else _COMMITTED,
                decided_by, lead.settled_at_ms, record.offset,
            )  # fmt: skip

    def add_single(self, page: TablePage) -> None:
        """Undecided transactions of one half."""
        for number, (half_index, row) in enumerate(zip(page.half_indexes.tolist(), as_tuples(page.rows), strict=True)):
            self.add_open([(half_index, row, page.record(number))])

    def add_open(self, halves: Sequence[tuple[int, TransactionRow, Record]]) -> None:
        """One undecided transaction: half index, row and record of each half."""
        messages: int | None = 0
        group = tx_id = ""
        for half_index, row, record in halves:
            try:
                group, tx_id, more = _names_at(half_index, row, record)
            except _decode_errors:
                self.damaged(half_index, row.verdict_position if row.state > ROW_UNDECIDED else row.current_offset)
                return
            messages = None if messages is None or more is None else messages + more
        rows = [row for _, row, _ in halves]
        self._add(group, tx_id, [half for half, _, _ in halves], rows, messages, _UNDECIDED, None, None, None)

    def _add(
        self, group: str, tx_id: str, halves: list[int], rows: list[TransactionRow], messages: int | None, outcome: str,
        decided_by: str | None, settled_at_ms: int | None, position: int | None,
    ) -> None:  # fmt: skip
        """Fold the rows of one transaction."""
        prepared = min((row.prepared_at_ms for row in rows if row.prepared_at_ms > 0), default=None)
        topics = self.table.topics
        next_check = max([row.next_check_at_ms for row in rows])
        ids = dict.fromkeys([row.topic_id for row in rows])
        self.found.append({
            "transaction_id": tx_id,
            "group": group,
            "outcome": outcome,
            "decided_by": decided_by,
            "prepared_at": None if prepared is None else prepared * 1_000,
            "settled_at": None if settled_at_ms is None else settled_at_ms * 1_000,
            "latency_ms": None if prepared is None or settled_at_ms is None else settled_at_ms - prepared,
            "checks": max([row.checks for row in rows]),
            "parked": _PARKED.get(next_check - PARKED_MS) if outcome == _UNDECIDED else None,
            "halves": len(halves),
            "messages": messages,
            "message_bytes": None if prepared is None else sum([row.message_bytes for row in rows]),
            "topics": [topics.get(number) for number in ids],
            "first_half": min(halves),
            "verdict_position": position,
        })  # fmt: skip


def half_messages(
    page: TablePage, columns: Sequence[str], topics: Mapping[int, str], lost: Lost
) -> Iterator[pa.RecordBatch]:
    """Rows of ``view=half``: the messages of the halves in ``page``, with their whole records."""
    missing = page.sizes == 0
    if missing.any():
        lost(_range_in_words("halves", page.half_indexes[missing]) + " are past retention since the read began")
    starts: list[int] = []
    sizes: list[int] = []
    numbers: list[int] = []
    names: list[tuple[str, str]] = []
    for number in np.flatnonzero(~missing).tolist():
        record = page.record(number)
        try:
            if not record.size:
                raise ValueError("no record")
            group, tx_id, _ = half_names(record.data)
            places = list(_message_places(record))
        except _decode_errors:
            lost(
                f"half {page.half_indexes[number]} cannot be read: there is no half at log offset {page.rows['current_offset'][number]}; "
                "run `halfmq store verify`, and do not delete the directory"
            )
            continue
        for start, size in places:
            starts.append(start)
            sizes.append(size)
            numbers.append(number)
            names.append((group, tx_id))
    if not starts:
        return
    chosen = np.array(numbers, np.int64)
    rows, half_indexes = page.rows[chosen], page.half_indexes[chosen]
    count = len(chosen)
    stored = StoredRows(
        page.buffer, np.array(starts, np.int64), np.array(sizes, np.int64), half_indexes, np.zeros(count, np.int64),
        np.ones(count, np.bool_), "", "", 0,
    )  # fmt: skip
    from_bytes = [name for name in columns if name in _BYTES_OF_HALF]
    built = (
        record_batch(stored, from_bytes, lambda half, why: lost(f"a message of half {half}: {why}"))
        if from_bytes
        else None
    )
    next_check = rows["next_check_at_ms"].astype(np.int64)
    parked = next_check >= PARKED_MS
    known: dict[str, Callable[[], pa.Array]] = {
        "transaction_id": lambda: pa.array([tx_id for _, tx_id in names], pa.string()),
        "group": lambda: pa.array([group for group, _ in names], pa.string()),
        "topic": lambda: _by_number(topics, rows["topic_id"]),
        "queue": lambda: pa.array(rows["queue_id"].astype(np.int32)),
        "prepared_at": lambda: _times(rows["prepared_at_ms"].astype(np.int64), rows["prepared_at_ms"] > 0),
        "checks": lambda: pa.array(rows["checks"].astype(np.int32)),
        "next_check_at": lambda: _times(np.where(parked, 0, next_check), (next_check > 0) & ~parked),
        "parked": lambda: _by_number(_PARKED, np.where(parked, next_check - PARKED_MS, 0)),
        "half_index": lambda: pa.array(half_indexes),
    }
    arrays = [built.column(name) if built is not None and name in _BYTES_OF_HALF else known[name]() for name in columns]
    yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _message_places(record: Record) -> Iterator[tuple[int, int]]:
    """(start in the buffer, bytes) of each stored message of the record of a half or half batch."""
    data = record.data
    if data[0] not in HALF_BATCHES:
        at = message_at(data[0])
        yield record.start + at, record.size - at
        return
    head = half_batch_head(data, 0)
    end = HALF_BATCH_PAYLOAD_AT + head.payload_bytes
    entries = bytes(data[max(0, end - head.messages * ENTRY_BYTES) : end])
    for item_at, message_bytes in item_places(entries, head.messages):
        at = item_at + message_at(data[item_at])
        if at + message_bytes > record.size:
            raise ValueError(f"a message ends beyond its half batch of {record.size} bytes")
        yield record.start + at, message_bytes


def _names_at(half_index: int, row: TransactionRow, record: Record) -> tuple[str, str, int | None]:
    """(group, transaction id, messages) of an undecided half, by its own record or by a later verdict; None: the rollback of
    a half does not tell whether it was a half batch.
    """
    data = record.data
    if not record.size:
        raise ValueError("no record")
    if data[0] not in VERDICT_KINDS:
        return half_names(data)
    (verdict,) = decode_records(bytes(data), 0, record.size, row.verdict_position)
    assert isinstance(verdict, Committed | RolledBack | Decided)
    if isinstance(verdict, Committed):
        return verdict.group, verdict.tx_id, 1
    refs = verdict.refs if isinstance(verdict, Decided) else ()
    return verdict.group, verdict.tx_id, next((ref.messages for ref in refs if ref.half_index == half_index), None)


def _halves_of(record: Committed | RolledBack | Decided) -> list[int]:
    """Half indexes that the verdict settles."""
    if isinstance(record, RolledBack):
        return list(record.half_indexes)
    halves = [ref.half_index for ref in record.refs]
    return [*halves, *record.lost] if isinstance(record, Decided) else halves


def _with(page: TablePage, half_indexes: Ints, table: Table) -> Rows:
    """The rows of sorted ``half_indexes``, from the page where it has them."""
    if not len(half_indexes):
        return np.empty(0, ROW)
    order = np.argsort(page.half_indexes)
    places = np.searchsorted(page.half_indexes, half_indexes, sorter=order)
    places = order[np.minimum(places, len(order) - 1)]
    here = page.half_indexes[places] == half_indexes
    rows = page.rows[places].copy()
    if not here.all():
        rows[~here] = table.rows_at(half_indexes[~here])
    return rows


def _texts(buffer: pa.Buffer, starts: Ints, lengths: Ints) -> pa.StringArray:
    return string_column(binary_column(buffer, starts, lengths))


def _by_number(names: Mapping[int, str], numbers: npt.NDArray[Any]) -> pa.StringArray:
    """The name of each number; null where there is none."""
    found, places = np.unique(numbers, return_inverse=True)
    return pa.array([names.get(int(number)) for number in found], pa.string()).take(pa.array(places.reshape(-1)))


def _times(times_ms: Ints, known: Bools) -> pa.Array:
    return pa.array(times_ms * 1_000, pa.int64(), mask=~known).cast(_TIMES)


def _lists(values: pa.StringArray) -> pa.ListArray:
    """Each value as a list of one."""
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=arrow_schema(["topics"]).field(0).type)


def _range_in_words(what: str, half_indexes: Ints) -> str:
    return f"{len(half_indexes)} {what} of halves {int(half_indexes.min())} to {int(half_indexes.max())}"
