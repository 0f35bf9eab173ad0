"""Spark's interface: ``format("halfmq")``, in batches and streams.

Where each method runs matters. ``HalfmqDataSource`` and the batch planner live in a Python process beside the driver's
JVM, a stream reader in one such process for the life of the query, and ``read`` in the tasks, on an unpickled copy. So a
reader that is pickled leaves its connections behind.

A stream never decides where it is: Spark's checkpoint does. ``commit`` is only a hint, comes one batch late, and for the
last batch of ``availableNow`` never.
"""

import logging
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from halfmq.errors import ConnectError, TopicNotFound, UsageError
from halfmq.spark import data_loss
from halfmq.spark.offsets import Cut, QueueName, StreamOffset, ends_of, from_json, queue_order, to_json
from halfmq.spark.options import EARLIEST, LATEST, Bounds, Options, parse_options
from halfmq.spark.partitions import Ranges, pack, ranges_between, task_count
from halfmq.spark.read_limit import shares
from halfmq.spark.retry_deadline import Away, RetryDeadline
from halfmq.spark.schema import spark_schema
from halfmq.spark.stored_rows import StoredRows, in_parts, record_batch

_log: Final = logging.getLogger("halfmq.spark")


class Reader(Protocol):
    """The direct or the wire path."""

    def cut(self) -> Cut: ...

    def read(self, ranges: Ranges, lost: Callable[[str], None]) -> Iterator[StoredRows]: ...

    def close(self) -> None: ...


def open_reader(options: Options, patience: RetryDeadline) -> Reader:
    """The path that ``options`` ask for; opens nothing yet."""
    if options.path:
        from halfmq.spark.direct_reader import DirectReader

        return DirectReader(options, patience)
    from halfmq.spark.wire_reader import WireReader

    return WireReader(options, patience)


class HalfmqDataSource(DataSource):
    """``spark.dataSource.register(HalfmqDataSource)``, then ``format("halfmq")``. Options: ``options.OPTIONS``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "halfmq"

    def schema(self) -> StructType:
        return spark_schema(self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._refuse_other(schema)
        return HalfmqBatchReader(self._options.for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._refuse_other(schema)
        return HalfmqStreamReader(self._options.for_stream())

    def _refuse_other(self, schema: StructType) -> None:
        if schema != self.schema():
            raise UsageError(
                "the schema of this source is fixed", hint="leave .schema() out; `columns` chooses columns"
            )


def resolved(bounds: Bounds | None, otherwise: int, cut: Cut, lost: Callable[[str], None]) -> dict[QueueName, int]:
    """The offset of each queue of ``cut`` that ``bounds`` mean (``otherwise``: EARLIEST or LATEST, where they are not set).

    ``lost`` hears of offsets that are not there; where it returns, the nearest one that is there stands.

    Raises:
        UsageError: a topic that is there has no such queue, though somebody wrote its name.
    """
    bounds = bounds or Bounds(otherwise, {})
    for topic, named in bounds.queues.items():
        for name, at in named.items():
            if (topic, name) in cut.queues:
                continue
            if topic in cut.topics and not bounds.of_stream:
                there = sorted((queue for queue in cut.queues if queue[0] == topic), key=queue_order)
                raise UsageError(
                    f"offset {at} of queue {name} of topic {topic} was asked for; there is no such queue",
                    hint=f"its queues are {', '.join(queue for _, queue in there)}",
                )
            if at > 0:
                lost(f"offset {at} of queue {name} of topic {topic} was asked for; there is no such queue")
    found = {}
    for (topic, name), (first, end) in cut.queues.items():
        at = bounds.queues.get(topic, {}).get(name, bounds.everywhere)
        if at == EARLIEST:
            at = first
        elif at == LATEST:
            at = end
        elif not first <= at <= end:
            lost(f"offset {at} of queue {name} of topic {topic} was asked for; it holds {first} to {end - 1}")
            at = min(max(at, first), end)
        found[topic, name] = at
    return found


def not_beyond(cut: Cut, target: Cut) -> Cut:
    """``cut`` as far as ``target`` went. Queues that came later are not in it."""
    both = {queue: bounds for queue, bounds in cut.queues.items() if queue in target.queues}
    queues = {queue: (first, max(first, min(end, target.queues[queue][1]))) for queue, (first, end) in both.items()}
    return target._replace(queues=queues)


class _Reads:
    """What batch and stream share: a reader that is opened where it is used, and what to do about losses."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._reader: Reader | None = None
        #: Losses that were reported, so that a stream that polls does not repeat itself.
        self._reported: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def _open(self) -> Reader:
        if self._reader is None:
            self._reader = open_reader(self._options, self._patience())
        return self._reader

    def _patience(self) -> RetryDeadline:
        return RetryDeadline(self._options.broker_timeout_ms)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_loss.lost((what,))
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("halfmq: going on behind a loss: %s", what)

    def _plan(self, starts: dict[QueueName, int], ends: dict[QueueName, int], cut: Cut) -> list[Ranges]:
        ranges = ranges_between(starts, ends, cut.topics)
        messages = sum(one.end - one.start for one in ranges)
        return pack(cut.store, ranges, task_count(messages, self._options.min_partitions)) if messages else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one partition (in a task)."""
        if not isinstance(partition, Ranges):
            return  # Spark makes a partition of its own where there is nothing to read
        reader = open_reader(self._options, self._patience())
        verify = self._options.verify_bodies or not self._options.path
        try:
            for found in reader.read(partition, self._lost):
                for rows in in_parts(found):
                    yield record_batch(rows, self._options.columns, self._bad_body(rows), verify=verify)
        finally:
            reader.close()

    def _bad_body(self, rows: StoredRows) -> Callable[[int, str], None]:
        return lambda offset, why: self._lost(f"message {offset} of queue {rows.queue} of topic {rows.topic}: {why}")


class _Behind(Away):
    """The store shows less than was already read from it."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(f"it ends at position {cut.position}, which is less than was already read from it")
        self.cut = cut


class HalfmqBatchReader(_Reads, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        """One cut, bounded by startingOffsets and endingOffsets.

        Raises:
            TopicNotFound: a subscribed topic does not exist; a batch would silently be empty.
        """
        reader = self._open()
        try:
            cut = reader.cut()
        finally:
            reader.close()
        missing = [topic for topic in self._options.topics if topic not in cut.topics]
        if missing:
            raise TopicNotFound(
                f"no topic {', '.join(missing)}",
                response_code=17,
                hint="a stream would wait for it; a batch has nothing to read",
            )
        starts = resolved(self._options.starting, EARLIEST, cut, self._lost)
        ends = resolved(self._options.ending, LATEST, cut, self._lost)
        return list(self._plan(starts, ends, cut))


class HalfmqStreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        super().__init__(options)
        #: Asked for again within the first batch, so resolved once: "latest" must not move.
        self._initial: StreamOffset | None = None
        #: Where ``availableNow`` ends.
        self._target: Cut | None = None
        self._newest: Cut | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            cut = self._target or self._look(None)
            starts = resolved(self._options.starting, LATEST, cut, self._lost)
            self._initial = ends_of(cut)._replace(queues=starts)
            for topic in self._options.topics:
                if topic not in cut.topics:
                    _log.warning("halfmq: topic %s does not exist yet; its messages are read once it does", topic)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._look(None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; ``start`` itself, to the letter, when there is nothing to read."""
        begin = data_loss.only(from_json(start), self._options.topics)
        cut = self._look(begin)
        starts = self._resume(begin, cut)
        if self._target is not None:
            cut = not_beyond(cut, self._target)
        backlog = {queue: end - starts[queue] for queue, (_, end) in cut.queues.items() if end > starts[queue]}
        total = sum(backlog.values())
        if total == 0 or (isinstance(limit, ReadMinRows) and self._target is None and total < limit.min_rows):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else total
        taken = shares(backlog, most)
        ends = {queue: at + taken.get(queue, 0) for queue, at in starts.items()}
        return to_json(ends_of(cut)._replace(queues=ends))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._newest is None else to_json(ends_of(self._newest))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What lies between two offsets: exactly that, also when a batch is run again after a crash."""
        finish = data_loss.only(from_json(end), self._options.topics)
        begin = data_loss.only(from_json(start), self._options.topics)
        cut = self._look(finish)
        kept = self._resume(finish, cut)  # also says what is gone of the end itself
        starts = self._resume(begin, cut)
        ends = {queue: kept[queue] for queue in finish.queues if queue in kept}
        return list(self._plan(starts, ends, cut))

    def commit(self, end: dict[str, Any]) -> None:
        """A hint that comes late or never: nothing is kept by it."""

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _look(self, read_to: StreamOffset | None) -> Cut:
        """The newest cut; waits while the store shows less than was already read from it."""
        reader = self._open()

        def attempt() -> Cut:
            cut = reader.cut()
            if read_to is not None and data_loss.is_behind(read_to, cut):
                raise _Behind(cut)
            return cut

        try:
            self._newest = self._patience().until(attempt, "the store of the query")
        except ConnectError as error:
            if not isinstance(error.__cause__, _Behind):
                raise
            self._newest = error.__cause__.cut  # after all the waiting: what is missing is now said by name, as a loss
        return self._newest

    def _resume(self, offset: StreamOffset, cut: Cut) -> dict[QueueName, int]:
        resumed = data_loss.resume(offset, cut)
        if resumed.losses:
            self._lost("; ".join(resumed.losses))
        return resumed.starts
