import random
from heapq import heapify

import pytest

from halfmq.core.heaps import in_order


@pytest.mark.parametrize("seed", range(20))
def test_entries_come_in_their_order_and_stay_where_they_are(seed: int) -> None:
    rng = random.Random(seed)
    heap = [(rng.randrange(10), number) for number in range(rng.randrange(40))]
    heapify(heap)
    before = list(heap)
    assert list(in_order(heap)) == sorted(before)
    assert heap == before


def test_an_empty_heap_has_none() -> None:
    empty: list[tuple[int]] = []
    assert list(in_order(empty)) == []
