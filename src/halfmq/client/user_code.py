"""Calls application functions: coroutine functions on the event loop, plain functions in a thread pool."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from halfmq.client.log import log
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
        #: Counts when the first thread is started.
        self.threads_max = threads_max
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self.threads_max, thread_name_prefix=self._name)
        # As ``asyncio.to_thread``: the function sees the caller's context variables, such as the current span.
        variables = copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: variables.run(function, *args))

    def close(self) -> None:
        """Cancel waiting calls; does not wait for running ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def spawn(tasks: "set[asyncio.Task[None]]", work: Coroutine[Any, Any, None], failed: str) -> "asyncio.Task[None]":
    """Run ``work`` as a task, which is in ``tasks`` until it ends. ``failed``: logged with its exception, since perhaps nobody
    waits for it."""

    def ended(task: "asyncio.Task[None]") -> None:
        tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(failed, exc_info=task.exception())

    try:
        task = asyncio.get_running_loop().create_task(work)
    except RuntimeError:  # no loop runs any more
        work.close()
        raise
    tasks.add(task)
    task.add_done_callback(ended)
    return task


async def end_tasks(tasks: "Collection[asyncio.Task[None]]", grace_s: float) -> int:
    """Wait up to ``grace_s`` seconds for ``tasks``, then cancel the rest. Returns how many these were."""
    if not tasks:
        return 0
    _, late = await asyncio.wait(tasks, timeout=grace_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return len(late)


def is_our_cancellation(error: BaseException) -> bool:
    """Whether ``error`` is a cancellation of the current task, which must end. Any other CancelledError is an ordinary
    failure: the application awaited something that was cancelled.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def is_generator(function: object) -> bool:
    """Whether a call of it would run nothing: a generator function, asynchronous or not, or an object that is called like one."""
    return any(
        inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one)
        for one in (function, getattr(function, "__call__", None))  # noqa: B004
    )


def refuse_generator(function: object, what: str) -> None:
    """Raise UsageError if ``function``, which is ``what``, ``is_generator``."""
    if is_generator(function):
        raise UsageError(f"{what} is a generator, which would never run", hint=_WITHOUT_YIELD)


class Done:
    """The result of a call that has done its work and may be awaited nevertheless, for symmetry with others."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_WITHOUT_YIELD: Final = "a function without yield"


def run_result(result: _T, what: str) -> _T:
    """The result of a function of the application, ``what``, if it has run.

    Raises:
        UsageError: it is a generator: nothing was done. What depends on it must not commit.
    """
    if isinstance(result, Generator | AsyncGenerator):
        raise UsageError(f"{what} returned the generator {_name(result)}, which never runs", hint=_WITHOUT_YIELD)
    return result


def plain_result(result: _T, what: str, hint: str) -> _T:
    """The result of a function of the application where nobody can await it: in a thread, within a database transaction.

    A plain function, such as a lambda, that calls a coroutine function has done nothing. ``what``: it, for the message.

    Raises:
        UsageError: it is an awaitable, or see ``run_result``. What depends on it must not commit.
    """
    run_result(result, what)
    if not isinstance(result, Awaitable) or isinstance(result, Done):
        return result
    if isinstance(result, Coroutine):
        result.close()
    raise UsageError(f"{what} returned the awaitable {_name(result)}, which nobody awaits", hint=hint)


def _name(result: object) -> str:
    return getattr(result, "__qualname__", type(result).__name__)


async def call(run_blocking: RunBlocking, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``, a coroutine function or a plain one; an awaitable result is awaited. Raises UsageError: see ``run_result``."""
    if is_async(function):
        result = await function(*args)
    else:
        result = await run_blocking(function, *args)
        if isinstance(result, Awaitable):
            result = await result
    return run_result(result, "a function that was to run")
