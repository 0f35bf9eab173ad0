"""An application as a process: its consumers and checks, until SIGTERM or SIGINT."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from halfmq.client.app import App
from halfmq.client.log import logger
from halfmq.client.user_code import Threads

#: How long threads of handlers may take to end after everything else has, seconds.
_THREADS_S: Final = 1.0
#: Exit status after a second signal.
_FAILED: Final = 1
#: How the names of threads begin that run what the application gave.
_HANDLERS: Final = "halfmq-app"
_TEXT: Final = "text/plain; charset=utf-8"

log = logger("halfmq.worker")


class Worker:
    """``run`` is called once, in the main thread. ``flush``: writes what the log still has, before the process is ended."""

    def __init__(self, served: App, flush: Callable[[], object]) -> None:
        self._app = served
        self._flush = flush
        self._stop = asyncio.Event()

    async def run(self, wait: bool, concurrency: int | None, host: str, port: int | None) -> None:
        """Return when SIGTERM or SIGINT has told it to stop, and handlers have finished or their time is over. A second signal ends the
        process at once.

        ``wait``: for a broker at the start. ``concurrency``: messages that each consumer handles at once; None: as registered. ``port``: of
        HTTP for probes on ``host``; 0: any free one; None: none.

        Raises:
            ConnectError: without ``wait``, no broker answers. MissingTable: a table of halfmq is not there; no message was taken.
            EnvironmentFailed: the port of HTTP cannot be used.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        http = None
        if port is not None:
            from halfmq.processes.http_port import HttpPort  # its library is needed for the option only

            http = HttpPort({"/healthz": self._alive, "/readyz": self._ready}, "--health-port")
            log.info("http://%s/healthz and /readyz", await http.start(host, port))
        try:
            await self._until_stopped(wait, concurrency)
        finally:
            if http is not None:
                await http.close()
        log.info("stopped")

    async def _until_stopped(self, wait: bool, concurrency: int | None) -> None:
        running = asyncio.ensure_future(self._serve(wait, concurrency))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await running

    async def _serve(self, wait: bool, concurrency: int | None) -> None:
        groups = self._app.consumed()
        if not groups:
            log.warning("the app has no consumers; it answers checks only")
        await self._require_tables()
        async with self._app.run(wait=not wait, concurrency=concurrency):
            for group, topics in groups:
                log.info("group %s consumes %s", group, ", ".join(topics))
            await self._stop.wait()
            log.info("stopping: running handlers have %g s to finish", self._app.shutdown_grace)

    async def _require_tables(self) -> None:
        """Raises MissingTable: each message would fail for it."""
        threads = Threads(1, _HANDLERS)
        try:
            for part, sessions in self._app.served_from():
                if (
                    require := getattr(part, "require_tables", None)
                ) is not None:  # that of another integration may have none
                    await require(sessions, threads)
        finally:
            threads.close()

    def _signalled(self) -> None:
        if self._stop.is_set():
            log.warning("a second signal: ended at once; what was not finished is delivered again")
            self._flush()
            os._exit(_FAILED)
        self._stop.set()

    async def _alive(self) -> tuple[int, str, bytes]:
        return 200, _TEXT, b"ok\n"

    async def _ready(self) -> tuple[int, str, bytes]:
        if self._stop.is_set():
            return 503, _TEXT, b"it stops\n"
        return (
            (200, _TEXT, b"ok\n")
            if self._app.is_ready
            else (503, _TEXT, b"no broker answers, or the consumers begin\n")
        )


def end_late_threads(flush: Callable[[], object], status: int) -> None:
    """Exit at once, with ``status``, if handlers that are plain functions have not finished: Python would wait for their threads,
    without an end. ``flush``: as for ``Worker``."""
    until_s = time.monotonic() + _THREADS_S
    for one in _handler_threads():
        one.join(max(0.0, until_s - time.monotonic()))
    if late := _handler_threads():
        log.warning("%d threads have not finished; the process ends nevertheless", len(late))
        flush()
        os._exit(status)


def _handler_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(_HANDLERS)]
