"""Rows that are grouped by a key, or sorted, in bounded memory.

The checker brings together what belongs together: all rows of one message, of one transaction, of one queue. While
they fit into the budget they are lists. When they do not, a ``Shuffle`` writes each of its partitions (by hash of the
key) to a file of its own, and gives back one partition after another; an ``ExternalSort`` writes sorted runs and
merges them.

Rows are tuples of integers, strings, None, and tuples of these. What comes back from a file has lists for inner tuples.

What a row costs in memory is not measured but bounded by what was read: ``MEMORY_PER_BYTE`` times the bytes of the
lines that the rows came from.
"""

import heapq
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

Row = tuple[Any, ...]

#: Memory of rows per byte of input, with everything that is made from them; measured at 2.0 to 3.2.
MEMORY_PER_BYTE: Final = 4
#: Most open files of a shuffle; more data than this times the budget makes partitions larger than asked for.
PARTITIONS_MAX: Final = 512
#: Rows per block in a file; as many of each run are in memory while runs are merged.
_AT_ONCE: Final = 512

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


class SpillDirectory:
    """Where rows go that outgrow memory; made when the first one does, and removed at the end."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.bytes_written = 0

    def file(self, name: str) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="halfmq-history-", dir=self._parent)
        return Path(self._directory.name) / name

    def append(self, name: str, rows: list[Row]) -> Path:
        path = self.file(name)
        with path.open("ab") as file:
            for at in range(0, len(rows), _AT_ONCE):
                block = _encode(rows[at : at + _AT_ONCE])
                file.write(len(block).to_bytes(4, "big") + block)
                self.bytes_written += 4 + len(block)
        return path

    def close(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def _read(path: Path) -> Iterator[list[Row]]:
    with path.open("rb") as file:
        while head := file.read(4):
            yield _decode(file.read(int.from_bytes(head, "big")))


class Shuffle:
    """Rows by their first field. ``add`` takes one."""

    def __init__(self, name: str, partitions: int, directory: SpillDirectory) -> None:
        self.name = name
        self.count = partitions
        self.parts: list[list[Row]] = [[] for _ in range(partitions)]
        # With one partition there is nothing to choose: this is called for every event.
        self.add: Callable[[Row], None] = self.parts[0].append if partitions == 1 else self._add
        self._directory = directory
        self._files: dict[int, Path] = {}

    def _add(self, row: Row) -> None:
        self.parts[hash(row[0]) % self.count].append(row)

    def spill(self) -> None:
        """Everything in memory goes to files."""
        for number, rows in enumerate(self.parts):
            if rows:
                self._files[number] = self._directory.append(f"{self.name}-{number}", rows)
                rows.clear()

    def partitions(self) -> Iterator[list[Row]]:
        """One after the other; each is gone after it was given."""
        for number in range(self.count):
            rows: list[Row] = []
            if number in self._files:
                path = self._files.pop(number)
                for block in _read(path):
                    rows += block
                path.unlink()
            rows += self.parts[number]
            self.parts[number].clear()
            if rows:
                yield rows


class ExternalSort:
    """Rows in their order. ``rows`` may be appended to directly."""

    def __init__(self, name: str, directory: SpillDirectory) -> None:
        self.rows: list[Row] = []
        self._name = name
        self._directory = directory
        self._runs: list[Path] = []

    def spill(self) -> None:
        if self.rows:
            self.rows.sort()
            self._runs.append(self._directory.append(f"{self._name}-{len(self._runs)}", self.rows))
            self.rows.clear()

    def sorted(self) -> Iterator[Row]:
        """All rows, once; memory for one block of each run."""
        self.rows.sort()
        if not self._runs:
            yield from self.rows
        else:
            yield from heapq.merge(self.rows, *map(_rows_of, self._runs))
        self.rows.clear()


def _rows_of(path: Path) -> Iterator[Row]:
    for block in _read(path):
        yield from block
