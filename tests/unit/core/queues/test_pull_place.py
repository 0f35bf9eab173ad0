"""Where a pull reads, by where its offset lies."""

import pytest

from halfmq.core.queues.pull_place import AtEnd, Outside, place


@pytest.mark.parametrize(
    ("offset", "low", "high", "answer"),
    [
        (0, 0, 0, AtEnd(0)),
        (3, 0, 0, Outside(0)),
        (0, 0, 5, None),
        (4, 0, 5, None),
        (5, 0, 5, AtEnd(5)),
        (6, 0, 5, Outside(5)),
        (1, 2, 5, Outside(2)),
        (2, 2, 5, None),
        (5, 5, 5, AtEnd(5)),
        (4, 5, 5, Outside(5)),
    ],
)
def test_a_pull_outside_of_the_queue_is_told_where_to_go(offset: int, low: int, high: int, answer: object) -> None:
    assert place(offset, low, high) == answer
