"""``halfmq relay MODULE:APP``: runs the relays of an application, until SIGTERM or SIGINT."""

import asyncio
import gc
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

import typer

from halfmq.cli.application import load_app
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.http_port import LOOPBACK, HttpPort
from halfmq.cli.log_lines import log_lines
from halfmq.cli.requests import Commands
from halfmq.client.log import logger
from halfmq.client.marker_table import BoundRelay
from halfmq.errors import HalfmqError, UsageError
from halfmq.model.durations import span
from halfmq.relay.rows import DatabaseAway
from halfmq.sql.rules.outbox import Delivery

#: How often the log says what was published and what waits, seconds.
_REPORT_S: Final = 60.0
#: How often `--once` looks whether something is left, seconds.
_LOOK_S: Final = 0.2

_COMMANDS: Final = Commands("halfmq relay")
log = logger("halfmq.relay")

# No rich markup: as `halfmq serve`.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=exit_text("halfmq relay"))
def relay(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="The application: a halfmq.App in a module, which is imported from the current directory or as installed.",
        ),
    ],
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
        status = asyncio.run(_served(relays, http_host, http_port, once=once))
    except HalfmqError as error:
        _COMMANDS.fail(str(error), ExitStatus.FAILED)
    finally:
        lines.end()
    raise typer.Exit(status)


async def _served(relays: Sequence[BoundRelay], host: str, port: int | None, *, once: bool) -> ExitStatus:
    """``_run``, with a port of HTTP if one is wanted."""
    if port is None:
        return await _run(relays, once=once)
    # Prometheus' library is loaded by a relay with the option only.
    from halfmq.relay.metrics import RelayMetrics

    http = HttpPort(RelayMetrics(relays, [(one, one.shown) for one in Delivery]).paths())
    log.info("metrics on http://%s/metrics", await http.start(host, port))
    try:
        return await _run(relays, once=once)
    finally:
        await http.close()


async def _run(relays: Sequence[BoundRelay], *, once: bool) -> ExitStatus:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    working = [asyncio.create_task(one.run(stop)) for one in relays]
    beside = [asyncio.create_task(_report(one, _REPORT_S)) for one in relays]
    draining = [asyncio.create_task(_drained(one)) for one in relays] if once else []
    try:
        waiting: set[asyncio.Task[None]] = {*working}
        if once:
            drained = asyncio.create_task(_all(draining))
            beside.append(drained)
            waiting.add(drained)
        # A relay ends by itself only with an error, and then the others have to stop.
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        is_cut = once and stop.is_set()
        status = ExitStatus.FAILED if is_cut else ExitStatus.SUCCESS
        if once and not is_cut and not any(task.done() for task in working):
            status = ExitStatus.SUCCESS if all(task.result() for task in draining) else ExitStatus.REFUSED
            for one in relays:
                with suppress(DatabaseAway):
                    await _say(one, 0)
        stop.set()
        await asyncio.gather(*working)
    finally:
        stop.set()
        for task in (*beside, *draining):
            task.cancel()
        await asyncio.gather(*working, *beside, *draining, return_exceptions=True)
    log.info(
        "stopped%s: %d published",
        " before everything was published" if is_cut else "", sum(one.confirmed for one in relays),
    )  # fmt: skip
    return status


async def _all(tasks: Sequence["asyncio.Task[bool]"]) -> None:
    await asyncio.gather(*tasks)


async def _drained(one: BoundRelay) -> bool:
    """Return when the relay has nothing to do any more. False: rows are set aside."""
    await one.opened()
    while True:
        with suppress(DatabaseAway):
            figures = await one.figures()
            if not figures.wanted:
                return Delivery.SET_ASIDE not in figures.rows
        await asyncio.sleep(_LOOK_S)


async def _report(one: BoundRelay, every_s: float) -> None:
    """Say what was published, and what waits, for as long as the relay works or waits for its target."""
    before = 0
    while True:
        await asyncio.sleep(every_s)
        try:
            before = await _say(one, before)
        except DatabaseAway as error:
            log.warning("%s: %s", one.name, error)


async def _say(one: BoundRelay, before: int) -> int:
    """``before``: messages that were published by the last time. Returns how many are by now."""
    figures, confirmed = await one.figures(), one.confirmed
    oldest = "-" if figures.oldest_s is None else span(round(figures.oldest_s * 1000))
    set_aside = figures.rows.get(Delivery.SET_ASIDE, 0)
    log.log(
        logging.WARNING if set_aside else logging.INFO,
        "%s: %d published, %d waiting, oldest %s, %d set aside%s",
        one.name, confirmed - before, figures.waiting, oldest, set_aside,
        " (`halfmq outbox list` says why)" if set_aside else "",
    )  # fmt: skip
    return confirmed
