"""A broker that is killed now and then while others work, and started again: one way for all runs by chance."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Final

from halfmq import AsyncClient
from halfmq.testing.history import MemoryRecorder
from halfmq.testing.history.events import Fault, Started
from tests.support.amount import amount
from tests.support.served import Served
from tests.support.waiting import soon

#: From a start to the next kill, on the average, seconds. In the gate most runs are over before.
EVERY_S: Final = amount(gate=15, everything=5, variable="HALFMQ_TEST_BROKER_KILLS_EVERY_S")


@contextlib.asynccontextmanager
async def killed_now_and_then(
    served: Served, rng: random.Random, history: MemoryRecorder | None = None
) -> AsyncIterator[None]:
    """SIGKILL at random moments until the block ends; then the broker runs. ``served.kills`` counts. ``history``: where it is recorded."""
    over = asyncio.Event()

    async def kill() -> None:
        while not await _is_set_within(over, EVERY_S * rng.uniform(0.5, 1.5)):
            if history is not None:
                history.record(Fault, what="kill", whom="broker")
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.start)
            if history is not None:
                history.record(Started, whom="broker", epoch=served.kills + 1)

    killing = asyncio.ensure_future(kill())
    try:
        yield
    finally:
        over.set()
        await killing


async def connected(client: AsyncClient) -> None:
    """Connect it, also while the broker is killed and started again."""
    await client.connect(wait=False)
    await soon(client.found())


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    waiting = asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    waiting.cancel()
    return bool(done)
