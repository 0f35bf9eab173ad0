"""Reading a store's files from another process, beside a running broker or without one. Takes no lock, writes nothing.

``refresh`` takes one position from the published page and bounds every queue by it; until the next ``refresh`` all
answers are of that position, so a transaction is seen whole or not at all. Files that are mapped stay readable when
they are unlinked. What was trimmed away, replaced, or cut back since is an error by name, never an empty answer.
"""

from pathlib import Path
from typing import NamedTuple

from halfmq.errors import PositionWentBack, SegmentGone, StoreNotReady, StoreReplaced, UsageError
from halfmq.model.placement import segment_start
from halfmq.runtime.disk import Disk, RealDisk
from halfmq.store.consume_queue import ConsumeQueues, QueueEntry
from halfmq.store.identity import Identity, read_identity
from halfmq.store.open_files import OpenFiles
from halfmq.store.published import Published, read_published
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND
from halfmq.store.segment import segment_name
from halfmq.store.topics_file import TopicInfo, read_topics
from halfmq.store.transaction_table import TransactionRow, TransactionTable

_SHARD = "shard-0"
#: Segments kept mapped.
_SEGMENTS_MAX = 64


class ReadPosition(NamedTuple):
    """Where a reader stands: give it to ``refresh`` later to be told of loss. ``store``: 16 bytes."""

    store: bytes
    epoch: int
    position: int


class StoreReader:
    """One reader on one thread."""

    def __init__(self, directory: Path, disk: Disk, identity: Identity) -> None:
        """Use ``open``."""
        self.directory = directory
        self.shard = directory / _SHARD
        self.store_id = identity.store_id
        self.segment_bytes = identity.segment_bytes
        self.disk = disk
        #: Everything below is durable; 0 before ``refresh``.
        self.position = 0
        self.log_start = 0
        self.epoch = 0
        #: Broker time of the publication, ms.
        self.broker_time_ms = 0
        self._files = OpenFiles(disk, writable=False)
        self.queues = ConsumeQueues(disk, self.shard / "queues", self._files)
        self._table = TransactionTable(disk, self.shard / "transactions", self._files)
        self._segments: dict[int, memoryview] = {}

    @classmethod
    def open(cls, directory: Path, disk: Disk | None = None) -> "StoreReader":
        """A reader that stands at the published position.

        Raises:
            UsageError: there is no store in ``directory``.
            StoreNotReady: no position is published; try again.
            StoreDamaged, WrongVersion: ``store.json`` cannot be read.
        """
        disk = disk or RealDisk()
        identity = read_identity(disk, directory)
        if identity is None:
            raise UsageError(f"{directory} holds no store", hint="give the directory that `halfmq serve --data` got")
        reader = cls(directory, disk, identity)
        reader.refresh()
        return reader

    def refresh(self, after: ReadPosition | None = None) -> ReadPosition:
        """Take the published position of now. ``after``: what was read before must still be true.

        Raises:
            StoreNotReady: nothing is published, or derived files are being made again; try again.
            StoreReplaced, PositionWentBack: what was read under ``after`` is not in this store.
        """
        page = self._page()
        identity = read_identity(self.disk, self.directory)
        if page.store != self.store_id or identity is None or identity.store_id != self.store_id:
            raise StoreReplaced(f"{self.directory} held store {self.store_id.hex()}, it holds {page.store.hex()} now")
        if after is not None:
            self._check_after(page, after)
        try:
            self._files.close()
            self._table.load()
            self.queues.load(page.position, page.log_start)
        except FileNotFoundError as error:
            raise StoreNotReady(f"{error.filename} was removed while it was read", hint="try again") from error
        again = self._page()
        if again.epoch != page.epoch:
            raise StoreNotReady("a broker started while the store was looked at", hint="try again")
        self.epoch, self.position, self.log_start = page.epoch, page.position, page.log_start
        self.broker_time_ms = page.broker_time_ms
        return ReadPosition(self.store_id, self.epoch, self.position)

    def topics(self) -> list[TopicInfo]:
        """Topics as of now; a queue of a topic that is newer than the position is empty."""
        return read_topics(self.disk, self.shard / "topics.json")[1]

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """(first, one past the last) queue offset at this position; (0, 0) for a queue without messages."""
        return self.queues.bounds(topic_id, queue_id)

    def entries(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[QueueEntry]:
        """Entries from ``queue_offset`` on; none outside of ``bounds``."""
        try:
            return self.queues.read(topic_id, queue_id, queue_offset, entries_max, self.position)
        except FileNotFoundError as error:
            raise SegmentGone(
                f"{error.filename} was trimmed away", hint="what it led to is past retention; begin at bounds() again"
            ) from error

    def segment(self, offset: int) -> memoryview:
        """The mapped segment that holds log offset ``offset``.

        Raises:
            SegmentGone: trimmed away.
        """
        start = segment_start(offset, self.segment_bytes)
        view = self._segments.get(start)
        if view is None:
            path = self.shard / "log" / segment_name(start)
            try:
                file = self.disk.open(path, writable=False)
            except FileNotFoundError as error:
                raise SegmentGone(f"{path} is gone", hint="its messages are past retention") from error
            view = file.view()
            file.close()  # the map lives as long as somebody holds the view
            if len(self._segments) >= _SEGMENTS_MAX:
                del self._segments[next(iter(self._segments))]
            self._segments[start] = view
        return view

    def stored_view(self, offset: int) -> memoryview:
        """The stored message of the record at ``offset``, in RocketMQ's layout, not copied.

        Raises:
            SegmentGone: trimmed away.
            LookupError: no message lies there.
        """
        view = self.segment(offset)
        place = offset % self.segment_bytes
        message_at = MESSAGE_AT_BY_KIND[view[place]]
        if not message_at or offset >= self.position:
            raise LookupError(f"no message at log offset {offset}")
        return view[place + message_at : place + int.from_bytes(view[place + 4 : place + 8], "big")]

    def transaction_row(self, half_index: int) -> TransactionRow | None:
        """What the table says of a half; it may already know more than ``position``."""
        return self._table.row(half_index)

    def close(self) -> None:
        self._files.close()
        self._segments.clear()

    def _page(self) -> Published:
        page = read_published(self.disk, self.shard / "published")
        if not isinstance(page, Published):
            raise StoreNotReady(f"{self.directory} publishes no position: {page}", hint="start a broker on it")
        if page.rebuilding:
            raise StoreNotReady(f"{self.directory}: queues are being made again", hint="wait for the broker to start")
        return page

    def _check_after(self, page: Published, after: ReadPosition) -> None:
        if after.store != page.store:
            raise StoreReplaced(f"{self.directory} holds store {page.store.hex()}, read was {after.store.hex()}")
        if page.epoch < after.epoch or page.position < after.position:
            raise PositionWentBack(
                f"{self.directory} is at epoch {page.epoch}, position {page.position}; "
                f"read was epoch {after.epoch}, position {after.position}",
                hint="an older copy of the store, or a power loss with durability `memory`",
            )
