"""Who decides by hand is named in one line each, which no name or reason can forge."""

import pytest
from tests.support.services import FakePeer

from halfmq import limits
from halfmq.broker.services.actors import actor
from halfmq.core.commands import Actor
from halfmq.core.decision import Refused, Why

NAME = f"operator: who decides, 1 to {limits.OPERATOR_CHARS_MAX} characters"
REASON = f"reason: one line of at most {limits.REASON_CHARS_MAX} characters"


def test_name_and_reason_are_kept_without_the_spaces_around_them_and_with_the_address() -> None:
    assert actor(FakePeer(9), " ada ", " ticket 4711 ", "who decides") == Actor("ada", "ticket 4711", "10.0.0.7:9")
    longest = "a" * limits.OPERATOR_CHARS_MAX, "r" * limits.REASON_CHARS_MAX
    assert actor(FakePeer(), *longest, "who decides") == Actor(*longest, "10.0.0.7:1")
    assert actor(FakePeer(), "ada", "", "who decides") == Actor("ada", "", "10.0.0.7:1")


@pytest.mark.parametrize(
    ("operator", "reason", "text"),
    [
        ("", "r", NAME),
        ("  ", "r", NAME),
        ("a" * 65, "r", NAME),
        ("a\nWARNING forged", "r", NAME),
        ("ada", "two\nlines", REASON),
        ("ada", "r" * 401, REASON),
        ("", "two\nlines", NAME),
    ],
)
def test_what_is_no_single_line_of_its_length_is_refused(operator: str, reason: str, text: str) -> None:
    assert actor(FakePeer(), operator, reason, "who decides") == Refused(Why.INVALID_PARAMETER, text)
