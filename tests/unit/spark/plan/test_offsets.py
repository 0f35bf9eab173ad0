"""The stream offset."""

import json

import pytest

from halfmq.errors import UsageError
from halfmq.spark.plan.offsets import (
    NO_POSITION,
    QueueBoundsSnapshot,
    StoreState,
    StreamOffset,
    ends_of,
    from_json,
    queue_order,
    to_json,
)

OFFSET = StreamOffset(
    "ab", 2, 4711, {("orders", "10"): 7, ("orders", "2"): 5, ("loyalty", "0"): 1}, {"orders": 1, "loyalty": 2}
)
TEXT = (
    '{"v": 1, "store": "ab", "epoch": 2, "position": 4711, "queues": {"loyalty": {"0": 1}, "orders": {"2": 5, "10": 7}}, '
    '"topics": {"loyalty": 2, "orders": 1}}'
)

SEVERAL = StreamOffset(
    "",
    0,
    NO_POSITION,
    {("orders", "west:10"): 7, ("orders", "west:2"): 5, ("orders", "east:0"): 1},
    {"orders": 0},
    {"west": StoreState("cd", 3, 12, {"orders": 9}), "east": StoreState("ab", 2, 4711, {"orders": 1})},
)
SEVERAL_TEXT = (
    '{"v": 2, "brokers": {"east": {"store": "ab", "epoch": 2, "position": 4711, "topics": {"orders": 1}}, '
    '"west": {"store": "cd", "epoch": 3, "position": 12, "topics": {"orders": 9}}}, '
    '"queues": {"orders": {"east:0": 1, "west:2": 5, "west:10": 7}}}'
)


def test_an_offset_of_several_brokers_has_a_form_of_its_own_and_comes_back() -> None:
    assert json.dumps(to_json(SEVERAL)) == SEVERAL_TEXT
    assert from_json(json.loads(SEVERAL_TEXT)) == SEVERAL


def test_the_text_is_always_the_same_since_spark_compares_text() -> None:
    backwards = OFFSET._replace(
        queues=dict(reversed(OFFSET.queues.items())), topics=dict(reversed(OFFSET.topics.items()))
    )
    assert json.dumps(to_json(OFFSET)) == TEXT
    assert json.dumps(to_json(backwards)) == TEXT


def test_it_comes_back_from_a_checkpoint() -> None:
    assert from_json(json.loads(TEXT)) == OFFSET
    assert json.dumps(to_json(from_json(json.loads(TEXT)))) == TEXT


@pytest.mark.parametrize("offset", [OFFSET, SEVERAL])
def test_end_of_the_first_batch_has_its_begin(offset: StreamOffset) -> None:
    first = offset._replace(begin=dict.fromkeys(offset.queues, 0))
    text = to_json(first)
    assert list(text) == [*to_json(offset), "from"]
    assert from_json(json.loads(json.dumps(text))) == first


def test_a_topic_without_queues_keeps_its_place() -> None:
    empty = StreamOffset("ab", 1, 0, {}, {"orders": 3})
    assert from_json(to_json(empty)) == empty


@pytest.mark.parametrize(
    "broken",
    [
        '{"v":3}',
        "{}",
        '{"v":1}',
        '{"v":1,"store":"a","epoch":1,"position":1,"queues":[],"topics":{}}',
        '{"v":2}',
        '{"v":2,"brokers":{},"queues":{}}',
        SEVERAL_TEXT.replace('"east:0"', '"north:0"'),
    ],
)
def test_what_is_no_offset_of_this_source_is_refused(broken: str) -> None:
    with pytest.raises(UsageError, match="checkpoint"):
        from_json(json.loads(broken))


def test_queues_are_ordered_by_topic_broker_and_number() -> None:
    names = [("b", "0"), ("a", "broker-b:0"), ("a", "broker-a:10"), ("a", "broker-a:9")]
    assert sorted(names, key=queue_order) == [
        ("a", "broker-a:9"),
        ("a", "broker-a:10"),
        ("a", "broker-b:0"),
        ("b", "0"),
    ]


def test_the_ends_of_a_cut() -> None:
    snapshot = QueueBoundsSnapshot("ab", 2, 9, {("orders", "0"): (3, 8)}, {"orders": 1})
    assert ends_of(snapshot) == StreamOffset("ab", 2, 9, {("orders", "0"): 8}, {"orders": 1})
