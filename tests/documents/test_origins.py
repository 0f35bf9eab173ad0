"""docs/origins.md names commands only that tests run as they stand, and says of each step where it is, or that it is not here and why."""

import pytest

from tests.documents.blocks import BLOCKS, By, matched
from tests.documents.pages import blocks, commands, quotes, table

_PAGE = "docs/origins.md"
#: Its tables, below the last one of the systems.
HEADINGS = (
    "The systems",
    "The event queue: FMQ 1.3.2 and 2.1",
    "The seven steps of a transactional message: FMQ 3.1, RocketMQ 1.1",
    "The client: FMQ 3.2, RocketMQ's producer",
    "The broker: FMQ 3.3",
    "RocketMQ's broker",
)


def run_by_tests() -> set[str]:
    """Commands of blocks that a test runs."""
    return {
        command
        for page, rows in BLOCKS.items()
        for block, row in zip(blocks(page), matched(blocks(page), rows)[0], strict=True)
        if isinstance(row, By)
        for command in commands(block)
    }


def test_each_command_is_one_that_a_test_runs() -> None:
    named = {quote.text for quote in quotes(_PAGE) if quote.text.startswith("halfmq ")}
    assert len(named) > 10
    assert named <= run_by_tests()


@pytest.mark.parametrize("heading", HEADINGS)
def test_each_step_says_where_it_is_or_why_it_is_not(heading: str) -> None:
    rows = table(_PAGE, heading)
    assert len(rows) > 4
    for row in rows:
        here = row["here"]
        assert here, row
        if here.startswith("not here") and "yet" not in here:
            assert len(here.partition(": ")[2]) > 10, f"no reason: {row}"
