"""What the audit log gets: each refusal for want of a right, each login, and each administrative request with its outcome."""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Protocol

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.services.access import SHOWN_MAX, Guard
from halfmq.core.decision import Refused

#: Administrative requests of all connections that are not answered; older ones are not waited for.
_OPEN_MAX: Final = 10_000


class Notes(Protocol):
    """Where events go: ``broker.audit_log.AuditLog``."""

    def note(self, event: Mapping[str, Any]) -> None:
        """Write an event; never waits."""


class Audit:
    """Makes events of requests and of what becomes of them."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        #: Administrative requests that are not answered, by connection, number and kind: a client may use a number again.
        self._open: dict[tuple[int, int, str], dict[str, Any]] = {}

    def refused(
        self, user: str, address: str, what: str, refused: Refused, on: Mapping[str, Any] | None = None
    ) -> None:
        """A request of a user was refused."""
        self._refused({"user": user}, address, what, {**(on or {}), "text": refused.text})

    def stranger(self, claims: str, address: str, what: str, text: str) -> None:
        """A request of somebody who did not prove to be a user was refused. ``claims``: which user it names."""
        self._refused({"claims": claims}, address, what, {"text": text})

    def _refused(self, who: Mapping[str, Any], address: str, what: str, more: Mapping[str, Any]) -> None:
        self._notes.note({"event": "refused", **who, "address": _host(address), "command": what, **more})

    def asked(
        self, peer: Peer, number: int | None, guard: Guard, fields: Any, body: bytes, refused: Refused | None
    ) -> None:
        """A user asked for something that is refused, or administrative. ``number``: of the request; None: it has no response."""
        on = {"on": [str(one) for one in islice(guard.asked(fields, body), SHOWN_MAX)]}
        if refused is not None:
            self.refused(peer.user, peer.address, guard.what, refused, on)
            return
        event = {"user": peer.user, "address": _host(peer.address), "command": guard.what, **on}
        if number is None:
            self._notes.note({"event": "unanswered", **event})
            return
        key = peer.number, number, guard.what
        if key in self._open:
            self._unanswered(key)
        elif len(self._open) >= _OPEN_MAX:
            self._unanswered(next(iter(self._open)))
        self._open[key] = event

    def about(self, peer: Peer, number: int, what: str, on: str, reason: str) -> None:
        """What the administrative request is about, which its fields do not name."""
        event = self._open.get((peer.number, number, what))
        if event is not None:
            event["on"] = [on]
            event["operator"] = reason[: limits.REASON_CHARS_MAX]

    def answered(self, peer: Peer, number: int, what: str, problem: str | None) -> None:
        """A response leaves. ``problem``: why the request failed; None: it did not."""
        event = self._open.pop((peer.number, number, what), None) if self._open else None
        if event is not None:
            outcome = {"event": "done"} if problem is None else {"event": "failed", "text": problem}
            self._notes.note({**outcome, **event})

    def login(self, peer: Peer) -> None:
        """A connection proved who it is."""
        self._notes.note({"event": "login", "user": peer.user, "address": _host(peer.address)})

    def gone(self, number: int) -> None:
        """A connection has ended: what it asked for may have been done."""
        for key in [key for key in self._open if key[0] == number]:
            self._unanswered(key)

    def _unanswered(self, key: tuple[int, int, str]) -> None:
        self._notes.note({"event": "unanswered", **self._open.pop(key)})


def _host(address: str) -> str:
    """Without the port: what one host does over many connections is one thing."""
    return address.rpartition(":")[0] or address
