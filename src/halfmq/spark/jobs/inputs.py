"""What jobs read in one go: tables of Parquet or Delta files, and topics of a broker."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from halfmq.errors import UsageError
from halfmq.spark.jobs import tables
from halfmq.spark.jobs.source import SourceSettings, reader_options
from halfmq.spark.jobs.stream import JobFailed, first_cause

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
