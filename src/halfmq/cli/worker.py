"""``halfmq worker MODULE:APP``: runs the consumers and checks of an application as a process of their own, until SIGTERM or SIGINT."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from halfmq.broker.log_output import LogOutput
from halfmq.cli.application import load_app
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.http_port import LOOPBACK, TEXT, Answer, HttpPort
from halfmq.cli.log_lines import log_lines
from halfmq.cli.reload import run_again_on_changes, without_reload
from halfmq.cli.requests import Commands
from halfmq.client.app import App
from halfmq.client.log import logger
from halfmq.errors import HalfmqError

#: How long threads of handlers may take to end after everything else has, seconds.
_THREADS_S: Final = 1.0

_COMMANDS: Final = Commands("halfmq worker")
log = logger("halfmq.worker")

# No rich markup: as `halfmq serve`.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=exit_text("halfmq worker"))
def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="The application: a halfmq.App in a module, or a function without arguments that makes one. The module is imported from "
            "the current directory or as installed.",
        ),
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(help="Messages that each consumer handles at once. Default: as registered.", min=1),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for a broker at the start; else exit with 1 if none answers.")
    ] = True,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Start again when a Python file below the current directory changes. For development.",
        ),
    ] = False,
    health_port: Annotated[
        int | None,
        typer.Option(help="Port for GET /healthz and /readyz; 0: any free port. Default: no HTTP.", min=0, max=65_535),
    ] = None,
    health_host: Annotated[
        str, typer.Option(help="Address for that port. There is no password: whoever reaches it reads it.")
    ] = LOOPBACK,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Verbose logging.")] = False,
) -> None:
    """Run the consumers of an application, and answer its checks.

    Any number may run at once: they divide the queues among them. On SIGTERM or SIGINT it takes no more messages, lets running handlers
    finish for as long as App(shutdown_grace=...) says, and exits with 0; a second signal ends it at once. What was not finished is
    delivered again to the others.
    """
    if health_port is None and health_host != LOOPBACK:
        _COMMANDS.fail("--health-host without --health-port: there is no port of HTTP", ExitStatus.USAGE)
    lines = log_lines(verbose=verbose)
    status = ExitStatus.FAILED
    try:
        if reload:
            arguments = without_reload(sys.argv[1:])
            raise typer.Exit(run_again_on_changes(arguments, Path.cwd()))
        found = load_app(_COMMANDS, target)
        # What was imported stays, and the collector would traverse it with every few thousand messages.
        gc.collect()
        gc.freeze()
        asyncio.run(_Worker(found, lines).run(wait, concurrency, health_host, health_port))
        status = ExitStatus.SUCCESS
    except HalfmqError as error:
        _COMMANDS.fail(str(error), ExitStatus.FAILED)
    finally:
        _end_late_threads(lines, status)
        lines.end()
    raise typer.Exit(status)


class _Worker:
    def __init__(self, served: App, lines: LogOutput) -> None:
        self._app = served
        self._lines = lines
        self._stop = asyncio.Event()

    async def run(self, wait: bool, concurrency: int | None, host: str, port: int | None) -> None:
        """Return when it was told to stop, and handlers have finished or their time is over.

        Raises:
            ConnectError: without ``wait``, no broker answers. EnvironmentFailed: the port of HTTP cannot be used.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        http = None if port is None else HttpPort({"/healthz": self._alive, "/readyz": self._ready})
        if http is not None and port is not None:
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
        async with self._app.run(wait=not wait, concurrency=concurrency):
            for group, topics in groups:
                log.info("group %s consumes %s", group, ", ".join(topics))
            await self._stop.wait()
            log.info("stopping: running handlers have %g s to finish", self._app.shutdown_grace)

    def _signalled(self) -> None:
        if self._stop.is_set():
            log.warning("a second signal: ended at once; what was not finished is delivered again")
            self._lines.end()
            os._exit(ExitStatus.FAILED)
        self._stop.set()

    async def _alive(self) -> Answer:
        return 200, TEXT, b"ok\n"

    async def _ready(self) -> Answer:
        if self._stop.is_set():
            return 503, TEXT, b"it stops\n"
        return (
            (200, TEXT, b"ok\n") if self._app.is_ready else (503, TEXT, b"no broker answers, or the consumers begin\n")
        )


def _end_late_threads(lines: LogOutput, status: ExitStatus) -> None:
    """Exit at once if handlers that are plain functions have not finished: Python would wait for their threads, without an end."""
    until_s = time.monotonic() + _THREADS_S
    for one in _handler_threads():
        one.join(max(0.0, until_s - time.monotonic()))
    if late := _handler_threads():
        log.warning("%d threads have not finished; the process ends nevertheless", len(late))
        lines.end()
        os._exit(status)


def _handler_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("halfmq-app")]
