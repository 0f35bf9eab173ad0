"""When who is asked about which transaction."""

from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.support.core_log import START_MS, CoreLog, end, half, part, producer
from tests.support.invariants import check
from tests.support.looked import Looked
from tests.support.parts_of_a_tick import checks_of_a_tick

from halfmq import limits
from halfmq.core.commands import CheckNotSent, CheckNow, RequestedVerdict, Tick
from halfmq.core.decision import Asked, Done, Refused, SendCheck, Settled, Why
from halfmq.core.engine import next_deadline_ms
from halfmq.core.session import ConnectionClosed, Polling
from halfmq.core.transaction import check_schedule
from halfmq.core.transaction.check_schedule import backoff_ms, due_sooner, next_check_ms
from halfmq.model.records import Checked, checked_size
from halfmq.model.settings import BrokerSettings


def with_producer(*connections: int, **settings: int) -> CoreLog:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, **settings))
    for connection in connections or (1,):
        log.session(producer(connection, log.now_ms))
    return log


def checks(effects: list[object]) -> list[SendCheck]:
    return [effect for effect in effects if isinstance(effect, SendCheck)]


def test_nothing_is_asked_before_the_immunity_is_over() -> None:
    log = with_producer()
    reply = log.do(half("T1"))
    assert log.checks_after(5_999) == []
    (asked,) = checks(log.run_to(START_MS + 6_100))
    assert log.of(Checked)[0].next_check_at_ms - backoff_ms(log.settings, "T1", 1) >= START_MS + 6_000
    assert asked == SendCheck(1, "PG", "T1", reply.queue_offset, reply.log_offset, reply.log_offset, 1)


def test_a_message_says_its_own_immunity() -> None:
    log = with_producer()
    log.do(half("T1", CHECK_IMMUNITY_TIME_IN_SECONDS="60"))
    log.do(half("T2", CHECK_IMMUNITY_TIME_IN_SECONDS="1"))
    assert [asked.tx_id for asked in log.checks_after(2_000)] == ["T2"]
    assert "T1" not in {asked.tx_id for asked in checks(log.run_to(START_MS + 59_999))}
    assert "T1" in {asked.tx_id for asked in checks(log.run_to(START_MS + 60_100))}


def test_each_further_message_of_a_transaction_moves_the_immunity_on() -> None:
    log = with_producer()
    log.do(part("T1", 0))
    log.later(5_000)
    log.do(part("T1", 1, count=2))
    assert log.checks_after(5_999) == []
    assert len(log.checks_after(100)) == 1


@pytest.mark.parametrize(
    ("settings", "intervals"),
    [
        ({}, [5_000, 10_000, 20_000, 40_000, 60_000, 60_000, 60_000]),
        ({"check_interval_ms": 400, "check_answer_ms": 5_000}, [400, 800, 1_600, 3_200, 6_400, 12_800]),
    ],
    ids=["as usual", "shorter than the wait for answers"],
)
def test_checks_are_counted_from_one_and_back_off(settings: dict[str, int], intervals: list[int]) -> None:
    """Each check is answered UNKNOWN after 50 ms."""
    log = with_producer(**settings)
    reply = log.do(half("T1"))
    times = []
    for number in range(1, len(intervals) + 2):
        deadline = next_deadline_ms(log.state)
        assert deadline is not None
        (asked,) = checks(log.run_to(deadline))
        assert asked.checks == number
        times.append(log.now_ms)
        log.later(50)
        log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
        check(log.state)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for gap, low in zip(gaps, intervals, strict=True):
        assert low <= gap <= low * 1.25 + 100, gaps


def test_one_check_is_in_flight_until_it_is_answered_or_overdue() -> None:
    log = with_producer(check_interval_ms=1_000, check_answer_ms=5_000)
    reply = log.do(half("T1"))
    assert len(log.checks_after(6_100)) == 1
    assert log.checks_after(4_900) == [], "the back-off is over, the answer is not overdue"
    assert len(log.checks_after(200)) == 1
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    assert not log.state.producer_groups["PG"].session.in_flight


def test_a_reconnecting_producer_cuts_the_back_off_short() -> None:
    log = with_producer()
    reply = log.do(half("T1"))
    assert len(log.checks_after(6_100)) == 1
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    assert log.checks_after(100) == []
    log.session(ConnectionClosed(1))
    log.session(producer(2, log.now_ms))
    assert next_deadline_ms(log.state) == 0
    assert [asked.connection for asked in log.tick() if isinstance(asked, SendCheck)] == [2]


def test_a_reconnecting_producer_never_cuts_the_immunity_short() -> None:
    log = with_producer()
    log.do(half("T1"))
    log.later(1_000)
    log.session(producer(2, log.now_ms))
    assert checks(log.tick()) == []
    assert checks(log.run_to(START_MS + 5_999)) == []
    assert len(checks(log.run_to(START_MS + 6_100))) == 1


def test_a_reconnect_asks_nothing_twice_while_an_answer_may_come() -> None:
    log = with_producer()
    log.do(half("T1"))
    assert len(log.checks_after(6_100)) == 1
    log.session(producer(2, log.now_ms))
    log.session(producer(3, log.now_ms))
    assert checks(log.tick()) == []


def test_a_heartbeat_of_a_known_connection_is_no_reconnection() -> None:
    log = with_producer()
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    log.session(producer(1, log.now_ms))
    assert checks(log.tick()) == []


def test_without_a_live_producer_nothing_is_asked_or_counted_and_nothing_is_dropped() -> None:
    log = CoreLog()
    log.do(half("T1"))
    assert log.checks_after(3_600_000) == []
    assert not log.of(Checked)
    assert next_deadline_ms(log.state) is None, "no timer spins while nobody can be asked"
    log.session(producer(7, log.now_ms))
    (asked,) = log.checks_after(0)
    assert (asked.connection, asked.checks) == (7, 1)


def test_a_check_that_reached_nobody_is_not_counted_and_another_member_is_asked() -> None:
    log = with_producer(1, 2)
    log.do(half("T1"))
    (first,) = log.checks_after(6_100)
    log.session(ConnectionClosed(first.connection))
    log.do(CheckNotSent("PG", "T1", first.connection))
    assert log.do(CheckNotSent("Nobody", "T1", 1)) == Done()
    (second,) = log.checks_after(100)
    assert second.connection != first.connection
    assert (first.checks, second.checks) == (1, 1)
    check(log.state)


def test_a_check_that_reached_nobody_waits_for_a_producer_when_there_is_no_other() -> None:
    log = with_producer(1)
    log.do(half("T1"))
    (asked,) = log.checks_after(6_100)
    log.do(CheckNotSent("PG", "T1", asked.connection))
    assert log.state.producer_groups["PG"].undecided["T1"].checks == 0
    assert log.checks_after(100_000) == []
    assert next_deadline_ms(log.state) is None
    log.session(producer(asked.connection, log.now_ms))
    assert [again.checks for again in log.checks_after(0)] == [1]


def test_who_was_asked_meanwhile_is_not_blamed_for_the_one_before() -> None:
    """1 is asked, and gone before the frame leaves; 2 is asked and gets it; then the news about 1 arrives."""
    log = with_producer(1, 2)
    log.do(half("T1"))
    (first,) = log.checks_after(6_100)
    log.session(ConnectionClosed(first.connection))
    (second,) = log.checks_after(0)
    assert second.connection != first.connection
    log.do(CheckNotSent("PG", "T1", first.connection))
    group = log.state.producer_groups["PG"]
    assert second.connection in group.session.members
    assert group.session.in_flight["T1"].connection == second.connection
    assert group.undecided["T1"].checks == 1, "the one that left"
    assert log.checks_after(100) == []
    check(log.state)


def test_a_half_that_cannot_be_read_is_not_counted_and_no_fault_of_the_producer() -> None:
    log = with_producer(1)
    log.do(half("T1"))
    (asked,) = log.checks_after(6_100)
    due_ms = log.state.producer_groups["PG"].undecided["T1"].next_check
    log.do(CheckNotSent("PG", "T1", asked.connection, unreadable=True))
    group = log.state.producer_groups["PG"]
    assert asked.connection in group.session.members
    assert (group.undecided["T1"].checks, group.undecided["T1"].next_check) == (0, due_ms)
    log.do(half("T2"))
    assert [check.tx_id for check in log.checks_after(6_100)][-1] == "T2"
    check(log.state)


def test_members_take_turns() -> None:
    log = with_producer(1, 2, 3)
    for number in range(9):
        log.do(half(f"T{number}"))
    log.later(6_100)
    decision = log.decide(Tick())
    assert decision.reply == Done(again=False)
    asked = [effect.connection for effect in checks(list(decision.effects))]
    assert sorted(asked) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_groups_do_not_take_each_others_turns() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, checks_in_flight_max=2))
    log.session(producer(1, log.now_ms, "A"))
    log.session(producer(2, log.now_ms, "B"))
    for number in range(5):
        log.do(half(f"A{number}", group="A"))
        log.do(half(f"B{number}", group="B"))
    asked = log.checks_after(6_100)
    assert sorted(effect.group for effect in asked) == ["A", "A", "B", "B"]
    assert {effect.connection for effect in asked if effect.group == "A"} == {1}


def test_after_a_restart_the_schedule_goes_on_where_it_was() -> None:
    log = with_producer()
    log.do(half("T1"))
    log.checks_after(6_100)
    due = log.state.producer_groups["PG"].undecided["T1"].next_check
    log.restart()
    assert next_deadline_ms(log.state) == (due + 63) // 64 * 64
    log.session(producer(4, log.now_ms))
    assert [asked.checks for asked in log.checks_after(0)] == [2], "its producer is new to this run: asked at once"


@pytest.mark.parametrize("wanted", [RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK])
def test_a_verdict_ends_checks_and_frees_the_budget(wanted: RequestedVerdict) -> None:
    log = with_producer(checks_in_flight_max=1)
    replies = [log.do(half(f"T{number}")) for number in range(2)]
    (asked,) = log.checks_after(6_100)
    other = 1 - int(asked.tx_id[1])
    assert isinstance(log.do(end(asked.tx_id, replies[1 - other], wanted, from_check=True)), Settled)
    assert [effect.tx_id for effect in log.checks_after(0)] == [f"T{other}"]


# --- exactly -----------------------------------------------------------------------------------------------------


def test_the_interval_doubles_up_to_the_longest_and_jitter_is_at_most_a_quarter() -> None:
    settings = BrokerSettings(check_interval_ms=1_000, check_interval_max_ms=5_000)
    for number, interval in enumerate([1_000, 2_000, 4_000, 5_000, 5_000], 1):
        spans = [backoff_ms(settings, f"T{tx}", number) for tx in range(4_000)]
        assert min(spans) == interval
        assert max(spans) == interval + interval // 4
    assert backoff_ms(settings, "T1", 1) != backoff_ms(settings, "T1", 1_000) - 4_000


def test_only_the_check_that_reached_nobody_is_taken_back() -> None:
    log = with_producer(1, 2)
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    (second,) = log.checks_after(7_000)
    assert second.checks == 2
    assert log.do(CheckNotSent("PG", "T1", second.connection)) == Done()
    known = log.state.producer_groups["PG"].undecided["T1"]
    assert (known.checks, known.next_check) == (1, log.now_ms)
    assert second.connection not in log.state.producer_groups["PG"].session.members
    record = log.of(Checked)[-1]
    assert (record.group, record.tx_id, record.half_index, record.checks) == ("PG", "T1", reply.queue_offset, 1)


def test_a_check_record_says_number_half_and_when_the_next_is_due() -> None:
    log = with_producer(check_interval_ms=10_000, check_answer_ms=4_000)
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    (record,) = log.of(Checked)
    assert (record.half_index, record.checks) == (reply.queue_offset, 1)
    assert record.next_check_at_ms == log.now_ms + backoff_ms(log.settings, "T1", 1)
    assert log.state.producer_groups["PG"].session.in_flight == {"T1": (log.now_ms + 4_000, 1)}


def test_asking_now_names_whom_and_counts() -> None:
    log = with_producer(1)
    reply = log.do(half("T1"))
    log.later(6_000)
    decision = log.decide(CheckNow("PG", "T1"))
    assert decision.reply == Asked("client-1", 1)
    assert decision.effects == (SendCheck(1, "PG", "T1", reply.queue_offset, reply.log_offset, reply.log_offset, 1),)
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    assert log.do(CheckNow("PG", "T1")) == Asked("client-1", 2)


def test_why_nobody_is_asked_now_is_said() -> None:
    log = with_producer(1)
    reply = log.do(half("T1"))
    ask = CheckNow("PG", "T1")
    log.later(1_000)

    def said() -> str:
        reply = log.do(ask)
        assert isinstance(reply, Refused)
        assert reply.why is Why.NOT_NOW
        return reply.text

    immune = "transaction 'T1' is in its grace period for another {} ms: its local transaction may still be running"
    assert said() == immune.format(5_000)
    log.later(4_999)
    assert said() == immune.format(1)
    log.later(1)
    log.do(ask)
    log.later(1_000)
    asked = "transaction 'T1' already has a check in flight, which is overdue in {} ms"
    assert said() == asked.format(4_000)
    log.later(3_999)
    assert said() == asked.format(1)
    log.later(1)
    assert log.do(ask) == Asked("client-1", 2), "overdue"
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    log.session(ConnectionClosed(1))
    assert said() == "transaction 'T1' cannot be checked: no producer of group 'PG' is connected"


def test_asking_about_what_is_not_undecided_says_how_it_stands() -> None:
    log = with_producer(1)
    ask = CheckNow("PG", "T1")
    missing = Refused(Why.NOT_FOUND, "transaction 'T1' is not undecided, and not among the recent verdicts")
    assert log.do(ask) == missing
    assert log.do(ask._replace(group="Nobody")) == missing
    settled = log.do(end("T1", log.do(half("T1"))))
    text = "transaction 'T1' is already COMMITTED"
    assert log.do(ask) == Refused(Why.ALREADY_SETTLED, text, "COMMITTED", settled.position)


def test_groups_are_asked_when_the_first_of_them_has_room_or_something_due() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, checks_in_flight_max=1, check_interval_ms=60_000))
    log.session(producer(1, log.now_ms, "A"))
    log.session(producer(2, log.now_ms, "B"))
    for number in range(3):
        log.do(half(f"A{number}", group="A"))
    log.checks_after(6_100)
    log.later(1_000)
    log.do(half("B0", group="B"))
    log.do(half("B1", group="B"))
    assert next_check_ms(log.state) == log.now_ms + 4_000, "when the answer about the first is overdue"
    assert [asked.group for asked in log.checks_after(4_000)] == ["A"]
    assert [asked.group for asked in log.checks_after(2_100)] == ["B"]
    assert next_check_ms(log.state) == log.now_ms + 2_900, "the one about A is overdue before the one about B"


def test_a_group_without_anybody_does_not_hide_one_that_has_somebody() -> None:
    log = CoreLog()
    for name in ("A", "B"):
        log.do(half(f"{name}0", group=name))
    log.later(6_100)
    assert log.tick() == []
    assert not log.state.session.asking
    assert next_check_ms(log.state) is None
    log.session(producer(2, log.now_ms, "B"))
    assert next_check_ms(log.state) == 0
    assert [asked.group for asked in checks(log.tick())] == ["B"]


def test_an_answer_brings_nothing_forward_where_the_interval_is_as_long_as_the_wait() -> None:
    log = with_producer(check_interval_ms=5_000, check_answer_ms=5_000)
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    log.later(50)
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    assert len(log.of(Checked)) == 1


def test_an_answer_brings_the_next_check_to_its_interval_but_not_into_the_past() -> None:
    for answered_after_ms in (50, 3_000):
        log = with_producer(check_interval_ms=400, check_answer_ms=5_000)
        reply = log.do(half("T1"))
        log.checks_after(6_100)
        asked_ms = log.now_ms
        log.later(answered_after_ms)
        log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
        _, record = log.of(Checked)
        assert record.next_check_at_ms == max(asked_ms + backoff_ms(log.settings, "T1", 1), log.now_ms)
        assert (record.group, record.tx_id, record.half_index, record.checks) == ("PG", "T1", reply.queue_offset, 1)


def test_an_answer_does_not_cut_the_immunity_that_a_further_message_began() -> None:
    log = with_producer(check_interval_ms=400, check_answer_ms=20_000)
    first = log.do(part("T1", 0))
    log.checks_after(6_100)
    log.do(part("T1", 1))
    grace_until_ms = log.now_ms + 6_000
    log.later(1_000)
    log.do(end("T1", first, RequestedVerdict.UNKNOWN, from_check=True))
    assert log.of(Checked)[-1].next_check_at_ms == grace_until_ms
    check(log.state)


def test_who_was_never_asked_has_no_interval_to_come_forward_to() -> None:
    log = with_producer(check_interval_ms=400, check_answer_ms=5_000)
    log.do(half("T1"))
    known = log.state.producer_groups["PG"].undecided["T1"]
    assert due_sooner(log.state, known, log.now_ms) == ()
    assert due_sooner(log.state, replace(known, next_check=log.now_ms + 60_000), log.now_ms) == ()


def test_who_connects_at_the_very_end_of_the_immunity_is_asked_at_once() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.later(5_999)
    log.session(producer(1, log.now_ms))
    assert log.tick() == []
    log.later(1)
    log.session(producer(2, log.now_ms))
    assert [asked.tx_id for asked in checks(log.tick())] == ["T1"]


def test_what_was_settled_before_its_turn_does_not_hold_up_the_next_one() -> None:
    log = CoreLog()
    replies = [log.do(half(f"T{number}")) for number in range(2)]
    log.later(6_100)
    assert log.tick() == [], "both are due, and nobody is there"
    log.do(end("T0", replies[0]))
    log.session(producer(1, log.now_ms))
    assert [one.tx_id for one in log.decide(Tick()).effects if isinstance(one, SendCheck)] == ["T1"]


def test_one_tick_sends_exactly_as_many_checks_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_schedule, "CHECKS_PER_TICK_MAX", 2)
    log = with_producer()
    for number in range(5):
        log.do(half(f"T{number}"))
    log.later(6_100)
    sent = [checks_of_a_tick(log.state, 1 << 20, log.now_ms) for _ in range(3)]
    assert [(len(effects), more) for _, effects, more in sent] == [(2, True), (2, True), (1, False)]


def test_one_tick_looks_at_exactly_as_many_entries_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_schedule, "EXAMINED_PER_TICK_MAX", 3)
    log = with_producer()
    log.do(half("T1"))
    group = log.state.producer_groups["PG"]
    group.session.due.extend(["settled"] * 5)
    log.state.session.asking["PG"] = None
    for left, more in ((2, True), (0, False)):
        assert checks_of_a_tick(log.state, 1 << 20, log.now_ms) == ([], [], more)
        assert (len(group.session.due), "PG" in log.state.session.asking) == (left, more)


def test_checks_are_sent_while_there_is_room_for_the_longest_record() -> None:
    size = checked_size("PG", "T0")
    for room, sent in ((511, 0), (512, 1), (511 + size, 1), (512 + size, 2)):
        log = with_producer()
        for number in range(5):
            log.do(half(f"T{number}"))
        log.later(6_100)
        records, effects, more = checks_of_a_tick(log.state, room, log.now_ms)
        assert (len(records), len(effects), more) == (sent, sent, True), room
    assert checked_size("g" * limits.GROUP_CHARS_MAX, "t" * limits.TRANSACTION_ID_CHARS_MAX) <= 512


def test_only_the_first_unknown_answers_the_check() -> None:
    log = with_producer(check_interval_ms=400, check_answer_ms=5_000)
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    for _ in range(3):
        log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
        log.later(50)
    assert len(log.of(Checked)) == 2, "the one that was sent, and the one that its answer brought forward"


def many_without_anybody(count: int, **settings: int) -> CoreLog:
    """So many groups with a transaction whose check is due, and nobody to ask; then one more group, ``Live``."""
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20, **settings))
    for number in range(count):
        log.do(half(f"T{number}", group=f"G{number:04d}"))
    log.do(half("T", group="Live"))
    return log


def looked_at(log: CoreLog) -> Looked:
    looked = Looked(log.state.producer_groups)
    log.state.producer_groups = looked
    return looked


@pytest.mark.parametrize("restarted", [False, True])
def test_groups_that_are_due_and_have_nobody_cost_nothing_from_turn_to_turn(restarted: bool) -> None:
    log = many_without_anybody(500)
    log.later(7_000)
    if restarted:
        log.restart()
    log.tick()
    looked = looked_at(log)
    for _ in range(10):
        assert next_deadline_ms(log.state) is None
        log.tick()
    log.session(producer(1, log.now_ms, "Live"))
    assert [asked.tx_id for asked in checks(log.tick())] == ["T"]
    assert next_deadline_ms(log.state) is not None
    assert set(looked.names) == {"Live"}
    check(log.state)


def test_a_group_that_waited_for_somebody_is_asked_when_somebody_comes_or_polls() -> None:
    log = many_without_anybody(3)
    log.later(7_000)
    log.tick()
    log.session(producer(1, log.now_ms, "G0001"))
    assert [asked.tx_id for asked in checks(log.tick())] == ["T1"]
    log.session(Polling(2, "client-2", "G0002", 4))
    assert [asked.tx_id for asked in checks(log.tick())] == ["T2"]
    log.session(ConnectionClosed(1))
    log.session(producer(3, log.now_ms, "G0001"))
    assert [asked.connection for asked in checks(log.tick())] == [3]
    check(log.state)


def test_one_tick_moves_a_bounded_number_of_due_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_schedule, "DEADLINES_PER_TICK_MAX", 10)
    log = many_without_anybody(35)
    log.session(producer(1, log.now_ms, "Live"))
    log.later(7_000)
    ticks = 0
    while True:
        looked = looked_at(log)
        ticks += 1
        if log.do(Tick()) == Done(again=False):
            break
        assert len(looked.names) <= 20
    assert ticks == 4
    assert [asked.tx_id for asked in checks(log.effects)] == ["T"]


def test_one_tick_takes_up_a_bounded_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_schedule, "GROUPS_PER_TICK_MAX", 10)
    log = many_without_anybody(35)
    log.later(7_000)
    log.tick()
    for number in range(35):
        log.session(producer(1, log.now_ms, f"G{number:04d}"))
    asked = []
    while True:
        before = len(log.effects)
        again = log.do(Tick()) == Done(again=True)
        asked.append(len(checks(log.effects[before:])))
        if not again:
            break
    assert asked == [10, 10, 10, 5]


def test_a_group_with_as_many_checks_in_flight_as_may_be_waits_for_an_answer_and_not_in_every_turn() -> None:
    log = with_producer(checks_in_flight_max=2)
    replies = {f"T{number}": log.do(half(f"T{number}")) for number in range(5)}
    assert len(log.checks_after(7_000)) == 2
    assert not log.state.session.asking
    assert log.state.producer_groups["PG"].session.full_until_ms == log.now_ms + 5_000
    first = checks(log.effects)[0].tx_id
    log.do(end(first, replies[first], RequestedVerdict.ROLLBACK))
    assert next_check_ms(log.state) == 0, "an answer makes room at once"
    assert len(checks(log.tick())) == 1
    second = checks(log.effects)[1].tx_id
    log.do(end(second, replies[second], RequestedVerdict.UNKNOWN, from_check=True))
    assert len(checks(log.tick())) == 1
    overdue = log.state.producer_groups["PG"].session.full_until_ms
    assert [at for at, _ in log.state.derived.group_deadlines].count(overdue) == 1, "it waits once"
    assert [asked.tx_id for asked in log.checks_after(5_000)] == ["T4"], "overdue is as good as answered"
    check(log.state)
