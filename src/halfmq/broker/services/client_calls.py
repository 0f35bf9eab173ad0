"""Requests that the broker forwards to a client, returning the client's response to the requester.

The client gets the request on the connection of its heartbeat, and responds there. A call takes at most ``CALL_S``, and there are at most
``CALLS_MAX`` calls at a time.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from halfmq.broker.services.peer import Peer
from halfmq.core.decision import Refused, Why
from halfmq.core.view import View

#: Timeout of a call, s. RocketMQ ``Broker2Client.callClient``: 10 s.
CALL_S: Final = 10.0
#: Maximum number of calls in progress, over all clients. Limits memory: a response may be as large as a frame.
CALLS_MAX: Final = 256

#: A client's response, as passed by the front door.
A = TypeVar("A")


class _Call(NamedTuple):
    asker: Peer
    client_id: str
    timer: asyncio.TimerHandle
    answer: Callable[[Any], None]


class ClientCalls(Generic[A]):
    """Calls of clients. Each ends once: by a response, by timeout, or because the client is gone."""

    def __init__(self, view: View, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        """``flush``: called after each response, so that it is sent: its request came on another connection."""
        self._view = view
        self._loop = loop
        self._flush = flush
        #: By the client's connection and the number of the call.
        self._calls: dict[tuple[int, int], _Call] = {}

    def ask_consumer(
        self,
        asker: Peer,
        group: str,
        client_id: str,
        send: Callable[[int], int | None],
        answer: Callable[[A | Refused], None],
    ) -> None:
        """Call a member of a consumer group.

        ``send(number)`` sends the request to that peer and returns the identifier of the expected response; None: the peer does not read.
        ``answer`` is kept for up to ``CALL_S``: it must not reference anything large of the request.

        Refusals: CLIENT_NOT_REACHED: it is not online, does not read, or disconnected. CLIENT_TIMEOUT: no response.
            LIMIT_REACHED: ``CALLS_MAX``; try again.
        """
        number = self._consumer(group, client_id)
        if number is None:
            answer(Refused(Why.CLIENT_NOT_REACHED, f"The Consumer <{group}> <{client_id}> not online"))
            return
        if len(self._calls) >= CALLS_MAX:
            answer(Refused(Why.LIMIT_REACHED, f"{CALLS_MAX} calls of clients are in progress already; try again"))
            return
        call = send(number)
        if call is None:
            answer(Refused(Why.CLIENT_NOT_REACHED, f"client {client_id} does not read what it is sent"))
            return
        key = (number, call)
        timer = self._loop.call_later(CALL_S, self._too_late, key)
        self._calls[key] = _Call(asker, client_id, timer, answer)

    def _consumer(self, group: str, client_id: str) -> int | None:
        session = self._view.session.consumers.get(group)
        members = session.members.items() if session is not None else ()
        return next((number for number, member in members if member.client_id == client_id), None)

    def answered(self, peer: Peer, call: int, what: A) -> None:
        """A client responded to a call, possibly one that has already ended."""
        known = self._calls.pop((peer.number, call), None)
        if known is not None:
            known.timer.cancel()
            self._end(known, what)

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

    def _end(self, call: _Call, what: A | Refused) -> None:
        if call.asker.is_open:
            call.answer(what)
            self._flush()
