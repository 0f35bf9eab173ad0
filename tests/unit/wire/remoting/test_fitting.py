"""HMQ_FITTING: how many messages fit into a number of bytes."""

import pytest
from msgspec import ValidationError

from halfmq.errors import ProtocolError
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.wire.remoting.codes import HMQ_FITTING
from halfmq.wire.remoting.header import decode, encode_request, encode_response
from halfmq.wire.remoting.position import FittingAnswer, FittingFields

ASKED = FittingFields("orders", 3, 7, 1 << 40, 1 << 41)


@pytest.mark.parametrize("binary", [False, True])
def test_question_and_answer_come_through_both_serialisations(binary: bool) -> None:
    frame = encode_request(HMQ_FITTING, 5, write_fields(ASKED), binary=binary)[4:]
    assert decode(frame, {HMQ_FITTING: FittingFields}).ext == ASKED
    response = decode(encode_response(decode(frame), 0, ext=write_fields(FittingAnswer(12, 3_456)))[4:])
    assert response.ext == {"count": "12", "bytes": "3456"}
    assert response.read(FittingAnswer) == FittingAnswer(12, 3_456)


@pytest.mark.parametrize("name", ["topic", "queueId", "offset", "end", "bytes"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_question_without_a_field_is_refused_by_name(name: str, value: str | None) -> None:
    ext = {**write_fields(ASKED), name: value}
    if value is None:
        del ext[name]
    with pytest.raises(ValidationError, match=name):
        read_fields(FittingFields, ext)


@pytest.mark.parametrize("ext", [{}, {"count": "1"}, {"count": "x", "bytes": "1"}, {"count": "-1", "bytes": "0"}])
def test_a_malformed_answer_is_an_error(ext: dict[str, str]) -> None:
    response = decode(encode_response(decode(encode_request(HMQ_FITTING, 5)[4:]), 0, ext=ext)[4:])
    with pytest.raises(ProtocolError, match="malformed"):
        response.read(FittingAnswer)
