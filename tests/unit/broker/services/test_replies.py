"""Replies: what leaves, to whom, and why one does not."""

import pytest
from tests.support.services import FakePeer

from halfmq import limits
from halfmq.broker.services.peer import Peer
from halfmq.broker.services.replies import Replies, ReplyMessage
from halfmq.core.decision import Done, Refused, Why
from halfmq.model import properties

NOW_MS = 77_000


class Doors:
    def __init__(self) -> None:
        self.is_full = False
        self.pushed: list[tuple[int, ReplyMessage, Peer, int]] = []

    def push_reply(self, number: int, reply: ReplyMessage, replier: Peer, pushed_ms: int) -> bool:
        if not self.is_full:
            self.pushed.append((number, reply, replier, pushed_ms))
        return not self.is_full


class Time:
    def now_ms(self) -> int:
        return NOW_MS


def replies(doors: Doors) -> Replies:
    return Replies(doors, {"asker": 8}.get, Time(), body_bytes_max=100)  # type: ignore[arg-type]


def message(to: str = "asker", body: bytes = b"answer", **pairs: str) -> ReplyMessage:
    if to:
        pairs["REPLY_TO_CLIENT"] = to
    return ReplyMessage("G", "R", 4, 0, 0, 5, 0, properties.encode(pairs), 0, body)


def test_a_reply_goes_to_the_client_that_it_names_with_the_time_at_which_it_does() -> None:
    doors, replier = Doors(), FakePeer(3)
    assert replies(doors).reply(replier, message(CORRELATION_ID="c")) == Done()
    ((number, reply, by, pushed_ms),) = doors.pushed
    assert (number, by, pushed_ms, reply.body) == (8, replier, NOW_MS, b"answer")
    assert properties.to_dict(reply.properties) == {
        "CORRELATION_ID": "c", "REPLY_TO_CLIENT": "asker", "PUSH_REPLY_TIME": str(NOW_MS),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (message(body=bytes(101)), Why.MESSAGE_ILLEGAL),
        (message(more="x" * limits.PROPERTIES_BYTES_MAX), Why.MESSAGE_ILLEGAL),
        (message(to=""), Why.CLIENT_NOT_REACHED),
        (message(to="nobody"), Why.CLIENT_NOT_REACHED),
    ],
)
def test_a_reply_that_is_too_large_or_that_nobody_waits_for_is_refused(reply: ReplyMessage, why: Why) -> None:
    doors = Doors()
    refused = replies(doors).reply(FakePeer(), reply)
    assert isinstance(refused, Refused)
    assert (refused.why, doors.pushed) == (why, [])


def test_a_requester_that_does_not_read_gets_nothing_and_the_replier_knows() -> None:
    doors = Doors()
    doors.is_full = True
    refused = replies(doors).reply(FakePeer(), message())
    assert isinstance(refused, Refused)
    assert refused.why is Why.CLIENT_NOT_REACHED
    assert "does not read" in refused.text
