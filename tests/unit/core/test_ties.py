"""Segments that a verdict ties together are removed together."""

import pytest

from halfmq.core.retention import tied_start

SEGMENT = 100


@pytest.mark.parametrize(
    ("ties", "wanted", "start"),
    [
        ([], 300, 300),
        ([(350, 120)], 100, 100),
        ([(350, 120)], 200, 100),
        ([(350, 120)], 300, 100),
        ([(350, 120)], 400, 400),
        # A chain: each tie ends in the segment in which the next begins.
        ([(250, 120), (450, 210)], 300, 100),
        ([(450, 210), (250, 120)], 400, 100),
        ([(450, 210), (250, 120)], 500, 500),
        # Separate ties.
        ([(150, 20), (350, 220)], 300, 200),
    ],
)
def test_log_never_begins_inside_of_a_tie(ties: list[tuple[int, int]], wanted: int, start: int) -> None:
    assert tied_start(ties, wanted, SEGMENT) == start
