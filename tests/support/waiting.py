"""The one way to wait in a test: for a condition, never for a time.

A test that sleeps and then asserts depends on the pace of the machine: what it waits for may not have had its turn, and what must not
come may only be late. Therefore:

- Something is to happen: ``await until(condition, "what")``, in a thread or without a loop ``wait_until``. A response, a task or an event:
  ``await soon(response)``. Threads and events of ``threading``: ``event.wait(PATIENCE_S)``.
- Nothing is to happen: wait for what proves it. A later request on the same connection was answered; the worker made another pass
  (count its passes); the clock that the test holds was moved past the moment. For what needs only turns of the test's own loop, and no
  timer, thread or other process: ``await turns()``.

``tests/architecture/test_waiting.py`` finds what does otherwise.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")

#: How long a condition may take, in seconds. It only bounds a red test, so it is longer than any machine needs.
PATIENCE_S = 60.0
_INTERVAL_S = 0.005
#: Of the event loop: more than a request, its turn of the sequencer and its response take over a socket within the process.
TURNS = 30


async def until(
    condition: Callable[[], T | Awaitable[T]],
    what: str = "",
    seconds: float = PATIENCE_S,
    *,
    unless: Callable[[], object] | None = None,
) -> T:
    """Let the loop run until the condition is true; returns what it returned. It may be a coroutine function.

    ``unless``: what makes it pointless to wait longer, such as the error of a task that ended; its text is in the message.
    Raises AssertionError if that is true, or after ``seconds`` of the loop's time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        found = condition()
        if isawaitable(found):
            found = await found
        if found:
            return found
        _go_on(what, seconds, loop.time() > deadline, unless)
        await asyncio.sleep(_INTERVAL_S)


async def soon(awaitable: Awaitable[T]) -> T:
    """What it gives; TimeoutError after ``PATIENCE_S``."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


def wait_until(
    condition: Callable[[], T],
    what: str = "",
    seconds: float = PATIENCE_S,
    *,
    unless: Callable[[], object] | None = None,
) -> T:
    """``until`` for a thread without an event loop."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        _go_on(what, seconds, time.monotonic() > deadline, unless)
        time.sleep(_INTERVAL_S)
    return found


async def turns(count: int = TURNS) -> None:
    """Let the event loop run ``count`` times: what is ready now, and what becomes ready by it, has happened then."""
    for _ in range(count):
        await asyncio.sleep(0)


def _go_on(what: str, seconds: float, is_late: bool, unless: Callable[[], object] | None) -> None:
    reason = unless() if unless is not None else None
    if reason:
        raise AssertionError(f"waiting in vain for {what or 'a condition'}: {reason}")
    if is_late:
        raise AssertionError(f"not within {seconds:g} s: {what or 'the condition'}")
