"""When a rollback marker may be written, and how often a check without an answer is logged."""

import pytest
from tests.unit.sql.memory_broker import Asked

from halfmq.sql.rules.check import AgeGuard


class Clock:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.monotonic_ms = 0

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


def guard(clock: Clock) -> AgeGuard:
    return AgeGuard(6_000, lambda: clock.wall_ms, lambda: clock.monotonic_ms)


def test_young_until_the_broker_says_that_it_is_old() -> None:
    clock = Clock()
    ages = guard(clock)
    asked = Asked("t1", prepared_at_ms=clock.wall_ms)
    assert ages.is_new(asked)
    clock.advance(5_999)
    assert ages.is_new(asked)
    clock.advance(1)
    assert not ages.is_new(asked)


def test_old_at_once_when_it_was_prepared_long_ago() -> None:
    clock = Clock()
    assert not guard(clock).is_new(Asked("t1", prepared_at_ms=clock.wall_ms - 6_000))


@pytest.mark.parametrize("prepared_at_ms", [None, 10_000_000_000])
def test_clock_that_is_behind_delays_but_does_not_block(prepared_at_ms: int | None) -> None:
    clock = Clock()
    ages = guard(clock)
    asked = Asked("t1", prepared_at_ms)
    assert ages.is_new(asked)
    clock.monotonic_ms += 5_999
    assert ages.is_new(asked)
    clock.monotonic_ms += 1
    assert not ages.is_new(asked)
