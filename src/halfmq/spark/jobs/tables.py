"""Tables that contain each batch of a query exactly once, whatever is killed, and the Parquet files that they consist of.

Files are written by the tasks with pyarrow, which takes a half to a third of the time of Spark's own Parquet writer. The rows of one read
can be divided between several tables. A file becomes part of a table only when the driver lists it: the attempt of a task that failed or
was overtaken leaves a file that is in no list.

Parquet: a directory ``batch_id=N`` for each batch, which appears whole by one rename.

    bronze/_writer.json             which query writes the table
    bronze/_staging-N-.../          files of a batch that is being written, or was interrupted
    bronze/batch_id=N/part-*.parquet

Delta: one commit for each batch, with the query and the batch as its application transaction; needs the package ``deltalake``.

A batch that comes again is already there, and is skipped. A table belongs to one writer, whose batch numbers count: another one (a query
with a new checkpoint) is refused, since its batch 0 would look like the one that is there.
"""

import itertools
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, assert_never

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from halfmq.errors import MissingDependency, UsageError
from halfmq.spark.sink.checkpoint import sync

_LISTED: Final = "target int, path string, rows long, bytes long, statistics string"
_LISTED_ARROW: Final = pa.schema(
    {"target": pa.int32(), "path": pa.string(), "rows": pa.int64(), "bytes": pa.int64(), "statistics": pa.string()}
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
    """``write_targets`` into one directory."""
    return write_targets(rows, (Target(directory, tuple(statistics_of)),), unchanged)[0]


def write_targets(rows: Any, targets: Sequence[Target | None], split: Split) -> list[list[WrittenFile]]:
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
        row = (target, str(self._path), self.rows, self._path.stat().st_size, self._ranges.statistics(self.rows))
        return pa.RecordBatch.from_pylist([dict(zip(_LISTED_ARROW.names, row, strict=True))], schema=_LISTED_ARROW)


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


Format = Literal["parquet", "delta"]

_WRITER: Final = "_writer.json"
_STAGING: Final = "_staging-"
_DELTA_FILE: Final = re.compile(r"batch-(\d+)-")


class BatchTable(Protocol):
    """The caller writes batches in order and, since their content must not change, secures the input of a batch before
    (``Checkpoint.secure``). One process writes at a time.
    """

    location: Path

    def last(self) -> int | None:
        """The highest number of a batch that is there; None: there is none."""

    def stage(self, batch: int) -> Path | None:
        """The directory for the files of a batch, for ``publish``; None: the batch is there already."""

    def publish(self, batch: int, directory: Path, files: Sequence[WrittenFile]) -> None:
        """Make all files that were written for a batch visible at once. ``directory``: what ``stage`` returned."""


def write_split(tables: Sequence[tuple[BatchTable, Sequence[str]]], batch: int, rows: Any, split: Split) -> bool:
    """Write the parts into which ``split`` divides the rows of a batch, each into its table with its ``statistics_of``, one table after
    the other. The rows are read once. A part that is there already is not written again.

    False: all were there already, and nothing was written.
    """
    staged = [table.stage(batch) for table, _ in tables]
    if all(directory is None for directory in staged):
        return False
    targets = [
        None if directory is None else Target(directory, tuple(columns), f"batch-{batch:010}")
        for directory, (_, columns) in zip(staged, tables, strict=True)
    ]
    written = write_targets(rows, targets, split)
    for (table, _), directory, found in zip(tables, staged, written, strict=True):
        if directory is not None:
            table.publish(batch, directory, found)
    return True


def write(table: BatchTable, batch: int, rows: Any, statistics_of: Sequence[str] = ()) -> bool:
    """Make all rows of a batch visible at once. False: the batch was there already, and nothing was written."""
    return write_split([(table, statistics_of)], batch, rows, unchanged)


def open_table(location: Path, format: Format, writer: str) -> BatchTable:  # noqa: A002
    """The table at ``location``, created with its first batch. ``writer``: the id of the query that writes it.

    Raises:
        UsageError: another query has written the table, or it has the other format.
        MissingDependency: deltalake is not installed.
    """
    match format:
        case "parquet":
            if (location / "_delta_log").exists():
                raise UsageError(f"{location} is a Delta table", hint="use format = delta, or another output")
            return ParquetTable(location, writer)
        case "delta":
            if (location / _WRITER).exists():
                raise UsageError(
                    f"{location} is a table of Parquet files", hint="use format = parquet, or another output"
                )
            return DeltaTable(location, writer)
        case _:
            assert_never(format)


def read(spark: Any, location: Path) -> Any:
    """A DataFrame of all batches of a table of either format. Raises as ``open_table`` does; UsageError: there is no table."""
    found = files_of(location)
    if not found:
        raise UsageError(f"{location} is not a table, or has no rows yet")
    return spark.read.parquet(*found)


class ParquetTable:
    def __init__(self, location: Path, writer: str) -> None:
        self.location = location
        known = location / _WRITER
        if known.exists():
            found = json.loads(known.read_text())["query"]
            _refuse_other(location, found, writer)
        elif location.exists() and any(not path.name.startswith("_") for path in location.iterdir()):
            raise UsageError(f"{location} contains files of another program", hint="use an empty directory")
        else:
            location.mkdir(parents=True, exist_ok=True)
            staged = location / f"{_STAGING}{uuid.uuid4()}"
            staged.write_text(json.dumps({"query": writer}))
            sync(staged)
            os.rename(staged, known)
            sync(location)
            sync(location.parent)

    def last(self) -> int | None:
        numbers = [int(path.name.partition("=")[2]) for path in self.location.glob("batch_id=*")]
        return max(numbers, default=None)

    def stage(self, batch: int) -> Path | None:
        for left in self.location.glob(f"{_STAGING}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
        return None if self._target(batch).exists() else self.location / f"{_STAGING}{batch}-{uuid.uuid4()}"

    def publish(self, batch: int, directory: Path, files: Sequence[WrittenFile]) -> None:
        if not files:
            return
        listed = {file.path.name for file in files}
        for path in directory.iterdir():
            if path.name not in listed:
                path.unlink()
        sync(directory)
        os.rename(directory, self._target(batch))
        sync(self.location)

    def _target(self, batch: int) -> Path:
        return self.location / f"batch_id={batch}"


class DeltaTable:
    def __init__(self, location: Path, writer: str) -> None:
        self.location = location
        self._writer = writer
        self._deltalake = _deltalake()

    def last(self) -> int | None:
        table = self._table()
        if table is None:
            return None
        last: int | None = table.transaction_version(self._writer)
        if last is None:
            _refuse_other(self.location, "another writer", self._writer)
        return last

    def stage(self, batch: int) -> Path | None:
        last = self.last()
        return None if last is not None and batch <= last else self.location

    def publish(self, batch: int, directory: Path, files: Sequence[WrittenFile]) -> None:
        if not files:
            return
        lake = self._deltalake
        commit = lake.CommitProperties(app_transactions=[lake.Transaction(self._writer, batch)])
        actions = [
            lake.transaction.AddAction(file.path.name, file.bytes, {}, int(time.time() * 1_000), True, file.statistics)
            for file in files
        ]
        sync(directory)
        table = self._table()
        if table is None:
            schema = lake.Schema.from_arrow(pq.read_schema(files[0].path))
            lake.transaction.create_table_with_add_actions(
                str(self.location), schema, actions, mode="error", commit_properties=commit
            )
        else:
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=commit)

    def _table(self) -> Any:
        lake = self._deltalake
        return lake.DeltaTable(str(self.location)) if lake.DeltaTable.is_deltatable(str(self.location)) else None


def batches_of(location: Path) -> list[list[str]]:
    """The files of each batch of a table of either format, in the order of the batches; empty if there is no table, or no row.

    Raises:
        UsageError: a Delta table that another program wrote or compacted, so that nobody knows what came first.
    """
    if (location / "_delta_log").exists():
        files = [Path(name) for name in _deltalake().DeltaTable(str(location)).file_uris()]
        matches = [(_DELTA_FILE.match(path.name), path) for path in files]
        foreign = [path.name for match, path in matches if match is None]
        if foreign:
            raise UsageError(
                f"{location} has files of another program, such as {foreign[0]}",
                hint="an archive must not be compacted",
            )
        numbers = [(int(match[1]), path) for match, path in matches if match is not None]
    else:
        numbers = [(int(path.parent.name.partition("=")[2]), path) for path in location.glob("batch_id=*/*.parquet")]
    return [
        [str(path) for _, path in batch] for _, batch in itertools.groupby(sorted(numbers), key=lambda pair: pair[0])
    ]


def files_of(location: Path) -> list[str]:
    """The files of a table of either format; empty if there is no table, or no row."""
    if (location / "_delta_log").exists():
        return list(_deltalake().DeltaTable(str(location)).file_uris())
    return sorted(str(path) for path in location.glob("batch_id=*/*.parquet"))


def count_rows(location: Path) -> int:
    """Rows of a table, from the footers of its files; 0 if there is no table."""
    paths = files_of(location)
    return int(dataset(paths, format="parquet").count_rows()) if paths else 0


def _refuse_other(location: Path, found: str, writer: str) -> None:
    if found != writer:
        raise UsageError(
            f"{location} was written by query {found}, this is query {writer}",
            hint="use the checkpoint of that query, or another output: a query with a new checkpoint writes everything again",
        )


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.transaction
    except ModuleNotFoundError as error:
        raise MissingDependency("the Delta format needs deltalake", hint="pip install 'halfmq[pipeline]'") from error
    return deltalake
