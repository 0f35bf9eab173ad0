"""The failure table of docs/compensation.md: whatever ends at whichever step of a handler that sends, shop, stock and bank agree.

One system handles an order for each fault of each cell, one message after the other. Its services die of real SIGKILLs.
"""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT, table
from tests.support.served import Served
from tests.support.waiting import until
from tests.systems.order_services import (
    ACK,
    BOTH,
    COMMIT,
    COMPENSATING,
    CUT_BROKER,
    CUT_DATABASE,
    DELIVERED,
    HALVES,
    HANDLER,
    INBOX,
    MARKER,
    MARKERS,
    ON_DEAD,
    OUTBOX,
    OUTBOX_ROWS,
    STEPS,
    UNITS,
    VERDICT,
    WAYS,
    Order,
)
from tests.systems.order_system import NO_CARD, PAID, system_on
from tests.unit.sql.faces import DRIVERS, MARKS, Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLED = "the process is killed"
BROKER = "the connection to the broker is cut"
DATABASE = "the connection to the database is cut"
LOST = "the answer is lost"
#: Column of the page -> what is done.
FAULTS_OF = {
    KILLED: ("kill before", "kill after"),
    BROKER: (CUT_BROKER,),
    DATABASE: (CUT_DATABASE,),
    LOST: ("not sent", "lost"),
}
#: No such thing: nothing is asked, or nothing of the database is left to do.
NONE = {(DELIVERED, LOST), (VERDICT, DATABASE), (ACK, DATABASE), (ACK, LOST)}
CELLS = [cell for cell in product(STEPS, FAULTS_OF) if cell not in NONE]
#: Steps that a way does not have.
NOT_OF = {MARKERS: {OUTBOX_ROWS}, BOTH: {OUTBOX_ROWS}, OUTBOX: {MARKER, HALVES, VERDICT}}
#: The function has not been called when these end.
_BEFORE_THE_FUNCTION = (DELIVERED, INBOX)
#: Whatever ends after it.
_COMMITTED = (VERDICT, ACK)


def calls(way: str, step: str, fault: str) -> int:
    """How often the function is called: once more if its transaction was rolled back."""
    is_committed = step in _COMMITTED or (step == COMMIT and fault in ("kill after", "lost"))
    falls_back = way == BOTH and step == HALVES and fault in ("not sent", "lost")
    again = step not in _BEFORE_THE_FUNCTION and fault != CUT_BROKER and not is_committed and not falls_back
    return 1 + again


@pytest.mark.parametrize("way", [BOTH, *(pytest.param(way, marks=pytest.mark.thorough) for way in WAYS if way != BOTH)])
@pytest.mark.parametrize(
    "driver",
    [
        pytest.param(driver, id=driver.name, marks=() if driver.database == "sqlite" else (*MARKS[driver.database], pytest.mark.thorough))
        for driver in DRIVERS
        if not driver.is_async
    ],
)  # fmt: skip
async def test_each_step_and_each_fault(
    driver: Driver, way: str, served: Served, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cells = [
        (unit, step, fault)
        for unit, (step, column) in product(UNITS, CELLS)
        if step not in NOT_OF[way]
        for fault in FAULTS_OF[column]
    ]
    faults = dict(enumerate(cells, start=1))
    system = system_on(
        request, driver, served, tmp_path, way, concurrency=1, faults={str(order): cell for order, cell in faults.items()}
    )  # fmt: skip
    with system.running(tmp_path / "config") as services:
        # The card of an order is refused where the fault is in what comes of it.
        system.place([Order(order, card=unit == HANDLER) for order, (unit, _, _) in faults.items()])
        await system.agree(services)

        def happened() -> set[tuple[Any, ...]]:
            return {(int(order), *rest) for what, order, *rest in system.story.lines() if what == "fault"}

        # The last one is at an acknowledgement, after everything is in the databases.
        await until(lambda: happened() == {(order, *cell) for order, cell in faults.items()}, "each fault")
        expected = {order: PAID if cell[0] == HANDLER else NO_CARD for order, cell in faults.items()}
        assert system.states() == expected, system.errors()
        called = Counter((int(line[1]), line[2]) for line in system.story.lines() if line[0] == "called")
        found = {cell: called[order, cell[0]] for order, cell in faults.items()}
        assert found == {cell: calls(way, *cell[1:]) for cell in cells}
        await system.each_message_is_there_once()


def test_the_page_shows_the_program() -> None:
    """It is run in ``tests/outbox/test_examples.py``."""
    program = (ROOT / "examples" / "compensation.py").read_text()
    (block,) = blocks_of("tests/systems/test_compensation.py::test_the_page_shows_the_program")
    assert block.text in program
    assert f"in {len(program.splitlines())} lines" in (ROOT / "docs" / "compensation.md").read_text()


def test_each_cell_of_the_page_is_shown() -> None:
    rows = table("docs/compensation.md", "What happens when something ends")
    assert tuple(rows[0])[1:] == tuple(FAULTS_OF)
    assert [row[""] for row in rows] == list(STEPS)
    assert {(row[""], column) for row in rows for column in FAULTS_OF if row[column] != "-"} == set(CELLS)
    # Each step is one of some way, and each fault is done.
    assert {step for way in WAYS for step in STEPS if step not in NOT_OF[way]} == set(STEPS)
    assert {ON_DEAD, COMPENSATING, HANDLER} == set(UNITS)
