"""``halfmq relay MODULE:APP``: runs the relays of an application, until SIGTERM or SIGINT."""

import asyncio
import gc
import logging
from typing import Annotated, Final

import typer

from halfmq.cli.application import AppArgument, load_app
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.log_lines import log_lines
from halfmq.cli.requests import Commands
from halfmq.client.log import logger
from halfmq.errors import HalfmqError, UsageError
from halfmq.processes import LOOPBACK
from halfmq.processes.relays import Ending, run_relays

_COMMANDS: Final = Commands("halfmq relay")
_STATUS: Final = {
    Ending.DONE: ExitStatus.SUCCESS,
    Ending.CUT: ExitStatus.FAILED,
    Ending.SET_ASIDE: ExitStatus.REFUSED,
}

# No rich markup: as `halfmq serve`.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=exit_text("halfmq relay"))
def relay(
    target: AppArgument,
    workers: Annotated[
        int | None,
        typer.Option(help="Batches published at the same time, of each relay. Default: as registered.", min=1),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Publish everything that is due, and exit; refused messages are retried.")
    ] = False,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Port for GET /metrics, /healthz and /readyz; 0: any free port. Default: no HTTP.", min=0, max=65_535
        ),
    ] = None,
    http_host: Annotated[
        str,
        typer.Option(help="Address for that port. There is no password: whoever reaches it reads it."),
    ] = LOOPBACK,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Verbose logging.")] = False,
) -> None:
    """Publish the outboxes of an application: run the relays that it registered with app.relay(...).

    Any number may run at once. On SIGTERM or SIGINT it finishes the batches in flight and exits with 0. Target and database may be away, at
    the start too: it waits for them.
    """
    if http_port is None and http_host != LOOPBACK:
        _COMMANDS.fail("--http-host without --http-port: there is no port of HTTP", ExitStatus.USAGE)
    lines = log_lines(verbose=verbose)
    if not verbose:
        logger("aiormq").setLevel(logging.CRITICAL)  # each attempt to connect, which ours says now and then
    try:
        found = load_app(_COMMANDS, target)
        try:
            relays = found.relays() if workers is None else found.relays(workers=workers)
        except (UsageError, TypeError) as error:
            _COMMANDS.fail(f"a relay of {target}: {error}", ExitStatus.USAGE)
        if not relays:
            _COMMANDS.fail(f"{target} has registered no relay: call app.relay(outbox)", ExitStatus.USAGE)
        # What was imported stays, and the collector would traverse it with every few thousand messages.
        gc.collect()
        gc.freeze()
        ending = asyncio.run(run_relays(relays, http_host, http_port, once=once))
    except HalfmqError as error:
        _COMMANDS.fail(str(error), ExitStatus.FAILED)
    finally:
        lines.end()
    raise typer.Exit(_STATUS[ending])
