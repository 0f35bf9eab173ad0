"""Dropping old log: what is alive goes along, what is settled is forgotten, and redo of the rest agrees."""

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, end, half, message, part, producer, refused
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq.core import copies
from halfmq.core.commands import CopyForward, RequestedVerdict, TrimLog
from halfmq.core.decide import decide
from halfmq.core.decision import Done, Settled, Why
from halfmq.core.transaction import retention
from halfmq.model.records import TRIM_SIZE, CopiedDelayed, CopiedHalf, Trim, copied_delayed_size, copied_half_size

SEGMENT = 65_536


def next_bytes(log: CoreLog, command: CopyForward) -> int:
    """Size of the records of the next step."""
    first = retention.trim_started(log.state, command, log.now_ms)
    if first is not None:
        log.session(first)
    return sum(record.size for record in decide(log.state, command, log.now_ms).records)


def trim(log: CoreLog, start: int) -> None:
    while log.do(CopyForward(start, 2)) == Done(again=True):
        pass
    assert log.do(TrimLog(start)) == Done()
    check(log.state)
    assert durable_digest(log.redone()) == durable_digest(log.state)


def test_an_undecided_half_outlives_its_segment_and_keeps_its_identity() -> None:
    log = CoreLog()
    reply = log.do(half("T1", body=b"kept", queue=2, TAGS="TagA", DELAY="1"))
    log.roll()
    trim(log, SEGMENT)
    assert not any(batch.offset < SEGMENT for batch in log.remaining())
    log.restart()
    assert log.do(half("T1", connection=5)) == reply, "sent again"
    assert isinstance(log.do(end("T1", reply)), Settled)
    log.run_to(log.now_ms + 2_000)
    assert log.state.topics_by_name["orders"].ends == [0, 0, 1, 0]


def test_a_transaction_half_here_and_half_there_is_carried_whole() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0))
    log.roll()
    log.do(part("T1", 1))
    log.roll()
    last = log.do(part("T1", 2, count=3))
    trim(log, 2 * SEGMENT)
    assert len(log.of(CopiedHalf)) == 2
    log.restart()
    assert [half_.index for half_ in log.state.producer_groups["PG"].undecided["T1"].halves] == [0, 1, 2]
    assert isinstance(log.do(end("T1", last)), Settled)
    assert isinstance(log.do(end("T1", first)), Settled)


def test_checks_and_immunity_go_along() -> None:
    log = CoreLog()
    log.session(producer(1, log.now_ms))
    log.do(half("T1"))
    log.checks_after(6_100)
    before = log.state.producer_groups["PG"].undecided["T1"]
    log.roll()
    trim(log, SEGMENT)
    log.restart()
    after = log.state.producer_groups["PG"].undecided["T1"]
    assert replace(after, halves=before.halves) == before
    assert after.checks == 1


def test_a_trim_sets_the_queues_first_offsets_to_where_the_segment_began() -> None:
    log = CoreLog()
    for number in range(3):
        log.do(message(f"M{number}", queue=1))
    log.roll()
    log.do(message("M3", queue=1))
    log.do(message("N1", topic="later"))
    trim(log, SEGMENT)
    assert log.state.topics_by_name["orders"].mins == [0, 3, 0, 0]
    assert log.state.topics_by_name["orders"].ends == [0, 4, 0, 0]
    assert log.state.topics_by_name["later"].mins == [0, 0, 0, 0]
    log.restart()
    assert log.state.topics_by_name["orders"].mins == [0, 3, 0, 0]


def test_verdicts_below_the_new_start_are_forgotten_and_those_above_are_not() -> None:
    log = CoreLog()
    replies = [log.do(half(f"T{number}")) for number in range(2)]
    log.do(end("T0", replies[0]))
    log.roll()
    log.do(end("T1", replies[1], RequestedVerdict.ROLLBACK))
    trim(log, SEGMENT)
    refused(log.do(end("T0", replies[0])), Why.NOT_FOUND)
    answer = refused(log.do(end("T1", replies[1])), Why.VERDICT_CONFLICT)
    assert answer.standing == "ROLLED_BACK"


def test_what_is_settled_while_it_is_carried_stays_settled() -> None:
    log = CoreLog()
    replies = [log.do(half(f"T{number}")) for number in range(6)]
    log.roll()
    log.do(CopyForward(SEGMENT, 2))
    for number in (0, 3):
        log.do(end(f"T{number}", replies[number], RequestedVerdict.ROLLBACK))
    trim(log, SEGMENT)
    log.restart()
    assert sorted(log.state.producer_groups["PG"].undecided) == ["T1", "T2", "T4", "T5"]


def test_carrying_is_done_in_bounded_steps() -> None:
    log = CoreLog()
    for number in range(10):
        log.do(half(f"T{number}"))
    log.roll()
    assert log.do(CopyForward(SEGMENT, 4)) == Done(again=True)
    assert len(log.of(CopiedHalf)) == 4
    assert log.do(CopyForward(SEGMENT, 4)) == Done(again=True)
    assert log.do(CopyForward(SEGMENT, 4)) == Done(again=False)
    assert log.do(CopyForward(SEGMENT, 4)) == Done(again=False)
    assert len(log.of(CopiedHalf)) == 10


def test_looking_for_what_is_alive_is_done_in_bounded_steps_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a trim never scans all that is undecided in one turn. Method: most of it lies above; the scan at the end fails."""
    monkeypatch.setattr(retention, "EXAMINED_MAX", 10)
    log = CoreLog()
    log.do(half("old"))
    log.roll()
    for number in range(100):
        log.do(half(f"T{number}"))
    steps = 1
    while log.do(CopyForward(SEGMENT, 1_000)) == Done(again=True):
        steps += 1
        if steps == 3:
            log.do(half("meanwhile"))
    assert steps >= 4, "three times ten at most in each"
    assert len(log.of(CopiedHalf)) == 1
    monkeypatch.setattr(retention, "next", None, raising=False)  # by which it would look again
    assert log.do(TrimLog(SEGMENT)) == Done()
    assert log.state.log_start == SEGMENT
    check(log.state)


def test_a_step_logs_what_was_found_before_it_however_far_it_must_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whoever decides a step again carries the same. Method: what lies above the new start stands in front of what lies below, for
    several looks on end. A look that finds nothing logs nothing."""
    monkeypatch.setattr(retention, "EXAMINED_MAX", 10)
    log = CoreLog()
    log.do(half("first", group="A"))
    for number in range(12):
        log.do(half(f"B{number}", group="B", body=b"x" * 2_000))
    log.roll()
    for number in range(43):
        log.do(half(f"A{number}", group="A"))
    steps = []
    command = CopyForward(SEGMENT, 256)
    while True:
        size = next_bytes(log, command)
        assert size == next_bytes(log, command), "whoever asks again sees the same"
        before = len(log.of(CopiedHalf))
        again = log.do(command) == Done(again=True)
        steps.append((size > 0, len(log.of(CopiedHalf)) - before))
        if not again:
            break
    assert [carried for _, carried in steps] == [1, 0, 0, 0, 6, 6]
    assert all(said == (carried > 0) for said, carried in steps)
    trim(log, SEGMENT)


def test_a_carry_that_was_lost_is_looked_for_again() -> None:
    log = CoreLog()
    log.do(half("old"))
    log.roll()
    log.do(CopyForward(SEGMENT, 10))
    log.state.session.copy_progress = None
    assert log.do(CopyForward(SEGMENT, 10)) == Done(again=False)
    assert log.do(TrimLog(SEGMENT)) == Done()


def test_large_halves_are_carried_over_several_segments() -> None:
    log = CoreLog()
    replies = [log.do(half(f"T{number}", body=b"x" * 25_000)) for number in range(6)]
    log.roll()
    start = log.state.log_end // SEGMENT * SEGMENT
    trim(log, start)
    for number, reply in enumerate(replies):
        assert isinstance(log.do(end(f"T{number}", reply)), Settled)


def test_what_a_trim_is_refused_for_is_said() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    log.roll()
    for wrong in (SEGMENT + 8, 7 * SEGMENT):
        text = f"{wrong} is not the start of a segment of this log"
        assert refused(log.do(TrimLog(wrong)), Why.INVALID_PARAMETER).text == text
        assert refused(log.do(CopyForward(wrong, 1)), Why.INVALID_PARAMETER).text == text
    said = refused(log.do(TrimLog(SEGMENT)), Why.INVALID_PARAMETER).text
    assert said.startswith(
        f"below {SEGMENT} there is something alive, copy it forward first: Undecided(group='PG', tx_id='T1'"
    )
    log.do(message("M1", DELAY="5"))
    log.do(end("T1", reply, RequestedVerdict.ROLLBACK))
    log.roll()
    assert "something alive" in refused(log.do(TrimLog(2 * SEGMENT)), Why.INVALID_PARAMETER).text
    assert not log.of(Trim)
    del log.state.bases[SEGMENT]
    assert refused(log.do(TrimLog(SEGMENT)), Why.INVALID_PARAMETER).text == f"the segment at {SEGMENT} has no base"


def test_a_trim_is_one_record_that_says_the_new_start_and_none_when_nothing_moves() -> None:
    log = CoreLog()
    log.roll()
    log.roll()
    offset = log.state.log_end + 64
    assert log.do(TrimLog(SEGMENT)) == Done()
    assert log.of(Trim) == [Trim(offset, TRIM_SIZE, SEGMENT)]
    for start in (0, SEGMENT):
        assert log.do(TrimLog(start)) == Done()
    assert len(log.of(Trim)) == 1
    assert log.do(TrimLog(2 * SEGMENT)) == Done()
    assert log.state.log_start == 2 * SEGMENT


def test_a_trim_may_go_to_the_segment_that_is_written() -> None:
    log = CoreLog()
    log.do(message("M1"))
    log.roll()
    assert log.state.log_end < 2 * SEGMENT
    assert log.do(TrimLog(SEGMENT)) == Done()
    assert log.state.log_start == SEGMENT


def test_only_what_lies_below_the_new_start_is_carried() -> None:
    log = CoreLog()
    log.do(half("below"))
    log.do(message("D1", DELAY="5"))
    log.roll()
    log.do(half("above"))
    log.do(message("D2", DELAY="5"))
    trim(log, SEGMENT)
    assert [carried.tx_id for carried in log.of(CopiedHalf)] == ["below"]
    assert len(log.of(CopiedDelayed)) == 1
    assert {known.tx_id for known in log.state.producer_groups["PG"].undecided.values()} == {"below", "above"}


def test_a_step_carries_as_many_bytes_as_it_may_and_at_least_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CoreLog()
    for number in range(4):
        log.do(half(f"T{number}", body=b"x" * 1_000))
    size = copied_half_size(log.state.producer_groups["PG"].undecided["T0"].halves[0].message_bytes)
    log.roll()
    monkeypatch.setattr(copies, "COPY_BYTES_MAX", 2 * size)
    assert next_bytes(log, CopyForward(SEGMENT, 100)) == 2 * size
    assert log.do(CopyForward(SEGMENT, 100)) == Done(again=True)
    assert len(log.of(CopiedHalf)) == 2
    monkeypatch.setattr(copies, "COPY_BYTES_MAX", 2 * size - 1)
    assert log.do(CopyForward(SEGMENT, 100)) == Done(again=True)
    assert len(log.of(CopiedHalf)) == 3
    monkeypatch.setattr(copies, "COPY_BYTES_MAX", 1)
    assert next_bytes(log, CopyForward(SEGMENT, 100)) == size
    assert log.do(CopyForward(SEGMENT, 100)) == Done(again=False)
    assert len(log.of(CopiedHalf)) == 4
    assert next_bytes(log, CopyForward(SEGMENT, 100)) == 0


def test_what_was_settled_since_it_was_found_takes_no_room() -> None:
    log = CoreLog()
    replies = [log.do(half(f"T{number}")) for number in range(3)]
    log.do(message("D1", DELAY="5"))
    log.roll()
    log.do(CopyForward(SEGMENT, 1))
    log.do(end("T1", replies[1], RequestedVerdict.ROLLBACK))
    assert log.do(CopyForward(SEGMENT, 1)) == Done(again=True)
    assert [carried.tx_id for carried in log.of(CopiedHalf)] == ["T0", "T2"], "the step went on to the next"
    log.run_to(log.now_ms + 60_000)
    assert log.do(CopyForward(SEGMENT, 1)) == Done(again=False)
    assert len(log.of(CopiedDelayed)) == 1, "when it was shown, which was meanwhile"
    check(log.state)


def test_nothing_more_is_looked_at_while_something_found_waits_to_be_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EXAMINED_MAX", 1)
    log = CoreLog()
    for number in range(3):
        log.do(half(f"T{number}"))
    log.roll()
    carrying = retention.CopyProgress(log.state, SEGMENT)
    for _ in range(3):
        carrying.search()
        assert list(carrying.found) == [("PG", "T0", 0)]
    carrying.found.clear()
    carrying.search()
    assert (list(carrying.found), carrying.done) == ([("PG", "T1", 1)], False)


def test_a_step_takes_at_most_half_of_what_a_decision_may_log() -> None:
    log = CoreLog()
    assert log.state.record_bytes_max == SEGMENT // 2
    for number in range(4):
        log.do(half(f"T{number}", body=b"x" * 4_800))
    log.roll()
    assert next_bytes(log, CopyForward(SEGMENT, 100)) <= SEGMENT // 4
    assert log.do(CopyForward(SEGMENT, 100)) == Done(again=True)
    assert len(log.of(CopiedHalf)) == 3


def test_a_step_has_room_for_the_first_of_what_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPY_BYTES_MAX", 1)
    log = CoreLog()
    reply = log.do(half("T1", body=b"x" * 9_000))
    log.do(message("D1", DELAY="5", body=b"x" * 7_000))
    log.roll()
    (known,) = log.state.producer_groups["PG"].undecided.values()
    (delayed,) = log.state.delayed.values()
    command = CopyForward(SEGMENT, 1)
    assert next_bytes(log, command) == copied_half_size(known.halves[0].message_bytes)
    log.do(end("T1", reply, RequestedVerdict.ROLLBACK))
    assert next_bytes(log, command) == copied_delayed_size(delayed.message_bytes), "the next one"
    log.state.delayed.clear()
    assert next_bytes(log, command) == 0
