"""The key index: 16-byte entries (hash, offset) in log order, one file per segment.

It contains only the tokens of KEYS. A message's UNIQ_KEY is found through the key hash in its queue entry, so a message without KEYS
costs nothing. A file is searched backwards for the bytes of a hash; hits that are not aligned to an entry are ignored. The index
gives candidates: the queues tell whether a message is visible, and its properties whether the key matches.

A file is removed with its segment (``segment_entries``).
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from halfmq.model import properties as props
from halfmq.model.ids import unsigned_hash64
from halfmq.model.stored_message import StoredMessage
from halfmq.runtime.disk import Disk
from halfmq.store.layout import KEY_ENTRY, entries_with
from halfmq.store.open_files import OpenFiles
from halfmq.store.segment_entries import SegmentEntries

#: The message of the record at a log offset. LookupError, ValueError or struct.error: there is none.
ReadMessage = Callable[[int], StoredMessage]

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
        self._entries = SegmentEntries(disk, directory, ".key", -2, files, segment_bytes)
        self.flush = self._entries.flush
        self.cut = self._entries.cut
        self.trim = self._entries.trim
        self.reset = self._entries.reset

    def add(self, topic: str, keys: bytes, offset: int) -> None:
        """Stage the keys of a message of ``topic`` whose record starts at ``offset``. ``keys``: the value of its KEYS."""
        hashes = key_hashes(topic, keys)
        if hashes:
            staged = self._entries.staged(offset)
            for value in hashes:  # mostly one, for which a comprehension costs more than the rest
                staged.append(_pack_entry(value, offset))

    def add_many(self, topic: str, offset: int, messages: Iterable[tuple[int, bytes]]) -> None:
        """As ``add``, of messages in one record at ``offset``: (bytes from there to the message, value of KEYS)."""
        staged = self._entries.staged(offset)
        prefix = topic.encode() + b"#"
        for from_start, keys in messages:
            if 32 in keys:
                staged += [_pack_entry(value, offset + from_start) for value in key_hashes(topic, keys)]
            else:
                staged.append(_pack_entry(unsigned_hash64(prefix + keys), offset + from_start))

    def find(self, topic: str, key: str) -> Iterator[list[int]]:
        """Offsets of records whose message may have this key, newest first, from one part of a file after the other. Staged entries
        are not searched.
        """
        wanted = unsigned_hash64(f"{topic}#{key}".encode()).to_bytes(8, "big")
        for start in sorted(self._entries.ends, reverse=True):
            for data in self._entries.parts(start):
                places = [number * _ENTRY_BYTES + 8 for number in entries_with(wanted, data, _ENTRY_BYTES)]
                yield [int.from_bytes(data[at : at + 8], "big") for at in places]

    def load(self, position: int, read_message: ReadMessage) -> None:
        """Find the end of the entries before ``position`` in each file; the redo writes those from there on again."""

        def gives(wanted: bytes, offset: int) -> bool:
            message = read_message(offset)
            return int.from_bytes(wanted, "big") in key_hashes(message.topic, keys_of(message))

        self._entries.load(position, gives)
