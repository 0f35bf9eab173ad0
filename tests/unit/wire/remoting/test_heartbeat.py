"""Heartbeats of Java, of the C++ client, and of ours."""

import json

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.heartbeat import (
    ConsumerGroup,
    HeartbeatBody,
    Subscription,
    decode_heartbeat,
    encode_heartbeat,
    tags_of,
)

GOLDEN = vectors("remoting")


def test_a_java_producer_names_its_groups():
    beat = decode_heartbeat(GOLDEN["json.heartbeat_producer_5"])
    assert beat == HeartbeatBody("192.0.2.2@25649#1818262342221", ("TXG", "CLIENT_INNER_PRODUCER"), ())


def test_a_java_consumer_names_what_it_listens_to():
    beat = decode_heartbeat(GOLDEN["json.heartbeat_consumer_4_9_8"])
    subscription = Subscription("%RETRY%CG1", "*", (), 1795246382031)
    assert beat.consumer_groups == (
        ConsumerGroup("CG1", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", (subscription,)),
    )


def test_the_cpp_client_sends_ordinals_text_numbers_and_leaves_lists_out():
    body = {
        "clientID": "10.0.0.1@x",
        "consumerDataSet": [
            {
                "groupName": "CG", "consumeType": 1, "messageModel": 0, "consumeFromWhere": 4,
                "subscriptionDataSet": [{"topic": "T", "subString": "A || B", "subVersion": "17", "tagsSet": [], "codeSet": []}],
            }
        ],
    }  # fmt: skip
    (group,) = decode_heartbeat(json.dumps(body).encode()).consumer_groups
    assert group[:4] == ("CG", "CONSUME_PASSIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")
    assert group.subscriptions == (Subscription("T", "A || B", ("A", "B"), 17),)


def test_sql_is_kept_as_an_expression_without_tags():
    subscription = {"topic": "T", "subString": "a > 1 || b", "expressionType": "SQL92", "subVersion": 1}
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [subscription]}]}
    (group,) = decode_heartbeat(json.dumps(body).encode()).consumer_groups
    assert group.subscriptions == (Subscription("T", "a > 1 || b", (), 1, "SQL92"),)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", ()), ("", ()), ("A", ("A",)), (" A ||B|| ", ("A", "B")), ("A || *", ()), ("||", ())],
)
def test_an_expression_is_split_into_tags(expression, tags):
    assert tags_of(expression) == tags


def test_our_heartbeat_is_read_back_and_carries_javas_hash_codes():
    beat = HeartbeatBody(
        "c@1",
        ("P",),
        (ConsumerGroup("G", "CONSUME_ACTIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", (Subscription("T", "TagA", ("TagA",), 5),)),),
    )  # fmt: skip
    body = encode_heartbeat(beat)
    assert decode_heartbeat(body) == beat
    written = json.loads(body)["consumerDataSet"][0]["subscriptionDataSet"][0]
    assert written["codeSet"] == [2598919]  # "TagA".hashCode() in Java


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"5", b"{}", b'{"clientID":"c","producerDataSet":5}', b'{"clientID":"c","producerDataSet":[{}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":7}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":"SIDEWAYS"}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":-1}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":[1]}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T","subVersion":"x"}]}]}',
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[5]}]}'],
)  # fmt: skip
def test_what_is_no_heartbeat_is_a_protocol_error(body):
    with pytest.raises(ProtocolError):
        decode_heartbeat(body)
