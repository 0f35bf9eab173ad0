"""Reads the files of a store on this machine, with or without a running broker. Takes no lock and writes nothing.

The watermark page holds the high watermark, up to which everything is durable and indexed, and the start of the log. Bodies are
slices of mapped segments. A segment that is removed while mapped stays readable; one that is removed before is data loss.
Executors need the directory under the same path, so this works on one machine.

Queue entries are safe to read: the broker advances the high watermark only after it has written all entries below it, and never changes
such an entry. They are read with ``pread`` instead of a mapping, so that a concurrent removal or rebuild of a file gives a missing file or
a zero entry, never a SIGBUS.

The classes of ``halfmq.store`` load all queues and create an object per entry: too slow for a plan every 10 ms and millions of rows.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from halfmq.client.blocking import Unavailable
from halfmq.limits import SIZE_SAMPLE_MESSAGES
from halfmq.model.ids import java_string_hash
from halfmq.model.stored_message import MAGIC_V1, MAGIC_V2
from halfmq.runtime.disk import File, RealDisk
from halfmq.spark.files.store_files import StoreFiles
from halfmq.spark.options import Options
from halfmq.spark.plan.offsets import QueueBoundsSnapshot, QueueName, queue_number
from halfmq.spark.plan.partitions import QueueRange, Ranges, sample_start
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import ENTRY, Bytes, Entries, Ints, cuts, gather
from halfmq.spark.rows.stored_rows import BATCH_BYTES, BATCH_ROWS, StoredRows
from halfmq.store.consume_queue import file_end, first_visible_at, list_bases, visible_before
from halfmq.store.layout import QUEUE_ENTRY_BYTES
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND
from halfmq.store.topics_file import read_topics
from halfmq.store.watermark_page import Watermark

#: Entries that are read at once: 3 MB.
_CHUNK: Final = 1 << 16
_DISK: Final = RealDisk()


class QueueFiles:
    """The files of a queue. Keeps no file open between calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def bounds(self, log_start: int, position: int) -> tuple[int, int]:
        """(first offset, end offset) of the messages visible below ``position``; (0, 0) for an empty queue.

        Raises:
            FileNotFoundError: a file was removed between listing and opening it; try again.
        """
        bases = self._bases()
        if not bases:
            return 0, 0
        end = self._first_at(bases, position)
        return min(self._first_at(bases, log_start), end), end

    def read(self, start: int, end: int) -> Entries:
        """Entries [start, end), which must lie within ``bounds``; they may span files.

        Raises:
            FileNotFoundError: a file does not exist (the log was trimmed, or the indexes are being rebuilt).
        """
        bases = self._bases()
        parts = []
        while start < end:
            base = max((base for base in bases if base <= start), default=None)
            if base is None or start >= file_end(base):
                raise FileNotFoundError(f"no file in {self._directory} contains queue offset {start}")
            stop = min(end, file_end(base))
            data = self._pread(base, (start - base) * QUEUE_ENTRY_BYTES, (stop - start) * QUEUE_ENTRY_BYTES)
            parts.append(data)
            start = stop
        entries = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=ENTRY)
        if not (entries["message_bytes"] > 0).all():
            raise FileNotFoundError(f"entries in {self._directory} are being rebuilt")
        return entries

    def first_at_time(self, start: int, end: int, time_ms: int) -> int:
        """The first of the entries [start, end) with this store time (ms since 1970) or a later one; ``end`` if all are older.

        As the broker's ``search_by_time``: store times never decrease along a queue, since broker time does not, also after jumps
        of the clock (``core/clock_jumps.py``).

        Raises:
            FileNotFoundError: as ``read``.
        """
        low, high = start, end
        while low < high:
            middle = (low + high) // 2
            if int(self.read(middle, middle + 1)["store_time_ms"][0]) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def fitting(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """(number, bytes) of the entries from ``start`` on, before ``end``, whose message sizes add up to at most ``bytes_max``.

        Raises:
            FileNotFoundError: as ``read``.
        """
        count = size = 0
        while start + count < end:
            sums = np.cumsum(
                self.read(start + count, min(end, start + count + _CHUNK))["message_bytes"].astype(np.int64)
            )
            fit = int(np.searchsorted(sums, bytes_max - size, side="right"))
            count += fit
            size += int(sums[fit - 1]) if fit else 0
            if fit < len(sums):
                break
        return count, size

    def _bases(self) -> list[int]:
        return list_bases(_DISK, self._directory, ".q")

    def _pread(self, base: int, at: int, length: int) -> bytes:
        """Read, padded with zeros (no entry): a file that is being rebuilt may be short."""
        return self._open(base).read(at, length).ljust(length, b"\0")

    def _open(self, base: int) -> File:
        return _DISK.open(self._directory / f"{base:020d}.q", writable=False)

    def _first_at(self, bases: list[int], position: int) -> int:
        """The first queue offset that is not visible below ``position``."""
        return first_visible_at(
            bases, 0, lambda base, entries: visible_before(self._open(base).read, entries, position)
        )


T = TypeVar("T")

#: Offset of the stored message in its record, by kind of record; 0: the record contains none.
_MESSAGE_AT: Final = np.array(MESSAGE_AT_BY_KIND, dtype=np.int64)


class _Entries(NamedTuple):
    """Queue entries of one segment. ``segment``: log offset of its start."""

    queue_offsets: Ints
    segment: int
    offsets: Ints
    sizes: Ints


class DirectReader(StoreFiles):
    """Reads the store in ``options.path`` below its high watermark: a ``source.Reader``. Each batch is within one segment."""

    def __init__(self, options: Options, deadline: RetryDeadline) -> None:
        super().__init__(options.path, deadline)
        self._subscription = options.subscription
        #: Hashes of the requested tags; None: all messages.
        self._tag_hashes = np.array([java_string_hash(tag) for tag in options.tags], np.int64) if options.tags else None
        #: Watermark page of the last snapshot, and this snapshot.
        self._seen: tuple[tuple[bytes, int, int], QueueBoundsSnapshot] | None = None

    # --- planning

    def snapshot(self, known: Collection[str] = ()) -> QueueBoundsSnapshot:
        self._identify()
        return self._deadline.until(self._try_snapshot, f"store {self._root}")

    def size_samples(self, sliced: Sequence[QueueRange]) -> list[tuple[int, int]]:
        found = []
        for one in sliced:
            start = sample_start(one)
            try:
                entries = self._queue(one.topic_id, one.queue).read(start, min(one.end, start + SIZE_SAMPLE_MESSAGES))
                found.append((len(entries), int(entries["message_bytes"].sum(dtype=np.int64))))
            except FileNotFoundError:
                found.append((0, 0))
        return found

    def _try_snapshot(self) -> QueueBoundsSnapshot:
        page = self._page()
        # Spark asks every 10 ms while idle. Each change of a queue or topic also changes the page.
        if self._seen is not None and self._seen[0] == (page.store, page.epoch, page.sequence):
            return self._seen[1]
        page, snapshot = self._without_rebuild(self._snapshot_at)
        self._seen = ((page.store, page.epoch, page.sequence), snapshot)
        return snapshot

    def _snapshot_at(self, page: Watermark) -> QueueBoundsSnapshot:
        _, topics = read_topics(self._disk, self._shard / "topics.json")
        wanted = [topic for topic in topics if self._subscription.includes(topic.name)]
        queues = {
            (topic.name, str(queue)): self._queue(topic.topic_id, queue).bounds(page.log_start, page.position)
            for topic in wanted
            for queue in range(max(topic.read_queues, topic.write_queues))
        }
        return QueueBoundsSnapshot(
            self._store, page.epoch, page.position, queues, {topic.name: topic.topic_id for topic in wanted}
        )

    def offsets_at(
        self, times_ms: Mapping[QueueName, int], snapshot: QueueBoundsSnapshot
    ) -> dict[QueueName, int | None]:
        found: dict[QueueName, int | None] = {}
        for name, time_ms in times_ms.items():
            end = snapshot.queues[name][1]
            at = self._in_queue(name, snapshot, lambda queue, first: queue.first_at_time(first, end, time_ms))  # noqa: B023
            found[name] = at if at < end else None
        return found

    def fitting(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        def look(files: QueueFiles, first: int) -> tuple[int, int]:
            kept = min(max(start, first), end)
            count, size = files.fitting(kept, end, bytes_max)
            return kept - start + count, size

        return self._in_queue(queue, snapshot, look)

    def _in_queue(self, name: QueueName, snapshot: QueueBoundsSnapshot, look: Callable[[QueueFiles, int], T]) -> T:
        """``look(files, first existing offset)`` of a queue; the offset is at most the end of the queue in ``snapshot``."""
        files = self._queue(snapshot.topics[name[0]], queue_number(name[1]))
        end = snapshot.queues[name][1]

        def attempt(page: Watermark) -> T:
            return look(files, min(files.bounds(page.log_start, page.position)[0], end))

        what = f"queue {name[1]} of topic {name[0]}"
        return self._deadline.until(lambda: self._without_rebuild(attempt)[1], what)

    def _queue(self, topic_id: int, queue: int) -> QueueFiles:
        return QueueFiles(self._shard / "queues" / str(topic_id) / str(queue))

    # --- reading

    def read(self, ranges: Ranges, lost: Callable[[str], None]) -> Iterator[StoredRows]:
        self._identify()
        if self._store != ranges.store:
            lost(f"this is store {self._store}, but store {ranges.store} was planned")
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
        """(queue offset of the first entry, entries) of what still exists of [start, end); None if nothing does.

        Missing entries are past retention, or a starting broker is rebuilding them: then this waits.
        """
        queue = self._queue(one.topic_id, one.queue)

        def look(page: Watermark) -> tuple[int, Entries | None]:
            try:
                return start, queue.read(start, end)
            except FileNotFoundError as error:
                first = min(self._first_kept(one, queue, page), end)
                if first <= start:
                    raise Unavailable(str(error)) from error
                return first, queue.read(first, end) if first < end else None

        what = f"queue {one.queue} of topic {one.topic}"
        _, (first, entries) = self._deadline.until(lambda: self._without_rebuild(look), what)
        if first > start:
            lost(f"messages {start} to {first - 1} of {what} are past retention, or their topic was deleted")
        return None if entries is None else (first, entries)

    def _first_kept(self, one: QueueRange, queue: QueueFiles, page: Watermark) -> int:
        """The first existing offset of the queue; the end of the range if its topic was deleted."""
        _, topics = read_topics(self._disk, self._shard / "topics.json")
        if all(topic.topic_id != one.topic_id for topic in topics):
            return one.end
        return queue.bounds(page.log_start, page.position)[0]

    def _read_entries(
        self, one: QueueRange, start: int, entries: Entries, lost: Callable[[str], None]
    ) -> Iterator[StoredRows]:
        queue_offsets: Ints = np.arange(start, start + len(entries))
        if self._tag_hashes is not None:  # pages of the log that hold no wanted message are not read
            wanted = np.flatnonzero(np.isin(entries["tag_hash"], self._tag_hashes))
            if not len(wanted):
                return
            entries, queue_offsets = entries[wanted], queue_offsets[wanted]
        offsets: Ints = entries["offset"].astype(np.int64)
        sizes: Ints = entries["message_bytes"].astype(np.int64)
        segments = offsets // self._segment_bytes
        edges = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(offsets)]
        for first, last in pairwise(edges):
            number = int(segments[first])
            mapped = self._segment(number)
            if mapped is None:
                lost(
                    f"messages {queue_offsets[first]} to {queue_offsets[last - 1]} of queue {one.queue} of topic {one.topic} are "
                    f"past retention: segment {number * self._segment_bytes} was removed"
                )
                continue
            found = _Entries(
                queue_offsets[first:last], number * self._segment_bytes, offsets[first:last], sizes[first:last]
            )
            places, good = self._places(mapped[1], found)
            if not good.all():
                lost(self._damage(one, found, good))
            whole = bool(good.all())
            kept = np.flatnonzero(good)
            for begin, end in cuts(found.sizes if whole else found.sizes[kept], BATCH_BYTES, BATCH_ROWS):
                # Slices are free; choosing entries by number costs more than all the rest of this loop.
                chosen = slice(begin, end) if whole else kept[begin:end]
                rows = entries[first:last][chosen]
                yield StoredRows(
                    buffer=mapped[0],
                    starts=places[chosen],
                    sizes=found.sizes[chosen],
                    queue_offsets=found.queue_offsets[chosen],
                    store_times_ms=rows["store_time_ms"].astype(np.int64),
                    transactional=rows["half_index"] >= 0,
                    topic=one.topic,
                    broker="",
                    queue=one.queue,
                    file=str(self._segment_path(found.segment)),
                )

    def _places(self, data: Bytes, found: "_Entries") -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Offsets of the stored messages in the segment, and whether size and magic number of each are right.

        The check is one vectorised read of eight bytes per message; without it a damaged segment would yield wrong rows.
        """
        records = found.offsets - found.segment
        inside = records < len(data)
        at = _MESSAGE_AT[data[records if inside.all() else np.where(inside, records, 0)]]
        places: Ints = records + at
        good = inside & (at > 0) & (places + found.sizes <= len(data))
        heads = gather(data, places if good.all() else np.where(good, places, 0), ">u8")
        # Messages with long topic names have another magic number.
        good &= (heads == (found.sizes << 32 | MAGIC_V1)) | (heads == (found.sizes << 32 | MAGIC_V2))
        return places, good

    def _damage(self, one: QueueRange, found: "_Entries", good: npt.NDArray[np.bool_]) -> str:
        bad = np.flatnonzero(~good)
        offset = int(found.offsets[bad[0]])
        path = self._segment_path(found.segment)
        return (
            f"{len(bad)} of the messages {found.queue_offsets[bad[0]]} to {found.queue_offsets[bad[-1]]} of queue {one.queue} of "
            f"topic {one.topic} cannot be read: the queue entry for log offset {offset} does not match a message there, in "
            f"{path} at byte {offset - found.segment}; run `halfmq store verify`, and do not delete the directory"
        )
