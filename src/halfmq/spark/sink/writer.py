"""Spark's interfaces for writing: ``HalfmqBatchWriter`` (``df.write``) and ``HalfmqStreamWriter`` (``df.writeStream``).

Spark makes the object of a batch write once, on the driver, and unpickles copies in the tasks and for the commit. Of a stream it makes
a new one for each of these, so nothing but the options is common to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from halfmq.errors import UsageError
from halfmq.spark.sink import at_least_once, decide, task
from halfmq.spark.sink.columns import check_columns
from halfmq.spark.sink.options import SinkOptions, parse_sink_options


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    options = parse_sink_options(given)
    if overwrite:
        raise UsageError(
            "a topic cannot be overwritten",
            hint='mode("append"), and for a stream outputMode("append"); rows of other output modes are written in foreachBatch: docs/spark.md',
        )
    check_columns(schema, options.topic, with_delays=not options.at_least_once)
    return options


def _prepared(messages: Sequence[Any]) -> list[task.Prepared]:
    return [message for message in messages if isinstance(message, task.Prepared)]


class HalfmqBatchWriter(DataSourceArrowWriter):
    """A batch write.

    Raises:
        UsageError: an option or a column is invalid.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(given, schema, overwrite).for_batch()
        self._batch = task.batch_write(self._options.app_id, self._options.version, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare or send the rows of a task; see ``task.write`` and ``at_least_once.write``."""
        if self._options.at_least_once:
            return at_least_once.write(iterator, self._options, self._batch, _partition())
        attempt = task.of_batch_write(self._batch)
        return task.write(iterator, self._options, attempt, _partition(), "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible; see ``decide.decide``. Nothing with ``atLeastOnce``: they are."""
        if self._options.at_least_once:
            return
        decide.decide_batch_write(_prepared(messages), self._options, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was prepared; see ``decide.abort_batch_write``. Nothing with ``atLeastOnce``: what was sent is visible."""
        if self._options.at_least_once:
            return
        decide.abort_batch_write(self._options, self._batch)


class HalfmqStreamWriter(DataSourceStreamArrowWriter):
    """A stream.

    Raises:
        UsageError: an option or a column is invalid.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(given, schema, overwrite).for_stream()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare or send the rows of a task; see ``task.write`` and ``at_least_once.write``."""
        attempt, query_id = task.of_stream(self._options.app_id, self._options.topic)
        if self._options.at_least_once:
            return at_least_once.write(iterator, self._options, attempt.batch, _partition())
        return task.write(iterator, self._options, attempt, _partition(), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the rows of all tasks visible; see ``decide.decide_stream``. Nothing with ``atLeastOnce``: they are."""
        if self._options.at_least_once:
            return
        decide.decide_stream(_prepared(messages), self._options, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing. Spark calls it also after a commit that raised, when the batch may be decided; what was prepared and is not
        decided is rolled back when the next run begins.
        """


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
