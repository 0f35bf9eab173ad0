"""What one task reads."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.limits import SIZE_SAMPLE_MESSAGES
from halfmq.spark import partitions
from halfmq.spark.partitions import (
    BYTES_PER_TASK,
    BYTES_PER_TASK_MIN,
    MESSAGES_PER_TASK_MIN,
    QueueRange,
    Ranges,
    pack,
    ranges_between,
    sample_start,
    slice_bytes,
    slices,
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
    tasks = task_count(total, 0, asked)
    packed = pack("s", ranges(*lengths), tasks)
    seen = [(one.queue, at) for task in packed for one in task.ranges for at in range(one.start, one.end)]
    assert seen == [(one.queue, at) for one in ranges(*lengths) for at in range(one.start, one.end)]
    sizes = [sum(one.end - one.start for one in task.ranges) for task in packed]
    assert len(packed) == tasks
    assert max(sizes) - min(sizes) <= 1


def test_nothing_to_read_is_no_task() -> None:
    assert pack("s", ranges(0, 0), 3) == []


def test_little_work_is_one_task_unless_more_are_asked_for() -> None:
    assert task_count(MESSAGES_PER_TASK_MIN - 1, 0, None) == 1
    assert task_count(10, BYTES_PER_TASK_MIN - 1, None) == 1
    assert task_count(10, 0, 4) == 4
    assert task_count(3, 0, 4) == 3


@pytest.mark.parametrize("cores", [1, 2, 6, 96])
def test_a_large_read_has_many_tasks_whatever_the_driver_is(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(partitions.os, "cpu_count", lambda: cores)
    for tasks in (4, 40, 400):
        found = task_count(10_000_000, tasks * BYTES_PER_TASK, None)
        assert tasks <= found < tasks + cores
        assert found % cores == 0, "with local[*] the last round of tasks would leave cores idle"
        assert task_count(10_000_000, tasks * BYTES_PER_TASK, tasks + 7) == tasks + 7
        assert task_count(10_000_000, tasks * BYTES_PER_TASK, 3) == tasks, "minPartitions is a minimum"
    assert task_count(50, 50 << 20, None) == min(cores, 12), "few messages may be much work"
    assert task_count(40_000_000, None, None) >= 40_000_000 * 1_024 // BYTES_PER_TASK, "sizes are unknown"
    assert task_count(5, 100 * BYTES_PER_TASK, None) <= 5


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from([1, 100, 5_000, 1 << 20])), min_size=1, max_size=6),
    st.integers(1, 12),
)
def test_tasks_have_equal_bytes_where_sizes_are_known(queues: list[tuple[int, int]], asked: int) -> None:
    """Each queue has messages of one size: the sampled sizes are exact, and a cut is wrong by less than a message on each side."""
    sliced = slices(ranges(*(length for length, _ in queues)))
    size_of = dict(enumerate(size for _, size in queues))
    sizes = slice_bytes(sliced, [(SIZE_SAMPLE_MESSAGES, SIZE_SAMPLE_MESSAGES * size_of[one.queue]) for one in sliced])
    assert sizes == [(one.end - one.start) * size_of[one.queue] for one in sliced]
    tasks = task_count(sum(length for length, _ in queues), 0, asked)
    packed = pack("s", sliced, tasks, sizes)
    seen = [(one.queue, at) for task in packed for one in task.ranges for at in range(one.start, one.end)]
    whole = ranges(*(length for length, _ in queues))
    assert seen == [(one.queue, at) for one in whole for at in range(one.start, one.end)]
    assert len(packed) == tasks
    assert all(task.ranges for task in packed)
    if tasks * 4 <= len(seen):
        largest = max(size_of.values())
        found = [sum((one.end - one.start) * size_of[one.queue] for one in task.ranges) for task in packed]
        assert max(found) <= sum(sizes) / tasks + 2 * largest


def test_large_messages_beside_small_ones_are_not_one_task() -> None:
    sliced = slices([QueueRange("t", 1, "", 0, 0, 1_000), QueueRange("t", 1, "", 1, 0, 1_000)])
    samples = [(16, 16 * (1 << 20 if one.queue == 0 else 300)) for one in sliced]
    packed = pack("s", sliced, 4, slice_bytes(sliced, samples))
    assert [task.ranges for task in packed[:3]] == [
        (QueueRange("t", 1, "", 0, 250 * number, 250 * number + 250),) for number in range(3)
    ]
    assert packed[3].ranges == (QueueRange("t", 1, "", 0, 750, 1_000), QueueRange("t", 1, "", 1, 0, 1_000))


def test_slices_cover_the_ranges_and_samples_lie_within_them() -> None:
    whole = ranges(1, 15, 17, 100_000, 3_000_000)
    sliced = slices(whole)
    seen: dict[int, int] = {}
    for one in sliced:
        assert one.start == seen.get(one.queue, 100)
        assert one.start <= sample_start(one) < one.end
        assert sample_start(one) + SIZE_SAMPLE_MESSAGES <= one.end or sample_start(one) == one.start
        seen[one.queue] = one.end
    assert seen == {one.queue: one.end for one in whole}
    assert 120 <= len(sliced) <= 150, "a plan reads a bounded number of samples"


def test_a_slice_without_a_sample_has_the_mean_of_the_others() -> None:
    sliced = ranges(16, 16, 10)
    assert slice_bytes(sliced, [(16, 1_600), (0, 0), (16, 3_200)]) == [1_600, 2_400, 2_000]
    assert slice_bytes(sliced, [(0, 0)] * 3) is None


def test_ranges_between_two_offsets_of_a_cluster() -> None:
    starts = {("t", "a:0"): 5, ("t", "b:0"): 3}
    ends = {("t", "b:0"): 9, ("t", "a:0"): 5, ("u", "a:1"): 4}
    assert ranges_between(starts, ends, lambda queue: 0) == [QueueRange("t", 0, "b", 0, 3, 9)]


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
