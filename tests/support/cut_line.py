"""A connection to a database server that is cut at COMMIT: before it arrives, or after it took effect but before the response."""

import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Literal

from tests.support.waiting import PATIENCE_S

#: Of PostgreSQL.
SOCKET_NAME = ".s.PGSQL.5432"


class CutLine:
    """A relay on its own Unix socket, ``directory / name``. Set ``cut`` to cut the next COMMIT; ``cuts`` counts.

    ``name``: of the server's socket in ``server_directory``.
    """

    def __init__(self, server_directory: Path, name: str = SOCKET_NAME) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hmq-cut-", dir="/tmp"))
        self.cut: Literal["before", "after"] | None = None
        self.cuts = 0
        self._server = str(server_directory / name)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.directory / name))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        shutil.rmtree(self.directory)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            answered = threading.Event()
            muted = threading.Event()
            threading.Thread(target=self._to_server, args=(client, server, muted, answered), daemon=True).start()
            threading.Thread(target=self._to_client, args=(client, server, muted, answered), daemon=True).start()

    def _to_server(
        self, client: socket.socket, server: socket.socket, muted: threading.Event, answered: threading.Event
    ) -> None:
        while data := _receive(client):
            if self.cut is not None and b"COMMIT" in data:
                self.cuts += 1
                if self.cut == "after":
                    muted.set()
                    server.sendall(data)
                    answered.wait(PATIENCE_S)
                self.cut = None
                break
            try:
                server.sendall(data)
            except OSError:
                break
        _close(client)
        _close(server)

    def _to_client(
        self, client: socket.socket, server: socket.socket, muted: threading.Event, answered: threading.Event
    ) -> None:
        while data := _receive(server):
            if muted.is_set():
                answered.set()
                break
            try:
                client.sendall(data)
            except OSError:
                break
        _close(client)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def _close(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side closed first
    end.close()
