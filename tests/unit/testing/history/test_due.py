"""When delayed messages may be received."""

from typing import Any

import pytest
from tests.support.tales import C, R, Tale

from halfmq.testing.history.events import Fault
from halfmq.testing.history.order import SLACK_US
from halfmq.testing.history.report import REORDERED

DELAY_MS = 10_000


def seen_after(wait_us: int, *, plain: bool, **fault: Any) -> Tale:
    """A delayed message, received ``wait_us`` after its request or its commit."""
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
def test_a_delayed_message_received_early_is_reported(plain: bool) -> None:
    first_us = DELAY_MS * 1_000 - SLACK_US
    for wait_us, found in ((first_us - 1, {REORDERED: 1}), (first_us, {}), (DELAY_MS * 2_000, {})):
        assert seen_after(wait_us, plain=plain).found() == found
    (violation,) = seen_after(100, plain=plain).report().violations
    assert (violation.promise, violation.message) == (8, "T")
    assert violation.sentence.endswith("us, 9,999,900 us before it was due")
    assert len(violation.events) == (2 if plain else 3)


@pytest.mark.parametrize("plain", [True, False])
def test_after_a_clock_step_delayed_messages_may_be_early(plain: bool) -> None:
    for what, found in (("clock_step", {}), ("clock", {}), ("pause", {REORDERED: 1})):
        assert seen_after(1_000, plain=plain, what=what, whom="broker").found() == found


def test_a_clock_step_after_the_message_was_received_excuses_nothing() -> None:
    tale = seen_after(1_000, plain=True)
    tale.add(Fault, what="clock_step")
    assert tale.found() == {REORDERED: 1}


def test_the_delay_counts_from_the_first_of_two_requests() -> None:
    tale = Tale()
    tale.plain(delay_ms=5_000, outcome=None)
    tale.now += 4_000_000
    tale.plain(delay_ms=5_000)
    tale.now += 1_000_000
    tale.seen("P")
    assert tale.found() == {}


def test_a_commit_known_only_from_the_database_has_no_due_time() -> None:
    tale = Tale()
    tale.half(delay_ms=DELAY_MS)
    tale.local()
    tale.seen()
    assert tale.found() == {}
