"""The front door for RocketMQ's remoting protocol: connections, and dispatch of frames to the handlers of their commands.

Both ports accept every command. What each is stands in one table (``commands``), and its handler in its own module; this one has only the
rules that apply to all:

- a malformed frame closes its connection; a header with invalid fields gets code 1
- an unknown command gets code 3
- one-way requests get no response, not even a refusal
- a response uses the serialisation of its request, a push uses JSON
- while the broker drains, clients that know GO_AWAY (1500) get it; all others are still served

Responses are collected on their connections and written with one write for each read or release.
"""

import errno
import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from halfmq.broker.metrics.counts import RequestCounts
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Peers, Rejected
from halfmq.broker.peers.principal import Principal
from halfmq.broker.remoting.administration import Row, accepted
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.remoting.unsupported_requests import UnsupportedRequests
from halfmq.broker.services.access import Access, Guard
from halfmq.broker.services.audit import Audit
from halfmq.broker.services.users import FIRST, Users
from halfmq.core.decision import Refused, Why
from halfmq.core.state import State
from halfmq.errors import ProtocolError, StoreDamaged
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.wire.remoting.acl import EXT_SIGNATURE, EXT_USER, is_signature
from halfmq.wire.remoting.codes import EXT_DAMAGED, OURS, V5_3_1, RequestCode, ResponseCode, code_name
from halfmq.wire.remoting.frame import BrokenFrame, FrameSplitter
from halfmq.wire.remoting.header import (
    InvalidHeader,
    Request,
    decode,
    decode_text,
    encode_request,
    encode_response,
)

log = logging.getLogger("halfmq.gateway")


class Connection(Peer):
    """A peer that speaks this protocol: splits bytes into frames, which the gateway handles."""

    __slots__ = ("_gateway", "_splitter", "nonce", "raw_read_end")

    def __init__(self, gateway: "Gateway", number: int) -> None:
        super().__init__(gateway.peers, number)
        self._handle = gateway.frame if gateway.users is None else gateway.frame_of_stranger
        #: Of the login that it began; "": none.
        self.nonce = ""
        self._gateway = gateway
        self._splitter = FrameSplitter()
        #: Topic id, queue and next offset of its last raw read; None if that had no messages.
        self.raw_read_end: tuple[int, int, int] | None = None

    def data_received(self, data: bytes) -> None:
        self.generation = self.peers.generation
        splitter = self._splitter
        frames: list[bytes] = []
        try:
            frames = splitter.feed(data)
            self._take(frames, splitter.frames_bytes)
        except BrokenFrame as error:
            self._take(error.frames, sum(map(len, error.frames)))
            self._gateway.broken(self, error)
        pending = splitter.pending_bytes
        self._end_read(pending, splitter.missing_bytes if pending else 0, bool(frames))

    def respond(self, request: Request[Any], code: int, frame: bytes | bytearray | memoryview) -> None:
        """Queue the response to ``request``, a frame with this ``code``, or the beginning of one: ``send_rest``. The only way out of
        responses: what is to be seen of each of them is one line here.
        """
        out = self._out  # as ``send``, without another call
        if not out:
            if not self.is_open:
                return
            self.peers.unwritten.append(self)
        out.append(frame)

    def send_rest(self, body: bytes | bytearray | memoryview) -> None:
        """The body of the frame that was begun last, as it is."""
        self.send(body)
        self.flush_if_large(len(body))

    def logged_in(self) -> None:
        """It proved who it is (``Users.identify``): its requests need no signature from now on."""
        is_limited = self.principal is not None and self.principal.limits.requests_per_s
        self._handle = self._gateway.frame_of_limited if is_limited else self._gateway.frame

    @property
    def has_logged_in(self) -> bool:
        """Whether it did."""
        return self._handle != self._gateway.frame_of_stranger

    def push(self, what: object) -> bool:
        return self._gateway.push(self, what)

    def reject(self) -> None:
        self._splitter = FrameSplitter()
        super().reject()


class CountedConnection(Connection):
    """One whose responses are counted. Another class, so that a broker without an HTTP port pays nothing for it."""

    __slots__ = ("_answered", "_counts", "began")

    def __init__(self, gateway: "Gateway", number: int) -> None:
        super().__init__(gateway, number)
        assert gateway.counts is not None
        self._counts = gateway.counts
        #: Codes of requests whose responses, each a success, are in ``_out``: they are counted together.
        self._answered: list[int] = []
        #: By opaque: when a handler began with a request that wants a response, s; of ``counts.BEGAN_MAX`` requests at most. Not a field
        #: of the request, which would cost every broker.
        self.began: dict[int, float] = {}

    def respond(self, request: Request[Any], code: int, frame: bytes | bytearray | memoryview) -> None:
        """As that of any connection, which this repeats: another call for each response costs 0.1 % of a transaction."""
        out = self._out
        if not out:
            if not self.is_open:
                return
            self.peers.unwritten.append(self)
        out.append(frame)
        if code:
            self._counts.failed(request.code, code)
        else:
            self._answered.append(request.code)
        if self.began:
            began_s = self.began.pop(request.opaque, 0.0)
            if began_s:
                self._counts.timed(request.code, began_s)

    def flush(self) -> None:
        """As that of any peer. Also called after its end if it had responses left."""
        if self._answered:
            self._counts.succeeded(self._answered)
            self._answered.clear()
        super().flush()


Handler = Callable[[Connection, Request[Any]], None]


class Command(NamedTuple):
    """What is said of a request code, in the table ``commands``."""

    #: The method of a class of ``Handlers`` that serves it.
    handler: Callable[[Any, Connection, Request[Any]], None]
    access: Access
    #: The struct of its fields, if it has any. Of RocketMQ's commands see ``commands.fields_of``.
    fields: type[Struct] | None = None
    #: What it keeps, field by field, of a command that changes something for an operator.
    rules: Row | None = None
    #: Only clients at work send it: not served on a place for operators.
    of_clients: bool = False
    #: Served while the broker drains, too: it is one-way, so its sender could not notice a refusal.
    while_draining: bool = False
    #: Served before the connection proved who it is.
    of_strangers: bool = False


#: Of these requests only some are timed (``RequestCounts``).
_FREQUENT: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.END_TRANSACTION}
)
#: Characters of a name that a stranger gives, in a refusal.
_NAME_CHARS_SHOWN: Final = 80
#: A longer request counts as several for the rate of a user.
_BYTES_OF_A_REQUEST: Final = 16_384
#: How long a stranger is not read from after a refusal, s: trying secrets takes time.
_STRANGER_RESTS_S: Final = 0.1
_WHO: Final = "this broker has users: log in (rocketmq://user@host:port?secretfile=FILE), or sign requests as RocketMQ's clients do (AclClientRPCHook)"
_OPERATORS_ONLY: Final = "all connections for clients are taken, %s (--connections-max, --connections-per-address-max); this one is for operators"
#: Errors of a read that say nothing about the file: memory or descriptors are short for the moment.
_TRANSIENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


class Gateway:
    """Serves connections. The handlers are bound (``commands.bind``) before the first connection."""

    def __init__(self, peers: Peers, clock: Callable[[], float], counts: RequestCounts | None = None) -> None:
        """``clock``: monotonic seconds, as ``loop.time``. ``counts``: counts requests and responses; None: nobody does."""
        self.peers = peers
        self.counts = counts
        self.unsupported_requests = UnsupportedRequests(clock)
        self.handlers: dict[int, Handler] = {}
        #: By type of a push of a service (``Peers.push``): encodes it as a command with this request number.
        self.pushes: dict[type, Callable[[Any, int], bytes]] = {}
        self._commands: dict[int, Command] = {}
        #: With which headers are decoded.
        self._fields_of: dict[int, type[Struct]] = {}
        #: None: the broker has no users, and everybody may do everything. Set before commands are bound.
        self.users: Users | None = None
        #: Refusals for want of a right, and what administrators do.
        self.audit: Audit | None = None
        self._clock = clock
        #: Called with each response of a client, whether to a ``call`` or not.
        self.on_response: Callable[[Connection, Request[Any]], None] = lambda connection, answer: None
        self._places = peers.places
        self._opaques = itertools.count(1)
        self._unreadable_said = LogThrottle(clock)

    def admit(self, host: str) -> Connection | Rejected:
        """See ``peers.Admit``."""
        return self.peers.admit(host, self.connection)

    def connection(self, number: int) -> Connection:
        """A new connection, the peer with this number."""
        return Connection(self, number) if self.counts is None else CountedConnection(self, number)

    def bind(self, code: int, command: Command, fields: type[Struct] | None, handler: Handler, view: State) -> None:
        """Serve a command as its row says. ``fields``: with what its header is decoded; None: a dict of text. ``view``: the state.

        The one place between decoding a request and its handler: what a row demands is put before the handler here, once, so that a command
        without the demand costs nothing for it.
        """
        assert code not in self.handlers, f"command {code} has two handlers"
        if self.users is not None and not command.of_strangers:
            handler = self._guarded(Guard(code_name(code), command.access, view), handler)
        if fields is not None:
            self._fields_of[code] = fields
        elif command.rules is not None:  # fields that are typed already have no others any more (15)
            handler = partial(self._serve_by_rules, command.rules, command.fields, handler)
        if self.counts is not None:
            handler = self.counts.timing(code, handler, self.handlers, is_frequent=code in _FREQUENT)
        self._commands[code] = command
        self.handlers[code] = handler

    def _guarded(self, guard: Guard, handler: Handler) -> Handler:
        """``handler`` for requests that the connection's user may send, and a refusal for others."""
        check = partial(self._serve_if_allowed, guard, handler)
        return check if guard.is_audited else guard.remembering(handler, check)

    def _serve_if_allowed(self, guard: Guard, handler: Handler, connection: Connection, request: Request[Any]) -> None:
        principal = connection.principal
        assert principal is not None
        refused = guard.refusal(principal, request.ext, request.body)
        if self.audit is not None and (refused is not None or guard.is_audited):
            number = None if request.is_oneway else request.opaque
            self.audit.asked(connection, number, guard, request.ext, request.body, refused)
        if refused is None:
            handler(connection, request)
        else:
            connection.raw_read_end = None
            code, remark, ext = refusal(refused)
            self.answer(connection, request, code, remark, ext)

    def frame_of_limited(self, connection: Connection, frame: bytes) -> bool | None:
        """As ``frame``, of a user whose requests are limited: also those that are refused, or malformed."""
        principal = connection.principal
        assert principal is not None
        wait_s = principal.wait_s(self._clock, 1 + len(frame) // _BYTES_OF_A_REQUEST)
        if wait_s:
            self._slow_down(connection, principal, wait_s)
        return self.frame(connection, frame)

    def _slow_down(self, connection: Connection, principal: Principal, wait_s: float) -> None:
        connection.rest(wait_s)
        connection.log_throttled(
            log, logging.WARNING, ("rate", principal.name),
            "user %s sends more than %d requests/s, and is slowed down (halfmq user set --rate)",
            principal.name, principal.limits.requests_per_s,
        )  # fmt: skip

    def _serve_by_rules(
        self, row: Row, kind: type[Struct] | None, handler: Handler, connection: Connection, request: Request[Any]
    ) -> None:
        """The handler gets only requests that are kept as a whole."""
        try:
            request.ext = accepted(row, kind, request)
        except msgspec.ValidationError as error:
            self._malformed(connection, request, f"fields of command {request.code}: {error}")
        except (ValueError, RecursionError) as error:
            self.answer(connection, request, ResponseCode.SYSTEM_ERROR, f"fields of command {request.code}: {error}")
        else:
            handler(connection, request)

    def _malformed(self, connection: Connection, request: Request[Any], text: str) -> None:
        """A field is missing or malformed, which ``text`` names: code 1 as RocketMQ, or 29 for halfmq's own commands."""
        connection.raw_read_end = None  # a raw read does not continue what was refused
        is_ours = request.code in OURS
        code = ResponseCode.INVALID_PARAMETER if is_ours else ResponseCode.SYSTEM_ERROR
        self.answer(connection, request, code, text)
        if self.users is not None and connection.principal is None:
            self._distrust(connection, request, text)

    # --- frames ----------------------------------------------------------------------------------------------

    def frame(self, connection: Connection, frame: bytes) -> bool | None:
        """Serve one frame. False: the connection is being closed, and later frames are ignored."""
        try:
            request = decode(frame, self._fields_of)
        except InvalidHeader as error:
            connection.log_throttled(log, logging.INFO, "header", "%s", error)
            self._malformed(connection, error.request, str(error))
            return None
        except ProtocolError as error:
            self._drop(connection, error)
            return False
        if request.flag & 1:
            self.on_response(connection, request)
            return None
        try:  # ``get`` takes twice as long
            handler = self.handlers[request.code]
        except KeyError:
            self.unsupported_requests.command(connection.address, request)
            self.answer(
                connection,
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
            return None
        if self.peers.draining and request.version > V5_3_1 and not self._commands[request.code].while_draining:
            self.answer(connection, request, ResponseCode.GO_AWAY, "this broker is stopping")
            return None
        if self._places.on_operators and not self._places.may_ask(
            connection.number, of_clients=self._commands[request.code].of_clients
        ):
            text = _OPERATORS_ONLY % self.peers.places.largest()
            self.answer(connection, request, ResponseCode.SYSTEM_BUSY, text)
            connection.close()
            return False
        try:  # inlined ``serve``: a function call for each frame costs 1 %
            handler(connection, request)
        except Exception as error:  # noqa: BLE001 - judged in ``failed``
            self.failed(connection, request, error)
        return None

    def frame_of_stranger(self, connection: Connection, frame: bytes) -> bool | None:
        """Serve one frame of a connection that has not logged in: a login, or what a user signed. False: as ``frame``."""
        if connection.has_logged_in:  # with an earlier frame of the same read
            return self.frame_of_limited(connection, frame)
        try:
            request = decode_text(frame)
        except InvalidHeader as error:
            self._malformed(connection, error.request, str(error))
            return None
        except ProtocolError as error:
            self._drop(connection, error)
            return False
        if request.is_response:
            return None  # nobody asked it anything
        command = self._commands.get(request.code)
        is_open = command is not None and command.of_strangers
        refused = None if is_open else self._unsigned(connection, request)
        if refused is None:
            return self.frame(connection, frame) if is_open else self.frame_of_limited(connection, frame)
        self.reject_stranger(connection, request, refused)
        return None

    def reject_stranger(self, connection: Connection, request: Request[Any], refused: Refused) -> None:
        """Respond to a request of a connection that did not prove who it is, and read from it slowly."""
        code, remark, ext = refusal(refused)
        self.answer(connection, request, code, remark, ext)
        self._distrust(connection, request, refused.text)

    def _distrust(self, connection: Connection, request: Request[Any], text: str) -> None:
        """A stranger was refused, as ``text`` says: note it, and read slowly from it."""
        if self.audit is not None:
            self.audit.stranger(_claimed(request), connection.address, code_name(request.code), text)
        connection.log_throttled(log, logging.WARNING, "stranger", "not served: %s", text)
        connection.rest(_STRANGER_RESTS_S)

    def _unsigned(self, connection: Connection, request: Request[dict[str, str]]) -> Refused | None:
        """Why it is not a user's request; None: one signed it, and the connection is that user's."""
        assert self.users is not None
        name, given = request.ext.get(EXT_USER, ""), request.ext.get(EXT_SIGNATURE, "")
        if not name or not given:
            return Refused(Why.NO_PERMISSION, _WHO)
        secrets = self.users.secrets_of(name)
        if name == FIRST or not any(is_signature(given, request.ext, request.body, secret) for secret in secrets):
            return Refused(Why.NO_PERMISSION, f"the signature is not one of user {name[:_NAME_CHARS_SHOWN]!r}")
        return self.users.identify(connection, name)

    def serve(self, handler: Handler, connection: Connection, request: Request[Any]) -> None:
        """Call ``handler``, and respond to what it raises."""
        try:
            handler(connection, request)
        except Exception as error:  # noqa: BLE001 - judged in ``failed``
            self.failed(connection, request, error)

    def failed(self, connection: Connection, request: Request[Any], error: Exception) -> None:
        """Respond to what the service of ``request`` raised."""
        text = str(error)
        ext = None
        if isinstance(error, ProtocolError):
            pass  # the frame was valid, its body was not: the client's mistake; the connection may stay
        elif isinstance(error, StoreDamaged | OSError):
            # The disk's fault, not a bug: the requester is told which file cannot be read, everything else is served.
            if not isinstance(error, OSError) or error.errno not in _TRANSIENT:
                ext = {EXT_DAMAGED: "true"}
            if self._unreadable_said.is_due(text):
                log.error("command %d of %s was refused: %s", request.code, connection.address, error)
        else:
            kind = ("failed", request.code)
            connection.log_throttled(log, logging.ERROR, kind, "command %d failed", request.code, error=error)
            text = f"{type(error).__name__}: {error}"
        self.answer(connection, request, ResponseCode.SYSTEM_ERROR, text, ext)

    def answer(
        self,
        connection: Connection,
        request: Request[Any],
        code: int,
        remark: str | None = None,
        ext: Mapping[str, object] | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> None:
        """Respond to ``request``, unless it is one-way."""
        if self.audit is not None and not request.is_oneway:
            problem = None if code == ResponseCode.SUCCESS else f"{remark or 'no reason given'} (code {code})"
            self.audit.answered(connection, request.opaque, code_name(request.code), problem)
        if not request.flag & 2:
            connection.respond(request, code, encode_response(request, code, remark, ext, body))
            if body:
                connection.flush_if_large(len(body))

    def call(self, number: int, code: int, ext: Mapping[str, object]) -> int | None:
        """Send a command to which the client responds (``on_response``). Returns its number; None: the client is gone, or does not read."""
        peer = self.peers.connected.get(number)
        if peer is None or peer.is_full:
            return None
        opaque = next(self._opaques)
        peer.send(encode_request(code, opaque, ext))
        return opaque

    def push(self, connection: Connection, what: object) -> bool:
        """See ``Peer.push``."""
        frame = self.pushes[type(what)](what, next(self._opaques))
        connection.send(frame)
        connection.flush_if_large(len(frame))
        return True

    def broken(self, connection: Connection, error: BrokenFrame) -> None:
        """The bytes are no frames: log it, say so if it is TLS, and close the connection."""
        if error.is_tls:
            self.unsupported_requests.tls(connection.address)
            connection.transport.close()
        else:
            self._drop(connection, error)

    def _drop(self, connection: Connection, error: ProtocolError) -> None:
        connection.log_throttled(log, logging.WARNING, "closing", "it is closed: %s", error)
        connection.close()


def _claimed(request: Request[Any]) -> str:
    """The user that a request names, without proof."""
    ext = request.ext
    return str(ext.get(EXT_USER, "") if isinstance(ext, dict) else getattr(ext, "user", ""))[:_NAME_CHARS_SHOWN]
