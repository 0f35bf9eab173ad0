"""The settled ids: where the log has the verdict of a transaction whose id the application chose.

An application may use an id again, long after the verdict left memory. The index answers "never settled" for a new id, the common case,
without reading the disk, and otherwise names the verdict's record, whose names the caller compares. Ids that clients generate are never
used again and are not in it; a rolled-back transaction of a RocketMQ client is, since its record does not tell.

On disk: 16-byte entries (hash of group and id, log offset of the verdict) in log order, one file per segment, removed with it
(``segment_entries``). In memory: 12 bytes for each entry, in 65,536 buckets. A start does not read the files: ``read_older`` does, on
another thread, and until ``use_older`` searches must wait.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final

from halfmq.model.ids import is_generated_id, is_unique_id
from halfmq.model.records import Committed, RolledBack
from halfmq.runtime.disk import Disk
from halfmq.store.layout import SEGMENT_ENTRY_BYTES, SETTLED_ID_ENTRY
from halfmq.store.open_files import OpenFiles
from halfmq.store.segment_entries import SegmentEntries

#: The verdict record at a log offset. LookupError or StoreDamaged: there is none.
ReadVerdict = Callable[[int], Committed | RolledBack]

#: An entry in memory: the third to sixth byte of the hash, and the log offset. The first two bytes name the bucket.
_HASH_BYTES: Final = 4
_ENTRY_BYTES: Final = _HASH_BYTES + 8
#: Entries read at once by ``read_older``: 0.3 ms, so that the loop's thread runs in between.
_READ_ENTRIES: Final = 1_024
_pack_entry: Final = SETTLED_ID_ENTRY.pack
_split: Final = Struct(">2s4s2x8s").iter_unpack


def id_hash(group: str, tx_id: str) -> bytes:
    """8 bytes. Not ``hash64``, whose two halves depend on each other: an application could choose ids that all have one hash."""
    return blake2b(f"{group}\0{tx_id}".encode(), digest_size=8).digest()


def is_chosen(record: Committed | RolledBack) -> bool:
    """Whether the id of this verdict's transaction must be found again: a client may not have generated it."""
    if type(record) is Committed and is_unique_id(record.tx_id, record.refs[0].key_hash):
        return False
    return not is_generated_id(record.tx_id)


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
        wanted = hashed[2:6]
        at = bucket.rfind(wanted)
        while at >= 0:
            if at % _ENTRY_BYTES == 0:
                yield int.from_bytes(bucket[at + _HASH_BYTES : at + _ENTRY_BYTES], "big")
            at = bucket.rfind(wanted, 0, at + _HASH_BYTES - 1)


class SettledIds:
    """One thread writes and reads; ``read_older`` may run on another."""

    def __init__(self, disk: Disk, directory: Path, files: OpenFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._entries = SegmentEntries(disk, directory, ".ids", -4, files, segment_bytes)
        self.flush = self._entries.flush
        self.cut = self._entries.cut
        #: Verdicts since ``load``, and those before; None: not read yet.
        self._recent = IdPositions()
        self._older: IdPositions | None = None
        #: (file, number of bytes) to read for the latter, in log order.
        self._unread: list[tuple[Path, int]] = []
        self._log_start = bytes(8)

    def add(self, record: Committed | RolledBack) -> None:
        """Stage the verdict, if the id must be found again. Searches find it at once."""
        if is_chosen(record):
            position = record.offset
            hashed = id_hash(record.group, record.tx_id)
            self._recent.add(hashed, position, self._log_start)
            self._entries.staged(position).append(_pack_entry(hashed, position))

    def find(self, group: str, tx_id: str) -> list[int]:
        """Log offsets of verdicts that may be of this transaction, newest first; only while ``is_ready``."""
        assert self._older is not None, "find before use_older"
        hashed = id_hash(group, tx_id)
        return [*self._recent.find(hashed), *self._older.find(hashed)]

    @property
    def is_ready(self) -> bool:
        """Whether the entries of earlier runs were read."""
        return self._older is not None

    def read_older(self) -> IdPositions:
        """Read the entries that were there at ``load``; any thread. Pass the result to ``use_older``.

        Raises:
            OSError: a file cannot be read; searches are impossible until another call succeeds.
        """
        older = IdPositions()
        for path, length in list(self._unread):
            try:
                file = self._disk.open(path, writable=False)
            except FileNotFoundError:  # trimmed meanwhile
                continue
            try:
                for at in range(0, length, _READ_ENTRIES * SEGMENT_ENTRY_BYTES):
                    older.add_all(file.read(at, min(_READ_ENTRIES * SEGMENT_ENTRY_BYTES, length - at)))
            finally:
                file.close()
        return older

    def use_older(self, older: IdPositions) -> None:
        """Search these entries as well from now on."""
        self._older = older
        self._unread.clear()

    def load(self, position: int, read_verdict: ReadVerdict) -> None:
        """Find the end of the entries before ``position`` in each file; the redo writes those from there on again."""

        def gives(hashed: bytes, offset: int) -> bool:
            record = read_verdict(offset)
            return is_chosen(record) and hashed == id_hash(record.group, record.tx_id)

        self._entries.load(position, gives)
        self._forget()
        self._unread = [(self._entries.path(start), end) for start, end in sorted(self._entries.ends.items()) if end]

    def trim(self, log_start: int) -> None:
        """Remove the files of segments that end at or before log offset ``log_start``. Memory follows with time."""
        self._entries.trim(log_start)
        self._log_start = log_start.to_bytes(8, "big")
        if self._older is not None and self._older.newest < log_start:
            self._older = IdPositions()

    def reset(self) -> None:
        """Remove all files and entries."""
        self._entries.reset()
        self._forget()

    def _forget(self) -> None:
        self._recent = IdPositions()
        self._older = None
        self._unread = []
