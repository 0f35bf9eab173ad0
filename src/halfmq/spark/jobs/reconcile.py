"""``halfmq pipeline reconcile``: a business table against the messages about it, key by key.

The table is read first, as one snapshot of the database, and the messages after it. In a system that is at rest both are complete. What
``--settle`` does for one that runs, and why: docs/pipeline.md, Reconcile.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, localcontext
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Meta, field
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t
from rich.console import Console

from halfmq.errors import UsageError
from halfmq.spark.jobs import database_rows, differences, reconciliation, session, source
from halfmq.spark.jobs.differences import KEY_TEXTS, PLACE, REASON, Plan, Sides
from halfmq.spark.jobs.reconciliation import Example, Kind, Result, Total, Values
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.source import SourceSettings, check_source, shown_source
from halfmq.spark.jobs.stream import Say
from halfmq.spark.options import duration_ms

_CORRUPT: Final = "_halfmq_corrupt"
#: Columns of a message beside those of its body.
_MESSAGE: Final = {
    "message_topic": "topic", "message_queue": "queue", "message_offset": "offset", "message_time": "timestamp",
}  # fmt: skip
_MORE: Final = {"message_tag": "tag", "message_keys": "keys", "message_id": "message_id"}
_BODY_SHOWN: Final = 60
#: What counts of a kind, if it is not keys.
_COUNTED: Final = {Kind.ROW_WITHOUT_KEY: "rows", Kind.UNREADABLE: "messages"}
#: A sum of doubles depends on the order of its parts.
_FLOAT_ERROR: Final = Decimal("1e-9")
#: As many digits of a double are certain.
_FLOAT_DIGITS: Final = Context(prec=15, traps=[])
#: Totals are not rounded: Spark's decimals have 38 digits, Python's sums 28 unless told otherwise.
_TOTAL_DIGITS: Final = 100


class Settings(SourceSettings, frozen=True, kw_only=True):
    key: Annotated[
        tuple[str, ...],
        Meta(
            description="Columns that identify a row, NAME, or TABLE_NAME=MESSAGE_NAME if messages name it otherwise."
        ),
    ]
    compare: Annotated[tuple[str, ...], Meta(description="Columns that must be equal, named likewise.")] = ()
    tolerance: Annotated[
        dict[str, str], Meta(description="TABLE_NAME=NUMBER: how far values may differ; of times in seconds.")
    ] = field(default_factory=dict)
    sum: Annotated[tuple[str, ...], Meta(description="Columns whose totals are compared, named likewise.")] = ()
    database: Annotated[
        str | None, Meta(description="The table is in a database: its SQLAlchemy URL, sqlite:///shop.db.")
    ] = None
    table: Annotated[str | None, Meta(description="With --database: name of the table or view.")] = None
    query: Annotated[str | None, Meta(description="With --database, instead of --table: a SELECT.")] = None
    table_path: Annotated[
        str | None, Meta(description="Instead of --database: directory of a Parquet or Delta table.")
    ] = None
    where_table: Annotated[str | None, Meta(description="SQL condition: only these rows.")] = None
    schema: Annotated[
        str | None,
        Meta(
            description="Columns of the JSON bodies, as in SQL: 'basket_id long, total_cents long'. Default: the named columns, with the types that the table has."
        ),
    ] = None
    messages_path: Annotated[
        str | None, Meta(description="Instead of a broker: a table of parsed messages, such as silver of ingest.")
    ] = None
    where_messages: Annotated[
        str | None,
        Meta(
            description="SQL condition on columns of the body, message_topic, message_time, message_tag: only these messages."
        ),
    ] = None
    settle: Annotated[
        str | None,
        Meta(
            description="For a system that runs: 60s reads messages so long after the table, and excuses messages without a row that are newer than so long before it. Needs --database."
        ),
    ] = None
    examples: Annotated[int, Meta(description="Examples of each kind that are shown.")] = 10
    json: Annotated[str | None, Meta(description="File for the result as JSON; - for standard output.")] = None
    differences: Annotated[str | None, Meta(description="New directory for all differences, as Parquet.")] = None
    work: Annotated[
        str | None,
        Meta(description="Directory for temporary files; on a cluster the same path on all machines. Default: TMPDIR."),
    ] = None


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Compare a table with the messages about its rows, by key. Exit status: 0 equal, 1 differences, 2 not compared."""
    result = reconcile(settings, spark, say)
    if settings.json == "-":
        print(reconciliation.to_json(result).decode())  # noqa: T201
    elif settings.json is not None:
        _write_json(Path(settings.json), result)
    reconciliation.show(result, Console(stderr=settings.json == "-"))
    return 1 if result.differences else 0


def reconcile(settings: Settings, spark: SparkSettings, say: Say) -> Result:
    """The comparison, without output. Table and messages are read now; the broker must be running unless its files are read.

    Raises:
        UsageError: settings that do not fit each other, the table, or the messages.
        MissingDependency: the driver of the database, or Java, is not installed.
        ConnectError: no connection to the database.
        JobFailed: Spark could not read or compare; the text is the first cause.
    """
    planned, settle_ms = check(settings)
    started = time.monotonic()
    with _directory(settings) as directory:
        # Before Spark starts, which takes seconds: errors in names and passwords are more frequent than others.
        read_at = datetime.now(UTC)
        copied = _copy(settings, planned, directory, say)
        active = session.start("reconcile", spark)
        if copied is not None and settings.work is None and not active.sparkContext.master.startswith("local"):
            raise UsageError(
                "--work is missing", hint="on a cluster: a directory that all machines have under this path"
            )
        with source.spark_errors():
            table = _Table(_rows(active, settings, copied), _shown_table(settings), read_at)
            _wait(read_at, settle_ms, say)
            messages = _messages(active, settings, planned, table.rows.schema)
            say(f"comparing with messages of {shown_source(settings, settings.messages_path)}")
            newer_than = read_at - timedelta(milliseconds=settle_ms) if settle_ms else None
            result = _compared(Sides(table.rows, messages), planned, settings, table, newer_than)
    return msgspec.structs.replace(result, seconds=round(time.monotonic() - started, 1))


def _compared(sides: Sides, planned: Plan, settings: Settings, table: "_Table", newer_than: datetime | None) -> Result:
    found = differences.classify(sides, planned, newer_than).persist()
    try:
        result = _result(found, planned, settings, table)
        if settings.differences is not None:
            _write(found, planned, settings.differences)
        return result
    finally:
        found.unpersist()


def _wait(read_at: datetime, settle_ms: int, say: Say) -> None:
    seconds = settle_ms / 1_000 - (datetime.now(UTC) - read_at).total_seconds()
    if seconds > 0:
        say(f"waiting {seconds:.0f} s, so that the transactions of these rows are decided")
        time.sleep(seconds)


def check(settings: Settings) -> tuple[Plan, int]:
    """The plan, and ``settle`` in milliseconds: what can be said before Spark starts.

    Raises:
        UsageError: settings that do not belong together.
    """
    planned = differences.plan(settings.key, settings.compare, settings.sum, settings.tolerance)
    if (settings.database is None) == (settings.table_path is None):
        raise UsageError("exactly one of --database and --table-path is needed", hint="--database sqlite:///shop.db")
    if settings.database is not None:
        if (settings.table is None) == (settings.query is None):
            raise UsageError("--database needs exactly one of --table and --query")
        if settings.query is not None and settings.where_table is not None:
            raise UsageError("--where-table is for --table", hint="write the condition into --query")
        database_rows.shown(settings.database)
    elif settings.table is not None or settings.query is not None:
        raise UsageError("--table and --query need --database")
    if settings.messages_path is None:
        check_source(settings)
    elif settings.url or settings.path or settings.topics or settings.pattern or settings.schema:
        raise UsageError("--messages-path is used instead of a broker, topics and a schema")
    if settings.examples < 0:
        raise UsageError("--examples is negative")
    if settings.differences is not None and Path(settings.differences).exists():
        raise UsageError(f"{settings.differences} exists", hint="--differences makes a new directory")
    if settings.json not in (None, "-") and not Path(settings.json).absolute().parent.is_dir():
        raise UsageError(f"there is no directory for --json {settings.json}")
    settle_ms = 0
    if settings.settle is not None:
        settle_ms = duration_ms(unit="")("--settle", settings.settle)
        if settle_ms == 0:
            raise UsageError("--settle is 0", hint="60s")
        if settings.database is None:
            raise UsageError("--settle needs --database", hint="nobody knows when a table of files was complete")
    return planned, settle_ms


# --- the table ----------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    rows: DataFrame
    name: str
    #: Just before it was read.
    read_at: datetime


def _copy(settings: Settings, planned: Plan, directory: Path, say: Say) -> database_rows.Copied | None:
    if settings.database is None:
        return None
    columns = list(dict.fromkeys(pair.table for pair in planned.pairs))
    started = time.monotonic()
    copied = database_rows.copy(
        settings.database, settings.table, settings.query, columns, settings.where_table, directory
    )
    say(f"{_shown_table(settings)}: {copied.rows:,} rows copied in {time.monotonic() - started:.1f} s")
    return copied


def _rows(spark: Any, settings: Settings, copied: database_rows.Copied | None) -> Any:
    if copied is not None:
        return _copied_rows(spark, copied)
    assert settings.table_path is not None
    rows = source.read_table(spark, settings.table_path)
    return rows if settings.where_table is None else _where(rows, settings.where_table, "--where-table")


def _shown_table(settings: Settings) -> str:
    if settings.database is None:
        return settings.table_path or ""
    return f"{settings.table or 'query'} in {database_rows.shown(settings.database)}"


def _copied_rows(spark: Any, copied: database_rows.Copied) -> Any:
    nulls = {one.name for one in copied.schema if pa.types.is_null(one.type)}
    rows = spark.read.parquet(*map(str, copied.files)) if copied.files else spark.range(0)
    columns = (f.lit(None) if name in nulls else f.col(f"`{name}`") for name in copied.schema.names)
    return rows.select(*(one.alias(name) for one, name in zip(columns, copied.schema.names, strict=True)))


@contextmanager
def _directory(settings: Settings) -> Iterator[Path]:
    try:
        made = Path(tempfile.mkdtemp(prefix="halfmq-reconcile-", dir=settings.work))
    except OSError as error:
        raise UsageError(f"cannot write into --work {settings.work}: {error.strerror}") from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


# --- the messages -------------------------------------------------------------------------------------------------


def _messages(spark: Any, settings: Settings, planned: Plan, table: t.StructType) -> Any:
    if settings.messages_path is not None:
        found = source.read_table(spark, settings.messages_path)
        return found if settings.where_messages is None else _where(found, settings.where_messages, "--where-messages")
    schema = _schema(settings, planned, table)
    # Names, keys and tags cost a third of a scan, and only a condition can use them.
    columns = _MESSAGE if settings.where_messages is None else {**_MESSAGE, **_MORE}
    taken = sorted({*columns, _CORRUPT, REASON, KEY_TEXTS}.intersection(schema.fieldNames()))
    if taken:
        raise UsageError(f"--schema has columns with names of the message itself: {', '.join(taken)}")
    read = source.read_topics(spark, settings, ("value", *columns.values()))
    wanted = t.StructType([*schema.fields]).add(_CORRUPT, t.StringType())
    text = f.col("value").cast("string")
    body = read.withColumn("body", f.from_json(text, wanted, {"columnNameOfCorruptRecord": _CORRUPT}))
    is_corrupt = f.col("body").isNull() | f.col(f"body.{_CORRUPT}").isNotNull() | ~f.is_valid_utf8(text)
    beginning = f.substring(f.make_valid_utf8(text), 1, _BODY_SHOWN)
    reason = f.when(is_corrupt, f.concat(f.lit("not JSON of the schema: "), beginning))
    found = body.select(
        *(f.col("body").getField(name).alias(name) for name in schema.fieldNames()),
        *(f.col(source).alias(name) for name, source in columns.items()),
        reason.alias(REASON),
        f.when(is_corrupt, _key_texts(text, planned)).alias(KEY_TEXTS),
    )
    if settings.where_messages is None:
        return found
    # Whether the condition holds for a body that is not understood is unknown, and so is whether its key counts.
    condition = f"({settings.where_messages}) or {REASON} is not null"
    selected = _where(found, condition, "--where-messages")
    unsure = f.col(REASON).isNotNull() & ~f.coalesce(f.expr(settings.where_messages), f.lit(False))
    names = {*schema.fieldNames(), KEY_TEXTS}
    return selected.select(
        *(f.when(~unsure, f.col(name)).alias(name) if name in names else f.col(name) for name in selected.columns)
    )


def _key_texts(text: Column, planned: Plan) -> Column:
    """The keys of a JSON text as texts: what is wrong with other fields, and with the type of these, does not matter."""
    paths = [pair.messages.split(".") for pair in planned.keys]
    found = f.from_json(text, _of_texts(paths))
    return f.struct(*(reduce(Column.getField, path, found).alias(f"k{n}") for n, path in enumerate(paths)))


def _of_texts(paths: Sequence[Sequence[str]]) -> t.StructType:
    names = dict.fromkeys(path[0] for path in paths)
    inner = {name: [path[1:] for path in paths if path[0] == name and path[1:]] for name in names}
    return t.StructType(
        [t.StructField(name, _of_texts(more) if more else t.StringType()) for name, more in inner.items()]
    )


def _schema(settings: Settings, planned: Plan, table: t.StructType) -> t.StructType:
    if settings.schema is None:
        dotted = [pair.messages for pair in planned.pairs if "." in pair.messages]
        if dotted:
            raise UsageError(f"--schema is needed for {dotted[0]}", hint="'order struct<id long>, total long'")
        kinds = {one.name: one.dataType for one in table.fields}
        unknown = [pair.table for pair in planned.pairs if pair.table not in kinds]
        if unknown:
            raise UsageError(f"the table has no column {', '.join(unknown)}", hint=f"it has {', '.join(kinds)}")
        named = {pair.messages: _in_json(kinds[pair.table]) for pair in planned.pairs}
        # Nothing tells the type of a column without values, as in an empty table; but a sum is one of numbers.
        unknown_sums = [pair.messages for pair in planned.sums if isinstance(kinds[pair.table], t.NullType)]
        named |= dict.fromkeys(unknown_sums, t.DecimalType(38, 12))
        return t.StructType([t.StructField(name, kind) for name, kind in named.items()])
    try:
        schema = t.StructType.fromDDL(settings.schema)
    except Exception as error:  # of Py4J, before Spark wraps it
        raise UsageError(
            f"--schema is not understood: {source.cause(error)}", hint="'basket_id long, total_cents long'"
        ) from error
    if not isinstance(schema, t.StructType):
        raise UsageError("--schema names no columns", hint="'basket_id long, total_cents long'")
    return schema


def _in_json(kind: t.DataType) -> t.DataType:
    """The type to read a column from JSON with, so that no value is rounded to one that is equal."""
    if isinstance(kind, t.DecimalType):
        return t.DecimalType(38, max(kind.scale, 12))
    if isinstance(kind, t.ByteType | t.ShortType | t.IntegerType | t.LongType):
        return t.LongType()
    if isinstance(kind, t.FloatType | t.DoubleType):
        return t.DoubleType()
    return t.BooleanType() if isinstance(kind, t.BooleanType) else t.StringType()


def _where(rows: DataFrame, condition: str, option: str) -> DataFrame:
    try:
        return rows.where(condition)
    except AnalysisException as error:
        raise UsageError(f"{option} is not understood: {source.cause(error)}") from error


# --- the result ---------------------------------------------------------------------------------------------------


def _result(found: DataFrame, planned: Plan, settings: Settings, table: _Table) -> Result:
    # Without nulls among what is added, null means that the sum has too many digits.
    sums = [
        f.try_sum(f.coalesce(name, f.lit(0).cast(found.schema[name].dataType))).alias(name)
        for name in differences.sum_names(planned)
    ]
    counted = {
        row["kind"]: row
        for row in found.groupBy("kind")
        .agg(f.count("*").alias("groups"), f.sum("rows").alias("rows"), f.sum("messages").alias("messages"), *sums)
        .collect()
    }

    def number(kind: str | None, what: str) -> int:
        return counted[kind][what] if kind in counted else 0

    counts = {kind: number(kind, _COUNTED.get(kind, "groups")) for kind in Kind}
    kept = [row for kind, row in counted.items() if kind not in (Kind.NEWER, Kind.UNREADABLE)]
    for n, pair in enumerate(planned.sums):
        if any(None in (row[f"table_sum_{n}"], row[f"message_sum_{n}"]) for row in kept):
            raise UsageError(
                f"the sum of {pair.table} has more than 38 digits",
                hint="another type in --schema, or CAST in --query: fewer decimal places, or double",
            )
    return Result(
        table=table.name,
        messages=shown_source(settings, settings.messages_path),
        read_at=table.read_at.isoformat(timespec="milliseconds"),
        rows=sum(row["rows"] for row in counted.values()),
        messages_read=sum(row["messages"] for row in counted.values()),
        equal=number(None, "groups"),
        counts=counts,
        extra_messages=number(Kind.DUPLICATED, "messages") - number(Kind.DUPLICATED, "groups"),
        compared=[pair.table for pair in planned.compare],
        totals=[
            total(
                pair.table,
                [_sum(row, "table", n) for row in kept],
                [_sum(row, "message", n) for row in kept],
                planned.tolerances.get(pair.table, Decimal(0)) * number(None, "groups"),
            )
            for n, pair in enumerate(planned.sums)
        ],
        examples=_examples(found, planned, settings.examples) if any(counts.values()) else {},
    )


def _sum(row: Any, side: str, number: int) -> Any:
    """A sum of doubles as the sum of the decimals that they stand for, without the errors of adding doubles, if all stand for one."""
    found, exact = row[f"{side}_sum_{number}"], row[f"{side}_exact_{number}"]
    if not isinstance(found, float) or not math.isfinite(found) or exact is None:
        return found
    return exact if abs(exact - Decimal(found)) <= _FLOAT_ERROR * abs(Decimal(found)) else found


def total(column: str, table: list[Any], messages: list[Any], tolerance: Decimal) -> Total:
    """Totals of the parts' sums; None: nothing to add. ``tolerance``: of the difference of the totals. Of doubles they have 15 digits.

    Doubles may be NaN or infinite, as JSON of Python's is; totals that are so are equal only to the same.
    """
    with localcontext(Context(prec=_TOTAL_DIGITS, traps=[])):
        ours, theirs = (
            sum((Decimal(str(one)) for one in parts if one is not None), Decimal(0)) for parts in (table, messages)
        )
        if any(isinstance(one, float) for one in (*table, *messages)):
            tolerance += _FLOAT_ERROR * max(abs(ours), abs(theirs))
        if any(isinstance(one, float) for one in table):
            ours = _FLOAT_DIGITS.plus(ours)
        if any(isinstance(one, float) for one in messages):
            theirs = _FLOAT_DIGITS.plus(theirs)
        off = theirs - ours
        differs = not (off.is_finite() and abs(off) <= tolerance) and str(ours) != str(theirs)
        return Total(column, _plain(ours), _plain(theirs), _plain(off), differs)


def _plain(value: Decimal) -> Decimal:
    """Without zeros at the end, and without an exponent."""
    text = f"{value:f}"
    return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


def _examples(found: DataFrame, planned: Plan, count: int) -> dict[Kind, list[Example]]:
    """The first of each kind, by key. Spark keeps only so many of each task, whatever there are."""
    place = f.row_number().over(Window.partitionBy("kind").orderBy("key", "first_message"))
    rows = (
        found.where(f.col("kind").isNotNull())
        .select(
            "kind", "key", *_texts(planned), "rows", "messages", "differing", "first_message", "last_message", "reason"
        )
        .withColumn("place", place)
        .where(f.col("place") <= count)
        .collect()
    )
    examples: dict[Kind, list[Example]] = {kind: [] for kind in Kind}
    for row in sorted(rows, key=lambda row: row["place"]):
        examples[Kind(row["kind"])].append(_example(row, planned))
    return {kind: listed for kind, listed in examples.items() if listed}


def _texts(planned: Plan) -> list[Any]:
    keys = [f.col("key").getField(pair.table).cast("string").alias(f"key_{n}") for n, pair in enumerate(planned.keys)]
    values = [
        differences.value(side, n).cast("string").alias(f"{side}_{n}")
        for side in ("table", "message")
        for n in range(len(planned.compare))
    ]
    return keys + values


def _example(row: Any, planned: Plan) -> Example:
    differing = row["differing"] or () if row["kind"] == Kind.DIFFERENT else ()
    return Example(
        key={pair.table: row[f"key_{n}"] for n, pair in enumerate(planned.keys)},
        rows=row["rows"],
        messages=row["messages"],
        values=[
            Values(pair.table, row[f"table_{n}"], row[f"message_{n}"])
            for n, pair in enumerate(planned.compare)
            if pair.table in differing
        ],
        first_message=_place(row["first_message"]),
        last_message=_place(row["last_message"]),
        reason=row["reason"],
    )


def _place(found: Any) -> str | None:
    if found is None or found["message_offset"] is None:
        return None
    return "/".join(str(found[name]) for name in PLACE[1:])


def _write(found: DataFrame, planned: Plan, directory: str) -> None:
    """Differences with one column for each key and each compared value."""
    keys = (f.col("key").getField(pair.table).alias(pair.table) for pair in planned.keys)
    values = (
        differences.value(side, n).alias(f"{side}_{pair.table}")
        for n, pair in enumerate(planned.compare)
        for side in ("table", "message")
    )
    found.where(f.col("kind").isNotNull()).select(
        "kind", *keys, "rows", "messages", *values, "differing", "first_message", "last_message", "reason"
    ).write.parquet(directory)


def _write_json(path: Path, result: Result) -> None:
    try:
        path.write_bytes(reconciliation.to_json(result) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
