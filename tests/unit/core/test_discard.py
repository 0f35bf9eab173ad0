"""What a decision noted and nobody carried out is due again, once."""

from tests.support.core_log import CoreLog, end, half, message, producer

from halfmq.core.commands import AskNow, CarryForward, CommitOffset, EnsureGroup, SetProducer, Tick
from halfmq.core.decide import decide
from halfmq.core.decision import Asked, Decision, Done, SendCheck
from halfmq.core.digest import durable_digest
from halfmq.core.discard import discard
from halfmq.core.session import Polling
from halfmq.core.transaction.invariants import check
from halfmq.core.transaction.past_limit import note_left
from halfmq.model.records import Checked, OffsetsCommitted, RolledBack, SetAside
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings

SEGMENT = 65_536


def thrown_away(log: CoreLog, command: object) -> Decision:
    """Decide, and throw it away: nothing durable has changed, and state is sound."""
    before = durable_digest(log.state)
    decision = decide(log.state, command, log.now_ms)  # type: ignore[arg-type]
    assert decision.records
    discard(log.state, command, decision.records, decision.effects, log.now_ms)  # type: ignore[arg-type]
    assert durable_digest(log.state) == before
    check(log.state)
    return decision


def asked(effects: object) -> list[str]:
    return [effect.tx_id for effect in effects if isinstance(effect, SendCheck)]  # type: ignore[attr-defined]


def test_checks_that_were_not_logged_are_asked_again_and_no_more_than_before() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT, checks_in_flight_max=3))
    log.session(producer(1, log.now_ms))
    for number in range(5):
        log.do(half(f"T{number}"))
    log.later(10_000)
    first = thrown_away(log, Tick())
    assert asked(first.effects) == ["T0", "T1", "T2"]
    assert log.state.producer_groups["PG"].in_flight == {}
    assert sorted(asked(log.tick())) == ["T0", "T3", "T4"], "behind the others, and at most three are in flight"
    assert len(log.of(Checked)) == 3
    log.later(10_000)
    assert {*asked(log.tick())} >= {"T1", "T2"}


def test_what_a_connection_cut_short_keeps_its_back_off_behind_that() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT, check_interval_ms=60_000))
    log.session(producer(1, log.now_ms))
    log.do(half("T1"))
    assert len(log.checks_after(7_000)) == 1
    log.later(10_000)
    assert log.tick() == [], "the answer is overdue, the next check is not due"
    log.session(producer(2, log.now_ms))
    assert asked(thrown_away(log, Tick()).effects) == ["T1"]
    assert asked(log.tick()) == ["T1"]
    assert log.tick() == []


def test_a_policy_acts_where_its_act_was_thrown_away() -> None:
    for past_limit, kind in ((PastLimit.ROLLBACK, RolledBack), (PastLimit.SET_ASIDE, SetAside)):
        log = CoreLog()
        log.do(SetProducer(ProducerSettings("PG", check_limit=1, past_limit=past_limit)))
        log.session(producer(1, log.now_ms))
        log.do(half("T1"))
        assert len(log.checks_after(7_000)) == 1
        note_left(log.state.producer_groups["PG"], "T1", 1, log.now_ms, log.settings.check_answer_ms)
        log.later(60_000)
        assert isinstance(thrown_away(log, Tick()).records[0], kind)
        log.tick()
        assert len(log.of(kind)) == 1


def test_offsets_that_were_not_logged_are_logged_with_what_came_since() -> None:
    log = CoreLog()
    log.do(message("M1"))
    log.do(EnsureGroup("CG"))
    log.do(CommitOffset("CG", "orders", 0, 0))
    log.do(CommitOffset("CG", "orders", 1, 0))
    for queue, offset in ((0, 1), (1, 2)):
        log.do(CommitOffset("CG", "orders", queue, offset))
    log.later(5_000)
    thrown_away(log, Tick())
    log.do(CommitOffset("CG", "orders", 1, 3))
    log.tick()
    assert sorted(log.of(OffsetsCommitted)[-1].entries) == [("CG", 1, 0, 1), ("CG", 1, 1, 3)]


def test_a_first_offset_that_was_not_logged_is_not_known() -> None:
    log = CoreLog()
    log.do(message("M1"))
    log.do(EnsureGroup("CG"))
    command = CommitOffset("CG", "orders", 0, 1)
    thrown_away(log, command)
    assert not any(log.state.fresh_offsets.values())
    assert log.do(command) == Done()
    assert len(log.of(OffsetsCommitted)) == 1


def test_an_operator_may_ask_again_and_nobody_is_asked_by_itself_for_it() -> None:
    log = CoreLog()
    log.session(producer(1, log.now_ms))
    log.do(half("T1"))
    assert len(log.checks_after(7_000)) == 1
    log.later(log.settings.check_answer_ms)
    before = dict(log.state.asking)
    command = AskNow("PG", "T1", None)
    thrown_away(log, command)
    assert log.state.asking == before
    assert isinstance(log.do(command), Asked)


def test_a_fetcher_that_was_to_be_served_may_come_again() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.later(7_000)
    log.session(Polling(1, "f", "PG", 10))
    assert asked(thrown_away(log, Tick()).effects) == ["T1"]
    assert log.tick() == []
    log.session(Polling(1, "f", "PG", 10))
    assert asked(log.tick()) == ["T1"]


def test_what_was_taken_for_carried_is_carried_by_the_next_step() -> None:
    log = CoreLog()
    for number in range(4):
        log.do(half(f"T{number}"))
    log.roll()
    command = CarryForward(SEGMENT, 3)
    first = thrown_away(log, command)
    assert len(first.records) == 3
    assert decide(log.state, command, log.now_ms).records == first.records


def test_a_verdict_leaves_nothing_to_take_back() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    command = end("T1", reply)
    assert thrown_away(log, command) == decide(log.state, command, log.now_ms)
