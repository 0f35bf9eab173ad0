"""What one trigger takes of each queue."""

from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.spark.read_limit import shares


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
