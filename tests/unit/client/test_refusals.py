"""One table of response codes: all have a row, and exceptions follow from it."""

import pytest

from halfmq.client.refusals import MEANINGS, PASSING, RETRIABLE, STORED, Again, is_temporary, refusal
from halfmq.errors import (
    CoordinatorSuperseded,
    HalfmqError,
    NotAuthorized,
    RequestFailed,
    ServerBusy,
    TopicNotFound,
    TransactionIncomplete,
    TransactionRefused,
    TransactionUndecided,
)
from halfmq.wire.remoting.codes import EXT_DAMAGED, ResponseCode


@pytest.mark.parametrize("code", ResponseCode)
def test_every_code_has_its_row_and_its_error_says_the_same(code: ResponseCode) -> None:
    meaning = MEANINGS[code]
    assert (meaning.error is None) is (code == ResponseCode.SUCCESS)
    assert meaning.again is Again.NEVER or not meaning.is_stored
    if meaning.error is not None:
        error = refusal(code, "the reason", "send to t")
        assert type(error) is meaning.error
        assert error.response_code == code
        assert "send to t: the reason" in str(error)
        assert error.hint == meaning.hint
        # Public: a caller may repeat what passes. What only may pass was tried again before it gets the error.
        assert error.retriable is (meaning.again is Again.LATER)
        assert error.outcome_known, "a response tells the outcome"


def test_there_is_no_row_of_a_code_that_does_not_exist() -> None:
    assert MEANINGS.keys() == set(ResponseCode)


def test_what_is_tried_again() -> None:
    assert {2, 14, 215, 1500} == PASSING
    assert {1, 2, 14, 204, 205, 215, 1500} == RETRIABLE
    assert STORED == {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
    assert {code for code, meaning in MEANINGS.items() if meaning.settles} == {604, 29_100}
    assert is_temporary(1, {})
    assert not is_temporary(1, {EXT_DAMAGED: "true"})
    assert not is_temporary(17, {})


@pytest.mark.parametrize(
    ("code", "kind", "retriable"),
    [
        (1, RequestFailed, False),
        (2, ServerBusy, True),
        (13, RequestFailed, False),
        (14, ServerBusy, True),
        (16, NotAuthorized, False),
        (17, TopicNotFound, False),
        (215, ServerBusy, True),
        (604, TransactionIncomplete, False),
        (1500, ServerBusy, True),
        (29_100, CoordinatorSuperseded, False),
        (9_999, RequestFailed, False),
    ],
)
def test_code_has_its_error(code: int, kind: type[HalfmqError], retriable: bool) -> None:
    error = refusal(code, "the reason", "send to t")
    assert type(error) is kind
    assert error.response_code == code
    assert error.retriable is retriable


def test_who_decides_what_is_undecided_is_true_of_a_coordinators_transaction() -> None:
    """No check decides it."""
    error = refusal(29, "", "prepare", "UNDECIDED")
    assert type(error) is TransactionUndecided
    assert "if a coordinator prepared it, its coordinator, or an operator" in error.hint


def test_standing_verdict_is_named() -> None:
    with pytest.raises(TransactionRefused, match="COMMITTED") as caught:
        raise refusal(604, "", "rollback", "COMMITTED")
    assert caught.value.standing == "COMMITTED"
    assert type(refusal(29, "", "half", "UNDECIDED")) is TransactionUndecided


def test_a_hint_of_the_caller_is_used_where_the_code_has_none() -> None:
    assert refusal(29, "", "x", hint="mine").hint == "mine"
    assert refusal(13, "", "x", hint="mine").hint != "mine"
