"""Who is past a limit is found once, in bounded steps, and without a timer that spins."""

from tests.support.core_log import CoreLog, half

from halfmq.core.commands import SetProducer, Tick
from halfmq.core.transaction.invariants import check
from halfmq.core.transaction.past_limit import LOOKED_AT_MAX, look_around, next_look_ms, note_left, why_past
from halfmq.model.records import AsideBecause, SetAside
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings


def aged(skip_age_ms: int = 60_000, limit: int = 0) -> CoreLog:
    log = CoreLog(BrokerSettings(segment_bytes=65_536))
    past = PastLimit.ROLLBACK if limit else PastLimit.WAIT
    log.do(SetProducer(ProducerSettings("PG", limit, past, skip_age_ms)))
    return log


def test_a_transaction_that_is_found_in_two_ways_gets_one_record() -> None:
    log = aged(limit=1)
    log.do(half("T1"))
    group = log.state.producer_groups["PG"]
    policy = group.policy
    assert policy is not None
    log.later(70_000)
    policy.past["T1"] = None
    policy.scan_at_ms = 0
    assert len(log.decide(Tick()).records) == 1
    assert len(log.of(SetAside)) == 1


def test_rounds_rest_so_that_many_old_ones_do_not_keep_the_broker_busy() -> None:
    log = aged()
    policy = log.state.producer_groups["PG"].policy
    assert policy is not None
    for number in range(200):
        log.do(half(f"T{number}"))
        log.later(10)
    log.run_to(log.now_ms + 59_000)
    for _ in range(4):
        began_ms = policy.scan_at_ms
        log.run_to(began_ms)
        assert policy.scan_at_ms >= began_ms + 1_000
    assert len(log.of(SetAside)) == 200
    check(log.state)


def test_one_step_looks_at_a_bounded_number_and_the_next_goes_on() -> None:
    log = aged()
    log.do(half("T1"))
    group = log.state.producer_groups["PG"]
    policy = group.policy
    assert policy is not None
    known = group.undecided["T1"]
    for number in range(LOOKED_AT_MAX + 10):
        group.undecided[f"X{number}"] = known._replace(tx_id=f"X{number}")
    log.later(60_000)
    policy.scan_at_ms = 0
    look_around(group, policy, log.now_ms)
    assert (len(policy.past), len(policy.scan)) == (LOOKED_AT_MAX, 11)
    assert next_look_ms(log.state) == 0
    look_around(group, policy, log.now_ms)
    assert (len(policy.past), len(policy.scan)) == (LOOKED_AT_MAX + 11, 0)


def test_nothing_is_past_a_limit_inside_the_immunity_or_once_it_was_set_aside() -> None:
    log = aged()
    log.do(half("T1", CHECK_IMMUNITY_TIME_IN_SECONDS="100"))
    group = log.state.producer_groups["PG"]
    assert group.policy is not None
    known = group.undecided["T1"]
    assert why_past(group.policy, known, log.now_ms + 99_999) is None
    assert why_past(group.policy, known, log.now_ms + 100_000) is AsideBecause.AGE
    log.run_to(log.now_ms + 100_000 + 2_000)
    assert why_past(group.policy, group.undecided["T1"], log.now_ms) is None


def test_checks_that_left_are_remembered_for_those_that_are_undecided() -> None:
    log = aged(limit=2)
    group = log.state.producer_groups["PG"]
    policy = group.policy
    assert policy is not None
    for number in range(3_000):
        group.in_flight[f"T{number}"] = (log.now_ms + 5_000, 1)
        note_left(group, f"T{number}", 2, log.now_ms, 5_000)
    assert len(policy.left) <= 1_100
    note_left(group, "T1", 1, log.now_ms, 5_000)
    note_left(group, "never asked", 2, log.now_ms, 5_000)
    group.in_flight["late"] = (log.now_ms + 2_000, 1)
    note_left(group, "late", 2, log.now_ms, 5_000)
    assert not {"never asked", "late"} & policy.left.keys()
