"""Polls for checks, and what they are answered."""

import pytest
from tests.support import log_records as make

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model import stored_message
from halfmq.wire.remoting.check_polls import Poll, decode_handed_out, decode_poll, encode_poll


def fields(poll: Poll) -> dict[str, str]:
    return {name: str(value) for name, value in encode_poll(poll).items()}


def test_a_poll_comes_through_and_what_it_does_not_say_is_as_little_to_wait_and_as_many_as_may_be() -> None:
    poll = Poll("shop", "me@1", 20_000, 32)
    assert decode_poll(fields(poll)) == poll
    assert decode_poll({"group": "shop", "clientId": "me"}) == Poll("shop", "me", 0, limits.CHECK_POLL_CHECKS_MAX)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group": ""}, "group"),
        ({"clientId": ""}, "clientId"),
        ({"clientId": "x" * 256}, "clientId"),
        ({"clientId": "two\nlines"}, "clientId"),
        ({"waitMs": "-1"}, "waitMs"),
        ({"waitMs": "soon"}, "waitMs"),
        ({"waitMs": "²"}, "waitMs"),
        ({"waitMs": "9" * 10}, "waitMs"),
        ({"max": "0"}, "max"),
        ({"max": "x"}, "max"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, str], says: str) -> None:
    found = decode_poll({**fields(Poll("shop", "me", 1_000, 5)), **changes})
    assert isinstance(found, str)
    assert found.startswith(says)


def test_halves_are_read_one_after_another_and_no_more_than_were_asked_for() -> None:
    half = b"".join(stored_message.encode(make.message(properties=make.half_properties("T1"), queue_offset=5), 4_096))
    pulled = decode_handed_out(half * 3)
    assert [(one.message.queue_offset, one.log_offset, one.whole) for one in pulled] == [(5, 4_096, True)] * 3
    assert decode_handed_out(b"") == []
    with pytest.raises(ProtocolError, match="257 checks"):
        decode_handed_out(half * 257)
    with pytest.raises(ProtocolError):
        decode_handed_out(half[:-1])
