"""Calls application functions: coroutine functions on the event loop, plain functions in a thread pool."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from halfmq.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


_T = TypeVar("_T")


class RunBlocking(Protocol):
    """Runs a blocking function. The default is ``Threads``; a simulation runs it in place."""

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any: ...


class Threads:
    """A pool of at most ``threads_max`` threads, started on first use and ended by ``close``."""

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
        """Cancel waiting calls; does not wait for running ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def is_our_cancellation(error: BaseException) -> bool:
    """Whether ``error`` is a cancellation of the current task, which must end. Any other CancelledError is an ordinary
    failure: the application awaited something that was cancelled.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Done:
    """The result of a call that has done its work and may be awaited nevertheless, for symmetry with others."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def plain_result(result: _T, what: str, hint: str) -> _T:
    """The result of a function of the application where nobody can await it: in a thread, within a database transaction.

    A plain function, such as a lambda, that calls a coroutine function has done nothing. ``what``: it, for the message.

    Raises:
        UsageError: it is an awaitable. What depends on it must not commit.
    """
    if not isinstance(result, Awaitable) or isinstance(result, Done):
        return result
    if isinstance(result, Coroutine):
        result.close()
    name = getattr(result, "__qualname__", type(result).__name__)
    raise UsageError(f"{what} returned the awaitable {name}, which nobody awaits", hint=hint)


async def call(run_blocking: RunBlocking, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``, a coroutine function or a plain one; an awaitable result is awaited."""
    if is_async(function):
        return await function(*args)
    result = await run_blocking(function, *args)
    return await result if isinstance(result, Awaitable) else result
