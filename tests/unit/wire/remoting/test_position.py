"""HMQ_POSITION: all queues at one position."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.codes import HMQ_POSITION
from halfmq.wire.remoting.header import decode, encode_request, encode_response
from halfmq.wire.remoting.position import (
    PositionAnswer,
    TopicBounds,
    asked_topics,
    decode_answer,
    encode_answer,
    request_ext,
)

ANSWER = PositionAnswer("ab" * 16, 3, 4_711, {"orders": TopicBounds(7, ((0, 10), (4, 4))), "empty": TopicBounds(8, ())})


@pytest.mark.parametrize("binary", [False, True])
def test_question_and_answer_come_through_both_serialisations(binary: bool) -> None:
    request = decode(encode_request(HMQ_POSITION, 5, request_ext(("orders", "%RETRY%g", "orders")), binary=binary)[4:])
    assert request.code == HMQ_POSITION
    assert asked_topics(request.ext) == ("orders", "%RETRY%g")
    ext, body = encode_answer(ANSWER)
    response = decode(encode_response(request, 0, ext=ext, body=body)[4:])
    assert decode_answer(response.ext, response.body) == ANSWER


def test_the_bytes_of_an_answer() -> None:
    ext, body = encode_answer(ANSWER)
    assert ext == {"store": "ab" * 16, "epoch": "3", "position": "4711"}
    assert body == b'{"orders":{"id":7,"queues":[[0,10],[4,4]]},"empty":{"id":8,"queues":[]}}'


def test_no_topics_asks_for_the_position_alone() -> None:
    request = decode(encode_request(HMQ_POSITION, 5, request_ext(()))[4:])
    assert asked_topics(request.ext) == ()
    ext, body = encode_answer(ANSWER._replace(topics={}))
    assert decode_answer(ext, body).topics == {}


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({"epoch": "1", "position": "1"}, b"{}"),
        ({"store": "a", "epoch": "one", "position": "1"}, b"{}"),
        ({"store": "a", "epoch": "1", "position": "1"}, b""),
        ({"store": "a", "epoch": "1", "position": "1"}, b'{"t":{"id":1,"queues":[[0]]}}'),
        ({"store": "a", "epoch": "1", "position": "1"}, b'{"t":{"id":1,"queues":[[5,4]]}}'),
        ({"store": "a", "epoch": "1", "position": "1"}, b'{"t":{"id":1,"queues":[[-1,4]]}}'),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(ext: dict[str, str], body: bytes) -> None:
    with pytest.raises(ProtocolError, match="HMQ_POSITION"):
        decode_answer(ext, body)


def test_an_answer_that_is_nested_too_deep_is_a_protocol_error() -> None:
    ext, _ = encode_answer(PositionAnswer("ab", 1, 2, {}))
    with pytest.raises(ProtocolError):
        decode_answer(ext, b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
