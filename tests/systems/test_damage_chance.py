"""Operators and a policy force verdicts at random moments while services die, lose answers or their database, and the broker is killed: at
the end of each run database and messages agree, or the finding is there; and there is no finding without a contradiction.

What was asked and found in all runs goes to the history checker.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import insert, select

from halfmq import AsyncClient, Outcome
from halfmq.client.comparisons import Comparer
from halfmq.client.transaction import VERDICT_OF
from halfmq.errors import HalfmqError
from halfmq.testing.history import MemoryRecorder, check_events
from halfmq.testing.history.events import (
    Answered,
    Damage,
    DamageForgotten,
    DamageListed,
    EndAsked,
    HalfSent,
    Local,
    OutcomeReported,
    Settled,
)
from halfmq.testing.history.report import At
from halfmq.wire.remoting.codes import EXT_VERDICT
from tests.support.amount import amount, seed_of_commit
from tests.support.broker_kills import connected, killed_now_and_then
from tests.support.database_faults import AT_DATABASE, cut_at_calls
from tests.support.faults import Faults, Killed
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.waiting import until
from tests.systems.test_damage import (
    COMPARISONS,
    DAMAGED,
    FORGET,
    GROUP,
    PRODUCER,
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

RUNS = amount(gate=5, everything=200, variable="HALFMQ_TEST_SYSTEM_RUNS")
#: Orders of one run, placed at once.
ORDERS = 6
#: A group whose policy rolls back what was checked once, and how many runs are of it.
BY_POLICY, POLICIES = "orders-by-policy", 0.3
#: Of a fault at each call of a service to its database; how long a pause is.
CHANCE, PAUSE_S = 0.03, 0.2
#: Of a finding, that an operator lets the broker forget it after its run; the others stay to the end.
FORGETS = 0.9


class History(MemoryRecorder):
    """What all runs asked of the broker. An answer that was lost is not recorded."""

    def __init__(self) -> None:
        super().__init__("test", policy_groups=(BY_POLICY,))
        self._ops = map(str, itertools.count())
        #: The broker also has those of other databases.
        self.transactions: set[str] = set()

    def asked(self, kind: type[Any], group: str, tx_id: str, **fields: Any) -> str:
        """Returns the operation."""
        op = next(self._ops)
        self.record(kind, op=op, group=group, tx=tx_id, **fields)
        return op

    def record_reports_of(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record what clients report of markers."""
        real = Comparer._report

        async def report(comparer: Comparer, connection: Any, tx_id: str, outcome: Outcome, source: str) -> Any:
            said = VERDICT_OF[outcome]
            op = self.asked(OutcomeReported, comparer._group, tx_id, outcome=said, source=source, marker=True)
            answer = await real(comparer, connection, tx_id, outcome, source)
            if answer.code == 0:
                self.record(Answered, op=op, outcome="ok", verdict=answer.ext[EXT_VERDICT])
            return answer

        monkeypatch.setattr(Comparer, "_report", report)


class Chance:
    """One run. ``services``: the database as services see it, whose connections may be cut."""

    def __init__(
        self, served: Served, shop: Shop, services: Shop, history: History, rng: random.Random, first_id: int
    ) -> None:
        self.served, self.shop, self.services, self.history, self.rng = served, shop, services, history, rng
        self.ids = range(first_id, first_id + ORDERS)
        self.group = BY_POLICY if rng.random() < POLICIES else GROUP
        #: Order -> its transaction, once the service has begun it.
        self.transactions: dict[int, str] = {}
        self.story: list[str] = []
        #: At the database.
        self.faults: Counter[str] = Counter()

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Any:
        """Of an operator, who tries again when the broker was killed."""
        while True:
            try:
                raw = await RawClient.connect(self.served.port)
            except OSError:
                await asyncio.sleep(0.05)  # real time: the broker starts meanwhile
                continue
            try:
                return await raw.ask(code, ext, body, wait_s=2.0)
            except (OSError, AssertionError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)  # real time: the broker starts meanwhile
            finally:
                await raw.close()

    async def force(self, order: int) -> None:
        tx_id, outcome = self.transactions[order], self.rng.choice([Outcome.COMMIT, Outcome.ROLLBACK])
        self.story.append(f"{order}: an operator forces {outcome.name}")
        ext = {"txId": tx_id, "group": self.group, "verdict": outcome.name, "operator": "ada", "reason": "chance"}
        op = self.history.asked(EndAsked, self.group, tx_id, verdict=VERDICT_OF[outcome], decided_by="operator")
        if (await self.ask(RESOLVE, ext)).code == 0:  # refused if it is settled, or incomplete
            self.history.record(Answered, op=op, outcome="ok")

    async def place(self, order: int) -> None:
        """A service places the order, and dies or is overruled at some point."""
        what = self.rng.choice(["nothing", "force within", "roll back", "force after", "force and roll back", "slow"])
        self.story.append(f"{order}: {what}")
        mq = Process(self.served.url, group=self.group, timeout=5.0)
        op = ""

        async def at_prepared() -> None:
            self.history.record(Answered, op=op, outcome="ok")
            if what in ("force within", "force and roll back"):
                await self.force(order)
            if what == "slow":
                await asyncio.sleep(self.rng.uniform(0, 0.6))  # real time: longer than the grace period
            if "roll back" in what:
                raise Dies("the local transaction rolls back")

        mq.at_prepared = at_prepared
        faults = Faults(random.Random(f"{self.rng.random()}"), CHANCE, PAUSE_S)
        try:
            async with (
                mq,
                self.services.sessions() as session,
                mq.transaction(session, markers=self.services.markers, checked_elsewhere=True) as tx,
            ):
                self.transactions[order] = tx.id
                self.history.transactions.add(tx.id)
                op = self.history.asked(HalfSent, self.group, tx.id, message=f"of {tx.id}", topic="orders")
                AT_DATABASE.set(faults)
                await session.execute(insert(self.services.orders).values(id=order))
                tx.send("orders", b"%d" % order)
        except (Exception, Killed) as error:
            self.story += [*(f"{order}: {line}" for line in faults.story), f"{order}: {type(error).__name__}"]
        finally:
            AT_DATABASE.set(None)
            self.faults.update(faults.story)
        if what == "force after" and order in self.transactions:
            await self.force(order)

    async def place_all(self) -> None:
        placing = asyncio.gather(*map(self.place, self.ids))
        if self.group == BY_POLICY:
            await self.stay_silent(placing)
        await placing

    async def stay_silent(self, placing: "asyncio.Future[list[None]]") -> None:
        """A process that gets the checks and never answers, until the policy has acted, or not yet."""
        try:
            raw = await RawClient.connect(self.served.port)
        except OSError:
            return  # the broker was killed
        try:
            await raw.heartbeat("nobody", producers=[self.group])
            await placing
            await asyncio.sleep(self.rng.uniform(0, 1.0))  # real time: the policy acts meanwhile
        except (OSError, AssertionError, TimeoutError, asyncio.IncompleteReadError):
            return
        finally:
            await raw.close()

    async def settled(self) -> None:
        """A service that answers checks, and compares, until there is nothing left to do."""
        mq = AsyncClient(self.served.url, group=self.group)
        mq.answer_checks(self.shop.markers, self.shop.sessions)
        await connected(mq)

        async def is_done() -> bool:
            waiting = json.loads((await self.ask(COMPARISONS, {"group": self.group})).body)
            try:
                return not waiting and not await mq.undecided(list(self.transactions.values()))
            except HalfmqError:
                return False

        try:
            await until(is_done, f"every transaction to be settled and compared: {self.story}")
        finally:
            await mq.close()

    async def compare(self, counts: Counter[str]) -> None:
        async with self.shop.engine.connect() as connection:
            there = set((await connection.execute(select(self.shop.orders.c.id))).scalars())
        found = {tx_id: row for tx_id, row in (await self.listed()).items() if tx_id in self.transactions.values()}
        for order, tx_id in self.transactions.items():
            answer = await self.ask(STORY, {"group": self.group, "txId": tx_id})
            verdict, local = answer.ext["state"], "COMMITTED" if order in there else "ROLLED_BACK"
            self.history.record(Local, group=self.group, tx=tx_id, outcome=local, marker=True)
            by_policy = b"the policy of its producer group" in answer.body
            if by_policy:
                op = self.history.asked(EndAsked, self.group, tx_id, verdict=verdict, decided_by="policy")
                self.history.record(Answered, op=op, outcome="ok")
            finding = found.get(tx_id)
            if verdict == "UNKNOWN":  # nothing of it has arrived at the broker
                assert (local, finding) == ("ROLLED_BACK", None), self.story
            elif verdict == local:
                assert finding is None, (order, tx_id, " | ".join(self.story))
            else:
                who = ("policy", "") if by_policy else ("operator", "ada")
                assert finding == (verdict, local, *who), (order, self.story)
            counts[f"{verdict}, {local}"] += 1
            counts[f"findings of the {finding[2]}" if finding else "no finding"] += 1
            if finding is not None and self.rng.random() < FORGETS:
                op = self.history.asked(DamageForgotten, self.group, tx_id)
                fields = {"group": self.group, "txId": tx_id, "operator": "bob", "reason": "seen"}
                assert (await self.ask(FORGET, fields)).code == 0
                self.history.record(Answered, op=op, outcome="ok")

    async def listed(self) -> dict[str, tuple[str, str, str, str]]:
        """Transaction -> verdict, local outcome and who decided, of all findings."""
        since_us = self.history._clock()
        damaged = json.loads((await self.ask(DAMAGED, {})).body)
        rows = [(one["group"], one["tx_id"], one["verdict"], one["local"], one["decided_by"]) for one in damaged]
        findings = tuple(
            Damage(group=group, tx=tx_id, verdict=verdict, local=local, decided_by=by)
            for group, tx_id, verdict, local, by in rows
            if tx_id in self.history.transactions
        )
        self.history.record(DamageListed, findings=findings, since_us=since_us)
        return {one["tx_id"]: (one["verdict"], one["local"], one["decided_by"], one["by"]) for one in damaged}


async def test_after_each_run_both_agree_or_the_finding_is_there(
    served: Served, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = seed_of_commit()
    counts: Counter[str] = Counter()
    history = History()
    history.record_reports_of(monkeypatch)
    services = await Shop.on(shop.url)
    cut_at_calls(services.engine)
    kills, begun, faults = served.kills, 0, Counter[str]()
    async with killed_now_and_then(served, random.Random(f"kills {seed}"), history):
        for number in range(RUNS):
            rng = random.Random(f"{seed} {number}")
            run = Chance(
                served, shop, services, history, rng, 1 + number * ORDERS
            )  # 0 means "the next number" to MariaDB
            if not number:
                policy = {"group": BY_POLICY, "operator": "ada", "reason": "t"}
                assert (await run.ask(PRODUCER, policy, b'{"check_limit":1,"past_limit":"rollback"}')).code == 0
            await run.place_all()
            await run.settled()
            await run.compare(counts)
            begun += len(run.transactions)
            faults += run.faults
    history.record(Settled)
    await run.listed()
    await services.engine.dispose()
    print(f"seed {seed}, {RUNS} runs, {begun} orders: {dict(counts)}, {served.kills - kills} kills of the broker")
    print(f"{faults.total()} faults at the database: {dict(faults)}")
    report = check_events(history.events)
    assert report.clean, [one.text() for one in report.violations]
    assert counts["COMMITTED, COMMITTED"], "something committed"
    if RUNS >= 20:
        assert counts["COMMITTED, ROLLED_BACK"]
        assert counts["ROLLED_BACK, COMMITTED"]
        assert faults.total() > RUNS / 10
        assert counts["findings of the policy"]
        assert all(report.looked[check].looked for check in (At.DAMAGE_SAID, At.DAMAGE_STAYS, At.DAMAGE_FOUND))
