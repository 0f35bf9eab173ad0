"""What a task does with ``guarantee=atLeastOnce``: it sends its rows as ordinary messages, and ends when brokers have confirmed all.

There is no decision: a row is visible once its broker has stored it, also if the task or the batch fails later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from halfmq.errors import UsageError
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink.columns import groups_of
from halfmq.spark.sink.options import HALF_BATCH_ROWS, SinkOptions
from halfmq.spark.sink.plain_broker import PlainBrokers
from halfmq.spark.sink.plain_encoder import encode, stored_sizes, with_ids
from halfmq.spark.sink.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Confirmed(WriterCommitMessage):
    """Number of messages that brokers have confirmed to a task."""

    messages: int


def write(batches: Iterator[pa.RecordBatch], options: SinkOptions, batch: QueryBatch, partition: int) -> Confirmed:
    """Send all rows; brokers have stored them when this returns. After an error any of them may be visible.

    Raises:
        UsageError, InvalidName, MessageTooLarge: a row is invalid.
        ConnectError, RequestFailed: a broker was unavailable for ``brokerTimeout``, or refuses.
    """
    brokers = PlainBrokers(options, partition)
    try:
        writer = _Writer(brokers, options, batch, partition)
        for rows in batches:
            writer.add(rows)
        writer.finish()
        return Confirmed(writer.messages)
    finally:
        brokers.close()


class _Writer:
    def __init__(self, brokers: PlainBrokers, options: SinkOptions, batch: QueryBatch, partition: int) -> None:
        self._brokers = brokers
        self._topic = options.topic
        self._batch = batch
        self._partition = partition
        self._waiting = Waiting(options.request_bytes, HALF_BATCH_ROWS, stored_sizes, self._send)
        self.messages = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, and send what is enough for a request."""
        queues_of = self._queues_to_name if _names_queues(batch) else self._brokers.queues
        groups = groups_of(batch, self._topic, queues_of, self._with_ids)
        self._waiting.add(groups)
        self.messages += batch.num_rows

    def finish(self) -> None:
        """Send the rest, and wait until all is confirmed."""
        self._waiting.finish()
        self._brokers.finish()

    def _with_ids(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return with_ids(rows, self._batch, self._partition, self.messages)

    def _send(self, topic: str, queue: int, rows: pa.RecordBatch) -> None:
        self._brokers.send(topic, queue, encode(rows))

    def _queues_to_name(self, topic: str) -> int:
        """Number of queues of a topic whose rows name them. Raises UsageError if several brokers have it."""
        names = self._brokers.brokers(topic)
        if len(names) > 1:
            raise UsageError(
                f"column queue: a number names no queue of topic {topic}, which several brokers have: {', '.join(names)}",
                hint="use column sharding_key, or omit both: the messages are then distributed",
            )
        return self._brokers.queues(topic)


def _names_queues(batch: pa.RecordBatch) -> bool:
    return any(
        name.lower() == "queue" and column.null_count < batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    )
