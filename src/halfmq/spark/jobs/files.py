"""Rows to Parquet files, written by the tasks with pyarrow, which takes a half to a third of the time of Spark's own Parquet writer. The
rows of one read can be divided between several tables.

A file becomes part of a table only when the driver lists it (``tables.py``): the attempt of a task that failed or was overtaken leaves a
file that is in no list.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from halfmq.spark.sink.checkpoint import sync

_LISTED: Final = "target int, path string, rows long, bytes long, statistics string"
_LISTED_ARROW: Final = pa.schema(
    [
        ("target", pa.int32()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("statistics", pa.string()),
    ]
)

#: Of one row group, uncompressed. A task holds as much of each target: smaller ones cost readers more than they save here.
_ROW_GROUP_BYTES: Final = 32 << 20


class WrittenFile(NamedTuple):
    """A complete and synced Parquet file. ``statistics``: JSON as in an ``add`` action of Delta."""

    path: Path
    rows: int
    bytes: int
    statistics: str


class Target(NamedTuple):
    """Where files go: a directory that is the same local or mounted path on all executors; it is created. ``statistics_of``: columns
    whose minimum and maximum the statistics contain. ``prefix``: of the names of the files.
    """

    directory: Path
    statistics_of: tuple[str, ...] = ()
    prefix: str = "part"


#: Rows of a record batch -> rows for each target. Runs in tasks.
Split = Callable[[pa.RecordBatch], Sequence[pa.RecordBatch]]


def write_files(rows: Any, directory: Path, statistics_of: Sequence[str] = ()) -> list[WrittenFile]:
    """``write_split`` into one directory."""
    return write_split(rows, (Target(directory, tuple(statistics_of)),), unchanged)[0]


def write_split(rows: Any, targets: Sequence[Target | None], split: Split) -> list[list[WrittenFile]]:
    """Write a DataFrame into new files, for each target one for each task that has rows for it, and return their lists. The rows are read
    once.

    ``split`` returns as many record batches as there are targets, each always with the same schema; those for None are dropped. Files of
    failed attempts may remain in the directories.
    """
    given = tuple(target and (str(target.directory), target.statistics_of, target.prefix) for target in targets)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _written(batches, [one and Target(Path(one[0]), *one[1:]) for one in given], split)

    found: list[list[WrittenFile]] = [[] for _ in targets]
    for row in rows.mapInArrow(write, _LISTED).collect():
        found[row.target].append(WrittenFile(Path(row.path), row.rows, row.bytes, row.statistics))
    return found


def unchanged(batch: pa.RecordBatch) -> tuple[pa.RecordBatch]:
    """The ``Split`` for one target that gets all rows."""
    return (batch,)


def _written(
    batches: Iterator[pa.RecordBatch], targets: Sequence[Target | None], split: Split
) -> Iterator[pa.RecordBatch]:
    files = [target and _File(target) for target in targets]
    try:
        for batch in batches:
            for file, part in zip(files, split(batch), strict=True):
                if file is not None and part.num_rows:
                    file.add(part)
    finally:
        for file in files:
            if file is not None:
                file.close()
    for number, file in enumerate(files):
        if file is not None and file.rows:
            yield file.listed(number)


class _File:
    """The file of a task for a target, created with its first rows."""

    def __init__(self, target: Target) -> None:
        self._path = target.directory / f"{target.prefix}-{uuid.uuid4()}.parquet"
        self._ranges = _Ranges(target.statistics_of)
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._ranges.add(batch)
        self.rows += batch.num_rows
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            schema = self._waiting[0].schema
            self._writer = pq.ParquetWriter(self._path, schema, compression="zstd", coerce_timestamps="us")
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def listed(self, target: int) -> pa.RecordBatch:
        """The row of a complete file in the driver's list."""
        sync(self._path)
        row = [target, str(self._path), self.rows, self._path.stat().st_size, self._ranges.statistics(self.rows)]
        return pa.RecordBatch.from_arrays(
            [pa.array([one], field.type) for one, field in zip(row, _LISTED_ARROW, strict=True)], schema=_LISTED_ARROW
        )


class _Ranges:
    """Minimum and maximum of columns, batch by batch."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._found: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in self._columns:
            low, high = (one.as_py() for one in pc.min_max(batch.column(name)).values())
            if low is not None:
                known = self._found.get(name, (low, high))
                self._found[name] = min(low, known[0]), max(high, known[1])

    def statistics(self, rows: int) -> str:
        low = {name: _plain(pair[0]) for name, pair in self._found.items()}
        high = {name: _plain(pair[1]) for name, pair in self._found.items()}
        return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high})


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else value.isoformat(timespec="microseconds")
