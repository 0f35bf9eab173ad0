"""What would not fit in the base of a segment is refused before it is there; what is there can always be changed."""

import pytest
from tests.support.core_log import CoreLog, consumer, message, refused, sent
from tests.support.invariants import check

from halfmq.core import apply, base, base_bytes, topics
from halfmq.core.base import base_payload
from halfmq.core.commands import CommitOffset, DeleteTopic, EnsureGroup, SetGroup, SetProducer, SetTopic
from halfmq.core.decision import Done, OffsetNotStored, ProducerSettingsStored, Refused, Why
from halfmq.core.queues.offsets import NotStored, PossiblyUnlogged, Stored, query_offset
from halfmq.core.session import Unregistered
from halfmq.model.settings import ProducerSettings


def limits_of(number: int, set_by: str = "ada", **changes: int) -> ProducerSettings:
    return ProducerSettings(
        f"group-{number:03d}".ljust(110, "n"), **{"skip_age_ms": 3_600_000, **changes}, set_by=set_by
    )


def with_limits() -> tuple[CoreLog, int]:
    """A store whose base is full of limits of producer groups, and how many there are."""
    log = CoreLog()
    for number in range(1_000):
        reply = log.do(SetProducer(limits_of(number)))
        if isinstance(reply, Refused):
            assert reply.why is Why.LIMIT_REACHED
            return log, number
    raise AssertionError("never full")


def filled() -> CoreLog:
    """No topic fits any more, and hardly an offset. Two groups have an offset in queue 0 of the topic ``wide``."""
    log = CoreLog()
    log.do(SetTopic("wide", 100, 100, 6))
    for group in ("CG", "Other"):
        log.do(EnsureGroup(group))
        log.do(CommitOffset(group, "wide", 0, 5))
    log.tick()
    queues = 100
    number = 0
    while queues:
        if isinstance(log.do(SetTopic(f"topic-{number}", queues, queues, 6)), Refused):
            queues //= 2
        number += 1
    return log


def full_of_offsets() -> tuple[CoreLog, int]:
    """``filled``, and the first queue of the topic ``wide`` where group CG can have no offset any more."""
    log = filled()
    for queue in range(1, 100):
        reply = log.do(CommitOffset("CG", "wide", queue, 7))
        if isinstance(reply, Refused):
            assert reply.why is Why.LIMIT_REACHED
            return log, queue
    raise AssertionError("never full")


def test_limits_of_producer_groups_are_refused_when_the_head_of_a_segment_would_not_hold_them() -> None:
    log, count = with_limits()
    assert count > 50
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes <= 65_536 * 7 // 16
    assert len(log.state.producer_settings) == count
    refused(log.do(SetTopic("orders", 100, 100, 6)), Why.LIMIT_REACHED)
    log.roll()
    log.restart()


def test_limits_that_are_there_can_be_changed_and_taken_away_and_that_makes_room() -> None:
    log, count = with_limits()
    changed = limits_of(0, skip_age_ms=1 << 52, undecided_max=1 << 52, undecided_bytes_max=1 << 52)
    assert log.do(SetProducer(changed)) == ProducerSettingsStored(changed)
    nothing = limits_of(1, set_by="b" * 120, skip_age_ms=0)
    refused(log.do(SetProducer(limits_of(count))), Why.LIMIT_REACHED)
    assert log.do(SetProducer(nothing)) == ProducerSettingsStored(nothing), "it takes limits away, whoever does"
    assert log.do(SetProducer(limits_of(count))) == ProducerSettingsStored(limits_of(count))


def test_limits_that_are_taken_away_make_room_for_offsets() -> None:
    log, count = with_limits()
    log.do(SetProducer(limits_of(0, skip_age_ms=0)))
    log.do(SetTopic("orders", 2, 2, 6))
    log.do(SetProducer(limits_of(1, skip_age_ms=0)))
    refused(log.do(EnsureGroup("CG")), Why.LIMIT_REACHED)
    assert log.do(SetGroup("CG", 16, 1, True)) == Done(), "by hand there is room"
    log.do(CommitOffset("CG", "orders", 0, 1))
    for number in range(2, count):
        log.do(SetProducer(limits_of(number, skip_age_ms=0)))
        check(log.state)
        assert log.do(CommitOffset("CG", "orders", 1, 1)) == Done()


def test_who_set_limits_is_counted_in_bytes() -> None:
    log = CoreLog()
    for number in range(20):
        log.do(SetProducer(limits_of(number, "ü" * 120, undecided_max=1 << 52, undecided_bytes_max=1 << 52)))
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes
    assert log.state.derived.base_bytes < len(base_payload(log.state)) + 2_000
    log, _ = with_limits()
    refused(log.do(SetProducer(limits_of(0, set_by="b" * 120))), Why.LIMIT_REACHED)


def test_a_new_offset_is_refused_when_the_head_of_a_segment_would_not_hold_it() -> None:
    log, queue = full_of_offsets()
    log.tick()
    assert query_offset(log.state, "CG", "wide", queue - 1) == Stored(7)
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes <= 65_536 * 7 // 16
    assert log.effects[-1] == OffsetNotStored("CG", "wide", queue)
    log.roll()
    log.restart()
    assert (1, queue) not in log.state.offsets["CG"]


def test_an_offset_that_is_there_can_always_be_committed() -> None:
    log, queue = full_of_offsets()
    assert log.do(CommitOffset("CG", "wide", queue - 1, 8)) == Done(), "it is not logged yet"
    log.later(2_000)
    log.tick()
    for group in ("CG", "Other"):
        assert log.do(CommitOffset(group, "wide", 0, 9)) == Done()
    log.later(2_000)
    log.tick()
    log.restart()
    assert query_offset(log.state, "CG", "wide", queue - 1) == Stored(8)
    assert query_offset(log.state, "Other", "wide", 0) == Stored(9)


def test_offsets_that_are_not_logged_yet_are_counted() -> None:
    log = CoreLog()
    log.do(SetTopic("wide", 1_000, 1_000, 6))
    taken = 0
    for group in "ABCDEFGH":
        log.do(EnsureGroup(group))
        for queue in range(1_000):
            taken += log.do(CommitOffset(group, "wide", queue, 1 << 40)) == Done()
    bound = log.state.derived.base_bytes
    assert 500 < taken < 8_000
    log.tick()
    assert sum(map(len, log.state.offsets.values())) == taken
    assert log.state.derived.base_bytes == bound, "logging them changes nothing"
    check(log.state)
    log.roll()
    log.restart()


def test_whether_there_is_room_is_known_without_a_look_at_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    log, queue = full_of_offsets()
    log.do(SetProducer(limits_of(0)))
    counted = []
    for name in ("topic_bytes", "group_bytes", "producer_bytes"):
        count = getattr(base_bytes, name)
        for module in (base_bytes, base, topics, apply):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda of, count=count: counted.append(of) or count(of))
    refused(log.do(CommitOffset("CG", "wide", queue, 7)), Why.LIMIT_REACHED)
    refused(log.do(SetTopic("orders", 100, 100, 6)), Why.LIMIT_REACHED)
    refused(log.do(SetProducer(limits_of(1))), Why.LIMIT_REACHED)
    log.do(DeleteTopic("topic-0"))
    assert log.do(SetTopic("orders", 1, 1, 6)) == Done()
    assert 0 < len(counted) < 20, "a few for each of these, however many topics there are"


def test_a_refused_offset_is_known_in_this_run_and_a_later_one_says_that_messages_may_be_lost() -> None:
    log, queue = full_of_offsets()
    assert query_offset(log.state, "CG", "wide", queue) == Stored(7)
    log.session(consumer(1, log.now_ms))
    log.session(Unregistered(1, "client-1", "", "CG"))
    log.tick()
    log.restart()
    assert isinstance(query_offset(log.state, "CG", "wide", queue), PossiblyUnlogged)
    assert query_offset(log.state, "CG", "wide", 0) == Stored(5)
    assert isinstance(query_offset(log.state, "CG", "unknown", 0), NotStored)
    assert isinstance(query_offset(log.state, "Nobody", "wide", 0), NotStored)


def test_a_deleted_topic_makes_room_for_offsets() -> None:
    log, queue = full_of_offsets()
    log.do(DeleteTopic("topic-0"))
    assert log.do(CommitOffset("CG", "wide", queue, 8)) == Done()
    assert query_offset(log.state, "CG", "wide", queue) == Stored(8)
    assert not any(log.state.session.offsets_refused.values())
    log.later(2_000)
    log.tick()
    check(log.state)
    log.restart()
    assert query_offset(log.state, "CG", "wide", queue) == Stored(8)
    never = query_offset(log.state, "CG", "wide", queue + 20)
    assert isinstance(never, NotStored), "there is room, so it was not refused"


def test_refused_offsets_go_with_their_topic() -> None:
    log, _ = full_of_offsets()
    log.do(DeleteTopic("wide"))
    assert not any(log.state.session.offsets_refused.values())


def test_a_full_store_takes_a_topic_with_fewer_queues_and_no_group_without_a_retry_topic() -> None:
    log, _ = full_of_offsets()
    assert log.do(SetTopic("wide", 100, 50, 6)) == Done()
    assert log.do(SetTopic("wide", 100, 100, 4)) == Done()
    refused(log.do(SetTopic("wide", 200, 200, 6)), Why.LIMIT_REACHED)
    assert log.do(SetGroup("CG", 3, 1, True)) == Done()
    refused(log.do(SetGroup("new".ljust(120, "x"), 16, 0, True)), Why.LIMIT_REACHED)
    sent(log.do(message("M1", topic="topic-0")))
