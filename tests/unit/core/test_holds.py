"""What a group that holds topics would lose by a trim follows from its offsets and from where queues ended at the start of a segment."""

from random import Random

from tests.support.core_log import CoreLog, end, half, message, refused

from halfmq.core.commands import (
    CommitOffset,
    CopyForward,
    DeleteTopic,
    EnsureGroup,
    SetGroup,
    SetTopic,
    TrimLog,
    Unread,
)
from halfmq.core.decision import Done, Why
from halfmq.core.holds import held_and_not_given_up, holding, unread_between
from halfmq.model.settings import BrokerSettings

SEGMENT = 1 << 16
NO_WINDOW = BrokerSettings(segment_bytes=SEGMENT, dedup_window_ms=0)


def lost(log: CoreLog, log_start: int) -> list[Unread]:
    return unread_between(log.state, holding(log.state), log.state.log_start, log_start)


def holding_log() -> CoreLog:
    """Group ``archive`` holds ``orders``, of which queue 0 has 3 messages in the first segment and 2 in the second."""
    log = CoreLog(NO_WINDOW)
    log.do(SetTopic("orders", 2, 2, 6))
    log.do(SetGroup("archive", hold_topics=("orders",)))
    for number in range(5):
        if number == 3:
            log.roll()
        log.do(message(f"M{number}"))
        log.do(message(f"S{number}", topic="stock"))
    log.roll()
    return log


def test_a_group_without_an_offset_holds_a_topic_from_its_first_message_on() -> None:
    log = holding_log()
    assert lost(log, SEGMENT) == [Unread("archive", "orders", 0, 0, 3)]
    assert lost(log, 2 * SEGMENT) == [Unread("archive", "orders", 0, 0, 5)]
    assert lost(log, 0) == []


def test_what_the_group_has_read_is_not_held() -> None:
    log = holding_log()
    log.do(CommitOffset("archive", "orders", 0, 2))
    assert lost(log, SEGMENT) == [Unread("archive", "orders", 0, 2, 3)]
    log.do(CommitOffset("archive", "orders", 0, 4))
    log.later(2_000)
    log.tick()
    assert lost(log, SEGMENT) == []
    assert lost(log, 2 * SEGMENT) == [Unread("archive", "orders", 0, 4, 5)]


def test_of_a_logged_and_a_newer_offset_the_lower_one_counts() -> None:
    """A crash forgets the newer one."""
    log = holding_log()
    log.do(CommitOffset("archive", "orders", 0, 1))
    log.do(CommitOffset("archive", "orders", 0, 3))
    assert lost(log, SEGMENT) == [Unread("archive", "orders", 0, 1, 3)]
    log.later(2_000)
    log.tick()
    assert lost(log, SEGMENT) == []
    log.do(CommitOffset("archive", "orders", 0, 2))
    assert lost(log, SEGMENT) == [Unread("archive", "orders", 0, 2, 3)], "reset, not logged yet"


def test_between_two_starts_only_what_is_between_them_counts() -> None:
    log = holding_log()
    assert unread_between(log.state, holding(log.state), SEGMENT, 2 * SEGMENT) == [Unread("archive", "orders", 0, 3, 5)]
    log.do(CopyForward(SEGMENT, 100))
    assert log.do(TrimLog(SEGMENT, tuple(lost(log, SEGMENT)))) == Done()
    assert lost(log, 2 * SEGMENT) == [Unread("archive", "orders", 0, 3, 5)]


def test_a_trim_is_refused_if_more_is_held_than_was_given_up() -> None:
    """After the decision of retention and before the trim, messages are copied forward, and commands come between."""
    log = holding_log()
    log.do(CopyForward(SEGMENT, 100))
    refused(log.do(TrimLog(SEGMENT)), Why.NOT_NOW)
    log.do(CommitOffset("archive", "orders", 0, 2))
    given_up = tuple(lost(log, SEGMENT))
    assert held_and_not_given_up(log.state, SEGMENT, given_up) is None
    log.do(SetGroup("audit", hold_topics=("stock",)))
    assert "'audit'" in refused(log.do(TrimLog(SEGMENT, given_up)), Why.NOT_NOW).text
    log.do(SetGroup("audit", hold_topics=()))
    log.do(CommitOffset("archive", "orders", 0, 1))
    assert "'archive'" in refused(log.do(TrimLog(SEGMENT, given_up)), Why.NOT_NOW).text
    log.do(CommitOffset("archive", "orders", 0, 3))
    log.later(2_000)
    log.tick()
    assert log.do(TrimLog(SEGMENT, given_up)) == Done(), "it has read them meanwhile"


def test_topics_that_do_not_exist_and_groups_without_a_hold_hold_nothing() -> None:
    log = holding_log()
    log.do(EnsureGroup("reader"))
    log.do(SetGroup("archive", hold_topics=("later",)))
    assert lost(log, 2 * SEGMENT) == []
    log.do(SetGroup("archive", hold_topics=("orders", "later")))
    log.do(DeleteTopic("orders"))
    log.do(SetTopic("orders", 2, 2, 6))
    assert lost(log, 2 * SEGMENT) == [], "another topic of the same name has no messages there"
    log.do(SetGroup("archive", hold_topics=()))
    assert holding(log.state) == []


def test_a_half_is_held_in_the_segment_where_its_commit_shows_it() -> None:
    """Its body was copied there, so the segment of its first record may go."""
    log = CoreLog(NO_WINDOW)
    log.do(SetTopic("orders", 1, 1, 6))
    log.do(SetGroup("archive", hold_topics=("orders",)))
    prepared = log.do(half("T1"))
    log.roll()
    log.do(end("T1", prepared))
    log.roll()
    assert lost(log, SEGMENT) == []
    assert lost(log, 2 * SEGMENT) == [Unread("archive", "orders", 0, 0, 1)]


def test_a_trim_that_loses_nothing_leaves_everything_unread_readable_also_after_a_restart() -> None:
    """Random sends, offsets, rolls, restarts; every start that a hold allows is tried. The oracle is the queue's own minimum."""
    rng = Random(20260)
    log = CoreLog(NO_WINDOW)
    log.do(SetTopic("orders", 2, 2, 6))
    log.do(SetGroup("archive", hold_topics=("orders",)))
    read, trims, waits = [0, 0], 0, 0
    for step in range(400):
        match rng.randrange(8):
            case 0:
                log.roll()
            case 1:
                queue = rng.randrange(2)
                read[queue] = rng.randint(read[queue], log.state.topics_by_name["orders"].ends[queue])
                log.do(CommitOffset("archive", "orders", queue, read[queue]))
                log.later(2_000)
                log.tick()
            case 2:
                log.restart()
            case _:
                log.do(message(f"M{step}", queue=rng.randrange(2)))
        for start in [start for start in log.state.bases if start > log.state.log_start]:
            if lost(log, start):
                waits += 1
                break
            log.do(CopyForward(start, 100))
            assert log.do(TrimLog(start)) == Done()
            trims += 1
            mins = log.state.topics_by_name["orders"].mins
            assert all(first <= at for first, at in zip(mins, read, strict=True))
    assert trims > 5
    assert waits > 20
