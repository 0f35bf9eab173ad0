"""The key index: 16-byte entries (hash, offset) in log order, one file per segment.

It contains only the tokens of KEYS. A message's UNIQ_KEY is found through the key hash in its queue entry, so a message without KEYS
costs nothing. A file is searched backwards for the bytes of a hash; hits that are not aligned to an entry are ignored. The index
gives candidates: the queues tell whether a message is visible, and its properties whether the key matches.

A file is removed with its segment. Bytes after its end are meaningless; a redo cuts them.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from halfmq.errors import StoreDamaged
from halfmq.model import properties as props
from halfmq.model.ids import unsigned_hash64
from halfmq.model.stored_message import StoredMessage
from halfmq.runtime.disk import Disk, File
from halfmq.store.consume_queue import list_bases
from halfmq.store.layout import KEY_ENTRY
from halfmq.store.open_files import OpenFiles

#: (kind, message) of the record at a log offset. LookupError, ValueError or struct.error: there is no message.
ReadMessage = Callable[[int], tuple[int, StoredMessage]]

_ENTRY_BYTES: Final = KEY_ENTRY.size
_pack_entry: Final = KEY_ENTRY.pack


def key_hashes(topic: str, keys: bytes) -> list[int]:
    """One ``unsigned_hash64`` for each token of ``keys``, the value of KEYS: tokens are separated by blanks.

    Source: ``MessageConst.KEY_SEPARATOR``.
    """
    prefix = topic.encode() + b"#"
    # A blank, as a number: CPython 3.11 tries whether ``b" "`` is one, and raises and clears a TypeError, which takes 2,000 instructions.
    if 32 not in keys:
        return [unsigned_hash64(prefix + keys)] if keys else []
    return [unsigned_hash64(prefix + token) for token in dict.fromkeys(keys.split(b" ")) if token]


def keys_of(message: StoredMessage) -> bytes:
    """The value of KEYS, read from the message's properties."""
    return props.find(message.properties, props.KEYS) or b""


class KeyIndex:
    """One thread writes and reads."""

    def __init__(self, disk: Disk, directory: Path, files: OpenFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._segment_bytes = segment_bytes
        #: Segment start -> number of valid bytes.
        self._ends: dict[int, int] = {}
        #: Segment start -> entries that are not in the file yet.
        self._staged: dict[int, list[bytes]] = {}

    def add(self, topic: str, keys: bytes, offset: int) -> None:
        """Stage the keys of a message of ``topic`` whose record starts at ``offset``. ``keys``: the value of its KEYS."""
        hashes = key_hashes(topic, keys)
        if hashes:
            start = offset - offset % self._segment_bytes
            try:
                staged = self._staged[start]
            except KeyError:
                staged = self._staged[start] = []
            for value in hashes:  # mostly one, for which a comprehension costs more than the rest
                staged.append(_pack_entry(value, offset))

    def flush(self) -> None:
        """Write the staged entries.

        Raises:
            OSError: a write failed; the unwritten entries are still staged.
        """
        while self._staged:
            start, staged = next(iter(self._staged.items()))
            end = self._ends.get(start, 0)
            key = (-2, -2, start)
            file = self._files.files.get(key) or self._files.create(key, self._path(start), 0)
            self._files.write(file, end, staged)
            self._ends[start] = end + len(staged) * _ENTRY_BYTES
            del self._staged[start]

    def find(self, topic: str, key: str) -> Iterator[int]:
        """Offsets of records whose message may have this key, newest first. Staged entries are not searched."""
        wanted = unsigned_hash64(f"{topic}#{key}".encode()).to_bytes(8, "big")
        for start in sorted(self._ends, reverse=True):
            data = self._files.get((-2, -2, start), self._path(start)).read(0, self._ends[start])
            at = data.rfind(wanted)
            while at >= 0:
                if at % _ENTRY_BYTES == 0:
                    yield int.from_bytes(data[at + 8 : at + 16], "big")
                at = data.rfind(wanted, 0, at + 7)

    def load(self, position: int, read_message: ReadMessage) -> None:
        """Find the end of the entries before ``position`` in each file; the redo writes those from there on again.

        The last entry may be torn: an offset without its last bytes looks like a smaller one.
        """
        self._staged.clear()
        self._ends.clear()
        for start in list_bases(self._disk, self._directory, ".key"):
            file = self._files.get((-2, -2, start), self._path(start))
            count = _entries_below(file, position)
            if start + self._segment_bytes > position:
                while count and not _is_whole(file, count - 1, position, read_message):
                    count -= 1
            self._ends[start] = count * _ENTRY_BYTES

    def cut(self) -> None:
        """Truncate each file after its end. These files are not mapped, so they may shrink."""
        self.flush()
        for start, end in self._ends.items():
            file = self._files.get((-2, -2, start), self._path(start))
            if file.size() > end:
                file.truncate(end)
                self._files.write(file, end, [b""])

    def trim(self, log_start: int) -> None:
        """Remove the files of segments that end at or before log offset ``log_start``."""
        for start in [start for start in self._ends if start + self._segment_bytes <= log_start]:
            del self._ends[start]
            self._files.remove((-2, -2, start), self._path(start))

    def reset(self) -> None:
        """Remove all files."""
        self._staged.clear()
        self._ends = dict.fromkeys(list_bases(self._disk, self._directory, ".key"), 0)
        self.trim(1 << 62)

    def _path(self, start: int) -> Path:
        return self._directory / f"{start:020d}.key"


def _entries_below(file: File, position: int) -> int:
    """Number of entries of records before ``position``. Offsets increase along the file; zeros after a crash are no entries."""
    low, high = 0, file.size() // _ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if 0 < int.from_bytes(file.read(middle * _ENTRY_BYTES + 8, 8), "big") < position:
            low = middle + 1
        else:
            high = middle
    return low


def _is_whole(file: File, number: int, position: int, read_message: ReadMessage) -> bool:
    """Whether the entry belongs to a message before ``position`` that has the key."""
    value, offset = KEY_ENTRY.unpack(file.read(number * _ENTRY_BYTES, _ENTRY_BYTES))
    if not 0 < offset < position:
        return False
    try:
        message = read_message(offset)[1]
        return value in key_hashes(message.topic, keys_of(message))
    except (LookupError, ValueError, struct.error, StoreDamaged):
        return False
