"""The HTTP front door: who may connect, and which resource a request names."""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

from halfmq import limits
from halfmq.broker.front_door import Rejected
from halfmq.broker.http.connection import Answer, HttpConnection

#: Answers a GET with these query parameters.
Resource = Callable[[dict[str, str], Answer], None]

_PARAMETERS_MAX: Final = 8


class HttpDoor:
    """A ``front_door.FrontDoor``. ``resources`` is filled by the composition root before the first connection."""

    def __init__(self) -> None:
        #: By path: names of query parameters, and who answers.
        self.resources: dict[str, tuple[frozenset[str], Resource]] = {}
        #: Also those that have not begun.
        self.connections: set[HttpConnection] = set()

    def admit(self, host: str) -> HttpConnection | Rejected:
        """A connection from ``host``, or why there is no place for it."""
        if len(self.connections) >= limits.HTTP_CONNECTIONS_MAX:
            return Rejected(f"all have {limits.HTTP_CONNECTIONS_MAX} HTTP connections open, as many as may be")
        connection = HttpConnection(self._serve, self.connections.discard)
        self.connections.add(connection)
        return connection

    def begun(self, connection: asyncio.BaseProtocol) -> None:
        """Forget a connection that could not be made; one that was made ends with its own ``closed``."""
        if isinstance(connection, HttpConnection) and connection.transport is None:
            self.connections.discard(connection)

    def close(self) -> None:
        """End every connection when what was answered has left."""
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.close()

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
