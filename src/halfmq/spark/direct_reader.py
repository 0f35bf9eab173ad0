"""The direct path: a store's files on this machine, read beside its broker, or without one. Takes no lock, writes nothing.

The published page says up to where everything is durable and indexed, and where the log begins. Bodies are slices of the
mapped segments; a segment that is removed while it is mapped stays readable, and one that is gone before it could be
mapped is data loss by name. Executors must see the directory under the same path, so this is for one machine.

The store's own classes load every queue of the store and make an object of each entry, which a plan each 10 ms and a million
rows cannot afford.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from halfmq.errors import StoreDamaged, UsageError
from halfmq.model.stored_message import MAGIC_V1, MAGIC_V2
from halfmq.runtime.disk import RealDisk
from halfmq.spark.byte_slices import Bytes, Ints, as_bytes, gather
from halfmq.spark.offsets import Cut
from halfmq.spark.options import Options
from halfmq.spark.partitions import QueueRange, Ranges
from halfmq.spark.queue_files import Entries, QueueFiles
from halfmq.spark.retry_deadline import Away, RetryDeadline
from halfmq.spark.stored_rows import BATCH_ROWS, StoredRows, cut_points
from halfmq.store.identity import read_identity
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND
from halfmq.store.segment import segment_name
from halfmq.store.topics_file import read_topics
from halfmq.store.two_slots import Unreadable
from halfmq.store.watermark_page import Watermark, read_watermark_page

T = TypeVar("T")

#: Where the stored message begins, by the kind of the record that holds it; 0: such a record holds none.
_MESSAGE_AT: Final = np.array(MESSAGE_AT_BY_KIND, dtype=np.int64)


class DirectReader:
    """Reads below the published position of the store in ``options.path``."""

    def __init__(self, options: Options, patience: RetryDeadline) -> None:
        self._root = Path(options.path)
        self._shard = self._root / "shard-0"
        self._topics = options.topics
        self._patience = patience
        self._disk = RealDisk()
        self._segment_bytes = 0
        self._store = ""
        #: The last publication that was looked at, and what it showed.
        self._seen: tuple[tuple[bytes, int, int], Cut] | None = None
        self._segments: dict[int, tuple[pa.Buffer, Bytes]] = {}

    def close(self) -> None:
        """Nothing is held but mapped segments; they go with their last record batch."""
        self._segments.clear()

    # --- planning

    def cut(self) -> Cut:
        """What is there now. Waits for a store that has not published yet.

        Raises:
            UsageError: ``path`` is no store.
            ConnectError: it published nothing within ``brokerTimeout``.
        """
        self._identify()
        return self._patience.until(self._try_cut, f"store {self._root}")

    def _try_cut(self) -> Cut:
        page = self._page()
        # Spark asks every 10 ms while nothing comes. Whatever changes a queue or a topic is published.
        if self._seen is not None and self._seen[0] == (page.store, page.epoch, page.sequence):
            return self._seen[1]
        page, cut = self._undisturbed(self._cut_at)
        self._seen = ((page.store, page.epoch, page.sequence), cut)
        return cut

    def _cut_at(self, page: Watermark) -> Cut:
        _, topics = read_topics(self._disk, self._shard / "topics.json")
        wanted = [topic for topic in topics if topic.name in self._topics]
        queues = {
            (topic.name, str(queue)): self._queue(topic.topic_id, queue).bounds(page.log_start, page.position)
            for topic in wanted
            for queue in range(max(topic.read_queues, topic.write_queues))
        }
        return Cut(self._store, page.epoch, page.position, queues, {topic.name: topic.topic_id for topic in wanted})

    def _undisturbed(self, look: Callable[[Watermark], T]) -> tuple[Watermark, T]:
        """(the page, what ``look`` found), if no broker began meanwhile to remove the queues and make them again.

        It says so in the page before the first file goes, so the page from before must still stand afterwards. Else
        queues that are gone for a moment would look empty, and half-made entries like whole ones.
        """
        page = self._page()
        try:
            found = look(page)
        except FileNotFoundError as error:
            self._still(page)
            raise Away(f"{error.filename} was removed just now") from error
        self._still(page)
        return page, found

    def _still(self, page: Watermark) -> None:
        if self._page().epoch != page.epoch:
            raise Away("a broker started just now")

    def _identify(self) -> None:
        """Read ``store.json`` again: the directory may hold another store by now."""
        identity = read_identity(self._disk, self._root)
        if identity is None:
            raise UsageError(f"{self._root} holds no store", hint="path is the data directory of a halfmq broker")
        if identity.store_id.hex() != self._store:
            self._segments.clear()
        self._store = identity.store_id.hex()
        self._segment_bytes = identity.segment_bytes

    def _page(self) -> Watermark:
        page = read_watermark_page(self._disk, self._shard / "published")
        if not isinstance(page, Watermark):
            raise Away(page.why if isinstance(page, Unreadable) else "nothing is published yet")
        if page.rebuilding:
            raise Away("its broker is making the queues again")
        if page.store.hex() != self._store:
            raise Away(f"its published page is of store {page.store.hex()}")
        return page

    def _queue(self, topic_id: int, queue: int) -> QueueFiles:
        return QueueFiles(self._shard / "queues" / str(topic_id) / str(queue))

    # --- reading

    def read(self, ranges: Ranges, lost: Callable[[str], None]) -> Iterator[StoredRows]:
        """The messages of ``ranges``, in batches of one segment each.

        ``lost`` hears of what is gone by now; where it returns, reading goes on behind the gap.

        Raises:
            StoreDamaged: an entry does not lead to a message.
        """
        self._identify()
        if self._store != ranges.store:
            lost(f"this is store {self._store}, planned was store {ranges.store}")
            return
        for one in ranges.ranges:
            for start in range(one.start, one.end, BATCH_ROWS):
                end = min(one.end, start + BATCH_ROWS)
                left = self._entries(one, start, end, lost)
                if left is not None:
                    yield from self._read_entries(one, *left, lost)

    def _entries(
        self, one: QueueRange, start: int, end: int, lost: Callable[[str], None]
    ) -> tuple[int, Entries] | None:
        """(queue offset of the first one, entries) of what is left of [start, end); None for nothing.

        Planned entries that are missing are past retention, or being made again by a broker that starts: then it waits.
        """
        queue = self._queue(one.topic_id, one.queue)

        def look(page: Watermark) -> tuple[int, Entries | None]:
            try:
                return start, queue.read(start, end)
            except FileNotFoundError as error:
                first = min(self._first_kept(one, queue, page), end)
                if first <= start:
                    raise Away(str(error)) from error
                return first, queue.read(first, end) if first < end else None

        what = f"queue {one.queue} of topic {one.topic}"
        _, (first, entries) = self._patience.until(lambda: self._undisturbed(look), what)
        if first > start:
            lost(f"messages {start} to {first - 1} of {what} are past retention, or their topic was deleted")
        return None if entries is None else (first, entries)

    def _first_kept(self, one: QueueRange, queue: QueueFiles, page: Watermark) -> int:
        """The first offset of the queue that is still there; the range's end where its topic was deleted."""
        _, topics = read_topics(self._disk, self._shard / "topics.json")
        if all(topic.topic_id != one.topic_id for topic in topics):
            return one.end
        return queue.bounds(page.log_start, page.position)[0]

    def _read_entries(
        self, one: QueueRange, start: int, entries: Entries, lost: Callable[[str], None]
    ) -> Iterator[StoredRows]:
        offsets: Ints = entries["offset"].astype(np.int64)
        sizes: Ints = entries["size"].astype(np.int64)
        segments = offsets // self._segment_bytes
        edges = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(offsets)]
        for first, last in pairwise(edges):
            number = int(segments[first])
            mapped = self._segment(number)
            if mapped is None:
                lost(
                    f"messages {start + first} to {start + last - 1} of queue {one.queue} of topic {one.topic} are past "
                    f"retention: segment {number * self._segment_bytes} is gone"
                )
                continue
            at = first
            for cut in cut_points(sizes[first:last]):
                part = slice(at, first + cut)
                places = self._places(
                    mapped[1], offsets[part] - number * self._segment_bytes, sizes[part], offsets[part]
                )
                at = first + cut
                yield StoredRows(
                    buffer=mapped[0],
                    starts=places,
                    sizes=sizes[part],
                    queue_offsets=np.arange(start + part.start, start + part.stop, dtype=np.int64),
                    store_times_ms=entries["store_time_ms"][part].astype(np.int64),
                    transactional=entries["half_index"][part] >= 0,
                    topic=one.topic,
                    broker="",
                    queue=one.queue,
                )

    def _places(self, data: Bytes, records: Ints, sizes: Ints, offsets: Ints) -> Ints:
        """Where the stored messages begin in the segment, checked: each must be one, of the size that its entry says.

        The check costs one gather of eight bytes; without it a damaged segment would become wrong rows.
        """
        at = _MESSAGE_AT[data[records]]
        places: Ints = records + at
        ends = places + sizes
        whole = int(ends.max()) <= len(data) and int(at.min()) > 0
        if not whole or not (gather(data, places, ">u8") == (sizes << 32 | MAGIC_V1)).all():
            self._refuse_bad(data, places, at, sizes, offsets)
        return places

    def _refuse_bad(self, data: Bytes, places: Ints, at: Ints, sizes: Ints, offsets: Ints) -> None:
        """The slow look: a long topic name has another magic and is right as well."""
        in_segment = (at > 0) & (places + sizes <= len(data))
        heads = gather(data, np.where(in_segment, places, 0), ">u8")
        good = in_segment & ((heads == (sizes << 32 | MAGIC_V1)) | (heads == (sizes << 32 | MAGIC_V2)))
        if not good.all():
            bad = int(offsets[np.flatnonzero(~good)[0]])
            raise StoreDamaged(
                f"store {self._root}: there is no message of the size that its queue entry says at log offset {bad}",
                hint="`halfmq store verify` says more; do not delete the directory",
            )

    def _segment(self, number: int) -> tuple[pa.Buffer, Bytes] | None:
        """The mapped segment, or None where its file is gone."""
        mapped = self._segments.get(number)
        if mapped is None:
            path = self._shard / "log" / segment_name(number * self._segment_bytes)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                buffer = pa.py_buffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
            finally:
                os.close(descriptor)
            mapped = (buffer, as_bytes(buffer))
            while len(self._segments) >= 4:  # address space only, but a long read would collect all of them
                self._segments.pop(next(iter(self._segments)))
            self._segments[number] = mapped
        return mapped
