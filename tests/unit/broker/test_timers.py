"""Broker time goes on over restarts and wall clocks that jump; the timer fires at the earliest deadline."""

from tests.support.services import HandLoop

from halfmq.broker.timers import BrokerTime, DeadlineTimer


class HandClock:
    def __init__(self, wall: int, monotonic: int) -> None:
        self.wall = wall
        self.monotonic = monotonic

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic


def test_time_starts_at_the_wall_clock_or_the_last_time_in_the_log_and_follows_the_monotonic_clock() -> None:
    clock = HandClock(1_000_000, 50)
    time = BrokerTime(clock, 0)
    assert time.now_ms() == 1_000_000
    clock.wall = 3
    clock.monotonic = 75
    assert time.now_ms() == 1_000_025
    assert BrokerTime(clock, time.now_ms()).now_ms() == 1_000_025, "the wall clock went back; broker time does not"


def test_a_wall_clock_that_is_set_forward_moves_nothing() -> None:
    clock = HandClock(1_000_000, 50)
    time = BrokerTime(clock, 0)
    clock.wall += 3_600_000
    assert time.now_ms() == 1_000_000
    clock.monotonic += 25
    assert time.now_ms() == 1_000_025


class LoopClock:
    """The time of a loop, which is the test's. ``ahead_ms``: how far the test has moved it beyond that."""

    ahead_ms = 0

    def __init__(self, loop: HandLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1_000) + self.ahead_ms


def timer(loop: HandLoop, fired: list[float], clock: LoopClock | None = None) -> DeadlineTimer:
    """One whose broker time begins with 0 now."""
    time = BrokerTime(clock or LoopClock(loop), 0)
    return DeadlineTimer(loop, time, lambda: fired.append(loop.time()))  # type: ignore[arg-type]


def test_timer_fires_at_the_earliest_deadline_once() -> None:
    loop, fired = HandLoop(), []  # type: tuple[HandLoop, list[float]]
    deadline = timer(loop, fired)
    for at_ms in (None, 60_000, 20, 40):
        deadline.arm(at_ms)
    loop.pass_s(0.015)
    assert fired == []
    loop.pass_s(0.01)
    loop.pass_s(60)
    assert len(fired) == 1
    deadline.arm(-5)
    loop.pass_s(0)
    assert len(fired) == 2, "a deadline in the past is due at once"
    deadline.arm(1)
    deadline.stop()
    loop.pass_s(60)
    assert len(fired) == 2


def test_timer_rests_when_what_was_due_could_not_be_done() -> None:
    loop, fired = HandLoop(), []  # type: tuple[HandLoop, list[float]]
    deadline = timer(loop, fired)
    deadline.rest(400)
    deadline.arm(0)
    deadline.arm(-7)
    loop.pass_s(0.39)
    assert fired == []
    loop.pass_s(0.02)
    loop.pass_s(60)
    assert len(fired) == 1


def test_timer_follows_a_clock_that_was_moved() -> None:
    loop, fired = HandLoop(), []  # type: tuple[HandLoop, list[float]]
    clock = LoopClock(loop)
    deadline = timer(loop, fired, clock)
    deadline.arm(30_000)
    clock.ahead_ms = 29_000
    deadline.clock_moved()
    loop.pass_s(0.9)
    assert fired == [], "a second of it is left"
    loop.pass_s(0.2)
    assert len(fired) == 1
    deadline.arm(100_000)  # later than the longest sleep
    clock.ahead_ms += 200_000
    deadline.clock_moved()
    loop.pass_s(0)
    assert len(fired) == 2, "due now"
    clock.ahead_ms += 60_000
    deadline.clock_moved()
    loop.pass_s(0)
    assert len(fired) == 2, "nothing is to be done"
