"""Orders by chance: services are killed and paused, connections cut and answers lost at any of their steps, the broker is killed, goods are
missing and cards refused.

Shop, stock and bank agree about each order in the end, and each message is visible once, if and only if its row is there.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support.amount import amount, seed_of_commit
from tests.support.broker_kills import killed_now_and_then
from tests.support.served import Served
from tests.systems.order_services import BOTH, WAYS, Order
from tests.systems.order_system import system_on
from tests.unit.sql.faces import DRIVERS, MARKS, Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

#: Orders of each way on each database.
RUNS = amount(gate=5, everything=200, variable="HALFMQ_TEST_SYSTEM_RUNS")
#: Orders that are under way at once.
BATCH = 50
#: Of a fault at each of about 25 steps that an order takes.
CHANCE = 0.015


#: In the gate every way on SQLite, and on the servers the one that uses all tables.
CASES = [
    pytest.param(one, way, id=f"{one.name}-{way}", marks=(*MARKS[one.database], *rare))
    for one in DRIVERS
    if not one.is_async
    for way in WAYS
    for rare in [() if one.database == "sqlite" or way == BOTH else (pytest.mark.thorough,)]
]


@pytest.mark.parametrize(("driver", "way"), CASES)
async def test_shop_stock_and_bank_agree(
    driver: Driver, way: str, served: Served, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = f"{seed_of_commit()}-{driver.name}-{way}"
    rng = random.Random(seed)
    system = system_on(request, driver, served, tmp_path, way, chance=CHANCE, seed=seed)
    kills, before = random.Random(f"kills {seed}"), served.kills
    with system.running(tmp_path / "config") as services:
        for first in range(1, RUNS + 1, BATCH):
            ids = range(first, min(first + BATCH, RUNS + 1))
            system.place([Order(one, rng.random() < 0.8, rng.random() < 0.7) for one in ids])
            async with killed_now_and_then(served, kills):
                await system.agree(services)
        await system.each_message_is_there_once()
        ends = Counter(system.states().values())
    faults = Counter(line[-1] for line in system.story.lines() if line[0] == "fault")
    print(
        f"{seed}: {RUNS} orders, {faults.total()} faults {dict(faults)}, {dict(ends)}, {served.kills - before} kills of the broker"
    )
    if RUNS >= BATCH:
        assert faults.total() > RUNS / 10
