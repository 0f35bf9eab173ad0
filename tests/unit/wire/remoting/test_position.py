"""HMQ_POSITION: all queues at one position."""

import pytest

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.limits import SIZE_SAMPLES_MAX
from halfmq.model.queue_reads import Position, TopicBounds
from halfmq.model.text_fields import read_fields
from halfmq.wire.remoting.codes import HMQ_POSITION
from halfmq.wire.remoting.header import decode, encode_request, encode_response
from halfmq.wire.remoting.position import (
    PositionFields,
    asked_samples,
    asked_topics,
    decode_answer,
    encode_answer,
    encode_samples,
    request_ext,
)

ANSWER = Position("ab" * 16, 3, 4_711, {"orders": TopicBounds(7, ((0, 10), (4, 4))), "empty": TopicBounds(8, ())})


@pytest.mark.parametrize("binary", [False, True])
def test_question_and_answer_come_through_both_serialisations(binary: bool) -> None:
    request = decode(encode_request(HMQ_POSITION, 5, request_ext(("orders", "%RETRY%g", "orders")), binary=binary)[4:])
    assert request.code == HMQ_POSITION
    assert asked_topics(PositionFields(request.ext["topics"])) == ("orders", "%RETRY%g")
    ext, body = encode_answer(ANSWER)
    response = decode(encode_response(request, 0, ext=ext, body=body)[4:])
    assert decode_answer(response.ext, response.body) == ANSWER


def test_the_bytes_of_an_answer() -> None:
    ext, body = encode_answer(ANSWER)
    assert list(ext.items()) == [("store", "ab" * 16), ("epoch", 3), ("position", 4711)]
    assert body == b'{"orders":{"id":7,"queues":[[0,10],[4,4]]},"empty":{"id":8,"queues":[]}}'


@pytest.mark.parametrize("binary", [False, True])
def test_samples_and_their_sizes_come_through_both_serialisations(binary: bool) -> None:
    samples = {"orders": [(0, 5), (1, 7)], "empty": [(0, 0)]}
    ext = request_ext(samples)
    request = decode(encode_request(HMQ_POSITION, 5, ext, encode_samples(samples), binary=binary)[4:])
    assert asked_samples(request.body) == samples
    answer = ANSWER._replace(topics={"orders": TopicBounds(7, ((0, 10),), ((16, 4_711), (0, 0)))})
    found, body = encode_answer(answer)
    assert body == b'{"orders":{"id":7,"queues":[[0,10]],"sizes":[[16,4711],[0,0]]}}'
    assert decode_answer(found, body) == answer


def test_a_request_asks_for_a_bounded_number_of_samples() -> None:
    many = {"a": [(0, 1)] * (SIZE_SAMPLES_MAX - 1), "b": [(0, 1)] * 5, "c": [(0, 1)]}
    found = asked_samples(encode_samples(many))
    assert {topic: len(samples) for topic, samples in found.items()} == {"a": SIZE_SAMPLES_MAX - 1, "b": 1, "c": 0}


@pytest.mark.parametrize("body", [b"x", b"[1]", b'{"t":[[1]]}', b'{"t":[["0",1]]}', b"[" * 60_000])
def test_samples_that_make_no_sense_are_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="HMQ_POSITION"):
        asked_samples(body)


def test_no_topics_asks_for_the_position_alone() -> None:
    request = decode(encode_request(HMQ_POSITION, 5, request_ext(()))[4:])
    assert asked_topics(read_fields(PositionFields, request.ext)) == ()
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
        ({"store": "a", "epoch": "1", "position": "1"}, b'{"t":{"id":1,"queues":[],"sizes":[[2,1]]}}'),
        ({"store": "a", "epoch": "1", "position": "1"}, b'{"t":{"id":1,"queues":[],"sizes":[[-1,4]]}}'),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(ext: dict[str, str], body: bytes) -> None:
    with pytest.raises(ProtocolError, match="HMQ_POSITION"):
        decode_answer(ext, body)


def test_an_answer_that_is_nested_too_deep_is_a_protocol_error() -> None:
    ext, _ = encode_answer(Position("ab", 1, 2, {}))
    with pytest.raises(ProtocolError):
        decode_answer(ext, b'{"a":' * 5_000 + b"1" + b"}" * 5_000)


def test_more_topics_than_there_can_be_are_counted_only() -> None:
    assert len(asked_topics(PositionFields("," * (limits.TOPICS_MAX - 1)))) == 0
    with pytest.raises(ProtocolError, match="65537 names"):
        asked_topics(PositionFields("," * limits.TOPICS_MAX))
