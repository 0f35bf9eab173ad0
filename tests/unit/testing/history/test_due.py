"""Delayed messages, and when they are seen."""

from typing import Any

import pytest
from tests.support.tales import C, R, Tale

from halfmq.testing.history.due import SLACK_US
from halfmq.testing.history.events import Fault
from halfmq.testing.history.report import REORDERED

DELAY_MS = 10_000


def seen_after(wait_us: int, *, plain: bool, **fault: Any) -> Tale:
    """Of a delayed message: so long after it was asked for, or committed."""
    tale = Tale()
    if plain:
        asked_us = tale.now + 10
        tale.plain("T", delay_ms=DELAY_MS, outcome=None)
    else:
        tale.half(delay_ms=DELAY_MS)
        tale.end(outcome="refused")
        tale.now += 1_000_000_000
        tale.end(verdict=R, outcome=None)
        asked_us = tale.now + 10
        tale.end(verdict=C, outcome=None)
        tale.end(verdict=C)
    if fault:
        tale.add(Fault, **fault)
    tale.now = asked_us + wait_us - 10
    tale.seen()
    return tale


@pytest.mark.parametrize("plain", [True, False])
def test_a_delayed_message_is_not_seen_before_its_time(plain: bool) -> None:
    first_us = DELAY_MS * 1_000 - SLACK_US
    for wait_us, found in ((first_us - 1, {REORDERED: 1}), (first_us, {}), (DELAY_MS * 2_000, {})):
        assert seen_after(wait_us, plain=plain).found() == found
    (violation,) = seen_after(100, plain=plain).report().violations
    assert (violation.promise, violation.message) == (8, "T")
    assert violation.sentence.endswith("us, 9,999,900 us before its time")
    assert len(violation.events) == (2 if plain else 3)


@pytest.mark.parametrize("plain", [True, False])
def test_behind_a_step_of_a_clock_delayed_messages_may_come_early(plain: bool) -> None:
    for what, found in (("clock_step", {}), ("clock", {}), ("pause", {REORDERED: 1})):
        assert seen_after(1_000, plain=plain, what=what, whom="broker").found() == found


def test_a_step_behind_the_sight_excuses_nothing() -> None:
    tale = seen_after(1_000, plain=True)
    tale.add(Fault, what="clock_step")
    assert tale.found() == {REORDERED: 1}


def test_of_two_requests_the_first_begins_its_time() -> None:
    tale = Tale()
    tale.plain(delay_ms=5_000, outcome=None)
    tale.now += 4_000_000
    tale.plain(delay_ms=5_000)
    tale.now += 1_000_000
    tale.seen("P")
    assert tale.found() == {}


def test_what_only_the_database_committed_has_no_known_time() -> None:
    tale = Tale()
    tale.half(delay_ms=DELAY_MS)
    tale.local()
    tale.seen()
    assert tale.found() == {}
