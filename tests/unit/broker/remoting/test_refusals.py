"""Every reason has a number, and never one that means "stored, but"."""

import pytest

from halfmq.broker.remoting.refusals import CODES, refusal
from halfmq.core.decision import Failed, Refused, Why

#: What clients and tools know them by.
REASONS = {
    1: {Why.NOT_FOUND, Why.WRONG_GROUP, Why.WRONG_OFFSETS, Why.FILTER_NOT_SUPPORTED, Why.CLIENT_NOT_REACHED},
    2: {Why.LIMIT_REACHED, Why.NOT_NOW, Why.SEARCH_AGAIN},
    13: {Why.MESSAGE_ILLEGAL},
    14: {Why.STORE_FULL},
    16: {Why.NO_PERMISSION},
    17: {Why.TOPIC_NOT_EXIST},
    23: {Why.SUBSCRIPTION_PARSE_FAILED},
    24: {Why.SUBSCRIPTION_NOT_EXIST},
    25: {Why.SUBSCRIPTION_NOT_LATEST},
    26: {Why.GROUP_NOT_EXIST},
    29: {Why.INVALID_PARAMETER, Why.STILL_UNDECIDED, Why.OF_COORDINATOR, Why.USER_EXISTS, Why.AFTER_RESTORE},
    207: {Why.CLIENT_TIMEOUT},
    604: {Why.ALREADY_SETTLED, Why.VERDICT_CONFLICT, Why.INCOMPLETE, Why.FENCED, Why.OTHER_STREAM},
    29_100: {Why.SUPERSEDED},
}


def test_every_reason_has_the_number_that_clients_know() -> None:
    assert {why: code for code, reasons in REASONS.items() for why in reasons} == CODES
    assert CODES.keys() == set(Why)
    assert not {0, 10, 11, 12} & REASONS.keys(), "with these a transaction producer rolls back"


@pytest.mark.parametrize("why", [Why.ALREADY_SETTLED, Why.VERDICT_CONFLICT])
def test_standing_verdict_goes_along_with_a_code_that_producers_do_not_retry(why: Why) -> None:
    code, text, ext = refusal(Refused(why, "text", "COMMITTED", 77))
    assert (code, text, ext) == (604, "text", {"HMQ_VERDICT": "COMMITTED", "HMQ_POSITION": 77})


def test_an_undecided_transaction_is_named_without_a_position() -> None:
    assert refusal(Refused(Why.STILL_UNDECIDED, "text", "UNDECIDED")) == (29, "text", {"HMQ_VERDICT": "UNDECIDED"})


def test_broken_decision_is_a_system_error() -> None:
    assert refusal(Failed("KeyError: x")) == (1, "KeyError: x", {})
