"""What is counted for metrics: buckets of times, and names that are shown."""

import pytest

from halfmq.broker.metrics.counts import BOUNDS_S, Histogram
from halfmq.broker.metrics.shown_names import ShownNames


@pytest.mark.parametrize("bound", range(len(BOUNDS_S)))
def test_a_time_is_in_the_first_bucket_that_it_fits_in(bound: int) -> None:
    histogram = Histogram()
    histogram.add(BOUNDS_S[bound] * 0.99)
    within, count = histogram.cumulative()
    assert (within, count) == ([0] * bound + [1] * (len(BOUNDS_S) - bound), 1)
    assert histogram.sum_s == pytest.approx(BOUNDS_S[bound] * 0.99)


def test_times_beyond_every_bucket_are_counted() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS_S[-1] * 1.01, 1e300):
        histogram.add(seconds)
    within, count = histogram.cumulative()
    assert (within[0], within[-1], count) == (1, 1, 3)


def test_a_place_is_for_the_next_name_once_its_own_is_gone() -> None:
    names: ShownNames[str] = ShownNames(2)
    assert [names.shows(name) for name in ("a", "b", "c", "a")] == [True, True, False, True]
    names.keep({"b", "c"}.__contains__)
    assert [names.shows(name) for name in ("c", "a", "b")] == [True, False, True]
