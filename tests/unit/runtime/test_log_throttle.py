"""The first time at once, then not before the rest is over."""

from halfmq.runtime.log_throttle import REMEMBERED_MAX, REST_S, LogThrottle


def test_each_thing_is_said_at_once_and_again_after_the_rest() -> None:
    now = [0.0]
    seldom = LogThrottle(lambda: now[0])
    assert seldom.is_due("a")
    assert not seldom.is_due("a")
    assert seldom.is_due("b")
    now[0] = REST_S - 1
    assert not seldom.is_due("a")
    now[0] = REST_S
    assert seldom.is_due("a")
    assert not seldom.is_due("a")


def test_memory_has_a_bound() -> None:
    seldom = LogThrottle(lambda: 0.0)
    for number in range(5 * REMEMBERED_MAX):
        assert seldom.is_due(number)
    assert len(seldom._said) <= REMEMBERED_MAX


def test_what_was_left_out_is_counted_and_told_with_the_next() -> None:
    now = [0.0]
    seldom = LogThrottle(lambda: now[0], rest_s=10)
    assert [seldom.times("a") for _ in range(5)] == [1, 0, 0, 0, 0]
    now[0] = 10
    assert seldom.times("a") == 5
    assert seldom.times("b") == 1


def test_things_that_peers_choose_are_bounded_together() -> None:
    now = [0.0]
    seldom = LogThrottle(lambda: now[0], rest_s=10, together_max=3)
    assert sum(seldom.is_due(number) for number in range(100)) == 3
    now[0] = 10
    assert sum(seldom.is_due(number) for number in range(100, 200)) == 3
