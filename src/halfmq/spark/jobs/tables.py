"""Tables that contain each batch of a query exactly once, whatever is killed.

Parquet: a directory ``batch_id=N`` for each batch, which appears whole by one rename.

    bronze/_writer.json             which query writes the table
    bronze/_staging-N-.../          files of a batch that is being written, or was interrupted
    bronze/batch_id=N/part-*.parquet

Delta: one commit for each batch, with the query and the batch as its application transaction; needs the package ``deltalake``.

A batch that comes again is already there, and is skipped. A table belongs to one writer, whose batch numbers count: another one (a query with
a new checkpoint) is refused, since its batch 0 would look like the one that is there.
"""

import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, assert_never

import pyarrow.parquet as pq

from halfmq.errors import MissingDependency, UsageError
from halfmq.spark.jobs.files import sync, write_files

Format = Literal["parquet", "delta"]

_WRITER: Final = "_writer.json"
_STAGING: Final = "_staging-"


class BatchTable(Protocol):
    """``write`` makes all rows of a batch visible at once; False: the batch was there already, and nothing was written.

    The caller writes batches in order and, since their content must not change, secures the input of a batch before (``Checkpoint.secure``).
    """

    location: Path

    def write(self, batch: int, rows: Any, statistics_of: Sequence[str] = ()) -> bool: ...


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


def batches_of(location: Path) -> list[list[str]]:
    """The Parquet files of each batch of a table of either format, in the order of the batches.

    Raises:
        UsageError: there is no table, or it has no rows yet. MissingDependency: deltalake is not installed.
    """
    if (location / "_delta_log").exists():
        files = [Path(name) for name in _deltalake().DeltaTable(str(location)).file_uris()]
        numbers = [(int(path.name.split("-")[1]), path) for path in files]
    else:
        numbers = [(int(path.parent.name.partition("=")[2]), path) for path in location.glob("batch_id=*/*.parquet")]
    if not numbers:
        raise UsageError(f"{location} is not a table, or has no rows yet")
    return [
        [str(path) for _, path in batch] for _, batch in itertools.groupby(sorted(numbers), key=lambda pair: pair[0])
    ]


def read(spark: Any, location: Path) -> Any:
    """A DataFrame of all batches of a table of either format. Raises as ``batches_of`` does."""
    return spark.read.parquet(*itertools.chain(*batches_of(location)))


class ParquetTable:
    def __init__(self, location: Path, writer: str) -> None:
        self.location = location
        known = location / _WRITER
        if known.exists():
            found = json.loads(known.read_text())["query"]
            _refuse_other(location, found, writer)
        elif location.exists() and any(location.iterdir()):
            raise UsageError(f"{location} contains files of another program", hint="use an empty directory")
        else:
            location.mkdir(parents=True, exist_ok=True)
            staged = location / f"{_STAGING}{uuid.uuid4()}"
            staged.write_text(json.dumps({"query": writer}))
            sync(staged)
            os.rename(staged, known)
            sync(location)

    def write(self, batch: int, rows: Any, statistics_of: Sequence[str] = ()) -> bool:
        target = self.location / f"batch_id={batch}"
        for left in self.location.glob(f"{_STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)
        if target.exists():
            return False
        staged = self.location / f"{_STAGING}{batch}-{uuid.uuid4()}"
        files = write_files(rows, staged, statistics_of)
        if not files:
            return True
        listed = {file.path.name for file in files}
        for path in staged.iterdir():
            if path.name not in listed:
                path.unlink()
        sync(staged)
        os.rename(staged, target)
        sync(self.location)
        return True


class DeltaTable:
    def __init__(self, location: Path, writer: str) -> None:
        self.location = location
        self._writer = writer
        self._deltalake = _deltalake()

    def write(self, batch: int, rows: Any, statistics_of: Sequence[str] = ()) -> bool:
        lake = self._deltalake
        table = lake.DeltaTable(str(self.location)) if lake.DeltaTable.is_deltatable(str(self.location)) else None
        if table is not None:
            last = table.transaction_version(self._writer)
            if last is None:
                _refuse_other(self.location, "another writer", self._writer)
            elif batch <= last:
                return False
        files = write_files(rows, self.location, statistics_of, prefix=f"batch-{batch:010}")
        if not files:
            return True
        commit = lake.CommitProperties(app_transactions=[lake.Transaction(self._writer, batch)])
        actions = [
            lake.transaction.AddAction(file.path.name, file.bytes, {}, int(time.time() * 1_000), True, file.statistics)
            for file in files
        ]
        sync(self.location)
        if table is None:
            schema = lake.Schema.from_arrow(pq.read_schema(files[0].path))
            lake.transaction.create_table_with_add_actions(
                str(self.location), schema, actions, mode="error", commit_properties=commit
            )
        else:
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=commit)
        return True


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
