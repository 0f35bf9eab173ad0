"""Queues: for each message that is visible, where its body lies, 48 bytes each, in queue order.

An entry's *visible-at* is the offset of the record that made the message visible: its own for a plain message, the
verdict's for a half. It grows along a queue, so a position of the log bounds every queue by binary search, and all
messages of one transaction lie on the same side of every bound. That is also how recovery and trims find their place:
a message lies in the segment of the record that made it visible, so "below the log's start" is a bound like any other.

Files are chunks of 65,536 queue offsets, sparse, full length from the start. The first file of a queue whose
beginning was trimmed away before a rebuild starts inside its chunk, at its first entry; so entries that exist are
always one run, and zeros (visible-at 0) only follow it.

What one writer does: ``add`` entries of a batch, then ``flush`` writes each queue's entries in one write. When that
fails, what was not written stays staged, unseen by readers, and the next ``flush`` writes it: same bytes, same places.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import InvariantViolated, StoreDamaged
from halfmq.runtime.disk import Disk, File
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, QUEUE_FILE_ENTRIES
from halfmq.store.open_files import FileKey, OpenFiles

_VISIBLE_AT: Final = 16
_KEY_HASH_AT: Final = 40
#: Bytes of an entry at a place of its file.
_Read = Callable[[int, int], bytes]


class QueueEntry(NamedTuple):
    """One message in a queue, as ``layout.QUEUE_ENTRY``."""

    offset: int
    message_bytes: int
    tag_hash: int
    visible_at: int
    store_time_ms: int
    half_index: int
    key_hash: int


class Queue:
    """One queue. The fields of the tail file save the hot path a search."""

    __slots__ = (
        "bases",
        "directory",
        "end",
        "known",
        "min",
        "queue_id",
        "staged",
        "tail_base",
        "tail_end",
        "tail_key",
        "topic_id",
    )

    def __init__(self, topic_id: int, queue_id: int, directory: Path) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.directory = directory
        #: First queue offset of each file, sorted.
        self.bases: list[int] = []
        #: First entry that a reader may ask for. min <= end.
        self.min = 0
        #: Next queue offset, staged entries included. Readers see those before ``end - len(staged)``.
        self.end = 0
        #: False while nothing says where the queue stands: its next entry does.
        self.known = False
        #: Encoded entries below ``end`` that are not in the file yet.
        self.staged: list[bytes] = []
        #: The file that was written last: its first offset, the first one after it, its key.
        self.tail_base = 0
        self.tail_end = 0
        self.tail_key: FileKey = (topic_id, queue_id, -1)

    def path(self, base: int) -> Path:
        return self.directory / f"{base:020d}.q"

    def base_of(self, queue_offset: int) -> int | None:
        """The file that holds ``queue_offset``, by its base."""
        for base in reversed(self.bases):
            if base <= queue_offset:
                return base if queue_offset < file_end(base) else None
        return None

    def turn_to(self, queue_offset: int) -> None:
        """Make the file that holds ``queue_offset`` the tail; a new one begins there if none does."""
        base = self.base_of(queue_offset)
        if base is None:
            base = queue_offset
            self.bases = sorted([*self.bases, base])
        self.tail_base = base
        self.tail_end = file_end(base)
        self.tail_key = (self.topic_id, self.queue_id, base)


def file_end(base: int) -> int:
    """First queue offset after the file that starts at ``base``: files end on multiples of their chunk."""
    return base - base % QUEUE_FILE_ENTRIES + QUEUE_FILE_ENTRIES


def file_bytes(base: int) -> int:
    """Length of the file that starts at queue offset ``base``."""
    return (file_end(base) - base) * QUEUE_ENTRY_BYTES


def visible_before(read: _Read, entries: int, position: int, *, zeros_end: bool = True) -> int:
    """How many of the first ``entries`` of a queue file became visible below ``position`` of the log.

    ``zeros_end``: zeros are no entries. Otherwise there is nothing else, and zeros are damage, which a reader shall meet
    and not wait behind.
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


def list_queues(disk: Disk, directory: Path) -> Iterator[tuple[int, int, Path]]:
    """(topic id, queue id, its directory) of every queue below ``directory``."""
    for topic in disk.list(directory):
        if topic.isdigit():
            for queue in disk.list(directory / topic):
                if queue.isdigit():
                    yield int(topic), int(queue), directory / topic / queue


def list_bases(disk: Disk, directory: Path, suffix: str) -> list[int]:
    """Numbers that files of ``directory`` are named by, sorted."""
    return sorted(int(name[:20]) for name in disk.list(directory) if name.endswith(suffix) and name[:20].isdigit())


class ConsumeQueues:
    """All queues of a shard. One writer; reads by the same thread."""

    def __init__(self, disk: Disk, directory: Path, files: OpenFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._queues: dict[tuple[int, int], Queue] = {}
        #: The same by topic.
        self._of_topic: dict[int, list[Queue]] = {}
        #: Queues with staged entries.
        self._touched: list[Queue] = []
        #: Whether a queue of which nothing is known may begin at any offset: in a redo, and once the log was trimmed.
        self._begins_anywhere = False
        #: Entries that were written; only grows.
        self.entries_written = 0

    # --- writing

    def add(self, topic_id: int, queue_id: int, queue_offset: int, entry: bytes) -> None:
        """Stage one encoded entry; ``flush`` writes it.

        Raises:
            InvariantViolated: ``queue_offset`` is not the end of the queue, so log and queue disagree.
        """
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
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

    def flush(self) -> None:
        """Write what was staged: one write per queue, two where a file ends in between.

        Raises:
            OSError: a write failed; what was not written is still staged.
        """
        try:
            self._flush()
        except OSError:
            self._touched = [queue for queue in self._touched if queue.staged]
            raise
        self._touched.clear()

    def _flush(self) -> None:
        files = self._files
        opened = files.files
        dirty = files.dirty
        written = 0
        for queue in self._touched:
            staged = queue.staged
            written += len(staged)
            start = queue.end - len(staged)
            if queue.end > queue.tail_end or start < queue.tail_base:
                self._write_across_files(queue, start)
            else:
                file = opened.get(queue.tail_key) or self._create_tail(queue)
                file.write((start - queue.tail_base) * QUEUE_ENTRY_BYTES, staged)
                dirty[file] = None
            queue.staged = []
            queue.known = True
        self.entries_written += written

    def _write_across_files(self, queue: Queue, start: int) -> None:
        staged = queue.staged
        while staged:
            base = queue.base_of(start)
            if base is None:
                base = start
            # The file first: a queue must not name one that could not be made.
            file = self._files.create((queue.topic_id, queue.queue_id, base), queue.path(base), file_bytes(base))
            queue.turn_to(start)
            space = queue.tail_end - start
            at = (start - queue.tail_base) * QUEUE_ENTRY_BYTES
            self._files.write(file, at, staged[:space])
            staged = staged[space:]
            start += space

    def _create_tail(self, queue: Queue) -> File:
        return self._files.create(queue.tail_key, queue.path(queue.tail_base), file_bytes(queue.tail_base))

    def _new(self, topic_id: int, queue_id: int) -> Queue:
        queue = Queue(topic_id, queue_id, self._directory / str(topic_id) / str(queue_id))
        self._queues[(topic_id, queue_id)] = queue
        self._of_topic.setdefault(topic_id, []).append(queue)
        return queue

    def _start_at(self, queue: Queue, queue_offset: int) -> None:
        """A queue of which nothing is known begins where its first entry says (the log before it was trimmed)."""
        if queue.known or queue.staged or not self._begins_anywhere:
            raise InvariantViolated(
                f"topic {queue.topic_id} queue {queue.queue_id}: the log gives queue offset {queue_offset}, "
                f"the queue ends at {queue.end}",
                hint="keep the directory; `halfmq store verify` names the first difference",
            )
        if queue.base_of(queue_offset) is None:
            for base in list(queue.bases):
                self._drop_file(queue, base)
        queue.min = queue.end = queue_offset

    def begin_at(self, topic_id: int, queue_id: int, queue_offset: int) -> None:
        """Where a queue stands of which the log holds no message any more: empty, but not new. For recovery."""
        queue = self._queues.get((topic_id, queue_id)) or self._new(topic_id, queue_id)
        if not queue.known and not queue.end:
            queue.min = queue.end = queue_offset
            queue.known = True

    # --- life

    def load(self, position: int, log_start: int) -> None:
        """Read where every queue stands below ``position``; entries from there on are written again by the redo."""
        self._queues.clear()
        self._of_topic.clear()
        self._touched.clear()
        self._begins_anywhere = True
        for topic_id, queue_id, directory in list_queues(self._disk, self._directory):
            bases = list_bases(self._disk, directory, ".q")
            if bases:
                queue = self._new(topic_id, queue_id)
                queue.bases = bases
                queue.end = self._end_of_data(queue)
                first = self._first_visible_at(queue, log_start, zeros_end=True)
                queue.end = self._first_visible_at(queue, position, zeros_end=True)
                queue.known = queue.end > queue.bases[0]
                queue.min = min(first, queue.end)

    def difference(self, bounds: Iterable[tuple[int, int, int, int]], log_start: int) -> str | None:
        """Where what ``load`` found is not what the log once said; None: nowhere. Call it before the redo.

        ``bounds``: (topic id, queue id, first, one past the last) queue offset of every queue at the loaded position, as
        of a log that starts at ``log_start``. Looks at where files begin and end, not at each entry.
        """
        for topic_id, queue_id, first, end in bounds:
            queue = self._queues.get((topic_id, queue_id))
            if queue is None or not queue.bases:
                if first < end:  # an empty queue may have lost its files to a trim
                    return f"topic {topic_id} queue {queue_id}: its files are gone, it had {first} to {end}"
            elif queue.end != end or (first < end and self._first_visible_at(queue, log_start) != first):
                found = f"{self._first_visible_at(queue, log_start)} to {queue.end}"
                return f"topic {topic_id} queue {queue_id} has {found} instead of {first} to {end}"
            elif first < end and (gap := self._gap(queue, first, end)) is not None:
                return f"topic {topic_id} queue {queue_id}: {gap} is missing or too short"
        return None

    def _gap(self, queue: Queue, first: int, end: int) -> Path | None:
        """The first file of the queue that is not there, or not whole, between ``first`` and ``end``."""
        while first < end:
            base = queue.base_of(first)
            if base is None:
                return queue.path(first)
            file = self._files.get((queue.topic_id, queue.queue_id, base), queue.path(base))
            first = file_end(base)
            if first <= end and file.size() < file_bytes(base):
                return queue.path(base)
        return None

    def cut(self, log_start: int) -> None:
        """Make zero whatever lies after the end of each queue: entries of a log end that did not survive."""
        self.flush()
        self._begins_anywhere = log_start > 0
        for queue in self._queues.values():
            for base in list(queue.bases):
                if base >= queue.end and queue.known:
                    self._drop_file(queue, base)
                elif file_end(base) > queue.end:
                    file = self._files.get((queue.topic_id, queue.queue_id, base), queue.path(base))
                    self._files.lengthen(file, file_bytes(base))
                    self._files.zero(file, max(0, queue.end - base) * QUEUE_ENTRY_BYTES, file_bytes(base))

    def trim(self, log_start: int) -> None:
        """Entries that became visible below ``log_start`` are gone; files that hold no others are removed.

        The newest file of a queue stays, so that the queue's end is known without the log.
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
        """Remove all queues of the topic, with what is staged for them."""
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
        """Remove every file; queues begin where their next entries say. Readers keep what they have mapped."""
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
        """(first, one past the last) queue offset, of what is visible below ``below_position``. (0, 0): no such queue."""
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            return 0, 0
        end = queue.end - len(queue.staged)
        if below_position is not None:
            end = min(end, self._first_visible_at(queue, below_position))
        return min(queue.min, end), end

    def read(
        self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int, below_position: int
    ) -> list[QueueEntry]:
        """Up to ``entries_max`` entries from ``queue_offset`` on that became visible below ``below_position``.

        Empty when ``queue_offset`` is outside of the queue's bounds: ask ``bounds`` which side.

        Raises:
            StoreDamaged: a file is shorter than it was.
            OSError: a file is not there, or the disk cannot read it.
        """
        queue = self._queues.get((topic_id, queue_id))
        if queue is None or queue_offset < queue.min:
            return []
        found: list[QueueEntry] = []
        stop = min(queue.end - len(queue.staged), queue_offset + entries_max)
        make = QueueEntry._make
        while queue_offset < stop:
            base = queue.base_of(queue_offset)
            if base is None:
                break
            last = min(stop, file_end(base))
            found.extend(map(make, QUEUE_ENTRY.iter_unpack(self._entries(queue, base, queue_offset, last))))
            queue_offset = last
        while found and found[-1].visible_at >= below_position:
            found.pop()
        return found

    def search_by_time(self, topic_id: int, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """The queue offset at a store time, ms, with RocketMQ's rules at the edges.

        Lower: the first message at or after ``time_ms``; the queue's end when all are older. Upper: the last message at
        or before it; the last message when all are older, 0 when all are younger. An empty queue: its end.
        Source: ``ConsumeQueue.binarySearchInQueueByTime``.
        """
        queue = self._queues.get((topic_id, queue_id))
        end = 0 if queue is None else queue.end - len(queue.staged)
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

    def find_offset(self, topic_id: int, queue_id: int, message_offset: int) -> tuple[int, QueueEntry] | None:
        """(queue offset, entry) of the message whose body lies at ``message_offset``, if it is visible.

        It cannot stand before the entries that were visible when its body was written, so the search starts there.
        """
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            return None
        start = max(queue.min, self._first_visible_at(queue, message_offset))
        for at in self._search(queue, message_offset.to_bytes(8, "big", signed=True), 0, start):
            return at, self._entry(queue, at)
        return None

    def find_key(self, topic_id: int, key_hash: int) -> Iterator[tuple[int, int, QueueEntry]]:
        """(queue id, queue offset, entry) of entries of the topic with this key hash; the caller compares the keys."""
        wanted = key_hash.to_bytes(8, "big", signed=True)
        for queue in list(self._of_topic.get(topic_id, ())):
            for at in self._search(queue, wanted, _KEY_HASH_AT, queue.min):
                yield queue.queue_id, at, self._entry(queue, at)

    def _search(self, queue: Queue, wanted: bytes, field_at: int, start: int) -> Iterator[int]:
        """Queue offsets from ``start`` on whose field holds these bytes: a byte search, checked for its place."""
        for base in list(queue.bases):
            stop = min(file_end(base), queue.end - len(queue.staged))
            first = max(start, base)
            if first >= stop:
                continue
            data = self._entries(queue, base, first, stop)
            at = data.find(wanted)
            while at >= 0:
                if at % QUEUE_ENTRY_BYTES == field_at:
                    yield first + at // QUEUE_ENTRY_BYTES
                at = data.find(wanted, at + 1)

    def _entry(self, queue: Queue, queue_offset: int) -> QueueEntry:
        base = queue.base_of(queue_offset)
        assert base is not None, (queue.topic_id, queue.queue_id, queue_offset, queue.bases)
        return QueueEntry._make(QUEUE_ENTRY.unpack(self._entries(queue, base, queue_offset, queue_offset + 1)))

    def _entries(self, queue: Queue, base: int, start: int, stop: int) -> bytes:
        """The entries between two queue offsets of one file. Read and not mapped: a file that somebody cut short is an error."""
        key = (queue.topic_id, queue.queue_id, base)
        file = self._files.files.get(key) or self._files.get(key, queue.path(base))
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
        """The first queue offset that is not visible below ``position``.

        The files before the last one whose first entry is visible are full, so only that one is searched.
        """
        bases = queue.bases
        low, high = 0, len(bases)
        while low < high:
            middle = (low + high) // 2
            if self._visible(queue, bases[middle], 1, position, zeros_end=zeros_end):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return bases[0] if bases else queue.end
        return bases[low - 1] + self._visible(queue, bases[low - 1], QUEUE_FILE_ENTRIES, position, zeros_end=zeros_end)

    def _visible(self, queue: Queue, base: int, entries_max: int, position: int, *, zeros_end: bool) -> int:
        """``visible_before`` of the first entries of the file: of those before the queue's end that are there."""
        file = self._files.get((queue.topic_id, queue.queue_id, base), queue.path(base))
        written = max(0, queue.end - len(queue.staged) - base)
        entries = min(written, entries_max, file.size() // QUEUE_ENTRY_BYTES)
        return visible_before(file.read, entries, position, zeros_end=zeros_end)

    def _end_of_data(self, queue: Queue) -> int:
        """The queue offset after the last entry that may be in the files, which hold one run of them: a hole follows."""
        base = queue.bases[-1]
        file = self._files.get((queue.topic_id, queue.queue_id, base), queue.path(base))
        start, end = next(iter(file.data_ranges(0)), (0, 0))
        return base + (end // QUEUE_ENTRY_BYTES if start == 0 else 0)
