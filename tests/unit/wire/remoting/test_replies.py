"""Answers as the client reads them."""

import json

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.fields import EndReply, OffsetReply, PulledReply, SentReply
from halfmq.wire.remoting.header import decode, encode_request, encode_response, encode_send_response

GOLDEN = vectors("remoting")


def answered(ext: dict):
    request = decode(encode_request(34, 7)[4:])
    return decode(encode_response(request, 0, None, ext)[4:])


def test_the_answer_of_a_4_9_8_broker_to_a_half():
    reply = answered(json.loads(GOLDEN["json.half_sent_ext"])).read(SentReply)
    assert reply == SentReply("7F000001000051AF0000000000000F9C", 1, 4, "")


def test_our_own_answer_to_a_send():
    reply = decode(encode_send_response(7, b"AB" * 16, 2, 5, b"U")[4:]).read(SentReply)
    assert reply == SentReply("AB" * 16, 2, 5, "U")


def test_the_answer_to_a_pull_of_a_real_broker():
    reply = decode(GOLDEN["pull_response_binary"][4:]).read(PulledReply)
    assert reply == PulledReply(1, 0, 1)


def test_offsets():
    assert answered({"offset": 5}).read(OffsetReply).offset == 5


def test_a_verdict_with_receipt_and_one_without():
    ext = {
        "HMQ_TX_ID": "t",
        "HMQ_VERDICT": "COMMITTED",
        "HMQ_POSITION": 9,
        "HMQ_DURABILITY": "fsync",
        "HMQ_REPEATED": True,
    }
    assert answered(ext).read(EndReply) == EndReply("t", "COMMITTED", 9, "fsync", True)
    assert answered({}).read(EndReply) == EndReply()


@pytest.mark.parametrize("ext", [{}, {"offset": "x"}, {"offset": 1 << 63}])
def test_an_answer_without_its_fields_is_a_protocol_error(ext):
    with pytest.raises(ProtocolError):
        answered(ext).read(OffsetReply)
