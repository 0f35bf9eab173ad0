"""Where jobs read: settings, the options of ``format("halfmq")`` that they mean, and tables and topics that are read in one go."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, field

from halfmq.errors import ConnectError, LoginFailed, UsageError
from halfmq.spark.jobs import tables
from halfmq.spark.jobs.settings import JobSettings
from halfmq.spark.jobs.stream import JobFailed, Say, first_cause
from halfmq.spark.options import HEADERS, parse_options
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.source import open_reader


class SourceSettings(JobSettings, frozen=True, kw_only=True):
    """Base of the settings of jobs that read topics. ``check_source`` says what they need."""

    url: Annotated[str | None, Meta(description="Name server, rocketmq://HOST:PORT: read over the network.")] = None
    path: Annotated[str | None, Meta(description="Data directory of a broker on this machine: read its files.")] = None
    topics: Annotated[tuple[str, ...], Meta(description="Topics, separated by commas.")] = ()
    pattern: Annotated[str | None, Meta(description="Instead of --topics: a regular expression.")] = None
    options: Annotated[
        dict[str, str], Meta(description="Further option of the source, NAME=VALUE; may be repeated.")
    ] = field(default_factory=dict)


#: Options of the source that the settings mean, which ``options`` must not set as well, as for ``refuse_own``.
_OWN = {"url": "--url", "path": "--path", "subscribe": "--topics", "subscribePattern": "--pattern", "columns": ""}


def check_source(settings: SourceSettings) -> None:
    """Raises UsageError unless they name one source, and its topics in one way."""
    if bool(settings.topics) == bool(settings.pattern):
        both = "both --topics and --pattern are" if settings.topics else "neither --topics nor --pattern is"
        raise UsageError(f"{both} given", hint="one of them says what to read")
    if bool(settings.url) == bool(settings.path):
        both = "both --url and --path are" if settings.url else "neither --url nor --path is"
        raise UsageError(f"{both} given", hint="--url rocketmq://HOST:PORT for a broker, --path for its directory")
    refuse_own(settings.options, _OWN)


def refuse_own(given: Mapping[str, str], own: Mapping[str, str], flag: str = "--options") -> None:
    """Raises UsageError: ``given`` has an option of ``own`` (name -> what to use instead; empty: the job sets it), in any case of letters.

    It would replace what the job needs, or have no effect.
    """
    lower = {name.lower(): instead for name, instead in own.items()}
    for name in given:
        if (instead := lower.get(name.lower())) is not None:
            raise UsageError(f"{flag} {name} cannot be set", hint=f"use {instead}" if instead else "the job sets it")


def reader_options(settings: SourceSettings, columns: Sequence[str], **more: str) -> dict[str, str]:
    """The options for ``spark.read`` or ``readStream``, with these columns. ``more``: defaults, which ``settings.options`` override.

    Raises:
        UsageError: they are incomplete or invalid.
    """
    check_source(settings)
    given = {"columns": ",".join(columns), **more}
    if settings.url:
        given["url"] = settings.url
    if settings.path:
        given["path"] = settings.path
    if settings.topics:
        given["subscribe"] = ",".join(settings.topics)
    if settings.pattern:
        given["subscribePattern"] = settings.pattern
    lower = {name.lower() for name in settings.options}
    if any(name.startswith("starting") for name in lower):
        given.pop("startingOffsets", None)
    given = {name: value for name, value in given.items() if name.lower() not in lower} | settings.options
    parse_options(given)
    return given


def selection(settings: SourceSettings) -> dict[str, Any]:
    """What decides which messages a stream reads, and its columns: what must not change on a checkpoint. Equal selections are equal values.

    Not where to start, which counts until there is a checkpoint; nor where the messages are, since a broker and its files give the same
    ones.

    Raises:
        UsageError: as ``reader_options``.
    """
    options = parse_options(reader_options(settings, ("value",)))
    return {
        "topics": sorted(options.subscription.names), "pattern": options.subscription.pattern, "tags": sorted(options.tags),
        "headers": HEADERS in options.columns,
    }  # fmt: skip


def shown_source(settings: SourceSettings, messages_path: str | None) -> str:
    """``orders, loyalty in rocketmq://127.0.0.1:9876``, or the table that is read instead; for people."""
    return messages_path or f"{', '.join(settings.topics) or settings.pattern} in {settings.url or settings.path}"


def announce(given: dict[str, str], say: Say, *, follow: bool) -> None:
    """Say what is to be waited for: a broker that does not respond, topics that do not exist yet. Before Spark starts.

    Raises:
        UsageError: there is no store at ``path``; or no topic of those that are named exists, and the job would end at once.
    """
    options = parse_options(given)
    try:
        with closing(open_reader(options, RetryDeadline(0))) as reader:
            snapshot = reader.snapshot()
    except LoginFailed:
        raise  # waiting does not help
    except ConnectError as error:
        why = str(error).partition("; waited")[0]
        say(
            f"{why}: the job waits for it, {options.broker_timeout_ms // 1_000} s at most (--options brokerTimeout=...)"
        )
        return
    missing = [topic for topic in options.topics if topic not in snapshot.topics]
    if missing and len(missing) == len(options.topics) and not follow:
        raise UsageError(f"there is no topic {', '.join(missing)}", hint="with --follow the job waits for it")
    if missing:
        say(f"there is no topic {', '.join(missing)} (yet)")
    if not options.topics:
        say(f"{len(snapshot.topics)} topics match the pattern: {_some(sorted(snapshot.topics))}")


def _some(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


#: How long a batch waits for an unavailable broker, unless the options say otherwise: a person waits for the result.
BROKER_TIMEOUT: Final = "30s"


def read_table(spark: Any, location: str) -> Any:
    """The rows of a table: written by a job, another Delta table without partitions and deletion vectors, or Parquet files.

    Raises:
        UsageError: there is no such table.
        MissingDependency: it is a Delta table, and deltalake is not installed.
    """
    path = Path(location)
    if "://" not in location:
        if not path.exists():
            raise UsageError(f"there is no table {location}")
        if (path / "_delta_log").exists():
            _refuse_partial_reads(path)
            return tables.read(spark, path)
        if (path / "_writer.json").exists():
            return tables.read(spark, path)
        if path.is_dir():
            if next(path.rglob("*.parquet"), None) is None:
                raise UsageError(f"{location} has no files *.parquet", hint="a table of Parquet files or Delta")
            return spark.read.option("pathGlobFilter", "*.parquet").parquet(location)
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(location)
    except AnalysisException as error:
        raise UsageError(
            f"{location} cannot be read: {cause(error)}", hint="a table of Parquet files or Delta"
        ) from error


def _refuse_partial_reads(location: Path) -> None:
    """``tables.read`` reads the files of a Delta table as they are: rows that a deletion vector hides, and no partition columns."""
    import deltalake

    table = deltalake.DeltaTable(str(location))
    if table.metadata().partition_columns:
        raise UsageError(f"{location} is a Delta table with partitions", hint="give a copy of it as Parquet files")
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise UsageError(
            f"{location} is a Delta table with deletion vectors", hint="give a copy of it as Parquet files"
        )


def read_topics(spark: Any, settings: SourceSettings, columns: Sequence[str]) -> Any:
    """All messages of the topics that are visible now. Raises UsageError if the settings do not say which."""
    given = reader_options(settings, columns, brokerTimeout=BROKER_TIMEOUT)
    return spark.read.format("halfmq").options(**given).load()


def cause(error: BaseException) -> str:
    """The sentence of an error of Spark. Those of its parser begin with an empty line."""
    return first_cause(error).strip() or next(filter(None, map(str.strip, str(error).splitlines())), "")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Errors of Spark as ``JobFailed`` with their first cause, without stack traces. Those that become a ``UsageError`` are not logged."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # PySpark logs each with a page of JSON.
    log = logging.getLogger("DataFrameQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobFailed(cause(error)) from error
    finally:
        log.disabled = before
