"""Replies without a frame: what leaves, to whom, and why one does not."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.services import Answered, CoreSequencer, FakeGateway, FakePeer, parts

from halfmq import limits
from halfmq.broker.remoting.request_reply import RequestReply
from halfmq.model import properties
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.fields import SendFields
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request, decode

NOW_MS = 77_000


class Doors(FakeGateway):
    def __init__(self) -> None:
        super().__init__()
        self.asker = self.peers.connected[8] = FakePeer(8)

    @property
    def pushed(self) -> list[tuple[int, Request[Any]]]:
        """What was pushed, as its frame is read."""
        found = []
        for number, what in self.peers.pushed:
            (frame,) = FrameSplitter().feed(self.pushes[type(what)](what, 1))
            found.append((number, decode(frame)))
        return found


def reply(doors: Doors, to: str = "asker", body: bytes = b"answer", **pairs: str) -> Answered | None:
    """The refusal; None: it was forwarded."""
    if to:
        pairs["REPLY_TO_CLIENT"] = to
    sequencer = CoreSequencer(BrokerSettings(body_bytes_max=100))
    members = SimpleNamespace(connection_of={"asker": 8}.get)
    handlers = RequestReply(
        parts(sequencer, gateway=doors, members=members, time=SimpleNamespace(now_ms=lambda: NOW_MS))
    )
    text = properties.encode(pairs).decode()
    fields = SendFields(
        group="G", topic="R", queue_id=0, sys_flag=0, born_time_ms=5, flag=0, properties=text, reconsume_times=0
    )
    handlers.reply(FakePeer(3), Request(code=324, opaque=1, flag=2, ext=fields, body=body))  # type: ignore[arg-type]
    return doors.answers[-1] if doors.answers else None


def test_a_reply_goes_to_the_client_that_it_names_with_the_time_at_which_it_does() -> None:
    doors = Doors()
    assert reply(doors, CORRELATION_ID="c") is None
    ((number, pushed),) = doors.pushed
    assert (number, pushed.code, pushed.body, pushed.ext.store_timestamp) == (8, 326, b"answer", NOW_MS)
    assert properties.to_dict(pushed.ext.properties.encode()) == {
        "CORRELATION_ID": "c", "REPLY_TO_CLIENT": "asker", "PUSH_REPLY_TIME": str(NOW_MS),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"body": bytes(101)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"more": "x" * limits.PROPERTIES_BYTES_MAX}, ResponseCode.MESSAGE_ILLEGAL),
        ({"to": ""}, ResponseCode.SYSTEM_ERROR),
        ({"to": "nobody"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_reply_that_is_too_large_or_that_nobody_waits_for_is_refused(changes: dict[str, Any], code: int) -> None:
    doors = Doors()
    refused = reply(doors, **changes)
    assert refused is not None
    assert (refused.code, doors.pushed) == (code, [])


def test_a_requester_that_does_not_read_gets_nothing_and_the_replier_knows() -> None:
    doors = Doors()
    doors.asker.is_full = True
    refused = reply(doors)
    assert refused is not None
    assert (refused.code, "does not read" in refused.remark) == (ResponseCode.SYSTEM_ERROR, True)
