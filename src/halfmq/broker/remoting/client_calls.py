"""Commands that the broker passes on to a client, and whose answer it takes back to who asked: 307.

The client gets the command as a request of ours, with a number of ours, on the connection of its heartbeat; its answer
comes back there. Nobody waits longer than ``CALL_S``, and no more calls are under way than ``CALLS_MAX``.
"""

import asyncio
from typing import Any, Final, NamedTuple

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.core.view import View
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, ext_text

#: How long a client may take. Precedent: RocketMQ ``Broker2Client.callClient``, 10 s.
CALL_S: Final = 10.0
#: Calls under way, over all clients. Protects memory: an answer may be as large as a frame.
CALLS_MAX: Final = 256


class _Call(NamedTuple):
    connection: Connection
    request: Request[None]
    client_id: str
    timer: asyncio.TimerHandle


class ClientCalls:
    def __init__(self, gateway: Gateway, view: View, loop: asyncio.AbstractEventLoop) -> None:
        self._gateway = gateway
        self._view = view
        self._loop = loop
        #: By the client's connection and the number of the call.
        self._calls: dict[tuple[int, int], _Call] = {}
        gateway.on_response = self.answered
        gateway.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = self.running_info

    def running_info(self, connection: Connection, request: Request[Any]) -> None:
        """307: what a consumer does, as it says itself."""
        fields = request.ext
        if request.body:
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, "307 has no body")
            return
        number = self._consumer(fields.consumer_group, fields.client_id)
        if number is None:
            text = f"The Consumer <{fields.consumer_group}> <{fields.client_id}> not online"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        ext = {
            "consumerGroup": fields.consumer_group,
            "clientId": fields.client_id,
            "jstackEnable": fields.jstack_enable,
        }
        self._call(connection, request, number, ext)

    def _consumer(self, group: str, client_id: str) -> int | None:
        session = self._view.session.consumers.get(group)
        members = session.members.items() if session is not None else ()
        return next((number for number, member in members if member.client_id == client_id), None)

    def _call(self, connection: Connection, request: Request[Any], number: int, ext: dict[str, object]) -> None:
        if len(self._calls) >= CALLS_MAX:
            text = f"{CALLS_MAX} clients are being asked already; ask again"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_BUSY, text)
            return
        opaque = self._gateway.call(number, request.code, ext)
        client_id = str(ext["clientId"])
        if opaque is None:
            text = f"client {client_id} does not read what it is sent"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        key = (number, opaque)
        timer = self._loop.call_later(CALL_S, self._too_late, key)
        self._calls[key] = _Call(connection, request.to_answer(None), client_id, timer)

    def answered(self, connection: Connection, answer: Request[Any]) -> None:
        """A client answers something: a call of ours, or nothing that anybody waits for."""
        call = self._calls.pop((connection.number, answer.opaque), None)
        if call is not None:
            call.timer.cancel()
            ext = {name: ext_text(value) for name, value in answer.ext.items()}
            self._end(call, answer.code, answer.remark, ext, answer.body)

    def _too_late(self, key: tuple[int, int]) -> None:
        call = self._calls.pop(key)
        text = f"The consumer <{call.client_id}> gave no answer in {CALL_S:g} s"
        self._end(call, ResponseCode.CONSUME_MSG_TIMEOUT, text)

    def connection_closed(self, number: int) -> None:
        for key in [key for key, call in self._calls.items() if number in (key[0], call.connection.number)]:
            call = self._calls.pop(key)
            call.timer.cancel()
            text = f"the connection of client {call.client_id} was lost"
            self._end(call, ResponseCode.SYSTEM_ERROR, text)

    def _end(
        self, call: _Call, code: int, remark: str | None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        if call.connection.is_open:
            self._gateway.answer(call.connection, call.request, code, remark, ext, body)
            self._gateway.flush()
