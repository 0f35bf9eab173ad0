"""Functions of the application: on the loop or in threads."""

import asyncio
import threading

import pytest

from halfmq.client.user_code import Threads, call


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
