"""Several halfmq brokers of one name server, read together: one position each, one of them away, another store in place of one."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows
from tests.support.scripted_cluster import BOTH_READ, Broker, Cluster, end_of, read_all, stored

from halfmq.errors import ConnectError, DataLost, UsageError
from halfmq.spark.jobs import replay
from halfmq.spark.options import parse_options
from halfmq.spark.plan.partitions import QueueRange, Ranges
from halfmq.spark.source import HalfmqBatchReader, HalfmqStreamReader
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response

A, B = f"{0:032x}", f"{1:032x}"


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Topic "orders" is on both brokers, with different ids."""
    made = Cluster("broker-a", "broker-b", stock=False)
    made.brokers["broker-b"].topic_id = 7
    made.brokers["broker-b"].position = 900
    yield made
    made.close()


def positions(offset: dict[str, Any]) -> dict[str, tuple[str, int, int]]:
    return {name: (at["store"], at["epoch"], at["position"]) for name, at in offset["brokers"].items()}


def ranges(planned: list[Any]) -> list[tuple[str, int, int, int]]:
    return [(one.broker, one.topic_id, one.start, one.end) for part in planned for one in part.ranges]


def rows_of(made: HalfmqStreamReader, planned: list[Any]) -> list[tuple[str | None, int]]:
    rows = [row for batch in read_all(made, planned) for row in batch.to_pylist()]
    assert all(row["value"] == b"body %d" % row["offset"] for row in rows)
    return sorted((row["broker"], row["offset"]) for row in rows)


def both_read(pair: Cluster) -> dict[str, Any]:
    end = end_of(pair.stream())
    assert end["queues"] == {"orders": BOTH_READ}
    return end


def test_two_brokers_have_one_position_each_and_all_messages_are_read_with_their_names(pair: Cluster) -> None:
    made = pair.stream(columns="broker,offset,value")
    start = made.initialOffset()
    end = end_of(made, start)
    assert json.dumps(end) == (
        f'{{"v": 2, "brokers": {{"broker-a": {{"store": "{A}", "epoch": 2, "position": 500, "topics": {{"orders": 3}}}}, '
        f'"broker-b": {{"store": "{B}", "epoch": 2, "position": 900, "topics": {{"orders": 7}}}}}}, '
        '"queues": {"orders": {"broker-a:0": 10, "broker-b:0": 10}}, "from": {"orders": {"broker-a:0": 0, "broker-b:0": 0}}}'
    )
    planned = made.partitions(start, end)
    assert ranges(planned) == [("broker-a", 3, 0, 10), ("broker-b", 7, 0, 10)]
    assert rows_of(made, planned) == [(name, at) for name in ("broker-a", "broker-b") for at in range(10)]
    batch = HalfmqBatchReader(parse_options({"url": pair.server.url, "subscribe": "orders"}).for_batch())
    assert ranges(batch.partitions()) == ranges(planned)


def test_a_stream_of_one_broker_goes_on_when_the_topic_appears_on_a_second_one(pair: Cluster) -> None:
    pair.only("broker-b")
    made = pair.stream()
    start = end_of(made)
    assert start == {
        "v": 1, "store": B, "epoch": 2, "position": 900, "queues": {"orders": {"0": 10}}, "topics": {"orders": 7},
        "from": {"orders": {"0": 0}},
    }  # fmt: skip
    pair.only("broker-a", "broker-b")
    pair.brokers["broker-b"].end = 12
    made._reader._identify_at = 0.0  # as if IDENTIFY_S had passed
    end = end_of(made, start)
    assert end["queues"] == {"orders": {"broker-a:0": 10, "broker-b:0": 12}}
    assert ranges(made.partitions(start, end)) == [("broker-a", 3, 0, 10), ("broker-b", 7, 10, 12)]
    assert end_of(made, end) == end
    # A batch that was planned before, and is run again.
    again = pair.stream()
    before = {**start, "queues": {"orders": {"0": 4}}}
    del start["from"]
    assert ranges(again.partitions(before, start)) == [("broker-b", 7, 4, 10)]


def test_the_only_broker_is_named_in_the_offset_once_there_is_a_second_one_also_if_there_is_nothing_to_read(
    pair: Cluster,
) -> None:
    """Otherwise the second one would be another store in its place when it is away."""
    pair.only("broker-b")
    start = end_of(pair.stream())
    pair.only("broker-a", "broker-b")
    pair.brokers["broker-a"].end = 0
    made = pair.stream()
    end = end_of(made, start)
    assert end["queues"] == {"orders": {"broker-a:0": 0, "broker-b:0": 10}}
    assert made.partitions(start, end) == []
    assert end_of(made, end) == end
    pair.registered.discard("broker-b")
    pair.brokers["broker-a"].end = 2
    assert end_of(pair.stream(), end)["queues"] == {"orders": {"broker-a:0": 2, "broker-b:0": 10}}


def test_where_one_of_two_stores_is_not_there_its_query_waits_and_says_which_are(pair: Cluster) -> None:
    pair.only("broker-b")
    start = end_of(pair.stream())
    pair.only("broker-a", "broker-b")
    pair.brokers["broker-b"].store = "cd" * 16
    with pytest.raises(ConnectError, match=rf"store {B} is not registered.*broker broker-a with store {A}.*cdcd"):
        end_of(pair.stream(failOnDataLoss="false"), start)
    remedy = (
        f"the query has read store {B} alone: start its broker.*lost for good, only a new checkpoint reads the others"
    )
    with pytest.raises(ConnectError, match=remedy):
        end_of(pair.stream(failOnDataLoss="false"), start)
    pair.away("broker-b")
    with pytest.raises(ConnectError, match=rf"store {B} is not registered.*broker broker-b is away"):
        end_of(pair.stream(failOnDataLoss="false"), start)


@pytest.mark.parametrize("known", [True, False])
def test_the_other_broker_is_read_while_one_is_away(
    pair: Cluster, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """``known``: the name server still lists it."""
    made = pair.stream()
    start = end_of(made)
    if known:
        pair.away("broker-b")
        made._reader.close()
    else:
        pair.registered.discard("broker-b")
        made._reader._identify_at = 0.0
    assert end_of(made, start) == start
    pair.brokers["broker-a"].end = 12
    with caplog.at_level(logging.WARNING):
        ends = [end_of(one, start) for one in (made, pair.stream(failOnDataLoss="false"))]
    assert ends[0] == ends[1]
    assert ends[0]["queues"] == {"orders": {"broker-a:0": 12, "broker-b:0": 10}}
    assert positions(ends[0])["broker-b"] == (B, 2, 900)
    assert "broker-b" in caplog.text
    assert "data loss" not in caplog.text
    assert ranges(made.partitions(start, ends[0])) == [("broker-a", 3, 10, 12)]
    if not known:
        pair.registered.add("broker-b")
        pair.brokers["broker-b"].end = 11
        back = end_of(made, ends[0])
        assert back["queues"] == {"orders": {"broker-a:0": 12, "broker-b:0": 11}}
        assert ranges(made.partitions(ends[0], back)) == [("broker-b", 7, 10, 11)]


def test_a_broker_that_fails_after_it_was_found_is_away(pair: Cluster) -> None:
    made = pair.stream()
    start = end_of(made)
    pair.brokers["broker-a"].end = 12
    pair.brokers["broker-b"].drop = 1
    assert end_of(made, start)["queues"] == {"orders": {"broker-a:0": 12, "broker-b:0": 10}}


def test_what_needs_all_brokers_waits_for_all_of_them(pair: Cluster) -> None:
    start = end_of(pair.stream())
    made = pair.stream()
    young = made.initialOffset()
    planned = made.partitions(young, start)
    pair.away("broker-b")
    with pytest.raises(ConnectError, match="broker-b"):
        pair.stream().initialOffset()
    with pytest.raises(ConnectError, match="broker-b"):
        HalfmqBatchReader(
            parse_options({"url": pair.server.url, "subscribe": "orders", "brokerTimeout": "100ms"})
        ).partitions()
    with pytest.raises(ConnectError, match="broker-b"):
        pair.stream().prepareForTriggerAvailableNow()
    with pytest.raises(ConnectError, match="queue 0 of topic orders on broker broker-b"):
        read_all(pair.stream(), planned)
    assert ranges(pair.stream().partitions(young, start)) == ranges(planned), "run again while it is away"


def test_no_broker_of_the_query_is_there(pair: Cluster) -> None:
    start = end_of(pair.stream())
    pair.registered = set()
    with pytest.raises(ConnectError, match=r"broker-a is away.*broker-b is away"):
        end_of(pair.stream(failOnDataLoss="false"), start)


def test_available_now_ends_at_the_broker_that_it_found_and_a_later_run_reads_the_second_one(pair: Cluster) -> None:
    pair.only("broker-b")
    start = pair.stream().initialOffset()
    now = pair.stream()
    now.prepareForTriggerAvailableNow()
    pair.only("broker-a", "broker-b")
    pair.brokers["broker-b"].end = 12
    now._reader.close()
    end = end_of(now, start)
    assert end["queues"] == {"orders": {"broker-a:0": 0, "broker-b:0": 10}}
    assert end_of(now, end) == end
    assert end_of(pair.stream(), end)["queues"] == {"orders": {"broker-a:0": 10, "broker-b:0": 12}}


def test_another_store_in_place_of_one_broker_is_named_and_the_other_is_not_affected(
    pair: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    start = both_read(pair)
    pair.brokers["broker-b"].store = "cd" * 16
    pair.brokers["broker-a"].end = 11
    with pytest.raises(DataLost, match=f"broker broker-b: this is store {'cd' * 16}, the query has read store {B}"):
        end_of(pair.stream(), start)
    made = pair.stream(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = end_of(made, start)
    assert "broker broker-b: this is store" in caplog.text
    assert ranges(made.partitions(start, end)) == [("broker-a", 3, 10, 11), ("broker-b", 7, 0, 10)]
    assert positions(end)["broker-b"][0] == "cd" * 16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"position": 899}, "broker broker-b: the store is an older copy"),
        ({"topic_id": 8}, "broker broker-b: topic orders was deleted and created again"),
        ({"has_topic": False}, "broker broker-b: topic orders no longer exists"),
        ({"first": 12, "end": 13}, "broker broker-b: messages 10 to 11 of queue 0 of topic orders are past retention"),
        ({"end": 9}, "broker broker-b: queue 0 of topic orders ends at 9, but the query has read up to 10"),
    ],
)
def test_losses_of_one_broker_name_it(pair: Cluster, change: dict[str, int], text: str) -> None:
    start = both_read(pair)
    for name, value in change.items():
        setattr(pair.brokers["broker-b"], name, value)
    with pytest.raises(DataLost, match=text) as lost:
        end_of(pair.stream(), start)
    assert "broker-a" not in str(lost.value)


def test_a_broker_that_has_another_name_is_recognised_by_its_store(pair: Cluster) -> None:
    start = both_read(pair)
    pair.brokers["eu-1"] = pair.brokers.pop("broker-b")
    pair.registered = {"broker-a", "eu-1"}
    pair.brokers["eu-1"].end = 11
    made = pair.stream()
    end = end_of(made, start)
    assert end["queues"] == {"orders": {"broker-a:0": 10, "eu-1:0": 11}}
    assert ranges(made.partitions(start, end)) == [("eu-1", 7, 10, 11)]


def test_a_task_names_the_broker_whose_store_or_topic_is_another_one(pair: Cluster) -> None:
    made = pair.stream()
    start = made.initialOffset()
    planned = made.partitions(start, end_of(made, start))
    pair.brokers["broker-b"].topic_id = 8
    with pytest.raises(
        DataLost, match=r"topic orders was deleted and created again: messages 0 to 9 of queue broker-b:0"
    ):
        read_all(pair.stream(), planned)
    pair.brokers["broker-b"].has_topic = False
    with pytest.raises(DataLost, match="topic orders no longer exists on broker broker-b"):
        read_all(pair.stream(), planned)
    pair.brokers["broker-b"].store = "cd" * 16
    with pytest.raises(DataLost, match=f"broker broker-b has store {'cd' * 16}, but store {B} was planned"):
        read_all(pair.stream(), planned)


def test_limits_of_a_trigger_are_shared_by_the_brokers(pair: Cluster) -> None:
    pair.brokers["broker-b"].end = 30
    made = pair.stream(maxOffsetsPerTrigger="8")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadMaxRows(8))
    assert end["queues"] == {"orders": {"broker-a:0": 2, "broker-b:0": 6}}
    limited = pair.stream(maxBytesPerTrigger="1k")
    end = limited.latestOffset(start, ReadMaxBytes(5 * len(stored(0, b"body 0"))))
    assert sum(end["queues"]["orders"].values()) == 5
    assert min(end["queues"]["orders"].values()) > 0
    sizes = made._reader.size_samples([QueueRange("orders", 3, name, 0, 2, 9) for name in ("broker-a", "broker-b")])
    assert sizes == [(16, 1_002), (16, 1_002)]
    assert made._reader.size_samples([QueueRange("orders", 3, "broker-c", 0, 2, 9)]) is None


def test_starting_offsets_and_times_name_the_broker(pair: Cluster) -> None:
    named = pair.stream(startingOffsets='{"orders":{"broker-a:0":4}}').initialOffset()
    assert named["queues"] == {"orders": {"broker-a:0": 4, "broker-b:0": 0}}
    whole = pair.stream(startingOffsets=json.dumps(named)).initialOffset()
    assert whole["queues"] == named["queues"]
    timed = pair.stream(startingTimestamp="1005").initialOffset()
    assert timed["queues"] == {"orders": {"broker-a:0": 5, "broker-b:0": 5}}
    of_one = {"v": 1, "store": A, "epoch": 2, "position": 500, "queues": {"orders": {"0": 4}}, "topics": {"orders": 3}}
    for given in ('{"orders":{"0":4}}', json.dumps(of_one)):
        with pytest.raises(UsageError, match=r"BROKER:NUMBER.*broker-a:0, broker-b:0"):
            pair.stream(startingOffsets=given).initialOffset()


def test_a_new_topic_of_a_pattern_on_a_second_broker_is_read_at_once(pair: Cluster) -> None:
    """Not only after ``IDENTIFY_S``."""
    pair.only("broker-b")
    made = pair.stream(subscribePattern="ord.*")
    start = end_of(made)
    pair.only("broker-a", "broker-b")
    pair.brokers["broker-a"].names = ["ordinary"]
    pair.brokers["broker-b"].position += 100
    assert end_of(made, start)["queues"] == {"orders": {"broker-b:0": 10}, "ordinary": {"broker-a:0": 10}}


def test_each_broker_is_held_and_one_that_joins_later_too_and_positions_are_published_at_each(pair: Cluster) -> None:
    holds: list[tuple[str, bytes]] = []
    commits: list[tuple[str, int, int]] = []

    def recorded(name: str, broker: Broker, request: Request[Any]) -> bytes | None:
        if request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            holds.append((name, bytes(request.body)))
            return encode_response(request, 0)
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            commits.append((name, request.ext.queue_id, request.ext.commit_offset))
        return broker.answer(request)

    for name, broker in pair.brokers.items():
        broker.server.answer = lambda request, name=name, broker=broker: recorded(name, broker, request)  # type: ignore[misc]
    pair.only("broker-b")
    body = b'{"groupName":"g","attributes":{"+hold.topics":"orders"}}'
    made = pair.stream(group="g", publishPosition="true", hold="true")
    start = end_of(made)
    assert holds == [("broker-b", body)]
    pair.only("broker-a", "broker-b")
    made._reader._identify_at = 0.0
    end = end_of(made, start)
    assert set(holds[1:]) == {("broker-a", body), ("broker-b", body)}
    end_of(made, end)
    assert len(holds) == 3, "once for each set of brokers"
    del commits[:]
    made.commit(start)  # of one broker, after a second one has joined
    made.commit(end)
    made._reader.snapshot()  # one-way requests were handled before this one
    assert sorted(commits) == [("broker-a", 0, 10), ("broker-b", 0, 10), ("broker-b", 0, 10)]
    before = len(commits)
    pair.brokers["broker-b"].store = "cd" * 16
    made._reader.close()
    made.commit(end)
    made._reader.snapshot()
    assert commits[before:] == [("broker-a", 0, 10)], "not in another store"


def test_files_are_those_of_one_broker(pair: Cluster, tmp_path: Any) -> None:
    start = both_read(pair)
    made = HalfmqStreamReader(parse_options({"path": str(tmp_path), "subscribe": "orders"}).for_stream())
    with pytest.raises(UsageError, match=r"several halfmq brokers \(broker-a, broker-b\).*`url`"):
        end_of(made, start)


def test_a_partition_knows_the_store_of_each_range() -> None:
    part = Ranges("", (), {"a": "s", "b": "t"})
    assert [part.store_of(QueueRange("orders", 1, name, 0, 0, 1)) for name in ("a", "b", "")] == ["s", "t", ""]


def test_a_replay_reads_one_broker(pair: Cluster) -> None:
    reader = replay._reader({"url": pair.server.url, "subscribe": "orders"})
    try:
        with pytest.raises(UsageError, match="several halfmq brokers: broker-a, broker-b; a replay reads one"):
            replay._snapshot(reader)
    finally:
        reader.close()
