"""What front doors read of the store, and no more: of the store's packages they import nothing else."""

from collections.abc import Iterable
from typing import Protocol

from halfmq.store.raw_messages import RawBlock, load_numpy
from halfmq.store.table_block import TableBlock, Wanted

__all__ = ["RawBlock", "StoreReads", "TableBlock", "Wanted", "load_numpy"]


class StoreReads(Protocol):
    """Reads raise StoreDamaged or OSError if the disk cannot read. The methods are those of ``store.Store``."""

    @property
    def uuid(self) -> str:
        """UUID of the store, 32 hex digits."""
        ...

    @property
    def format(self) -> int:
        """Format of the store, as in ``store.json``."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Size of a segment of the log, bytes."""
        ...

    @property
    def high_watermark(self) -> int:
        """The log position that readers see."""
        ...

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """(first offset in the queue, offset after the last visible message); (0, 0) for a queue without messages."""
        ...

    def read_raw(
        self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int, bytes_max: int, free_bytes: int,
        *, with_stored_checksums: bool,
    ) -> RawBlock:  # fmt: skip
        """Entries from ``queue_offset`` on, and their messages, up to the first that cannot be read."""
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
        """Rows [first, end) of one file of the transaction table, as of ``position``."""
        ...

    def read_log(self, offset: int, length: int) -> bytes:
        """``length`` bytes of the log from ``offset`` on; fewer at the end of its segment, or of the log. Any thread. LookupError: the log
        does not have that offset."""
        ...

    def examine_shown(self, offset: int, messages: int) -> None:
        """Examine now the half batch of ``messages`` at ``offset``, which a verdict shows soon."""
        ...
