"""One connection to one server: sends requests, matches responses by opaque, passes server requests to a callback.

It never retries. A request that was not written raises ``NotSent``; one that was written but got no response raises
``NoAnswer``: its outcome is unknown. ``retry`` has the policy for both.

Frames of one event-loop turn are written together.
"""

import asyncio
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from math import inf
from typing import Any, Final, cast

from halfmq.client.connector import Exchange, decode
from halfmq.client.credentials import Credentials
from halfmq.client.forks import detach_in_children
from halfmq.client.log import log
from halfmq.client.login import PROBE, PROBE_AFTER_S, log_in
from halfmq.client.pending import Pending
from halfmq.errors import ProtocolError
from halfmq.model.address import Address, ip_of
from halfmq.wire.remoting import header
from halfmq.wire.remoting.codes import HMQ_LOGIN, ResponseCode
from halfmq.wire.remoting.header import Request

Answer = Request[Mapping[str, str]]
#: Called with each request from the server (a check, a membership change, ...). Must not block.
OnPush = Callable[["Connection", Request[Any]], None]
OnLost = Callable[["Connection"], None]
#: Called when a request has timed out and nothing was heard since it was written. True: it asks on this connection until it hears
#: something.
OnSilent = Callable[["Connection"], bool]

#: A connection on which nothing is heard for this long after a request is given up, seconds.
_SILENT_S: Final = 3.0
#: Unanswered requests whose late answer somebody wants; older ones are forgotten.
_LATE_MAX: Final = 1_000
_LOOPBACK: Final = IPv4Address("127.0.0.1")


class NotSent(Exception):
    """The request was not written: the connection is closed, or does not accept data in time."""


class NoAnswer(Exception):
    """The request was written, and no answer came in time or before the connection was lost: outcome unknown."""


class Connection(asyncio.Protocol):
    """Made by ``connection_pool``. The first heartbeat sets ``version`` and ``is_halfmq``."""

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        on_push: OnPush,
        on_lost: OnLost,
        on_silent: OnSilent = lambda _: False,
    ) -> None:
        self.address = address
        #: MQVersion ordinal of the server; 0 until its first heartbeat answer.
        self.version = 0
        #: The server acknowledges END_TRANSACTION, and supports several halves per transaction.
        self.is_halfmq = False
        self.closed = False
        #: A request has timed out, and nothing was heard since it was written: it may be slow, and is to be asked.
        self.is_in_doubt = False
        #: Since when it has been silent, if it is in doubt: when the request was written, on the loop's clock.
        self.silent_from = inf
        #: Set by who asked it then, and got no answer either.
        self.is_silent = False
        #: Local IP address, packed; part of message ids.
        self.local_ip = _LOOPBACK.packed
        self._loop = loop
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_silent = on_silent
        #: With which requests are signed; None: they are not. Set by ``log_in``.
        self._credentials: Credentials | None = None
        self._exchange = Exchange()
        #: A new request number, for ``call``.
        self.next_opaque = self._exchange.next_opaque
        self._transport: asyncio.Transport | None = None
        #: Written requests by opaque.
        self._waiting: Pending[int, Answer] = Pending(loop, self._timed_out, self._when_timed_out)
        #: By opaque: who wants the answer to a request that has timed out.
        self._late: dict[int, Callable[[Answer], None]] = {}
        self._frames: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard_at = loop.time()
        self._gone = asyncio.Event()

    # --- requests -------------------------------------------------------------------------------------------------

    def call(self, opaque: int, frame: bytes, timeout_s: float) -> "asyncio.Future[Answer]":
        """Write ``frame`` and return a future for its response. ``opaque`` must come from ``next_opaque``.

        The future completes with the response (any code) or with ``NoAnswer``. Frames are written in call order.

        Raises:
            NotSent: the connection is closed.
        """
        if self.closed:
            raise NotSent(f"the connection to {self.address} is closed")
        future = self._waiting.add(opaque, timeout_s)
        self._write_request(frame)
        return future

    def when_late(self, opaque: int, take: Callable[[Answer], None]) -> None:
        """Call ``take`` if the request, which has timed out, is answered after all on this connection. It must not raise."""
        if not self.closed:
            self._late[opaque] = take
            if len(self._late) > _LATE_MAX:
                del self._late[next(iter(self._late))]

    async def request(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Answer:
        """Send one request and return its response, whatever its code. ``timeout_s``: seconds in all.

        Raises:
            NotSent: nothing was written. NoAnswer: no response in time, or the connection was lost.
        """
        if not self._writable.is_set():
            deadline = self._loop.time() + timeout_s
            await self.ready(timeout_s)
            timeout_s = deadline - self._loop.time()
        opaque = self.next_opaque()
        return await self.call(opaque, header.encode_request(code, opaque, ext, body), timeout_s)

    async def log_in(self, credentials: Credentials, timeout_s: float) -> None:
        """Say who this is, before any other request; from then on requests are signed if the server is Apache RocketMQ's.

        ``timeout_s``: seconds for each response; the caller limits the whole.

        Raises:
            NotSent, NoAnswer: as ``request``. LoginFailed, ConnectError, ProtocolError: as ``login.log_in``. The caller closes it.
        """
        steps = log_in(self.address, credentials.user, credentials.secret())
        fields = next(steps)
        answer = await self._first_answer(fields, timeout_s)
        while True:
            try:
                fields = steps.send(answer)
            except StopIteration as over:
                self._credentials = credentials if over.value else None
                return
            answer = await self.request(HMQ_LOGIN, fields, timeout_s=timeout_s)

    async def _first_answer(self, fields: Mapping[str, str], timeout_s: float) -> Answer | None:
        """The response to the first HMQ_LOGIN; None: the server does not know it, and answered ``PROBE`` instead."""
        asked = [self._ask(HMQ_LOGIN, fields, timeout_s)]
        try:
            await asyncio.wait(asked, timeout=PROBE_AFTER_S)
            if not asked[0].done():
                asked.append(self._ask(PROBE, {}, timeout_s))
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            if asked[0].done():
                return asked[0].result()
            asked[1].result()
            return None
        finally:
            for future in asked:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # mark it as retrieved: the connection may have been lost before both

    def _ask(self, code: int, fields: Mapping[str, str], timeout_s: float) -> "asyncio.Future[Answer]":
        opaque = self.next_opaque()
        return self.call(opaque, header.encode_request(code, opaque, fields), timeout_s)

    def send_oneway_frame(self, frame: bytes) -> None:
        """Send an encoded one-way frame. Raises NotSent if the connection is closed."""
        if self.closed:
            raise NotSent(f"the connection to {self.address} is closed")
        self._write_request(frame)

    def answer(self, request: Request[Any], code: int, remark: str = "") -> None:
        """Respond to a request from the server. Ignored if it is one-way or the connection is closed."""
        if not self.closed and not request.is_oneway:
            self._write(header.encode_response(request, code, remark or None))

    async def ready(self, timeout_s: float) -> None:
        """Wait until the write buffer accepts data again.

        Raises:
            NotSent: not within ``timeout_s`` seconds; nothing was written.
        """
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._writable.wait()
        except TimeoutError:
            raise NotSent(f"{self.address} does not read") from None

    def _write_request(self, frame: bytes) -> None:
        self._write(frame if self._credentials is None else self._credentials.sign(frame))

    def _write(self, frame: bytes) -> None:
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(frame)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if self._transport is not None and not self.closed and frames:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _timed_out(self) -> NoAnswer:
        return NoAnswer(f"{self.address} did not answer in time")

    def _when_timed_out(self, written_at: list[float]) -> None:
        was_in_doubt = self.is_in_doubt
        for at in written_at:
            if self._heard_at <= at:
                self.doubt(at)
        is_asked = self.is_in_doubt and not was_in_doubt and self._on_silent(self)
        # Detects a dead peer, for which TCP alone needs minutes. A slow response while others arrive is no reason.
        if not is_asked and self._loop.time() - self.silent_from >= _SILENT_S:
            self.abort("it has been silent since the request that timed out")

    def doubt(self, silent_from: float) -> None:
        """It is in doubt until something is heard. ``silent_from``: as the attribute, of the first request that says so."""
        self.is_in_doubt = True
        self.silent_from = min(self.silent_from, silent_from)

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._heard_at = self._loop.time()
        name = transport.get_extra_info("sockname")
        if name:
            self.local_ip = (ip_of(name[0]) or _LOOPBACK).packed
        detach_in_children(self)

    def descriptor(self) -> int:
        """The file descriptor of the open socket; -1 if the connection is closed or has no socket (simulation)."""
        stream = None if self._transport is None or self.closed else self._transport.get_extra_info("socket")
        return -1 if stream is None else int(stream.fileno())

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self.is_in_doubt:
            self.is_in_doubt = self.is_silent = False
            self.silent_from = inf
        try:
            for frame in self._exchange.frames(data):
                try:
                    message = decode(frame)
                except header.InvalidHeader as error:
                    log.warning("a request of %s cannot be read: %s", self.address, error)
                    self.answer(error.request, ResponseCode.SYSTEM_ERROR, str(error))
                else:
                    self._take(message)
        except ProtocolError as error:
            self.abort(f"it broke the protocol: {error}")

    def _take(self, message: Request[Any]) -> None:
        if not message.is_response:
            self._on_push(self, message)
            return
        if self._waiting.answer(message.opaque, message):
            return
        if message.opaque in self._late:
            self._late.pop(message.opaque)(message)
        else:
            log.debug("late or unknown answer %d from %s", message.opaque, self.address)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._end(f"the connection to {self.address} was lost" + (f": {exc}" if exc else ""))

    # --- the end --------------------------------------------------------------------------------------------------

    def abort(self, why: str) -> None:
        """Drop the connection now; pending requests fail with ``NoAnswer``."""
        if not self.closed:
            log.warning("closing the connection to %s: %s", self.address, why)
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Flush queued frames, then close; pending requests fail with ``NoAnswer``."""
        self._flush()
        self._end("the client was closed")
        if self._transport is not None:
            self._transport.close()

    async def gone(self, timeout_s: float) -> None:
        """After ``close``: return when its socket is closed. TLS waits for an answer of the server, here at most ``timeout_s`` seconds."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def _end(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._late.clear()
        self._waiting.end(lambda: NoAnswer(why))
        self._writable.set()
        self._on_lost(self)
