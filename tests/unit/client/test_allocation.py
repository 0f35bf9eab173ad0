"""Queues are shared as RocketMQ's AllocateMessageQueueAveragely shares them; Java members must agree to the queue."""

from hypothesis import given
from hypothesis import strategies as st

from halfmq.client.routing import QueueRef, allocate


def queues(count: int, broker: str = "b") -> list[QueueRef]:
    return [QueueRef("t", broker, number) for number in range(count)]


def numbers(count: int, members: list[str], me: str) -> list[int]:
    return [queue.queue for queue in allocate(queues(count), members, me)]


def test_ranges_are_contiguous_and_the_first_members_get_the_rest() -> None:
    # What the Java class gives for 8 queues and 3 clients.
    assert numbers(8, ["c", "a", "b"], "a") == [0, 1, 2]
    assert numbers(8, ["c", "a", "b"], "b") == [3, 4, 5]
    assert numbers(8, ["c", "a", "b"], "c") == [6, 7]


def test_more_members_than_queues_leaves_the_last_ones_idle() -> None:
    assert numbers(2, ["a", "b", "c"], "a") == [0]
    assert numbers(2, ["a", "b", "c"], "b") == [1]
    assert numbers(2, ["a", "b", "c"], "c") == []


def test_brokers_sort_before_queue_numbers() -> None:
    mixed = [*queues(2, "y"), *queues(2, "x")]
    assert list(allocate(mixed, ["a", "b"], "a")) == queues(2, "x")


def test_who_is_no_member_gets_nothing() -> None:
    assert numbers(4, ["a"], "b") == []
    assert numbers(4, [], "b") == []


@given(st.integers(0, 40), st.sets(st.text("abcxyz@#", min_size=1), min_size=1, max_size=12))
def test_every_queue_has_exactly_one_owner(count: int, members: set[str]) -> None:
    owned = [queue for me in members for queue in allocate(queues(count), members, me)]
    assert sorted(owned) == queues(count)
