"""What one trigger takes of each queue."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from halfmq.spark.plan.read_limit import Limits, TriggerDelay, shares, shares_within_bytes


def test_everything_is_taken_when_the_limit_allows_it() -> None:
    assert shares({("t", "0"): 3, ("t", "1"): 4, ("t", "2"): 0}, 7) == {("t", "0"): 3, ("t", "1"): 4}


def test_shares_follow_the_backlog() -> None:
    assert shares({("t", "0"): 900, ("t", "1"): 100}, 100) == {("t", "0"): 90, ("t", "1"): 10}


def test_a_queue_with_little_is_not_starved_by_one_with_much() -> None:
    assert shares({("t", "0"): 1_000_000, ("t", "1"): 1}, 10) == {("t", "0"): 9, ("t", "1"): 1}


def test_a_limit_below_the_number_of_queues_takes_one_of_the_longest() -> None:
    assert shares({("t", "0"): 5, ("t", "1"): 9, ("t", "2"): 7}, 2) == {("t", "1"): 1, ("t", "2"): 1}


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(0, 10**9), max_size=40), st.integers(1, 10**9))
def test_shares_add_up_to_the_limit_and_never_exceed_a_backlog(counts: list[int], limit: int) -> None:
    backlog = {("t", str(number)): count for number, count in enumerate(counts)}
    taken = shares(backlog, limit)
    assert sum(taken.values()) == min(limit, sum(counts))
    assert all(0 < count <= backlog[name] for name, count in taken.items())
    if limit >= len(backlog):
        assert set(taken) == {name for name, count in backlog.items() if count}


# --- bytes

Queue = tuple[str, str]


def fitting_of(sizes: dict[Queue, list[int]]) -> Callable[[Queue, int, int, int], tuple[int, int]]:
    def fitting(name: Queue, skipped: int, count: int, bytes_max: int) -> tuple[int, int]:
        fit = total = 0
        for size in sizes[name][skipped : skipped + count]:
            if total + size > bytes_max:
                break
            fit, total = fit + 1, total + size
        return fit, total

    return fitting


def within(sizes: dict[Queue, list[int]], bytes_max: int) -> dict[Queue, int]:
    return shares_within_bytes({name: len(each) for name, each in sizes.items()}, bytes_max, fitting_of(sizes))


def test_bytes_are_shared_by_backlog_and_what_is_left_over_is_used() -> None:
    sizes = {("t", "0"): [100] * 90, ("t", "1"): [100] * 10}
    assert within(sizes, 5_000) == {("t", "0"): 45, ("t", "1"): 5}
    assert within(sizes, 1 << 30) == {("t", "0"): 90, ("t", "1"): 10}
    few = {("t", "0"): [100] * 50, ("t", "1"): [10] * 50}
    assert within(few, 3_000) == {("t", "0"): 25, ("t", "1"): 50}, "the small ones leave bytes to the large ones"


def test_a_message_larger_than_the_limit_comes_alone() -> None:
    assert within({("t", "0"): [900, 10], ("t", "1"): [800]}, 100) == {("t", "0"): 1}
    assert within({("t", "0"): [900, 900], ("t", "1"): [80]}, 100) == {("t", "1"): 1}, "one that fits comes first"


def test_each_queue_gets_one_message_while_they_fit() -> None:
    assert within({("t", "0"): [10] * 1_000, ("t", "1"): [90]}, 100) == {("t", "0"): 1, ("t", "1"): 1}


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.lists(st.integers(1, 1_000), max_size=12), max_size=6), st.integers(1, 5_000))
def test_bytes_never_exceed_the_limit_and_something_is_always_read(queues: list[list[int]], bytes_max: int) -> None:
    sizes = {("t", str(number)): each for number, each in enumerate(queues)}
    taken = within(sizes, bytes_max)
    total = sum(sum(sizes[name][:count]) for name, count in taken.items())
    assert total <= bytes_max or sum(taken.values()) == 1
    assert bool(taken) == any(queues)
    for name, each in sizes.items():  # nothing more would have fitted
        count = taken.get(name, 0)
        assert count == len(each) or total + each[count] > bytes_max


# --- limits


@pytest.mark.parametrize(
    ("limits", "default"),
    [
        (Limits(), ReadAllAvailable()),
        (Limits(5), ReadMaxRows(5)),
        (Limits(None, 6), ReadMaxBytes(6)),
        (Limits(None, None, 7), ReadMinRows(7)),
        (Limits(5, 6, 2), ReadMaxRows(5)),
    ],
)
def test_spark_gets_one_limit_and_gives_all_of_them_back(limits: Limits, default: ReadLimit) -> None:
    assert limits.default() == default
    assert limits.of_trigger(default) == limits


def test_the_limit_of_the_engine_counts_and_trigger_once_has_none() -> None:
    all_three = Limits(5, 6, 2)
    assert all_three.of_trigger(ReadAllAvailable()) == Limits()
    assert all_three.of_trigger(ReadMaxRows(9)) == Limits(9, 6, 2)
    assert all_three.of_trigger(ReadMaxBytes(9)) == Limits(5, 9, 2)
    assert all_three.of_trigger(ReadMinRows(9)) == Limits(5, 6, 9)
    assert all_three.of_trigger(ReadMaxFiles(9)) == all_three


# --- delay


def test_the_first_trigger_does_not_wait_and_no_later_one_longer_than_the_delay() -> None:
    delay = TriggerDelay(10_000)
    assert not delay.waits(1, 100, 0.0)
    assert delay.waits(1, 100, 9.9)
    assert not delay.waits(1, 100, 10.0)
    assert delay.waits(99, 100, 19.9), "counted from the last trigger that did not wait"
    assert not delay.waits(100, 100, 12.0)
    assert delay.waits(1, 100, 21.9)


def test_without_a_minimum_nothing_waits() -> None:
    delay = TriggerDelay(10_000)
    assert not any(delay.waits(0, None, now_s) for now_s in (0.0, 0.1, 0.2))
