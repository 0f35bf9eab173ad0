"""Intervals and places on axes; what Spark adds up is tested in tests/spark/jobs/test_report.py."""

import pytest

from halfmq.spark.jobs.report_figures import BUCKETS_MAX, Interval, interval_of, latency_place, undecided_at_ends


@pytest.mark.parametrize(
    ("first", "last", "interval"),
    [
        (1_000, 1_000, Interval(1_000, 1, 1)),
        (1_000, 1_119, Interval(1_000, 1, 120)),
        (1_000, 1_120, Interval(1_000, 2, 61)),
        (1_003, 4_600, Interval(960, 60, 61)),
    ],
)
def test_intervals_contain_both_ends_and_are_few(first: int, last: int, interval: Interval) -> None:
    found = interval_of(first, last)
    assert found.start <= first
    assert found.start + found.step * found.size > last
    assert found.size <= BUCKETS_MAX
    assert found == interval


def test_centuries_are_divided_too() -> None:
    found = interval_of(0, 200 * 31_536_000)
    assert (found.size, found.start + found.step * found.size > 200 * 31_536_000) == (BUCKETS_MAX, True)


def test_undecided_are_those_that_were_prepared_and_not_settled_yet() -> None:
    assert undecided_at_ends([5, 0, 2], [1, 3, 2]) == [4, 1, 1]


def test_latencies_lie_between_the_edges_of_their_interval() -> None:
    assert [latency_place(value) for value in (0, 1, 2, 5, 10)] == [0, 1, 2, 3, 4]
    assert latency_place(15) == 4.5
    assert latency_place(10**9) == latency_place(10**8)
