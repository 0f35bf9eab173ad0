"""Questions to a broker and their answers, for commands that ask and end. Blocking, one connection, no retries."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from halfmq.client.connector import Address
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, SendTimeout
from halfmq.wire.remoting import header
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request

_OPAQUE = 1
_READ_BYTES = 1 << 18
#: Questions that are on their way at once: a broker makes one batch of them, and one sync.
AT_ONCE_MAX: Final = 64


def ask(
    address: Address, code: int, ext: Mapping[str, str], timeout_s: float, body: bytes = b""
) -> Request[dict[str, str]]:
    """The answer, whatever its code.

    Raises:
        ConnectError: nobody listens there; nothing was asked.
        SendTimeout: it was asked, and no answer came: a verdict may have been taken.
        RequestFailed: the server does not know such commands. ProtocolError: what came is no answer.
    """
    (answer,) = ask_each(address, code, [ext], timeout_s, body)
    return answer


def ask_each(
    address: Address, code: int, exts: Sequence[Mapping[str, str]], timeout_s: float, body: bytes = b""
) -> Iterator[Request[dict[str, str]]]:
    """The answers to the same command with each of these fields, in that order, over one connection. A few are asked at once.

    Raises as ``ask``; when an answer does not come, any of those behind the last one that did may have happened.
    """
    try:
        stream = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise ConnectError(f"{address}: {error}", hint="is the broker running, is --url right") from error
    with stream:
        stream.settimeout(timeout_s)
        splitter = FrameSplitter()
        came: dict[int, Request[dict[str, str]]] = {}
        sent = 0
        for number in range(len(exts)):
            try:
                while sent < min(len(exts), number + AT_ONCE_MAX):
                    stream.sendall(header.encode_request(code, _OPAQUE + sent, exts[sent], body))
                    sent += 1
                answer = _answer(stream, splitter, came, _OPAQUE + number, _OPAQUE + sent)
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
            yield answer


def _answer(
    stream: socket.socket, splitter: FrameSplitter, came: dict[int, Request[dict[str, str]]], opaque: int, end: int
) -> Request[dict[str, str]]:
    """The answer to ``opaque``; what comes before it goes to ``came``. ``end``: one past the last that was asked."""
    while opaque not in came:
        data = stream.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        for frame in splitter.feed(data):
            answer = header.decode(frame)
            if not answer.is_response or not opaque <= answer.opaque < end:
                raise ProtocolError("something else came than the answer", hint="is that address a broker")
            came[answer.opaque] = answer
    return came.pop(opaque)
