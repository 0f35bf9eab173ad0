"""A heap is read in order and left as it is."""

import random
from heapq import heapify

from halfmq.core.queues.delay import in_order


def test_entries_come_in_their_order_and_stay_where_they_are() -> None:
    rng = random.Random(1)
    for size in (0, 1, 2, 7, 39):
        heap = [(rng.randrange(10), number) for number in range(size)]
        heapify(heap)
        before = list(heap)
        assert list(in_order(heap)) == sorted(before)
        assert heap == before
