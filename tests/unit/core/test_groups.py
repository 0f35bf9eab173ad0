"""Consumer groups and their retry topics."""

from typing import Any

import pytest
from tests.support.core_log import CoreLog, consumer, message, refused, sent
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import CommitOffset, DeleteGroup, DeleteTopic, EnsureGroup, LockQueues, SetGroup, SetTopic
from halfmq.core.decision import ConsumerGroupDeleted, Done, Why
from halfmq.core.queues.offsets import NotStored, Stored, query_offset
from halfmq.core.session import ConnectionClosed
from halfmq.model.records import GroupDeleted, GroupSet, TopicDeleted, TopicSet
from halfmq.model.settings import BrokerSettings, GroupSettings, caps_that_fit


def test_a_group_is_made_on_first_use_with_its_retry_topic_and_only_once() -> None:
    log = CoreLog()
    assert log.do(EnsureGroup("CG")) == Done()
    assert log.do(EnsureGroup("CG")) == Done()
    assert log.state.groups == {"CG": GroupSettings("CG")}
    assert [(record.name, record.write_queues, record.permission) for record in log.of(TopicSet)] == [
        ("%RETRY%CG", 1, 6)
    ]


def test_groups_with_bad_names_or_when_switched_off_are_refused() -> None:
    refused(CoreLog().do(EnsureGroup("no spaces")), Why.INVALID_PARAMETER)
    refused(CoreLog().do(EnsureGroup("x" * 121)), Why.INVALID_PARAMETER)
    log = CoreLog(BrokerSettings(segment_bytes=65_536, auto_create_groups=False))
    refused(log.do(EnsureGroup("CG")), Why.GROUP_NOT_EXIST)
    assert not log.of(GroupSet)


def test_a_group_can_be_changed_and_its_settings_last() -> None:
    log = CoreLog()
    log.do(SetGroup("CG", 3, 2, False))
    log.restart()
    assert log.state.groups["CG"] == GroupSettings("CG", 3, 2, False)
    assert log.state.topics_by_name["%RETRY%CG"].write_queues == 2
    log.roll()
    log.restart()
    assert log.state.groups["CG"] == GroupSettings("CG", 3, 2, False)


def test_what_a_change_does_not_name_stays() -> None:
    log = CoreLog()
    assert log.do(SetGroup("CG", hold_topics=("stock", "orders", "stock"), hold_ms=5)) == Done()
    held = GroupSettings("CG", hold_topics=("orders", "stock"), hold_ms=5)
    assert log.state.groups["CG"] == held
    log.do(SetGroup("CG", 3, 2, False))
    held = GroupSettings("CG", 3, 2, False, ("orders", "stock"), 5)
    assert log.state.groups["CG"] == held
    log.do(EnsureGroup("CG"))
    log.restart()
    assert log.state.groups["CG"] == held
    log.roll()
    log.restart()
    assert log.redone(log.remaining()).groups["CG"] == log.state.groups["CG"] == held
    log.do(SetGroup("CG", hold_ms=0))
    log.do(SetGroup("CG", hold_topics=("orders",)))
    assert log.state.groups["CG"] == GroupSettings("CG", 3, 2, False, ("orders",), 0)
    log.do(SetGroup("CG", hold_topics=()))
    assert log.state.groups["CG"] == GroupSettings("CG", 3, 2, False), "and the limit with it"
    check(log.state)


def test_a_hold_stays_while_queues_are_locked_and_ends_with_its_group() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 2, 2, 6))
    before = log.state.derived.base_bytes
    log.do(SetGroup("CG", retry_queues=0, hold_topics=("orders",), hold_ms=5))
    log.do(LockQueues("CG", "client", (("orders", 0),)))
    log.restart()
    assert log.state.holders["CG"] == {(log.state.topics_by_name["orders"].topic_id, 0): "client"}
    assert log.state.groups["CG"].hold_topics == ("orders",)
    check(log.state)
    log.do(DeleteGroup("CG", with_offsets=True))
    assert log.state.derived.base_bytes == before
    log.do(EnsureGroup("CG"))
    assert log.state.groups["CG"] == GroupSettings("CG")


@pytest.mark.parametrize(
    "change",
    [
        {"hold_topics": ("no spaces",)},
        {"hold_topics": ("x" * 128,)},
        {"hold_topics": ("",)},
        {"hold_topics": tuple(f"t{number}" for number in range(65))},
        {"hold_topics": ("orders",), "hold_ms": -1},
        {"hold_topics": ("orders",), "hold_ms": limits.HOLD_MS_MAX + 1},
        {"hold_ms": 5},
    ],
)
def test_a_hold_that_cannot_be_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    log = CoreLog()
    refused(log.do(SetGroup("CG", **change)), Why.INVALID_PARAMETER)
    assert log.state.groups == {}


def test_a_hold_needs_space_in_a_base_and_a_smaller_one_does_not() -> None:
    """64 of the longest names take 8 KiB, a base of these segments has 28."""
    log = CoreLog()
    names = [tuple(f"{group}-{number}".ljust(127, "x") for number in range(64)) for group in range(4)]
    replies = [log.do(SetGroup(f"G{number}", hold_topics=topics)) for number, topics in enumerate(names)]
    assert replies[:3] == [Done()] * 3
    refused(replies[3], Why.LIMIT_REACHED)
    assert log.do(SetGroup("G0", hold_topics=names[0][:60])) == Done()
    log.roll()
    check(log.state)
    assert log.do(SetGroup("G0", 3, 1, True)) == Done()


def test_a_group_without_retries_gets_no_retry_topic() -> None:
    log = CoreLog()
    log.do(SetGroup("CG", 3, 0, True))
    assert not log.of(TopicSet)
    refused(log.do(SetGroup("CG", 3, -1, True)), Why.INVALID_PARAMETER)


def with_offset() -> CoreLog:
    """Group CG has an offset in the topic ``orders``, logged and newer."""
    log = CoreLog()
    log.do(SetTopic("orders", 2, 2, 6))
    log.do(EnsureGroup("CG"))
    log.do(CommitOffset("CG", "orders", 0, 7))
    log.do(CommitOffset("CG", "orders", 0, 8))
    return log


def test_a_deleted_group_is_gone_with_its_offsets_and_its_empty_retry_topic_also_after_a_restart() -> None:
    log = with_offset()
    empty = CoreLog()
    empty.do(SetTopic("orders", 2, 2, 6))
    assert log.do(DeleteGroup("CG", with_offsets=True)) == ConsumerGroupDeleted(())
    assert sum(record.size for record in (*log.of(GroupDeleted), *log.of(TopicDeleted))) <= 2 * 32 + len("CG")
    for _ in range(2):
        assert not log.state.groups
        assert set(log.state.topics_by_name) == {"orders"}
        assert isinstance(query_offset(log.state, "CG", "orders", 0), NotStored)
        assert log.state.derived.base_bytes == empty.state.derived.base_bytes, "it gives all of its room back"
        log.later(5_000)
        log.tick()
        check(log.state)
        log.roll()
        log.restart()
    assert log.do(EnsureGroup("CG")) == Done()


def test_nothing_in_memory_is_left_of_a_deleted_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who makes and deletes groups fills it."""
    log = with_offset()
    log.do(LockQueues("CG", "a", (("orders", 0), ("orders", 1))))
    monkeypatch.setattr("halfmq.core.queues.offsets.has_space_for_offset", lambda state, group: False)
    log.do(SetTopic("other", 1, 1, 6))
    refused(log.do(CommitOffset("CG", "other", 0, 1)), Why.LIMIT_REACHED)
    assert [list(log.state.topics_by_name[name].derived.groups) for name in ("orders", "other")] == [["CG"], ["CG"]]
    log.do(DeleteGroup("CG", with_offsets=False))
    assert not log.state.session.consumers
    assert list(log.state.topics_by_name["orders"].derived.groups) == ["CG"], "its offsets stay"
    log.do(DeleteGroup("CG", with_offsets=True))
    assert [list(log.state.topics_by_name[name].derived.groups) for name in ("orders", "other")] == [[], []]
    assert not log.state.offsets
    assert not log.state.session.offsets_refused
    check(log.state)


def test_offsets_that_are_to_stay_are_there_for_a_group_of_this_name_until_they_are_deleted_too() -> None:
    log = with_offset()
    assert log.do(DeleteGroup("CG", with_offsets=False)) == ConsumerGroupDeleted(())
    refused(log.do(CommitOffset("CG", "orders", 0, 9)), Why.GROUP_NOT_EXIST)
    log.later(5_000)
    log.tick()
    log.roll()
    log.restart()
    log.do(EnsureGroup("CG"))
    assert query_offset(log.state, "CG", "orders", 0) == Stored(8), "also what was not logged when it went"
    log.do(DeleteGroup("CG", with_offsets=False))
    log.do(DeleteGroup("CG", with_offsets=True))
    assert "CG" not in log.state.offsets


def test_a_group_that_is_not_there_is_as_good_as_deleted() -> None:
    log = with_offset()
    at = log.state.log_end
    assert log.do(DeleteGroup("Other", with_offsets=True)) == ConsumerGroupDeleted(())
    assert log.do(DeleteGroup("x" * 5_000, with_offsets=True)) == ConsumerGroupDeleted(())
    assert log.state.log_end == at


def test_a_group_with_members_is_not_deleted_and_is_when_they_are_gone() -> None:
    log = with_offset()
    log.session(consumer(1, log.now_ms))
    assert "client-1" in refused(log.do(DeleteGroup("CG", with_offsets=True)), Why.NOT_NOW).text
    assert query_offset(log.state, "CG", "orders", 0) == Stored(8)
    log.session(ConnectionClosed(1))
    assert log.do(DeleteGroup("CG", with_offsets=True)) == ConsumerGroupDeleted(())


def test_topics_of_a_deleted_group_that_hold_messages_stay_and_are_named() -> None:
    log = with_offset()
    sent(log.do(message("M1", topic="%RETRY%CG")))
    sent(log.do(message("M2", topic="%DLQ%CG")))
    log.do(EnsureGroup("Later"))
    sent(log.do(message("M3", topic="%RETRY%Later", DELAY="1")))
    assert log.do(DeleteGroup("CG", with_offsets=True)) == ConsumerGroupDeleted(("%RETRY%CG", "%DLQ%CG"))
    assert log.do(DeleteGroup("Later", with_offsets=True)) == ConsumerGroupDeleted(("%RETRY%Later",)), (
        "a message is to come there"
    )
    assert not log.of(TopicDeleted)
    assert log.do(DeleteTopic("%RETRY%CG")) == Done()
    assert log.do(DeleteGroup("CG", with_offsets=True)) == ConsumerGroupDeleted(("%DLQ%CG",))


def test_there_are_only_so_many_groups_and_a_deleted_one_makes_room() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, groups_max=2))
    log.do(EnsureGroup("A"))
    log.do(EnsureGroup("B"))
    for command in (EnsureGroup("C"), SetGroup("C", 3, 1, True)):
        text = refused(log.do(command), Why.LIMIT_REACHED).text
        assert "limit of 2 consumer groups (--groups-max)" in text
    assert log.do(SetGroup("A", 3, 1, True)) == Done()
    log.restart()
    refused(log.do(EnsureGroup("C")), Why.LIMIT_REACHED)
    log.do(DeleteGroup("A", with_offsets=True))
    assert log.do(EnsureGroup("C")) == Done()


def test_long_names_of_groups_leave_room_for_topics_and_offsets_at_any_size_of_segments() -> None:
    """What peers make by naming groups: as many as there may be, with names as long as they may be."""
    for segment_bytes in (1 << 16, 1 << 18, 1 << 20):
        log = CoreLog(BrokerSettings(segment_bytes=segment_bytes))
        made = 0
        for number in range(1_000):
            reply = log.do(EnsureGroup(f"{number:04d}".ljust(120, "x")))
            if reply != Done():
                assert "consumer groups take" in refused(reply, Why.LIMIT_REACHED).text
                break
            made += 1
        assert made == caps_that_fit(log.state.settings).groups > 40
        sent(log.do(message("M1", topic="a-new-one", queues=8)))
        assert log.do(SetTopic("orders", 8, 8, 6)) == Done()
        for queue in range(8):
            assert log.do(CommitOffset(f"{0:04d}".ljust(120, "x"), "orders", queue, 1)) == Done()
        log.roll()
        check(log.state)


@pytest.mark.parametrize("times", [-2, 1 << 31, 10**30])
def test_retries_that_no_setting_can_hold_are_refused(times: int) -> None:
    log = CoreLog()
    refused(log.do(SetGroup("CG", times, 1, True)), Why.INVALID_PARAMETER)
    assert "CG" not in log.state.groups
    assert log.do(SetGroup("CG", -1, 1, True)) == Done()
