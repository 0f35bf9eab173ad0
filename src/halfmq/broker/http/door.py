"""The HTTP front door: admission of connections, and resources by path."""

import asyncio
from base64 import b64decode
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from msgspec import Struct, ValidationError

from halfmq import limits
from halfmq.broker.http.connection import Answer, HttpConnection, HttpRequest
from halfmq.broker.peers.peers import Peers, Rejected
from halfmq.broker.peers.principal import Principal
from halfmq.broker.services.access import Access, Guard
from halfmq.broker.services.audit import Audit
from halfmq.broker.services.users import Users
from halfmq.core.decision import Refused, Why
from halfmq.model.text_fields import read_fields


class Route(NamedTuple):
    """One resource: what its requests do, the struct of their query parameters, and the function that gets it and responds to a GET."""

    access: Access
    parameters: type[Struct]
    respond: Callable[[Any, Answer], None]


_PARAMETERS_MAX: Final = 8
_REFUSED_AFTER_S: Final = 0.1
_NOBODY: Final = Refused(Why.NO_PERMISSION, "there is no user with this name and password")
_NAME_CHARS_SHOWN: Final = 253


class HttpFrontDoor:
    """Serves connections. The composition root fills ``resources`` before the first one."""

    def __init__(self, peers: Peers, names: Collection[str]) -> None:
        """``names``: host names under which clients address this port. Addresses and ``localhost`` are always served."""
        self._peers = peers
        self._names = frozenset(_normal(name) for name in (*names, "localhost"))
        #: By path.
        self.resources: dict[str, Route] = {}
        #: None: the broker has no users, and everybody may read everything.
        self.users: Users | None = None
        self.audit: Audit | None = None
        #: Including pending ones, and those that are closing.
        self.connections: set[HttpConnection] = set()

    def admit(self, host: str) -> HttpConnection | Rejected:
        """A connection from ``host``, or the reason for a rejection.

        At the limit an older one gives way: connections that nobody uses, or that are slow on purpose, must not keep out a probe, whose
        failure would restart a healthy broker. First those whose peer is awaited, then those that await us; of each, the one that was
        answered longest ago.
        """
        if (
            len(self.connections) >= 2 * limits.HTTP_CONNECTIONS_MAX
        ):  # in one turn of the loop: the last ones are still closing
            return Rejected(f"HTTP connections: more than {limits.HTTP_CONNECTIONS_MAX} began at once")
        staying = [one for one in self.connections if not one.is_closing]
        closing = self.connections.difference(staying)
        if len(closing) >= limits.HTTP_CONNECTIONS_MAX // 2:
            for one in closing:  # with TLS they may wait for the end that the client has to say
                one.abort()
        if len(staying) >= limits.HTTP_CONNECTIONS_MAX:
            can_go = [one for one in staying if one.can_go]
            if not can_go:
                return Rejected(f"HTTP connections: limit of {limits.HTTP_CONNECTIONS_MAX} reached")
            oldest = min(can_go, key=lambda one: (one.is_served, one.answered_at, one.number))
            oldest.abort()
        connection = HttpConnection(self._peers, self._serve, self.connections.discard)
        connection.answered_at = asyncio.get_running_loop().time()
        self.connections.add(connection)
        return connection

    def _serve(self, request: HttpRequest, answer: Answer) -> None:
        host = request.headers.get("host")
        if host and not self._is_ours(host):
            # A page of another site whose name leads here (DNS rebinding) could otherwise read what its browser can reach.
            hint = "use an address or localhost, or start the broker with --http-host-name NAME"
            answer(421, {"error": f"this port is not served under the name {host[:_NAME_CHARS_SHOWN]!r}: {hint}"})
            return
        route = self.resources.get(request.path)
        if route is None:
            answer(404, {"error": "no such resource", "resources": sorted(self.resources)})
            return
        if request.method != "GET":
            answer(405, {"error": "GET and HEAD only"})
            return
        try:
            given = parse_qsl(request.query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
        except ValueError:
            given = [("", "")]
        names = route.parameters.__struct_encode_fields__
        if len({name for name, _ in given}.intersection(names)) < len(given):
            answer(400, {"error": f"parameters, each once at most: {', '.join(sorted(names)) or 'none'}"})
            return
        try:
            parameters = read_fields(route.parameters, dict(given))
        except ValidationError as error:
            answer(400, {"error": str(error)})
            return
        if self.users is None or not route.access.needs:
            route.respond(parameters, answer)
        else:
            self._serve_if_allowed(self.users, request, route, parameters, answer)

    def _serve_if_allowed(
        self, users: Users, request: HttpRequest, route: Route, parameters: Struct, answer: Answer
    ) -> None:
        """Serve a request with the name and the password, or the secret, of a user who may send it."""
        given = _basic(request.headers.get("authorization", ""))
        if not request.peer.is_private:
            answer(403, {"error": "a password is not sent over the network without TLS: use https://"})
            return
        guard = Guard(f"GET {request.path}", route.access, users.view)
        if given is None:
            if self.audit is not None:
                self.audit.stranger("", request.peer.address, guard.what, _NOBODY.text)
            answer(401, {"error": "this broker has users: give name and password of one (curl --user NAME)"})
            return

        def known(principal: Principal | Refused | None) -> None:
            if isinstance(principal, Refused):
                answer(503, {"error": principal.text})
                return
            if principal is None:
                if self.audit is not None:
                    self.audit.stranger(given[0], request.peer.address, guard.what, _NOBODY.text)
                # Later, since guessing has to take time.
                asyncio.get_running_loop().call_later(_REFUSED_AFTER_S, answer, 401, {"error": _NOBODY.text})
                return
            refused = guard.refusal(principal, parameters, b"")
            if refused is None:
                route.respond(parameters, answer)
                return
            if self.audit is not None:
                self.audit.refused(principal.name, request.peer.address, guard.what, refused)
            answer(403, {"error": refused.text})

        users.by_password(request.peer, *given, known)

    def _is_ours(self, host: str) -> bool:
        """Whether this Host header, with or without a port, names this server. Nobody can make an address lead elsewhere."""
        name = _normal(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
        if name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _basic(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header (RFC 7617); None: it has none."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (user, password) if colon else None


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")
