"""An event loop whose clock jumps: waiting costs nothing, and a timeout of 30 s takes a millisecond to test."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _Jump(selectors.SelectSelector):
    """Polls real descriptors without waiting; if none is ready, advances virtual time."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            # Only a thread could still wake the loop.
            events = super().select(5)
            if not events:
                raise AssertionError("the loop has nothing to wait for: this test would hang")
            return events
        self.loop.now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Jump()
        selector.loop = self
        self.now = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end in virtual time; fails if a task or callback raised an unhandled exception."""
    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        result = runner.run(work)
    assert not problems, problems
    return result


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a coroutine function a test that runs as with ``run``."""

    @functools.wraps(test)
    def in_its_loop(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_its_loop


class LoopClock:
    """Wall and monotonic time of the running loop."""

    def wall_ms(self) -> int:
        return 1_795_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time()
