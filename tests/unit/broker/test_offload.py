"""Slow work runs on one thread in order, and what it came to is told on the loop."""

import asyncio
import threading

from tests.support.waiting import soon

from halfmq.broker.offload import ThreadOffload


async def test_work_runs_in_order_off_the_loop_and_is_told_on_it() -> None:
    loop = asyncio.get_running_loop()
    offload = ThreadOffload(loop)
    here = threading.get_ident()
    seen: list[tuple[int, bool, bool]] = []
    done = asyncio.Event()

    def tell(result: object) -> None:
        assert isinstance(result, tuple)
        number, thread = result
        seen.append((number, thread != here, threading.get_ident() == here))
        if number == 4:
            done.set()

    for number in range(5):
        offload.run(lambda number=number: (number, threading.get_ident()), tell)  # type: ignore[misc]
    await soon(done.wait())
    offload.close()
    assert seen == [(number, True, True) for number in range(5)]


async def test_what_the_work_raises_is_told_as_its_result() -> None:
    offload = ThreadOffload(asyncio.get_running_loop())
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def broken() -> object:
        raise OSError("disk")

    offload.run(broken, told.set_result)
    assert isinstance(await soon(told), OSError)
    offload.close()
