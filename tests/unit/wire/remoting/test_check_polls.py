"""Polls for checks, and what they are answered."""

import pytest
from msgspec import ValidationError
from tests.support import log_records as make

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model import stored_message
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.wire.remoting.check_polls import PollFields, decode_handed_out


def fields(poll: PollFields) -> dict[str, str]:
    return {name: str(value) for name, value in write_fields(poll).items()}


def test_a_poll_comes_through_and_what_it_does_not_say_is_as_little_to_wait_and_as_many_as_may_be() -> None:
    poll = PollFields("shop", "me@1", 20_000, 32)
    assert list(fields(poll)) == ["group", "clientId", "waitMs", "max"]
    assert read_fields(PollFields, fields(poll)) == poll
    least = PollFields("shop", "me", 0, limits.CHECK_POLL_CHECKS_MAX)
    assert read_fields(PollFields, {"group": "shop", "clientId": "me"}) == least


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group": ""}, "group"),
        ({"clientId": ""}, "clientId"),
        ({"clientId": "x" * 256}, "clientId"),
        ({"waitMs": "-1"}, "waitMs"),
        ({"waitMs": "soon"}, "waitMs"),
        ({"waitMs": "²"}, "waitMs"),
        ({"waitMs": str(1 << 31)}, "waitMs"),
        ({"max": "0"}, "max"),
        ({"max": "x"}, "max"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        read_fields(PollFields, {**fields(PollFields("shop", "me", 1_000, 5)), **changes})


def test_halves_are_read_one_after_another_and_no_more_than_were_asked_for() -> None:
    half = b"".join(stored_message.encode(make.message(properties=make.half_properties("T1"), queue_offset=5), 4_096))
    pulled = decode_handed_out(half * 3)
    assert [(one.message.queue_offset, one.log_offset, one.whole) for one in pulled] == [(5, 4_096, True)] * 3
    assert decode_handed_out(b"") == []
    with pytest.raises(ProtocolError, match="257 checks"):
        decode_handed_out(half * 257)
    with pytest.raises(ProtocolError):
        decode_handed_out(half[:-1])
