"""One table from answer codes to errors."""

import pytest

from halfmq.client.refusals import refusal
from halfmq.errors import (
    HalfmqError,
    NotAuthorized,
    RequestFailed,
    ServerBusy,
    TopicNotFound,
    TransactionIncomplete,
    TransactionRefused,
)


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
        (9_999, RequestFailed, False),
    ],
)
def test_code_has_its_error(code: int, kind: type[HalfmqError], retriable: bool) -> None:
    error = refusal(code, "the reason", "send to t")
    assert type(error) is kind
    assert error.response_code == code
    assert error.retriable is retriable
    assert "the reason" in str(error)
    assert "send to t" in str(error)


def test_standing_verdict_is_named() -> None:
    with pytest.raises(TransactionRefused, match="COMMITTED") as caught:
        raise refusal(604, "", "rollback", "COMMITTED")
    assert caught.value.standing == "COMMITTED"
