"""The settled ids: where the log has the verdict of a transaction whose id the application chose.

An application may use an id again, long after the verdict left memory. The index answers "never settled" for a new id, the common case,
without reading the disk, and otherwise names the verdict's record, whose names the caller compares. Ids that clients generate are never
used again and are not in it; a rolled-back transaction of a RocketMQ client is, since its record does not tell.

On disk: 16-byte entries (hash of group and id, log offset of the verdict) in log order, one file per segment, removed with it
(``segment_entries``). In memory: 12 bytes for each entry, in 65,536 buckets. A start does not read the files. They are read in parts
afterwards, ``read_part`` on another thread and ``use_part`` on the writer's; until ``is_ready`` searches must wait.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from halfmq.model.ids import is_generated_id, is_unique_id
from halfmq.model.records import Committed, Decided, RolledBack
from halfmq.runtime.disk import Disk
from halfmq.store.layout import SEGMENT_ENTRY_BYTES, SETTLED_ID_ENTRY, entries_with
from halfmq.store.open_files import OpenFiles
from halfmq.store.segment_entries import SegmentEntries

#: The verdict record at a log offset. LookupError or StoreDamaged: there is none.
ReadVerdict = Callable[[int], Committed | RolledBack | Decided]

#: An entry in memory: the third to sixth byte of the hash, and the log offset. The first two bytes name the bucket.
_HASH_BYTES: Final = 4
_ENTRY_BYTES: Final = _HASH_BYTES + 8
#: Entries in a part: ``use_part`` takes 0.6 ms on the loop. A thread that did all of it would keep the interpreter from the loop for
#: longer.
_PART_ENTRIES: Final = 1_024
_pack_entry: Final = SETTLED_ID_ENTRY.pack
_split: Final = Struct(">2s4s2x8s").iter_unpack


def id_hash(group: str, tx_id: str) -> bytes:
    """8 bytes. Not ``hash64``, whose two halves depend on each other: an application could choose ids that all have one hash."""
    return blake2b(f"{group}\0{tx_id}".encode(), digest_size=8).digest()


def is_chosen(record: Committed | RolledBack | Decided) -> bool:
    """Whether the id of this verdict's transaction must be found again: a client may not have generated it."""
    if type(record) is Committed and is_unique_id(record.tx_id, record.refs[0].key_hash):
        return False
    if type(record) is Decided and record.digest:  # a batch of a query, whose decisions the state knows
        return False
    return not is_generated_id(record.tx_id)


class Part(NamedTuple):
    """A part of a file with entries: ``length`` bytes from ``at`` on."""

    path: Path
    at: int
    length: int


class IdPositions:
    """Log offsets by hash, in memory."""

    __slots__ = ("_buckets", "newest")

    def __init__(self) -> None:
        self._buckets: dict[bytes, bytearray] = {}
        #: -1: empty.
        self.newest = -1

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values())) // _ENTRY_BYTES

    def add(self, hashed: bytes, position: int, log_start: bytes) -> None:
        """Add an entry; positions increase. ``log_start``: 8 bytes, big-endian; entries of this bucket before it are removed."""
        entry = hashed[2:6] + position.to_bytes(8, "big")
        self.newest = position
        bucket = self._buckets.get(hashed[:2])
        if bucket is None:
            self._buckets[hashed[:2]] = bytearray(entry)
            return
        while bucket and bucket[_HASH_BYTES:_ENTRY_BYTES] < log_start:
            del bucket[:_ENTRY_BYTES]
        bucket += entry

    def add_all(self, entries: bytes) -> None:
        """Add the entries of a part of a file."""
        buckets = self._buckets
        for head, rest, position in _split(entries):
            bucket = buckets.get(head)
            if bucket is None:
                buckets[head] = bytearray(rest + position)
            else:
                bucket += rest + position
        if entries:
            self.newest = int.from_bytes(entries[-8:], "big")

    def find(self, hashed: bytes) -> Iterator[int]:
        """Positions with this hash, newest first. Those before the log's start may be among them."""
        bucket = self._buckets.get(hashed[:2])
        if bucket is None:
            return
        for number in entries_with(hashed[2:6], bucket, _ENTRY_BYTES):
            at = number * _ENTRY_BYTES
            yield int.from_bytes(bucket[at + _HASH_BYTES : at + _ENTRY_BYTES], "big")


class SettledIds:
    """One thread writes and reads; ``read_part`` may run on another."""

    def __init__(self, disk: Disk, directory: Path, files: OpenFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._entries = SegmentEntries(disk, directory, ".ids", -4, files, segment_bytes)
        self.flush = self._entries.flush
        self.cut = self._entries.cut
        #: Verdicts since ``load``, and those before.
        self._recent = IdPositions()
        self._older = IdPositions()
        #: Parts of the files with the latter that were not read yet, the first one last.
        self._unread: list[Part] = []
        self._log_start = bytes(8)

    def add(self, record: Committed | RolledBack | Decided) -> None:
        """Stage the verdict, if the id must be found again. Searches find it at once."""
        if is_chosen(record):
            position = record.offset
            hashed = id_hash(record.group, record.tx_id)
            self._recent.add(hashed, position, self._log_start)
            self._entries.staged(position).append(_pack_entry(hashed, position))

    def find(self, group: str, tx_id: str) -> list[int]:
        """Log offsets of verdicts that may be of this transaction, newest first; only while ``is_ready``. Some may be before the log."""
        assert not self._unread, "find before the index was read"
        hashed = id_hash(group, tx_id)
        return [*self._recent.find(hashed), *self._older.find(hashed)]

    # --- entries of earlier runs

    @property
    def is_ready(self) -> bool:
        """Whether the entries of earlier runs were read."""
        return not self._unread

    @property
    def next_part(self) -> Part | None:
        """What to pass to ``read_part``, then with the result to ``use_part``; None: the index is ready."""
        return self._unread[-1] if self._unread else None

    def read_part(self, part: Part) -> bytes:
        """Read it; any thread. Nothing if its segment was trimmed meanwhile.

        Raises:
            OSError: the file cannot be read; try again, searches are impossible until then.
        """
        try:
            with closing(self._disk.open(part.path, writable=False)) as file:
                return file.read(part.at, part.length)
        except FileNotFoundError:
            return b""

    def use_part(self, part: Part, entries: bytes) -> None:
        """Search these entries as well from now on. Other parts than the next one are ignored."""
        if self._unread and self._unread[-1] is part:
            self._unread.pop()
            self._older.add_all(entries)

    # --- life

    def load(self, position: int, read_verdict: ReadVerdict) -> None:
        """Find the end of the entries before ``position`` in each file; the redo writes those from there on again."""

        def gives(hashed: bytes, offset: int) -> bool:
            record = read_verdict(offset)
            return is_chosen(record) and hashed == id_hash(record.group, record.tx_id)

        self._entries.load(position, gives)
        self._forget()
        part_bytes = _PART_ENTRIES * SEGMENT_ENTRY_BYTES
        for start, end in sorted(self._entries.ends.items(), reverse=True):
            for at in reversed(range(0, end, part_bytes)):
                self._unread.append(Part(self._entries.path(start), at, min(part_bytes, end - at)))

    def trim(self, log_start: int) -> None:
        """Remove the files of segments that end at or before log offset ``log_start``. Memory follows with time."""
        self._entries.trim(log_start)
        self._log_start = log_start.to_bytes(8, "big")
        if not self._unread and self._older.newest < log_start:
            self._older = IdPositions()

    def reset(self) -> None:
        """Remove all files and entries."""
        self._entries.reset()
        self._forget()

    def _forget(self) -> None:
        self._recent = IdPositions()
        self._older = IdPositions()
        self._unread = []
