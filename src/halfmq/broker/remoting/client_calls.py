"""Commands that the broker forwards to a client (307), returning the client's response to the requester.

The client gets the command on the connection of its heartbeat, as a request of the broker with a request number of the broker, and responds
there. A call takes at most ``CALL_S``, and there are at most ``CALLS_MAX`` calls at a time.
"""

import asyncio
from typing import Any, Final, NamedTuple

from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.core.decision import Refused, Why
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.fields import RunningInfoFields
from halfmq.wire.remoting.header import Request, ext_text

#: Timeout of a call, s. RocketMQ ``Broker2Client.callClient``: 10 s.
CALL_S: Final = 10.0
#: Maximum number of calls in progress, over all clients. Limits memory: a response may be as large as a frame.
CALLS_MAX: Final = 256


class _Call(NamedTuple):
    #: Who waits for the response, and with which request.
    asker: Connection
    owner: str
    request: Request[None]
    client_id: str
    timer: asyncio.TimerHandle


class ClientCommands(Handlers):
    """Calls of clients. Each ends once: by a response, by timeout, or because the client is gone."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._loop = parts.loop
        #: By the client's connection and the number of the call.
        self._calls: dict[tuple[int, int], _Call] = {}
        self._shares = Shares("calls of clients in progress")
        parts.gateway.on_response = self.answered

    def running_info(self, connection: Connection, request: Request[Any]) -> None:
        """307: a consumer's description of its own state.

        Refusals: CLIENT_NOT_REACHED: it is not online, does not read, or disconnected. CLIENT_TIMEOUT: no response.
            LIMIT_REACHED: ``CALLS_MAX``; try again.
        """
        fields: RunningInfoFields = request.ext
        if request.body:
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, "307 has no body")
            return
        group, client_id = fields.consumer_group, fields.client_id
        number = self._consumer(group, client_id)
        if number is None:
            text = f"The Consumer <{group}> <{client_id}> not online"
            self._refuse(connection, request, Refused(Why.CLIENT_NOT_REACHED, text))
            return
        owner = owner_of(connection)
        busy = self._shares.refusal(owner, CALLS_MAX)
        if busy is not None:
            self._refuse(connection, request, Refused(Why.LIMIT_REACHED, f"{busy}: try again"))
            return
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": fields.jstack_enable}
        call = self._gateway.call(number, request.code, ext)
        if call is None:
            text = f"client {client_id} does not read what it is sent"
            self._refuse(connection, request, Refused(Why.CLIENT_NOT_REACHED, text))
            return
        key = (number, call)
        timer = self._loop.call_later(CALL_S, self._too_late, key)
        self._shares.add(owner)
        self._calls[key] = _Call(connection, owner, request.to_answer(None), client_id, timer)

    def _consumer(self, group: str, client_id: str) -> int | None:
        session = self._view.session.consumers.get(group)
        members = session.members.items() if session is not None else ()
        return next((number for number, member in members if member.client_id == client_id), None)

    def answered(self, connection: Connection, response: Request[Any]) -> None:
        """A client responded to a call, possibly one that has already ended: forward the response to the requester."""
        call = self._calls.pop((connection.number, response.opaque), None)
        if call is not None:
            call.timer.cancel()
            self._end(call, response)

    def _too_late(self, key: tuple[int, int]) -> None:
        call = self._calls.pop(key)
        text = f"The consumer <{call.client_id}> gave no answer in {CALL_S:g} s"
        self._end(call, Refused(Why.CLIENT_TIMEOUT, text))

    def peer_gone(self, number: int) -> None:
        """End the calls to this peer, and remove those made by it."""
        for key in [key for key, call in self._calls.items() if number in (key[0], call.asker.number)]:
            call = self._calls.pop(key)
            call.timer.cancel()
            self._end(call, Refused(Why.CLIENT_NOT_REACHED, f"the connection of client {call.client_id} was lost"))

    def _end(self, call: _Call, response: Request[Any] | Refused) -> None:
        self._shares.add(call.owner, -1)
        if not call.asker.is_open:
            return
        if isinstance(response, Refused):
            self._refuse(call.asker, call.request, response)
        else:
            ext = {name: ext_text(value) for name, value in response.ext.items()}
            self._gateway.answer(call.asker, call.request, response.code, response.remark, ext, response.body)
        self._gateway.peers.flush()  # its request came on another connection
