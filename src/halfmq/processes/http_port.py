"""A port of HTTP for programs that watch a process of an application: of relays and workers.

It is not the broker's front door, which is made for peers that are not trusted. One request on each connection; few connections at a time,
each with a deadline, so that nothing here grows.
"""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

import h11

from halfmq.client.log import logger
from halfmq.errors import EnvironmentFailed, PortTaken
from halfmq.model.address import Address, ip_of

#: Connections at a time; a further one ends the oldest, since a probe must be answered though others leave theirs unfinished.
CONNECTIONS_MAX: Final = 16
#: From the accept until the response is written, s.
REQUEST_S: Final = 10.0
TEXT: Final = "text/plain; charset=utf-8"
_HEADER_BYTES_MAX: Final = 8_192

log = logger("halfmq.http")
#: Status, content type and body.
Answer = tuple[int, str, bytes]


class HttpPort:
    """Serves GET and HEAD of the ``paths`` from ``start`` to ``close``. ``option``: of the command, by which its user chooses the port."""

    def __init__(self, paths: Mapping[str, Callable[[], Awaitable[Answer]]], option: str) -> None:
        self._paths = paths
        self._option = option
        self._server: asyncio.Server | None = None
        #: Those that are open, the oldest first.
        self._connections: dict[asyncio.Task[None], None] = {}
        self._hosts: frozenset[str] = frozenset()

    async def start(self, host: str, port: int) -> Address:
        """Listen on ``host``, a name or an address; ``port`` 0: any free one. Returns where it listens.

        Raises:
            PortTaken: another process listens there.
            EnvironmentFailed: it cannot listen for another reason.
        """
        try:
            self._server = await asyncio.start_server(self._accepted, host, port)
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            raise (PortTaken if is_taken else EnvironmentFailed)(
                f"cannot listen for HTTP on {Address(host, port)}: {error.strerror or error}",
                hint=f"stop the other process, or choose {self._option} (0: any free one)" if is_taken else "",
            ) from error
        self._hosts = frozenset((host.lower(), "localhost"))
        return Address(host, int(self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Accept no more, and end what is open."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for one in connections:
            one.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, h11.ProtocolError):
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()  # nobody awaits this task, whose callback would log it
        except Exception:
            log.exception("a request of HTTP failed")
            writer.transport.abort()
        finally:
            self._connections.pop(task, None)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(_HEADER_BYTES_MAX))
        except h11.RemoteProtocolError as error:
            answer, is_head = (error.error_status_hint, TEXT, b"not a request of HTTP\n"), False
        else:
            if not isinstance(event, h11.Request):
                return  # it closed
            answer, is_head = await self._answer(event), event.method == b"HEAD"
        status, kind, body = answer
        headers = [
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        events = (response, *(() if is_head else (h11.Data(data=body),)), h11.EndOfMessage())
        writer.write(b"".join([connection.send(one) or b"" for one in events]))
        await writer.drain()
        writer.write_eof()
        # What it still sends is not read, but a reset would take the response away that is on its way.
        with contextlib.suppress(OSError):
            while await reader.read(_HEADER_BYTES_MAX):
                pass

    async def _answer(self, request: h11.Request) -> Answer:
        host = dict(request.headers).get(b"host", b"").decode("latin-1").lower()
        if host and not self._is_ours(host):
            # A page of another site whose name leads here (DNS rebinding) could otherwise read what its browser can reach.
            return 421, TEXT, b"this port is served under an address, localhost, or the name of its host option\n"
        path = request.target.partition(b"?")[0].decode("latin-1")
        respond = self._paths.get(path)
        if respond is None:
            return 404, TEXT, f"no such resource; there are {', '.join(self._paths)}\n".encode()
        if request.method not in (b"GET", b"HEAD"):
            return 405, TEXT, b"GET and HEAD only\n"
        return await respond()

    def _is_ours(self, host: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return name.removesuffix(".") in self._hosts or ip_of(name) is not None
