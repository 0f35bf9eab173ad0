"""Offsets and snapshots of several brokers, as those of one each, and back."""

from halfmq.spark.plan.data_loss import (
    answers_for_another_store,
    is_regressed,
    restricted,
    resume,
    unreachable_brokers,
    with_unreachable,
)
from halfmq.spark.plan.offsets import (
    NO_POSITION,
    QueueBoundsSnapshot,
    StreamOffset,
    ends_of,
    merged_snapshot,
    offset_like,
    part_of_snapshot,
    parts_of_offset,
    snapshot_like,
)

EAST = QueueBoundsSnapshot("ab", 2, 100, {("orders", "0"): (0, 5), ("orders", "1"): (2, 7)}, {"orders": 1})
WEST = QueueBoundsSnapshot(
    "cd", 3, 900, {("orders", "0"): (0, 9), ("loyalty", "0"): (0, 1)}, {"orders": 6, "loyalty": 7}
)
BOTH = merged_snapshot({"east": EAST, "west": WEST}, {})
ENDS = ends_of(BOTH)


def test_what_is_merged_can_be_taken_apart() -> None:
    assert BOTH.queues["orders", "west:0"] == (0, 9)
    assert (part_of_snapshot(BOTH, "east"), part_of_snapshot(BOTH, "west")) == (EAST, WEST)
    assert parts_of_offset(ENDS) == {"east": ends_of(EAST), "west": ends_of(WEST)}
    assert [BOTH.topic_id(("orders", name)) for name in ("east:0", "west:0")] == [1, 6]
    assert EAST.topic_id(("orders", "0")) == 1


def test_brokers_are_recognised_by_their_stores() -> None:
    one = ends_of(WEST)
    assert offset_like(one, WEST) == one
    assert offset_like(one, BOTH).queues == {("orders", "west:0"): 9, ("loyalty", "west:0"): 1}
    assert offset_like(one._replace(store="ef"), BOTH) == one._replace(store="ef")
    swapped = merged_snapshot({"east": WEST, "west": EAST}, {})
    assert offset_like(ENDS, swapped) == ends_of(swapped)
    taken = merged_snapshot({"west": EAST}, {})
    assert offset_like(ENDS, taken) == ENDS, "two brokers would have one name"
    assert snapshot_like(EAST, BOTH) == merged_snapshot({"east": EAST}, {})
    assert snapshot_like(EAST._replace(store="ef"), BOTH) == EAST._replace(store="ef")


def test_each_broker_continues_where_it_was() -> None:
    assert resume(ENDS, BOTH) == (ENDS.queues, ())
    assert resume(ends_of(EAST), BOTH).starts == {
        ("orders", "east:0"): 5, ("orders", "east:1"): 7, ("orders", "west:0"): 0, ("loyalty", "west:0"): 0,
    }  # fmt: skip
    assert resume(StreamOffset("", 0, NO_POSITION, {}, {}), BOTH).losses == (
        "broker east: messages 0 to 1 of queue 1 of topic orders, which is new to the query, are past retention",
    )


def test_a_broker_that_ends_before_the_query_is_waited_for() -> None:
    assert not is_regressed(ENDS, BOTH)
    assert is_regressed(ENDS, merged_snapshot({"east": EAST, "west": WEST._replace(position=899)}, {}))
    assert is_regressed(ends_of(EAST), merged_snapshot({"east": EAST._replace(epoch=1), "west": WEST}, {}))


def test_a_broker_that_is_away_keeps_its_offsets_and_its_state() -> None:
    for shown in (merged_snapshot({"east": EAST}, {}), merged_snapshot({"east": EAST}, {"west": "no response"})):
        assert unreachable_brokers(ENDS, shown).keys() == {"west"}
        snapshot = with_unreachable(ENDS, shown)
        assert ends_of(snapshot) == ENDS
        assert resume(ENDS, snapshot) == (ENDS.queues, ())
    assert unreachable_brokers(ENDS, BOTH) == {}
    assert with_unreachable(ENDS, BOTH) == BOTH


def test_brokers_of_another_kind_are_another_store() -> None:
    rocketmq = QueueBoundsSnapshot(
        "rocketmq:c", 0, NO_POSITION, {("orders", "east:0"): (0, 5)}, {"orders": 0}, {"east": ""}
    )
    assert resume(ENDS, with_unreachable(ENDS, rocketmq)).losses == (
        "this is store rocketmq:c, the query has read broker east with store ab, broker west with store cd",
    )
    assert resume(ends_of(rocketmq), BOTH).losses == (
        "this is broker east with store ab, broker west with store cd, the query has read store rocketmq:c",
    )
    assert not answers_for_another_store(ends_of(rocketmq), BOTH)
    assert not answers_for_another_store(ENDS, BOTH)
    assert answers_for_another_store(ends_of(EAST), merged_snapshot({"west": WEST}, {}))


def test_a_broker_without_subscribed_topics_leaves_the_offset() -> None:
    loyalty = restricted(ENDS, "loyalty".__eq__)
    assert loyalty.stores.keys() == {"west"}
    assert loyalty.queues == {("loyalty", "west:0"): 1}
    assert restricted(ENDS, "other".__eq__) == StreamOffset("", 0, NO_POSITION, {}, {})
    gone = merged_snapshot({"east": EAST, "west": WEST._replace(queues={}, topics={})}, {})
    assert ends_of(gone).stores.keys() == {"east"}
    assert resume(ENDS, gone).losses == (
        "broker west: topic loyalty no longer exists",
        "broker west: topic orders no longer exists",
    )
