"""The common part of jobs that write topics into tables: a stream whose batches each appear once in each table.

OUTPUT/_checkpoint    where the job is; deleting it does not start from the beginning, but is refused
OUTPUT/_job.json      settings that decide about the rows: a start with others is refused
OUTPUT/_inputs.json   what the newest batches are made of: one that comes again with other input is refused
OUTPUT/_lock          one process at a time
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.spark.jobs import source, state, stream, tables
from halfmq.spark.jobs.source import SourceSettings
from halfmq.spark.jobs.stream import Say
from halfmq.spark.jobs.tables import Split
from halfmq.spark.options import size_bytes
from halfmq.spark.sink.checkpoint import Checkpoint

CHECKPOINT: Final = "_checkpoint"
_JOB: Final = "_job.json"
_INPUTS: Final = "_inputs.json"
_LOCK: Final = "_lock"
#: Batches whose input is remembered.
_INPUTS_MAX: Final = 100
#: A batch that was interrupted is read again, and each makes a file for each task.
MAX_ROWS: Final = 1_000_000
#: Large messages reach it first: a million of 4 MiB would be a batch of 4 TB.
MAX_BYTES: Final = "1g"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:", re.ASCII)


class TableSettings(SourceSettings, frozen=True, kw_only=True):
    """Base of the settings of these jobs."""

    output: Annotated[str, Meta(description="Directory of the tables; a path that all executors see.")]
    format: Annotated[tables.Format, Meta(description="Format of the tables: parquet or delta.")] = "parquet"
    follow: Annotated[
        bool, Meta(description="Continue with new messages until SIGTERM; default: end with those of now.")
    ] = False
    trigger: Annotated[float, Meta(description="With --follow: seconds from batch to batch; 0: no pause.", ge=0)] = 10
    max_rows: Annotated[int, Meta(description="Most messages of a batch.", ge=1)] = MAX_ROWS
    max_bytes: Annotated[
        str, Meta(description="Most stored bytes of a batch: a number, or with a unit: 64k, 16m, 1g.")
    ] = MAX_BYTES


class Part(NamedTuple):
    """A table of the job. ``name``: for people; ``statistics_of``: columns whose ranges its files tell."""

    name: str
    location: Path
    statistics_of: tuple[str, ...] = ("offset", "timestamp")


def stream_options(settings: TableSettings) -> dict[str, str]:
    """Defaults for ``source.reader_options``: where the first run starts, and the limits of a batch.

    Raises:
        UsageError: ``max_bytes`` is no size. The source would name its own option, which nobody gave.
    """
    size_bytes()("--max-bytes", settings.max_bytes)
    return {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(settings.max_rows),
        "maxBytesPerTrigger": settings.max_bytes,
    }


@contextlib.contextmanager
def opened(job: str, settings: TableSettings, pinned: Mapping[str, Any]) -> Iterator[Path]:
    """The output directory, locked for this process. ``pinned``: settings that must not change, as far as they are known yet.

    Raises:
        UsageError: it is not a directory of this machine, another process writes it, it was written with other settings, or its
            checkpoint is gone.
        EnvironmentFailed: the checkpoint lacks the offsets of its last batch.
    """
    if not settings.output or _SCHEME.match(settings.output):
        raise UsageError(f"--output {settings.output!r} is not a directory", hint="use a local or mounted directory")
    output = Path(settings.output).absolute()
    with state.claimed(output / _LOCK):
        state.check(output / _JOB, _pinned(job, settings, pinned))
        if (
            (output / _JOB).exists()
            and not (output / CHECKPOINT / "metadata").exists()
            and any(output.rglob("*.parquet"))
        ):
            raise UsageError(
                f"{output} contains tables, but {CHECKPOINT} is gone, so that the job would write everything again",
                hint="restore it, or use another output",
            )
        Checkpoint(str(output / CHECKPOINT)).check_offsets()
        yield output


def run(
    reader: Any,
    job: str,
    settings: TableSettings,
    pinned: Mapping[str, Any],
    parts: Sequence[Part],
    split: Split,
    say: Say,
) -> None:
    """Write the rows of ``reader``, a streaming DataFrame, into the tables as ``split`` divides them, within ``opened``.

    Raises as ``stream.run``, and:
        UsageError: as ``opened``.
    """
    output = Path(settings.output).absolute()
    state.pin(output / _JOB, _pinned(job, settings, pinned))
    checkpoint = Checkpoint(str(output / CHECKPOINT))
    opened_tables: list[tuple[tables.BatchTable, Sequence[str]]] = []

    def write(rows: Any, batch: int) -> None:
        if not opened_tables:
            writer = checkpoint.query_id()
            opened_tables.extend(
                (tables.open_table(part.location, settings.format, writer), part.statistics_of) for part in parts
            )
        found = checkpoint.secure(batch)
        remember_input(output / _INPUTS, batch, (found.digest, *found.other_digests))
        tables.write_split(opened_tables, batch, rows, split)

    writer = reader.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint.directory))
    stream.run(writer, say, follow=settings.follow, trigger_seconds=settings.trigger)


def remember_input(path: Path, batch: int, digests: Sequence[bytes]) -> None:
    """Note what a batch is made of, before it is written: the tables skip one whose number is there, whatever its rows.

    ``digests``: the first is noted; the others may have been, of the same input.

    Raises:
        EnvironmentFailed: it was begun with other input, or is older than what is known. Do not write it.
    """
    known = {int(number): text for number, text in (state.read(path) or {}).items()}
    before = known.get(batch)
    if before in {digest.hex() for digest in digests}:
        return
    if before is not None or batch < max(known, default=0):
        raise EnvironmentFailed(
            f"batch {batch} of {path.parent} was written with other input than it has now: its checkpoint was replaced by an older one",
            hint=f"restore the newest {CHECKPOINT}; if it is lost, use another output",
        )
    known[batch] = digests[0].hex()
    state.write(path, {str(number): known[number] for number in sorted(known)[-_INPUTS_MAX:]})


def counted(parts: Sequence[Part]) -> str:
    """The rows in each table, for people."""
    return "; ".join(f"{part.name}: {tables.count_rows(part.location):,} rows" for part in parts)


def _pinned(job: str, settings: TableSettings, pinned: Mapping[str, Any]) -> dict[str, Any]:
    # Spark's checkpoint has only the offsets of topics that are read. A topic that is left out and comes back would be read from its start.
    return {"job": job, "format": settings.format, **source.selection(settings), **pinned}
