"""Every reason has a number, and never one that means "stored, but"."""

import pytest

from halfmq.broker.remoting.refusals import CODES, refusal
from halfmq.core.decision import Refused, Why
from halfmq.core.engine import Failed


@pytest.mark.parametrize("why", list(Why))
def test_every_reason_has_a_code_that_does_not_make_a_transaction_producer_roll_back(why: Why) -> None:
    assert CODES[why] not in (0, 10, 11, 12)


@pytest.mark.parametrize("why", [Why.ALREADY_SETTLED, Why.VERDICT_CONFLICT])
def test_standing_verdict_goes_along_with_a_code_that_producers_do_not_retry(why: Why) -> None:
    code, text, ext = refusal(Refused(why, "text", "COMMITTED", 77))
    assert (code, text, ext) == (604, "text", {"HMQ_VERDICT": "COMMITTED", "HMQ_POSITION": 77})


def test_broken_decision_is_a_system_error() -> None:
    assert refusal(Failed("KeyError: x")) == (1, "KeyError: x", {})
