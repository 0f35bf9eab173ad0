"""Bytes of a connection to frames, and back.

    0 total 4 | 4 serialisation 1 | 5 header length 3 | 8 header | body

``total`` counts what follows it. A frame is handed on *without* ``total``: it starts with the serialisation byte.
Source: RocketMQ ``NettyDecoder``, ``RemotingCommand``.
"""

import struct
from typing import Final

from halfmq import limits
from halfmq.errors import ProtocolError

_TOTAL: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
#: Serialisation byte and header length: the least that can follow ``total``.
_FRAME_BYTES_MIN: Final = 4
#: Content type 22 (handshake) and major version 3 (RFC 8446, 5.1). As a length it is above every limit.
_TLS_HELLO: Final = 0x1603
_HEADER_BYTES_MAX: Final = (1 << 24) - 1
_BINARY_BIT: Final = 1 << 24


class BrokenFrame(ProtocolError):
    """The length of a frame cannot be right, so nothing after it can be read: close the connection.

    ``frames`` came whole before it in the same read. The caller may still handle them, or not: nothing was answered.
    """

    def __init__(self, message: str, frames: list[bytes], *, hint: str = "", is_tls: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.frames = frames
        #: It looks like the hello of a TLS client: a handshake record of version 3.
        self.is_tls = is_tls


class FrameSplitter:
    """Cuts the byte stream of one connection into frames. One for each connection.

    After a ``BrokenFrame`` it must not be fed again.
    """

    __slots__ = ("_frame_bytes_max", "_pending", "_wanted", "frames_bytes")

    def __init__(self, frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        #: The start of a frame that is not whole yet; never holds a whole one.
        self._pending = bytearray()
        #: How long ``_pending`` must become before looking at it again pays.
        self._wanted = 4
        #: Of the frames that the last ``feed`` gave, with the four bytes before each.
        self.frames_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished frame: not 0 at the end of a connection means that the peer was cut off."""
        return len(self._pending)

    @property
    def missing_bytes(self) -> int:
        """What the unfinished frame lacks; up to its end, once the four bytes of its length are here."""
        return self._wanted - len(self._pending) if self._pending else 0

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that ``data`` completes, in order.

        Raises:
            BrokenFrame: a length is below 4 or above the limit.
        """
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._wanted:
                self.frames_bytes = 0
                return []
            data = bytes(pending)
            # A new one, not clear(): a frame of 16 MiB must not keep its room for the life of the connection.
            self._pending = bytearray()
        frames: list[bytes] = []
        at = 0
        end = len(data)
        wanted = 4
        length_at = _TOTAL.unpack_from
        limit = self._frame_bytes_max
        while end - at >= 4:
            total: int = length_at(data, at)[0]
            if total > limit or total < _FRAME_BYTES_MIN:
                raise _broken(total, limit, frames)
            stop = at + 4 + total
            if stop > end:
                wanted = 4 + total
                break
            frames.append(data[at + 4 : stop])
            at = stop
        if at < end:
            self._pending += memoryview(data)[at:]
            self._wanted = wanted
        self.frames_bytes = at
        return frames


def _broken(total: int, limit: int, frames: list[bytes]) -> BrokenFrame:
    if total > limit:
        return BrokenFrame(
            f"a frame of {total} bytes was announced, at most {limit} are taken",
            frames,
            hint="a message that is too large, or a peer that does not speak the remoting protocol",
            is_tls=not frames and total >> 16 == _TLS_HELLO,
        )
    return BrokenFrame(f"a frame of {total} bytes was announced, it needs at least {_FRAME_BYTES_MIN}", frames)


def assemble(header: bytes, body: bytes | bytearray | memoryview = b"", *, binary: bool = False) -> bytes:
    """One whole frame, ``total`` included, ready to be sent."""
    return assemble_head(header, len(body), binary=binary) + body


def assemble_head(header: bytes, body_bytes: int, *, binary: bool = False) -> bytes:
    """The frame up to its body, for a body that is sent behind it without being copied.

    Raises:
        ProtocolError: the header does not fit its 24-bit length.
    """
    header_bytes = len(header)
    if header_bytes > _HEADER_BYTES_MAX:
        raise ProtocolError(f"a header of {header_bytes} bytes does not fit a frame")
    word = header_bytes | _BINARY_BIT if binary else header_bytes
    return _TWO_WORDS.pack(4 + header_bytes + body_bytes, word) + header
