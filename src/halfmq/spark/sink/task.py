"""What a task does: it asks whether its batch is decided, and otherwise prepares its rows as half batches, invisible until the decision."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink.attempt import Attempt
from halfmq.spark.sink.broker import AlreadyDecided, SinkBroker
from halfmq.spark.sink.columns import ANY_QUEUE, Group, groups_of
from halfmq.spark.sink.encoder import Encoder, cuts, encoded_sizes
from halfmq.spark.sink.message_ids import id_prefix
from halfmq.spark.sink.options import SinkOptions

#: Rows that wait for more rows of their queue, bytes; beyond it the largest queue is sent.
WAITING_BYTES_MAX: Final = 32 << 20


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


class _Waiting:
    """Rows of one queue that are not sent yet."""

    def __init__(self) -> None:
        self.rows: list[pa.RecordBatch] = []
        self.bytes = 0


class _Writer:
    """Collects rows by topic and queue, so that few and large half batches are sent, whatever the order of the rows."""

    def __init__(
        self, broker: SinkBroker, options: SinkOptions, attempt: Attempt, partition: int, store_host: bytes
    ) -> None:
        self._broker = broker
        self._options = options
        self._attempt = attempt
        self._encoder = Encoder(id_prefix(*attempt.batch, attempt.name), broker.local_host(), store_host)
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._waiting_bytes = 0
        #: Number of queues by topic.
        self._queues: dict[str, int] = {}
        #: Queue of the next half batch without one. Tasks begin at different ones.
        self._next_queue = partition
        self.half_batches = 0
        self.messages = 0
        self.checksum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, and send what is enough for a half batch."""
        for group in groups_of(batch, self._options.topic, self._queues_of):
            self._add_group(group)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            self._send(max(self._waiting, key=lambda key: self._waiting[key].bytes), whole=True)

    def finish(self) -> None:
        """Send the rest, and wait until all is durable."""
        for key in list(self._waiting):
            self._send(key, whole=True)
        self._broker.finish()

    def _add_group(self, group: Group) -> None:
        key = (group.topic, group.queue)
        waiting = self._waiting.setdefault(key, _Waiting())
        size = int(encoded_sizes(group.rows, group.topic).sum())
        waiting.rows.append(group.rows)
        waiting.bytes += size
        self._waiting_bytes += size
        if waiting.bytes >= self._options.half_batch_bytes:
            self._send(key, whole=False)

    def _send(self, key: tuple[str, int], *, whole: bool) -> None:
        """Send the waiting rows of a queue; without ``whole``, only full half batches."""
        topic, queue = key
        waiting = self._waiting.pop(key)
        self._waiting_bytes -= waiting.bytes
        rows = waiting.rows[0] if len(waiting.rows) == 1 else pa.concat_batches(waiting.rows)
        sizes = encoded_sizes(rows, topic)
        for begin, end in cuts(sizes, self._options.half_batch_bytes):
            part = rows.slice(begin, end - begin)
            if end == rows.num_rows and not whole:
                left = self._waiting[key] = _Waiting()
                left.rows, left.bytes = [part], int(sizes[begin:].sum())
                self._waiting_bytes += left.bytes
                return
            self._prepare(topic, self._choose(topic) if queue == ANY_QUEUE else queue, part)

    def _prepare(self, topic: str, queue: int, rows: pa.RecordBatch) -> None:
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
