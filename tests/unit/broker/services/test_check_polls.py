"""Polls for checks: parked, served, ended by time, by the next poll, by the broker, and with their peer."""

from typing import Any

import pytest
from tests.support.core_log import half, producer
from tests.support.services import CoreSequencer, FakePeer, HandLoop

from halfmq import limits
from halfmq.broker.services.check_polls import CheckedHalf, CheckPolls
from halfmq.core.decision import SendCheck, Why
from halfmq.core.session import ConnectionClosed
from halfmq.model.settings import BrokerSettings


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.sequencer = CoreSequencer(BrokerSettings(segment_bytes=1 << 16, **settings))
        self.loop = HandLoop()
        self.flushed = 0
        self.polls = CheckPolls(self.sequencer, self.loop, self._flush)  # type: ignore[arg-type]

    def _flush(self) -> None:
        self.flushed += 1

    def poll(
        self, peer: FakePeer | None = None, *, group: str = "PG", wait_ms: int = 9_000, checks_max: int = 8
    ) -> list[Any]:
        """What was answered, and will be: a list that grows."""
        answers: list[Any] = []
        self.polls.poll(peer or FakePeer(), group, "poller", wait_ms, checks_max, answers.append)
        return answers

    @property
    def parked_in_core(self) -> dict[int, int]:
        return dict(self.sequencer.view.producer_groups["PG"].session.held_polls)


def check(tx_id: str = "T1", *, connection: int = 1, checks: int = 1) -> SendCheck:
    return SendCheck(connection, "PG", tx_id, 0, 0, 0, checks)


def test_what_is_due_is_one_answer_after_its_effects() -> None:
    bench = Bench(check_immunity_ms=50)
    answers = bench.poll()
    bench.sequencer.core.do(half("T1"))
    bench.sequencer.core.do(half("T2"))
    due = bench.sequencer.core.checks_after(200)
    for number, one in enumerate(due):
        assert bench.polls.expects(one)
        assert bench.polls.add(one, b"half %d" % number)
    assert answers == []
    bench.polls.answer_served()
    assert answers == [[CheckedHalf(b"half 0", 1), CheckedHalf(b"half 1", 1)]]
    assert (bench.polls.held, bench.loop.waits, bench.parked_in_core) == (0, 0, {})
    assert not bench.polls.expects(due[0])


def test_time_that_is_up_gives_an_empty_answer_and_core_knows_that_nobody_waits() -> None:
    bench = Bench()
    answers = bench.poll(wait_ms=2_000)
    assert bench.sequencer.looks == 1, "a check may be due for it now"
    bench.loop.pass_s(1.9)
    assert (answers, bench.parked_in_core) == ([], {1: 8})
    bench.loop.pass_s(0.1)
    assert (answers, bench.parked_in_core, bench.flushed) == ([[]], {}, 1)


def test_a_poll_that_core_has_served_waits_for_its_checks_though_time_is_up() -> None:
    """They are on their way to the disk."""
    bench = Bench(check_immunity_ms=50)
    answers = bench.poll(wait_ms=2_000)
    bench.sequencer.core.do(half("T1"))
    (due,) = bench.sequencer.core.checks_after(200)
    bench.loop.pass_s(2)
    assert answers == []
    bench.polls.add(due, b"half")
    bench.polls.answer_served()
    assert answers == [[CheckedHalf(b"half", 1)]]


@pytest.mark.parametrize(("asked_ms", "wait_ms"), [(-5, 100), (0, 100), (10**8, 25_000)])
def test_wait_and_number_are_cut_to_what_may_be(asked_ms: int, wait_ms: int) -> None:
    bench = Bench()
    answers = bench.poll(wait_ms=asked_ms, checks_max=10**8)
    assert bench.parked_in_core == {1: limits.CHECK_POLL_CHECKS_MAX}
    bench.loop.pass_s(wait_ms / 1_000 - 0.01)
    assert answers == []
    bench.loop.pass_s(0.02)
    assert answers == [[]]


def test_a_second_poll_of_a_peer_ends_the_first_and_not_that_of_another_group() -> None:
    bench, peer = Bench(), FakePeer()
    other = bench.poll(peer, group="Other")
    first = bench.poll(peer)
    second = bench.poll(peer)
    assert (first, second, other, bench.polls.held) == ([[]], [], [], 2)


def test_an_answer_is_bounded_in_bytes_and_its_first_half_always_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PULL_BYTES_MAX", 10)
    bench = Bench()
    answers = bench.poll()
    assert [bench.polls.add(check(), bytes(size)) for size in (20, 1)] == [True, False]
    bench.polls.answer_served()
    assert [len(one.half) for one in answers[0]] == [20]
    bench.poll()
    assert [bench.polls.add(check(), bytes(size)) for size in (4, 7, 6)] == [True, False, True]


def test_what_cannot_be_handed_over_ends_the_poll_with_the_rest() -> None:
    bench, peer = Bench(), FakePeer()
    answers = bench.poll(peer)
    assert not bench.polls.add(check(), None), "its bytes are gone"
    bench.polls.answer_served()
    assert answers == [[]]
    bench.poll(peer)
    peer.is_full = True
    assert not bench.polls.add(check(), b"half"), "nobody reads it"


def test_names_and_numbers_of_groups_are_bounded() -> None:
    bench = Bench()
    assert bench.poll(group="no way")[0].why is Why.INVALID_PARAMETER
    groups = [f"G{number}" for number in range(limits.GROUPS_PER_CONNECTION_MAX)]
    bench.sequencer.note(producer(1, 0, *groups))
    assert "1024 groups" in bench.poll(group="another")[0].text
    assert bench.poll(group="G7") == [], "one of those that it is in"


def test_a_poll_for_a_new_group_is_refused_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_FREE", 1)
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_PER_CONNECTION_EXEMPT", 0)
    bench = Bench(undecided_groups_max=1)
    bench.sequencer.note(producer(2, 0, "P1", "P2"))
    assert "--undecided-groups-max" in bench.poll(group="P3")[0].text
    assert bench.poll(group="P2") == []


def test_polls_end_with_the_broker_and_are_forgotten_with_their_peer() -> None:
    bench = Bench()
    stays = bench.poll(FakePeer(1))
    gone = bench.poll(FakePeer(2))
    bench.sequencer.note(ConnectionClosed(2))
    bench.polls.peer_gone(2)
    bench.polls.drain()
    assert (stays, gone, bench.polls.held, bench.loop.waits, bench.flushed) == ([[]], [], 0, 0, 1)
    assert bench.poll(FakePeer(3)) == [[]], "while it stops nobody waits any more"
    assert (bench.polls.held, bench.loop.waits) == (0, 0)
