"""Splits the byte stream of a connection into frames, and assembles frames.

    0 total 4 | 4 serialisation 1 | 5 header length 3 | 8 header | body

``total`` is the number of bytes after it. Decoders get the frame *without* ``total``, from the serialisation byte on.
Source: RocketMQ ``NettyDecoder``, ``RemotingCommand``.
"""

import struct
from typing import Final

from halfmq import limits
from halfmq.errors import ProtocolError

_TOTAL: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
#: Minimum of ``total``: serialisation byte and header length.
_FRAME_BYTES_MIN: Final = 4
#: First bytes of a TLS handshake and of an alert: content type 22 or 21, major version 3 (RFC 8446, 5.1). As lengths they exceed any limit.
_TLS: Final = (0x1603, 0x1503)
#: From this size on, what a copy of the frame takes is more than what avoiding it does.
_LARGE_BYTES: Final = 32_768
_HEADER_BYTES_MAX: Final = (1 << 24) - 1
_BINARY_BIT: Final = 1 << 24


class BrokenFrame(ProtocolError):
    """A frame has an invalid length, so the rest of the stream is unreadable. The caller must close the connection.

    ``frames``: the complete frames before it in the same read, which the caller may still handle.
    """

    def __init__(self, message: str, frames: list[bytes], *, hint: str = "", is_tls: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.frames = frames
        #: Whether it looks like TLS.
        self.is_tls = is_tls


class FrameSplitter:
    """Splits the byte stream of a connection into frames. After a ``BrokenFrame`` the caller must not use it again."""

    __slots__ = ("_frame_bytes_max", "_pending", "_wanted", "frames_bytes")

    def __init__(self, frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        #: The beginning of an incomplete frame.
        self._pending = bytearray()
        #: Length of ``_pending`` at which parsing can continue.
        self._wanted = 4
        #: Size of the frames that the last ``feed`` returned, including ``total``, bytes.
        self.frames_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Received bytes of an incomplete frame. If not 0 at the end of a connection, its last frame was truncated."""
        return len(self._pending)

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of the incomplete frame; of its length field, while that is incomplete."""
        return self._wanted - len(self._pending) if self._pending else 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the frames that they complete.

        Raises:
            BrokenFrame: a length is below 4 or above the limit.
        """
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._wanted:
                self.frames_bytes = 0
                return []
            # A new object instead of clear(), which might keep the memory of a 16 MiB frame.
            self._pending = bytearray()
            if self._wanted > _LARGE_BYTES:
                return self._feed_after_large(pending)
            data = bytes(pending)
        frames: list[bytes] = []
        at = 0
        #: Of the frame at ``at``, without its length.
        start = 4
        end = len(data)
        wanted = 4
        length_at = _TOTAL.unpack_from
        limit = self._frame_bytes_max
        while start <= end:
            total: int = length_at(data, at)[0]
            if total > limit or total < _FRAME_BYTES_MIN:
                raise _broken(total, limit, frames)
            stop = start + total
            if stop > end:
                wanted = 4 + total
                break
            frames.append(data[start:stop])
            at = stop
            start = stop + 4
        if at < end:
            self._pending += memoryview(data)[at:]
            self._wanted = wanted
        self.frames_bytes = at
        return frames

    def _feed_after_large(self, pending: bytearray) -> list[bytes]:
        """``feed`` when ``pending`` begins with a complete large frame, which is copied once instead of twice."""
        view = memoryview(pending)
        end = self._wanted
        frame = bytes(view[4:end])
        try:
            frames = self.feed(bytes(view[end:]))
        except BrokenFrame as error:
            error.frames.insert(0, frame)
            raise
        frames.insert(0, frame)
        self.frames_bytes += end
        return frames


def _broken(total: int, limit: int, frames: list[bytes]) -> BrokenFrame:
    if not frames and total >> 16 in _TLS:
        hint = "one end speaks TLS, and the other does not: clients with TLS have rocketmqs:// in their url"
        return BrokenFrame("TLS was received instead of a frame", frames, hint=hint, is_tls=True)
    if total > limit:
        return BrokenFrame(
            f"a frame of {total} bytes was announced; the maximum is {limit}",
            frames,
            hint="the message is too large, or the peer does not use the remoting protocol",
        )
    return BrokenFrame(f"a frame of {total} bytes was announced; the minimum is {_FRAME_BYTES_MIN}", frames)


# ``binary`` by position: a call with a keyword is not specialised, which takes 200 instructions.
def assemble(header: bytes, body: bytes | bytearray | memoryview = b"", binary: bool = False) -> bytes:
    """A complete frame, including ``total``."""
    return assemble_head(header, len(body), binary) + body


def assemble_head(header: bytes, body_bytes: int, binary: bool = False) -> bytes:
    """The frame without its body; the caller sends ``body_bytes`` of body after it.

    Raises:
        ProtocolError: the header is too long for its 24-bit length field.
    """
    header_bytes = len(header)
    if header_bytes > _HEADER_BYTES_MAX:
        raise ProtocolError(f"a header of {header_bytes} bytes does not fit in a frame")
    word = header_bytes | _BINARY_BIT if binary else header_bytes
    return _TWO_WORDS.pack(4 + header_bytes + body_bytes, word) + header
