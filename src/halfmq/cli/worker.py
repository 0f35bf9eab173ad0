"""``halfmq worker MODULE:APP``: runs the consumers and checks of an application as a process of their own, until SIGTERM or SIGINT."""

import asyncio
import gc
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from halfmq.cli.application import AppArgument, load_app
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.log_lines import log_lines
from halfmq.cli.requests import Commands
from halfmq.errors import HalfmqError
from halfmq.processes import LOOPBACK
from halfmq.processes.reload import run_again_on_changes, without_reload
from halfmq.processes.worker import Worker, end_late_threads

_COMMANDS: Final = Commands("halfmq worker")

# No rich markup: as `halfmq serve`.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=exit_text("halfmq worker"))
def worker(
    target: AppArgument,
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
            command = without_reload([sys.executable, "-m", "halfmq", *sys.argv[1:]])
            raise typer.Exit(run_again_on_changes(command, Path.cwd()))
        found = load_app(_COMMANDS, target)
        # What was imported stays, and the collector would traverse it with every few thousand messages.
        gc.collect()
        gc.freeze()
        asyncio.run(Worker(found, lines.end).run(wait, concurrency, health_host, health_port))
        status = ExitStatus.SUCCESS
    except HalfmqError as error:
        _COMMANDS.fail(str(error), ExitStatus.FAILED)
    finally:
        end_late_threads(lines.end, status)
        lines.end()
    raise typer.Exit(status)
