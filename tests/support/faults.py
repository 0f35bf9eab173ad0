"""What happens to a process at one of its calls: it is killed or paused there, or the answer is lost."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

_T = TypeVar("_T")

FAULTS: Final = ("kill before", "kill after", "kill within", "pause before", "pause after", "lost", "not sent")


class Killed(BaseException):
    """The process ends here, without any clean-up of its own."""


class Faults:
    """Draws what happens at a call. ``chance``: that anything does. ``pause_s``: length of a pause, about."""

    def __init__(self, rng: random.Random, chance: float, pause_s: float) -> None:
        self._rng = rng
        self._pause_s = pause_s
        self.chance = chance
        #: What happened, for the message of a red test.
        self.story: list[str] = []

    async def at(self, name: str, call: Callable[[], Awaitable[_T]], lost: Callable[[], _T]) -> _T:
        """``lost``: what the caller gets, or raises, if the answer does not arrive."""
        if self._rng.random() >= self.chance:
            return await call()
        return await self.do(self._rng.choice(FAULTS), name, call, lost)

    async def do(self, fault: str, name: str, call: Callable[[], Awaitable[_T]], lost: Callable[[], _T]) -> _T:
        """One of ``FAULTS``."""
        self.story.append(f"{name}: {fault}")
        match fault:
            case "kill before":
                raise Killed
            case "kill within":
                task = asyncio.ensure_future(call())
                await asyncio.wait({task}, timeout=self._rng.uniform(0, 0.01))
                task.cancel()
                with contextlib.suppress(BaseException):
                    await task
                raise Killed
            case "pause before":
                await self._pause()
                return await call()
            case "not sent":
                return lost()
        answer = await call()
        match fault:
            case "kill after":
                raise Killed
            case "pause after":
                await self._pause()
                return answer
        return lost()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s * self._rng.uniform(0.8, 1.5))  # real time: the others go on meanwhile


class Once(Faults):
    """One of ``FAULTS`` happens, at the first call of this name."""

    def __init__(self, name: str, fault: str, pause_s: float) -> None:
        super().__init__(random.Random(f"{name} {fault}"), 0.0, pause_s)
        self._name, self._fault = name, fault

    async def at(self, name: str, call: Callable[[], Awaitable[_T]], lost: Callable[[], _T]) -> _T:
        if name != self._name or self.story:
            return await call()
        return await self.do(self._fault, name, call, lost)
