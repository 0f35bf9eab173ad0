"""A blocking connection for responses of megabytes: their header is read before their body, which is received where it stays.

``Connection`` collects a response in pieces and copies them. Here the body is received into one buffer, which the next response uses again:
fresh memory costs more than the copy (2 us for a page of 4 KiB where memory is virtual).
"""

import socket
import struct
from collections.abc import Mapping
from typing import Final

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.spark.network.connection import Address, broken, open_socket
from halfmq.spark.retry_deadline import Unavailable
from halfmq.wire.remoting import header
from halfmq.wire.remoting.header import Request, encode_request

#: A response may be larger than a request: a message of maximum size, with others.
_FRAME_BYTES_MAX: Final = 2 * limits.FRAME_BYTES_MAX
_TWO_WORDS: Final = struct.Struct(">II")


class RawConnection:
    """The caller must close it, also after ``Unavailable`` or ``ProtocolError``. Responses come in the order of their requests."""

    def __init__(self, address: Address, stream: socket.socket) -> None:
        self.address = address
        self._stream = stream
        self._opaque = 0
        self._received = 0
        self._buffer = bytearray()
        #: Length of the body of the response whose header was read.
        self._body_bytes = 0

    @classmethod
    def open(cls, address: Address) -> "RawConnection":
        """Connect. Raises Unavailable."""
        return cls(address, open_socket(address))

    def send(self, code: int, fields: Mapping[str, object]) -> None:
        """Send a request. Raises Unavailable."""
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields))
        except OSError as error:
            raise broken(self.address, error) from error

    def head(self) -> Request[dict[str, str]]:
        """The next response, without its body: call ``body`` before the next one.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than the response.
        """
        words = bytearray(8)
        self._exactly(memoryview(words))
        total, word = _TWO_WORDS.unpack(words)
        head_bytes = word & 0xFFFFFF
        if not head_bytes + 4 <= total <= _FRAME_BYTES_MAX:
            raise ProtocolError(f"a response of {total} bytes with a header of {head_bytes}")
        head = bytearray(head_bytes)
        self._exactly(memoryview(head))
        answer = header.decode(bytes(words[4:] + head))
        self._received += 1
        if not answer.is_response or answer.opaque != self._received:
            raise ProtocolError(f"response {answer.opaque} arrived instead of {self._received}")
        self._body_bytes = total - 4 - head_bytes
        return answer

    def body(self) -> memoryview:
        """The body of the response whose header was read. It is overwritten by the next call. Raises as ``head``."""
        if len(self._buffer) < self._body_bytes:
            self._buffer = bytearray(self._body_bytes)
        body = memoryview(self._buffer)[: self._body_bytes]
        self._exactly(body)
        return body

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()

    def _exactly(self, left: memoryview) -> None:
        """Fill ``left``."""
        try:
            while len(left):
                received = self._stream.recv_into(left)
                if not received:
                    raise Unavailable(f"{self.address[0]}:{self.address[1]} closed the connection")
                left = left[received:]
        except OSError as error:
            raise broken(self.address, error) from error
