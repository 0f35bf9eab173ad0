"""Functions of the application: on the loop or in threads."""

import asyncio
import threading

import pytest

from halfmq.client.user_code import Threads, call, is_our_cancellation


async def test_plain_functions_leave_the_loop_and_coroutines_stay() -> None:
    threads = Threads(2, "test-threads")
    loop_thread = threading.current_thread()

    async def on_loop() -> threading.Thread:
        return threading.current_thread()

    def awaitable() -> object:
        return asyncio.sleep(0, "awaited")

    assert await call(threads, on_loop) is loop_thread
    assert (await call(threads, threading.current_thread)).name.startswith("test-threads")
    assert await call(threads, awaitable) == "awaited"
    with pytest.raises(ZeroDivisionError):
        await call(threads, lambda: 1 / 0)
    threads.close()
    threads.close()


async def test_cancellation_is_ours_only_when_our_task_is_cancelled() -> None:
    told: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            told.append(is_our_cancellation(error))
            raise

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError as error:
        told.append(is_our_cancellation(error))
    assert told == [True, False]
    assert not is_our_cancellation(ValueError())
