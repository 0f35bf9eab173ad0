"""Frames that crossed a socket between the Apache Java client and broker, 4.9.7 and 5.5.0, in both serialisations."""

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.model import properties, stored_message
from halfmq.model.queue_reads import PullRequest
from halfmq.wire.remoting import fields
from halfmq.wire.remoting.fields import OffsetReply, PulledReply, SentReply
from halfmq.wire.remoting.group_bodies import decode_lock_request, decode_lock_response, decode_member_list
from halfmq.wire.remoting.header import decode
from halfmq.wire.remoting.heartbeat import decode_heartbeat
from halfmq.wire.remoting.message_codec import decode_pulled
from halfmq.wire.remoting.route import decode_route

FRAMES = vectors("java_clients")
COMMANDS = {
    "half_send": (310, fields.SendFields),
    "plain_send": (310, fields.SendFields),
    "commit": (37, fields.EndFields),
    "rollback": (37, fields.EndFields),
    "unknown": (37, fields.EndFields),
    "commit_after_check": (37, fields.EndFields),
    "check": (39, fields.CheckFields),
    "pull": (11, PullRequest),
    "offset_update": (15, fields.UpdateOffsetFields),
    "offset_query": (14, fields.QueryOffsetFields),
    "send_back": (36, fields.SendBackFields),
    "members_changed": (40, fields.ConsumerListFields),
    "unregister": (35, fields.UnregisterFields),
    "query_key": (12, fields.QueryMessageFields),
    "search_time": (29, fields.SearchOffsetFields),
    "heartbeat_producer": (34, dict),
    "heartbeat_consumer": (34, dict),
    "lock": (41, dict),
}
ANSWERS = {
    "send_answer": 0, "heartbeat_answer": 0, "pull_found": 0, "pull_nothing": 19, "pull_moved": 21, "offset_answer": 0,
    "members": 0, "lock_answer": 0, "route": 0, "route_missing": 17,
}  # fmt: skip


def of(kind: str) -> list:
    found = [decode(frame) for name, frame in FRAMES.items() if name.split(".")[0] == kind]
    assert len(found) == 4, f"{kind}: two versions in two serialisations"
    return found


def test_every_kind_of_frame_is_expected_here():
    assert {name.split(".")[0] for name in FRAMES} == COMMANDS.keys() | ANSWERS.keys()


@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_is_read(name):
    kind, *version, header = name.split(".")
    read = decode(FRAMES[name])
    assert read.language == "JAVA"
    assert read.version == {"4.9.7": 407, "5.5.0": 513}[".".join(version)]
    if kind in COMMANDS:
        code, shape = COMMANDS[kind]
        assert (read.code, type(read.ext), read.is_response) == (code, shape, False)
        pushed = kind in ("check", "members_changed")
        assert read.binary is (header == "rocketmq" and not pushed)
        assert read.is_oneway is (pushed or code in (37, 15))
    else:
        assert (read.code, read.is_response) == (ANSWERS[kind], True)


@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_cut_in_its_header_is_a_protocol_error(name):
    frame = FRAMES[name]
    for cut in range(4, 4 + int.from_bytes(frame[1:4], "big")):
        with pytest.raises(ProtocolError):
            decode(frame[:cut])


def test_halves_say_so_in_their_properties():
    for request in of("half_send"):
        pairs = properties.to_dict(request.ext.properties)
        assert pairs["TRAN_MSG"] == "true"
        assert pairs["PGROUP"] == request.ext.group
        assert request.ext.sys_flag == 4
    assert all("TRAN_MSG" not in properties.to_dict(request.ext.properties) for request in of("plain_send"))


def test_verdicts():
    for kind, number, from_check in (
        ("commit", 8, False), ("rollback", 12, False), ("unknown", 0, False), ("commit_after_check", 8, True),
    ):  # fmt: skip
        for request in of(kind):
            assert (request.ext.commit_or_rollback, request.ext.from_transaction_check) == (number, from_check)
            assert len(request.ext.msg_id) == 56


def test_a_check_holds_one_message_with_the_group_and_the_count():
    for check in of("check"):
        message, log_offset, size = stored_message.decode(check.body)
        assert size == len(check.body)
        assert log_offset == check.ext.commit_log_offset
        assert message.queue_offset == check.ext.tran_state_table_offset
        pairs = properties.to_dict(message.properties)
        assert pairs["PGROUP"].endswith("producers")
        assert pairs["UNIQ_KEY"] == check.ext.msg_id == check.ext.transaction_id
        assert pairs["TRANSACTION_CHECK_TIMES"] >= "1"
        assert message.topic == pairs["REAL_TOPIC"]


def test_bodies():
    for request in of("heartbeat_producer"):
        assert "CLIENT_INNER_PRODUCER" in decode_heartbeat(request.body).producer_groups
    for request in of("heartbeat_consumer"):
        assert decode_heartbeat(request.body).consumer_groups
    for request in of("lock"):
        assert decode_lock_request(request.body).queues
    for answer in of("lock_answer"):
        assert decode_lock_response(answer.body)
    for answer in of("members"):
        assert decode_member_list(answer.body)
    for answer in of("route"):
        (broker,) = decode_route(answer.body).brokers
        assert broker.broker_name == "broker-a"
        assert set(broker.addresses) == {0}
    for answer in of("pull_found"):
        assert decode_pulled(answer.body)[0].message.store_time_ms > 0


def test_replies():
    assert all(len(answer.read(SentReply).msg_id) == 32 for answer in of("send_answer"))
    assert all(answer.read(OffsetReply).offset >= 0 for answer in of("offset_answer"))
    for kind in ("pull_found", "pull_nothing", "pull_moved"):
        for answer in of(kind):
            reply = answer.read(PulledReply)
            assert reply.min_offset <= reply.next_begin_offset <= reply.max_offset
