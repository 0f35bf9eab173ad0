"""One HTTP connection: h11 implements the protocol, this class limits its resources.

One request is processed at a time, and its connection is not read meanwhile: pipelined requests that were already received wait, the rest
stays in the socket. A connection thus holds one read, one request and one response. A client that does not send a complete request, or does
not read its response, within ``REQUEST_TIMEOUT_S`` is closed; a request that is not answered within it is answered with 503.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import h11
import msgspec

from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Peers
from halfmq.printable import printable_json

log = logging.getLogger("halfmq.http")

#: Maximum bytes of request line and headers, and maximum number of headers. Browsers and probes send a tenth of it.
HEADER_BYTES_MAX: Final = 8_192
HEADERS_MAX: Final = 64
#: Maximum time from the last response to the next complete request, s; also that of an idle connection.
REQUEST_TIMEOUT_S: Final = 15.0

#: Takes the status and a value for JSON, or a Text. Called once, on the loop; the connection may be closed by then.
Answer = Callable[[int, object], None]


class Text(NamedTuple):
    """A body that is not JSON, as it is sent."""

    content_type: str
    body: bytes


class HttpRequest(NamedTuple):
    """One request: what its door decides and responds with."""

    peer: "HttpConnection"
    #: GET also for a HEAD, whose response only lacks the body.
    method: str
    path: str
    #: The parameters, as they were sent.
    query: str
    #: By lower-case name; the first of those with one name.
    headers: Mapping[str, str]


Serve = Callable[[HttpRequest, Answer], None]


class HttpConnection(Peer):
    """One HTTP/1.1 connection: it reads the next request only after the response to the previous one."""

    #: It has limits of its own, since health must be shown when other peers have sent too much.
    is_throttled = False

    def __init__(self, peers: Peers, serve: Serve, ended: Callable[["HttpConnection"], None]) -> None:
        super().__init__(peers, peers.next_number())
        self._serve = serve
        self._on_ended = ended
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        #: A request is being processed, or its response was written in this turn.
        self._busy = False
        #: The request is a HEAD: its response has the headers of a GET's, and no body.
        self._is_head = False
        self._deadline: asyncio.TimerHandle | None = None
        #: Loop time of the last response, or of the begin, s.
        self.answered_at = 0.0
        self._is_given_up = False

    @property
    def is_closing(self) -> bool:
        """It was closed, and has not ended yet."""
        return self._is_given_up or (self.is_open and self.transport.is_closing())

    def abort(self) -> None:
        self._is_given_up = True
        super().abort()

    @property
    def is_served(self) -> bool:
        """A request is being processed, so that the delay is on our side."""
        return self._busy and not self.is_full

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait()

    def _ended(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_ended(self)
        super()._ended()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._next()

    def data_received(self, data: bytes) -> None:
        self.generation = self.peers.generation
        self._http.receive_data(data)
        self._next()

    def eof_received(self) -> bool:
        self._http.receive_data(b"")
        self._next()
        # The client may still read, but not with TLS, whose end closes both directions; ``_next`` closes when h11 has nothing left.
        return self.transport.get_extra_info("sslcontext") is None

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self.answered_at = loop.time()
        self._deadline = loop.call_later(REQUEST_TIMEOUT_S, self._too_slow)

    def _too_slow(self) -> None:
        if self.is_served and not self.transport.is_closing():
            why = f"no answer within {REQUEST_TIMEOUT_S:g} s: the broker cannot make durable what it would show"
            self._answer(503, {"error": why}, close=True)
        else:
            self.transport.abort()

    def _next(self) -> None:
        """Serve the next request, if it has arrived."""
        if self._busy or self.is_full or not self.is_open or self.transport.is_closing():
            return
        try:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                ends = isinstance(self._http.next_event(), h11.EndOfMessage)
                self._begin(event, has_body=not ends)
            elif isinstance(event, h11.ConnectionClosed):
                self.transport.close()
        except h11.RemoteProtocolError as error:
            reason, _, _ = str(error).partition(": bytearray(")  # followed by the client's bytes in Python notation
            self._answer(error.error_status_hint, {"error": reason}, close=True)

    def _begin(self, request: h11.Request, *, has_body: bool) -> None:
        self._busy = True
        self._is_head = request.method == b"HEAD"
        self.hold_requests()
        header_bytes = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
        if header_bytes > HEADER_BYTES_MAX or len(request.headers) > HEADERS_MAX:
            self._answer(431, {"error": "too many or too large headers"}, close=True)
        elif has_body:  # no resource takes one: it is not read
            self._answer(413, {"error": "a request with a body"}, close=True)
        else:
            try:
                method = "GET" if self._is_head else request.method.decode()
                path, _, query = request.target.decode().partition("?")
                named = {name.decode(): value.decode("latin-1") for name, value in reversed(request.headers)}
                self._serve(HttpRequest(self, method, path, query, named), self._answer)
            except Exception:
                log.exception("a request failed")
                if self._http.our_state is h11.SEND_RESPONSE:
                    self._answer(500, {"error": "internal error"}, close=True)
                else:  # a part of the response was written
                    self.transport.abort()

    def _answer(self, status: int, told: object, *, close: bool = False) -> None:
        if not self.is_open or self.transport.is_closing():
            return
        if isinstance(told, Text):
            kind, body = told
        else:  # people look at it with curl
            kind, body = "application/json", printable_json(msgspec.json.encode(told))
        headers = [
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("Content-Length", str(len(body))),
        ]
        headers += [("Allow", "GET, HEAD")] if status == 405 else []
        headers += [("WWW-Authenticate", 'Basic realm="halfmq", charset="UTF-8"')] if status == 401 else []
        headers += [("Connection", "close")] if close else []
        response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        events = (response, *(() if self._is_head else (h11.Data(data=body),)), h11.EndOfMessage())
        # Not with ``send``: one response of each of few connections is a bound of its own, and does not make pulls smaller.
        self.transport.write(b"".join([self._http.send(event) or b"" for event in events]))
        self._wait()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            asyncio.get_running_loop().call_soon(self._go_on)  # others have their turn in between
        else:
            self.transport.close()

    def _go_on(self) -> None:
        self._busy = False
        if self.is_open and not self.transport.is_closing():
            self.resume_requests()
            self._next()
