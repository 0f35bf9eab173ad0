"""Bodies of consumer groups: written as RocketMQ writes them, read back, refused when they are something else."""

import json

import pytest

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.group_bodies import (
    AssignmentQuery,
    ConfigCheck,
    LockBody,
    MessageQueue,
    ModeRequest,
    decode_assignment_query,
    decode_config_check,
    decode_lock_request,
    decode_lock_response,
    decode_member_list,
    decode_mode_request,
    encode_assignments,
    encode_config_check,
    encode_lock_request,
    encode_lock_response,
    encode_member_list,
)
from halfmq.wire.remoting.heartbeat import Subscription

QUEUES = (MessageQueue("T", "b", 0), MessageQueue("T", "b", 1))


def test_the_members_of_a_group():
    assert encode_member_list(["id1", "id2"]) == b'{"consumerIdList":["id1","id2"]}'
    assert decode_member_list(b'{"consumerIdList":["id1","id2"]}') == ("id1", "id2")


def test_a_lock_request_has_rocketmqs_keys():
    lock = LockBody("G", "c", QUEUES[:1])
    body = encode_lock_request(lock)
    assert json.loads(body) == {
        "clientId": "c",
        "consumerGroup": "G",
        "mqSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}],
        "onlyThisBroker": False,
    }
    assert decode_lock_request(body) == lock


def test_a_lock_answer_lists_the_queues_that_are_held():
    body = encode_lock_response(QUEUES)
    assert json.loads(body)["lockOKMQSet"][1] == {"brokerName": "b", "queueId": 1, "topic": "T"}
    assert decode_lock_response(body) == QUEUES
    assert decode_lock_response(b"{}") == ()


def test_a_subscription_is_checked():
    check = ConfigCheck("c", "G", Subscription("T", "a > 1", (), 5, "SQL92"))
    assert decode_config_check(encode_config_check(check)) == check


def test_a_question_for_queues_is_read_as_java_writes_it():
    body = b'{"clientId":"c","consumerGroup":"G","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T"}'
    assert decode_assignment_query(body) == AssignmentQuery("T", "G", "c", "AVG", "CLUSTERING")
    assert decode_assignment_query(b'{"clientId":"c","consumerGroup":"G","topic":"T"}')[3:] == ("", "")


def test_an_answer_gives_each_queue_with_its_mode_or_says_that_nothing_is_known():
    queue = {"brokerName": "b", "queueId": 1, "topic": "T"}
    assert json.loads(encode_assignments(QUEUES))["messageQueueAssignments"][1] == {
        "messageQueue": queue,
        "mode": "PULL",
    }
    assert json.loads(encode_assignments([])) == {"messageQueueAssignments": []}
    assert json.loads(encode_assignments(None)) == {}


def test_a_request_for_a_mode_is_read():
    body = b'{"consumerGroup":"G","mode":"POP","popShareQueueNum":0,"topic":"T"}'
    assert decode_mode_request(body) == ModeRequest("T", "G", "POP")
    assert decode_mode_request(b'{"consumerGroup":"G","topic":"T"}').mode == "PULL"


@pytest.mark.parametrize(
    "read",
    [
        decode_member_list, decode_lock_request, decode_lock_response, decode_config_check, decode_assignment_query,
        decode_mode_request,
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "body", [b"", b"5", b"null", b'"x"', b'{"mqSet":5,"lockOKMQSet":5}', b'{"lockOKMQSet":[5],"mqSet":[5]}']
)
def test_what_is_no_such_body_is_a_protocol_error(read, body):
    with pytest.raises(ProtocolError):
        read(body)
