"""What is counted for metrics: buckets of times, and names that are shown."""

from collections import Counter
from typing import Final

import pytest

from halfmq.broker.metrics.counts import MS, US, Histogram, Scale, SettledCounts
from halfmq.broker.metrics.shown_names import ShownNames
from halfmq.core.state import SettledNow, Settlement, Undecided
from halfmq.model.records import BatchRef, Committed, Decided, DecidedBy, Half, Ref, RolledBack


@pytest.mark.parametrize("scale", [US, MS])
def test_a_time_is_in_the_first_bucket_that_it_fits_in(scale: Scale) -> None:
    bounds = scale.bounds_s
    for number, bound_s in enumerate(bounds):
        histogram = Histogram(scale)
        histogram.add(bound_s * 0.99)
        within, count = histogram.cumulative()
        assert (within, count) == ([0] * number + [1] * (len(bounds) - number), 1)
        assert histogram.sum_s == pytest.approx(bound_s * 0.99)


@pytest.mark.parametrize("scale", [US, MS])
def test_times_beyond_every_bucket_are_counted(scale: Scale) -> None:
    histogram = Histogram(scale)
    for seconds in (0.0, scale.bounds_s[-1] * 1.01, 1e300):
        histogram.add(seconds)
    within, count = histogram.cumulative()
    assert (within[0], within[-1], count) == (1, 1, 3)


def test_whole_times_are_counted_as_the_same_times_one_by_one() -> None:
    together, one_by_one = Histogram(MS), Histogram(MS)
    for units, count in ((0, 2), (1, 1), (4_095, 3), (4_096, 1), (86_400_000, 1)):
        together.add_whole(units, count)
        for _ in range(count):
            one_by_one.add(units / 1_000)
    together.add_whole(-5, 1)  # not less than no time
    one_by_one.add(0.0)
    assert together.cumulative() == one_by_one.cumulative()
    assert together.sum_s == pytest.approx(one_by_one.sum_s)


WAITED_MS = 5_000


def undecided(tx_id: str, *topics: int, prepared_at_ms: int = 1_000) -> Undecided:
    halves = tuple(Half(0, 7, 0, 0, topic_id, 0, 100, 0, 0, 0) for topic_id in topics)
    return Undecided("P", tx_id, halves, 1, prepared_at_ms, 0, 0, 0)


def ref(topic_id: int) -> Ref:
    return Ref(0, 100, 0, 7, topic_id, 0, 0, 0, 0, 0)


def committed(tx_id: str, decided_by: DecidedBy, *topics: int) -> Committed:
    return Committed(0, 0, "P", tx_id, decided_by, tuple(ref(topic) for topic in topics))


#: Commits of producers alone are counted together, and all others one by one.
OTHERS: Final[tuple[Settlement, ...]] = (
    (undecided("f"), committed("f", DecidedBy.CHECK, 4)),
    (undecided("g"), RolledBack(0, 0, "P", "g", DecidedBy.OPERATOR, (7,))),
    (None, RolledBack(0, 0, "P", "h", DecidedBy.FENCE, ())),
    (
        undecided("i"),
        Decided(0, 0, "P", "i", DecidedBy.PRODUCER, b"", (BatchRef(0, 0, 7, 0, 100, 20, 5, 0),), (8,)),
    ),
)


@pytest.mark.parametrize("others", [(), OTHERS[:1], OTHERS[1:2], OTHERS[2:3], OTHERS[3:], OTHERS])
def test_what_is_settled_is_counted_by_who_decided(others: tuple[Settlement, ...]) -> None:
    counts = SettledCounts()
    settled = SettledNow()
    settled.commits = [undecided("a", 3), undecided("b", 3, 4), undecided("c", 3, prepared_at_ms=5_000)]
    settled.others = list(others)
    counts.note(settled, 1_000 + WAITED_MS)
    commits, rollbacks, messages = Counter({DecidedBy.PRODUCER: 3}), Counter[int](), Counter({3: 3, 4: 1})
    for _, record in others:
        (rollbacks if isinstance(record, RolledBack) else commits)[record.decided_by] += 1
        messages += {"f": Counter({4: 1}), "i": Counter({5: 20})}.get(record.tx_id, Counter())
    assert counts.committed == [commits[one] for one in range(len(counts.committed))]
    assert counts.rolled_back == [rollbacks[one] for one in range(len(counts.rolled_back))]
    assert counts.committed_messages == messages
    numbers = [[one.cumulative()[1] for one in after] for after in (counts.committed_after, counts.rolled_back_after)]
    rollbacks[DecidedBy.FENCE] = 0  # there was nothing undecided
    assert numbers == [counts.committed, [rollbacks[one] for one in range(len(counts.rolled_back))]]
    waited = 2 * WAITED_MS + 1_000 + (WAITED_MS if "i" in {record.tx_id for _, record in others} else 0)
    assert counts.committed_after[DecidedBy.PRODUCER].sum_s == pytest.approx(waited / 1_000)


def test_a_place_is_for_the_next_name_once_its_own_is_gone() -> None:
    names: ShownNames[str] = ShownNames(2)
    assert [names.shows(name) for name in ("_other", "_other.orders")] == [False, False], "these are in the sum"
    assert not ShownNames[tuple[str, str]](2).shows(("_other", "T"))
    assert [names.shows(name) for name in ("a", "b", "c", "a")] == [True, True, False, True]
    names.keep({"b", "c"}.__contains__)
    assert [names.shows(name) for name in ("c", "a", "b")] == [True, False, True]
