"""Where a read starts and ends: by offset, or by time."""

import pytest

from halfmq.errors import DataLost, UsageError
from halfmq.spark.plan import data_loss
from halfmq.spark.plan.bounds import (
    EARLIEST,
    LATEST,
    Bounds,
    TimeBounds,
    ends_by_time,
    parse_offsets,
    parse_time,
    parse_times,
    resolved,
    starts_by_time,
)
from halfmq.spark.plan.offsets import QueueBoundsSnapshot
from halfmq.spark.plan.subscription import Subscription

ORDERS = Subscription(("orders", "later"))
SNAPSHOT = QueueBoundsSnapshot("ab", 1, 500, {("orders", "0"): (2, 10), ("orders", "1"): (0, 5)}, {"orders": 1})


def fail(what: str) -> None:
    raise data_loss.lost((what,))


def test_offsets_by_word_and_by_json() -> None:
    assert parse_offsets("startingOffsets", "Latest", EARLIEST, ORDERS, "") == Bounds(LATEST, {})
    named = parse_offsets("endingOffsets", '{"orders":{"0":-1,"a:1":3}}', LATEST, ORDERS, "")
    assert named == Bounds(LATEST, {"orders": {"0": LATEST, "a:1": 3}})


def test_an_offset_that_does_not_exist_is_named_with_those_that_do() -> None:
    empty = SNAPSHOT._replace(queues={("orders", "0"): (7, 7)})
    wanted = Bounds(EARLIEST, {"orders": {"0": 11}})
    with pytest.raises(DataLost, match="offset 11 of queue 0 of topic orders was requested; the queue contains 2 to 9"):
        resolved(wanted, EARLIEST, SNAPSHOT, fail)
    with pytest.raises(DataLost, match="the queue is empty, and its next message is 7"):
        resolved(wanted, EARLIEST, empty, fail)


def test_a_topic_that_the_pattern_does_not_match_is_not_subscribed() -> None:
    with pytest.raises(UsageError, match="not subscribed: other"):
        parse_offsets("startingOffsets", '{"other":{"0":1}}', EARLIEST, Subscription(pattern="orders.*"), "")
    assert parse_times("startingOffsetsByTimestamp", '{"orders2":{"0":1}}', Subscription(pattern="orders.*"), "")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "yesterday", "²", str(1 << 63)])
def test_a_time_is_a_whole_number_of_milliseconds(text: str) -> None:
    assert parse_time("startingTimestamp", "1700000000000") == TimeBounds(1_700_000_000_000, {})
    with pytest.raises(UsageError, match="startingTimestamp is"):
        parse_time("startingTimestamp", text)


@pytest.mark.parametrize(
    "text", ["7", '{"orders":7}', '{"orders":{"0":-1}}', '{"orders":{"0":true}}', '{"orders":{"x":1}}', "{"]
)
def test_times_of_queues_are_checked(text: str) -> None:
    with pytest.raises(UsageError, match="endingOffsetsByTimestamp is"):
        parse_times("endingOffsetsByTimestamp", text, ORDERS, "")


def test_which_queues_have_a_time() -> None:
    assert TimeBounds(7, {}).wanted(SNAPSHOT) == {("orders", "0"): 7, ("orders", "1"): 7}
    assert TimeBounds(None, {"orders": {"1": 9}, "later": {"5": 1}}).wanted(SNAPSHOT) == {("orders", "1"): 9}
    with pytest.raises(UsageError, match=r"time 9 of queue 4 of topic orders .*its queues are 0, 1"):
        TimeBounds(None, {"orders": {"4": 9}}).wanted(SNAPSHOT)


def test_a_start_without_a_match_is_an_error_or_the_end() -> None:
    wanted = {("orders", "0"): 7, ("orders", "1"): 8}
    found = {("orders", "0"): 4, ("orders", "1"): None}
    with pytest.raises(UsageError, match="queue 1 of topic orders has no message at or after 8 ms"):
        starts_by_time(SNAPSHOT, wanted, found, without_match_latest=False)
    starts = starts_by_time(SNAPSHOT, wanted, found, without_match_latest=True)
    assert starts == {("orders", "0"): 4, ("orders", "1"): 5}


def test_a_queue_without_a_time_is_read_whole() -> None:
    only_1 = {("orders", "1"): 3}
    assert starts_by_time(SNAPSHOT, {("orders", "1"): 8}, only_1, without_match_latest=False) == {
        ("orders", "0"): 2,
        ("orders", "1"): 3,
    }
    assert ends_by_time(SNAPSHOT, only_1) == {("orders", "0"): 10, ("orders", "1"): 3}


def test_an_end_without_a_match_is_the_end_of_the_queue() -> None:
    assert ends_by_time(SNAPSHOT, {("orders", "0"): None, ("orders", "1"): 0}) == {
        ("orders", "0"): 10,
        ("orders", "1"): 0,
    }


def test_offsets_are_resolved_within_the_queues() -> None:
    assert resolved(None, LATEST, SNAPSHOT, fail) == {("orders", "0"): 10, ("orders", "1"): 5}
    named = Bounds(EARLIEST, {"orders": {"1": 3}})
    assert resolved(named, LATEST, SNAPSHOT, fail) == {("orders", "0"): 2, ("orders", "1"): 3}
    with pytest.raises(DataLost, match="offset 1 of queue 0"):
        resolved(Bounds(EARLIEST, {"orders": {"0": 1}}), LATEST, SNAPSHOT, fail)
    assert resolved(Bounds(EARLIEST, {"orders": {"0": 11}}), LATEST, SNAPSHOT, lambda what: None)["orders", "0"] == 10
