"""What the state keeps ready-made."""

from tests.support.core_log import PEER, CoreLog

from halfmq.core.state import State, Topic, next_offset
from halfmq.model.placement import segment_start
from halfmq.model.properties import to_dict
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import StoredMessage, encode


def test_a_topic_knows_the_size_of_its_records_before_they_are_encoded() -> None:
    settings = BrokerSettings()
    for name in ("t", "orders", "x" * 127, "%RETRY%" + "g" * 121):
        topic = Topic(settings, 1, name, 1, 1, 6)
        message = StoredMessage(name, 0, 0, 0, 0, 0, PEER, 0, settings.store_host, 0, 0, b"", 0, b"")
        assert topic.frame_bytes + len(PEER) == 16 + sum(map(len, encode(message, 0)))


def test_a_topic_knows_what_is_added_to_each_queues_halves() -> None:
    topic = Topic(BrokerSettings(cluster="C"), 1, "orders", 2, 3, 6)
    assert [to_dict(suffix)["REAL_QID"] for suffix in topic.half_suffixes] == ["0", "1", "2"]
    assert to_dict(topic.plain_suffix) == {"CLUSTER": "C", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert len(topic.ends) == len(topic.wakes) == 3


def test_the_next_record_stands_behind_the_header_of_the_next_batch() -> None:
    log = CoreLog()
    assert next_offset(log.state) == log.state.log_end + 64
    assert segment_start(next_offset(log.state), 65_536) == 0
    log.roll()
    assert segment_start(next_offset(log.state), 65_536) == 65_536


def test_one_decision_takes_at_most_half_a_segment() -> None:
    assert State(BrokerSettings(segment_bytes=65_536)).record_bytes_max == 32_768
    assert State(BrokerSettings()).record_bytes_max == (64 << 20) + (1 << 20)
