"""The HTTP front door: admission of connections, and resources by path."""

import asyncio
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl

from halfmq import limits
from halfmq.broker.front_door import Rejected
from halfmq.broker.http.connection import Answer, HttpConnection

#: Responds to a GET with these query parameters.
Resource = Callable[[dict[str, str], Answer], None]

_PARAMETERS_MAX: Final = 8
_NAME_CHARS_SHOWN: Final = 253


class HttpFrontDoor:
    """A ``front_door.FrontDoor``. The composition root fills ``resources`` before the first connection."""

    def __init__(self, names: Collection[str]) -> None:
        """``names``: host names under which clients address this port. Addresses and ``localhost`` are always served."""
        self._names = frozenset(_normal(name) for name in (*names, "localhost"))
        #: By path: names of query parameters, and the function that responds.
        self.resources: dict[str, tuple[frozenset[str], Resource]] = {}
        #: Including pending ones, and those that are closing.
        self.connections: set[HttpConnection] = set()

    def admit(self, host: str) -> HttpConnection | Rejected:
        """A connection from ``host``, or the reason for a rejection.

        At the limit an older one gives way: connections that nobody uses, or that are slow on purpose, must not keep out a probe, whose failure
        would restart a healthy broker. First those whose peer is awaited, then those that await us; of each, the one that was answered
        longest ago.
        """
        if (
            len(self.connections) >= 2 * limits.HTTP_CONNECTIONS_MAX
        ):  # in one turn of the loop: the last ones are still closing
            return Rejected(f"HTTP connections: more than {limits.HTTP_CONNECTIONS_MAX} began at once")
        staying = [one for one in self.connections if not one.is_closing]
        if len(staying) >= limits.HTTP_CONNECTIONS_MAX:
            begun = [one for one in staying if one.transport is not None]
            if not begun:
                return Rejected(f"HTTP connections: limit of {limits.HTTP_CONNECTIONS_MAX} reached")
            oldest = min(begun, key=lambda one: (one.is_served, one.answered_at))
            assert oldest.transport is not None
            oldest.transport.abort()
        connection = HttpConnection(self._serve, self.connections.discard)
        self.connections.add(connection)
        return connection

    def begun(self, connection: asyncio.BaseProtocol) -> None:
        """Remove a connection that could not be made; one that was made ends with its own ``closed``."""
        if isinstance(connection, HttpConnection) and connection.transport is None:
            self.connections.discard(connection)

    def close(self, *, abort: bool) -> None:
        """Close every connection: at once, or after its responses were sent."""
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort() if abort else connection.transport.close()

    def _serve(self, method: str, target: str, host: str | None, answer: Answer) -> None:
        if host and not self._is_ours(host):
            # A page of another site whose name leads here (DNS rebinding) could otherwise read what its browser can reach.
            hint = "use an address or localhost, or start the broker with --http-host-name NAME"
            answer(421, {"error": f"this port is not served under the name {host[:_NAME_CHARS_SHOWN]!r}: {hint}"})
            return
        path, _, query = target.partition("?")
        known = self.resources.get(path)
        if known is None:
            answer(404, {"error": "no such resource", "resources": sorted(self.resources)})
            return
        if method != "GET":
            answer(405, {"error": "GET and HEAD only"})
            return
        names, resource = known
        try:
            given = parse_qsl(query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
        except ValueError:
            given = [("", "")]
        if len({name for name, _ in given} & names) < len(given):
            answer(400, {"error": f"parameters, each once at most: {', '.join(sorted(names)) or 'none'}"})
            return
        resource(dict(given), answer)

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
