"""Try/Confirm/Cancel by chance: initiators and participants are killed and paused at any call, tries arrive late, answers are lost, and the
broker is killed.

Each run is one order. At the end its row is there and all holds are confirmed, or neither is.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from halfmq.errors import ConnectError
from halfmq.testing.history import MemoryRecorder, Report, check_events
from halfmq.testing.history.events import BranchWritten, Local, Settled
from halfmq.testing.history.report import At
from tests.support.amount import amount, seed_of_commit
from tests.support.broker_kills import killed_now_and_then
from tests.support.faults import Faults, Killed
from tests.support.served import Served
from tests.support.waiting import until
from tests.systems.tcc import CANCELLED, CONFIRMED, LATE, TIMEOUT_S, Draw, Participant, Shop, closed, quiet_about_kills
from tests.systems.test_tcc import on_databases
from tests.unit.sql.faces import Driver, located

RUNS = amount(gate=5, everything=200, variable="HALFMQ_TEST_SYSTEM_RUNS")
#: That something happens at a call of an initiator, and at one of a participant.
CHANCE, CHANCE_OF_PARTICIPANTS = 0.06, 0.04
#: At a COMMIT of a participant. What it had not acknowledged comes again after a kill, and draws again: with more of them it
#: is away most of the time.
CHANCE_AT_COMMITS = 0.01
#: Initiators at work at once, each with a database of its own where a database has one writer.
SHOPS = min(6, RUNS)
_AT_COMMIT = ("killed before", "killed after", "cut", "lost")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


def draws(rng: random.Random, chance: float, story: list[str]) -> Draw:
    def draw(name: str) -> str:
        if rng.random() >= chance:
            return ""
        fault = rng.choice(_AT_COMMIT)
        story.append(f"{name}: {fault}")
        return fault

    return draw


class Run:
    """Many orders at once."""

    def __init__(self, seed: str, shops: list[Shop], participants: list[Participant]) -> None:
        self.seed = seed
        self.shops = shops
        self.participants = participants
        #: gid -> (its shop, what happened to it)
        self.orders: dict[str, tuple[Shop, list[str]]] = {}
        self.ends: Counter[str] = Counter()
        #: Orders by (tries are messages, the block ended well).
        self.ways: Counter[tuple[bool, bool]] = Counter()
        self.left = iter(range(RUNS))
        self._broken: list[str] = []

    async def orders_of(self, shop: Shop) -> None:
        for number in self.left:
            rng = random.Random(f"{self.seed} {number}")
            faults = Faults(rng, CHANCE, 0.6 * TIMEOUT_S)
            shop.draw = draws(rng, CHANCE, faults.story)
            late_s = rng.uniform(0, 2 * TIMEOUT_S) if rng.random() < 0.1 else 0
            over_messages = rng.random() < 0.5
            gid, raised = await shop.order(
                self.participants,
                faults,
                fails=rng.random() < 0.15,
                late_s=late_s,
                over_messages=over_messages,
                refused_by=rng.choice(self.participants) if rng.random() < 0.1 else None,
                # A participant that was killed is there again, and answers from the row of its barrier.
                timeout_s=3 * TIMEOUT_S if over_messages else TIMEOUT_S,
            )
            self.ends[type(raised).__name__] += 1
            if gid:
                self.ways[over_messages, raised is None] += 1
                way = "messages" if over_messages else f"late {late_s:g}"
                self.orders[gid] = shop, [*faults.story, way, repr(raised)]
            if isinstance(raised, ConnectError):
                # Blocks fail at once while the broker is away: the orders would be over before it is back.
                await until(lambda: shop.client is None or shop.client.is_ready, "a broker")

    async def settle(self) -> None:
        """Let everything work again, and wait until no hold is open and every cancel was delivered."""
        for one in self.participants:
            one.faults, one.draw = None, lambda _: ""
        await asyncio.gather(*LATE, return_exceptions=True)
        lasts = []
        for shop in self.shops:
            shop.draw = lambda _: ""
            raised: BaseException | None = None
            while not isinstance(raised, Killed):  # a slow machine may take longer than the time
                last, raised = await shop.order(self.participants, _DiesBeforePrepare(), timeout_s=2 * TIMEOUT_S)
            lasts.append(last)
        await until(
            lambda: all((last, "cancel") in one.arrived for one in self.participants for last in lasts),
            "the last cancels", seconds=300,
        )  # fmt: skip
        await until(self._is_over, "nothing is held", seconds=300, unless=lambda: self._broken)

    async def _is_over(self) -> bool:
        states = [await one.states() for one in self.participants]
        ordered = {gid for shop in self.shops for gid in await shop.gids()}
        self._broken = [
            f"{self.seed}: {gid} ordered: {gid in ordered}, {[of.get(gid) for of in states]}: {story}"
            for gid, (_, story) in self.orders.items()
            if any(of.get(gid) == (CANCELLED if gid in ordered else CONFIRMED) for of in states)
            or (gid in ordered and any(gid not in of for of in states))
        ]
        return all(
            of.get(gid) in ({CONFIRMED} if gid in ordered else {CANCELLED, None})
            for gid in self.orders
            for of in states
        )

    async def history(self) -> Report:
        """What the databases say, through the history checker."""
        recorder = MemoryRecorder("databases")
        for gid, (shop, _) in self.orders.items():
            outcome = "COMMITTED" if gid in await shop.gids() else "ROLLED_BACK"
            recorder.record(Local, group=shop.name, tx=gid, outcome=outcome)
        for one in self.participants:
            for gid, branch, call in await one.written():
                if gid in self.orders:
                    group = self.orders[gid][0].name
                    recorder.record(BranchWritten, group=group, tx=gid, branch=branch, call=call)
        recorder.record(Settled)
        return check_events(recorder.events)


class _DiesBeforePrepare(Faults):
    def __init__(self) -> None:
        super().__init__(random.Random(0), 0, 0)

    async def at(self, name: str, call: Any, lost: Any) -> Any:
        if name == "prepare":
            raise Killed
        return await call()


@pytest.mark.parametrize("driver", on_databases())
async def test_all_or_none_of_an_order_is_there(
    request: pytest.FixtureRequest, driver: Driver, served: Served, tmp_path: Any
) -> None:
    quiet_about_kills()
    seed = f"{seed_of_commit()}-{driver.database}"
    rng = random.Random(seed)
    urls = {}
    for name in ("stock", "bank", *(f"shop{number}" for number in range(SHOPS))):
        (tmp_path / name).mkdir()
        where, database = located(request, driver, tmp_path / name)
        urls[name] = driver.url.format(where=where, name=database)
    suffix = f"{driver.database}{rng.randrange(1 << 32):x}"
    shops = [Shop(f"shop{number}{suffix}", served.url, urls[f"shop{number}"]) for number in range(SHOPS)]
    participants = [Participant(f"{name}{suffix}", served.url, urls[name]) for name in ("stock", "bank")]
    for one in (*shops, *participants):
        await one.create()
    run = Run(seed, shops, participants)
    for one in participants:
        one.faults = Faults(rng, CHANCE_OF_PARTICIPANTS, 0.3)
        one.draw = draws(rng, CHANCE_AT_COMMITS, one.faults.story)
    running = [asyncio.ensure_future(one.run()) for one in participants]
    try:
        kills = served.kills
        async with killed_now_and_then(served, random.Random(f"kills {seed}")):
            await asyncio.gather(*(run.orders_of(shop) for shop in shops))
        deaths = [one.deaths for one in participants]
        await run.settle()
        ordered = [gid for shop in shops for gid in await shop.gids()]
        report = await run.history()
        print(
            f"{seed}: {len(run.orders)} orders, {len(ordered)} committed, ends {dict(run.ends)}, participants killed {deaths},"
            f" over messages (ended well or not) {run.ways[True, True]} and {run.ways[True, False]},"
            f" {served.kills - kills} kills of the broker"
        )
        assert report.clean, [one.text() for one in report.violations]
        assert report.looked[At.BRANCH_VERDICT].looked > RUNS // 3
        assert len(run.orders) > RUNS // 2
        # How many of them had time enough says something of the machine.
        assert RUNS < 50 or (0.2 < len(ordered) / RUNS < 0.9 and run.ways[True, True] > RUNS / 20)
    finally:
        await closed(shops, participants, running)
