"""``halfmq pipeline replay``: messages of an archive or of topics into topics, exactly once.

The input is bounded and divided into chunks when the job starts for the first time, which the plan in the state directory records:

    STATE/_replay.json    the settings: a later run must have the same
    STATE/plan.json       name of the writer, and the chunks: files of the archive, or ranges of queues
    STATE/progress.json   how many chunks are done

Chunk N is one batch write, version N of the writer: the broker makes its rows visible at one moment, and if it comes again, because the job was
killed before it noted that, nothing is written. So the job may be killed and started again at any time.

A stream over the files of an archive would do the same with Spark's checkpoint; but it would also take up files that the archive gets
meanwhile, and has no end in time.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow.parquet as pq
from msgspec import Meta, field

from halfmq.errors import UsageError
from halfmq.model.properties import SHARDING_KEY, SYSTEM
from halfmq.spark.jobs import archive, kept, session, tables
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import JobFailed, Say, first_cause
from halfmq.spark.jobs.topics import TopicSettings, check, source_options

_KEPT: Final = (
    "archive",
    "url",
    "path",
    "topics",
    "pattern",
    "from_time",
    "to_time",
    "where",
    "to_url",
    "to_topic",
    "spread",
)


class Settings(TopicSettings, frozen=True, kw_only=True):
    to_url: Annotated[str, Meta(description="Name server of the halfmq broker to write to, rocketmq://HOST:PORT.")]
    state: Annotated[str, Meta(description="Directory of this replay: what it does, and how far it is.")]
    archive: Annotated[
        str | None, Meta(description="Read from this directory of `archive`, instead of --url or --path.")
    ] = None
    to_topic: Annotated[str | None, Meta(description="Topic to write to; default: that of each message.")] = None
    from_time: Annotated[
        str | None, Meta(description="Messages that became visible at or after this time, ISO 8601.")
    ] = None
    to_time: Annotated[str | None, Meta(description="And before this time.")] = None
    where: Annotated[str | None, Meta(description="Only messages of this SQL condition: \"tag = 'paid'\".")] = None
    spread: Annotated[
        bool,
        Meta(
            description="Distribute messages over the queues; else each keeps the number of its queue, and its order."
        ),
    ] = False
    max_rows: Annotated[int, Meta(description="Messages of a chunk, about.")] = 500_000
    to_options: Annotated[dict[str, str], Meta(description="Further options of the sink, NAME=VALUE.")] = field(
        default_factory=dict
    )


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Files of an archive, or topic -> queue -> (first offset, end)."""

    rows: int
    files: tuple[str, ...] = ()
    queues: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)


class Plan(msgspec.Struct, frozen=True):
    writer: str
    chunks: list[Chunk]


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Send messages of an archive, or of topics, into topics again, by time and filter, exactly once."""
    _check(settings)
    state = Path(settings.state).absolute()
    kept.keep(state, "_replay.json", {name: getattr(settings, name) for name in _KEPT})
    active = session.start("replay", spark)
    plan = _plan(active, settings, state)
    done = _done(state)
    rows = sum(chunk.rows for chunk in plan.chunks)
    say(f"{rows:,} messages to read, chunks: {len(plan.chunks)}" + (f", done before: {done}" if done else ""))
    for number in range(done, len(plan.chunks)):
        chunk = plan.chunks[number]
        started = datetime.now(UTC)
        try:
            _write(_selected(_read(active, settings, chunk), settings), settings, plan.writer, number)
        except Exception as error:
            raise JobFailed(f"chunk {number + 1} of {len(plan.chunks)}: {first_cause(error)}") from error
        kept.replace(state / "progress.json", b"%d" % (number + 1))
        seconds = (datetime.now(UTC) - started).total_seconds()
        say(f"chunk {number + 1} of {len(plan.chunks)}: {chunk.rows:,} messages read, {seconds:.1f} s")
    say(f"{state}: done")
    return 0


def _check(settings: Settings) -> None:
    if settings.archive is None:
        check(settings)
    elif settings.url or settings.path or settings.topics or settings.pattern:
        raise UsageError(
            "--archive stands instead of --url, --path, --topics and --pattern", hint="use --where to choose topics"
        )
    for name in ("from_time", "to_time"):
        moment(getattr(settings, name), name)
    if settings.max_rows < 1:
        raise UsageError("--max-rows must be at least 1")


def moment(text: str | None, name: str) -> datetime | None:
    """ISO 8601; without a zone it is UTC. Raises UsageError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')} {text!r} is not a time", hint="2026-11-24T08:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# --- the plan ---------------------------------------------------------------------------------------------------


def _plan(spark: Any, settings: Settings, state: Path) -> Plan:
    path = state / "plan.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    if settings.archive is not None:
        batches = tables.batches_of(Path(settings.archive).absolute() / archive.TABLE)
        counted = [(files, sum(pq.read_metadata(file).num_rows for file in files)) for files in batches]
        chunks = chunks_of_batches(counted, settings.max_rows)
    else:
        chunks = chunks_of_queues(_bounds(spark, settings), settings.max_rows)
    plan = Plan(f"replay-{secrets.token_hex(8)}", chunks)
    kept.replace(path, msgspec.json.encode(plan))
    return plan


def chunks_of_batches(batches: Sequence[tuple[Sequence[str], int]], rows_max: int) -> list[Chunk]:
    """``batches``: files and rows. Neighbouring batches together up to ``rows_max`` rows; a larger one alone, since only whole
    batches follow each other in every queue.
    """
    chunks: list[Chunk] = []
    names: list[str] = []
    rows = 0
    for files, count in batches:
        if names and rows + count > rows_max:
            chunks.append(Chunk(rows, tuple(names)))
            names, rows = [], 0
        names += files
        rows += count
    return [*chunks, Chunk(rows, tuple(names))] if names else chunks


def chunks_of_queues(bounds: Mapping[tuple[str, int], tuple[int, int]], rows_max: int) -> list[Chunk]:
    """``bounds``: (topic, queue) -> (first offset, end). Each chunk has its share of every queue, so that all advance together."""
    total = sum(end - first for first, end in bounds.values())
    count = -(-total // rows_max)
    chunks = []
    for number in range(count):
        queues: dict[str, dict[str, tuple[int, int]]] = {}
        for (topic, queue), (first, end) in sorted(bounds.items()):
            low, high = (first + (end - first) * part // count for part in (number, number + 1))
            queues.setdefault(topic, {})[str(queue)] = (low, high)
        chunks.append(Chunk(sum(high - low for one in queues.values() for low, high in one.values()), queues=queues))
    return chunks


def _bounds(spark: Any, settings: Settings) -> dict[tuple[str, int], tuple[int, int]]:
    from pyspark.sql import functions as f

    times = {}
    for option, name in (("startingTimestamp", "from_time"), ("endingTimestamp", "to_time")):
        time = moment(getattr(settings, name), name)
        if time is not None:
            times[option] = str(round(time.timestamp() * 1_000))
    if "startingTimestamp" in times:
        times["startingOffsetsByTimestampStrategy"] = "latest"
    options = source_options(settings, ("topic", "queue", "offset"), **times)
    rows = spark.read.format("halfmq").options(**options).load()
    found = rows.groupBy("topic", "queue").agg(f.min("offset"), f.max("offset") + 1).collect()
    return {(topic, queue): (first, end) for topic, queue, first, end in found}


def _done(state: Path) -> int:
    path = state / "progress.json"
    return int(path.read_bytes()) if path.exists() else 0


# --- a chunk ----------------------------------------------------------------------------------------------------


def _read(spark: Any, settings: Settings, chunk: Chunk) -> Any:
    if chunk.files:
        return spark.read.parquet(*chunk.files)
    low, high = (
        {topic: {queue: ends[place] for queue, ends in queues.items()} for topic, queues in chunk.queues.items()}
        for place in (0, 1)
    )
    options = source_options(settings, archive.COLUMNS) | {
        "startingOffsets": msgspec.json.encode(low).decode(),
        "endingOffsets": msgspec.json.encode(high).decode(),
    }
    return spark.read.format("halfmq").options(**options).load()


def _selected(rows: Any, settings: Settings) -> Any:
    from pyspark.sql import functions as f

    for name, compare in (("from_time", "__ge__"), ("to_time", "__lt__")):
        time = moment(getattr(settings, name), name)
        if time is not None:
            micros = round(time.timestamp() * 1_000_000)
            rows = rows.where(getattr(f.unix_micros("timestamp"), compare)(micros))
    return rows if settings.where is None else rows.where(settings.where)


def _write(rows: Any, settings: Settings, writer: str, number: int) -> None:
    from pyspark.sql import functions as f

    # All rows of a queue in one task, in order: the sink keeps the order of a task's rows for a queue.
    rows = rows.repartition("topic", "queue").sortWithinPartitions("topic", "queue", "offset")
    own = f.map_filter("properties", lambda name, _: ~name.isin(*sorted(SYSTEM)))
    columns = [
        f.col("value"), f.col("keys"), f.col("tag"), own.alias("properties"),
        f.col("properties").getItem(SHARDING_KEY).alias("sharding_key"),
        f.lit(settings.to_topic).alias("topic") if settings.to_topic else f.col("topic"),
    ]  # fmt: skip
    if not settings.spread:
        columns.append(f.col("queue"))
    out = rows.select(*columns).write.format("halfmq").mode("append").option("url", settings.to_url)
    out.options(**settings.to_options).option("txnAppId", writer).option("txnVersion", str(number)).save()
