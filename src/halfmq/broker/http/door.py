"""The HTTP front door: admission of connections, and resources by path."""

import asyncio
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from msgspec import Struct, ValidationError

from halfmq import limits
from halfmq.broker.http.connection import Answer, HttpConnection, HttpRequest
from halfmq.broker.peers.peers import Peers, Rejected
from halfmq.broker.services.access import Access
from halfmq.model.text_fields import read_fields


class Route(NamedTuple):
    """One resource: what its requests do, the struct of their query parameters, and the function that gets it and responds to a GET."""

    access: Access
    parameters: type[Struct]
    respond: Callable[[Any, Answer], None]


_PARAMETERS_MAX: Final = 8
_NAME_CHARS_SHOWN: Final = 253


class HttpFrontDoor:
    """Serves connections. The composition root fills ``resources`` before the first one."""

    def __init__(self, peers: Peers, names: Collection[str]) -> None:
        """``names``: host names under which clients address this port. Addresses and ``localhost`` are always served."""
        self._peers = peers
        self._names = frozenset(_normal(name) for name in (*names, "localhost"))
        #: By path.
        self.resources: dict[str, Route] = {}
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
        else:
            route.respond(parameters, answer)

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


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")
