"""Timers of messages that are handled again in this process: they fire when they are due, and time can be let pass for all of them."""

import asyncio
import gc

from tests.support.virtual_time import VirtualLoop, in_virtual_time, run

from halfmq.client import redelivery_timers
from halfmq.client.redelivery_timers import call_later, pass_time


@in_virtual_time
async def test_a_timer_fires_once_when_it_is_due_by_the_time_that_has_passed() -> None:
    loop = asyncio.get_running_loop()
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, loop.time() - began))

    began = loop.time()
    call_later(10, note, "at its time")
    call_later(600, note, "one second after 599")
    call_later(300, note, "at once")
    await asyncio.sleep(20)
    pass_time(500)
    pass_time(79)
    await asyncio.sleep(0.5)
    call_later(100, note, "not moved by what was before")
    await asyncio.sleep(1_000)
    pass_time(1_000)
    await asyncio.sleep(1)
    assert fired == [
        ("at its time", 10),
        ("at once", 20),
        ("one second after 599", 21),
        ("not moved by what was before", 120.5),
    ]


def test_timers_of_a_loop_that_has_ended_are_no_problem_and_are_not_kept() -> None:
    async def leave() -> None:
        call_later(1_000, list, ())

    loop = VirtualLoop()
    loop.run_until_complete(leave())
    loop.close()
    pass_time(1)
    del loop
    gc.collect()
    assert list(redelivery_timers._pending) == []

    async def others() -> None:
        fired = asyncio.Event()
        call_later(1_000, fired.set)
        pass_time(1_000)
        await asyncio.wait_for(fired.wait(), 1)

    run(others())
