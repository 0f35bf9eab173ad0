"""``halfmq pipeline ingest``: topics to tables, exactly once.

    OUTPUT/bronze         every message as it came
    OUTPUT/silver         what could be parsed: the columns of the schema, and where each row came from
    OUTPUT/quarantine     what could not, with a reason
    OUTPUT/_ingest.json   the settings that rows depend on: a later run must have the same
    OUTPUT/_checkpoint    where the job stands; it may be killed and started again at any time

Every message is in bronze, and with a schema in one of silver and quarantine. Why a message is in quarantine follows from the message and
the settings alone, so a batch that is written again has the same rows in the same tables.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from halfmq.errors import UsageError
from halfmq.spark.jobs import kept, session, stream, tables, topics
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import Say
from halfmq.spark.jobs.tables import Format
from halfmq.spark.jobs.topics import TopicSettings
from halfmq.spark.sink.checkpoint import Checkpoint

#: Columns of bronze and of quarantine, which has ``reason`` besides.
MESSAGE_COLUMNS: Final = (
    "topic", "queue", "offset", "timestamp", "key", "tag", "keys", "message_id", "transaction_id", "value",
)  # fmt: skip
#: Columns that silver has before those of the schema.
SILVER_COLUMNS: Final = {
    "message_topic": "topic", "message_queue": "queue", "message_offset": "offset", "message_time": "timestamp",
    "message_id": "message_id",
}  # fmt: skip
#: Settings that rows depend on.
_KEPT: Final = ("topics", "pattern", "schema", "required", "event_time", "late_after", "format")
_CORRUPT: Final = "_halfmq_corrupt"
_REASONS_SHOWN: Final = 5
_DURATION: Final = re.compile(r"(\d+)\s*(s|m|min|h|d)", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


class Settings(TopicSettings, frozen=True, kw_only=True):
    output: Annotated[
        str, Meta(description="Directory of the tables: local or mounted, the same path on all executors.")
    ]
    schema: Annotated[
        str | None,
        Meta(
            description="Columns of the JSON bodies, as in SQL: 'id long, sold_at timestamp'. Without it only bronze."
        ),
    ] = None
    required: Annotated[
        tuple[str, ...], Meta(description="Columns that must not be missing, or the message is rejected.")
    ] = ()
    event_time: Annotated[str | None, Meta(description="Column with the time of the event, for --late-after.")] = None
    late_after: Annotated[
        str | None, Meta(description="Reject messages that became visible so long after their event: 30m, 2h, 7d.")
    ] = None
    format: Annotated[Format, Meta(description="Format of the tables.")] = "parquet"
    follow: Annotated[bool, Meta(description="Go on with new messages until SIGTERM; else end at what is there.")] = (
        False
    )
    trigger_seconds: Annotated[float, Meta(description="With --follow: time between two batches.")] = 10.0
    max_rows: Annotated[int, Meta(description="Messages of a batch, at most.")] = 1_000_000


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Write messages of topics into tables, exactly once: everything as it came, parsed rows, and rejected messages with a reason."""
    check(settings)
    output = Path(settings.output).absolute()
    kept.keep(output, "_ingest.json", {name: getattr(settings, name) for name in _KEPT})
    active = session.start("ingest", spark)
    schema = _schema(active, settings) if settings.schema else None
    checkpoint = Checkpoint(str(output / "_checkpoint"))

    def write(batch: Any, number: int) -> None:
        checkpoint.secure(number)
        _write(output, settings, schema, checkpoint.query_id(), batch, number)

    writer = topics.read_stream(active, settings, MESSAGE_COLUMNS, settings.max_rows).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(checkpoint.directory))
    if settings.follow:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
    stream.run(writer, say, follow=settings.follow)
    for line in _totals(active, output, schema):
        say(line)
    return 0


def check(settings: Settings) -> None:
    """What can be said before Spark starts.

    Raises:
        UsageError: settings that do not belong together.
    """
    topics.check(settings)
    if settings.schema is None and (settings.required or settings.event_time or settings.late_after):
        raise UsageError("--required, --event-time and --late-after need --schema")
    if (settings.event_time is None) != (settings.late_after is None):
        raise UsageError("--event-time and --late-after belong together")
    if settings.late_after is not None:
        late_seconds(settings.late_after)
    if settings.max_rows < 1 or settings.trigger_seconds <= 0:
        raise UsageError("--max-rows must be at least 1, and --trigger-seconds more than 0")


def late_seconds(text: str) -> int:
    """Seconds of ``30m``, ``2h``. Raises UsageError: not such a text."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--late-after {text!r} is not a duration", hint="a whole number with a unit: 90s, 30m, 2h, 7d"
        )
    return int(match[1]) * _SECONDS[match[2]]


def _schema(spark: Any, settings: Settings) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    assert settings.schema is not None
    try:
        schema: Any = StructType.fromDDL(settings.schema)
    except PySparkException as error:
        raise UsageError(
            f"--schema is not understood: {str(error).splitlines()[0]}", hint="'id long, name string'"
        ) from error
    names = schema.fieldNames()
    taken = sorted({*SILVER_COLUMNS, _CORRUPT}.intersection(names))
    if taken:
        raise UsageError(f"--schema has columns with names that silver uses itself: {', '.join(taken)}")
    unknown = [name for name in (*settings.required, *filter(None, [settings.event_time])) if name not in names]
    if unknown:
        raise UsageError(f"--schema has no column {', '.join(unknown)}", hint=f"it has {', '.join(names)}")
    return schema


def _write(output: Path, settings: Settings, schema: Any, writer: str, batch: Any, number: int) -> None:
    def table(name: str) -> tables.BatchTable:
        return tables.open_table(output / name, settings.format, writer)

    places = ("offset", "timestamp")
    if schema is None:
        table("bronze").write(number, batch, places)
        return
    batch.persist()
    try:
        table("bronze").write(number, batch, places)
        judged = judge(batch, schema, settings)
        from pyspark.sql import functions as f

        silver = [f.col(source).alias(name) for name, source in SILVER_COLUMNS.items()]
        silver += [f.col("parsed").getField(name).alias(name) for name in schema.fieldNames()]
        table("silver").write(
            number, judged.where("reason is null").select(*silver), ["message_offset", "message_time"]
        )
        rejected = judged.where("reason is not null").select(*MESSAGE_COLUMNS, "reason")
        table("quarantine").write(number, rejected, places)
    finally:
        batch.unpersist()


def judge(messages: Any, schema: Any, settings: Settings) -> Any:
    """``messages`` with columns ``parsed``, a struct of ``schema``, and ``reason``: null, or why the message is rejected."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    text = f.col("value").cast("string")
    wanted = StructType([*schema.fields]).add(_CORRUPT, StringType())
    parsed = f.from_json(text, wanted, {"columnNameOfCorruptRecord": _CORRUPT})
    rows = messages.withColumn("parsed", parsed)
    corrupt = f.col("parsed").getField(_CORRUPT).isNotNull() | f.col("parsed").isNull()

    reasons = [f.when(corrupt & f.get_json_object(text, "$").isNull(), f.lit("not JSON"))]
    for one in schema.fields:
        found = f.get_json_object(text, "$['" + one.name.replace("'", "\\'") + "']")
        is_wrong = corrupt & f.col("parsed").getField(one.name).isNull() & found.isNotNull()
        reasons.append(f.when(is_wrong, f.lit(f"{one.name} is not of type {one.dataType.simpleString()}")))
    reasons.append(f.when(corrupt, f.lit("does not fit the schema")))
    reasons += [
        f.when(f.col("parsed").getField(name).isNull(), f.lit(f"{name} is missing")) for name in settings.required
    ]
    if settings.event_time is not None and settings.late_after is not None:
        event = f.col("parsed").getField(settings.event_time).cast("timestamp")
        age = f.unix_micros("timestamp") - f.unix_micros(event)
        is_late = age > late_seconds(settings.late_after) * 1_000_000
        reasons.append(
            f.when(is_late, f.lit(f"late: visible more than {settings.late_after} after {settings.event_time}"))
        )
    return rows.withColumn("reason", f.coalesce(*reasons))


def _totals(spark: Any, output: Path, schema: Any) -> list[str]:
    def rows(name: str) -> Any | None:
        try:
            return tables.read(spark, output / name)
        except UsageError:
            return None

    counts = {}
    for name in ("bronze", "silver", "quarantine") if schema is not None else ("bronze",):
        found = rows(name)
        counts[name] = 0 if found is None else found.count()
    lines = [f"{output}: " + ", ".join(f"{name} {count:,} rows" for name, count in counts.items())]
    if counts.get("quarantine"):
        reasons = rows("quarantine").groupBy("reason").count().orderBy("count", ascending=False)  # type: ignore[union-attr]
        lines += [f"  {row['count']:,} rejected: {row['reason']}" for row in reasons.limit(_REASONS_SHOWN).collect()]
    return lines
