"""What a policy parked is next check is due in bulk: in order, bounded, and never released without a check."""

from typing import Any

from tests.support.core_log import CoreLog, end, half, part, producer, refused, sent
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check
from tests.unit.core.transaction.test_check_polls import poll
from tests.unit.core.transaction.test_policy import ASIDE, run

from halfmq.core.commands import CheckParked, RequestedVerdict, SetProducer
from halfmq.core.decision import ParkedChecked, ProducerSettingsStored, SendCheck, Settled, Why
from halfmq.core.session import CheckDelivered, ConnectionClosed
from halfmq.core.transaction.listing import group_stats
from halfmq.model.records import Parked
from halfmq.model.settings import BrokerSettings, ProducerSettings


def parked(count: int, *, age: bool = False, segment_bytes: int = 65_536, **settings: Any) -> CoreLog:
    """A group with ``count`` transactions that its policy parked, T0 first, and a producer."""
    log = CoreLog(BrokerSettings(segment_bytes=segment_bytes, check_interval_ms=1_000, **settings))
    limits = ProducerSettings("PG", skip_age_ms=60_000) if age else ProducerSettings("PG", 1, ASIDE)
    assert log.do(SetProducer(limits)) == ProducerSettingsStored(limits)
    log.session(producer(1, log.now_ms))
    for number in range(count):
        log.do(half(f"T{number}"))
        log.later(10 if count > 10 else 1_000)
    run(log, 120_000)
    assert aside(log) == count
    return log


def aside(log: CoreLog) -> int:
    return group_stats(log.state, "PG", log.now_ms)[0].parked


def ask(log: CoreLog, asked_max: int = 1_000) -> tuple[ParkedChecked, list[SendCheck]]:
    command = CheckParked("PG", asked_max)
    decision = log.decide(command)
    assert sum(record.size for record in decision.records) <= log.state.record_bytes_max // 8
    assert isinstance(decision.reply, ParkedChecked)
    checks = [effect for effect in decision.effects if isinstance(effect, SendCheck)]
    for one in checks:
        log.session(CheckDelivered(one.group, one.tx_id, one.checks, log.now_ms))
    assert tuple(one.tx_id for one in checks) == decision.reply.tx_ids
    check(log.state)
    return decision.reply, checks


def test_as_many_as_wanted_are_asked_about_the_first_at_first_and_count_from_one() -> None:
    log = parked(5)
    told, checks = ask(log, 2)
    assert told == ParkedChecked(("T0", "T1"), 3)
    assert [(one.connection, one.checks) for one in checks] == [(1, 1), (1, 1)]
    assert aside(log) == 3
    assert ask(log)[0] == ParkedChecked(("T2", "T3", "T4"), 0)
    assert ask(log)[0] == ParkedChecked((), 0)
    assert durable_digest(log.redone()) == durable_digest(log.state)


def test_a_command_asks_no_more_than_may_be_in_flight_and_answers_make_room() -> None:
    log = parked(5, checks_in_flight_max=2)
    assert ask(log)[0] == ParkedChecked(("T0", "T1"), 3)
    assert ask(log)[0] == ParkedChecked((), 3)
    known = log.state.producer_groups["PG"].undecided["T0"].halves[0]
    answer = end(
        "T0", None, RequestedVerdict.COMMIT, from_check=True, half_index=known.half_index, log_offset=known.first_offset
    )
    assert isinstance(log.do(answer), Settled)
    assert ask(log)[0] == ParkedChecked(("T2",), 2)
    log.later(6_000)
    assert ask(log)[0] == ParkedChecked(("T3", "T4"), 0), "an overdue answer makes room too"


def test_a_half_that_comes_after_the_parking_begins_a_grace_period_that_is_waited_for() -> None:
    """Found by the simulation, seed 14121886025183. Others are asked meanwhile."""
    log = parked(0)
    for tx_id in ("T0", "T1"):
        log.do(part(tx_id, 0))
    run(log, 120_000)
    assert aside(log) == 2
    log.do(part("T0", 1))
    assert ask(log, 1)[0] == ParkedChecked(("T1",), 1)
    assert ask(log)[0] == ParkedChecked((), 1)
    log.later(log.state.producer_groups["PG"].undecided["T0"].grace_until_ms - log.now_ms)
    assert ask(log)[0] == ParkedChecked(("T0",), 0)


def test_a_command_asks_about_256_at_most() -> None:
    log = parked(300, segment_bytes=1 << 22, checks_in_flight_max=1_000)
    told, _ = ask(log)
    assert (len(told.tx_ids), told.left) == (256, 44)


def test_a_command_logs_no_more_than_a_part_of_a_tick_and_the_next_one_goes_on() -> None:
    log = parked(200)
    in_order = list(log.state.producer_groups["PG"].derived.parked)
    asked: list[str] = []
    for _ in range(100):
        told, checks = ask(log)
        assert told.tx_ids
        assert sum(record.size for record in log.batches[-1].records[-len(checks) :]) <= log.state.record_bytes_max // 8
        asked += told.tx_ids
        if not told.left:
            break
    assert asked == in_order
    assert durable_digest(log.redone()) == durable_digest(log.state)


def test_who_fetches_gets_as_many_as_it_has_room_for() -> None:
    log = parked(4)
    log.session(ConnectionClosed(1))
    assert refused(log.do(CheckParked("PG", 10)), Why.NOT_NOW)
    poll(log, 7, room=3)
    told, checks = ask(log)
    assert told == ParkedChecked(("T0", "T1", "T2"), 1)
    assert {one.connection for one in checks} == {7}
    assert ask(log)[0] == ParkedChecked((), 1), "it has its answer, and comes again in a moment"
    assert aside(log) == 1, "nothing is released without a check"


def test_no_policy_acts_on_them_before_an_answer_is_overdue_and_the_others_come_first_then() -> None:
    log = parked(3, age=True)
    before = len(log.of(Parked))
    assert ask(log, 1)[0].tx_ids == ("T0",)
    run(log, 4_000)
    assert (aside(log), len(log.of(Parked))) == (2, before)
    run(log, 120_000)
    assert (aside(log), len(log.of(Parked))) == (3, before + 1)
    assert ask(log)[0].tx_ids == ("T1", "T2", "T0")


def test_a_group_without_any_is_no_error() -> None:
    log = CoreLog()
    assert log.do(CheckParked("nobody", 10)) == ParkedChecked((), 0)
    log.session(producer(1, log.now_ms))
    sent(log.do(half("T1")))
    assert log.do(CheckParked("PG", 10)) == ParkedChecked((), 0)


def test_who_fetches_has_its_answer_also_where_that_is_less_than_it_has_room_for() -> None:
    log = parked(1)
    log.session(ConnectionClosed(1))
    poll(log, 7, room=3)
    assert ask(log)[0] == ParkedChecked(("T0",), 0)
    assert log.state.producer_groups["PG"].session.held_polls == {}
