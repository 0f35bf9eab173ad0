"""A disk that takes seconds for a sync is waited for: it is not taken for a broker that is away."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.waiting import until

from halfmq import AsyncClient, HalfmqError, Outcome, SendTimeout
from halfmq.client.routing import _GUESS_S
from halfmq.model.settings import BrokerSettings
from halfmq.store.group_flush import GroupFlush, Job
from halfmq.store.store import Durability

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


class SlowDisk:
    """``make_syncer``: the real sync thread, whose syncs wait until ``over`` is set."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.over.set()

    def __call__(self, job: Job) -> GroupFlush:
        def slow(position: int) -> None:
            self.over.wait(30)
            job(position)

        flush = GroupFlush(slow)
        flush.start()
        return flush


@pytest.mark.parametrize("stall_s", [2.0, 4.0])
async def test_blocks_wait_for_a_slow_disk_also_beside_one_that_does_not(tmp_path: Path, stall_s: float) -> None:
    disk = SlowDisk()
    async with serving(tmp_path, make_syncer=disk, durability=Durability.FSYNC) as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="shop") as mq, mq.consumer("t", group="billing"):
            mq.add_check("order", lambda _: Outcome.UNKNOWN)

            async def order(seconds: float | None = None) -> None:
                async with mq.begin("order", timeout=seconds) as tx:
                    tx.send("t", b"x")

            await order()
            # The route of a topic that did not exist is a guess; after it the client would ask for the route, whose answer waits for the
            # disk.
            await asyncio.sleep(_GUESS_S + 0.1)  # real time: the guess has expired
            await order()
            await asyncio.sleep(1.3)  # real time: the connection is idle for longer than the short block waits
            disk.over.clear()
            began = time.monotonic()
            blocks = [asyncio.create_task(order())]
            short = asyncio.create_task(order(0.5))
            not_ready = 0
            while time.monotonic() - began < stall_s:
                blocks.append(asyncio.create_task(order()))
                await asyncio.sleep(0.2)  # real time: blocks that begin during the stall
                not_ready += not mq.is_ready
            disk.over.set()
            outcomes = await asyncio.gather(*blocks, return_exceptions=True)
            assert [one for one in outcomes if isinstance(one, HalfmqError)] == []
            assert outcomes == [None] * len(blocks)
            assert not_ready == 0
            with pytest.raises(SendTimeout):
                await short


async def test_block_that_gave_up_is_rolled_back_although_nothing_checks_it(tmp_path: Path) -> None:
    """It has no name, so no check function: this process knows that its local transaction has not run."""
    disk = SlowDisk()
    settings = BrokerSettings(check_immunity_ms=1_000)
    async with (
        serving(tmp_path, make_syncer=disk, durability=Durability.FSYNC, settings=settings) as running,
        AsyncClient(f"rocketmq://127.0.0.1:{running.ports.names}", group="shop") as mq,
    ):
        disk.over.clear()
        block = mq.begin(timeout=0.5)
        with pytest.raises(SendTimeout):
            async with block as tx:
                tx.send("t", b"x")
        disk.over.set()
        await until(lambda: block.id in running.state.producer_groups["shop"].undecided, "the half")

        async def rolled_back() -> bool:
            return await mq.undecided([block.id]) == set()

        await until(rolled_back, "the rollback")
