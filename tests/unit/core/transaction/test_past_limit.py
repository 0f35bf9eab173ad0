"""Who is past a limit is found once, in bounded steps, and without a timer that spins."""

from msgspec.structs import replace
from tests.support.core_log import CoreLog, half
from tests.support.invariants import check
from tests.support.looked import Looked

from halfmq.core.commands import SetProducer, Tick
from halfmq.core.events import ParkedResumed
from halfmq.core.session import apply_session
from halfmq.core.state import InFlight, Policy, ProducerGroup
from halfmq.core.transaction.check_schedule import next_check_ms
from halfmq.core.transaction.past_limit import (
    EXAMINED_MAX,
    examine_step,
    exceeded_limit,
    is_at_limit,
    is_in_flight,
    note_delivered,
)
from halfmq.model.records import Parked, ParkedBecause
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings


def aged(skip_age_ms: int = 60_000, limit: int = 0) -> tuple[CoreLog, ProducerGroup, Policy]:
    """A log whose group ``PG`` has a policy."""
    log = CoreLog(BrokerSettings(segment_bytes=65_536))
    past = PastLimit.ROLLBACK if limit else PastLimit.WAIT
    log.do(SetProducer(ProducerSettings("PG", limit, past, skip_age_ms)))
    group = log.state.producer_groups["PG"]
    assert group.policy is not None
    return log, group, group.policy


def delivered(log: CoreLog, group: ProducerGroup, tx_id: str, checks: int) -> None:
    """The check left at once."""
    group.session.in_flight[tx_id] = InFlight(log.now_ms + 5_000, 1)
    note_delivered(group, tx_id, checks, log.now_ms, 5_000)


def test_a_transaction_that_is_found_in_two_ways_gets_one_record() -> None:
    log, _, policy = aged(limit=1)
    log.do(half("T1"))
    log.later(70_000)
    policy.session.past["T1"] = None
    policy.session.scan_at_ms = 0
    assert len(log.decide(Tick()).records) == 1
    assert len(log.of(Parked)) == 1


def test_rounds_rest_so_that_many_old_ones_do_not_keep_the_broker_busy() -> None:
    log, _, policy = aged()
    for number in range(200):
        log.do(half(f"T{number}"))
        log.later(10)
    log.run_to(log.now_ms + 59_000)
    for _ in range(4):
        began_ms = policy.session.scan_at_ms
        log.run_to(began_ms)
        assert policy.session.scan_at_ms >= began_ms + 1_000
    assert len(log.of(Parked)) == 200
    check(log.state)


def test_one_step_looks_at_a_bounded_number_and_the_next_goes_on() -> None:
    log, group, policy = aged()
    log.do(half("T1"))
    known = group.undecided["T1"]
    for number in range(EXAMINED_MAX + 10):
        group.undecided[f"X{number}"] = replace(known, tx_id=f"X{number}")
    log.later(60_000)
    policy.session.scan_at_ms = 0
    examine_step(group, policy, log.now_ms)
    assert (len(policy.session.past), len(policy.session.scan)) == (EXAMINED_MAX, 11)
    assert next_check_ms(log.state) == 0
    examine_step(group, policy, log.now_ms)
    assert (len(policy.session.past), len(policy.session.scan)) == (EXAMINED_MAX + 11, 0)


def test_nothing_is_past_a_limit_inside_the_immunity_or_once_it_was_parked() -> None:
    log, group, policy = aged()
    log.do(half("T1", CHECK_IMMUNITY_TIME_IN_SECONDS="100"))
    known = group.undecided["T1"]
    assert exceeded_limit(policy, known, log.now_ms + 99_999) is None
    assert exceeded_limit(policy, known, log.now_ms + 100_000) is ParkedBecause.AGE
    log.run_to(log.now_ms + 100_000 + 2_000)
    assert exceeded_limit(policy, group.undecided["T1"], log.now_ms) is None


def test_the_limit_is_reached_by_exactly_that_many_checks_of_which_the_last_left() -> None:
    log, group, policy = aged(limit=3)
    log.do(half("T1"))
    known = group.undecided["T1"]
    assert not is_at_limit(None, known)
    for checks, left, reached in ((2, 2, False), (3, 2, False), (3, 3, True), (4, 3, False), (4, 4, True)):
        policy.session.last_check_delivered = {"T1": left}
        assert is_at_limit(policy, replace(known, checks=checks)) is reached, (checks, left)
    policy.session.last_check_delivered = {}
    assert not is_at_limit(policy, replace(known, checks=3))
    policy.session.last_check_delivered = {"T1": 0}
    policy.settings = ProducerSettings("PG")
    assert not is_at_limit(policy, known), "no limit is not a limit of 0"


def test_a_check_that_is_overdue_is_asked_no_more() -> None:
    log, group, _ = aged()
    group.session.in_flight["T1"] = InFlight(log.now_ms + 10, 1)
    assert is_in_flight(group, "T1", log.now_ms + 9)
    assert not is_in_flight(group, "T1", log.now_ms + 10)
    assert not is_in_flight(group, "T2", log.now_ms)


def test_past_the_check_limit_is_who_is_due_again_and_past_the_age_who_is_exactly_that_old() -> None:
    log, group, policy = aged(limit=1)
    log.do(half("T1"))
    policy.session.last_check_delivered = {"T1": 1}
    known = replace(group.undecided["T1"], checks=1, next_check=log.now_ms + 9_000)
    assert exceeded_limit(policy, known, log.now_ms + 8_999) is None
    assert exceeded_limit(policy, known, log.now_ms + 9_000) is ParkedBecause.CHECKS
    young = replace(known, checks=0)
    assert exceeded_limit(policy, young, log.now_ms + 59_999) is None
    assert exceeded_limit(policy, young, log.now_ms + 60_000) is ParkedBecause.AGE


def test_a_check_counts_as_the_last_one_while_half_of_the_time_to_answer_is_left() -> None:
    log, group, policy = aged(limit=2)
    for late_ms, counts in ((0, True), (2_500, True), (2_501, False)):
        policy.session.last_check_delivered = {}
        group.session.in_flight["T1"] = InFlight(log.now_ms + 5_000, 1)
        note_delivered(group, "T1", 2, log.now_ms + late_ms, 5_000)
        assert (policy.session.last_check_delivered == {"T1": 2}) is counts, late_ms
    policy.session.last_check_delivered = {}
    note_delivered(group, "T1", 1, log.now_ms, 5_000)
    assert policy.session.last_check_delivered == {}, "one more is allowed"
    note_delivered(group, "T1", 3, log.now_ms, 5_000)
    assert policy.session.last_check_delivered == {"T1": 3}, "as is one that an operator asked for"


def test_who_is_undecided_keeps_the_check_that_left_however_many_are_swept_out() -> None:
    log, group, policy = aged(limit=2)
    log.do(half("kept"))
    for name in ("kept", *(f"T{number}" for number in range(1_025))):
        delivered(log, group, name, 2)
    assert len(policy.session.last_check_delivered) == 1_026, "1,024 and two for each that is undecided"
    delivered(log, group, "last", 2)
    assert policy.session.last_check_delivered == {"kept": 2}


def test_a_check_that_nobody_asked_or_that_left_late_is_not_remembered() -> None:
    log, group, policy = aged(limit=2)
    note_delivered(group, "never asked", 2, log.now_ms, 5_000)
    group.session.in_flight["late"] = InFlight(log.now_ms + 2_000, 1)
    note_delivered(group, "late", 2, log.now_ms, 5_000)
    assert policy.session.last_check_delivered == {}


def test_a_round_rests_for_a_part_of_the_age_within_bounds() -> None:
    for age_ms, rest_ms in ((60_000, 1_000), (64_000, 1_000), (640_000, 10_000), (3_840_000, 60_000), (10**9, 60_000)):
        log, group, policy = aged(age_ms)
        log.do(half("T1"))
        log.later(age_ms - 1)
        policy.session.scan_at_ms = 0
        examine_step(group, policy, log.now_ms)
        assert not policy.session.past
        assert policy.session.scan_at_ms == log.now_ms + rest_ms, age_ms


def test_the_next_round_begins_when_the_next_one_is_old_enough() -> None:
    log, group, policy = aged(600_000)
    began_ms = log.now_ms
    log.do(half("T1"))
    log.later(1_000)
    log.do(half("T2", CHECK_IMMUNITY_TIME_IN_SECONDS="700"))
    policy.session.scan_at_ms = log.now_ms
    log.tick()
    assert policy.session.scan_at_ms == began_ms + 600_000
    assert (policy.session.scan_at_ms, "PG") in log.state.derived.group_deadlines
    log.now_ms = began_ms + 600_000 - 1
    examine_step(group, policy, log.now_ms)
    assert not policy.session.past
    log.now_ms += 1
    examine_step(group, policy, log.now_ms)
    assert policy.session.past == {"T1": None}
    policy.session.past.clear()
    del group.undecided["T1"]
    assert policy.session.scan_at_ms == began_ms + 1_000 + 700_000, "T2 is immune for longer than that"


def test_the_soonest_round_of_all_groups_is_the_next() -> None:
    log, *_ = aged()
    log.do(SetProducer(ProducerSettings("Q", 0, PastLimit.WAIT, 60_000)))
    log.do(SetProducer(ProducerSettings("R", 0, PastLimit.WAIT, 60_000)))
    assert next_check_ms(log.state) == 0, "each is looked at once it is there"
    began_ms = log.now_ms
    log.tick()
    for name, in_ms in (("PG", 700), ("Q", 500), ("R", 600)):
        apply_session(log.state, ParkedResumed(name, began_ms + in_ms))
    assert next_check_ms(log.state) == began_ms + 500
    log.later(500)
    log.tick()
    assert next_check_ms(log.state) == began_ms + 600
    log.do(SetProducer(ProducerSettings("R")))
    assert next_check_ms(log.state) == began_ms + 700, "without a policy nobody looks"
    check(log.state)


def test_a_tick_looks_only_at_policies_whose_round_has_come() -> None:
    """However many groups have a policy: what each turn asks is known without a look at them."""
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20))
    for number in range(300):
        log.do(SetProducer(ProducerSettings(f"G{number:03d}", skip_age_ms=60_000)))
    log.tick()
    apply_session(log.state, ParkedResumed("G007", log.now_ms + 100))
    log.later(100)
    seen = Looked(log.state.producer_groups)
    log.state.producer_groups = seen
    assert next_check_ms(log.state) == log.now_ms
    log.tick()
    assert next_check_ms(log.state) is not None
    assert set(seen.names) <= {"G007", log.state.derived.group_deadlines[0][1]}
    check(log.state)


def test_without_a_check_limit_nobody_remembers_which_checks_left() -> None:
    log, group, policy = aged()
    delivered(log, group, "T1", 1)
    assert policy.session.last_check_delivered == {}


def test_a_check_limit_alone_looks_for_no_age_and_runs_no_timer() -> None:
    log, *_ = aged(0, limit=3)
    log.do(half("T1"))
    log.tick()
    (bucket,) = log.state.producer_groups["PG"].derived.scheduled
    assert log.state.derived.group_deadlines == [(bucket, "PG")], "only for the check"
    log.later(3_600_000)
    log.tick()
    assert next_check_ms(log.state) is None


def test_what_was_settled_meanwhile_does_not_hold_up_the_round() -> None:
    log, group, policy = aged()
    log.do(half("T1"))
    log.later(60_000)
    policy.session.scan.extend(["settled", "T1"])
    examine_step(group, policy, log.now_ms)
    assert (list(policy.session.scan), policy.session.past) == ([], {"T1": None})


def test_a_policy_that_is_taken_away_before_it_was_looked_at_leaves_nothing_to_do() -> None:
    """It was the last one: a timer that nobody answers would fire for ever."""
    log, *_ = aged()
    assert next_check_ms(log.state) == 0
    log.do(SetProducer(ProducerSettings("PG")))
    assert next_check_ms(log.state) is None
    check(log.state)
