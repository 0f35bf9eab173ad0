"""Limits and policy of a producer group: opt-in, recorded, never a guess that nobody allowed."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, end, half, part, producer, refused, sent
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check
from tests.support.parts_of_a_tick import policies_of_a_tick

from halfmq import limits
from halfmq.core.base import base_payload
from halfmq.core.commands import (
    CheckNotSent,
    CheckNow,
    CheckParked,
    CopyForward,
    RequestedVerdict,
    SetProducer,
    Tick,
    TrimLog,
)
from halfmq.core.decision import (
    Asked,
    Done,
    ParkedChecked,
    PolicyActed,
    ProducerSettingsStored,
    SendCheck,
    Settled,
    Why,
)
from halfmq.core.engine import next_deadline_ms
from halfmq.core.events import ParkedResumed
from halfmq.core.session import CheckDelivered, ConnectionClosed, PollEnded, Polling, apply_session
from halfmq.core.snapshot import load_rows
from halfmq.core.state import next_offset
from halfmq.core.transaction import past_limit
from halfmq.core.transaction import policy as policy_module
from halfmq.core.transaction.listing import group_stats, oldest_undecided
from halfmq.core.transaction.story import story
from halfmq.model.records import (
    Checked,
    Committed,
    DecidedBy,
    Parked,
    ParkedBecause,
    ProducerSet,
    RolledBack,
    parked_size,
)
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings

ROLLBACK, ASIDE = PastLimit.ROLLBACK, PastLimit.PARKED
DAY_MS = 86_400_000


def with_policy(limit: int = 0, past: PastLimit = PastLimit.WAIT, *, connected: bool = True, **more: Any) -> CoreLog:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, check_interval_ms=1_000))
    assert log.do(SetProducer(ProducerSettings("PG", limit, past, **more, set_by="ada"))) == ProducerSettingsStored(
        ProducerSettings("PG", limit, past, **more, set_by="ada")
    )
    if connected:
        log.session(producer(1, log.now_ms))
    return log


def run(log: CoreLog, ms: int, *, answer: bool = True, leaves: bool = True) -> list[Any]:
    """Broker time goes on by ``ms``; each check leaves at once and is answered UNKNOWN. The effects."""
    until_ms = log.now_ms + ms
    effects: list[Any] = []
    while log.now_ms < until_ms:
        deadline = next_deadline_ms(log.state)  # nothing happens before it
        found = log.run_to(min(until_ms, max(log.now_ms + 50, until_ms if deadline is None else deadline)))
        for effect in found:
            if isinstance(effect, SendCheck):
                if leaves:
                    log.session(CheckDelivered(effect.group, effect.tx_id, effect.checks, log.now_ms))
                if answer:
                    known = log.state.producer_groups[effect.group].undecided[effect.tx_id]
                    first = known.halves[0]
                    log.do(
                        end(
                            effect.tx_id, None, RequestedVerdict.UNKNOWN, group=effect.group, from_check=True,
                            half_index=first.half_index, log_offset=first.first_offset,
                        )
                    )  # fmt: skip
        effects += found
        check(log.state)
    return effects


def asked(effects: list[Any]) -> list[int]:
    return [effect.checks for effect in effects if isinstance(effect, SendCheck)]


def test_without_a_policy_asking_goes_on_for_ever() -> None:
    log = CoreLog()
    log.session(producer(1, log.now_ms))
    log.do(half("T1"))
    effects = run(log, 3_600_000)
    assert len(asked(effects)) > 50
    assert not log.of(RolledBack)
    assert not log.of(Parked)


@pytest.mark.parametrize("answers", [True, False])
def test_after_as_many_checks_as_it_says_the_policy_rolls_back_and_the_record_says_so(answers: bool) -> None:
    log = with_policy(3, ROLLBACK)
    log.do(half("T1"))
    effects = run(log, 120_000, answer=answers)
    assert asked(effects) == [1, 2, 3]
    (record,) = log.of(RolledBack)
    assert (record.tx_id, record.decided_by, record.half_indexes) == ("T1", DecidedBy.POLICY, (0,))
    assert [effect for effect in effects if isinstance(effect, PolicyActed)] == [
        PolicyActed("PG", "T1", ParkedBecause.CHECKS, 3, True)
    ]
    assert "decided by the policy of its producer group" in " ".join(story(log.state, "PG", "T1", log.now_ms))
    assert durable_digest(log.redone()) == durable_digest(log.state)
    assert durable_digest(load_rows(log.settings, log.snapshot())) == durable_digest(log.state)


def test_a_verdict_before_the_last_check_is_overdue_wins() -> None:
    log = with_policy(1, ROLLBACK)
    reply = sent(log.do(half("T1")))
    assert asked(run(log, 6_200, answer=False)) == [1]
    log.later(4_000)
    assert isinstance(log.do(end("T1", reply, from_check=True)), Settled)
    run(log, 60_000)
    assert not log.of(RolledBack)
    assert len(log.of(Committed)) == 1


def test_a_check_that_left_in_an_earlier_round_says_nothing_about_one_of_the_same_number() -> None:
    """Parked after one check, taken up again, and now the disk holds the check up: nobody was asked this time."""
    log = with_policy(1, ASIDE)
    log.do(half("T1"))
    assert asked(run(log, 60_000)) == [1]
    log.do(SetProducer(ProducerSettings("PG", 1, ROLLBACK, set_by="ada")))
    assert log.do(CheckNow("PG", "T1")) == Asked("client-1", 1)
    run(log, 60_000, answer=False, leaves=False)
    assert not log.of(RolledBack)
    assert asked(run(log, 600_000)), "it is asked once more, and this one leaves"
    assert len(log.of(RolledBack)) == 1


@pytest.mark.parametrize("past", [ROLLBACK, ASIDE])
def test_whom_an_operator_lets_ask_is_asked_before_the_policy_acts_also_where_checks_are_fetched(
    past: PastLimit,
) -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536))
    log.do(SetProducer(ProducerSettings("PG", 2, past)))
    log.do(half("T1"))
    sent_checks: list[SendCheck] = []
    while len(sent_checks) < 2:
        log.session(Polling(7, "fetcher", "PG", 10))
        sent_checks += [one for one in run(log, 100, answer=False) if isinstance(one, SendCheck)]
    log.session(PollEnded(7, "PG"))
    log.later(5_100)  # the answer to the last one is overdue, the next is not due
    then = "rolled back" if past is ROLLBACK else "parked"
    assert f" s it is {then}." in story(log.state, "PG", "T1", log.now_ms)[-1]
    assert log.do(CheckNow("PG", "T1")) == Asked("", 3)
    run(log, 300_000)
    assert not [*log.of(RolledBack), *log.of(Parked)]
    log.session(Polling(7, "fetcher", "PG", 10))
    assert asked(run(log, 1_000, answer=False)) == [3]
    run(log, 300_000)
    assert len([*log.of(RolledBack), *log.of(Parked)]) == 1


def test_what_is_not_named_stays_as_it_stands_when_the_change_is_decided() -> None:
    log = with_policy(3, ROLLBACK)
    reply = log.do(SetProducer(ProducerSettings("PG", undecided_max=500, set_by="bob"), ("undecided_max",)))
    stands = ProducerSettings("PG", 3, ROLLBACK, undecided_max=500, set_by="bob")
    assert reply == ProducerSettingsStored(stands)
    assert log.state.producer_settings["PG"] == stands


def test_what_was_parked_is_asked_no_more_and_stays_undecided_and_can_be_settled() -> None:
    log = with_policy(2, ASIDE)
    reply = sent(log.do(half("T1")))
    effects = run(log, 3_600_000)
    assert asked(effects) == [1, 2]
    (record,) = log.of(Parked)
    assert (record.group, record.tx_id, record.half_index, record.checks) == ("PG", "T1", reply.queue_offset, 2)
    assert (record.decided_by, record.because) == (DecidedBy.POLICY, ParkedBecause.CHECKS)
    acted = [effect for effect in effects if isinstance(effect, PolicyActed)]
    assert acted == [PolicyActed("PG", "T1", ParkedBecause.CHECKS, 2, False)]
    assert log.state.producer_groups["PG"].undecided["T1"].parked is ParkedBecause.CHECKS
    told = " ".join(story(log.state, "PG", "T1", log.now_ms))
    assert "The policy of group PG parked it because it had 2 checks" in told
    (listed,) = oldest_undecided(log.state, "", 10, log.now_ms)[1]
    assert (listed.parked, listed.next_check_in_ms) == ("checks", 0)
    (stats,) = group_stats(log.state, "PG", log.now_ms)
    assert (stats.undecided, stats.parked, stats.check_limit, stats.past_limit) == (1, 1, 2, "set-aside")
    log.session(ConnectionClosed(1))
    log.session(producer(2, log.now_ms))
    assert asked(run(log, 60_000)) == [], "a reconnection is no reason either"
    log.tick()
    assert next_deadline_ms(log.state) is None, "no timer runs for it"
    assert isinstance(log.do(end("T1", reply)), Settled)
    assert group_stats(log.state, "PG", log.now_ms)[0].parked == 0


def test_what_was_parked_survives_restart_snapshot_and_trim() -> None:
    log = with_policy(1, ASIDE)
    reply = sent(log.do(half("T1")))
    run(log, 30_000)
    assert len(log.of(Parked)) == 1
    assert durable_digest(load_rows(log.settings, log.snapshot())) == durable_digest(log.state)
    log.roll()
    log.roll()
    start = 65_536
    while log.do(CopyForward(start, 16)) != Done(again=False):
        pass
    assert log.do(TrimLog(start)) == Done()
    assert durable_digest(log.redone()) == durable_digest(log.state)
    log.restart()
    log.session(producer(9, log.now_ms))
    assert asked(run(log, 120_000)) == []
    assert (log.state.producer_settings["PG"].check_limit, log.state.producer_settings["PG"].set_by) == (1, "ada")
    assert isinstance(log.do(end("T1", reply)), Settled)


def test_checks_that_reach_nobody_do_not_count() -> None:
    log = with_policy(2, ROLLBACK)
    log.do(half("T1"))
    for connection in range(2, 12):
        (effect,) = [one for one in log.run_to(log.now_ms + 6_100) if isinstance(one, SendCheck)][:1]
        log.session(ConnectionClosed(effect.connection))
        log.do(CheckNotSent("PG", "T1", effect.connection))
        log.session(producer(connection, log.now_ms))
    assert not log.of(RolledBack)


def test_a_last_check_that_did_not_leave_in_time_is_sent_again_before_the_policy_acts() -> None:
    """A disk that stalls holds checks back: the question must have been heard before its silence means something."""
    log = with_policy(2, ROLLBACK)
    log.do(half("T1"))
    effects = run(log, 60_000, answer=False, leaves=False)
    assert asked(effects)[:4] == [1, 2, 3, 4]
    assert not log.of(RolledBack)
    run(log, 160_000, answer=False)
    assert [record.decided_by for record in log.of(RolledBack)] == [DecidedBy.POLICY]


def test_after_a_restart_at_the_limit_it_is_asked_once_more_and_only_if_somebody_hears_it() -> None:
    log = with_policy(2, ROLLBACK)
    log.do(half("T1"))
    assert asked(run(log, 8_200)) == [1, 2]
    log.restart()
    run(log, 3_600_000)
    assert not log.of(RolledBack), "nobody was there to be asked"
    log.session(producer(5, log.now_ms))
    assert asked(run(log, 60_000)) == [3]
    assert len(log.of(RolledBack)) == 1


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_limit_is_reached_also_when_the_producer_left_after_the_last_check_or_came_again(comes_again: bool) -> None:
    log = with_policy(2, ROLLBACK)
    log.do(half("T1"))
    assert asked(run(log, 8_300)) == [1, 2]
    log.session(ConnectionClosed(1))
    if comes_again:
        log.session(producer(2, log.now_ms))
    assert asked(run(log, 60_000)) == [], "no reason for one more"
    assert len(log.of(RolledBack)) == 1


def test_no_policy_acts_inside_the_immunity() -> None:
    """RocketMQ #8311: there the count rises while a half is immune, and it is thrown away unasked."""
    log = with_policy(1, ROLLBACK, skip_age_ms=60_000)
    log.do(half("T1", CHECK_IMMUNITY_TIME_IN_SECONDS="600"))
    assert run(log, 599_000) == []
    assert not log.of(RolledBack)
    assert not log.of(Parked)
    run(log, 10_000)
    assert len(log.of(Parked)) + len(log.of(RolledBack)) == 1


@pytest.mark.parametrize(("connected", "answers"), [(True, True), (True, False), (False, False)])
def test_age_sets_aside_and_never_rolls_back(connected: bool, answers: bool) -> None:
    log = with_policy(skip_age_ms=60_000, connected=connected)
    log.do(half("T1"))
    log.later(30_000)
    log.do(half("T2"))
    run(log, 29_000, answer=answers)
    assert not log.of(Parked)
    run(log, 8_000, answer=answers)
    assert [(record.tx_id, record.because, record.decided_by) for record in log.of(Parked)] == [("T1", 2, 5)]
    assert "because of its age" in " ".join(story(log.state, "PG", "T1", log.now_ms))
    assert oldest_undecided(log.state, "", 10, log.now_ms)[1][0].parked == "age"
    run(log, 30_000, answer=answers)
    assert [record.tx_id for record in log.of(Parked)] == ["T1", "T2"]
    assert not log.of(RolledBack)


def test_a_policy_of_one_group_is_none_of_another() -> None:
    log = with_policy(1, ROLLBACK, skip_age_ms=60_000)
    log.session(producer(2, log.now_ms, "other"))
    log.do(half("T1", group="other"))
    assert len(asked(run(log, 600_000))) > 5
    assert not log.of(RolledBack)
    assert not log.of(Parked)


def test_a_new_policy_looks_at_what_is_undecided_already() -> None:
    log = with_policy(5, ASIDE)
    log.do(half("T1"))
    assert len(asked(run(log, 40_000))) >= 3
    log.do(SetProducer(ProducerSettings("PG", 2, ROLLBACK)))
    run(log, 200_000)
    assert len(log.of(RolledBack)) == 1


def test_without_its_policy_a_group_waits_again_and_nothing_at_the_limit_is_lost() -> None:
    log = with_policy(1, ROLLBACK)
    log.do(half("T1"))
    assert asked(run(log, 6_200)) == [1]
    log.later(10_000)
    log.do(SetProducer(ProducerSettings("PG")))
    check(log.state)
    assert log.state.producer_settings == {}
    assert len(asked(run(log, 60_000))) >= 2
    assert not log.of(RolledBack)


def test_what_waits_for_the_policy_is_not_lost_when_the_policy_goes() -> None:
    log = with_policy(1, ROLLBACK)
    log.do(half("T1"))
    run(log, 6_200)
    group = log.state.producer_groups["PG"]
    assert group.policy is not None
    tx = group.undecided["T1"]
    log.later(20_000)
    # As a tick that had no room left it: due, past the limit, not yet settled.
    group.derived.scheduled.clear()
    group.policy.session.past[tx.tx_id] = None
    log.do(SetProducer(ProducerSettings("PG", undecided_max=7)))
    check(log.state)
    assert list(group.session.due) == ["T1"]


def test_another_policy_does_not_forget_that_the_last_check_was_heard() -> None:
    log = with_policy(2, ASIDE)
    log.do(half("T1"))
    assert asked(run(log, 8_300)) == [1, 2]
    log.do(SetProducer(ProducerSettings("PG", 2, ROLLBACK)))
    assert asked(run(log, 60_000)) == []
    assert len(log.of(RolledBack)) == 1


def test_what_an_operator_asks_about_is_not_parked_before_the_answer_is_overdue() -> None:
    log = with_policy(skip_age_ms=60_000)
    log.do(half("T1"))
    group = log.state.producer_groups["PG"]
    run(log, 50_000)
    log.later(20_000)
    assert isinstance(log.do(CheckNow("PG", "T1")), Asked)
    assert group.policy is not None
    group.policy.session.past["T1"] = None  # as a tick that had no room left it
    log.later(1_000)
    log.tick()
    assert not log.of(Parked)
    check(log.state)
    run(log, 80_000, answer=False)
    assert len(log.of(Parked)) == 1


def test_a_group_has_limits_of_its_own() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    log.do(SetProducer(ProducerSettings("PG", undecided_max=2)))
    log.do(SetProducer(ProducerSettings("none", undecided_max=0)))
    log.do(SetProducer(ProducerSettings("small", undecided_bytes_max=300)))
    for name in ("T1", "T2"):
        sent(log.do(half(name)))
    refused(log.do(half("T3")), Why.LIMIT_REACHED)
    refused(log.do(half("T1", group="none")), Why.NO_PERMISSION)
    refused(log.do(half("T1", group="small", body=b"x" * 300)), Why.LIMIT_REACHED)
    sent(log.do(half("T1", group="other")))
    refused(log.do(half("T2", group="other")), Why.LIMIT_REACHED)
    log.restart()
    refused(log.do(half("T3")), Why.LIMIT_REACHED)
    refused(log.do(half("T1", group="none")), Why.NO_PERMISSION)
    log.do(SetProducer(ProducerSettings("none")))
    sent(log.do(half("T1", group="none")))


def test_only_so_many_groups_have_settings_and_these_can_be_changed_and_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are durable and never forgotten: without a bound of their own they keep every new producer group out for good."""
    monkeypatch.setattr(limits, "PRODUCERS_SET_MAX", 2)
    log = CoreLog()
    for name in ("A", "B"):
        log.do(SetProducer(ProducerSettings(name, undecided_max=7)))
    log.restart()
    at = log.state.log_end
    assert "2 may" in refused(log.do(SetProducer(ProducerSettings("C", undecided_max=7))), Why.LIMIT_REACHED).text
    assert log.state.log_end == at
    assert isinstance(log.do(SetProducer(ProducerSettings("A", undecided_max=8))), ProducerSettingsStored)
    assert isinstance(log.do(SetProducer(ProducerSettings("A"))), ProducerSettingsStored)
    assert isinstance(log.do(SetProducer(ProducerSettings("C", undecided_max=7))), ProducerSettingsStored)
    assert sorted(log.state.producer_settings) == ["B", "C"]


def test_settings_stand_in_the_base_and_only_there_where_there_are_some() -> None:
    log = CoreLog()
    before = base_payload(log.state)
    log.do(SetProducer(ProducerSettings("PG", 3, ROLLBACK, DAY_MS, 5, 6, "ada")))
    assert base_payload(log.state).startswith(b"\x98")
    log.roll()
    alone = log.redone(log.batches[-1:])
    assert alone.producer_settings == {"PG": ProducerSettings("PG", 3, ROLLBACK, DAY_MS, 5, 6, "ada")}
    assert list(alone.derived.policies) == ["PG"]
    log.do(SetProducer(ProducerSettings("PG", set_by="ada")))
    assert base_payload(log.state) == before, "as the bases of stores that never had any"
    assert before.startswith(b"\x97")


# --- asked by hand -------------------------------------------------------------------------------------------------


def test_what_was_parked_is_taken_up_again_by_asking_and_counts_from_one() -> None:
    log = with_policy(2, ASIDE)
    log.do(half("T1"))
    run(log, 60_000)
    assert len(log.of(Parked)) == 1
    assert log.do(CheckNow("PG", "T1")) == Asked("client-1", 1)
    log.session(CheckDelivered("PG", "T1", 1, log.now_ms))
    assert not log.state.producer_groups["PG"].undecided["T1"].parked
    assert durable_digest(log.redone()) == durable_digest(log.state)
    assert asked(run(log, 60_000)) == [2]
    assert len(log.of(Parked)) == 2


def parked_by_age(*ids: str) -> CoreLog:
    """After three days; the next round would come a day later at the earliest."""
    log = with_policy(skip_age_ms=3 * DAY_MS, connected=False)
    for tx_id in ids:
        log.do(half(tx_id))
    run(log, 3 * DAY_MS + 60_000)
    assert len(log.of(Parked)) == len(ids)
    log.session(producer(1, log.now_ms))
    log.later(3_600_000)
    log.tick()
    return log


@pytest.mark.parametrize("answers", [True, False])
def test_what_was_parked_by_age_is_so_again_when_the_answer_is_overdue(answers: bool) -> None:
    log = parked_by_age("T1")
    assert log.do(CheckNow("PG", "T1")) == Asked("client-1", 1)
    run(log, 4_900, answer=answers)
    assert len(log.of(Parked)) == 1, "it may still be answered"
    assert asked(run(log, 2_000, answer=answers)) == []
    assert len(log.of(Parked)) == 2
    assert durable_digest(log.redone()) == durable_digest(log.state)


def test_each_that_is_taken_up_again_is_parked_when_its_own_answer_is_overdue() -> None:
    log = parked_by_age("T1", "T2", "T3")
    assert log.do(CheckParked("PG", 1)) == ParkedChecked(("T1",), 2)
    run(log, 3_000, answer=False)
    assert log.do(CheckParked("PG", 1)) == ParkedChecked(("T2",), 1)
    run(log, 1_000, answer=False)
    assert log.do(CheckParked("PG", 1)) == ParkedChecked(("T3",), 0)
    assert asked(run(log, 10_000, answer=False)) == []
    assert [record.tx_id for record in log.of(Parked)[3:]] == ["T1", "T2", "T3"]


def test_what_is_taken_up_again_and_reaches_nobody_is_parked_again() -> None:
    log = parked_by_age("T1")
    assert log.do(CheckNow("PG", "T1")) == Asked("client-1", 1)
    assert log.do(CheckNotSent("PG", "T1", 1)) == Done()
    run(log, 5_100)
    assert len(log.of(Parked)) == 2


def test_a_round_that_is_under_way_does_not_forget_what_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_limit, "EXAMINED_MAX", 1)
    log = parked_by_age("T1", "T2")
    policy = log.state.producer_groups["PG"].policy
    assert policy is not None
    apply_session(log.state, ParkedResumed("PG", log.now_ms))
    log.decide(Tick())
    assert list(policy.session.scan) == ["T2"], "it was past T1"
    assert log.do(CheckNow("PG", "T1")) == Asked("client-1", 1)
    assert log.do(CheckNotSent("PG", "T1", 1)) == Done()
    run(log, 62_000)
    assert [record.tx_id for record in log.of(Parked)[2:]] == ["T1"]


def test_a_record_about_a_transaction_that_redo_does_not_know_is_nothing() -> None:
    log = with_policy(1, ASIDE)
    log.do(part("T1", 0))
    run(log, 30_000)
    (record,) = log.of(Parked)
    other = CoreLog()
    other.engine.log([replace(record, offset=next_offset(other.state))], other.now_ms)
    assert not other.state.producer_groups


# --- exactly -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ProducerSettings("PG", -1, ROLLBACK), "a check limit of -1: 0 (none) to 1000000"),
        (ProducerSettings("PG", 1_000_001, ROLLBACK), "a check limit of 1000001: 0 (none) to 1000000"),
        (ProducerSettings("PG", 1_000_000, ROLLBACK), ""),
        (ProducerSettings("PG", 1, PastLimit.WAIT),
         "a check limit and what happens then (rollback or set-aside) are given together, or neither"),
        (ProducerSettings("PG", 0, ASIDE),
         "a check limit and what happens then (rollback or set-aside) are given together, or neither"),
        (ProducerSettings("PG", 0, PastLimit.WAIT, 59_999), "a skip age of 59999 ms: 0 (never), or 60000 to 9007199254740992 ms"),
        (ProducerSettings("PG", 0, PastLimit.WAIT, 60_000), ""),
        (ProducerSettings("PG", 0, PastLimit.WAIT, 1 << 53), ""),
        (ProducerSettings("PG", 0, PastLimit.WAIT, (1 << 53) + 1),
         "a skip age of 9007199254740993 ms: 0 (never), or 60000 to 9007199254740992 ms"),
        (ProducerSettings("PG", undecided_max=-2),
         "-2 undecided transactions: 0 (none may be prepared) to 9007199254740992, or -1 (as the broker's)"),
        (ProducerSettings("PG", undecided_max=-1, undecided_bytes_max=-1), ""),
        (ProducerSettings("PG", undecided_max=0, undecided_bytes_max=0), ""),
        (ProducerSettings("PG", undecided_max=1 << 53, undecided_bytes_max=1 << 53), ""),
        (ProducerSettings("PG", undecided_bytes_max=(1 << 53) + 1),
         "9007199254740993 bytes of undecided messages: 0 (none may be prepared) to 9007199254740992, or -1 (as the broker's)"),
        (ProducerSettings("PG", set_by="x" * limits.GROUP_CHARS_MAX), ""),
        (ProducerSettings("PG", set_by="x" * (limits.GROUP_CHARS_MAX + 1)),
         "who sets it has 121 characters, 120 are allowed"),
        (ProducerSettings("a b"),
         "producer group 'a b' is not a valid name (1 to 120 characters, letters, digits and %|_- only)"),
    ],
)  # fmt: skip
def test_what_may_be_set_ends_exactly_there(settings: ProducerSettings, says: str) -> None:
    log = CoreLog()
    reply = log.do(SetProducer(settings))
    assert (
        (reply == ProducerSettingsStored(settings))
        if not says
        else (refused(reply, Why.INVALID_PARAMETER).text == says)
    )
    assert not (says and log.of(ProducerSet))


def test_one_tick_acts_on_a_bounded_number_and_says_that_there_is_more() -> None:
    log = with_policy(skip_age_ms=60_000, connected=False)
    for number in range(257):
        log.do(half(f"T{number}", body=b""))
    log.later(61_000)
    first = log.decide(Tick())
    acted = [record for record in first.records if isinstance(record, Parked)]
    assert 0 < len(acted) <= 256
    assert first.reply == Done(again=True)
    log.tick()
    assert len(log.of(Parked)) == 257
    assert len({record.tx_id for record in log.of(Parked)}) == 257
    check(log.state)


def test_records_of_a_policy_stand_one_behind_the_other_within_the_room_that_there_is() -> None:
    log = with_policy(skip_age_ms=60_000, connected=False)
    for number in range(3):
        log.do(half(f"T{number}"))
    log.later(61_000)
    offset = log.state.log_end + 64
    size = parked_size("PG", "T0")
    records, effects, more = policies_of_a_tick(log.state, 2 * size, log.now_ms)
    assert [record.offset for record in records] == [offset, offset + size]
    assert ([effect.tx_id for effect in effects], more) == (["T0", "T1"], True)
    records, effects, more = policies_of_a_tick(log.state, size - 1, log.now_ms)
    assert (records, effects, more) == ([], [], True)
    records, effects, more = policies_of_a_tick(log.state, size, log.now_ms)
    assert ([effect.tx_id for effect in effects], more) == (["T2"], False)


def test_each_group_with_a_policy_has_its_turn() -> None:
    log = with_policy(skip_age_ms=60_000, connected=False)
    log.do(SetProducer(ProducerSettings("Q", 0, PastLimit.WAIT, 60_000)))
    log.do(half("T1"))
    log.do(half("T2", group="Q"))
    log.run_to(log.now_ms + 70_000)
    assert {(record.group, record.tx_id) for record in log.of(Parked)} == {("PG", "T1"), ("Q", "T2")}
    assert {record.because for record in log.of(Parked)} == {ParkedBecause.AGE}


def test_what_is_past_no_limit_any_more_is_asked_about_as_others_are() -> None:
    log = with_policy(3, ROLLBACK, connected=False)
    log.do(half("T1"))
    log.later(7_000)
    group = log.state.producer_groups["PG"]
    policy = group.policy
    assert policy is not None
    group.derived.scheduled.clear()
    policy.session.past["T1"] = None
    assert policies_of_a_tick(log.state, 4_096, log.now_ms) == ([], [], False)
    assert (list(group.session.due), dict(policy.session.past)) == (["T1"], {})
    assert not log.state.session.asking, "nobody is there to be asked"
    log.session(producer(1, log.now_ms))
    assert asked(log.tick()) == [1]


def test_asking_about_what_was_parked_counts_from_one_also_while_nobody_fetches() -> None:
    log = with_policy(2, ASIDE)
    log.do(half("T1"))
    run(log, 60_000)
    assert log.of(Parked)[0].checks == 2
    group = log.state.producer_groups["PG"]
    group.session.members.clear()
    group.session.pollers[7] = "poller-7"
    assert log.do(CheckNow("PG", "T1")) == Asked("", 1)
    assert (log.of(Checked)[-1].checks, log.of(Checked)[-1].next_check_at_ms) == (0, log.now_ms)


def test_a_round_that_is_not_done_is_said_whatever_the_groups_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_limit, "EXAMINED_MAX", 2)
    log = with_policy(skip_age_ms=60_000, connected=False)
    log.do(SetProducer(ProducerSettings("Q", 0, PastLimit.WAIT, 60_000)))
    for number in range(3):
        log.do(half(f"T{number}"))
    for policy in (log.state.producer_groups[name].policy for name in ("PG", "Q")):
        assert policy is not None
        policy.session.scan_at_ms = 0
    assert policies_of_a_tick(log.state, 4_096, log.now_ms) == ([], [], True)
    assert policies_of_a_tick(log.state, 4_096, log.now_ms) == ([], [], False)


def test_what_was_settled_meanwhile_does_not_hold_up_what_is_past_its_limit() -> None:
    log = with_policy(skip_age_ms=60_000, connected=False)
    log.do(half("T1"))
    log.later(60_000)
    policy = log.state.producer_groups["PG"].policy
    assert policy is not None
    policy.session.past = {"settled": None, "T1": None}
    records, _, more = policies_of_a_tick(log.state, 4_096, log.now_ms)
    assert ([record.tx_id for record in records], more) == (["T1"], False)  # type: ignore[union-attr]


def test_one_step_acts_on_exactly_as_many_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "ACTS_PER_TICK_MAX", 2)
    log = with_policy(skip_age_ms=60_000, connected=False)
    for number in range(3):
        log.do(half(f"T{number}"))
    log.later(61_000)
    assert [len(policies_of_a_tick(log.state, 4_096, log.now_ms)[0]) for _ in range(2)] == [2, 1]


def test_what_is_asked_about_in_the_tick_that_finds_it_too_old_is_parked_when_its_answer_is_overdue() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, check_interval_ms=300_000, check_interval_max_ms=600_000))
    log.do(half("T1"))
    log.later(70_000)
    log.tick()
    log.do(SetProducer(ProducerSettings("PG", skip_age_ms=60_000)))
    log.session(producer(1, log.now_ms))
    asked_ms = log.now_ms
    assert [check.tx_id for check in log.tick() if isinstance(check, SendCheck)] == ["T1"]
    log.run_to(asked_ms + log.settings.check_answer_ms + 10)
    assert len(log.of(Parked)) == 1
    log.session(producer(2, log.now_ms))
    assert not [check for check in log.tick() if isinstance(check, SendCheck)], "who was asked once is not asked again"


def test_a_policy_that_is_set_again_and_again_leaves_nothing_behind() -> None:
    log = CoreLog()
    for number in range(50):
        log.later(1_000)
        log.do(SetProducer(ProducerSettings("G", skip_age_ms=259_200_000 + number)))
        log.tick()
    assert len(log.state.derived.group_deadlines) == 1
