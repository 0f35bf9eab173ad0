"""Questions to a client: who is asked, whose answer counts, and what ends them without one."""

from typing import Any

import pytest
from tests.support.core_log import consumer
from tests.support.services import CoreSequencer, FakePeer, HandLoop

from halfmq.broker.services import client_calls as module
from halfmq.broker.services.client_calls import ClientCalls
from halfmq.core.decision import Why


class Bench:
    """Two members of the group C, client-4 and client-5, on the connections 4 and 5."""

    def __init__(self) -> None:
        sequencer = CoreSequencer()
        for number in (4, 5):
            sequencer.note(consumer(number, 0, "C", "T"))
        self.loop = HandLoop()
        self.flushed = 0
        self.asked: list[int] = []
        self.full: set[int] = set()
        self.calls: ClientCalls[str] = ClientCalls(sequencer.view, self.loop, self._flush)  # type: ignore[arg-type]

    def _flush(self) -> None:
        self.flushed += 1

    def _send(self, number: int) -> int | None:
        if number in self.full:
            return None
        self.asked.append(number)
        return 100 + len(self.asked)

    def ask(self, asker: FakePeer | None = None, *, group: str = "C", client_id: str = "client-5") -> list[Any]:
        """What was answered, and will be: a list that grows."""
        answers: list[Any] = []
        self.calls.ask_consumer(asker or FakePeer(), group, client_id, self._send, answers.append)
        return answers


def test_the_member_with_that_name_is_asked_and_only_its_answer_counts() -> None:
    bench = Bench()
    answers = bench.ask()
    assert bench.asked == [5]
    bench.calls.answered(FakePeer(4), 101, "of another client")
    bench.calls.answered(FakePeer(5), 102, "to another question")
    assert answers == []
    bench.calls.answered(FakePeer(5), 101, "it runs")
    bench.calls.answered(FakePeer(5), 101, "twice")
    assert (answers, bench.flushed, bench.loop.waits) == (["it runs"], 1, 0)


def test_who_is_not_there_or_does_not_read_is_not_waited_for() -> None:
    bench = Bench()
    bench.full.add(5)
    for answers in (bench.ask(group="D"), bench.ask(client_id="client-6"), bench.ask()):
        assert answers[0].why is Why.CLIENT_NOT_REACHED
    assert (bench.asked, bench.loop.waits) == ([], 0)


def test_a_client_that_says_nothing_is_given_up() -> None:
    bench = Bench()
    answers = bench.ask()
    bench.loop.pass_s(module.CALL_S - 0.1)
    assert answers == []
    bench.loop.pass_s(0.1)
    assert answers[0].why is Why.CLIENT_TIMEOUT
    bench.calls.answered(FakePeer(5), 101, "too late")
    assert len(answers) == 1


def test_a_client_that_is_lost_ends_its_calls_and_an_asker_that_is_lost_is_forgotten() -> None:
    bench, asker = Bench(), FakePeer(1)
    lost, other = bench.ask(client_id="client-4"), bench.ask(asker)
    bench.calls.peer_gone(4)
    assert lost[0].why is Why.CLIENT_NOT_REACHED
    assert other == []
    asker.is_open = False
    bench.calls.peer_gone(1)
    assert (bench.loop.waits, bench.calls._calls) == (0, {})
    bench.calls.answered(FakePeer(5), 102, "to nobody")
    assert other == []


def test_calls_that_are_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 2)
    bench = Bench()
    assert [bench.ask(), bench.ask()] == [[], []]
    assert bench.ask()[0].why is Why.LIMIT_REACHED
    bench.calls.answered(FakePeer(5), 101, "one")
    assert bench.ask() == []
