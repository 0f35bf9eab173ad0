"""A remoting server whose responses a test defines: one thread, one function from request to response frame, or None."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request, decode

#: Returns the response frame for a request; None closes the connection without a response.
Answer = Callable[[Request[Any]], bytes | None]


class ScriptedServer:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request[Any]] = []
        #: Sent before the next connection is closed.
        self.last_words = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._streams: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"rocketmq://127.0.0.1:{self.port}"

    def close(self) -> None:
        for stream in (self._listener, *self._streams):
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                stream, _ = self._listener.accept()
                self._streams.append(stream)
                threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        splitter = FrameSplitter()
        with contextlib.suppress(OSError), stream:
            while data := stream.recv(1 << 16):
                for frame in splitter.feed(data):
                    request = decode(frame)
                    self.requests.append(request)
                    answer = self.answer(request)
                    if answer is None:
                        stream.sendall(self.last_words)
                        self.last_words = b""
                        return
                    stream.sendall(answer)
