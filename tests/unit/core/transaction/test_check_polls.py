"""The pull form of checks: a client waits for what its group is to be asked, and gets it on lease (FMQ source, 3.3.5)."""

from typing import Any

from tests.support.core_log import CoreLog, end, half, producer, sent
from tests.support.invariants import check

from halfmq.core.commands import CheckNotSent, CheckNow, RequestedVerdict
from halfmq.core.decision import Asked, SendCheck
from halfmq.core.engine import next_deadline_ms
from halfmq.core.session import ConnectionClosed, PollEnded, Polling, Unregistered
from halfmq.core.transaction.listing import oldest_undecided
from halfmq.core.transaction.story import story
from halfmq.model.settings import BrokerSettings


def undecided(count: int, *, connection: int = 0) -> CoreLog:
    log = CoreLog(BrokerSettings(segment_bytes=65_536))
    for number in range(count):
        log.do(half(f"T{number}"))
    if connection:
        poll(log, connection)
    return log


def poll(log: CoreLog, connection: int, room: int = 32) -> None:
    log.session(Polling(connection, f"poller-{connection}", "PG", room))


def asked(effects: list[Any]) -> list[tuple[int, str, int]]:
    return [(one.connection, one.tx_id, one.checks) for one in effects if isinstance(one, SendCheck)]


def test_who_waits_gets_what_falls_due_and_then_waits_no_more() -> None:
    log = undecided(2, connection=1)
    assert asked(log.run_to(log.now_ms + 5_999)) == []
    assert asked(log.run_to(log.now_ms + 200)) == [(1, "T0", 1), (1, "T1", 1)]
    group = log.state.producer_groups["PG"]
    assert (group.session.held_polls, group.session.pollers) == ({}, {1: "poller-1"})
    assert {tx_id: one[1] for tx_id, one in group.session.in_flight.items()} == {"T0": 1, "T1": 1}
    check(log.state)


def test_who_comes_first_gets_at_once_what_is_due_already() -> None:
    log = undecided(3)
    log.later(60_000)
    log.tick()
    assert next_deadline_ms(log.state) is None
    poll(log, 1)
    assert next_deadline_ms(log.state) == 0
    assert [one[1] for one in asked(log.tick())] == ["T0", "T1", "T2"]


def test_nobody_gets_more_than_it_has_room_for() -> None:
    log = undecided(5)
    log.later(60_000)
    poll(log, 1, room=2)
    assert [one[1] for one in asked(log.tick())] == ["T0", "T1"]
    assert asked(log.tick()) == []
    poll(log, 1, room=2)
    assert [one[1] for one in asked(log.tick())] == ["T2", "T3"]


def test_what_is_handed_out_is_leased_and_comes_to_another_when_the_lease_is_over() -> None:
    log = undecided(1)
    log.later(60_000)
    poll(log, 1)
    poll(log, 2)
    assert asked(log.tick()) == [(2, "T0", 1)]
    assert log.state.producer_groups["PG"].session.held_polls == {1: 32}
    assert asked(log.run_to(log.now_ms + 4_900)) == [], "leased"
    (again,) = asked(log.run_to(log.now_ms + 5_000))
    assert again == (1, "T0", 2)


def test_a_lease_ends_with_its_connection() -> None:
    log = undecided(1)
    log.later(60_000)
    poll(log, 1)
    assert asked(log.tick()) == [(1, "T0", 1)]
    poll(log, 2)
    log.session(ConnectionClosed(1))
    assert asked(log.tick()) == [(2, "T0", 2)]
    log.session(ConnectionClosed(2))
    assert not log.state.producer_groups["PG"].session.pollers
    check(log.state)


def test_what_could_not_be_handed_over_is_not_counted() -> None:
    log = undecided(1)
    log.later(60_000)
    poll(log, 1)
    assert asked(log.tick()) == [(1, "T0", 1)]
    log.do(CheckNotSent("PG", "T0", 1))
    poll(log, 2)
    assert asked(log.tick()) == [(2, "T0", 1)]


def test_who_waited_long_enough_gets_nothing_any_more() -> None:
    log = undecided(1, connection=1)
    log.session(PollEnded(1, "PG"))
    log.session(PollEnded(1, "nobody"))
    assert asked(log.run_to(log.now_ms + 60_000)) == []
    poll(log, 1)
    assert asked(log.tick()) == [(1, "T0", 1)]


def test_fetchers_and_registered_producers_take_turns() -> None:
    log = undecided(6)
    log.session(producer(1, log.now_ms))
    poll(log, 2)
    log.later(10_000)
    connections = [one[0] for one in asked(log.tick())]
    assert sorted(connections) == [1, 1, 1, 2, 2, 2]


def test_coming_again_is_no_reconnection() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536))
    reply = sent(log.do(half("T0")))
    log.later(10_000)
    poll(log, 1)
    log.tick()
    log.do(end("T0", reply, RequestedVerdict.UNKNOWN, from_check=True))
    poll(log, 1)
    assert asked(log.tick()) == [], "the back-off counts"
    poll(log, 3)
    (again,) = asked(log.tick())
    assert again[1:] == ("T0", 2), "another connection is one"


def test_between_two_polls_it_still_counts_as_somebody_who_can_be_asked() -> None:
    log = undecided(2)
    log.later(60_000)
    poll(log, 1, room=1)
    log.tick()
    assert oldest_undecided(log.state, "PG", 10, log.now_ms)[1][0].producers == 1
    assert "next client that fetches" in " ".join(story(log.state, "PG", "T1", log.now_ms))
    assert "waits for the response of poller-1" in " ".join(story(log.state, "PG", "T0", log.now_ms))
    assert next_deadline_ms(log.state) is None or next_deadline_ms(log.state) > log.now_ms, "no timer spins"
    log.session(Unregistered(1, "poller-1", "PG", ""))
    assert oldest_undecided(log.state, "PG", 10, log.now_ms)[1][0].producers == 0


def test_asked_by_hand_it_goes_to_who_waits_or_to_who_comes_next() -> None:
    log = undecided(1)
    log.later(60_000)
    poll(log, 1)
    log.tick()
    log.later(6_000)
    assert log.do(CheckNow("PG", "T0")) == Asked("", 2)
    log.later(64)  # checks fall due in buckets
    poll(log, 1)
    assert asked(log.tick()) == [(1, "T0", 2)]
    log.later(6_000)
    poll(log, 1)
    assert log.do(CheckNow("PG", "T0")) == Asked("poller-1", 3)
    assert log.state.producer_groups["PG"].session.held_polls == {}
    check(log.state)
