"""Calling what the application gave us: coroutine functions on the loop, plain functions in threads of their own."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class RunBlocking(Protocol):
    """Run a plain function where it may block. A simulation runs it in place."""

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any: ...


class Threads:
    """At most ``threads_max`` threads, started when needed, ended by ``close``."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads_max, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def is_our_cancellation(error: BaseException) -> bool:
    """Somebody cancels the task that runs now, which has to end. A CancelledError without that is a failure like others: the
    application awaited something that was cancelled.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def call(run_blocking: RunBlocking, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result; awaited if it is awaitable."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await run_blocking(function, *args)
    return await result if isinstance(result, Awaitable) else result
