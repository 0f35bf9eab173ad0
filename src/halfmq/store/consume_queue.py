"""Consume queues: an entry of 48 bytes for each visible message, in queue order, with the place of its body.

The *visible-at* field of an entry increases along a queue, so a log position bounds every queue by binary search. Recovery and trims use
the same bound: a message belongs to the segment of the record that made it visible, so "before the log's start" is a bound like any other.

The writer calls ``add`` for the entries of a batch, then ``flush``, which writes each queue's entries in one write. If a write fails,
the unwritten entries stay staged, invisible to readers, and the next ``flush`` writes the same bytes to the same places.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import InvariantViolated, StoreDamaged
from halfmq.model.steps import Steps
from halfmq.runtime.disk import Disk, File
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, QUEUE_FILE_ENTRIES, entries_with
from halfmq.store.open_files import FileKey, OpenFiles
from halfmq.store.segment import NO_SPACE

_VISIBLE_AT: Final = QUEUE_ENTRY.at["visible_at"]
_ENTRY_WORDS: Final = QUEUE_ENTRY_BYTES // 8
_KEY_HASH_AT: Final = QUEUE_ENTRY.at["key_hash"]
#: Entries that ``add_many`` stages, bytes. Larger writes are slower, since each takes pages of new memory.
MANY_BYTES_MAX: Final = 256 << 10
#: Reads bytes at a place of an entry file.
_Read = Callable[[int, int], bytes]


class QueueEntry(NamedTuple):
    """One message in a queue."""

    offset: int
    message_bytes: int
    tag_hash: int
    visible_at: int
    store_time_ms: int
    half_index: int
    key_hash: int


assert QueueEntry._fields == tuple(QUEUE_ENTRY.fields)


class EncodedEntries:
    """Consecutive entries of a queue as they are in its files, and three of their columns. Decoding a column takes a few ns an entry."""

    __slots__ = ("data", "message_bytes", "offsets", "visible_at")

    def __init__(self, data: bytes) -> None:
        self.data = data
        words, halves = array("q", data), array("i", data)
        if sys.byteorder == "little":
            words.byteswap()
            halves.byteswap()
        #: Of each entry: as in ``QueueEntry``.
        self.offsets = words[QUEUE_ENTRY.at["offset"] // 8 :: _ENTRY_WORDS]
        self.message_bytes = halves[QUEUE_ENTRY.at["message_bytes"] // 4 :: 2 * _ENTRY_WORDS]
        self.visible_at = words[_VISIBLE_AT // 8 :: _ENTRY_WORDS]

    def __len__(self) -> int:
        return len(self.offsets)

    def first(self, number: int) -> "EncodedEntries":
        """The first ``number`` entries."""
        return self if number >= len(self) else EncodedEntries(self.data[: number * QUEUE_ENTRY_BYTES])


class Queue:
    """One queue. The fields of the tail file save a search in the hot path."""

    __slots__ = (
        "_directory",
        "_root",
        "bases",
        "clean_from",
        "end",
        "known",
        "min",
        "queue_id",
        "staged",
        "tail_base",
        "tail_end",
        "tail_key",
        "topic_id",
        "written",
    )

    def __init__(self, topic_id: int, queue_id: int, root: Path) -> None:
        """``root``: the directory of all queues."""
        self.topic_id = topic_id
        self.queue_id = queue_id
        #: Made when it is first needed: a start makes a hundred thousand queues of which few are written.
        self._directory: Path | None = None
        self._root = root
        #: First queue offset of each file, sorted.
        self.bases: list[int] = []
        #: First readable entry; at most ``end``.
        self.min = 0
        #: Next queue offset, including staged entries; and the one up to which entries are in the files, where readers stop.
        self.end = 0
        self.written = 0
        #: A start found no entries from this queue offset on; -1: it did not look.
        self.clean_from = -1
        #: False while its bounds are unknown: its next entry determines them.
        self.known = False
        #: Encoded entries from ``written`` to ``end``, one or several in each piece.
        self.staged: list[bytes] = []
        #: The last written file: its first offset, the first offset after it, its key.
        self.tail_base = 0
        self.tail_end = 0
        self.tail_key: FileKey = (topic_id, queue_id, -1)

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = self._root / str(self.topic_id) / str(self.queue_id)
        return self._directory

    def path(self, base: int) -> Path:
        return self.directory / f"{base:020d}.q"

    def base_of(self, queue_offset: int) -> int | None:
        """First offset of the file that contains ``queue_offset``."""
        for base in reversed(self.bases):
            if base <= queue_offset:
                return base if queue_offset < file_end(base) else None
        return None

    def turn_to(self, queue_offset: int) -> None:
        """Make the file that contains ``queue_offset`` the tail; begin a new file there if there is none."""
        base = self.base_of(queue_offset)
        if base is None:
            base = queue_offset
            self.bases = sorted([*self.bases, base])
        self.tail_base = base
        self.tail_end = file_end(base)
        self.tail_key = (self.topic_id, self.queue_id, base)


def file_end(base: int) -> int:
    """First queue offset after the file that starts at ``base``: files end at multiples of their range."""
    return base - base % QUEUE_FILE_ENTRIES + QUEUE_FILE_ENTRIES


def file_bytes(base: int) -> int:
    """Length of the file that starts at queue offset ``base``."""
    return (file_end(base) - base) * QUEUE_ENTRY_BYTES


def visible_before(read: _Read, entries: int, position: int, *, zeros_end: bool = True) -> int:
    """How many of the first ``entries`` of a queue file became visible before log offset ``position``.

    ``zeros_end``: zeros mean no entry. Otherwise zeros are damage, and count as visible so that a reader gets an error instead of waiting.
    """
    lowest = 1 if zeros_end else 0
    low, high = 0, entries
    while low < high:
        middle = (low + high) // 2
        if lowest <= int.from_bytes(read(middle * QUEUE_ENTRY_BYTES + _VISIBLE_AT, 8), "big") < position:
            low = middle + 1
        else:
            high = middle
    return low


def first_visible_at(bases: Sequence[int], end: int, visible: Callable[[int, int], int]) -> int:
    """The first queue offset that is not visible; ``end`` without files.

    ``visible(base, entries)``: how many of the first entries of a file are. All files before the last one whose first entry is visible are
    full, so only that one is searched.
    """
    files = bisect_left(bases, True, key=lambda base: not visible(base, 1))
    if files == 0:
        return bases[0] if bases else end
    base = bases[files - 1]
    return base + visible(base, file_end(base) - base)


def list_queues(disk: Disk, directory: Path) -> Iterator[tuple[int, int, Path]]:
    """(topic id, queue id, its directory) of every queue in ``directory``."""
    for topic in disk.list(directory):
        if topic.isdigit():
            for queue in disk.list(directory / topic):
                if queue.isdigit():
                    yield int(topic), int(queue), directory / topic / queue


def list_bases(disk: Disk, directory: Path, suffix: str) -> list[int]:
    """Numbers in the names of the files in ``directory``, sorted."""
    return sorted(int(name[:20]) for name in disk.list(directory) if name.endswith(suffix) and name[:20].isdigit())


class ConsumeQueues:
    """All queues of a shard. One thread writes and reads."""

    def __init__(self, disk: Disk, directory: Path, files: OpenFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._queues: dict[tuple[int, int], Queue] = {}
        #: The same by topic.
        self._of_topic: dict[int, list[Queue]] = {}
        #: Queues with staged entries.
        self._touched: list[Queue] = []
        #: Bytes of ``add_many`` since the last flush that succeeded.
        self._many_bytes = 0
        #: Whether an unknown queue may begin at any offset: in a redo, and after a trim.
        self._begins_anywhere = False
        #: (topic id, directory) of queues with files, or without any, that may have been created after the position of ``load``.
        self.begun: list[tuple[int, Path]] = []
        #: Number of written entries; only increases.
        self.entries_written = 0

    # --- writing

    def add(self, topic_id: int, queue_id: int, queue_offset: int, entry: bytes) -> None:
        """Stage one encoded entry; ``flush`` writes it.

        Raises:
            InvariantViolated: ``queue_offset`` is not the end of the queue, so log and queue contradict each other.
        """
        try:
            queue = self._queues[topic_id, queue_id]
        except KeyError:
            queue = self._new(topic_id, queue_id)
        if queue_offset != queue.end:
            self._start_at(queue, queue_offset)
        queue.end = queue_offset + 1
        staged = queue.staged
        if staged:
            staged.append(entry)
        else:
            queue.staged = [entry]
            self._touched.append(queue)

    def add_many(self, topic_id: int, queue_id: int, queue_offset: int, entries: bytes) -> None:
        """Stage several encoded entries in one piece, the first at ``queue_offset``. Raises as ``add``, or OSError as ``flush`` unless the
        disk is full.

        Much is written at once: the entries of one verdict may take more memory than the rest of the broker. Readers do not see them
        before the high watermark is after the verdict.
        """
        self.add(topic_id, queue_id, queue_offset, entries)
        self._queues[topic_id, queue_id].end += len(entries) // QUEUE_ENTRY_BYTES - 1
        self._many_bytes += len(entries)
        if self._many_bytes >= MANY_BYTES_MAX:
            try:
                self.flush()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                # They are still staged: the next ``flush`` finds space, or raises this again.

    def flush(self) -> None:
        """Write the staged entries: one write per queue, two if a file ends in between.

        Raises:
            OSError: a write failed; the unwritten entries are still staged.
        """
        try:
            self._flush()
        except OSError:
            self._touched = [queue for queue in self._touched if queue.staged]
            raise
        self._touched.clear()
        self._many_bytes = 0

    def _flush(self) -> None:
        files = self._files
        opened = files.files
        dirty = files.dirty
        written = 0
        for queue in self._touched:
            staged = queue.staged
            start = queue.written
            written += queue.end - start
            if queue.end > queue.tail_end or start < queue.tail_base:
                self._write_across_files(queue, start)
            else:
                file = opened.get(queue.tail_key) or self._create_tail(queue)
                file.write((start - queue.tail_base) * QUEUE_ENTRY_BYTES, staged)
                dirty[file] = None
            queue.staged = []
            queue.written = queue.end
            queue.known = True
        self.entries_written += written

    def _write_across_files(self, queue: Queue, start: int) -> None:
        staged = b"".join(queue.staged)
        place = 0
        while place < len(staged):
            base = queue.base_of(start)
            if base is None:
                base = start
            # The file first: a queue must not refer to a file that could not be created.
            file = self._files.create((queue.topic_id, queue.queue_id, base), queue.path(base), file_bytes(base))
            queue.turn_to(start)
            space = queue.tail_end - start
            at = (start - queue.tail_base) * QUEUE_ENTRY_BYTES
            self._files.write(file, at, [staged[place : place + space * QUEUE_ENTRY_BYTES]])
            place += space * QUEUE_ENTRY_BYTES
            start += space

    def _create_tail(self, queue: Queue) -> File:
        return self._files.create(queue.tail_key, queue.path(queue.tail_base), file_bytes(queue.tail_base))

    def _new(self, topic_id: int, queue_id: int) -> Queue:
        queue = Queue(topic_id, queue_id, self._directory)
        self._queues[(topic_id, queue_id)] = queue
        self._of_topic.setdefault(topic_id, []).append(queue)
        return queue

    def _start_at(self, queue: Queue, queue_offset: int) -> None:
        """Let an unknown queue begin at its first entry (the log before it was trimmed)."""
        if queue.known or queue.staged or not self._begins_anywhere:
            raise InvariantViolated(
                f"topic {queue.topic_id} queue {queue.queue_id}: the log gives queue offset {queue_offset}, "
                f"the queue ends at {queue.end}",
                hint="keep the directory; `halfmq store verify` names the first difference",
            )
        if queue.base_of(queue_offset) is None:
            for base in list(queue.bases):
                self._drop_file(queue, base)
        queue.min = queue.end = queue.written = queue_offset

    def begin_at(self, topic_id: int, queue_id: int, queue_offset: int) -> None:
        """Set the end of a queue that has no message in the log: it is empty, but not new. For recovery."""
        queue = self._queues.get((topic_id, queue_id)) or self._new(topic_id, queue_id)
        if not queue.known and not queue.end:
            queue.min = queue.end = queue.written = queue_offset
            queue.known = True

    # --- life

    def load(self, position: int, log_start: int) -> None:
        """Read the bounds of every queue up to ``position``; the redo writes the entries from there on again."""
        self._queues.clear()
        self._of_topic.clear()
        self._touched.clear()
        self._begins_anywhere = True
        self.begun.clear()
        for topic_id, queue_id, directory in list_queues(self._disk, self._directory):
            bases = list_bases(self._disk, directory, ".q")
            if not bases:
                self.begun.append((topic_id, directory))
            else:
                queue = self._new(topic_id, queue_id)
                queue.bases = bases
                queue.end = queue.written = self._end_of_data(queue)
                first = self._first_visible_at(queue, log_start, zeros_end=True)
                queue.end = queue.written = self._first_visible_at(queue, position, zeros_end=True)
                queue.known = queue.end > queue.bases[0]
                queue.min = min(first, queue.end)
                if bases[-1] >= queue.end:
                    self.begun.append((topic_id, directory))
                elif self._is_clean(queue, bases[-1]):
                    queue.clean_from = queue.end

    def _is_clean(self, queue: Queue, base: int) -> bool:
        """Whether the file has its whole length, and nothing but zeros after the end of the queue."""
        file = self._file(queue, base)
        start = (queue.end - base) * QUEUE_ENTRY_BYTES
        ranges = list(file.data_ranges(start)) if file.size() >= file_bytes(base) else [(0, MANY_BYTES_MAX)]
        if sum(end - begin for begin, end in ranges) >= MANY_BYTES_MAX:
            return False  # ``cut`` looks, part by part
        return not any(file.read(begin, end - begin).strip(b"\0") for begin, end in ranges)

    def difference(self, bounds: Iterable[tuple[int, int, int, int]], log_start: int) -> str | None:
        """Describe the first difference between what ``load`` found and the expected bounds; None if there is none. Call it before the
        redo.

        ``bounds``: (topic id, queue id, first offset, offset after the last entry) of every queue at the loaded position, for a log that
        starts at ``log_start``. It checks where files begin and end, not each entry.
        """
        for topic_id, queue_id, first, end in bounds:
            queue = self._queues.get((topic_id, queue_id))
            if queue is None or not queue.bases:
                if first < end:  # a trim may have removed the files of an empty queue
                    return f"topic {topic_id} queue {queue_id}: its files are gone, it had {first} to {end}"
            elif queue.end != end or (first < end and self._first_visible_at(queue, log_start) != first):
                found = f"{self._first_visible_at(queue, log_start)} to {queue.end}"
                return f"topic {topic_id} queue {queue_id} has {found} instead of {first} to {end}"
            elif first < end and (gap := self._gap(queue, first, end)) is not None:
                return f"topic {topic_id} queue {queue_id}: {gap} is missing or too short"
        return None

    def _gap(self, queue: Queue, first: int, end: int) -> Path | None:
        """The first file of the queue between ``first`` and ``end`` that is missing or truncated."""
        while first < end:
            base = queue.base_of(first)
            if base is None:
                return queue.path(first)
            file = self._file(queue, base)
            first = file_end(base)
            if first <= end and file.size() < file_bytes(base):
                return queue.path(base)
        return None

    def cut(self, log_start: int) -> None:
        """Zero everything after the end of each queue: entries of an end of the log that did not survive."""
        self.flush()
        self._begins_anywhere = log_start > 0
        for queue in self._queues.values():
            for base in list(queue.bases):
                if base >= queue.end and queue.known:
                    self._drop_file(queue, base)
                elif file_end(base) > queue.end and (queue.end != queue.clean_from or base > queue.end):
                    file = self._file(queue, base)
                    self._files.lengthen(file, file_bytes(base))
                    self._files.zero(file, max(0, queue.end - base) * QUEUE_ENTRY_BYTES, file_bytes(base))

    def trim(self, log_start: int) -> None:
        """Remove entries that became visible before ``log_start``, and files without other entries.

        The newest file of a queue remains, so that the end of the queue is known without the log.
        """
        self.flush()
        self._begins_anywhere = True
        for queue in self._queues.values():
            if queue.bases:
                queue.min = max(queue.min, self._first_visible_at(queue, log_start))
                for base in queue.bases[:-1]:
                    if file_end(base) <= queue.min:
                        self._drop_file(queue, base)

    def delete_topic(self, topic_id: int) -> None:
        """Remove all queues of the topic, including staged entries."""
        for queue in self._of_topic.pop(topic_id, ()):
            del self._queues[(topic_id, queue.queue_id)]
            if queue.staged:
                self._touched.remove(queue)
            for base in list(queue.bases):
                self._drop_file(queue, base)
        directory = self._directory / str(topic_id)
        for name in self._disk.list(directory):
            self._files.remove_directory(directory / name)
        self._files.remove_directory(directory)

    def reset(self) -> None:
        """Remove all files; queues begin at their next entries. Mappings of readers stay valid."""
        self.load(0, 0)
        for topic_id in list(self._of_topic):
            self.delete_topic(topic_id)

    def _drop_file(self, queue: Queue, base: int) -> None:
        queue.bases.remove(base)
        if base == queue.tail_base:
            queue.tail_base = queue.tail_end = 0
        self._files.remove((queue.topic_id, queue.queue_id, base), queue.path(base))

    # --- reading: what is written; what is staged is not seen

    def bounds(self, topic_id: int, queue_id: int, below_position: int | None = None) -> tuple[int, int]:
        """(first queue offset, offset after the last entry) visible before log offset ``below_position``. (0, 0): no such queue."""
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            return 0, 0
        end = queue.written
        if below_position is not None:
            end = min(end, self._first_visible_at(queue, below_position))
        return min(queue.min, end), end

    def read(
        self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int, below_position: int
    ) -> list[QueueEntry]:
        """Up to ``entries_max`` entries from ``queue_offset`` on that became visible before ``below_position``.

        Empty if ``queue_offset`` is outside of the queue; ``bounds`` tells on which side.

        Raises:
            StoreDamaged: a file was truncated.
            OSError: a file is missing, or the disk cannot read it.
        """
        found: list[QueueEntry] = []
        for part in self._parts(topic_id, queue_id, queue_offset, entries_max):
            found.extend(map(QueueEntry._make, QUEUE_ENTRY.iter_unpack(part)))
        while found and found[-1].visible_at >= below_position:
            found.pop()
        return found

    def read_encoded(
        self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int, below_position: int
    ) -> EncodedEntries:
        """As ``read``, without an object for each entry."""
        parts = self._parts(topic_id, queue_id, queue_offset, entries_max)
        found = EncodedEntries(parts[0] if len(parts) == 1 else b"".join(parts))
        return found.first(bisect_left(found.visible_at, below_position))

    def _parts(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[bytes]:
        """Encoded entries from ``queue_offset`` on, a part of each file."""
        queue = self._queues.get((topic_id, queue_id))
        parts: list[bytes] = []
        if queue is None or queue_offset < queue.min:
            return parts
        stop = min(queue.written, queue_offset + entries_max)
        while queue_offset < stop:
            base = queue.base_of(queue_offset)
            if base is None:
                break
            last = min(stop, file_end(base))
            parts.append(self._entries(queue, base, queue_offset, last))
            queue_offset = last
        return parts

    def search_by_time(self, topic_id: int, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """The queue offset for a store time, ms, with RocketMQ's rules at the edges.

        Lower: the first message at or after ``time_ms``; the end of the queue if all are older. Upper: the last message at or before it;
        the last message if all are older, 0 if all are younger. For an empty queue its end. Source:
        ``ConsumeQueue.binarySearchInQueueByTime``.
        """
        queue = self._queues.get((topic_id, queue_id))
        end = 0 if queue is None else queue.written
        if queue is None or end <= queue.min:
            return end
        low, high = queue.min, end
        while low < high:
            middle = (low + high) // 2
            when = self._entry(queue, middle).store_time_ms
            if when < time_ms or (upper and when == time_ms):
                low = middle + 1
            else:
                high = middle
        if not upper:
            return low
        return low - 1 if low > queue.min else 0

    def find_offset(self, topic_id: int, queue_id: int, message_offset: int) -> Steps[tuple[int, QueueEntry] | None]:
        """(queue offset, entry) of the message whose body is at ``message_offset``, if it is visible.

        It cannot come before the entries that were visible when its body was written, so the search starts there.
        """
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            return None
        start = max(queue.min, self._first_visible_at(queue, message_offset))
        for found in self._search(queue, message_offset.to_bytes(8, "big", signed=True), 0, start):
            if found:
                return found[0]
            yield
        return None

    def find_key(self, topic_id: int, key_hash: int) -> Iterator[list[tuple[int, int, QueueEntry]]]:
        """(queue id, queue offset, entry) of the topic's entries with this key hash, file by file. The caller compares the keys."""
        wanted = key_hash.to_bytes(8, "big", signed=True)
        for queue in list(self._of_topic.get(topic_id, ())):
            for found in self._search(queue, wanted, _KEY_HASH_AT, queue.min):
                yield [(queue.queue_id, at, entry) for at, entry in found]

    def _search(self, queue: Queue, wanted: bytes, field_at: int, start: int) -> Iterator[list[tuple[int, QueueEntry]]]:
        """For each file that still exists: (queue offset, entry) from ``start`` on whose field equals these bytes. A byte search that
        checks the alignment of each hit: up to a millisecond for a file without hits, 40 ms if every entry is one.
        """
        for base in list(queue.bases):
            stop = min(file_end(base), queue.written)
            first = max(start, base)
            if first >= stop or base not in queue.bases:
                continue
            data = self._entries(queue, base, first, stop)
            yield [
                (first + number, QueueEntry._make(QUEUE_ENTRY.unpack_from(data, number * QUEUE_ENTRY_BYTES)))
                for number in sorted(entries_with(wanted, data, QUEUE_ENTRY_BYTES, field_at))
            ]

    def _file(self, queue: Queue, base: int) -> File:
        key = (queue.topic_id, queue.queue_id, base)
        return self._files.files.get(key) or self._files.get(key, queue.path(base))

    def _entry(self, queue: Queue, queue_offset: int) -> QueueEntry:
        base = queue.base_of(queue_offset)
        assert base is not None, (queue.topic_id, queue.queue_id, queue_offset, queue.bases)
        return QueueEntry._make(QUEUE_ENTRY.unpack(self._entries(queue, base, queue_offset, queue_offset + 1)))

    def _entries(self, queue: Queue, base: int, start: int, stop: int) -> bytes:
        """The entries between two queue offsets of one file. Read, not mapped: a truncated file raises an error."""
        file = self._file(queue, base)
        length = (stop - start) * QUEUE_ENTRY_BYTES
        data = file.read((start - base) * QUEUE_ENTRY_BYTES, length)
        if len(data) != length:
            raise StoreDamaged(
                f"{file.path} has {file.size()} bytes instead of {file_bytes(base)}: entries from queue offset {start} on "
                "cannot be read",
                hint="restart the broker: a start rebuilds the queues from the log",
            )
        return data

    def _first_visible_at(self, queue: Queue, position: int, *, zeros_end: bool = False) -> int:
        """The first queue offset that is not visible before ``position``."""
        return first_visible_at(
            queue.bases,
            queue.end,
            lambda base, entries: self._visible(queue, base, entries, position, zeros_end=zeros_end),
        )

    def _visible(self, queue: Queue, base: int, entries_max: int, position: int, *, zeros_end: bool) -> int:
        """``visible_before`` for the entries of the file that exist before the end of the queue."""
        file = self._file(queue, base)
        written = max(0, queue.written - base)
        entries = min(written, entries_max, file.size() // QUEUE_ENTRY_BYTES)
        return visible_before(file.read, entries, position, zeros_end=zeros_end)

    def _end_of_data(self, queue: Queue) -> int:
        """The queue offset after the last possible entry in the files, which are contiguous; a gap ends them."""
        base = queue.bases[-1]
        file = self._file(queue, base)
        start, end = next(iter(file.data_ranges(0)), (0, 0))
        return base + (end // QUEUE_ENTRY_BYTES if start == 0 else 0)
