"""Blocking requests to a broker, for the commands of ``halfmq tx``. One connection for each call of ``ask`` or ``ask_each``, no retries."""

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
#: Pipelined requests: the broker writes them as one batch with one sync.
AT_ONCE_MAX: Final = 64


def ask(
    address: Address, code: int, ext: Mapping[str, str], timeout_s: float, body: bytes = b""
) -> Request[dict[str, str]]:
    """Send one request and return the response, which may have any code.

    Raises:
        ConnectError: no connection; nothing was sent.
        SendTimeout: no response within ``timeout_s``; the request may have been executed.
        RequestFailed: the server does not support the command.
        ProtocolError: the server sent something other than the response.
    """
    (answer,) = ask_each(address, code, [ext], timeout_s, body)
    return answer


def ask_each(
    address: Address, code: int, exts: Sequence[Mapping[str, str]], timeout_s: float, body: bytes = b""
) -> Iterator[Request[dict[str, str]]]:
    """Send one request for each element of ``exts``, pipelined, and yield the responses in this order.

    Raises as ``ask``. After SendTimeout, any request without a response may have been executed.
    """
    try:
        stream = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise ConnectError(f"{address}: {error}", hint="check that the broker runs and that --url is right") from error
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
                    f"{address}: no response: {error or type(error).__name__}",
                    hint="try again; name servers before RocketMQ 5.0 do not respond to unknown commands",
                ) from error
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RequestFailed(
                    f"{address} does not support this command",
                    response_code=answer.code,
                    hint="it is not a halfmq broker, or an earlier version",
                )
            yield answer


def _answer(
    stream: socket.socket, splitter: FrameSplitter, came: dict[int, Request[dict[str, str]]], opaque: int, end: int
) -> Request[dict[str, str]]:
    """The response to request ``opaque``; others go to ``came``. ``end``: one past the last request that was sent."""
    while opaque not in came:
        data = stream.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        for frame in splitter.feed(data):
            answer = header.decode(frame)
            if not answer.is_response or not opaque <= answer.opaque < end:
                raise ProtocolError("unexpected response", hint="check that the address is a broker")
            came[answer.opaque] = answer
    return came.pop(opaque)
