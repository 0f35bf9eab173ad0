"""As ``test_chance``, to targets that cannot be asked for a batch: the history is clean, and duplicates are counted."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from halfmq.relay.publisher import Publisher
from halfmq.relay.relay import Relay
from halfmq.relay.rows import OutboxRows
from halfmq.sql.alchemy.outbox_relay import EngineRows
from halfmq.testing.history.report import At
from tests.outbox.chance import LEASE_S, Shop, run
from tests.outbox.test_chance import IDS_OF_A_RUN, engine_on, settle
from tests.support.amount import amount, seed_of_commit
from tests.unit.relay.targets import TARGETS, Target, fresh_name
from tests.unit.sql.faces import DRIVERS, MARKS, Driver, located

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

RUNS = amount(gate=2, everything=20, variable="HALFMQ_TEST_OUTBOX_TARGET_RUNS")
#: In the gate Kafka meets PostgreSQL.
PAIRS = [
    pytest.param(
        driver,
        target.values[0],
        id=f"{driver.name}-{target.values[0]}",
        marks=[
            *MARKS[driver.database],
            *target.marks,
            *(() if (driver.name, target.values[0]) == ("psycopg", "kafka") else (pytest.mark.thorough,)),
        ],
    )
    for target in TARGETS
    for driver in DRIVERS
    if not driver.is_async
]


@pytest.fixture
def engine(driver: Driver, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    where, name = located(request, driver, tmp_path)
    made = engine_on(driver, driver.url.format(where=where, name=name))
    yield made
    made.dispose()


@pytest.mark.parametrize(("driver", "kind"), PAIRS)
async def test_nothing_is_lost_and_duplicates_are_known(
    driver: Driver, kind: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    target: Target = request.getfixturevalue(kind)
    seed = seed_of_commit()
    shop = Shop("", at_least_once=("shop",))
    shop.metadata.create_all(engine)
    ends: list[tuple[str, int, int]] = []

    def make_relay(rows: Callable[[OutboxRows], OutboxRows], publisher: Callable[[Publisher], Publisher]) -> Relay:
        real = EngineRows(shop.outbox._tables, engine, lease_s=LEASE_S, messages_max=rng.choice((1, 3, 50)))
        return Relay(rows(real), publisher(target.publisher()), workers=2, poll_s=0.02)

    for number in range(RUNS):
        rng = random.Random(f"{seed}-{driver.name}-{kind}-{number}")
        shop.topic = fresh_name()
        await target.create(shop.topic)
        story = await run(shop, engine, rng, 1 + number * IDS_OF_A_RUN, make_relay, None)
        print(f"run {number} of seed {seed}:", *story, sep="\n  ")
        await settle(shop, engine, make_relay)
        seen = await asyncio.wait_for(target.read(shop.topic), 60)
        for at, one in enumerate(seen):
            shop.saw(one.message_id, 0, at, one.body, one.key)
        ends.append((shop.topic, 0, len(seen)))
    report = shop.checked(ends)
    print(f"{report.duplicates} duplicates of {report.looked[At.OUTBOX_PHANTOM].looked} messages")
