"""Spark's data source interfaces for ``format("halfmq")``, batch and stream.

``HalfmqDataSource`` and the batch planner run in a Python process of the driver, a stream reader in one such process for the life
of the query, and ``read`` in the tasks, on an unpickled copy. So pickling drops connections.

Spark's checkpoint determines the position of a stream. ``commit`` is only a hint: it comes one batch late, and never for the last
batch of ``availableNow``.
"""

import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from halfmq import __version__
from halfmq.client.blocking import Unavailable
from halfmq.client.log import logger
from halfmq.errors import ConnectError, HalfmqError, MissingDependency, TopicNotFound, UsageError
from halfmq.spark.options import VIEW_HALF, VIEW_MESSAGES, Options, parse_options, refuse_table
from halfmq.spark.plan import data_loss
from halfmq.spark.plan.bounds import EARLIEST, LATEST, TimeBounds, ends_by_time, resolved, starts_by_time
from halfmq.spark.plan.offsets import (
    QueueBoundsSnapshot,
    QueueName,
    StreamOffset,
    ends_of,
    from_json,
    offset_like,
    snapshot_like,
    to_json,
)
from halfmq.spark.plan.partitions import (
    QueueRange,
    Ranges,
    pack,
    ranges_between,
    slice_bytes,
    slices,
    split_larger,
    task_count,
)
from halfmq.spark.plan.read_limit import Limits, TriggerDelay, shares, shares_within_bytes
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Ints
from halfmq.spark.rows.stored_rows import StoredRows, record_batches, with_tags
from halfmq.spark.schema import spark_schema
from halfmq.spark.views.table_plan import TableRange, TableSnapshot, UndecidedRows, plan_halves, plan_transactions, runs
from halfmq.spark.views.table_rows import Lost, Rows, Table, TablePage, TransactionRows, half_messages

if TYPE_CHECKING:
    from halfmq.spark.network.wire_reader import WireReader

_log: Final = logger("halfmq.spark")


class Reader(Protocol):
    """``DirectReader`` or ``WireReader``. Methods raise ConnectError if the store is unavailable for ``brokerTimeout``, UsageError if
    ``path`` is no store or the topics are on halfmq and RocketMQ brokers, RequestFailed if a broker refuses for good.
    """

    def snapshot(self, known: Collection[str] = ()) -> QueueBoundsSnapshot:
        """The bounds of all subscribed queues now. ``known``: brokers of an offset of several halfmq brokers; the snapshot then is too."""

    def size_samples(self, sliced: Sequence[QueueRange]) -> list[tuple[int, int]] | None:
        """(messages, their bytes) of some messages of each slice, for ``partitions.slice_bytes``; (0, 0) if they were just removed. None
        from a broker that does not tell. Only an estimate, so it waits for nobody.
        """

    def offsets_at(
        self, times_ms: Mapping[QueueName, int], snapshot: QueueBoundsSnapshot
    ) -> dict[QueueName, int | None]:
        """The first message of each queue stored at its time (ms since 1970) or later; None if ``snapshot`` has none."""

    def fitting(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """(number, bytes) of the messages from ``start`` on, before ``end``, whose stored sizes add up to at most ``bytes_max``; of
        RocketMQ an estimate. Messages past retention have no size; ``read`` reports them.
        """

    def read(self, ranges: Ranges, lost: Callable[[str], None]) -> Iterator[StoredRows]:
        """The messages of ``ranges``. ``lost`` is called with a sentence about missing or damaged ones; if it returns, reading continues
        after them. Rows refer to memory that the next step of the iterator may use again.
        """

    def close(self) -> None:
        """Release connections and mappings; harmless if repeated."""


def open_reader(options: Options, deadline: RetryDeadline) -> Reader:
    """The reader for ``options``; it connects on first use."""
    if options.path:
        from halfmq.spark.files.direct_reader import DirectReader

        return DirectReader(options, deadline)
    from halfmq.spark.network.wire_reader import WireReader

    return WireReader(options, deadline)


class TableReader(Protocol):
    """``TableFiles`` or ``TableWire``: the transaction table. Methods raise ConnectError as those of ``Reader``."""

    @property
    def topics(self) -> Mapping[int, str]:
        """Names of topics by id, as far as they are known by now. Deleted topics have none."""

    def snapshot(self) -> TableSnapshot:
        """The store now."""

    def undecided(self, snapshot: TableSnapshot, lost: Lost) -> UndecidedRows:
        """All rows that were undecided at the position of ``snapshot``."""

    def transactions(self, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        """The rows [start, end) that existed at the position, each with the record that names its transaction."""

    def halves(self, snapshot: TableSnapshot, start: int, end: int, lost: Lost) -> Iterator[TablePage]:
        """The rows [start, end) that were undecided at the position, each with the whole record of its half."""

    def rows_at(self, snapshot: TableSnapshot, half_indexes: Ints, lost: Lost) -> Rows:
        """The rows of these halves, which are sorted; zeros where there is none."""

    def close(self) -> None:
        """Release connections and mappings; harmless if repeated."""


def open_table(options: Options, deadline: RetryDeadline) -> TableReader:
    """The reader of the transaction table for ``options``; it connects on first use."""
    if options.path:
        from halfmq.spark.views.table_files import TableFiles

        return TableFiles(options.path, deadline)
    from halfmq.spark.views.table_wire import TableWire

    return TableWire(options, deadline)


class HalfmqDataSource(DataSource):
    """``spark.dataSource.register(HalfmqDataSource)``, then ``format("halfmq")``. Options: ``options.OPTIONS`` to read,
    ``sink.options.OPTIONS`` to write. Spark does not say which of both it is before it asks for a reader or a writer.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        refuse_table(self._given)

    @cached_property
    def _options(self) -> Options:
        return parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The name for ``format``; Spark calls it at registration."""
        return "halfmq"

    def __repr__(self) -> str:
        try:
            return str(self._options)
        except UsageError:  # options to write
            return f"halfmq ({', '.join(sorted(self._given))})"

    def schema(self) -> StructType:
        """The columns; Spark calls it when a query gives none, and ``_check_schema`` compares with it."""
        return spark_schema(self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Spark calls it to plan a batch query."""
        self._check_schema(schema)
        options = self._options.for_batch()
        return HalfmqBatchReader(options) if options.view == VIEW_MESSAGES else HalfmqTableReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Spark calls it once for each stream, in the process that keeps the reader for the life of the query."""
        self._check_schema(schema)
        return HalfmqStreamReader(self._options.for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Spark calls it to plan a batch write."""
        from halfmq.spark.sink.writer import HalfmqBatchWriter

        return HalfmqBatchWriter(self._given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Spark calls it to plan each batch of a stream, and once more to commit it."""
        from halfmq.spark.sink.writer import HalfmqStreamWriter

        return HalfmqStreamWriter(self._given, schema, overwrite)

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise UsageError(
                "the schema of this source is fixed", hint="remove .schema(); option `columns` selects columns"
            )


def limited_to(snapshot: QueueBoundsSnapshot, target: QueueBoundsSnapshot) -> QueueBoundsSnapshot:
    """``snapshot`` without messages and queues that are newer than ``target``."""
    target = snapshot_like(target, snapshot)
    both = {queue: bounds for queue, bounds in snapshot.queues.items() if queue in target.queues}
    queues = {queue: (first, max(first, min(end, target.queues[queue][1]))) for queue, (first, end) in both.items()}
    return target._replace(queues=queues, stores={**snapshot.stores, **target.stores} if snapshot.stores else {})


def _unpickled(version: str, cls: "type[_Reads]") -> "_Reads":
    """The copy of a reader that a task gets, still without its state.

    Raises:
        MissingDependency: this process imports another version of halfmq than the one that planned.
    """
    if version != __version__:
        raise MissingDependency(
            f"this task imports halfmq {__version__} with {sys.executable} on {socket.gethostname()}; the read was planned with "
            f"halfmq {version}",
            hint="install the same version for the Python of the driver and of all executors; docs/spark.md, On a cluster",
        )
    return cls.__new__(cls)


class _Reads:
    """Common part of batch and stream readers."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._reader: Reader | None = None
        #: Reported losses, so that a polling stream logs each one once.
        self._reported: set[str] = set()
        #: Of several brokers those that were away at the last snapshot.
        self._away: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"batch of {self._options}"

    def __reduce__(self) -> tuple[Any, ...]:
        # A task calls ``_unpickled``, which checks the version, before it unpickles the state, whose classes may differ.
        return _unpickled, (__version__, type(self)), {**self.__dict__, "_reader": None}

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

    def _snapshot(self, reader: Reader, read_to: StreamOffset | None, *, complete: bool) -> QueueBoundsSnapshot:
        """The newest snapshot, in which queues of brokers that are away have the offset that they have in ``read_to``.

        Raises:
            Unavailable: no broker of ``read_to`` responds, or with ``complete`` not every one.
            UsageError: ``read_to`` is of several brokers, and files are read.
        """
        known = () if read_to is None else sorted(read_to.stores)
        if known and self._options.path:
            raise UsageError(
                f"the checkpoint is of a query that reads several halfmq brokers ({', '.join(known)}); `path` reads the files of one",
                hint="use `url`, or start a query with another checkpoint",
            )
        snapshot = reader.snapshot(known)
        if read_to is not None:
            if self._options.url is not None and data_loss.answers_for_another_store(read_to, snapshot):
                raise Unavailable(data_loss.wait_reason(read_to.store, snapshot, self._options.subscription.in_words()))
            read_to = offset_like(read_to, snapshot)
        away = data_loss.unreachable_brokers(read_to, snapshot)
        text = "; ".join(f"broker {name} is away: {why}" for name, why in sorted(away.items()))
        if away and (complete or read_to is None or not snapshot.queues):
            raise Unavailable(text)
        for name in sorted(away.keys() - self._away):
            _log.warning("halfmq: continuing without broker %s: %s; its queues keep their offsets", name, away[name])
        for name in sorted(self._away - away.keys()):
            _log.warning("halfmq: broker %s is back", name)
        self._away = frozenset(away)
        return snapshot if read_to is None else data_loss.with_unreachable(read_to, snapshot)

    def _bound(self, side: str, otherwise: int, snapshot: QueueBoundsSnapshot, reader: Reader) -> dict[QueueName, int]:
        """Offsets at which the read starts or ends. ``side``: "start" or "end"; ``otherwise``: EARLIEST or LATEST, without an option."""
        bounds = self._options.starting if side == "start" else self._options.ending
        if not isinstance(bounds, TimeBounds):
            return resolved(bounds, otherwise, snapshot, self._lost)
        wanted = bounds.wanted(snapshot)
        found = reader.offsets_at(wanted, snapshot) if wanted else {}
        if side == "end":
            return ends_by_time(snapshot, found)
        return starts_by_time(snapshot, wanted, found, without_match_latest=self._options.without_match_latest)

    def _plan(
        self, starts: dict[QueueName, int], ends: dict[QueueName, int], snapshot: QueueBoundsSnapshot
    ) -> list[Ranges]:
        sliced = slices(ranges_between(starts, ends, snapshot.topic_id))
        messages = sum(one.end - one.start for one in sliced)
        if not messages:
            return []
        samples = self._open().size_samples(sliced)
        sizes = None if samples is None else slice_bytes(sliced, samples)
        size = None if sizes is None else sum(sizes)
        tasks = task_count(messages, size, self._options.min_partitions)
        stores = {name: state.store for name, state in snapshot.stores.items()}
        packed = pack(snapshot.store, sliced, tasks, sizes, stores)
        most = self._options.max_records_per_partition
        return packed if most is None else split_larger(packed, most)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition; Spark calls it in a task.

        Raises:
            DataLost: messages are missing, and ``failOnDataLoss`` is set.
            ConnectError: the store was unavailable for ``brokerTimeout``.
        """
        if not isinstance(partition, Ranges):
            return  # without partitions Spark creates an empty one
        verify = self._options.verify_bodies or not self._options.path
        with closing(open_reader(self._options, self._deadline())) as reader:
            for rows in reader.read(partition, self._lost):
                found = with_tags(rows, self._options.tags, self._bad_body(rows))
                if len(found.starts):
                    yield from record_batches(found, self._options.columns, self._bad_body(found), verify=verify)

    def _bad_body(self, rows: StoredRows) -> Callable[[int, str], None]:
        on_broker = f" on broker {rows.broker}" if rows.broker else ""
        what = f"queue {rows.queue} of topic {rows.topic}{on_broker}"
        return lambda offset, why: self._lost(f"message {offset} of {what}: {why}")


class _Regressed(Unavailable):
    """The store ends before the offset of the query."""

    def __init__(self, snapshot: QueueBoundsSnapshot) -> None:
        at = {name: state.position for name, state in snapshot.stores.items()} or {"": snapshot.position}
        ends = ", ".join(f"{name and f'{name} '}at position {position}" for name, position in sorted(at.items()))
        super().__init__(f"it ends {ends}, before the offset of the query")
        self.snapshot = snapshot


class HalfmqBatchReader(_Reads, DataSourceReader):
    """A batch read."""

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks: the messages between startingOffsets and endingOffsets.

        Raises:
            TopicNotFound: a subscribed topic does not exist.
        """
        with closing(self._open()) as reader:
            snapshot = self._deadline().until(
                lambda: self._snapshot(reader, None, complete=True), "a batch needs all brokers"
            )
            missing = [topic for topic in self._options.topics if topic not in snapshot.topics]
            if missing:
                raise TopicNotFound(
                    f"no topic {', '.join(missing)}", response_code=17, hint="a stream would wait until it exists"
                )
            if not snapshot.topics:
                _log.warning("%s: no topic matches the pattern; the batch is empty", self._options)
            starts = self._bound("start", EARLIEST, snapshot, reader)
            ends = self._bound("end", LATEST, snapshot, reader)
            return list(self._plan(starts, ends, snapshot))


class HalfmqTableReader(_Reads, DataSourceReader):
    """A batch read of the transaction table."""

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks: the halves between startingHalf and endingHalf."""
        options = self._options
        with closing(open_table(options, self._deadline())) as table:
            snapshot = table.snapshot()
            undecided = table.undecided(snapshot, self._lost)
        must_have = options.starting_half is not None
        start = options.starting_half or 0
        if must_have and start < snapshot.first:
            self._lost(f"the halves {start} to {snapshot.first - 1} are past retention")
        start = max(start, snapshot.first)
        end = snapshot.end if options.ending_half is None else min(options.ending_half, snapshot.end)
        if options.view == VIEW_HALF:
            return list(plan_halves(snapshot, start, end, undecided, options.min_partitions))
        return list(plan_transactions(snapshot, start, end, undecided, options.min_partitions, must_have=must_have))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The transactions or halves of a partition; Spark calls it in a task. Raises as ``_Reads.read``."""
        if not isinstance(partition, TableRange):
            return  # without partitions Spark creates an empty one
        at, columns = partition.snapshot, self._options.columns
        with closing(open_table(self._options, self._deadline())) as table:
            if self._options.view == VIEW_HALF:
                for page in table.halves(at, partition.start, partition.end, self._lost):
                    yield from half_messages(page, columns, table.topics, self._lost)
                return
            asked = Table(table.topics, lambda halves: table.rows_at(at, halves, self._lost))
            rows = TransactionRows(
                asked, columns, at.position, at.log_start, partition.open_halves, self._lost, must_have=partition.must_have
            )  # fmt: skip
            for page in table.transactions(at, partition.start, partition.end, self._lost):
                yield from rows.convert(page)
            yield from rows.groups(
                partition.groups,
                lambda halves: (page for run in runs(halves) for page in table.transactions(at, *run, self._lost)),
            )


class HalfmqStreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. The methods are those of Spark's interfaces."""

    def __init__(self, options: Options, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options)
        self._clock = clock
        self._limits = Limits(
            options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_offsets_per_trigger
        )
        self._delay = TriggerDelay(options.max_trigger_delay_ms)
        #: Resolved once, since Spark asks again during the first batch and "latest" must not move.
        self._initial: StreamOffset | None = None
        #: End of an ``availableNow`` query.
        self._target: QueueBoundsSnapshot | None = None
        self._newest: QueueBoundsSnapshot | None = None
        #: Topics that the query holds, each with its broker: "" unless they are several.
        self._held: frozenset[QueueName] = frozenset()
        self._start_published = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the query starts (``startingOffsets``). Spark calls it only for a query without a checkpoint, possibly several times."""
        if self._initial is None:
            snapshot = self._target or self._current_snapshot(None)
            starts = self._bound("start", LATEST, snapshot, self._open())
            self._initial = ends_of(snapshot)._replace(queues=starts)
            for topic in self._options.topics:
                if topic not in snapshot.topics:
                    _log.warning("halfmq: topic %s does not exist yet; its messages are read once it does", topic)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The admission limit of a micro-batch (``maxOffsetsPerTrigger`` and the like); Spark passes it to ``latestOffset``."""
        return self._limits.default()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query. Spark calls it once, at the start of a query with ``availableNow``."""
        self._target = self._current_snapshot(None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """End of the next batch; ``start`` unchanged if there is nothing to read."""
        begin = data_loss.restricted(from_json(start), self._options.subscription.includes)
        snapshot = self._current_snapshot(begin)
        starts = self._resume(begin, snapshot)
        if self._options.hold and not self._start_published:
            # What the group has committed may be before the start of this query, or after it, as with an older checkpoint.
            self._start_published = True
            self._publish(offset_like(begin, snapshot))
        if self._target is not None:
            snapshot = limited_to(snapshot, self._target)
        backlog = {queue: end - starts[queue] for queue, (_, end) in snapshot.queues.items() if end > starts[queue]}
        limits = self._limits.of_trigger(limit)
        total = sum(backlog.values())
        # With availableNow a trigger must not wait: the query ends once, and messages of later are not read.
        rows_min = None if self._target is not None else limits.rows_min
        if self._delay.waits(total, rows_min, self._clock()) or total == 0:
            # From now on the checkpoint must name the broker that was the only one, which may be away the next time.
            is_joined = snapshot.stores and begin.queues and not begin.stores
            return to_json(ends_of(snapshot)._replace(queues=starts)) if is_joined else start
        taken = backlog if limits.rows_max is None else shares(backlog, limits.rows_max)
        if limits.bytes_max is not None:
            reader = self._open()
            taken = shares_within_bytes(
                taken,
                limits.bytes_max,
                lambda queue, skipped, count, size: reader.fitting(
                    queue, starts[queue] + skipped, starts[queue] + skipped + count, size, snapshot
                ),
            )
        ends = {queue: at + taken.get(queue, 0) for queue, at in starts.items()}
        # Spark keeps the end only. Without a batch before it, nothing else says where it begins, if Spark repeats it.
        is_first = self._initial is not None and start == to_json(self._initial)
        return to_json(ends_of(snapshot)._replace(queues=ends, begin=starts if is_first else None))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest end offsets, from which Spark computes the backlog for its progress reports; None before the first batch."""
        return None if self._newest is None else to_json(ends_of(self._newest))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks between two offsets: the same messages also if Spark repeats the batch after a crash."""
        ended = from_json(end)
        # Of a batch without anything new, the end is that of the batch before.
        began = from_json(start) if ended.begin is None or start == end else ended._replace(queues=ended.begin)
        finish = data_loss.restricted(ended, self._options.subscription.includes)
        begin = data_loss.restricted(began, self._options.subscription.includes)
        snapshot = self._current_snapshot(finish)
        kept = self._resume(finish, snapshot)  # also reports losses at the end offset
        starts = self._resume(begin, snapshot)
        ends = {queue: kept[queue] for queue in offset_like(finish, snapshot).queues if queue in kept}
        return list(self._plan(starts, ends, snapshot))

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the broker how far the query is, with ``publishPosition``; the offsets that count are in Spark's checkpoint.

        Spark calls it before the next batch, and never after the last one of ``availableNow``.
        """
        if self._options.publish_position:
            self._publish(from_json(end))

    def _publish(self, offset: StreamOffset) -> None:
        reader = cast("WireReader", self._open())  # ``publishPosition`` needs ``url``
        try:
            reader.publish(offset)
        except (Unavailable, HalfmqError) as error:
            _log.warning("halfmq: the position of the query was not published: %s", error)

    def __repr__(self) -> str:
        return f"stream of {self._options}"

    def stop(self) -> None:
        """Spark calls it when the query ends: close the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _current_snapshot(self, read_to: StreamOffset | None) -> QueueBoundsSnapshot:
        """The newest snapshot; waits while the store ends before ``read_to``.

        A stream continues without brokers that are away, except at its start, and with ``availableNow``, which ends once.
        """
        reader = self._open()

        def attempt() -> QueueBoundsSnapshot:
            complete = self._target is not None
            snapshot = self._snapshot(reader, read_to, complete=complete)
            if self._hold(reader, snapshot):
                snapshot = self._snapshot(reader, read_to, complete=complete)  # nothing of this one is removed unread
            if read_to is not None and data_loss.is_regressed(read_to, snapshot):
                raise _Regressed(snapshot)
            return snapshot

        try:
            self._newest = self._deadline().until(attempt, "the store of the query")
        except ConnectError as error:
            if not isinstance(error.__cause__, _Regressed):
                raise
            self._newest = error.__cause__.snapshot  # waiting did not help: the caller reports the loss
        return self._newest

    def _hold(self, reader: Reader, snapshot: QueueBoundsSnapshot) -> bool:
        """Let retention wait for the query, once for each set of topics and brokers, which may change. True: this did it."""
        topics = set(self._options.topics or snapshot.topics) | {topic for topic, _ in self._held}
        brokers = [name for name, why in snapshot.brokers.items() if not why] if snapshot.stores else [""]
        wanted = {(topic, broker) for topic in topics for broker in brokers}
        if not self._options.hold or wanted <= self._held:
            return False
        if not cast("WireReader", reader).hold(sorted(topics)):  # ``hold`` needs ``url``
            return False
        self._held |= wanted
        return True

    def _resume(self, offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> dict[QueueName, int]:
        resumed = data_loss.resume(offset, snapshot)
        if resumed.losses:
            self._lost("; ".join(resumed.losses))
        return resumed.starts
