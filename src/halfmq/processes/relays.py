"""Relays as a process: until SIGTERM or SIGINT, or until everything is published."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Final

from halfmq.client.log import logger
from halfmq.client.marker_table import BoundRelay
from halfmq.model.durations import span
from halfmq.relay.rows import DatabaseAway
from halfmq.sql.rules.outbox import Delivery

#: How often the log says what was published and what waits, seconds.
_REPORT_S: Final = 60.0
#: How often ``once`` looks whether something is left, seconds.
_LOOK_S: Final = 0.2

log = logger("halfmq.relay")


class Ending(Enum):
    """How relays have ended."""

    #: By a signal; with ``once``: everything that was due is published.
    DONE = "done"
    #: With ``once``, by a signal before everything was published.
    CUT = "cut"
    #: With ``once``: what the target takes is published, and messages that it rejects are set aside.
    SET_ASIDE = "set aside"


async def run_relays(relays: Sequence[BoundRelay], host: str, port: int | None, *, once: bool) -> Ending:
    """Run ``relays`` until SIGTERM or SIGINT, or with ``once`` until everything that is due is published. In the main thread.

    ``port``: of HTTP for metrics and probes on ``host``; 0: any free one; None: none.

    Raises:
        HalfmqError: a relay cannot work, such as without its tables; EnvironmentFailed: the port cannot be used.
    """
    if port is None:
        return await _run(relays, once=once)
    # The libraries of Prometheus and of HTTP are loaded by a relay with the option only.
    from halfmq.processes.http_port import HttpPort
    from halfmq.relay.metrics import RelayMetrics

    http = HttpPort(RelayMetrics(relays, [(one, one.shown) for one in Delivery]).paths(), "--http-port")
    log.info("metrics on http://%s/metrics", await http.start(host, port))
    try:
        return await _run(relays, once=once)
    finally:
        await http.close()


async def _run(relays: Sequence[BoundRelay], *, once: bool) -> Ending:
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
        ending = Ending.CUT if is_cut else Ending.DONE
        if once and not is_cut and not any(task.done() for task in working):
            ending = Ending.DONE if all(task.result() for task in draining) else Ending.SET_ASIDE
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
    return ending


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
