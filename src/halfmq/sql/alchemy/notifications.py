"""Tells when rows of an outbox are committed: PostgreSQL's LISTEN, on a connection of its own."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from halfmq.client.log import logger
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.sql.alchemy.errors import reason

log = logger("halfmq.relay")

#: How long a lost connection is not opened again, seconds. Meanwhile the relay polls.
_AGAIN_S: Final = 1.0
#: How often the log says so, seconds.
_SAY_S: Final = 60.0
#: How long a thread waits for a notification before it looks whether it is to end, seconds.
_LOOK_S: Final = 0.2


@asynccontextmanager
async def listening(engine: Engine | AsyncEngine, channel: str, wake: Callable[[], None]) -> AsyncIterator[bool]:
    """Call ``wake`` on the loop for each notification while the block is open. Yields False if database or driver has none, or
    ``channel`` is empty."""
    if not channel or engine.dialect.name != "postgresql" or engine.dialect.driver not in ("psycopg", "asyncpg"):
        yield False
    elif isinstance(engine, AsyncEngine):
        task = asyncio.create_task(_listen_async(engine, channel, wake))
        try:
            yield True
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    else:
        loop = asyncio.get_running_loop()
        ends = threading.Event()

        def wake_loop() -> None:
            loop.call_soon_threadsafe(wake)

        thread = threading.Thread(target=_listen, args=(engine, channel, wake_loop, ends), name="halfmq-listen")
        thread.start()
        try:
            yield True
        finally:
            ends.set()
            await asyncio.to_thread(thread.join)


def _quoted(channel: str) -> str:
    return '"' + channel.replace('"', '""') + '"'


def _listen(engine: Engine, channel: str, wake: Callable[[], None], ends: threading.Event) -> None:
    said = LogThrottle(time.monotonic, rest_s=_SAY_S)
    while not ends.is_set():
        try:
            pooled = engine.raw_connection()
            driver: Any = pooled.driver_connection
            pooled.detach()  # it listens, and never returns to the pool
            try:
                driver.autocommit = True
                driver.execute(f"LISTEN {_quoted(channel)}")
                wake()  # for what was committed before
                while not ends.is_set():
                    for _ in driver.notifies(timeout=_LOOK_S, stop_after=1):
                        wake()
            finally:
                driver.close()
        except Exception as error:  # noqa: BLE001 - whichever driver's
            if said.is_due(channel):
                log.info("LISTEN %s failed, and is tried again: %s", channel, reason(error))
            ends.wait(_AGAIN_S)


async def _listen_async(engine: AsyncEngine, channel: str, wake: Callable[[], None]) -> None:
    said = LogThrottle(time.monotonic, rest_s=_SAY_S)
    while True:
        try:
            async with engine.connect() as connection:
                raw = await connection.get_raw_connection()
                driver: Any = raw.driver_connection
                raw.detach()
                try:
                    await _follow(driver, engine.dialect.driver, channel, wake)
                finally:
                    await driver.close()
        except Exception as error:  # noqa: BLE001 - whichever driver's
            if said.is_due(channel):
                log.info("LISTEN %s failed, and is tried again: %s", channel, reason(error))
            await asyncio.sleep(_AGAIN_S)


async def _follow(driver: Any, name: str, channel: str, wake: Callable[[], None]) -> None:
    if name == "asyncpg":
        lost = asyncio.Event()
        driver.add_termination_listener(lambda _: lost.set())
        await driver.add_listener(channel, lambda *_: wake())
        wake()  # for what was committed before
        await lost.wait()
        raise ConnectionError("the connection has ended")
    await driver.set_autocommit(True)
    await driver.execute(f"LISTEN {_quoted(channel)}")
    wake()
    async for _ in driver.notifies():
        wake()
