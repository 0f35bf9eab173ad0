"""Questions to a client: who is asked, whose answer counts, and what ends them without one."""

import itertools
from typing import Any

import pytest
from tests.support.core_log import consumer
from tests.support.services import CoreSequencer, FakeGateway, FakePeer, HandLoop, parts

from halfmq.broker.remoting import client_calls as module
from halfmq.broker.remoting.client_calls import ClientCommands
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.fields import RunningInfoFields
from halfmq.wire.remoting.header import Request

NOT_REACHED = ResponseCode.SYSTEM_ERROR


class Bench:
    """Two members of the group C, client-4 and client-5, on the connections 4 and 5."""

    def __init__(self) -> None:
        sequencer = CoreSequencer()
        for number in (4, 5):
            sequencer.note(consumer(number, 0, "C", "T"))
        self.loop = HandLoop()
        self.asked: list[int] = []
        self.full: set[int] = set()
        self.gateway = FakeGateway()
        self.gateway.call = self._call  # type: ignore[attr-defined]
        self.calls = ClientCommands(parts(sequencer, gateway=self.gateway, loop=self.loop))
        self._numbers = itertools.count(1)

    def _call(self, number: int, code: int, ext: dict[str, Any]) -> int | None:
        if number in self.full:
            return None
        self.asked.append(number)
        return 100 + len(self.asked)

    def ask(self, asker: FakePeer | None = None, *, group: str = "C", client_id: str = "client-5") -> int:
        """The number of the request."""
        number = next(self._numbers)
        request: Request[Any] = Request(code=307, opaque=number, ext=RunningInfoFields(group, client_id))
        self.calls.running_info(asker or FakePeer(), request)  # type: ignore[arg-type]
        return number

    def answered(self, number: int, call: int, text: str) -> None:
        """The client with this connection responds."""
        self.gateway.on_response(FakePeer(number), Request(code=0, opaque=call, ext={}, body=text.encode()))

    def codes(self, number: int) -> list[int]:
        return [one.code for one in self.gateway.answers if one.number == number]


def test_the_member_with_that_name_is_asked_and_only_its_answer_counts() -> None:
    bench = Bench()
    bench.ask()
    assert bench.asked == [5]
    bench.answered(4, 101, "of another client")
    bench.answered(5, 102, "to another question")
    assert bench.gateway.answers == []
    bench.answered(5, 101, "it runs")
    bench.answered(5, 101, "twice")
    assert [one.body for one in bench.gateway.answers] == [b"it runs"]
    assert (bench.gateway.peers.flushed, bench.loop.waits) == (1, 0)


def test_who_is_not_there_or_does_not_read_is_not_waited_for() -> None:
    bench = Bench()
    bench.full.add(5)
    for number in (bench.ask(group="D"), bench.ask(client_id="client-6"), bench.ask()):
        assert bench.codes(number) == [NOT_REACHED]
    assert (bench.asked, bench.loop.waits) == ([], 0)


def test_a_client_that_says_nothing_is_given_up() -> None:
    bench = Bench()
    number = bench.ask()
    bench.loop.pass_s(module.CALL_S - 0.1)
    assert bench.gateway.answers == []
    bench.loop.pass_s(0.1)
    assert bench.codes(number) == [ResponseCode.CONSUME_MSG_TIMEOUT]
    bench.answered(5, 101, "too late")
    assert len(bench.gateway.answers) == 1


def test_a_client_that_is_lost_ends_its_calls_and_an_asker_that_is_lost_is_forgotten() -> None:
    bench, asker = Bench(), FakePeer(1)
    lost, other = bench.ask(client_id="client-4"), bench.ask(asker)
    bench.calls.peer_gone(4)
    assert (bench.codes(lost), bench.codes(other)) == ([NOT_REACHED], [])
    asker.is_open = False
    bench.calls.peer_gone(1)
    assert (bench.loop.waits, bench.calls._calls) == (0, {})
    bench.answered(5, 102, "to nobody")
    assert bench.codes(other) == []


def test_calls_that_are_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 2)
    bench = Bench()
    bench.ask()
    bench.ask()
    assert bench.gateway.answers == []
    assert bench.codes(bench.ask()) == [ResponseCode.SYSTEM_BUSY]
    bench.answered(5, 101, "one")
    assert bench.codes(bench.ask()) == []


def test_one_user_leaves_others_a_quarter_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 4)
    bench = Bench()
    for number in range(3):
        bench.ask(FakePeer(number, user="flood"))
    refused = bench.ask(FakePeer(4, user="flood"))
    assert bench.codes(refused) == [ResponseCode.SYSTEM_BUSY]
    assert bench.gateway.answers[-1].remark == (
        "user 'flood' has 3 of 4 calls of clients in progress, and one user may have 3: try again"
    )
    assert bench.codes(bench.ask(FakePeer(5, user="shop"))) == []
    bench.ask(FakePeer(6, user="third"))
    assert "4 of 4 calls of clients in progress, 3 of them of user 'flood'" in bench.gateway.answers[-1].remark
    for call in range(101, 105):
        bench.answered(5, call, "one")
    assert bench.calls._shares.taken == 0
