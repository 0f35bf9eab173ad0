"""``halfmq pipeline ingest``: topics to tables, exactly once.

OUTPUT/bronze        every message as it came
OUTPUT/silver        the bodies that fit the schema, as columns
OUTPUT/quarantine    the other messages, with a reason
OUTPUT/_checkpoint   where the job is; start it again at any time

A message is late if its event time is more than ``late_after`` before its ``timestamp``, the time at which the broker made it visible. Both
are in the message, so a batch that is repeated has the same late messages.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from pyarrow.dataset import dataset

from halfmq.errors import UsageError
from halfmq.spark.jobs import session, source, table_job, tables
from halfmq.spark.jobs.json_rows import JsonRows, Rejected
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import Say
from halfmq.spark.jobs.table_job import Part, TableSettings
from halfmq.spark.jobs.tables import Split, unchanged
from halfmq.spark.options import duration_ms

#: Value of column ``reason``, besides those of ``json_rows``.
LATE: Final = "late"
BRONZE: Final = (
    "topic", "queue", "offset", "timestamp", "key", "tag", "keys", "message_id", "transaction_id", "value",
    "broker",
)  # fmt: skip
#: Columns of a message in silver, after those of its body, and what they are in bronze.
OF_MESSAGE: Final = {
    "message_topic": "topic", "message_queue": "queue", "message_offset": "offset", "message_time": "timestamp",
    "message_id": "message_id",
}  # fmt: skip
#: A column of a body that is named like one of these gets it as a prefix.
BODY: Final = "body_"


class Settings(TableSettings, frozen=True, kw_only=True):
    schema: Annotated[
        str | None,
        Meta(
            description="Columns of the JSON bodies, as in SQL: 'id long, sold_at timestamp'; or a file with that text."
        ),
    ] = None
    required: Annotated[
        tuple[str, ...], Meta(description="Columns that must be there and not null; also those that are NOT NULL.")
    ] = ()
    event_time: Annotated[
        str | None, Meta(description="Column with the time of the event, a timestamp, for --late-after.")
    ] = None
    late_after: Annotated[
        str | None,
        Meta(
            description="Reject messages whose event is older than their timestamp by more than this: 90s, 30m, 2h, 1d."
        ),
    ] = None
    properties: Annotated[bool, Meta(description="Bronze and quarantine have the properties, too; slower.")] = False


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Write messages of topics into tables, exactly once: everything as it came, parsed rows, and rejected rows with a reason.

    Start it again at any time, also after a kill: it continues where it was.
    """
    columns = (*BRONZE, "properties") if settings.properties else BRONZE
    given = source.reader_options(settings, columns, **table_job.stream_options(settings))
    ddl = _schema_text(settings)
    late_ms = _late_ms(settings)
    pinned: dict[str, Any] = {
        "properties": settings.properties, "required": sorted(settings.required), "event_time": settings.event_time,
        "late_after": settings.late_after,
    }  # fmt: skip
    with table_job.opened("ingest", settings, pinned) as output:
        source.announce(given, say, follow=settings.follow)
        running = session.start("ingest", spark)
        parts, schema = [Part("bronze", output / "bronze")], None
        split: Split = unchanged
        if ddl is not None:
            schema, rows = parse_schema(ddl, settings.required, settings.event_time)
            split = Splitter(rows, settings.event_time, late_ms)
            parts.append(Part("silver", output / "silver", ("message_offset", "message_time")))
            parts.append(Part("quarantine", output / "quarantine"))
        pinned["schema"] = schema
        reader = running.readStream.format("halfmq").options(**given).load()
        table_job.run(reader, "ingest", settings, pinned, parts, split, say)
        say(f"{output}: {table_job.counted(parts)}{_reasons(output / 'quarantine')}")
    return 0


# --- settings --------------------------------------------------------------------------------------------------


def _schema_text(settings: Settings) -> str | None:
    if settings.schema is None:
        for name in ("required", "event_time", "late_after"):
            if getattr(settings, name):
                raise UsageError(f"--{name.replace('_', '-')} needs --schema", hint="without it there is only bronze")
        return None
    text = settings.schema
    # A schema has a blank between a name and a type; a file name without one cannot be meant as a schema.
    if " " not in text.strip() or Path(text).is_file():
        try:
            text = Path(text).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--schema {settings.schema!r} is neither a schema nor a file that can be read: {error}",
                hint="'id long, sold_at timestamp'",
            ) from error
    return text.strip()


def _late_ms(settings: Settings) -> int | None:
    if (settings.event_time is None) != (settings.late_after is None):
        raise UsageError("--event-time and --late-after need each other", hint="give both, or none of them")
    return None if settings.late_after is None else duration_ms(unit="")("late-after", settings.late_after)


def parse_schema(ddl: str, required: Sequence[str] = (), event_time: str | None = None) -> tuple[str, JsonRows]:
    """(the schema in one line, its rows); needs a running session, whose parser reads ``ddl``.

    Raises:
        UsageError: it is no schema, has a type that is not supported, or lacks a column that is required.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    try:
        found = DataType.fromDDL(ddl)
    except PySparkException as error:
        raise UsageError(
            f"--schema {ddl!r} is not a schema: {str(error).strip().splitlines()[0]}",
            hint="'id long, sold_at timestamp'",
        ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise UsageError(f"--schema {ddl!r} has no columns", hint="'id long, sold_at timestamp'")
    names = [field.name for field in found.fields]
    in_silver = [_silver_name(name) for name in names]
    if len({name.lower() for name in in_silver}) < len(names):
        raise UsageError(
            f"a column is twice in silver: {', '.join(in_silver)}", hint="tables ignore upper and lower case"
        )
    arrow = arrow_schema(found)
    needed = {field.name for field in found.fields if not field.nullable} | set(required)
    unknown = sorted((needed | ({event_time} if event_time else set())) - set(names))
    if unknown:
        raise UsageError(f"--schema has no column {', '.join(unknown)}", hint=f"it has {', '.join(names)}")
    if event_time is not None and not pa.types.is_timestamp(arrow.field(event_time).type):
        raise UsageError(f"--event-time {event_time} is not a timestamp", hint="change its type in --schema")
    nullable = pa.schema([field.with_nullable(True) for field in arrow])
    return found.simpleString(), JsonRows(nullable, tuple(sorted(needed)))


def arrow_schema(found: Any) -> pa.Schema:
    """The Arrow schema of a StructType. Raises UsageError: a column has a type that Arrow lacks."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns: list[pa.Field] = []
    for field in found.fields:
        try:
            columns += to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException as error:
            raise UsageError(
                f"--schema: column {field.name} is {field.dataType.simpleString()}, a type that ingest does not support",
                hint="read it as a string, and convert that in a query",
            ) from error
    return pa.schema(columns)


# --- rows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Splitter:
    """Bronze rows -> (bronze, silver, quarantine). ``late_ms``: how much older than its message an event may be; None: any age."""

    rows: JsonRows
    event_time: str | None = None
    late_ms: int | None = None

    def __call__(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        parsed = self.rows.parse(batch.column("value").to_pylist())
        fits, columns, rejected = parsed.fits, parsed.columns, parsed.rejected
        message = batch.select(list(OF_MESSAGE.values())).take(pa.array(fits, pa.int64()))
        if self.event_time is not None and self.late_ms is not None:
            late = self._late(columns, message.column("timestamp"))
            if late:
                kept = pa.array([row for row in range(len(fits)) if row not in late], pa.int64())
                rejected |= {fits[row]: why for row, why in late.items()}
                columns, message = [column.take(kept) for column in columns], message.take(kept)
        silver = pa.RecordBatch.from_arrays([*columns, *message.columns], schema=self._silver_schema(batch.schema))
        return batch, silver, _quarantine(batch, rejected)

    def _late(self, columns: list[pa.Array], timestamps: pa.Array) -> dict[int, Rejected]:
        assert self.event_time is not None
        assert self.late_ms is not None
        happened = columns[self.rows.schema.get_field_index(self.event_time)].cast(pa.int64())
        age_us = pc.subtract(timestamps.cast(pa.int64()), happened)
        found = pc.indices_nonzero(pc.fill_null(pc.greater(age_us, self.late_ms * 1_000), False)).to_pylist()
        ages = age_us.to_pylist()
        return {
            row: Rejected(LATE, f"{self.event_time} is {ages[row] / 1e6:,.0f} s before the timestamp of the message")
            for row in found
        }

    def _silver_schema(self, bronze: pa.Schema) -> pa.Schema:
        own = [field.with_name(_silver_name(field.name)) for field in self.rows.schema]
        return pa.schema([*own, *(bronze.field(taken).with_name(name) for name, taken in OF_MESSAGE.items())])


def _silver_name(column: str) -> str:
    return BODY + column if column.lower() in OF_MESSAGE else column


def _quarantine(batch: pa.RecordBatch, rejected: dict[int, Rejected]) -> pa.RecordBatch:
    numbers = sorted(rejected)
    rows = batch.take(pa.array(numbers, pa.int64()))
    more = [
        pa.array([rejected[number].reason for number in numbers], pa.string()),
        pa.array([rejected[number].detail for number in numbers], pa.string()),
    ]
    schema = pa.schema([*batch.schema, pa.field("reason", pa.string()), pa.field("detail", pa.string())])
    return pa.RecordBatch.from_arrays([*rows.columns, *more], schema=schema)


def _reasons(quarantine: Path) -> str:
    """How many rows have which reason, for people; "" if there are none."""
    paths = tables.files_of(quarantine)
    if not paths:
        return ""
    found: Counter[str] = Counter()
    for batch in dataset(paths, format="parquet").to_batches(columns=["reason"]):
        found.update({one["values"]: one["counts"] for one in batch.column("reason").value_counts().to_pylist()})
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in found.most_common())})"
