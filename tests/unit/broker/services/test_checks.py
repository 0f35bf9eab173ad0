"""Whom a check reaches, what is said of one that reaches nobody, and who is asked again when it reads again."""

from typing import Any

from tests.support.core_log import half, producer
from tests.support.services import CoreSequencer, FakePeer, FakePeers, HandLoop

from halfmq.broker.services.check_polls import CheckPolls
from halfmq.broker.services.checks import Checks
from halfmq.core.commands import CheckNotSent, SetProducer
from halfmq.core.decision import SendCheck
from halfmq.core.session import ConnectionClosed
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings
from halfmq.model.stored_message import StoredMessage, body_crc_of, decode, encode

HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))
QUICK = BrokerSettings(segment_bytes=1 << 16, check_immunity_ms=50)


class Halves:
    """As ``StoredMessages``: the half lies somewhere else than where it was first."""

    def __init__(self) -> None:
        self.is_damaged = False

    def half_bytes(self, offset: int) -> bytes | None:
        body = b"body"
        stored = StoredMessage("orders", 0, 0, 0, 4, 1, HOST, 2, HOST, 0, 0, body, body_crc_of(body), b"")
        return None if self.is_damaged else b"".join(encode(stored, offset + 4_000))


class Time:
    def now_ms(self) -> int:
        return 1_000_000


class Bench:
    """A producer of PG on connection 1, and a transaction T1 whose check is due."""

    def __init__(self) -> None:
        self.sequencer = CoreSequencer(QUICK)
        self.core = self.sequencer.core
        self.peers = FakePeers()
        self.halves = Halves()
        self.polls = CheckPolls(self.sequencer, HandLoop(), lambda: None)  # type: ignore[arg-type]
        self.checks = Checks(self.sequencer, self.halves, self.polls, self.peers, Time())  # type: ignore[arg-type]
        self.core.do(half("T1"))
        self.peer = self.connect(1)

    def connect(self, number: int) -> FakePeer:
        self.peers.connected[number] = peer = FakePeer(number)
        self.core.session(producer(number, self.core.now_ms, "PG"))
        return peer

    def due(self) -> SendCheck:
        (check,) = self.core.checks_after(200)
        return check

    @property
    def counted(self) -> int:
        return self.sequencer.view.producer_groups["PG"].undecided["T1"].checks

    @property
    def told(self) -> list[Any]:
        return [command for command in self.sequencer.commands if isinstance(command, CheckNotSent)]


def test_a_check_is_pushed_under_the_offsets_of_the_first_half() -> None:
    bench = Bench()
    check = bench.due()
    bench.checks.send(check)
    ((number, pushed),) = bench.peers.pushed
    message, offset, _ = decode(pushed.half)
    assert (number, pushed.check, message.queue_offset, offset) == (1, check, check.half_index, check.first_offset)
    assert (bench.told, bench.counted) == ([], 1)


def test_a_check_that_reaches_nobody_does_not_count() -> None:
    bench = Bench()
    check = bench.due()
    del bench.peers.connected[1]
    bench.checks.send(check)
    assert bench.told == [CheckNotSent("PG", "T1", 1, False)]
    assert bench.counted == 0


def test_a_half_that_cannot_be_read_is_asked_about_by_nobody() -> None:
    bench = Bench()
    bench.halves.is_damaged = True
    bench.checks.send(bench.due())
    assert bench.told == [CheckNotSent("PG", "T1", 1, True)]
    assert (bench.peers.pushed, bench.checks._missed) == ([], {})


def test_who_fetches_is_not_pushed_to_when_its_poll_has_ended() -> None:
    bench = Bench()
    check = bench.due()
    bench.peers.connected[2] = FakePeer(2)
    bench.checks.send(check._replace(connection=2))
    assert (bench.peers.pushed, bench.told) == ([], [CheckNotSent("PG", "T1", 2, False)])


def test_a_producer_that_did_not_read_is_asked_again_when_it_reads() -> None:
    bench = Bench()
    check = bench.due()
    bench.peer.is_full = True
    bench.checks.send(check)
    group = bench.sequencer.view.producer_groups["PG"]
    assert (bench.counted, dict(group.session.members)) == (0, {})
    bench.peer.is_full = False
    looks = bench.sequencer.looks
    bench.checks.drained(bench.peer)
    assert dict(group.session.members) == {1: "client-1"}
    assert bench.sequencer.looks == looks + 1, "something may be due now"
    bench.checks.send(bench.due())
    assert (len(bench.peers.pushed), bench.counted) == (1, 1)


def test_what_a_peer_missed_is_forgotten_with_it() -> None:
    bench = Bench()
    check = bench.due()
    bench.peer.is_full = True
    bench.checks.send(check)
    assert bench.checks._missed
    bench.core.session(ConnectionClosed(1))
    del bench.peers.connected[1]
    bench.checks.peer_gone(1)
    assert not bench.checks._missed
    bench.checks.drained(bench.peer)
    assert dict(bench.sequencer.view.producer_groups["PG"].session.members) == {}


def test_a_peer_that_reads_again_is_reachable_after_the_turn_that_says_it_is_not() -> None:
    bench = Bench()
    check = bench.due()
    bench.peer.is_full = True
    bench.checks.send(check)
    group = bench.sequencer.view.producer_groups["PG"]
    bench.sequencer.is_held = True
    bench.checks.drained(bench.peer)
    assert dict(group.session.members) == {}
    bench.sequencer.release()
    assert dict(group.session.members) == {1: "client-1"}


def test_a_check_for_a_parked_poll_goes_into_its_answer() -> None:
    bench = Bench()
    bench.core.session(ConnectionClosed(1))
    answers: list[Any] = []
    bench.polls.poll(FakePeer(2), "PG", "poller", 9_000, 8, answers.append)
    bench.checks.send(bench.due())
    bench.polls.answer_served()
    ((handed_out,),) = answers
    assert (handed_out.checks, decode(handed_out.half)[0].body) == (1, b"body")
    assert bench.peers.pushed == []


def test_core_is_told_that_a_check_left_only_where_a_policy_counts_it() -> None:
    bench = Bench()
    settings = ProducerSettings("PG", check_limit=1, past_limit=PastLimit.PARKED)
    bench.core.do(SetProducer(settings))
    bench.checks.send(bench.due())
    policy = bench.sequencer.view.producer_groups["PG"].policy
    assert policy is not None
    assert dict(policy.session.last_check_delivered) == {"T1": 1}
