"""What a task does: it asks whether its batch is decided, and otherwise prepares its rows as half batches, invisible until the decision."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink.attempt import Attempt
from halfmq.spark.sink.broker import AlreadyDecided, SinkBroker
from halfmq.spark.sink.columns import ANY_QUEUE, groups_of
from halfmq.spark.sink.encoder import Encoder, encoded_sizes
from halfmq.spark.sink.message_ids import id_prefix
from halfmq.spark.sink.options import HALF_BATCH_ROWS, SinkOptions
from halfmq.spark.sink.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Prepared(WriterCommitMessage):
    """What a task has prepared, for the decision. ``query_id``: Spark's, "" for a batch write."""

    query_id: str
    batch: QueryBatch
    attempt: str
    #: The batch was decided when the task asked; the rest is 0 then.
    decided: bool
    half_batches: int = 0
    messages: int = 0
    #: Sum of the checksums of the half batches, modulo 2**32.
    checksum: int = 0


def write(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, attempt: Attempt, partition: int, query_id: str
) -> Prepared:
    """Prepare all rows; they are durable on the broker when this returns.

    Raises:
        UsageError, InvalidName, MessageTooLarge: a row is invalid.
        TransactionRefused: a later run of the query has begun, or the batch was rolled back.
        ConnectError, RequestFailed: the broker was unavailable for ``brokerTimeout``, or refuses.
    """
    broker = SinkBroker(options)
    try:
        found = broker.decision(attempt.batch)
        if not found.is_decided:
            writer = _Writer(broker, options, attempt, partition, found.store_host)
            for batch in batches:
                writer.add(batch)
            writer.finish()
            return Prepared(
                query_id, attempt.batch, attempt.name, False, writer.half_batches, writer.messages, writer.checksum
            )
    except AlreadyDecided:
        pass  # since the task asked: nothing of it is needed, as below
    finally:
        broker.close()
    for _ in batches:  # Spark's writer of this pipe would block
        pass
    return Prepared(query_id, attempt.batch, attempt.name, True)


class _Writer:
    """Prepares rows, and counts what it has prepared."""

    def __init__(
        self, broker: SinkBroker, options: SinkOptions, attempt: Attempt, partition: int, store_host: bytes
    ) -> None:
        self._broker = broker
        self._options = options
        self._attempt = attempt
        self._encoder = Encoder(id_prefix(attempt.batch.tx_id, attempt.name), broker.local_host(), store_host)
        self._waiting = Waiting(options.request_bytes, HALF_BATCH_ROWS, encoded_sizes, self._prepare)
        #: Number of queues by topic.
        self._queues: dict[str, int] = {}
        #: Queue of the next half batch without one. Tasks begin at different ones.
        self._next_queue = partition
        self.half_batches = 0
        self.messages = 0
        self.checksum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, and send what is enough for a half batch."""
        self._waiting.add(groups_of(batch, self._options.topic, self._queues_of))

    def finish(self) -> None:
        """Send the rest, and wait until all is durable."""
        self._waiting.finish()
        self._broker.finish()

    def _prepare(self, topic: str, queue: int, rows: pa.RecordBatch) -> None:
        if queue == ANY_QUEUE:
            queue = self._choose(topic)
        payload = self._encoder.encode(rows, topic, queue, time.time_ns() // 1_000_000)
        self._broker.prepare(self._attempt.batch, self._attempt.name, self.half_batches, topic, queue, payload)
        self.half_batches += 1
        self.messages += payload.messages
        self.checksum = (self.checksum + payload.checksum) & 0xFFFFFFFF

    def _choose(self, topic: str) -> int:
        self._next_queue += 1
        return self._next_queue % self._queues_of(topic)

    def _queues_of(self, topic: str) -> int:
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._broker.write_queues(topic)
        return found
