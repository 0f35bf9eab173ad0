"""What the audit log gets from this front door: each refusal for want of a right, and each administrative request with its outcome."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from halfmq.broker.services.access import SHOWN_MAX, Guard
from halfmq.core.decision import Refused
from halfmq.wire.remoting.acl import EXT_USER
from halfmq.wire.remoting.codes import ResponseCode, code_name
from halfmq.wire.remoting.header import Request

if TYPE_CHECKING:
    from halfmq.broker.remoting.gateway import Connection

#: Administrative requests of all connections that are not answered; older ones are not waited for.
_OPEN_MAX: Final = 10_000


class Notes(Protocol):
    """Where events go: ``audit_log.AuditLog``."""

    def note(self, event: Mapping[str, Any]) -> None:
        """Write an event; never waits."""


class Audit:
    """Makes events of requests and of their responses."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        #: Administrative requests that are not answered, by connection and number.
        self._open: dict[tuple[int, int], dict[str, Any]] = {}

    def asked(self, connection: "Connection", request: Request[Any], guard: Guard, refused: Refused | None) -> None:
        """A user asked for something that is refused, or administrative."""
        on = [str(one) for _, one in zip(range(SHOWN_MAX), guard.asked(request.ext, request.body), strict=False)]
        event = self._event(connection, guard.what, on)
        if refused is not None:
            self._notes.note(event | {"event": "refused", "text": refused.text})
        elif request.is_oneway:
            self._notes.note(event | {"event": "done"})
        else:
            if len(self._open) >= _OPEN_MAX:
                self._notes.note(self._open.pop(next(iter(self._open))) | {"event": "unanswered"})
            self._open[connection.number, request.opaque] = event

    def answered(self, connection: "Connection", request: Request[Any], code: int, remark: str | None) -> None:
        """A response leaves."""
        event = self._open.pop((connection.number, request.opaque), None) if self._open else None
        if event is not None:
            is_done = code == ResponseCode.SUCCESS
            text = {"text": remark} if remark else {}
            self._notes.note(event | {"event": "done" if is_done else "failed", "code": int(code), **text})

    def stranger(self, connection: "Connection", request: Request[Any], refused: Refused) -> None:
        """Somebody did not prove to be a user."""
        event = self._event(connection, code_name(request.code), [])
        event["user"] = _claimed(request)
        self._notes.note(event | {"event": "refused", "text": refused.text})

    def login(self, connection: "Connection") -> None:
        """A connection logged in."""
        self._notes.note(self._event(connection, "HMQ_LOGIN", []) | {"event": "login"})

    def gone(self, number: int) -> None:
        """A connection has ended: what it asked for may have been done."""
        for key in [key for key in self._open if key[0] == number]:
            self._notes.note(self._open.pop(key) | {"event": "unanswered"})

    def _event(self, connection: "Connection", command: str, on: list[str]) -> dict[str, Any]:
        return {"user": connection.user, "address": connection.address, "command": command, "on": on}


def _claimed(request: Request[Any]) -> str:
    """The user that a request names, without proof."""
    ext = request.ext
    if isinstance(ext, dict):
        return str(ext.get(EXT_USER) or ext.get("user") or "")
    return str(getattr(ext, "user", ""))
