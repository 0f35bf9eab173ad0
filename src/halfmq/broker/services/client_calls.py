"""Questions that the broker passes on to a client, and whose answer it takes back to who asked.

The client gets the question on the connection of its heartbeat, and its answer comes back there. Nobody waits longer than
``CALL_S``, and no more calls are under way than ``CALLS_MAX``.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from halfmq.broker.services.peer import Peer
from halfmq.core.decision import Refused, Why
from halfmq.core.view import View

#: How long a client may take. Precedent: RocketMQ ``Broker2Client.callClient``, 10 s.
CALL_S: Final = 10.0
#: Calls under way, over all clients. Protects memory: an answer may be as large as a frame.
CALLS_MAX: Final = 256

#: What a client answers, as the front door hands it over.
A = TypeVar("A")


class _Call(NamedTuple):
    asker: Peer
    client_id: str
    timer: asyncio.TimerHandle
    answer: Callable[[Any], None]


class ClientCalls(Generic[A]):
    """Questions to a client, each answered once: by the client, by time, or because it is gone."""

    def __init__(self, view: View, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        """``flush``: called after each answer, so that it leaves: what it answers was asked over another connection."""
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
        """Ask a member of a consumer group.

        ``send(number)`` sends the question to that peer and returns what the answer will be known by; None: the peer does not
        read. ``answer`` is kept for ``CALL_S``: it must hold nothing large of the request.

        Refusals: CLIENT_NOT_REACHED: it is not online, does not read, or was lost. CLIENT_TIMEOUT: it gave no answer.
            LIMIT_REACHED: ``CALLS_MAX``; ask again.
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
        """A client answers something: a call of ours, or nothing that anybody waits for."""
        known = self._calls.pop((peer.number, call), None)
        if known is not None:
            known.timer.cancel()
            self._end(known, what)

    def _too_late(self, key: tuple[int, int]) -> None:
        call = self._calls.pop(key)
        text = f"The consumer <{call.client_id}> gave no answer in {CALL_S:g} s"
        self._end(call, Refused(Why.CLIENT_TIMEOUT, text))

    def peer_gone(self, number: int) -> None:
        """End the calls to it, and forget those it made."""
        for key in [key for key, call in self._calls.items() if number in (key[0], call.asker.number)]:
            call = self._calls.pop(key)
            call.timer.cancel()
            self._end(call, Refused(Why.CLIENT_NOT_REACHED, f"the connection of client {call.client_id} was lost"))

    def _end(self, call: _Call, what: A | Refused) -> None:
        if call.asker.is_open:
            call.answer(what)
            self._flush()
