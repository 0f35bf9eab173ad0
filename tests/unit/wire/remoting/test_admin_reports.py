"""Decoders of administration bodies: what our broker encodes, what RocketMQ writes, and what is malformed."""

from collections.abc import Callable
from typing import Any

import pytest

from halfmq.errors import ProtocolError
from halfmq.model.settings import GroupSettings
from halfmq.wire.remoting import admin_reports as reports
from halfmq.wire.remoting import admin_stats as encoders
from halfmq.wire.remoting.admin_reports import GroupQueue, QueueStats, TopicSettings


def test_what_our_broker_encodes_is_read_back() -> None:
    body = encoders.encode_topic_stats("b", "orders", 1.5, [(1, 2, 9, 77), (0, 0, 4, 0)])
    assert reports.decode_topic_stats(body) == [QueueStats("b", 0, 0, 4, 0), QueueStats("b", 1, 2, 9, 77)]
    body = encoders.encode_consume_stats("b", [("orders", 0.0, [(1, 9, 3, 4, 55)]), ("a", 0.0, [(0, 2, 2, 2, 0)])])
    found = reports.decode_consume_stats(body)
    assert found == [GroupQueue("a", "b", 0, 2, 2, 0), GroupQueue("orders", "b", 1, 9, 3, 55)]
    assert [one.lag for one in found] == [0, 6]
    peer = encoders.Peer("c@1", "10.0.0.1:5", "PYTHON", 409)
    assert reports.decode_peers(encoders.encode_producers([peer])) == [peer]
    assert reports.decode_groups(encoders.encode_groups(["a", "b"])) == ["a", "b"]
    assert reports.decode_group_names(encoders.encode_group_configs([GroupSettings("a")], 5)) == ["a"]
    body = encoders.encode_topic_config("orders", 4, 2, 6, ordered=True, attributes={"message.type": "FIFO"})
    assert reports.decode_topic_settings(body) == TopicSettings("orders", 4, 2, 6, True, "FIFO")


def test_keys_that_are_text_and_numbers_that_are_text_are_read_too() -> None:
    """Some versions of RocketMQ write the queue as a JSON string."""
    body = (
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"t\\"}":'
        b'{"lastUpdateTimestamp":"7","maxOffset":"3","minOffset":1}},"topicPutTps":0.0}'
    )
    assert reports.decode_topic_stats(body) == [QueueStats("b", 0, 1, 3, 7)]
    assert reports.decode_topic_settings(
        b'{"topicName":"t","readQueueNums":1,"writeQueueNums":1,"perm":6,"attributes":{"+message.type":"DELAY"}}'
    ) == TopicSettings("t", 1, 1, 6, False, "DELAY")


@pytest.mark.parametrize(
    "decode",
    [
        reports.decode_topic_stats, reports.decode_consume_stats, reports.decode_peers, reports.decode_groups,
        reports.decode_group_names, reports.decode_topic_settings,
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"7", b'{"offsetTable":{"x":1}}', b'{"connectionSet":[{}]}'])
def test_a_malformed_body_is_an_error_of_the_protocol(decode: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)
