"""What a task does: it asks whether its batch is decided, and otherwise prepares its rows as half batches, invisible until the decision.

Its batch and its attempt follow from Spark's local properties. These are not a documented interface, but its own engine reads them by these
names. Where one is missing, writing exactly once is impossible, and the task says so.
"""

import secrets
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.taskcontext import TaskContext

from halfmq.errors import EnvironmentFailed
from halfmq.model.query_batch import ANY_TOPIC, RUN_CHARS_MAX, QueryBatch, problem_of
from halfmq.spark.sink.broker import AlreadyDecided, SinkBroker
from halfmq.spark.sink.columns import ANY_QUEUE, groups_of
from halfmq.spark.sink.encoder import Encoder, encoded_sizes
from halfmq.spark.sink.hashes import id_prefix
from halfmq.spark.sink.options import HALF_BATCH_ROWS, SinkOptions
from halfmq.spark.sink.waiting import Waiting

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
#: Spark makes it the id of the run, which is new at each start of a query.
RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class Attempt:
    """``name`` is unique in the run: Spark numbers the attempts of all tasks of an application."""

    batch: QueryBatch
    name: str


def batch_write(app_id: str, version: int, topic: str) -> QueryBatch:
    """The batch of a batch write: of ``app_id`` and its ``version``, or a query of its own. The run is random. ``topic``: the option, "" if
    rows name their topics.
    """
    run = secrets.token_hex(RUN_CHARS_MAX // 2)
    return QueryBatch(app_id, version, run, topic or ANY_TOPIC) if app_id else QueryBatch(str(uuid.uuid4()), 0, run)


def of_batch_write(batch: QueryBatch) -> Attempt:
    """The attempt of the task that calls this, of a batch write."""
    return Attempt(batch, _attempt_name(_context()))


def of_stream(app_id: str, topic: str) -> tuple[Attempt, str]:
    """(the attempt of the task that calls this, id of the query), of a stream. ``app_id``: "" if the id of the query names it. That has one
    sink, so it needs no topic, and the option may change between its runs. ``topic``: as for ``batch_write``.

    Raises:
        EnvironmentFailed: Spark does not say which batch it is.
    """
    context = _context()
    query, batch, run = (_property(context, name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
    named = QueryBatch(query, int(batch) if batch.isdecimal() else -1, run.replace("-", "")[:RUN_CHARS_MAX])
    if app_id:
        named = named._replace(query=app_id, topic=topic or ANY_TOPIC, stream=query)
    attempt = _attempt_name(context)
    problem = problem_of(named, attempt)
    if problem:
        raise EnvironmentFailed(f"Spark names the batch in an unknown way: {problem}")
    return Attempt(named, attempt), query


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise EnvironmentFailed("write was called outside of a Spark task")
    return context


def _property(context: Any, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise EnvironmentFailed(
            f"Spark does not give its tasks the local property {name}, without which rows cannot be written exactly once",
            hint="tested with Spark 4.3; report this with your version",
        )
    return str(value)


def _attempt_name(context: Any) -> str:
    return f"{context.partitionId()}.{context.taskAttemptId()}"


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
        self._waiting.add(groups_of(batch, self._options.topic, self._queues_of))

    def finish(self) -> None:
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
