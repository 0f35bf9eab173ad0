"""Plain messages, batches, and the copies that clients send when a send-back failed."""

from tests.support.core_log import CoreLog, batch_of, changed, half, message, raw, refused, sent
from tests.support.parts_of_a_tick import lock_queues

from halfmq.core.commands import EnsureGroup, SendBatch, SetTopic
from halfmq.core.decision import SentBatch, WakeQueue, Why
from halfmq.core.session import DiskSpace
from halfmq.model.ids import parse_offset_message_id
from halfmq.model.properties import encode, to_dict
from halfmq.model.records import DelayedRecord, HalfRecord, MessageRecord, Released, TopicSet
from halfmq.model.settings import BrokerSettings


def test_a_first_message_makes_its_topic_with_as_many_queues_as_the_client_wishes() -> None:
    log = CoreLog()
    reply = sent(log.do(message("M1", queues=4)))
    made, stored = log.batches[-1].records
    assert isinstance(made, TopicSet)
    assert isinstance(stored, MessageRecord)
    assert (made.write_queues, made.read_queues, made.permission) == (4, 4, 6)
    assert reply.log_offset == stored.offset == made.offset + made.size
    sent(log.do(message("M2", topic="wide", queues=100)))
    assert log.state.topics_by_name["wide"].write_queues == 8, "at most the template's"


def test_a_refused_first_message_makes_no_topic() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, body_bytes_max=10))
    refused(log.do(message("M1", body=b"x" * 11)), Why.MESSAGE_ILLEGAL)
    assert not log.of(TopicSet)


def test_topics_are_not_made_when_that_is_switched_off() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, auto_create_topics=False))
    refused(log.do(message("M1")), Why.TOPIC_NOT_EXIST)


def test_a_message_is_visible_at_once_in_the_order_of_its_queue() -> None:
    log = CoreLog()
    replies = [sent(log.do(message(f"M{number}", queue=1))) for number in range(3)]
    assert [(reply.queue_id, reply.queue_offset) for reply in replies] == [(1, 0), (1, 1), (1, 2)]
    assert log.state.topics_by_name["orders"].ends == [0, 3, 0, 0]
    assert log.effects[-1] == WakeQueue(1, 1)


def test_a_negative_queue_is_chosen_by_us_and_all_take_turns() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 6))
    chosen = [sent(log.do(message(f"M{number}", queue=-1))).queue_id for number in range(8)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_queue_that_is_not_there_is_refused() -> None:
    log = CoreLog()
    refused(log.do(message("M1", queue=4, queues=4)), Why.INVALID_PARAMETER)
    refused(log.do(half("T1", queue=4, queues=4)), Why.INVALID_PARAMETER)
    assert not log.of(TopicSet)


def test_a_topic_without_the_write_bit_is_refused() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 4, 4))
    refused(log.do(message("M1")), Why.NO_PERMISSION)
    refused(log.do(half("T1")), Why.NO_PERMISSION)


def test_a_topic_without_write_queues_is_refused_also_who_leaves_the_queue_to_the_broker() -> None:
    log = CoreLog()
    log.do(SetTopic("orders", 4, 0, 6))
    for queue in (0, -1):
        refused(log.do(message("M1", queue=queue)), Why.NO_PERMISSION)
        refused(log.do(half("T1", queue=queue)), Why.NO_PERMISSION)
        refused(log.do(batch((b"a", {"UNIQ_KEY": "A"}), queue=queue)), Why.NO_PERMISSION)


def test_what_the_client_left_out_is_added() -> None:
    log = CoreLog()
    reply = sent(log.do(message("", POP_CK="receipt", KEYS="k")))
    stored = log.of(MessageRecord)[0]
    assert stored.unique_id == reply.unique_id
    assert parse_offset_message_id(reply.unique_id)[1] == reply.log_offset
    assert to_dict(stored.message.properties) == {
        "KEYS": "k", "UNIQ_KEY": reply.unique_id, "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


def test_what_the_broker_adds_to_a_copy_of_a_stored_message_stands_there_once() -> None:
    log = CoreLog()
    for command in (message("M1"), half("T1")):
        log.do(command)
        copied = (log.of(MessageRecord) + log.of(HalfRecord))[-1].message.properties.replace(
            b"\x01true\x02", b"\x01false\x02"
        )
        name = command.properties.partition(b"UNIQ_KEY\x01")[2][:2]
        log.do(raw(copied.replace(name, b"X1").replace(b"TRAN_MSG\x01false", b"TRAN_MSG\x01true")))
    for record in log.of(MessageRecord) + log.of(HalfRecord):
        stored = record.message.properties
        assert [stored.count(name) for name in (b"TRACE_ON", b"MSG_REGION", b"CLUSTER\x01")] == [1, 1, 1]
        assert to_dict(stored)["TRACE_ON"] == "true"
    assert (len(log.of(MessageRecord)), len(log.of(HalfRecord))) == (2, 2)


def test_the_prepared_bit_without_the_property_is_refused_instead_of_lost() -> None:
    log = CoreLog()
    refused(log.do(message("M1", sys_flag=4)), Why.MESSAGE_ILLEGAL)


def test_a_retried_message_with_the_transaction_property_is_a_plain_one() -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    sent(log.do(message("M1", topic="%RETRY%CG", TRAN_MSG="true", reconsume_times=1)))
    sent(log.do(message("M2", TRAN_MSG="true", reconsume_times=1, DELAY="1")))
    assert not log.of(HalfRecord)
    assert len(log.of(MessageRecord)) == 1
    assert len(log.of(DelayedRecord)) == 1


def test_a_delayed_message_is_shown_when_its_level_says() -> None:
    log = CoreLog()
    log.do(message("M1", DELAY="1", TAGS="TagA"))
    log.do(message("M2"))
    assert log.state.topics_by_name["orders"].ends[0] == 1
    assert log.run_to(log.now_ms + 999) == []
    assert log.run_to(log.now_ms + 1) == [WakeQueue(1, 0)]
    (ref,) = log.of(Released)[0].refs
    assert (ref.queue_offset, ref.half_index) == (1, -1)


def test_a_full_disk_or_a_body_too_large_is_refused() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, body_bytes_max=40_000))
    refused(log.do(message("M1", body=b"x" * 40_001)), Why.MESSAGE_ILLEGAL)
    refused(log.do(message("M1", body=b"x" * 39_000)), Why.MESSAGE_ILLEGAL)
    log.session(DiskSpace(True))
    refused(log.do(message("M1")), Why.STORE_FULL)


def test_hosts_of_ip_version_six_take_their_size() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, store_host=bytes(16) + b"\0\0\x2a\x9f"))
    log.do(changed(message("M1"), born_host=bytes(16) + b"\0\0\x30\x39"))
    log.do(changed(half("T1"), born_host=bytes(16) + b"\0\0\x30\x39"))
    from halfmq.model.records import MESSAGE_AT
    from halfmq.model.stored_message import encode as encode_message

    for record in (*log.of(MessageRecord), *log.of(HalfRecord)):
        assert record.size == MESSAGE_AT + sum(map(len, encode_message(record.message, record.offset)))


# --- copies ----------------------------------------------------------------------------------------------------


def test_a_copy_to_the_retry_topic_waits_as_its_level_says() -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    sent(log.do(message("M1", topic="%RETRY%CG", reconsume_times=1, DELAY="4")))
    (record,) = log.of(DelayedRecord)
    assert record.due_ms == log.now_ms + 30_000


def test_a_copy_for_a_group_that_is_not_there_is_refused() -> None:
    log = CoreLog()
    refused(log.do(message("M1", topic="%RETRY%CG", reconsume_times=1)), Why.GROUP_NOT_EXIST)
    assert not log.of(TopicSet)


def test_a_copy_beyond_the_retry_limit_is_a_dead_letter_at_once() -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    sent(log.do(message("M1", topic="%RETRY%CG", reconsume_times=16, DELAY="4")))
    sent(log.do(message("M2", topic="%RETRY%CG", reconsume_times=17, DELAY="4")))
    sent(log.do(message("M3", topic="%RETRY%CG", reconsume_times=3, max_reconsume_times=2, DELAY="4")))
    assert [record.unique_id for record in log.of(DelayedRecord)] == ["M1"]
    assert [(record.message.topic, record.unique_id) for record in log.of(MessageRecord)] == [
        ("%DLQ%CG", "M2"), ("%DLQ%CG", "M3"),
    ]  # fmt: skip


def test_a_copy_of_a_group_that_consumes_in_order_is_a_dead_letter() -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    lock_queues(log.state, "CG", "client-1", [("orders", 0)], log.now_ms)
    sent(log.do(message("M1", topic="%RETRY%CG", reconsume_times=1)))
    assert log.of(MessageRecord)[0].message.topic == "%DLQ%CG"
    log.later(60_000)
    sent(log.do(message("M2", topic="%RETRY%CG", reconsume_times=1)))
    assert log.of(MessageRecord)[1].message.topic == "%RETRY%CG"


# --- batches ---------------------------------------------------------------------------------------------------


def batch(
    *entries: tuple[bytes, dict[str, str]], topic: str = "orders", sys_flag: int = 0, queue: int = 1
) -> SendBatch:
    command: SendBatch = batch_of(
        *[(body, encode(pairs)) for body, pairs in entries], topic=topic, sys_flag=sys_flag, queue=queue
    )
    return command


def test_a_batch_is_stored_as_its_messages_one_after_another() -> None:
    log = CoreLog()
    log.do(message("M1", queue=1))
    reply = log.do(batch((b"a", {"UNIQ_KEY": "A"}), (b"b", {"TAGS": "t"}), (b"c", {"UNIQ_KEY": "C"})))
    assert isinstance(reply, SentBatch)
    records = log.of(MessageRecord)[1:]
    assert reply == SentBatch(tuple(record.offset for record in records), 1, 1)
    assert [record.message.queue_offset for record in records] == [1, 2, 3]
    assert [record.message.body for record in records] == [b"a", b"b", b"c"]
    assert log.state.topics_by_name["orders"].ends[1] == 4


def test_a_batch_is_all_or_nothing() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, body_bytes_max=20_000))
    end = log.state.log_end
    refused(log.do(batch((b"a", {}))._replace(entries=())), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"a", {}), (b"x" * 20_001, {}))), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"x" * 19_000, {}), (b"y" * 19_000, {}))), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"a", {}), (b"b", {"TRAN_MSG": "true"}))), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"a", {}), (b"b", {"DELAY": "1"}))), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"a", {}), sys_flag=4)), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"a", {}), topic="%RETRY%CG")), Why.MESSAGE_ILLEGAL)
    refused(log.do(batch((b"a", {}), queue=9)), Why.INVALID_PARAMETER)
    refused(log.do(batch((b"a", {}), topic="SCHEDULE_TOPIC_XXXX")), Why.NO_PERMISSION)
    assert log.state.log_end == end


def test_what_is_not_text_never_gets_into_the_log_where_redo_would_stumble_over_it() -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    end = log.state.log_end
    bad = b"UNIQ_KEY\x01\xff\xfe\x02"
    refused(log.do(batch_of((b"a", bad))), Why.MESSAGE_ILLEGAL)
    refused(log.do(raw("UNIQ_KEY\x01\u00e9\x02TRAN_MSG\x01true\x02".encode())), Why.MESSAGE_ILLEGAL)
    refused(log.do(raw("PGROUP\x01\u00e9\x02TRAN_MSG\x01true".encode())), Why.INVALID_PARAMETER)
    assert log.state.log_end == end
