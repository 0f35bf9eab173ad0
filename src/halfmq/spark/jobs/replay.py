"""``halfmq pipeline replay``: messages of an archive or of topics into topics, exactly once.

The input is bounded and divided into chunks when the job starts for the first time, which the plan in the state directory records:

    STATE/_replay.json    the settings: a later run must have the same
    STATE/plan.json       name of the writer, and the chunks: batches of the archive, or ranges of queues
    STATE/progress.json   how many chunks are done
    STATE/_lock           one process at a time

Chunk N is one batch write, version N of the writer: the broker makes its rows visible at one moment, and if it comes again, because the job
was killed before it noted that, nothing is written. So the job may be killed and started again at any time.

A stream over the files of an archive would do the same with Spark's checkpoint; but it would also take up files that the archive gets
meanwhile, and has no end in time.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow.parquet as pq
from msgspec import Meta, field

from halfmq.errors import DataLost, UsageError
from halfmq.model.properties import CARRIED, OWN_PREFIX, SHARDING_KEY, SYSTEM
from halfmq.spark.jobs import archive, session, source, state, tables
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.source import SourceSettings, cause, spark_errors
from halfmq.spark.jobs.stream import JobFailed, Say
from halfmq.spark.options import OPTIONS, parse_options
from halfmq.spark.plan.bounds import ends_by_time, starts_by_time
from halfmq.spark.plan.offsets import QueueBoundsSnapshot, QueueName, is_rocketmq, queue_order
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.schema import spark_schema
from halfmq.spark.sink.columns import WITHOUT_QUEUE
from halfmq.spark.sink.options import EXACTLY_ONCE
from halfmq.spark.source import Reader, open_reader

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
#: Options of the source and of the sink that a chunk sets.
_OWN: Final = {
    name: f"--{'from' if name.startswith('starting') else 'to'}-time"
    for name in OPTIONS
    if name.startswith(("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"))
}
#: After every message: the year 2248.
_TIME_MAX_MS: Final = 1 << 43
_OWN_OF_TARGET: Final = {"url": "--to-url", "txnAppId": "", "txnVersion": ""}


class Settings(SourceSettings, frozen=True, kw_only=True):
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
    """``store``, ``topics``: of the input, if it is topics, with their ids; offsets mean nothing in others."""

    writer: str
    chunks: list[Chunk]
    store: str = ""
    topics: dict[str, int] = field(default_factory=dict)


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Send messages of an archive, or of topics, into topics again, by time and filter, exactly once."""
    options = _check(settings)
    place = Path(settings.state).absolute()
    with state.claimed(place / "_lock"):
        if not (place / "_replay.json").exists():
            # Before the state records them: a later run must have the same, so they could not be corrected.
            if settings.archive is not None:
                _batches(settings.archive)
            if settings.where is not None:
                _check_where(session.start("replay", spark), settings, settings.where)
        state.pin(place / "_replay.json", _pinned(settings))
        plan = _plan(settings, options, place)
        done = (state.read(place / "progress.json") or {}).get("done", 0)
        rows = sum(chunk.rows for chunk in plan.chunks)
        say(f"{rows:,} messages to read, chunks: {len(plan.chunks)}" + (f", done before: {done}" if done else ""))
        active = session.start("replay", spark)
        for number in range(done, len(plan.chunks)):
            chunk, started = plan.chunks[number], time.monotonic()
            try:
                _write(_selected(_read(active, options, plan, chunk), settings), settings, plan.writer, number)
            except Exception as error:
                raise _failed(error, number, len(plan.chunks)) from error
            state.write(place / "progress.json", {"done": number + 1})
            seconds = time.monotonic() - started
            say(f"chunk {number + 1} of {len(plan.chunks)}: {chunk.rows:,} messages read, {seconds:.1f} s")
        say(f"{place}: done")
    return 0


def _check(settings: Settings) -> dict[str, str]:
    """The options of the source; empty for an archive. Raises UsageError: settings that do not belong together."""
    for name in ("from_time", "to_time"):
        moment(getattr(settings, name), name)
    if settings.max_rows < 1:
        raise UsageError("--max-rows must be at least 1")
    for name, value in settings.to_options.items():
        if name.lower() == "guarantee" and value.strip().lower() != EXACTLY_ONCE.lower():
            raise UsageError(
                f"--to-options {name}={value}: a replay sends every message exactly once, so its target must be a halfmq broker",
                hint=f"read the archive in a query of your own, and write with guarantee={value}",
            )
    source.refuse_own(settings.to_options, _OWN_OF_TARGET, "--to-options")
    if settings.archive is None:
        source.refuse_own(settings.options, _OWN)
        return source.reader_options(settings, archive.COLUMNS)
    if settings.url or settings.path or settings.topics or settings.pattern:
        raise UsageError(
            "--archive stands instead of --url, --path, --topics and --pattern", hint="use --where to choose topics"
        )
    return {}


def _check_where(active: Any, settings: Settings, where: str) -> None:
    """Raises UsageError: it is not SQL, names a column that the input lacks, or is not a condition."""
    try:
        with spark_errors():
            if settings.archive is None:
                rows = active.createDataFrame([], spark_schema(archive.COLUMNS))
            else:  # quarantine of ingest, for example, has more columns
                rows = active.read.parquet(_batches(settings.archive)[0][0])
            _ = rows.where(where).schema
    except JobFailed as error:
        raise UsageError(
            f"--where {where!r} is not a condition: {error}", hint="SQL, such as \"tag = 'paid'\""
        ) from error


def _failed(error: Exception, number: int, count: int) -> JobFailed:
    text = cause(error)
    if WITHOUT_QUEUE in text:
        # A job has no column to omit; its state records whether it spreads.
        remedy = "give the topic more queues and start again; or use --spread, with another --state"
        if number:
            remedy += ": the messages of the chunks that are done would be sent again"
        text = text.replace(WITHOUT_QUEUE, remedy)
    return JobFailed(f"chunk {number + 1} of {count}: {text}")


def _pinned(settings: Settings) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in _KEPT}
    for name in ("archive", "path"):
        values[name] = values[name] and str(Path(values[name]).absolute())
    tags = [] if settings.archive is not None else source.selection(settings)["tags"]
    return values | {"topics": list(settings.topics), "tags": tags}


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


def _plan(settings: Settings, options: dict[str, str], place: Path) -> Plan:
    path = place / "plan.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    writer = f"replay-{secrets.token_hex(8)}"
    if settings.archive is not None:
        counted = [
            (files, sum(pq.read_metadata(file).num_rows for file in files)) for files in _batches(settings.archive)
        ]
        plan = Plan(writer, chunks_of_batches(counted, settings.max_rows))
    else:
        snapshot, chunks = _chunks(settings, options)
        plan = Plan(writer, chunks, snapshot.store, snapshot.topics)
    state.write(path, msgspec.to_builtins(plan))
    return plan


def _batches(location: str) -> list[list[str]]:
    """The files of each batch of an archive. Raises UsageError: it has none."""
    batches = tables.batches_of(Path(location).absolute())
    if not batches:
        raise UsageError(f"{location} is not an archive, or has no messages yet")
    return batches


def _chunks(settings: Settings, options: dict[str, str]) -> tuple[QueueBoundsSnapshot, list[Chunk]]:
    with closing(_reader(options)) as reader:
        snapshot, bounds = _bounds(settings, reader)
        if not snapshot.topics:
            raise UsageError("there is nothing to replay: none of the topics exists")
        if is_rocketmq(snapshot.store):  # a transaction has one message
            return snapshot, chunks_of_queues(bounds, settings.max_rows)

        def before(time_ms: int) -> Mapping[QueueName, int | None]:
            return reader.offsets_at({name: time_ms for name, (at, end) in bounds.items() if at < end}, snapshot)

        return snapshot, chunks_of_times(bounds, settings.max_rows, before)


def _bounds(settings: Settings, reader: Reader) -> tuple[QueueBoundsSnapshot, dict[QueueName, tuple[int, int]]]:
    """Every queue, with the messages between the two times; with none, both its ends are equal."""
    snapshot = _snapshot(reader)

    def found(name: str) -> Mapping[QueueName, int | None] | None:
        at = moment(getattr(settings, name), name)
        if at is None:
            return None
        return reader.offsets_at(dict.fromkeys(snapshot.queues, round(at.timestamp() * 1_000)), snapshot)

    first, last = found("from_time"), found("to_time")
    starts = starts_by_time(snapshot, dict.fromkeys(first or (), 0), first or {}, without_match_latest=True)
    ends = ends_by_time(snapshot, last or {})
    return snapshot, {queue: (starts[queue], max(starts[queue], ends[queue])) for queue in snapshot.queues}


def _reader(options: dict[str, str]) -> Reader:
    parsed = parse_options(options)
    return open_reader(parsed, RetryDeadline(parsed.broker_timeout_ms))


def _snapshot(reader: Reader) -> QueueBoundsSnapshot:
    """A plan contains one store, and the ids that topics have there."""
    snapshot = reader.snapshot()
    if snapshot.stores:
        raise UsageError(
            f"the topics are on several halfmq brokers: {', '.join(sorted(snapshot.stores))}; a replay reads one",
            hint="start one replay for each, with the url of the broker, which is a name server too",
        )
    return snapshot


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


def chunks_of_queues(bounds: Mapping[QueueName, tuple[int, int]], rows_max: int) -> list[Chunk]:
    """``bounds``: first offset and end of every queue. Each chunk has its share of every queue, so that all advance together; it names
    all of them, since the source reads a queue that is not named from its start to its end.
    """
    total = sum(end - first for first, end in bounds.values())
    count = -(-total // rows_max)
    return [
        _chunk(
            {
                name: (first + (end - first) * number // count, first + (end - first) * (number + 1) // count)
                for name, (first, end) in bounds.items()
            }
        )
        for number in range(count)
    ]


def chunks_of_times(
    bounds: Mapping[QueueName, tuple[int, int]],
    rows_max: int,
    before: Callable[[int], Mapping[QueueName, int | None]],
) -> list[Chunk]:
    """As ``chunks_of_queues``, but what became visible in one millisecond is in one chunk, which may be larger than ``rows_max`` for that:
    all messages of a transaction have the same time. ``before(time_ms)``: the first message of each queue at that time or later; None:
    there is none.
    """

    @cache
    def until(time_ms: int) -> dict[QueueName, int]:
        found = before(time_ms)
        return {
            name: end if (at := found.get(name)) is None else min(max(at, first), end)
            for name, (first, end) in bounds.items()
        }

    chunks: list[Chunk] = []
    at = {name: first for name, (first, _) in bounds.items()}
    ends = {name: end for name, (_, end) in bounds.items()}
    while at != ends:
        # Always from the same two times: the first steps of all searches are the same, and each costs a request for each queue.
        low_ms, high_ms = 0, _TIME_MAX_MS
        upto = ends
        if _rows(at, ends) > rows_max:
            while high_ms - low_ms > 1:
                middle_ms = (low_ms + high_ms) // 2
                if _rows(at, until(middle_ms)) <= rows_max:
                    low_ms = middle_ms
                else:
                    high_ms = middle_ms
            upto = until(low_ms) if _rows(at, until(low_ms)) > 0 else until(high_ms)
        chunks.append(_chunk({name: (at[name], upto[name]) for name in bounds}))
        at = upto
    return chunks


def _rows(low: Mapping[QueueName, int], high: Mapping[QueueName, int]) -> int:
    """Negative, if ``high`` is before ``low``."""
    return sum(high[name] - low[name] for name in high)


def _chunk(ranges: Mapping[QueueName, tuple[int, int]]) -> Chunk:
    queues: dict[str, dict[str, tuple[int, int]]] = {}
    for (topic, queue), ends in sorted(ranges.items(), key=lambda item: queue_order(item[0])):
        queues.setdefault(topic, {})[queue] = ends
    return Chunk(sum(high - low for low, high in ranges.values()), queues=queues)


# --- a chunk ----------------------------------------------------------------------------------------------------


def _read(spark: Any, options: dict[str, str], plan: Plan, chunk: Chunk) -> Any:
    if chunk.files:
        return spark.read.parquet(*chunk.files)
    with closing(_reader(options)) as reader:
        snapshot = _snapshot(reader)
    if snapshot.store != plan.store:
        raise DataLost(f"the broker has another store than the one of the plan: {snapshot.store}, not {plan.store}")
    for topic, number in plan.topics.items():
        if snapshot.topics.get(topic, number) != number:
            raise DataLost(f"topic {topic} was deleted and created again since the plan was made")
    low: dict[str, dict[str, int]] = {}
    high: dict[str, dict[str, int]] = {}
    for (topic, queue), (_, end) in snapshot.queues.items():
        if topic in plan.topics:  # queues that are new since the plan are empty
            low.setdefault(topic, {})[queue], high.setdefault(topic, {})[queue] = chunk.queues[topic].get(
                queue, (end, end)
            )
    for topic, queues in chunk.queues.items():
        for queue, (first, end) in queues.items():
            if first < end:
                low.setdefault(topic, {})[queue], high.setdefault(topic, {})[queue] = first, end
    named = {name: value for name, value in options.items() if name not in ("subscribe", "subscribePattern")} | {
        "subscribe": ",".join(plan.topics),
        "startingOffsets": msgspec.json.encode(low).decode(),
        "endingOffsets": msgspec.json.encode(high).decode(),
    }
    return spark.read.format("halfmq").options(**named).load()


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
    rows = rows.repartition("topic", "broker", "queue").sortWithinPartitions("topic", "broker", "queue", "offset")

    def is_copied(name: Any, _: Any) -> Any:  # what others named like ours stays behind, since the sink refuses it
        return ~name.isin(*sorted(SYSTEM)) & (~name.startswith(OWN_PREFIX) | name.isin(*sorted(CARRIED)))

    columns = [
        f.col("value"), f.col("keys"), f.col("tag"), f.map_filter("properties", is_copied).alias("properties"),
        f.col("properties").getItem(SHARDING_KEY).alias("sharding_key"),
        f.lit(settings.to_topic).alias("topic") if settings.to_topic else f.col("topic"),
    ]  # fmt: skip
    if not settings.spread:
        columns.append(f.col("queue"))
    out = rows.select(*columns).write.format("halfmq").mode("append").option("url", settings.to_url)
    out.options(**settings.to_options).option("txnAppId", writer).option("txnVersion", str(number)).save()
