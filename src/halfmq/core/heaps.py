"""Read a heap of ``heapq`` in order without changing it."""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def in_order(heap: list[T]) -> Iterator[T]:
    """Its entries in ascending order. The heap does not change; the first n entries take O(n log n)."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        entry, at = heappop(ahead)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(ahead, (heap[child], child))
