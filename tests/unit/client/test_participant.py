"""A participant of Try/Confirm/Cancel: what it says of a message that it cannot handle, and of a broker that is gone."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.virtual_time import run
from tests.unit.client.test_message import message

from halfmq.client.branch import CANCEL, CONFIRM, Branch
from halfmq.client.message import Message
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.participant import LATER_LONG, Participant
from halfmq.errors import ConnectError, RequestFailed
from halfmq.model import properties as names
from halfmq.model.properties import to_dict

BRANCH = Branch("tcc.1", "shop", "1", CANCEL, "broker-gone", 7)


class World:
    """A client whose fence raises, and the messages that it hands back, puts off, or handles."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.now_ms = 0
        self.later: list[OutgoingMessage] = []
        self.handled: list[Message] = []
        self.back: list[Message] = []
        client: Any = SimpleNamespace(
            fence=self.fence, _send_later=self.send_later, clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        )
        self.participant = Participant(client, "stock", self.handle)  # type: ignore[arg-type]

    async def fence(self, tx_id: str, **named: Any) -> Any:
        raise self.error

    async def send_later(self, message: OutgoingMessage) -> None:
        self.later.append(message)

    async def handle(self, message: Message) -> None:
        self.handled.append(message)

    async def retry(self, message: Message, delay: float | None) -> None:
        self.back.append(message)

    def gets(self, branch: Branch = BRANCH, **more: str) -> None:
        given = {**branch.properties(), names.UNIQ_KEY: "M1", **more}
        run(self.participant(message(delivery=self, **{name: value for name, value in given.items() if value})))


MALFORMED = {
    "no id": {names.HMQ_TCC_ID: ""},
    "no position": {names.HMQ_TCC_SINCE: ""},
    "a position that is no number": {names.HMQ_TCC_SINCE: "soon"},
    "a position of many digits": {names.HMQ_TCC_SINCE: "9" * 5_000},
    "an id of many characters": {names.HMQ_TCC_ID: "x" * 3_000},
    "an id of two words": {names.HMQ_TCC_ID: "a b"},
    "a branch of many characters": {names.HMQ_TCC_BRANCH: "x" * 3_000},
    "another op": {names.HMQ_TCC_OP: "TRY"},
}


@pytest.mark.parametrize("op", [CANCEL, CONFIRM])
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_call_is_one_line_that_says_what_is_wrong(
    what: str, op: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: a traceback at each of its attempts."""
    world = World(AssertionError("not asked"))
    world.gets(BRANCH._replace(op=op), **MALFORMED[what])
    (line,) = caplog.records
    assert (line.levelname, line.exc_info, "\n" in line.getMessage()) == ("ERROR", None, False)
    assert "M1" in line.getMessage()
    assert "is no call of a branch" in line.getMessage()
    assert (len(world.back), world.later, world.handled) == (1, [], [])


def test_a_transaction_past_retention_is_one_line_too(caplog: pytest.LogCaptureFixture) -> None:
    world = World(RequestFailed("unknown, past retention"))
    world.gets()
    (line,) = caplog.records
    assert (line.levelname, line.exc_info) == ("ERROR", None)
    assert "past retention" in line.getMessage()
    assert (len(world.back), world.later, world.handled) == (1, [], [])


def test_a_broker_that_is_gone_for_long_is_a_warning_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """Until then it is one that starts again. The cancel waits in any case."""
    caplog.set_level(logging.INFO)
    world = World(ConnectError("no route"))

    def warned(times: int, **more: str) -> list[str]:
        caplog.clear()
        world.gets(**{names.HMQ_TCC_LATER: str(times)} if times else {}, **more)
        return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]

    assert [warned(times) for times in (0, 1, LATER_LONG - 1)] == [[], [], []]
    (line,) = warned(LATER_LONG)
    for said in ("broker-gone", "no route", "Start it again on its data", "by hand", "docs/tcc.md"):
        assert said in line
    assert warned(LATER_LONG + 1) == []
    world.now_ms = 3_599_999
    assert warned(LATER_LONG + 60) == []
    world.now_ms = 3_600_000
    assert len(warned(LATER_LONG + 60)) == 1
    assert len(warned(LATER_LONG, HMQ_TCC_BROKER="another")) == 1, "each broker is named"
    assert [to_dict(one.properties)[names.HMQ_TCC_LATER] for one in world.later] == [
        "1",
        "2",
        "65",
        "66",
        "67",
        "126",
        "126",
        "66",
    ]
    assert (world.back, world.handled) == ([], [])


@pytest.mark.parametrize("times", ["²", "-1", "soon", "9" * 5_000])
def test_a_malformed_number_of_times_is_none(times: str) -> None:
    world = World(ConnectError("no route"))
    world.gets(HMQ_TCC_LATER=times)
    assert [to_dict(one.properties)[names.HMQ_TCC_LATER] for one in world.later] == ["1"]


def test_messages_that_name_many_brokers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World(ConnectError("no route"))
    for number in range(50):
        world.gets(HMQ_TCC_LATER=str(LATER_LONG), HMQ_TCC_BROKER=f"b{number}")
    assert len(caplog.records) == 16
