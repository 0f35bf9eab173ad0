"""Topics: names, first use, change, deletion."""

import pytest
from tests.support.core_log import CoreLog, end, half, message, part, refused, sent
from tests.support.invariants import recount

from halfmq import limits
from halfmq.core.base import base_payload
from halfmq.core.commands import (
    CommitOffset,
    DeleteTopic,
    EnsureGroup,
    EnsureTopic,
    RequestedVerdict,
    SetTopic,
    TrimLog,
)
from halfmq.core.decision import Done, Why
from halfmq.model.records import TopicDeleted, TopicSet
from halfmq.model.settings import BrokerSettings, caps_that_fit


@pytest.mark.parametrize(
    "name",
    ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_wheel_timer"],
)
def test_system_topics_are_not_for_clients(name: str) -> None:
    log = CoreLog()
    refused(log.do(message("M1", topic=name)), Why.NO_PERMISSION)
    refused(log.do(half("T1", topic=name)), Why.NO_PERMISSION)
    refused(log.do(SetTopic(name, 1, 1, 6)), Why.NO_PERMISSION)
    refused(log.do(EnsureTopic(name, 1)), Why.NO_PERMISSION)
    assert not log.of(TopicSet)


@pytest.mark.parametrize("name", ["", "with space", "ümlaut", "dot.dot", "x" * 128])
def test_names_that_rocketmq_would_not_take_are_refused(name: str) -> None:
    refused(CoreLog().do(message("M1", topic=name)), Why.INVALID_PARAMETER)


def test_longest_names_are_taken() -> None:
    log = CoreLog()
    sent(log.do(message("M1", topic="x" * limits.TOPIC_CHARS_MAX)))
    sent(log.do(message("M1", topic="%DLQ%" + "g" * limits.GROUP_CHARS_MAX)))
    sent(log.do(message("M1", topic="namespace%RMQ_SYS_TRACE_TOPIC")))


def test_topics_get_ids_in_order_and_never_one_again() -> None:
    log = CoreLog()
    log.do(SetTopic("a", 1, 1, 6))
    log.do(SetTopic("b", 1, 1, 6))
    log.do(DeleteTopic("b"))
    log.restart()
    log.do(SetTopic("b", 1, 1, 6))
    assert {name: topic.topic_id for name, topic in log.state.topics_by_name.items()} == {"a": 1, "b": 3}


def test_fewer_queues_are_written_at_once_and_read_when_they_are_empty() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    log.do(message("M1", queue=3))
    assert "queue 3 holds 1 messages" in refused(log.do(SetTopic("orders", 2, 2, 6)), Why.LIMIT_REACHED).text
    assert log.do(SetTopic("orders", 4, 2, 6)) == Done(), "that is what the refusal says to do"
    refused(log.do(message("M2", queue=3)), Why.INVALID_PARAMETER)
    refused(log.do(SetTopic("orders", 3, 2, 6)), Why.LIMIT_REACHED)
    log.roll()
    log.do(TrimLog(max(log.state.bases)))
    assert log.do(SetTopic("orders", 2, 2, 6)) == Done(), "retention has emptied queue 3"
    log.do(SetTopic("orders", 6, 6, 6))
    assert sent(log.do(message("M2", queue=3))).queue_offset == 1, "an offset is never given twice"
    log.restart()
    assert log.state.topics_by_name["orders"].ends == [0, 0, 0, 2, 0, 0]


def test_no_part_of_a_committed_transaction_goes_out_of_reach() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    first = sent(log.do(part("T1", 0, queue=0)))
    sent(log.do(part("T1", 1, 2, queue=3)))
    assert (
        "'T1' of group 'PG' is undecided and goes to queue 3"
        in refused(log.do(SetTopic("orders", 2, 2, 6)), Why.LIMIT_REACHED).text
    )
    assert log.do(SetTopic("orders", 4, 2, 6)) == Done()
    log.do(end("T1", first))
    topic = log.state.topics_by_name["orders"]
    assert (topic.ends, topic.read_queues) == ([1, 0, 0, 1], 4), (
        "committed to queues that are no longer written, and read"
    )
    refused(log.do(SetTopic("orders", 3, 2, 6)), Why.LIMIT_REACHED)


def test_what_stays_in_reach_is_no_reason_to_keep_a_queue() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    log.do(SetTopic("stock", 4, 4, 6))
    log.do(half("T1", queue=1))
    log.do(half("T2", topic="stock", queue=3))
    log.do(message("M1", queue=1))
    assert log.do(SetTopic("orders", 2, 2, 6)) == Done()
    refused(log.do(SetTopic("orders", 1, 1, 6)), Why.LIMIT_REACHED)


def test_a_read_queue_is_kept_for_a_delayed_message_that_goes_there() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    log.do(message("M1", queue=2, DELAY="1"))
    assert "delayed message" in refused(log.do(SetTopic("orders", 2, 2, 6)), Why.LIMIT_REACHED).text
    assert log.do(SetTopic("orders", 3, 3, 6)) == Done()


def test_what_nobody_could_read_is_not_written() -> None:
    log = CoreLog()
    refused(log.do(SetTopic("orders", 2, 4, 6)), Why.INVALID_PARAMETER)
    assert log.do(SetTopic("orders", 4, 0, 4)) == Done(), "reading what there is, and nothing new"


def test_settings_that_cannot_be_are_refused() -> None:
    log = CoreLog()
    for command in (
        SetTopic("a", 0, 0, 6), SetTopic("a", -1, 4, 6), SetTopic("a", 4, limits.QUEUES_PER_TOPIC_MAX + 1, 6),
        SetTopic("a", 4, 4, 8), SetTopic("a", 4, 4, -1),
    ):  # fmt: skip
        refused(log.do(command), Why.INVALID_PARAMETER)


def test_a_topic_is_not_deleted_while_undecided_or_delayed_messages_will_come_to_it() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    refused(log.do(DeleteTopic("orders")), Why.LIMIT_REACHED)
    log.do(end("T1", reply, RequestedVerdict.ROLLBACK))
    log.do(message("M1", DELAY="1"))
    refused(log.do(DeleteTopic("orders")), Why.LIMIT_REACHED)
    log.run_to(log.now_ms + 2_000)
    assert log.do(DeleteTopic("orders")) == Done()
    assert len(log.of(TopicDeleted)) == 1
    assert log.do(DeleteTopic("orders")) == Done(), "absent is as good as deleted"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_topic_takes_its_offsets_with_it_and_no_others(restarted: bool) -> None:
    """Both ways of finding them: a group with few offsets in a topic of many queues, and one with many."""
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    log.do(SetTopic("stock", 8, 8, 6))
    for queue in range(4):
        sent(log.do(message(f"M{queue}", queue=queue)))
    for group in ("few", "many"):
        log.do(EnsureGroup(group))
    log.do(CommitOffset("few", "orders", 2, 1))
    for queue in range(4):
        log.do(CommitOffset("many", "orders", queue, 1))
    for queue in range(8):
        log.do(CommitOffset("many", "stock", queue, 0))
    log.run_to(log.now_ms + 10_000)
    orders, stock = (log.state.topics_by_name[name].topic_id for name in ("orders", "stock"))
    assert set(log.state.offsets["few"]) == {(orders, 2)}
    if restarted:
        log.roll()
        log.do(TrimLog(max(log.state.bases)))
        log.restart()
    assert log.do(DeleteTopic("orders")) == Done()
    assert {group: set(offsets) for group, offsets in log.state.offsets.items()} == {
        "many": {(stock, queue) for queue in range(8)}
    }
    assert log.state.derived.base_bytes == recount(log.state).base


def test_a_route_makes_its_topic_once() -> None:
    log = CoreLog()
    assert log.do(EnsureTopic("orders", 3)) == Done()
    assert log.do(EnsureTopic("orders", 5)) == Done()
    assert log.do(EnsureTopic("%RETRY%CG", 5)) == Done()
    assert [(record.name, record.write_queues) for record in log.of(TopicSet)] == [("orders", 3), ("%RETRY%CG", 1)]


def test_topics_are_refused_when_the_head_of_a_segment_would_not_hold_them() -> None:
    log = CoreLog()
    made = 0
    while not hasattr(reply := log.do(SetTopic(f"topic-{made}", 100, 100, 6)), "why"):
        made += 1
    refused(reply, Why.LIMIT_REACHED)
    assert made > 10
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes
    reply = sent(log.do(half("T1", topic="topic-0", body=b"x" * 31_000)))
    log.roll()
    log.do(end("T1", reply))
    log.restart()


def test_there_are_only_so_many_topics_and_a_deleted_one_makes_room() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, topics_max=2))
    sent(log.do(message("M1", topic="A")))
    log.do(SetTopic("B", 1, 1, 6))
    for command in (message("M2", topic="C"), EnsureTopic("C", 1), SetTopic("C", 1, 1, 6)):
        assert "limit of 2 topics (--topics-max)" in refused(log.do(command), Why.LIMIT_REACHED).text
    sent(log.do(message("M2", topic="A")))
    assert log.do(SetTopic("B", 4, 4, 6)) == Done()
    log.do(DeleteTopic("B"))
    sent(log.do(message("M2", topic="C")))


def test_topics_that_clients_name_leave_room_for_offsets_and_for_topics_made_by_hand() -> None:
    log = CoreLog()
    made = 0
    while not hasattr(reply := log.do(message(f"M{made}", topic=f"{made:03d}".ljust(127, "x"), queues=8)), "why"):
        made += 1
    assert "by naming them" in refused(reply, Why.LIMIT_REACHED).text
    assert made >= caps_that_fit(log.state.settings).topics - 1
    assert log.state.derived.base_bytes <= 65_536 * 7 // 16 * 3 // 4
    assert log.do(SetTopic("by-hand", 8, 8, 6)) == Done()
    assert log.do(EnsureTopic("000".ljust(127, "x"), 1)) == Done(), "what is there is there"
