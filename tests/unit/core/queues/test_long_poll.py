"""Where a pull reads, whether it waits, what it is told."""

import pytest

from halfmq import limits
from halfmq.core.queues.filter import TagFilter, parse_filter
from halfmq.core.queues.long_poll import (
    Found,
    NotFound,
    OffsetMoved,
    Park,
    ReadFrom,
    RetryImmediately,
    after_scan,
    park,
    place,
    wakes,
)
from halfmq.model.ids import java_string_hash


@pytest.mark.parametrize(
    ("offset", "low", "high", "answer"),
    [
        (0, 0, 0, NotFound(0)),
        (3, 0, 0, OffsetMoved(0)),
        (0, 0, 5, ReadFrom(0)),
        (4, 0, 5, ReadFrom(4)),
        (5, 0, 5, NotFound(5)),
        (6, 0, 5, OffsetMoved(5)),
        (1, 2, 5, OffsetMoved(2)),
        (2, 2, 5, ReadFrom(2)),
        (5, 5, 5, NotFound(5)),
        (4, 5, 5, OffsetMoved(5)),
    ],
)
def test_a_pull_outside_of_the_queue_is_told_where_to_go(offset: int, low: int, high: int, answer: object) -> None:
    assert place(offset, low, high) == answer


def test_a_scan_that_found_nothing_is_repeated_behind_what_it_looked_at() -> None:
    assert after_scan(3, 40) == Found(40)
    assert after_scan(0, 40) == RetryImmediately(40)


def test_a_pull_waits_once_and_shorter_than_the_client() -> None:
    waits = {"suspend_allowed": True, "first_pass": True, "suspend_ms": 15_000, "now_ms": 100}
    assert park(NotFound(7), **waits) == Park(7, 15_100)
    assert park(NotFound(7), **{**waits, "suspend_ms": 10**9}) == Park(7, 100 + limits.PULL_SUSPEND_MAX_MS)
    for change in ({"suspend_allowed": False}, {"first_pass": False}, {"suspend_ms": 0}):
        assert park(NotFound(7), **{**waits, **change}) == NotFound(7)
    assert limits.PULL_SUSPEND_MAX_MS < 30_000


def test_a_parked_pull_is_woken_by_what_it_may_want() -> None:
    parked = Park(7, 1_000)
    only_a = parse_filter("A")
    assert isinstance(only_a, TagFilter)
    assert not wakes(parked, TagFilter(None), 7, None)
    assert wakes(parked, TagFilter(None), 8, 0)
    assert wakes(parked, only_a, 8, java_string_hash("A"))
    assert not wakes(parked, only_a, 8, java_string_hash("B"))
    assert wakes(parked, only_a, 9, None)
