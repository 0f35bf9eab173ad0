"""What one task reads."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.spark.partitions import (
    MESSAGES_PER_TASK_MIN,
    QueueRange,
    Ranges,
    pack,
    ranges_between,
    split_larger,
    task_count,
)


def ranges(*lengths: int) -> list[QueueRange]:
    return [QueueRange("t", 1, "", number, 100, 100 + length) for number, length in enumerate(lengths)]


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(0, 500), max_size=10), st.integers(1, 20))
def test_every_message_is_read_once_and_tasks_have_equal_work(lengths: list[int], asked: int) -> None:
    total = sum(lengths)
    if not total:
        return
    tasks = task_count(total, asked)
    packed = pack("s", ranges(*lengths), tasks)
    seen = [(one.queue, at) for task in packed for one in task.ranges for at in range(one.start, one.end)]
    assert seen == [(one.queue, at) for one in ranges(*lengths) for at in range(one.start, one.end)]
    sizes = [sum(one.end - one.start for one in task.ranges) for task in packed]
    assert len(packed) == tasks
    assert max(sizes) - min(sizes) <= 1


def test_nothing_to_read_is_no_task() -> None:
    assert pack("s", ranges(0, 0), 3) == []


def test_little_work_is_one_task_unless_more_are_asked_for() -> None:
    assert task_count(MESSAGES_PER_TASK_MIN - 1, None) == 1
    assert task_count(10, 4) == 4
    assert task_count(3, 4) == 3


def test_ranges_between_two_offsets_of_a_cluster() -> None:
    starts = {("t", "a:0"): 5, ("t", "b:0"): 3}
    ends = {("t", "b:0"): 9, ("t", "a:0"): 5, ("u", "a:1"): 4}
    assert ranges_between(starts, ends, {"t": 0, "u": 0}) == [QueueRange("t", 0, "b", 0, 3, 9)]


def test_a_partition_can_be_pickled() -> None:
    (made,) = pack("s", ranges(3), 1)
    back = pickle.loads(pickle.dumps(made))
    assert (back.store, back.ranges) == (made.store, made.ranges)


@pytest.mark.parametrize("messages_max", [1, 2, 3, 7, 40, 1_000])
def test_partitions_that_are_too_large_are_split_however_they_were_packed(messages_max: int) -> None:
    made = ranges(1, 30, 2, 0, 17)
    packed = [Ranges("ab", (made[0],)), Ranges("ab", tuple(made[1:3])), Ranges("ab", (made[4],))]
    split = split_larger(packed, messages_max)
    sizes = [sum(one.end - one.start for one in part.ranges) for part in split]
    assert max(sizes) <= messages_max
    assert len(split) == sum(-(-size // messages_max) for size in (1, 32, 17))
    found = [(one.queue, at) for part in split for one in part.ranges for at in range(one.start, one.end)]
    assert found == [(one.queue, at) for one in made for at in range(one.start, one.end)]
    assert {part.store for part in split} == {"ab"}
