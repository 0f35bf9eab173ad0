"""One question to a broker and its answer, for commands that ask once and end. Blocking, one connection, no retries."""

import socket
from collections.abc import Mapping

from halfmq.client.connector import Address
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, SendTimeout
from halfmq.wire.remoting import header
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request

_OPAQUE = 1
_READ_BYTES = 1 << 18


def ask(
    address: Address, code: int, ext: Mapping[str, str], timeout_s: float, body: bytes = b""
) -> Request[dict[str, str]]:
    """The answer, whatever its code.

    Raises:
        ConnectError: nobody listens there; nothing was asked.
        SendTimeout: it was asked, and no answer came: a verdict may have been taken.
        RequestFailed: the server does not know such commands. ProtocolError: what came is no answer.
    """
    try:
        stream = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise ConnectError(f"{address}: {error}", hint="is the broker running, is --url right") from error
    with stream:
        stream.settimeout(timeout_s)
        try:
            stream.sendall(header.encode_request(code, _OPAQUE, ext, body))
            answer = _answer(stream)
        except OSError as error:
            raise SendTimeout(
                f"{address}: no answer: {error or type(error).__name__}",
                hint="ask again; name servers before RocketMQ 5.0 do not answer what they do not know",
            ) from error
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RequestFailed(
            f"{address} does not know this command",
            response_code=answer.code,
            hint="it is no halfmq broker, or an old one",
        )
    return answer


def _answer(stream: socket.socket) -> Request[dict[str, str]]:
    splitter = FrameSplitter()
    while data := stream.recv(_READ_BYTES):
        for frame in splitter.feed(data):
            answer = header.decode(frame)
            if not answer.is_response or answer.opaque != _OPAQUE:
                raise ProtocolError("something else came than the answer", hint="is that address a broker")
            return answer
    raise ConnectionResetError("the connection was closed")
