"""What our client really sends and receives, recorded as history without the client's knowledge.

It is placed where the client opens its sockets (``Connector``), so retries, verdicts in the background and answers
to checks are all recorded, and a process can die exactly between two frames. A request is recorded before it is written.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from halfmq.client.connector import TcpConnector
from halfmq.model import properties as names
from halfmq.model.address import Address
from halfmq.model.ids import parse_offset_message_id
from halfmq.model.stored_message import SYS_PREPARED, SYS_TRANSACTION_MASK, body_crc_of, decode
from halfmq.testing.history.events import Answered, CheckReceived, CheckUnanswered, EndAsked, Event, HalfSent
from halfmq.wire.remoting import header
from halfmq.wire.remoting.codes import EXT_POSITION, EXT_VERDICT, RequestCode, ResponseCode
from halfmq.wire.remoting.fields import CheckFields, EndFields, SendFields
from halfmq.wire.remoting.frame import FrameSplitter
from tests.soak.notes import Notes, now_us

_VERDICTS: dict[int, Any] = {8: "COMMITTED", 12: "ROLLED_BACK"}
#: Called with the event: ``half-sent``, ``half-answered``, ``end-sent``, ``check-heard``, ``check-answered``.
Happened = Callable[[str], None]


class TappedConnector:
    def __init__(self, notes: Notes, happened: Happened) -> None:
        self._notes = notes
        self._happened = happened
        self._connections = 0

    async def connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._connections += 1
        tap = _Tap(self._connections, self._notes, self._happened)
        await TcpConnector(None).connect(address, lambda: _TappedProtocol(protocol(), tap))


class _Tap:
    """One connection, observed in both directions."""

    def __init__(self, number: int, notes: Notes, happened: Happened) -> None:
        self._number = number
        self._notes = notes
        self._happened = happened
        self._outgoing = FrameSplitter()
        self._incoming = FrameSplitter()
        #: Requests without a response so far: opaque -> whether it is a half.
        self._open: dict[int, bool] = {}

    def _op(self, opaque: int) -> str:
        return f"{self._number}.{opaque}"

    def leaves(self, data: bytes) -> list[str]:
        """Record outgoing bytes; returns the events to report after they are written."""
        events: list[Event] = []
        happened: list[str] = []
        for frame in self._outgoing.feed(data):
            request = header.decode(frame)
            if request.is_response:
                continue
            match request.ext:
                case SendFields() as send if send.sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED:
                    events.append(self._half(request.opaque, send, request.body))
                    happened.append("half-sent")
                case EndFields() as end:
                    event = self._end(request.opaque, end, oneway=request.is_oneway)
                    events.append(event)
                    happened.append("check-answered" if end.from_transaction_check else "end-sent")
        self._notes.write(*events)
        return happened

    def _half(self, opaque: int, send: SendFields, body: bytes) -> HalfSent:
        text = names.to_dict(send.properties)
        self._open[opaque] = True
        return HalfSent(
            t_us=now_us(), by=self._notes.by, op=self._op(opaque), group=send.group,
            tx=text.get(names.HMQ_TX_ID) or text[names.UNIQ_KEY], index=int(text.get(names.HMQ_TX_INDEX, "0")),
            message=text[names.UNIQ_KEY], topic=send.topic, queue=send.queue_id, crc=body_crc_of(body),
            key=text.get(names.SHARDING_KEY, ""),
        )  # fmt: skip

    def _end(self, opaque: int, end: EndFields, *, oneway: bool) -> Event:
        tx = end.tx_id or end.msg_id
        verdict = _VERDICTS.get(end.commit_or_rollback)
        if verdict is None:
            return CheckUnanswered(t_us=now_us(), by=self._notes.by, group=end.producer_group, tx=tx)
        if not oneway:
            self._open[opaque] = False
        decided_by = "application" if not end.from_transaction_check else "marker" if end.decided_by else "check"
        return EndAsked(
            t_us=now_us(), by=self._notes.by, op=self._op(opaque), group=end.producer_group, tx=tx, verdict=verdict,
            decided_by=decided_by,
        )  # fmt: skip

    def comes(self, data: bytes) -> list[str]:
        """Record incoming bytes; returns the events."""
        events: list[Event] = []
        happened: list[str] = []
        for frame in self._incoming.feed(data):
            message = header.decode(frame)
            if message.is_response:
                is_half = self._open.pop(message.opaque, None)
                if is_half is not None:
                    events.append(self._answered(message, is_half=is_half))
                    happened.append("half-answered" if is_half else "end-answered")
            elif message.code == RequestCode.CHECK_TRANSACTION_STATE:
                events.append(self._check(message.ext, message.body))
                happened.append("check-heard")
        self._notes.write(*events)
        return happened

    def _answered(self, message: "header.Request[dict[str, str]]", *, is_half: bool) -> Answered:
        ext = message.ext
        if message.code == ResponseCode.SUCCESS and is_half:
            return Answered(
                t_us=now_us(), by=self._notes.by, op=self._op(message.opaque), outcome="ok",
                offset=parse_offset_message_id(ext["msgId"])[1],
            )  # fmt: skip
        standing: Any = ext.get(EXT_VERDICT)
        outcome: Any = "ok" if message.code == ResponseCode.SUCCESS else "settled" if standing else "refused"
        return Answered(
            t_us=now_us(), by=self._notes.by, op=self._op(message.opaque), outcome=outcome, code=message.code,
            verdict=standing, position=int(ext.get(EXT_POSITION, "-1")),
        )  # fmt: skip

    def _check(self, fields: CheckFields, body: bytes) -> CheckReceived:
        stored, _, _ = decode(body)
        text = names.to_dict(stored.properties)
        return CheckReceived(
            t_us=now_us(), by=self._notes.by, group=text.get(names.PGROUP, ""),
            tx=text.get(names.HMQ_TX_ID) or text.get(names.UNIQ_KEY) or fields.msg_id,
            times=int(text.get(names.TRANSACTION_CHECK_TIMES, "0")),
        )  # fmt: skip


class _TappedProtocol(asyncio.Protocol):
    def __init__(self, inner: asyncio.Protocol, tap: _Tap) -> None:
        self._inner = inner
        self._tap = tap

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._inner.connection_made(_TappedTransport(transport, self._tap))

    def data_received(self, data: bytes) -> None:
        for what in self._tap.comes(data):
            self._tap._happened(what)
        self._inner.data_received(data)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)


class _TappedTransport(asyncio.Transport):
    """The part of a transport that the client uses."""

    def __init__(self, inner: asyncio.Transport, tap: _Tap) -> None:
        super().__init__()
        self._inner = inner
        self._tap = tap

    def write(self, data: Any) -> None:
        happened = self._tap.leaves(bytes(data))
        self._inner.write(data)
        for what in happened:
            self._tap._happened(what)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()
