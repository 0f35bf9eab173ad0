"""The HTTP front door: admission of connections, and resources by path."""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

from halfmq import limits
from halfmq.broker.front_door import Rejected
from halfmq.broker.http.connection import Answer, HttpConnection

#: Responds to a GET with these query parameters.
Resource = Callable[[dict[str, str], Answer], None]

_PARAMETERS_MAX: Final = 8


class HttpFrontDoor:
    """A ``front_door.FrontDoor``. The composition root fills ``resources`` before the first connection."""

    def __init__(self) -> None:
        #: By path: names of query parameters, and the function that responds.
        self.resources: dict[str, tuple[frozenset[str], Resource]] = {}
        #: Including pending ones.
        self.connections: set[HttpConnection] = set()

    def admit(self, host: str) -> HttpConnection | Rejected:
        """A connection from ``host``, or the reason for a rejection."""
        if len(self.connections) >= limits.HTTP_CONNECTIONS_MAX:
            return Rejected(f"HTTP connections: limit of {limits.HTTP_CONNECTIONS_MAX} reached")
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

    def _serve(self, method: str, target: str, answer: Answer) -> None:
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
