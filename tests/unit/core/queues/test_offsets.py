"""Consumer offsets: what is answered, and when they are logged."""

from tests.support.core_log import CoreLog, consumer, refused
from tests.support.looked import Looked

from halfmq.core.commands import CommitOffset, DeleteTopic, EnsureGroup, SetTopic
from halfmq.core.decision import Why
from halfmq.core.engine import next_deadline_ms
from halfmq.core.queues.offsets import NotStored, Stored, query_offset
from halfmq.core.session import LogOffsetsNow, Unregistered
from halfmq.model.records import OffsetsCommitted


def with_group(*groups: str) -> CoreLog:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    for group in groups or ("CG",):
        log.do(EnsureGroup(group))
    return log


def test_what_was_never_stored_is_not_found_also_in_a_young_queue() -> None:
    log = with_group()
    assert query_offset(log.state, "CG", "orders", 0) == NotStored()
    assert query_offset(log.state, "CG", "unknown", 0) == NotStored()
    assert query_offset(log.state, "Nobody", "orders", 0) == NotStored()


def test_the_first_offset_in_a_queue_is_logged_before_it_is_answered() -> None:
    """A group that began at the end would else begin there anew, behind what it was given in between."""
    log = with_group("A", "B")
    for group, queue_id in (("A", 0), ("A", 1), ("B", 0)):
        log.do(CommitOffset(group, "orders", queue_id, 7))
        assert log.of(OffsetsCommitted)[-1].entries == ((group, 1, queue_id, 7),)
        log.restart()
        assert query_offset(log.state, group, "orders", queue_id) == Stored(7)
    assert len(log.of(OffsetsCommitted)) == 3


def test_a_later_offset_is_told_at_once_and_logged_within_a_second() -> None:
    log = with_group()
    log.do(CommitOffset("CG", "orders", 0, 1))
    log.do(CommitOffset("CG", "orders", 0, 2))
    log.tick()
    log.do(CommitOffset("CG", "orders", 0, 7))
    log.tick()
    assert query_offset(log.state, "CG", "orders", 0) == Stored(7)
    assert log.state.offsets["CG"] == {(1, 0): 2}
    deadline_ms = next_deadline_ms(log.state)
    assert deadline_ms is not None
    assert log.now_ms < deadline_ms <= log.now_ms + 1_000
    log.later(1_000)
    log.tick()
    assert log.state.offsets["CG"] == {(1, 0): 7}


def test_offsets_are_logged_at_most_once_a_second_per_group() -> None:
    log = with_group()
    for at in range(50):
        log.do(CommitOffset("CG", "orders", at % 4, at))
        log.tick()
        log.later(100)
    assert 4 + 4 <= len(log.of(OffsetsCommitted)) <= 4 + 6  # the first of each queue by itself
    log.later(1_000)
    log.tick()
    assert log.state.offsets["CG"] == {(1, 0): 48, (1, 1): 49, (1, 2): 46, (1, 3): 47}
    assert next_deadline_ms(log.state) is None


def test_groups_that_are_due_together_share_a_record() -> None:
    log = with_group("A", "B")
    for offset in (0, 1):
        log.do(CommitOffset("A", "orders", 0, offset))
        log.do(CommitOffset("B", "orders", 0, offset))
    log.tick()
    assert set(log.of(OffsetsCommitted)[-1].entries) == {("A", 1, 0, 1), ("B", 1, 0, 1)}


def test_a_consumer_that_leaves_has_its_offsets_logged_at_once() -> None:
    log = with_group()
    log.session(consumer(1, log.now_ms))
    for offset in (0, 1, 2):
        log.do(CommitOffset("CG", "orders", 0, offset))
        log.tick()
    assert len(log.of(OffsetsCommitted)) == 2
    log.session(Unregistered(1, "client-1", "", "CG"))
    log.tick()
    assert log.of(OffsetsCommitted)[2].entries == (("CG", 1, 0, 2),)


def test_a_drain_logs_everything() -> None:
    log = with_group("A", "B")
    for group in "AB":
        log.do(CommitOffset(group, "orders", 0, 1))
    log.tick()
    for group in "AB":
        log.do(CommitOffset(group, "orders", 0, 2))
    log.session(LogOffsetsNow())
    log.tick()
    log.restart()
    assert [query_offset(log.state, group, "orders", 0) for group in "AB"] == [Stored(2), Stored(2)]


def test_an_offset_may_be_set_back() -> None:
    log = with_group()
    log.do(CommitOffset("CG", "orders", 0, 50))
    log.tick()
    log.do(CommitOffset("CG", "orders", 0, 3))
    assert query_offset(log.state, "CG", "orders", 0) == Stored(3)
    log.later(1_000)
    log.tick()
    log.restart()
    assert query_offset(log.state, "CG", "orders", 0) == Stored(3)


def test_an_offset_goes_back_to_the_logged_one_while_a_newer_one_is_not_logged() -> None:
    log = with_group()
    for offset in (3, 50, 3):
        log.do(CommitOffset("CG", "orders", 0, offset))
    assert query_offset(log.state, "CG", "orders", 0) == Stored(3)
    log.later(1_000)
    log.tick()
    log.restart()
    assert query_offset(log.state, "CG", "orders", 0) == Stored(3)


def test_the_same_offset_again_is_not_logged_again() -> None:
    log = with_group()
    log.do(CommitOffset("CG", "orders", 0, 5))
    log.tick()
    log.later(5_000)
    log.do(CommitOffset("CG", "orders", 0, 5))
    log.tick()
    assert len(log.of(OffsetsCommitted)) == 1


def test_offsets_of_what_does_not_exist_are_refused() -> None:
    log = with_group()
    refused(log.do(CommitOffset("CG", "unknown", 0, 1)), Why.TOPIC_NOT_EXIST)
    refused(log.do(CommitOffset("Nobody", "orders", 0, 1)), Why.GROUP_NOT_EXIST)
    refused(log.do(CommitOffset("CG", "orders", 4, 1)), Why.INVALID_PARAMETER)
    refused(log.do(CommitOffset("CG", "orders", 0, -1)), Why.INVALID_PARAMETER)


def test_offsets_go_with_their_topic_and_do_not_come_back_with_its_name() -> None:
    log = with_group()
    log.do(CommitOffset("CG", "orders", 0, 5))
    log.tick()
    log.do(CommitOffset("CG", "orders", 1, 6))
    log.do(DeleteTopic("orders"))
    log.do(SetTopic("orders", 4, 4, 6))
    log.later(2_000)
    log.tick()
    assert query_offset(log.state, "CG", "orders", 0) == NotStored()
    assert query_offset(log.state, "CG", "orders", 1) == NotStored()


def test_thousands_of_offsets_are_logged_in_bounded_records() -> None:
    log = CoreLog()
    log.do(SetTopic("wide", 500, 500, 6))
    for group in ("A", "B"):
        log.do(EnsureGroup(group))
        for queue in range(500):
            log.do(CommitOffset(group, "wide", queue, 0))
    first = len(log.of(OffsetsCommitted))
    for group in ("A", "B"):
        for queue in range(500):
            log.do(CommitOffset(group, "wide", queue, queue + 1))
    log.tick()
    later = log.of(OffsetsCommitted)[first:]
    assert len(later) > 1
    assert sum(len(record.entries) for record in later) == 1_000
    log.restart()
    assert query_offset(log.state, "B", "wide", 499) == Stored(500)


def test_a_tick_looks_only_at_groups_whose_offsets_are_due() -> None:
    groups = [f"G{number:02d}" for number in range(60)]
    log = with_group(*groups)
    for at in (1, 2):
        for group in groups:
            log.do(CommitOffset(group, "orders", 0, at))
    log.tick()
    log.later(400)
    log.do(CommitOffset("G07", "orders", 0, 3))
    log.later(100)
    for group in groups:
        log.do(CommitOffset(group, "orders", 0, 4))
    log.session(Unregistered(1, "client-1", "", "G03"))
    looked = log.state.session.fresh_offsets = Looked(log.state.session.fresh_offsets)
    log.tick()
    assert set(looked.names) == {"G03"}
    assert {entry[0] for entry in log.of(OffsetsCommitted)[-1].entries} == {"G03"}
    assert next_deadline_ms(log.state) == log.now_ms + 500
    log.later(500)
    log.tick()
    assert all(log.state.offsets[group] == {(1, 0): 4} for group in groups)
    assert next_deadline_ms(log.state) is None


def test_offsets_that_are_due_at_once_leave_nothing_behind() -> None:
    log = with_group("G")
    for at in range(50):
        log.do(CommitOffset("G", "orders", 0, at))
        log.session(Unregistered(1, "client-1", "", "G"))
        log.tick()
    assert len(log.state.session.offsets_due_heap) <= 1
