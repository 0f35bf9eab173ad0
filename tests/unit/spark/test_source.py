"""What a batch plans and where a stream stands, without Spark running: snapshots are given, reading is not done."""

import json
import logging
import pickle
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from halfmq.errors import ConnectError, DataLost, MissingDependency, TopicNotFound, UsageError
from halfmq.spark import options as options_module
from halfmq.spark import source
from halfmq.spark.options import parse_options
from halfmq.spark.plan.offsets import QueueBoundsSnapshot
from halfmq.spark.plan.partitions import QueueRange, Ranges
from halfmq.spark.source import HalfmqBatchReader, HalfmqDataSource, HalfmqStreamReader

STORE = "ab"


class Snapshots:
    """A reader whose snapshots a test sets."""

    def __init__(self) -> None:
        self.queues = {("orders", "0"): (0, 10), ("orders", "1"): (0, 5)}
        self.topics = {"orders": 1}
        self.store, self.epoch, self.position = STORE, 1, 1_000
        #: Bytes of a message, by queue; empty: unknown.
        self.sizes: dict[int, int] = {}

    def snapshot(self, known: Collection[str] = ()) -> QueueBoundsSnapshot:
        return QueueBoundsSnapshot(self.store, self.epoch, self.position, dict(self.queues), dict(self.topics))

    def size_samples(self, sliced: Sequence[QueueRange]) -> list[tuple[int, int]] | None:
        return [(1, self.sizes[one.queue]) for one in sliced] if self.sizes else None

    def offsets_at(
        self, times_ms: dict[tuple[str, str], int], snapshot: QueueBoundsSnapshot
    ) -> dict[tuple[str, str], int | None]:
        """As if message n was stored at time 100 + n."""
        bounds = {
            queue: (max(snapshot.queues[queue][0], time_ms - 100), snapshot.queues[queue][1])
            for queue, time_ms in times_ms.items()
        }
        return {queue: at if at < end else None for queue, (at, end) in bounds.items()}

    def fitting(
        self, queue: tuple[str, str], start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """As if each message had 10 bytes."""
        count = min(end - start, bytes_max // 10)
        return count, 10 * count

    def close(self) -> None:
        pass

    def grow(self, queue: str, messages: int) -> None:
        first, end = self.queues.get(("orders", queue), (0, 0))
        self.queues["orders", queue] = (first, end + messages)
        self.position += messages * 100


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    made = Snapshots()
    monkeypatch.setattr(source, "open_reader", lambda options, deadline: made)
    return made


def options(**more: str) -> dict[str, str]:
    return {"url": "rocketmq://127.0.0.1:1", "subscribe": "orders", "brokerTimeout": "0", **more}


def stream(**more: str) -> HalfmqStreamReader:
    return HalfmqStreamReader(parse_options(options(**more)).for_stream())


def batch(**more: str) -> HalfmqBatchReader:
    return HalfmqBatchReader(parse_options(options(**more)).for_batch())


def planned(partitions: list[Any]) -> dict[int, tuple[int, int]]:
    """queue -> (start, end)."""
    found: dict[int, tuple[int, int]] = {}
    for partition in partitions:
        assert isinstance(partition, Ranges)
        for one in partition.ranges:
            start, end = found.get(one.queue, (one.start, one.start))
            assert end == one.start
            found[one.queue] = (start, one.end)
    return found


# --- batch


def test_a_batch_reads_everything_by_default(snapshots: Snapshots) -> None:
    assert planned(batch().partitions()) == {0: (0, 10), 1: (0, 5)}


def test_a_batch_up_to_where_a_stream_stood(snapshots: Snapshots) -> None:
    stood = json.dumps(stream(startingOffsets="latest").initialOffset())
    snapshots.grow("0", 4)
    assert planned(batch(endingOffsets=stood).partitions()) == {0: (0, 10), 1: (0, 5)}


def test_an_empty_topic_is_an_empty_batch_and_a_missing_one_an_error(snapshots: Snapshots) -> None:
    snapshots.queues = {("orders", "0"): (0, 0)}
    assert batch().partitions() == []
    snapshots.queues, snapshots.topics = {}, {}
    with pytest.raises(TopicNotFound, match="no topic orders"):
        batch().partitions()


def test_offsets_that_are_not_there_are_a_loss(snapshots: Snapshots, caplog: pytest.LogCaptureFixture) -> None:
    snapshots.queues["orders", "0"] = (4, 10)
    with pytest.raises(DataLost, match="offset 2 of queue 0"):
        batch(startingOffsets='{"orders":{"0":2}}').partitions()
    with pytest.raises(DataLost, match="offset 11 of queue 0"):
        batch(endingOffsets='{"orders":{"0":11}}').partitions()
    gone = '{"v":1,"queues":{"orders":{"9":11}}}'  # a stream stood there
    with pytest.raises(DataLost, match="no such queue"):
        batch(endingOffsets=gone).partitions()
    with caplog.at_level(logging.WARNING):
        assert planned(batch(startingOffsets='{"orders":{"0":2}}', failOnDataLoss="false").partitions())[0] == (4, 10)
    assert "offset 2 of queue 0" in caplog.text


@pytest.mark.parametrize("at", [-2, -1, 0, 11])
def test_a_queue_that_does_not_exist_is_refused_with_those_that_do(snapshots: Snapshots, at: int) -> None:
    for lenient in ("true", "false"):
        asked = {"startingOffsets": json.dumps({"orders": {"99": at}}), "failOnDataLoss": lenient}
        with pytest.raises(UsageError, match=r"queue 99 of topic orders .*its queues are 0, 1"):
            stream(**asked).initialOffset()
        if at >= 0:
            with pytest.raises(UsageError, match="its queues are 0, 1"):
                batch(**asked).partitions()
            with pytest.raises(UsageError, match="its queues are 0, 1"):
                batch(endingOffsets=asked["startingOffsets"]).partitions()


def test_a_topic_that_does_not_exist_yet_may_have_any_queue(snapshots: Snapshots) -> None:
    snapshots.topics, snapshots.queues = {}, {}
    assert stream(startingOffsets='{"orders":{"7":0}}').initialOffset()["queues"] == {}


def test_a_batch_of_a_pattern_without_topics_is_empty(snapshots: Snapshots, caplog: pytest.LogCaptureFixture) -> None:
    snapshots.queues, snapshots.topics = {}, {}
    given = {name: value for name, value in options(subscribePattern="x.*").items() if name != "subscribe"}
    with caplog.at_level(logging.WARNING):
        assert HalfmqBatchReader(parse_options(given).for_batch()).partitions() == []
    assert "no topic matches the pattern" in caplog.text


# --- stream


def test_a_stream_starts_at_the_end_and_stays_there_until_something_comes(snapshots: Snapshots) -> None:
    made = stream()
    start = made.initialOffset()
    snapshots.grow("0", 3)
    assert made.initialOffset() == start
    end = made.latestOffset(start, ReadAllAvailable())
    assert planned(made.partitions(start, end)) == {0: (10, 13)}


@pytest.mark.parametrize("more", [0, 4])
def test_the_first_batch_is_the_same_after_a_restart(snapshots: Snapshots, more: int) -> None:
    """Spark keeps only where it ended, and asks for the initial offset again. Later batches begin where the one before ended."""
    made = stream()
    start = made.initialOffset()
    snapshots.grow("0", 3)
    end = json.loads(json.dumps(made.latestOffset(start, ReadAllAvailable())))
    snapshots.grow("0", more)
    snapshots.grow("2", more)
    again = stream()
    assert planned(again.partitions(again.initialOffset(), end)) == {0: (10, 13)}
    assert planned(again.partitions(end, end)) == {}
    snapshots.grow("0", 1)
    second = again.latestOffset(end, ReadAllAvailable())
    assert "from" not in second
    assert planned(again.partitions(end, second))[0] == (13, 14 + more)


def test_nothing_new_gives_the_same_text_however_the_position_moves(snapshots: Snapshots) -> None:
    made = stream()
    start = json.loads(json.dumps(made.initialOffset()))
    snapshots.position += 5_000
    snapshots.epoch += 1
    assert json.dumps(made.latestOffset(start, ReadAllAvailable())) == json.dumps(start)


def test_what_was_asked_for_as_start(snapshots: Snapshots) -> None:
    assert stream(startingOffsets="earliest").initialOffset()["queues"] == {"orders": {"0": 0, "1": 0}}
    assert stream(startingOffsets='{"orders":{"0":4,"1":-1}}').initialOffset()["queues"] == {"orders": {"0": 4, "1": 5}}


def test_the_limit_of_the_engine_counts_not_the_option(snapshots: Snapshots) -> None:
    made = stream(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    assert end["queues"] == {"orders": {"0": 10, "1": 5}}
    start = made.initialOffset()
    assert made.latestOffset(start, ReadMinRows(16)) == start


def test_a_stream_starts_at_a_time_and_stays_there(snapshots: Snapshots) -> None:
    made = stream(startingTimestamp="103")
    start = made.initialOffset()
    assert start["queues"] == {"orders": {"0": 3, "1": 3}}
    snapshots.grow("2", 4)
    assert made.initialOffset() == start
    end = made.latestOffset(start, ReadAllAvailable())
    assert planned(made.partitions(start, end)) == {0: (3, 10), 1: (3, 5), 2: (0, 4)}, "a new queue from its start"


def test_the_smaller_of_two_limits_counts(snapshots: Snapshots) -> None:
    for size, count in (("1k", 6), ("20", 2)):
        made = stream(startingOffsets="earliest", maxOffsetsPerTrigger="6", maxBytesPerTrigger=size)
        start = made.initialOffset()
        ranges = planned(made.partitions(start, made.latestOffset(start, made.getDefaultReadLimit())))
        assert sum(end - start for start, end in ranges.values()) == count
        assert made.latestOffset(start, ReadAllAvailable())["queues"] == {"orders": {"0": 10, "1": 5}}, "Trigger.Once"


def waiting_stream(now_s: list[float], **more: str) -> HalfmqStreamReader:
    parsed = parse_options(options(startingOffsets="earliest", minOffsetsPerTrigger="6", maxTriggerDelay="60s", **more))
    return HalfmqStreamReader(parsed.for_stream(), clock=lambda: now_s[0])


def test_a_trigger_waits_for_enough_messages_or_for_its_delay(snapshots: Snapshots) -> None:
    now_s = [0.0]
    made = waiting_stream(now_s)
    limit = made.getDefaultReadLimit()
    at = made.latestOffset(made.initialOffset(), limit)
    assert at["queues"] == {"orders": {"0": 10, "1": 5}}, "the first one does not wait"
    snapshots.grow("0", 5)
    now_s[0] = 59.0
    assert made.latestOffset(at, limit) == at
    snapshots.grow("1", 1)
    at = made.latestOffset(at, limit)
    assert at["queues"] == {"orders": {"0": 15, "1": 6}}, "six are enough"
    snapshots.grow("0", 1)
    now_s[0] = 118.0
    assert made.latestOffset(at, limit) == at
    now_s[0] = 119.0
    assert made.latestOffset(at, limit)["queues"]["orders"]["0"] == 16, "after the delay one is enough"


def test_available_now_does_not_wait_for_messages(snapshots: Snapshots) -> None:
    made = waiting_stream([0.0], maxOffsetsPerTrigger="6")
    made.prepareForTriggerAvailableNow()
    at, counts = made.initialOffset(), []
    while (after := made.latestOffset(at, made.getDefaultReadLimit())) != at:
        counts.append(sum(after["queues"]["orders"].values()) - sum(at["queues"]["orders"].values()))
        at = after
    assert counts == [6, 6, 3]


def test_a_stream_of_a_pattern_keeps_what_it_matches(snapshots: Snapshots) -> None:
    given = {name: value for name, value in options(startingOffsets="earliest").items() if name != "subscribe"}
    made = HalfmqStreamReader(parse_options({**given, "subscribePattern": "ord.*"}).for_stream())
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    snapshots.topics["ordinary"] = 2
    snapshots.queues["ordinary", "0"] = (0, 3)
    after = made.latestOffset(end, ReadAllAvailable())
    assert planned(made.partitions(end, after)) == {0: (0, 3)}
    del snapshots.topics["ordinary"], snapshots.queues["ordinary", "0"]
    with pytest.raises(DataLost, match="topic ordinary no longer exists"):
        made.latestOffset(after, ReadAllAvailable())


def test_readers_say_what_they_read() -> None:
    assert repr(stream()) == "stream of halfmq[rocketmq://127.0.0.1:1, subscribe=orders]"
    assert repr(batch(tags="a")) == "batch of halfmq[rocketmq://127.0.0.1:1, subscribe=orders, tags=a]"
    assert repr(HalfmqDataSource(options())) == "halfmq[rocketmq://127.0.0.1:1, subscribe=orders]"


def test_available_now_ends_where_it_began_to_look(snapshots: Snapshots) -> None:
    made = stream(startingOffsets="earliest")
    made.prepareForTriggerAvailableNow()
    snapshots.grow("0", 100)
    snapshots.grow("7", 1)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert end["queues"] == {"orders": {"0": 10, "1": 5, "7": 0}}
    assert made.latestOffset(end, ReadAllAvailable()) == end
    latest = stream()
    latest.prepareForTriggerAvailableNow()
    snapshots.grow("0", 1)
    start = latest.initialOffset()
    assert start["queues"] == {"orders": {"0": 110, "1": 5, "7": 1}}
    assert latest.latestOffset(start, ReadAllAvailable()) == start


def test_losses_stop_the_stream_by_name_or_are_passed_over(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    start = stream(startingOffsets="earliest").initialOffset()
    end = stream().latestOffset(start, ReadAllAvailable())
    snapshots.queues["orders", "0"] = (6, 12)
    with pytest.raises(DataLost, match="messages 0 to 5 of queue 0 of topic orders"):
        stream().latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLost, match="messages 0 to 5"):
        stream().partitions(start, end)
    careless = stream(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert planned(careless.partitions(start, end)) == {0: (6, 10), 1: (0, 5)}
    assert "messages 0 to 5" in caplog.text
    snapshots.queues["orders", "0"] = (11, 12)
    assert planned(careless.partitions(start, end)) == {1: (0, 5)}


def test_a_store_that_is_behind_is_waited_for(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    start = stream().initialOffset()
    shown = [snapshots.snapshot()._replace(position=5), snapshots.snapshot()._replace(position=5), snapshots.snapshot()]
    monkeypatch.setattr(snapshots, "snapshot", lambda known: shown.pop(0) if len(shown) > 1 else shown[0])
    assert stream(brokerTimeout="30s").latestOffset(start, ReadAllAvailable()) == start
    assert len(shown) == 1


def test_a_broker_that_stays_away_is_not_called_a_loss(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    start = stream().initialOffset()

    def away(known: Collection[str]) -> QueueBoundsSnapshot:
        raise ConnectError("nobody listens")

    monkeypatch.setattr(snapshots, "snapshot", away)
    with pytest.raises(ConnectError, match="nobody listens"):
        stream(failOnDataLoss="false").latestOffset(start, ReadAllAvailable())


def test_the_newest_offset_is_reported_beside_the_one_that_was_taken(snapshots: Snapshots) -> None:
    made = stream(startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert made.reportLatestOffset() is None
    made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())
    reported = made.reportLatestOffset()
    assert reported is not None
    assert reported["queues"] == {"orders": {"0": 10, "1": 5}}


def test_a_reader_travels_to_a_task_without_its_connections(snapshots: Snapshots) -> None:
    made = stream(startingOffsets="earliest")
    made.initialOffset()
    made._reader = object()  # type: ignore[assignment]  # stands for an open socket
    assert pickle.loads(pickle.dumps(made))._reader is None


def test_a_partition_that_spark_made_itself_is_empty() -> None:
    from pyspark.sql.datasource import InputPartition

    assert list(batch().read(InputPartition(None))) == []


# --- data source


def test_the_source_says_its_name_and_refuses_another_schema() -> None:
    made = HalfmqDataSource(options())
    assert HalfmqDataSource.name() == "halfmq"
    with pytest.raises(UsageError, match="schema of this source is fixed"):
        made.reader(HalfmqDataSource(options(columns="value")).schema())
    assert isinstance(made.reader(made.schema()), HalfmqBatchReader)
    assert isinstance(made.streamReader(made.schema()), HalfmqStreamReader)
    with pytest.raises(UsageError, match="unknown option topc"):
        HalfmqDataSource(options(topc="x")).schema()


def test_spark_finds_the_source_by_itself() -> None:
    import pyspark_halfmq

    assert pyspark_halfmq.DefaultSource is HalfmqDataSource


def test_tasks_of_a_batch_and_of_a_stream_have_equal_bytes(snapshots: Snapshots) -> None:
    snapshots.queues = {("orders", "0"): (0, 1_000), ("orders", "1"): (0, 1_000)}
    by_count = [4, 4]
    assert [_tasks_of(batch(minPartitions="8"), queue) for queue in (0, 1)] == by_count
    snapshots.sizes = {0: 300, 1: 3 * 300}
    assert [_tasks_of(batch(minPartitions="8"), queue) for queue in (0, 1)] == [2, 6]
    running = stream(startingOffsets="earliest", minPartitions="8")
    start = running.initialOffset()
    end = running.latestOffset(start, ReadAllAvailable())
    parts = running.partitions(start, end)
    assert [sum(part.ranges[0].queue == queue for part in parts) for queue in (0, 1)] == [2, 6]


def _tasks_of(reader: HalfmqBatchReader, queue: int) -> int:
    return sum(part.ranges[0].queue == queue for part in reader.partitions())


def test_a_task_with_another_version_of_halfmq_says_so(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    for planned_by in (batch(), stream()):
        pickled = pickle.dumps(planned_by)
        assert type(pickle.loads(pickled)) is type(planned_by)
        with monkeypatch.context() as patch:
            patch.setattr(source, "__version__", "0.0.9")
            patch.delattr(options_module, "Options")  # classes of the state differ between versions
            with pytest.raises(
                MissingDependency, match=r"imports halfmq 0\.0\.9 with .*planned with halfmq \d"
            ) as error:
                pickle.loads(pickled)
        assert "driver and of all executors" in error.value.hint
