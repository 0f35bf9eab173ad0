"""Copies that are alive, by segment: what was copied and is not settled, shown or copied on. ``check`` counts them anew."""

from tests.support.core_log import CoreLog, end, half, message, part
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import CopyForward, RequestedVerdict, TrimLog
from halfmq.core.copies import may_copy_again
from halfmq.core.decision import Done, Settled

SEGMENT = 65_536


def copy_forward(log: CoreLog, start: int) -> None:
    while log.do(CopyForward(start, 3)) == Done(again=True):
        check(log.state)
    assert log.do(TrimLog(start)) == Done()
    check(log.state)


def copied(log: CoreLog) -> dict[int, int]:
    check(log.state)
    return log.state.derived.copied


def test_what_never_moved_is_no_copy() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.do(message("D1", DELAY="5"))
    assert copied(log) == {}


def test_copies_count_where_they_lie_and_leave_with_their_verdict() -> None:
    log = CoreLog()
    replies = [log.do(half(f"T{number}", body=b"x" * 1_000)) for number in range(4)]
    size = log.state.producer_groups["PG"].undecided["T0"].halves[0].message_bytes
    log.roll()
    copy_forward(log, SEGMENT)
    assert copied(log) == {SEGMENT: 4 * size}
    log.roll()
    copy_forward(log, 2 * SEGMENT)
    assert copied(log) == {2 * SEGMENT: 4 * size}, "copied on"
    assert isinstance(log.do(end("T0", replies[0])), Settled)
    assert isinstance(log.do(end("T1", replies[1], RequestedVerdict.ROLLBACK)), Settled)
    assert copied(log) == {2 * SEGMENT: 2 * size}
    log.roll()
    assert isinstance(log.do(end("T2", replies[2])), Settled)
    assert isinstance(log.do(end("T3", replies[3], RequestedVerdict.ROLLBACK)), Settled)
    assert copied(log) == {}


def test_delayed_messages_count_until_they_are_shown() -> None:
    log = CoreLog()
    log.do(message("D1", DELAY="5", body=b"x" * 500))
    (delayed,) = log.state.delayed.values()
    log.roll()
    copy_forward(log, SEGMENT)
    assert copied(log) == {SEGMENT: delayed.message_bytes}
    log.roll()
    copy_forward(log, 2 * SEGMENT)
    assert copied(log) == {2 * SEGMENT: delayed.message_bytes}
    log.run_to(log.now_ms + 100_000)
    assert copied(log) == {}


def test_a_half_that_was_copied_and_is_shown_later_counts_behind_its_commit_too() -> None:
    log = CoreLog()
    reply = log.do(half("T1", DELAY="5"))
    log.roll()
    assert isinstance(log.do(end("T1", reply)), Settled)
    (delayed,) = log.state.delayed.values()
    assert copied(log) == {SEGMENT: delayed.message_bytes}
    log.run_to(log.now_ms + 100_000)
    assert copied(log) == {}


def test_a_start_knows_them_from_the_log_and_from_a_snapshot() -> None:
    log = CoreLog()
    for index in range(3):
        log.do(part("T1", index))
    log.do(message("D1", DELAY="5"))
    log.roll()
    copy_forward(log, SEGMENT)
    before = dict(copied(log))
    assert before
    for state in (log.redone(), log.reloaded(log.snapshot())):
        assert state.derived.copied == before


def test_what_was_copied_lately_goes_along_where_it_is_the_smaller_part() -> None:
    assert may_copy_again(0, 0)
    assert may_copy_again(1_000, 1_000 * limits.COPY_AGAIN_PART)
    assert not may_copy_again(1_001, 1_000 * limits.COPY_AGAIN_PART)
