"""Operators force verdicts at random moments while services die, lose answers and the broker is killed: at the end of each run database and
messages agree, or the finding is there; and there is no finding without a contradiction.
"""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from halfmq import AsyncClient
from halfmq.errors import HalfmqError
from tests.support.amount import amount, seed_of_commit
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.waiting import until
from tests.systems.test_damage import (
    COMPARISONS,
    DAMAGED,
    FORGET,
    GROUP,
    RESOLVE,
    STORY,
    Dies,
    Process,
    Shop,
    shop,
    soon,
)

__all__ = ["shop", "soon"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

RUNS = amount(gate=5, everything=200, variable="HALFMQ_SYSTEM_RUNS")
#: Orders of one run, placed at once.
ORDERS = 6
#: Of a run in which the broker is killed.
KILLS = 0.1


class Chance:
    """One run."""

    def __init__(self, served: Served, shop: Shop, rng: random.Random, first_id: int) -> None:
        self.served, self.shop, self.rng = served, shop, rng
        self.ids = range(first_id, first_id + ORDERS)
        #: Order -> its transaction, once the service has begun it.
        self.transactions: dict[int, str] = {}
        self.story: list[str] = []

    async def ask(self, code: int, ext: dict[str, str]) -> Any:
        """Of an operator, who tries again when the broker was killed."""
        while True:
            try:
                raw = await RawClient.connect(self.served.port)
            except OSError:
                await asyncio.sleep(0.05)  # real time: the broker starts meanwhile
                continue
            try:
                return await raw.ask(code, ext, wait_s=2.0)
            except (OSError, AssertionError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)  # real time: the broker starts meanwhile
            finally:
                await raw.close()

    async def force(self, order: int) -> None:
        verdict = self.rng.choice(["COMMIT", "ROLLBACK"])
        self.story.append(f"{order}: an operator forces {verdict}")
        ext = {
            "txId": self.transactions[order],
            "group": GROUP,
            "verdict": verdict,
            "operator": "ada",
            "reason": "chance",
        }
        await self.ask(RESOLVE, ext)  # refused if it is settled, or incomplete

    async def place(self, order: int) -> None:
        """A service places the order, and dies or is overruled at some point."""
        what = self.rng.choice(["nothing", "force within", "roll back", "force after", "force and roll back", "slow"])
        self.story.append(f"{order}: {what}")
        mq = Process(self.served.url, group=GROUP, timeout=5.0)

        async def at_prepared() -> None:
            if what in ("force within", "force and roll back"):
                await self.force(order)
            if what == "slow":
                await asyncio.sleep(self.rng.uniform(0, 0.6))  # real time: longer than the grace period
            if "roll back" in what:
                raise Dies("the local transaction rolls back")

        mq.at_prepared = at_prepared
        try:
            async with (
                mq,
                self.shop.sessions() as session,
                mq.transaction(session, markers=self.shop.markers, checked_elsewhere=True) as tx,
            ):
                self.transactions[order] = tx.id
                await session.execute(insert(self.shop.orders).values(id=order))
                tx.send("orders", b"%d" % order)
        except Exception as error:
            self.story.append(f"{order}: {type(error).__name__}")
        if what == "force after" and order in self.transactions:
            await self.force(order)

    async def settled(self) -> None:
        """A service that answers checks, and compares, until there is nothing left to do."""
        mq = AsyncClient(self.served.url, group=GROUP)
        mq.answer_checks(self.shop.markers, self.shop.sessions)
        async with mq:

            async def is_done() -> bool:
                waiting = json.loads((await self.ask(COMPARISONS, {"group": GROUP})).body)
                try:
                    return not waiting and not await mq.undecided(list(self.transactions.values()))
                except HalfmqError:
                    return False

            await until(is_done, f"every transaction to be settled and compared: {self.story}")

    async def compare(self, counts: Counter[str]) -> None:
        async with self.shop.engine.connect() as connection:
            there = set((await connection.execute(select(self.shop.orders.c.id))).scalars())
        damaged = json.loads((await self.ask(DAMAGED, {})).body)
        found = {row["tx_id"]: (row["verdict"], row["local"], row["by"]) for row in damaged}
        for order, tx_id in self.transactions.items():
            answer = await self.ask(STORY, {"group": GROUP, "txId": tx_id})
            verdict, local = answer.ext["state"], "COMMITTED" if order in there else "ROLLED_BACK"
            finding = found.pop(tx_id, None)
            if verdict == "UNKNOWN":  # nothing of it has arrived at the broker
                assert (local, finding) == ("ROLLED_BACK", None), self.story
            elif verdict == local:
                assert finding is None, (order, tx_id, " | ".join(self.story))
            else:
                assert finding == (verdict, local, "ada"), (order, self.story)
            counts[f"{verdict}, {local}"] += 1
            if finding is not None:
                fields = {"group": GROUP, "txId": tx_id, "operator": "bob", "reason": "seen"}
                assert (await self.ask(FORGET, fields)).code == 0
        assert found == {}, self.story


async def test_after_each_run_both_agree_or_the_finding_is_there(served: Served, shop: Shop, tmp_path: Path) -> None:
    seed = seed_of_commit()
    counts: Counter[str] = Counter()
    for number in range(RUNS):
        rng = random.Random(f"{seed} {number}")
        run = Chance(served, shop, rng, 1 + number * ORDERS)  # 0 means "the next number" to MariaDB
        placing = [asyncio.ensure_future(run.place(order)) for order in run.ids]
        if rng.random() < KILLS:
            await asyncio.sleep(rng.uniform(0, 0.1))  # real time: the orders are placed meanwhile
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.start)
            run.story.append("the broker was killed")
        await asyncio.gather(*placing)
        await run.settled()
        await run.compare(counts)
    print(f"seed {seed}, {RUNS} runs: {dict(counts)}")
    assert counts["COMMITTED, COMMITTED"], "something committed"
    assert RUNS < 20 or (counts["COMMITTED, ROLLED_BACK"] and counts["ROLLED_BACK, COMMITTED"])
