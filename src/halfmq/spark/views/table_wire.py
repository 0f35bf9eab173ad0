"""The transaction table of a halfmq broker, for ``table_rows``, with HMQ_TABLE_READ (``wire.remoting.table_read``).

A response is a page: rows, and the records that name their transactions, as in the files. The request for the next rows is sent when
the header of a response is there.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from halfmq.client.blocking import Answer, RawConnection, Unavailable, check_success
from halfmq.errors import ProtocolError
from halfmq.model.address import Address, Security
from halfmq.model.text_fields import write_fields
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import Options
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Ints, as_bytes
from halfmq.spark.views.table_plan import TableSnapshot, UndecidedRows, runs
from halfmq.spark.views.table_rows import (
    ROW,
    Bools,
    Lost,
    Rows,
    TablePage,
    checked_sizes,
    joined,
    merged,
    record_positions,
)
from halfmq.wire.remoting.codes import HMQ_TABLE_READ, ResponseCode
from halfmq.wire.remoting.raw_read import CHECKSUM_BYTES, is_intact
from halfmq.wire.remoting.table_read import EXT_STORE, TOPICS, TableFound, TableReadFields, Wanted

#: Bytes of records in a response; the broker also limits the number of rows.
ANSWER_BYTES: Final = 2 << 20
#: Rows that are converted at once.
_PAGE_ROWS: Final = 16_384
#: An entry of a response.
_ENTRY: Final = np.dtype([("half_index", ">i8"), ("start", ">u4"), ("size", ">i4"), ("row", ROW)])


class _OtherStore(Exception):
    """Another store is at the address of the broker."""


class _Channel:
    """A connection, and the request that is on its way."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._connection: RawConnection | None = None
        self._sent: TableReadFields | None = None

    def close(self) -> None:
        self._sent = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def receive(self, address: Address, fields: TableReadFields) -> tuple[Answer, TableFound | None, memoryview]:
        """The response to a request, after the request for the next rows was sent. The next call overwrites the body.

        Raises:
            Unavailable, ProtocolError: close it.
        """
        connection = self._connection
        if connection is None or connection.address != address or self._sent not in (None, fields):
            self.close()
            connection = self._connection = RawConnection.open(address, self._security)
        if self._sent is None:
            self._send(connection, fields)
        answer = connection.head()
        self._sent = None
        found = answer.read(TableFound) if answer.code == ResponseCode.SUCCESS else None
        if found is not None and fields.first < found.next_half < fields.end:
            self._send(connection, replace(fields, first=found.next_half))
        return answer, found, connection.body()

    def _send(self, connection: RawConnection, fields: TableReadFields) -> None:
        connection.send(HMQ_TABLE_READ, write_fields(fields))
        self._sent = fields


class TableWire:
    """The transaction table of the one broker that ``options.url`` names know: a ``source.TableReader``."""

    def __init__(self, options: Options, deadline: RetryDeadline) -> None:
        self._view = options.view
        self._deadline = deadline
        self._finder = WireReader(options, deadline)
        self._pages = _Channel(self._finder.security)
        #: Single rows are asked for while a page is converted, and the next page may be on its way.
        self._lookups = _Channel(self._finder.security)
        self.topics: dict[int, str] = {}

    def close(self) -> None:
        self._pages.close()
        self._lookups.close()
        self._finder.close()

    # --- planning

    def snapshot(self) -> TableSnapshot:
        return self._deadline.until(self._try_snapshot, "the transaction table")

    def _try_snapshot(self) -> TableSnapshot:
        address, store = self._finder.only_broker(f"view={self._view}")
        try:
            found, _ = self._attempt(address, TableReadFields(store, "rows", 0, 0, 0, 1))
        except _OtherStore as other:
            raise Unavailable(str(other)) from other
        return TableSnapshot(store, found.position, found.log_start, found.table_first, found.table_end)

    def undecided(self, snapshot: TableSnapshot, lost: Lost) -> UndecidedRows:
        pages = list(self._read("undecided", snapshot, snapshot.first, snapshot.end, lost))
        half_indexes = np.concatenate([np.empty(0, np.int64), *[page.half_indexes for page in pages]])
        return UndecidedRows(half_indexes, joined(page.rows for page in pages))

    # --- reading

    def transactions(self, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        pages: list[TablePage] = []
        for page in self._read("transactions", snapshot, start, end, lost):
            pages.append(page)
            if sum(len(one.rows) for one in pages) >= _PAGE_ROWS:
                yield merged(pages)
                pages.clear()
        if pages:
            yield merged(pages)

    def halves(self, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        return self._read("halves", snapshot, start, end, lost)

    def rows_at(self, snapshot: TableSnapshot, half_indexes: Ints, lost: Lost) -> Rows:
        found = np.zeros(len(half_indexes), ROW)
        for first, end in runs(half_indexes):
            for page in self._read("rows", snapshot, first, end, lost):
                places = np.searchsorted(page.half_indexes, half_indexes)
                places = np.minimum(places, len(page.half_indexes) - 1)
                here = page.half_indexes[places] == half_indexes
                found[here] = page.rows[places[here]]
        return found

    def _read(self, wanted: Wanted, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        at = start
        while at < end:
            fields = TableReadFields(snapshot.store, wanted, at, end, snapshot.position, ANSWER_BYTES)
            try:
                found, page = self._deadline.until(lambda: self._try_page(fields), "the transaction table")  # noqa: B023
            except _OtherStore as other:
                lost(str(other))
                return
            if found.table_first > at and wanted in ("transactions", "halves"):
                lost(
                    f"transactions of halves {at} to {min(end, found.table_first) - 1} are past retention since the read began"
                )
            if not at < found.next_half <= end:
                raise ProtocolError(f"a table read from half {at} to {end} goes on at {found.next_half}")
            at = found.next_half
            if len(page.rows):
                yield page

    # --- requests

    def _try_page(self, fields: TableReadFields) -> tuple[TableFound, TablePage]:
        address, store = self._finder.only_broker(f"view={self._view}")
        if store != fields.store:
            raise _OtherStore(f"this is store {store}, but store {fields.store} was planned")
        return self._attempt(address, fields)

    def _attempt(self, address: Address, fields: TableReadFields) -> tuple[TableFound, TablePage]:
        """The response to the request, and its page."""
        channel = self._lookups if fields.wanted == "rows" else self._pages

        def read() -> tuple[Answer, TableFound | None, memoryview] | None:
            _, found, body = received = channel.receive(address, fields)
            return received if found is None or is_intact(body) else None

        what = f"a response for the transaction table from half {fields.first} on"
        answer, found, body = self._finder.intact(address, read, channel.close, what)
        if found is None:
            raise self._refused(answer, address, fields)
        return found, self._page(found, body, fields)

    def _refused(self, answer: Answer, address: Address, fields: TableReadFields) -> Exception:
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._finder.look_up_again(address, broken=False)
            return Unavailable("a RocketMQ broker has replaced the halfmq broker")
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            self._finder.look_up_again(address, broken=False)
            return _OtherStore(f"this is store {answer.ext.get(EXT_STORE)}, but store {fields.store} was planned")
        check_success(answer, f"a read of the transaction table from half {fields.first} on")
        return ProtocolError(f"a response without rows has code {answer.code}")

    def _page(self, found: TableFound, body: memoryview, fields: TableReadFields) -> TablePage:
        records_at = CHECKSUM_BYTES + found.rows * _ENTRY.itemsize
        end = records_at + found.record_bytes
        if end > len(body):
            raise ProtocolError(
                f"a response with {found.rows} rows and {found.record_bytes} bytes in {len(body)} bytes"
            )
        self.topics |= TOPICS.decode(body[end:])
        body = memoryview(bytes(body))  # a page outlives the next response, which is received into the same memory
        entries = np.frombuffer(body, _ENTRY, found.rows, CHECKSUM_BYTES)
        half_indexes: Ints = entries["half_index"].astype(np.int64)
        if (np.diff(half_indexes) <= 0).any() or (
            found.rows and not fields.first <= half_indexes[0] <= half_indexes[-1] < found.next_half
        ):
            raise ProtocolError(f"a response with rows from half {fields.first} on has others, or in another order")
        rows: Rows = entries["row"]
        buffer = pa.py_buffer(body)
        data = as_bytes(buffer)
        stated: Ints = entries["size"].astype(np.int64)
        there = stated > 0
        starts: Ints = np.where(there, records_at + entries["start"].astype(np.int64), 0)
        inside = starts + stated <= end
        if not inside.all():
            raise ProtocolError("a response has a record beyond its end")
        verdicts: Bools = (
            record_positions(rows)[1] if fields.wanted == "transactions" else np.zeros(len(rows), np.bool_)
        )
        sizes = np.where(there, checked_sizes(data[starts], verdicts, stated, stated), stated)
        return TablePage(half_indexes, rows, buffer, starts, sizes)
