"""Broker time goes on over restarts and wall clocks that jump; the timer fires at the earliest deadline."""

import asyncio
import time

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


async def test_timer_fires_at_the_earliest_deadline_once() -> None:
    loop = asyncio.get_running_loop()
    clock = HandClock(0, 0)
    fired = asyncio.Event()
    count = 0

    def due() -> None:
        nonlocal count
        count += 1
        fired.set()

    timer = DeadlineTimer(loop, BrokerTime(clock, 0), due)
    timer.arm(None)
    timer.arm(60_000)
    timer.arm(20)
    timer.arm(40)
    await asyncio.wait_for(fired.wait(), 2)
    await asyncio.sleep(0.05)
    assert count == 1
    timer.arm(-5)
    await asyncio.sleep(0.02)
    assert count == 2, "a deadline in the past is due at once"
    timer.arm(1)
    timer.stop()
    await asyncio.sleep(0.02)
    assert count == 2


async def test_timer_rests_when_what_was_due_could_not_be_done() -> None:
    clock = HandClock(0, 0)
    fired: list[int] = []
    timer = DeadlineTimer(asyncio.get_running_loop(), BrokerTime(clock, 0), lambda: fired.append(1))
    began = time.monotonic()
    timer.rest(400)
    timer.arm(0)
    timer.arm(-7)
    await asyncio.sleep(0.01)
    assert not fired
    async with asyncio.timeout(5):
        while not fired:
            await asyncio.sleep(0.01)
    assert time.monotonic() - began > 0.39
    await asyncio.sleep(0.05)
    assert len(fired) == 1
    timer.stop()
