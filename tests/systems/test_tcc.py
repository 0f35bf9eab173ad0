"""Try/Confirm/Cancel while something fails: each cell of the table in docs/tcc.md is a test.

The shop orders, stock and bank hold for it. ``outcome`` waits until nothing is held any more, on which all databases must agree.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from halfmq.errors import BranchRefused, TransactionRefused
from tests.documents.pages import table
from tests.support.faults import Faults, Killed, Once
from tests.support.served import Served
from tests.support.waiting import soon, until
from tests.systems.tcc import CANCELLED, CONFIRMED, TIMEOUT_S, Participant, Shop, closed, quiet_about_kills
from tests.unit.sql.faces import DRIVERS, MARKS, Driver, located

ALL_CONFIRMED, ALL_CANCELLED = "all confirmed", "all cancelled"
FAULTS: Final = ("process killed", "connection cut", "answer lost")
#: Step -> what the databases agree on, by the fault at the step.
TABLE: Final = {
    "cancel sent": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
    "try called": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
    "try done": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
    "prepare": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
    "COMMIT": (ALL_CANCELLED, ALL_CANCELLED, ALL_CONFIRMED),
    "verdict": (ALL_CONFIRMED, ALL_CONFIRMED, ALL_CONFIRMED),
    "confirm delivered": (ALL_CONFIRMED, ALL_CONFIRMED, ALL_CONFIRMED),
    "confirm handled": (ALL_CONFIRMED, ALL_CONFIRMED, ALL_CONFIRMED),
    "cancel delivered": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
    "cancel handled": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
}
#: Of the calls and COMMITs of the harness.
_AT_CALLS = {"process killed": "kill after", "connection cut": "not sent", "answer lost": "lost"}
_AT_COMMITS = {"process killed": "killed after", "connection cut": "cut", "answer lost": "lost"}


def on_databases() -> list[Any]:
    """SQLite in the gate; the others are thorough."""
    return [
        pytest.param(driver, id=driver.database, marks=(*MARKS[driver.database], pytest.mark.slow, *rare))
        for driver in DRIVERS
        if driver.name in ("aiosqlite", "psycopg_async", "asyncmy")
        for rare in [() if driver.database == "sqlite" else (pytest.mark.thorough,)]
    ]


class System:
    """A shop, stock and bank, and a broker."""

    def __init__(self, shop: Shop, participants: list[Participant]) -> None:
        self.shop = shop
        self.participants = participants
        self.stock, self.bank = participants

    async def outcome(self, gid: str) -> str:
        """What the databases agree on, once nothing is held."""

        async def is_over() -> bool:
            states = [(await one.states()).get(gid) for one in self.participants]
            seen = [any(arrived == gid for arrived, _ in one.arrived) for one in self.participants]
            ordered = gid in await self.shop.gids()
            settled = {CONFIRMED} if ordered else {CANCELLED, None}
            return all(state in settled for state in states) and (ordered or any(seen) or states == [None, None])

        await until(is_over, f"all databases agree on {gid}")
        # What comes later must not change it: the cancels of an order that fails now come after those of this one.
        raised: BaseException | None = None
        while not isinstance(raised, Killed):  # a slow machine may take longer than the time
            last, raised = await self.shop.order(self.participants, Once("prepare", "kill before", 0.1))
        await until(lambda: all((last, "cancel") in one.arrived for one in self.participants), "the last cancels")
        assert await is_over()
        return ALL_CONFIRMED if gid in await self.shop.gids() else ALL_CANCELLED


@pytest.fixture
async def system(
    request: pytest.FixtureRequest, driver: Driver, served: Served, tmp_path: Path
) -> AsyncIterator[System]:
    quiet_about_kills()
    urls = []
    for name in ("shop", "stock", "bank"):
        directory = tmp_path / name
        directory.mkdir()
        where, database = located(request, driver, directory)
        urls.append(driver.url.format(where=where, name=database))
    suffix = f"{abs(hash(tmp_path)):x}"[:8]
    broker = served.url
    shop = Shop(f"shop{suffix}", broker, urls[0])
    participants = [
        Participant(f"{name}{suffix}", broker, url) for name, url in zip(("stock", "bank"), urls[1:], strict=True)
    ]
    for one in (shop, *participants):
        await one.create()
    running = [asyncio.ensure_future(one.run()) for one in participants]
    yield System(shop, participants)
    await closed([shop], participants, running)


#: The same of tries that are messages: faults at the steps of the first one.
OVER_MESSAGES: Final = {
    "try called": (ALL_CANCELLED, ALL_CANCELLED, ALL_CANCELLED),
    "try handled": (ALL_CONFIRMED, ALL_CANCELLED, ALL_CANCELLED),
    "reply": (ALL_CONFIRMED, ALL_CANCELLED, ALL_CONFIRMED),
}
#: Of a block whose try is answered by the participant's next process, seconds.
_LONG_S: Final = 30.0


def once(name: str, *faults: str) -> Any:
    """For ``draw``: each fault at one of the first COMMITs of this name."""
    left = [*faults]
    return lambda at: left.pop(0) if at == name and left else ""


#: They wait 10 s for the broker's redelivery.
_SLOW: Final = {
    ("confirm delivered", "connection cut"),
    ("confirm delivered", "answer lost"),
    ("confirm handled", "connection cut"),
}
CELLS: Final = [
    pytest.param(*cell, marks=pytest.mark.thorough if cell in _SLOW else ()) for cell in product(TABLE, FAULTS)
]


@pytest.mark.parametrize("driver", on_databases())
@pytest.mark.parametrize(("step", "fault"), CELLS)
async def test_all_databases_agree_whatever_fails_at_a_step(system: System, step: str, fault: str) -> None:
    faults: Faults | None = None
    match step:
        case "cancel sent" | "try called" | "prepare" | "verdict":
            faults = Once(step, _AT_CALLS[fault], 0.1)
        case "COMMIT":
            system.shop.draw = once(step, {**_AT_COMMITS, "process killed": "killed before"}[fault])
        case "confirm delivered" | "cancel delivered":
            system.stock.faults = Once(step, {**_AT_CALLS, "process killed": "kill before"}[fault], 0.1)
        case _:
            is_handled = step.endswith("handled") and fault == "process killed"
            system.stock.draw = once(step, *(("killed before",) if is_handled else ()), _AT_COMMITS[fault])
    gid, raised = await soon(
        system.shop.order(system.participants, faults, fails=step.startswith("cancel ") and faults is None)
    )
    system.shop.draw = lambda _: ""
    expected = TABLE[step][FAULTS.index(fault)]
    assert await system.outcome(gid) == expected, raised


#: Of those that are not thorough.
_FIRST: Final = {("try called", "answer lost"), ("try handled", "process killed"), ("reply", "connection cut")}
OVER_MESSAGES_CELLS: Final = [
    pytest.param(*cell, marks=() if cell in _FIRST else pytest.mark.thorough) for cell in product(OVER_MESSAGES, FAULTS)
]


@pytest.mark.parametrize("driver", on_databases())
@pytest.mark.parametrize(("step", "fault"), OVER_MESSAGES_CELLS)
async def test_all_databases_agree_whatever_fails_at_a_try_over_messages(system: System, step: str, fault: str) -> None:
    faults = Once(step, _AT_CALLS[fault], 0.1) if step == "try called" else None
    expected = OVER_MESSAGES[step][FAULTS.index(fault)]
    if step == "try handled":
        system.stock.draw = once(step, _AT_COMMITS[fault])
    elif step == "reply":
        system.stock.faults = Once(step, {**_AT_CALLS, "process killed": "kill before"}[fault], 0.1)
    timeout_s = _LONG_S if expected == ALL_CONFIRMED else TIMEOUT_S
    gid, raised = await soon(system.shop.order(system.participants, faults, over_messages=True, timeout_s=timeout_s))
    assert await system.outcome(gid) == expected, raised
    if step == "try handled" and fault == "process killed":  # the barrier's row knew the answer
        assert system.stock.arrived.count((gid, "try")) == 1


def test_the_page_says_what_the_tests_show() -> None:
    for shown, section in ((TABLE, "What fails"), (OVER_MESSAGES, "Tries over messages")):
        rows = table("docs/tcc.md", section)
        assert {row["step"]: tuple(row[fault] for fault in FAULTS) for row in rows} == shown


@pytest.mark.parametrize("driver", on_databases())
async def test_try_over_messages_that_is_refused_holds_nothing_and_cancels_the_others(system: System) -> None:
    gid, raised = await system.shop.order(system.participants, over_messages=True, refused_by=system.bank)
    assert isinstance(raised, BranchRefused), raised
    assert "nothing is left" in str(raised)
    assert await system.outcome(gid) == ALL_CANCELLED
    assert [(await one.states()).get(gid) for one in system.participants] == [CANCELLED, None]


@pytest.mark.parametrize("driver", on_databases())
@pytest.mark.parametrize("over_messages", [False, True])
async def test_orders_without_a_fault(system: System, over_messages: bool) -> None:
    done, raised = await system.shop.order(system.participants, over_messages=over_messages)
    assert raised is None
    failed, raised = await system.shop.order(system.participants, fails=True, over_messages=over_messages)
    assert raised is not None
    assert await system.outcome(done) == ALL_CONFIRMED
    assert await system.outcome(failed) == ALL_CANCELLED


@pytest.mark.parametrize("driver", on_databases())
async def test_block_that_takes_longer_than_its_time_is_rolled_back(system: System) -> None:
    """The cancels come while the initiator still works: they fence the transaction, so that its prepare is refused."""

    async def until_it_is_cancelled() -> None:
        async def cancelled() -> bool:
            return all([CANCELLED in (await one.states()).values() for one in system.participants])

        await until(cancelled)

    gid, raised = await system.shop.order(system.participants, before_end=until_it_is_cancelled)
    assert isinstance(raised, TransactionRefused), raised
    assert raised.standing == "ROLLED_BACK"
    assert await system.outcome(gid) == ALL_CANCELLED
