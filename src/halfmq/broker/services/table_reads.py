"""Reads of the transaction table: its rows, and the records that name their transactions, for readers of the whole table.

Operators list undecided transactions and look single ones up (``transactions``). A job that reports on all of them reads rows as they are
stored, and makes no object of each here. All rows are as of one log position, which the first read determines: a row says by itself what
it was then, so a reader that comes back for the next rows sees no half of a transaction.

A read is done within one turn of the event loop, so its size is bounded (``limits.TABLE_READ_ROWS_MAX``, ``TABLE_READ_BYTES_MAX``).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.services.pulls import SMALL_PULL_BYTES, Outgoing
from halfmq.core.decision import Refused, Why
from halfmq.core.view import View
from halfmq.store.table_block import TableBlock, Wanted


class TableReadsStore(Protocol):
    """What this service needs from the store. Reads raise StoreDamaged or OSError if the disk cannot read the table."""

    @property
    def uuid(self) -> str:
        """UUID of the store, 32 hex digits."""
        ...

    @property
    def high_watermark(self) -> int:
        """The log position that readers see."""
        ...

    def first_half(self) -> int:
        """The half index of the first row in the transaction table that may exist."""
        ...

    def topic_names(self, topic_ids: Iterable[int]) -> dict[int, str]:
        """The names of those topics that exist at the high watermark."""
        ...

    def read_table(
        self, first: int, end: int, position: int, wanted: Wanted, rows_max: int, bytes_max: int, free_bytes: int
    ) -> TableBlock:
        """Rows [first, end) of one file of the table, as of ``position``."""
        ...


class TableReadRequest(NamedTuple):
    """A reader's request: rows [first, end) as of a log position, 0 for the newest one; at most ``bytes_max`` of records."""

    store: str
    wanted: Wanted
    first: int
    end: int
    position: int
    bytes_max: int
    #: Bytes to leave free before the entries, for the front door.
    free_bytes: int


#: The word of a request for each kind of read.
WANTED: Final = {wanted.value: wanted for wanted in Wanted}


class OtherStore(NamedTuple):
    """This is another store, whose half indexes mean something else."""

    store: str


class TableRead(NamedTuple):
    """``block``: entries and records; read from its ``next_half`` next. ``first`` and ``end``: the rows that the table
    has; the last of them may be newer than ``position``.
    """

    block: TableBlock
    topics: dict[int, str]
    position: int
    first: int
    end: int
    log_start: int


class TableReads:
    """Serves reads of the transaction table."""

    def __init__(self, view: View, store: TableReadsStore, outgoing: Outgoing) -> None:
        self._view = view
        self._store = store
        self._outgoing = outgoing

    def read(self, request: TableReadRequest) -> TableRead | OtherStore | Refused:
        """The rows from ``first`` on. Everything in it is durable. Refusal NOT_NOW: ask again in a moment."""
        view, store = self._view, self._store
        if request.store != store.uuid:
            return OtherStore(store.uuid)
        bytes_max = min(max(request.bytes_max, 1), limits.TABLE_READ_BYTES_MAX)
        if self._outgoing.is_near:
            if self._outgoing.is_over:
                return Refused(Why.NOT_NOW, "clients do not read their responses: ask again in a moment")
            bytes_max = min(bytes_max, SMALL_PULL_BYTES)
        position = request.position or store.high_watermark
        end = view.next_half_index
        last = max(request.first, min(request.end, end))
        block = store.read_table(
            request.first, last, position, request.wanted, limits.TABLE_READ_ROWS_MAX, bytes_max, request.free_bytes
        )
        # After the read, which writes the indexes: with a full disk they end before what was the newest position.
        newest = store.high_watermark
        if position > newest:
            return Refused(Why.NOT_NOW, f"the store ends at position {newest}, before {position}")
        topics = store.topic_names(block.topic_ids)
        return TableRead(block, topics, position, store.first_half(), end, view.log_start)
