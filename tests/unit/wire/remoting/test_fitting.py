"""HMQ_FITTING: how many messages fit into a number of bytes."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.codes import HMQ_FITTING
from halfmq.wire.remoting.fitting import FittingRequest, decode_answer, decode_request, encode_answer, encode_request
from halfmq.wire.remoting.header import decode, encode_response
from halfmq.wire.remoting.header import encode_request as encode_frame

ASKED = FittingRequest("orders", 3, 7, 1 << 40, 1 << 41)


@pytest.mark.parametrize("binary", [False, True])
def test_question_and_answer_come_through_both_serialisations(binary: bool) -> None:
    request = decode(encode_frame(HMQ_FITTING, 5, encode_request(ASKED), binary=binary)[4:])
    assert decode_request(request.ext) == ASKED
    response = decode(encode_response(request, 0, ext=encode_answer(12, 3_456))[4:])
    assert decode_answer(response.ext) == (12, 3_456)


@pytest.mark.parametrize("name", ["topic", "queueId", "offset", "end", "bytes"])
@pytest.mark.parametrize("value", [None, "", "-1", "1e3", "\u00b2", "9" * 20])
def test_a_malformed_question_is_refused_by_name(name: str, value: str | None) -> None:
    ext = encode_request(ASKED)
    if value is None:
        del ext[name]
    else:
        ext[name] = value
    found = decode_request(ext)
    if name == "topic" and value:
        assert found == ASKED._replace(topic=value), "whether there is such a topic, the broker knows"
    else:
        assert isinstance(found, str)
        assert found.startswith(name)


@pytest.mark.parametrize("ext", [{}, {"count": "1"}, {"count": "x", "bytes": "1"}, {"count": "-1", "bytes": "0"}])
def test_a_malformed_answer_is_an_error(ext: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="HMQ_FITTING"):
        decode_answer(ext)
