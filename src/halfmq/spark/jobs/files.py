"""Rows to Parquet files, written by the tasks with pyarrow. Rows of the halfmq source then never enter the JVM, which takes a half to a
third of the time of Spark's own Parquet writer.

A file becomes part of a table only when the driver lists it (``tables.py``): the attempt of a task that failed or was overtaken leaves a
file that is in no list.
"""

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_LISTED: Final = "path string, rows long, bytes long, statistics string"
_LISTED_ARROW: Final = pa.schema(
    [("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("statistics", pa.string())]
)


class WrittenFile(NamedTuple):
    """A complete and synced Parquet file. ``statistics``: JSON as in an ``add`` action of Delta."""

    path: Path
    rows: int
    bytes: int
    statistics: str


def write_files(
    rows: Any, directory: Path, statistics_of: Sequence[str] = (), *, prefix: str = "part"
) -> list[WrittenFile]:
    """Write a DataFrame into new files of ``directory``, one for each task that has rows, and return their list.

    ``directory`` must be the same local or mounted path on all executors; it is created. ``statistics_of``: columns whose minimum and
    maximum the statistics contain. ``prefix``: of the names of the files. Files of failed attempts may remain there.
    """
    target, columns = str(directory), tuple(statistics_of)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _written(batches, Path(target), columns, prefix)

    found = rows.mapInArrow(write, _LISTED).collect()
    return [WrittenFile(Path(row.path), row.rows, row.bytes, row.statistics) for row in found]


def _written(
    batches: Iterator[pa.RecordBatch], directory: Path, columns: Sequence[str], prefix: str
) -> Iterator[pa.RecordBatch]:
    writer, ranges, count = None, _Ranges(columns), 0
    path = directory / f"{prefix}-{uuid.uuid4()}.parquet"
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None:
                directory.mkdir(parents=True, exist_ok=True)
                writer = pq.ParquetWriter(path, batch.schema, compression="zstd", coerce_timestamps="us")
            writer.write_batch(batch)
            ranges.add(batch)
            count += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        sync(path)
        listed = [str(path), count, path.stat().st_size, ranges.statistics(count)]
        yield pa.RecordBatch.from_arrays([pa.array([one]) for one in listed], schema=_LISTED_ARROW)


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


def sync(path: Path) -> None:
    """fsync of a file or a directory."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
