"""The virtual event loop: the guarantees of asyncio, and the effect of kill and pause."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.virtual_loop import ProcessLoop, Scheduler, SeededEntropy, VirtualClock


class World:
    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.raised: list[BaseException] = []
        self.said: list[tuple[int, str]] = []

    def process(self, name: str = "p") -> ProcessLoop:
        return ProcessLoop(self.scheduler, name, lambda _, error: self.raised.append(error))

    def say(self, text: str) -> None:
        self.said.append((self.scheduler.now_us // 1_000, text))

    def start(self, process: ProcessLoop, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return process.create_task(work)


def test_sleeping_takes_only_virtual_time() -> None:
    world = World()
    process = world.process()

    async def work() -> str:
        await asyncio.sleep(3_600)
        return "done"

    task = world.start(process, work())
    world.scheduler.run(3_601_000_000)
    assert task.result() == "done"
    assert world.scheduler.now_us == 3_601_000_000


def test_timeouts_gather_events_and_locks_work() -> None:
    world = World()
    process = world.process()

    async def work() -> object:
        assert asyncio.get_running_loop() is process
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            one, two = group.create_task(asyncio.sleep(40, 2)), group.create_task(asyncio.sleep(30, 1))
        both = asyncio.gather(asyncio.sleep(50, 0.5), asyncio.wait_for(asyncio.sleep(30, 0.1), 60))
        return await both, one.result() + two.result()

    task = world.start(process, work())
    world.scheduler.run(200_000_000)
    assert task.result() == ([0.5, 0.1], 3)
    assert not world.raised


def test_a_killed_process_runs_nothing_more() -> None:
    world = World()
    process = world.process()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
            world.say("too late")
        finally:
            process.call_soon(world.say, "cleaned up")

    world.start(process, work())
    process.call_later(2, world.say, "timer")
    world.scheduler.run(500_000)
    process.kill()
    world.scheduler.run(100_000_000)
    world.scheduler.discard()
    assert world.said == []


def test_a_process_that_kills_itself_ends_in_that_turn() -> None:
    world = World()
    process = world.process()
    process.call_soon(process.kill)
    process.call_soon(world.say, "after death")
    world.scheduler.run(1_000_000)
    assert world.said == []


def test_a_paused_process_waits_and_continues_when_resumed() -> None:
    world = World()
    process = world.process()
    process.call_later(0.1, world.say, "timer")
    process.pause()
    world.scheduler.run(5_000_000)
    assert world.said == []
    process.resume()
    world.scheduler.run(6_000_000)
    assert world.said == [(5_000, "timer")]


def test_an_exception_of_a_callback_is_reported_and_the_process_continues() -> None:
    world = World()
    process = world.process()
    process.call_soon(lambda: 1 / 0)
    process.call_soon(world.say, "still here")
    world.scheduler.run(1_000_000)
    assert [type(error) for error in world.raised] == [ZeroDivisionError]
    assert len(world.said) == 1


def test_a_failed_task_that_nobody_awaits_is_reported() -> None:
    world = World()
    process = world.process()

    async def fails() -> None:
        raise ValueError("unseen")

    world.start(process, fails())
    world.scheduler.run(1_000_000)
    process._tasks.clear()
    assert [str(error) for error in world.raised] == ["unseen"]


def _race(seed: int) -> list[tuple[int, str]]:
    world = World(seed)

    async def work(name: str) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            world.said.append((world.scheduler.now_us, name))

    for name in "abc":
        process = world.process(name)
        world.start(process, work(name))
    world.scheduler.run(1_000_000)
    assert len(world.said) == 15
    return world.said


def test_the_seed_decides_the_order_of_processes() -> None:
    assert _race(1) == _race(1)
    orders = {"".join(name for _, name in _race(seed)) for seed in range(10)}
    assert len(orders) > 5


def test_run_stops_when_its_condition_holds() -> None:
    world = World()
    stop: Callable[[], bool] = lambda: len(world.said) == 2  # noqa: E731
    for second in range(1, 5):
        world.scheduler.call_at(second * 1_000_000, world.say, "x")
    assert world.scheduler.run(10_000_000, stop)
    assert world.scheduler.now_us == 2_000_000
    assert not world.scheduler.run(10_000_000, lambda: False)


def test_threads_are_refused() -> None:
    with pytest.raises(AssertionError, match="no threads"):
        World().process().run_in_executor(None, print)


def test_a_wall_clock_may_be_stepped_and_a_monotonic_one_may_not() -> None:
    world = World()
    clock = VirtualClock(world.scheduler, wall_offset_ms=7)
    wall, monotonic = clock.wall_ms(), clock.monotonic_ms()
    world.scheduler.run(1_000_000)
    clock.step(-60_000)
    assert clock.wall_ms() == wall + 1_000 - 60_000
    assert clock.monotonic_ms() == monotonic + 1_000


def test_entropy_depends_only_on_its_name() -> None:
    one, same, other = SeededEntropy("a"), SeededEntropy("a"), SeededEntropy("b")
    assert one.token(8) == same.token(8) != other.token(8)
    assert one.stream("x").random() == same.stream("x").random() != one.stream("y").random()
