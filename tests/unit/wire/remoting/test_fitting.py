"""HMQ_FITTING: how many messages fit into a number of bytes."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.codes import HMQ_FITTING
from halfmq.wire.remoting.fields import FittingFields
from halfmq.wire.remoting.fitting import FittingRequest, decode_fitting, encode_fitting, fitting_ext
from halfmq.wire.remoting.header import decode, encode_request, encode_response


@pytest.mark.parametrize("binary", [False, True])
def test_question_and_answer_come_through_both_serialisations(binary: bool) -> None:
    ext = fitting_ext(FittingRequest("orders", 3, 7, 1 << 40, 1 << 41))
    request = decode(encode_request(HMQ_FITTING, 5, ext, binary=binary)[4:])
    assert request.ext == FittingFields("orders", 3, 7, 1 << 40, 1 << 41)
    response = decode(encode_response(request, 0, ext=encode_fitting(12, 3_456))[4:])
    assert decode_fitting(response.ext) == (12, 3_456)


@pytest.mark.parametrize("ext", [{}, {"count": "1"}, {"count": "x", "bytes": "1"}, {"count": "-1", "bytes": "0"}])
def test_a_malformed_answer_is_an_error(ext: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="HMQ_FITTING"):
        decode_fitting(ext)
