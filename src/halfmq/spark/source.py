"""Spark's data source interfaces for ``format("halfmq")``, batch and stream.

``HalfmqDataSource`` and the batch planner run in a Python process of the driver, a stream reader in one such process for the life
of the query, and ``read`` in the tasks, on an unpickled copy. So pickling drops connections.

Spark's checkpoint determines the position of a stream. ``commit`` is only a hint: it comes one batch late, and never for the last
batch of ``availableNow``.
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
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.schema import spark_schema
from halfmq.spark.stored_rows import StoredRows, record_batches

_log: Final = logging.getLogger("halfmq.spark")


class Reader(Protocol):
    """``DirectReader`` or ``WireReader``. Methods raise ConnectError if the store is unavailable for ``brokerTimeout``."""

    def cut(self) -> Cut:
        """The bounds of all subscribed queues now."""

    def read(self, ranges: Ranges, lost: Callable[[str], None]) -> Iterator[StoredRows]:
        """The messages of ``ranges``; ``lost`` is called with a sentence about missing ones, and may raise."""

    def close(self) -> None:
        """Release connections and mappings; harmless if repeated."""


def open_reader(options: Options, deadline: RetryDeadline) -> Reader:
    """The reader for ``options``; it connects on first use."""
    if options.path:
        from halfmq.spark.direct_reader import DirectReader

        return DirectReader(options, deadline)
    from halfmq.spark.wire_reader import WireReader

    return WireReader(options, deadline)


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
        self._check_schema(schema)
        return HalfmqBatchReader(self._options.for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._check_schema(schema)
        return HalfmqStreamReader(self._options.for_stream())

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise UsageError(
                "the schema of this source is fixed", hint="remove .schema(); option `columns` selects columns"
            )


def resolved(bounds: Bounds | None, otherwise: int, cut: Cut, lost: Callable[[str], None]) -> dict[QueueName, int]:
    """Offsets of all queues of ``cut`` according to ``bounds``; if None, all are ``otherwise`` (EARLIEST or LATEST).

    ``lost`` is called for offsets that do not exist; if it returns, the nearest existing offset is used.

    Raises:
        UsageError: ``bounds`` were given by the user and contain a queue that an existing topic does not have.
    """
    bounds = bounds or Bounds(otherwise, {})
    for topic, named in bounds.queues.items():
        for name, at in named.items():
            if (topic, name) in cut.queues:
                continue
            if topic in cut.topics and not bounds.of_stream:
                there = sorted((queue for queue in cut.queues if queue[0] == topic), key=queue_order)
                raise UsageError(
                    f"offset {at} of queue {name} of topic {topic} was requested; there is no such queue",
                    hint=f"its queues are {', '.join(queue for _, queue in there)}",
                )
            if at > 0:
                lost(f"offset {at} of queue {name} of topic {topic} was requested; there is no such queue")
    found = {}
    for (topic, name), (first, end) in cut.queues.items():
        at = bounds.queues.get(topic, {}).get(name, bounds.everywhere)
        if at == EARLIEST:
            at = first
        elif at == LATEST:
            at = end
        elif not first <= at <= end:
            lost(f"offset {at} of queue {name} of topic {topic} was requested; it contains {first} to {end - 1}")
            at = min(max(at, first), end)
        found[topic, name] = at
    return found


def limited_to(cut: Cut, target: Cut) -> Cut:
    """``cut`` without messages and queues that are newer than ``target``."""
    both = {queue: bounds for queue, bounds in cut.queues.items() if queue in target.queues}
    queues = {queue: (first, max(first, min(end, target.queues[queue][1]))) for queue, (first, end) in both.items()}
    return target._replace(queues=queues)


class _Reads:
    """Common part of batch and stream readers."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._reader: Reader | None = None
        #: Reported losses, so that a polling stream logs each one once.
        self._reported: set[str] = set()
        #: Brokers of the cluster that were away at the last cut.
        self._away: frozenset[str] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def _open(self) -> Reader:
        if self._reader is None:
            self._reader = open_reader(self._options, self._deadline())
        return self._reader

    def _deadline(self) -> RetryDeadline:
        return RetryDeadline(self._options.broker_timeout_ms)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_loss.lost((what,))
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("halfmq: continuing after data loss: %s", what)

    def _cut(self, reader: Reader, read_to: StreamOffset | None, *, complete: bool) -> Cut:
        """The newest cut, in which queues of brokers that are away have the offset that they have in ``read_to``.

        Raises:
            Unavailable: no broker of ``read_to`` responds, or with ``complete`` not every one.
        """
        cut = reader.cut()
        away = data_loss.away_brokers(read_to, cut)
        text = "; ".join(f"broker {name} is away: {why}" for name, why in sorted(away.items()))
        if away and (complete or read_to is None or not cut.queues):
            raise Unavailable(text)
        if read_to is not None and self._options.servers and data_loss.is_elsewhere(read_to, cut):
            raise Unavailable(data_loss.elsewhere(read_to.store, cut.store, self._options.topics))
        for name in sorted(away.keys() - self._away):
            _log.warning("halfmq: continuing without broker %s: %s; its queues keep their offsets", name, away[name])
        for name in sorted(self._away - away.keys()):
            _log.warning("halfmq: broker %s is back", name)
        self._away = frozenset(away)
        return cut if read_to is None else data_loss.with_away(read_to, cut)

    def _plan(self, starts: dict[QueueName, int], ends: dict[QueueName, int], cut: Cut) -> list[Ranges]:
        ranges = ranges_between(starts, ends, cut.topics)
        messages = sum(one.end - one.start for one in ranges)
        return pack(cut.store, ranges, task_count(messages, self._options.min_partitions)) if messages else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition; Spark calls it in a task.

        Raises:
            DataLost: messages are missing, and ``failOnDataLoss`` is set.
            ConnectError: the store was unavailable for ``brokerTimeout``.
        """
        if not isinstance(partition, Ranges):
            return  # without partitions Spark creates an empty one
        reader = open_reader(self._options, self._deadline())
        verify = self._options.verify_bodies or not self._options.path
        try:
            for found in reader.read(partition, self._lost):
                yield from record_batches(found, self._options.columns, self._bad_body(found), verify=verify)
        finally:
            reader.close()

    def _bad_body(self, rows: StoredRows) -> Callable[[int, str], None]:
        return lambda offset, why: self._lost(f"message {offset} of queue {rows.queue} of topic {rows.topic}: {why}")


class _Regressed(Unavailable):
    """The store ends before the offset of the query."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(f"it ends at position {cut.position}, before the offset of the query")
        self.cut = cut


class HalfmqBatchReader(_Reads, DataSourceReader):
    """A batch read."""

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks: the messages between startingOffsets and endingOffsets.

        Raises:
            TopicNotFound: a subscribed topic does not exist.
        """
        reader = self._open()
        try:
            cut = self._deadline().until(lambda: self._cut(reader, None, complete=True), "a batch needs all brokers")
        finally:
            reader.close()
        missing = [topic for topic in self._options.topics if topic not in cut.topics]
        if missing:
            raise TopicNotFound(
                f"no topic {', '.join(missing)}",
                response_code=17,
                hint="a stream would wait until it exists",
            )
        starts = resolved(self._options.starting, EARLIEST, cut, self._lost)
        ends = resolved(self._options.ending, LATEST, cut, self._lost)
        return list(self._plan(starts, ends, cut))


class HalfmqStreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. The methods are those of Spark's interfaces."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        #: Resolved once, since Spark asks again during the first batch and "latest" must not move.
        self._initial: StreamOffset | None = None
        #: End of an ``availableNow`` query.
        self._target: Cut | None = None
        self._newest: Cut | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            cut = self._target or self._current_cut(None)
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
        self._target = self._current_cut(None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """End of the next batch; ``start`` unchanged if there is nothing to read."""
        begin = data_loss.restricted(from_json(start), self._options.topics)
        cut = self._current_cut(begin)
        starts = self._resume(begin, cut)
        if self._target is not None:
            cut = limited_to(cut, self._target)
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
        """Plan the tasks between two offsets: the same messages also if Spark repeats the batch after a crash."""
        finish = data_loss.restricted(from_json(end), self._options.topics)
        begin = data_loss.restricted(from_json(start), self._options.topics)
        cut = self._current_cut(finish)
        kept = self._resume(finish, cut)  # also reports losses at the end offset
        starts = self._resume(begin, cut)
        ends = {queue: kept[queue] for queue in finish.queues if queue in kept}
        return list(self._plan(starts, ends, cut))

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: offsets are in Spark's checkpoint."""

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _current_cut(self, read_to: StreamOffset | None) -> Cut:
        """The newest cut; waits while the store ends before ``read_to``.

        A stream continues without brokers that are away, except at its start, and with ``availableNow``, which ends once.
        """
        reader = self._open()

        def attempt() -> Cut:
            cut = self._cut(reader, read_to, complete=self._target is not None)
            if read_to is not None and data_loss.is_regressed(read_to, cut):
                raise _Regressed(cut)
            return cut

        try:
            self._newest = self._deadline().until(attempt, "the store of the query")
        except ConnectError as error:
            if not isinstance(error.__cause__, _Regressed):
                raise
            self._newest = error.__cause__.cut  # waiting did not help: the caller reports the loss
        return self._newest

    def _resume(self, offset: StreamOffset, cut: Cut) -> dict[QueueName, int]:
        resumed = data_loss.resume(offset, cut)
        if resumed.losses:
            self._lost("; ".join(resumed.losses))
        return resumed.starts
