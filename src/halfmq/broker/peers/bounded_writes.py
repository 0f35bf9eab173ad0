"""Writes of a TLS connection, in parts: its transport does not keep the bounds that a plain one keeps.

A TLS transport, of asyncio as of uvloop, encrypts all that is written at once, into memory of OpenSSL that grows with it and is freed when
the connection ends. It passes it on to the socket's transport, whose buffer it does not count, so that a peer of which megabytes wait there
is not told that it is full. Therefore a TLS transport gets parts of 64 KiB here, and none while it is full. It then keeps at most three of
them, and the rest waits here, where it is counted.
"""

import asyncio
from collections import deque
from typing import Any, Final, cast

#: As the limit of a plain transport, bytes.
PART_BYTES: Final = 65_536


class BoundedWrites(asyncio.Transport, asyncio.Protocol):
    """Between a TLS transport and a peer: the protocol of the one, the transport of the other."""

    def __init__(self, peer: asyncio.Protocol) -> None:
        super().__init__()
        self._peer = peer
        self._below: asyncio.Transport
        #: What waits until the transport below accepts it; then it is full, and the peer has been told.
        self._left: deque[memoryview] = deque()
        self._left_bytes = 0
        self._is_full = False
        self._is_told = False
        self._is_closing = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._below.set_write_buffer_limits(high=PART_BYTES)
        self._peer.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._peer.data_received(data)

    def eof_received(self) -> bool | None:
        return self._peer.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._drop()
        self._peer.connection_lost(error)

    def pause_writing(self) -> None:
        self._is_full = True
        if not self._is_told:
            self._is_told = True
            self._peer.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self._pass_on()
        if self._is_full:
            return
        if self._is_closing:
            self._below.close()
        else:
            self._is_told = False
            self._peer.resume_writing()

    def _pass_on(self) -> None:
        left = self._left
        while left and not self._is_full:
            part = left[0]
            if len(part) > PART_BYTES:
                left[0] = part[PART_BYTES:]
                part = part[:PART_BYTES]
            else:
                left.popleft()
            self._left_bytes -= len(part)
            self._below.write(part)

    def _drop(self) -> None:
        self._left.clear()
        self._left_bytes = 0

    # --- asyncio.Transport, as far as a peer uses it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        if len(data) <= PART_BYTES and not self._is_full:
            self._below.write(data)
            return
        self._left.append(memoryview(data))
        self._left_bytes += len(data)
        self._pass_on()

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size() + self._left_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def is_closing(self) -> bool:
        return self._is_closing or self._below.is_closing()

    def close(self) -> None:
        """Close after everything was sent."""
        if self.is_closing():
            return
        self._is_closing = True
        if self._left:
            self._below.pause_reading()  # ``resume_writing`` closes it
        else:
            self._below.close()

    def abort(self) -> None:
        self._is_closing = True
        self._drop()
        self._below.abort()
