"""Transfers by chance: processes of the coordinator that are killed, paused and cut off at each of their calls, two of them alive at once,
people who decide in their place at any moment, and a broker that is killed. At the end the banks, the broker and what consumers see agree,
or a finding names what a person forced.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from halfmq import AsyncClient, Outcome
from halfmq.cli.requests import ask
from halfmq.client.receipts import COMMITTED
from halfmq.client.transaction import VERDICT_OF
from halfmq.errors import HalfmqError
from halfmq.model.address import parse_url
from halfmq.testing.history import MemoryRecorder, check_events
from halfmq.testing.history.events import Damage, DamageListed, EndAsked
from halfmq.testing.history.report import At
from halfmq.wire.remoting.codes import HMQ_DAMAGED, HMQ_RESOLVE
from halfmq.wire.remoting.operators import DAMAGED
from tests.support.amount import amount, seed_of_commit
from tests.support.broker_kills import killed_now_and_then
from tests.support.faults import Faults, Killed
from tests.support.served import Served
from tests.support.visible import visible
from tests.support.waiting import until
from tests.systems.transfers import Bank, Teller, bank_urls
from tests.unit.sql.faces import DRIVERS, MARKS, Driver, located

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

#: Transfers on each database.
RUNS = amount(gate=5, everything=200, variable="HALFMQ_TEST_SYSTEM_RUNS")
#: That something happens at a call; of a transfer, that a person decides in its place; that another process takes over before it.
CHANCE = 0.04
PERSONS = 0.3
OVERTAKES = 0.15
PAUSE_S = 0.1


class Chance:
    """The system over many processes. ``story``: what happened, for the message of a red test."""

    def __init__(self, served: Served, banks: list[Bank], topic: str, rng: random.Random) -> None:
        self.served = served
        self.banks = banks
        self.topic = topic
        self.rng = rng
        self.journal: dict[str, int] = {}
        #: Number -> id, of the transfers that were begun.
        self.begun: dict[int, str] = {}
        self.findings: list[tuple[str, str, str]] = []
        #: Transfers for which a person did something.
        self.forced: dict[str, list[str]] = {}
        self.story: list[str] = []
        #: Of people, each of whom decides about another transfer; and of each process.
        self.persons = MemoryRecorder("persons")
        self.histories = [self.persons]
        self.counts: Counter[str] = Counter()

    async def process(self, name: str, faults: Faults, work: Callable[[Teller], object]) -> None:
        """One process, from its start to its end."""
        mq = AsyncClient(self.served.url, group=self.topic, timeout=5, attempt_timeout=2)
        try:
            await mq.connect()
            teller = Teller(name, mq, self.banks, self.topic, faults, self.journal)
            teller.findings = self.findings
            self.histories.append(teller.history)
            await teller.recover()
            await work(teller)
        except Killed:
            self.counts["killed"] += 1
        except HalfmqError as error:
            self.counts[error.code] += 1
        finally:
            self.story += [f"{name}: {line}" for line in faults.story]
            self.counts["faults"] += len(faults.story)
            await mq.close(grace=0)

    async def slot(self, slot: int, numbers: "asyncio.Queue[int]") -> None:
        """Processes one after the other; there are two of these at once."""
        generation = 0
        rng = random.Random(f"{self.rng.random()}")
        while not numbers.empty():
            generation += 1
            faults = Faults(rng, CHANCE, PAUSE_S)

            async def work(teller: Teller) -> None:
                while not numbers.empty():
                    number = numbers.get_nowait()
                    tx_id = self.begun[number] = f"{self.topic}.{number}"
                    person = asyncio.create_task(self.person(tx_id, rng)) if rng.random() < PERSONS else None
                    try:
                        branches = rng.choice((2, 2, 2, 2, 2, 1, 0))
                        refused = branches < 2 or rng.random() < 0.1
                        await teller.transfer(tx_id, number, branches=branches, refused=refused)
                    finally:
                        if person is not None:
                            await person
                    if rng.random() < OVERTAKES:
                        return

            await self.process(f"{slot}.{generation}", faults, work)
            # Else they would do nothing but take over from each other.
            await asyncio.sleep(rng.uniform(0.05, 0.3))  # real time: the other one works meanwhile

    async def person(self, tx_id: str, rng: random.Random) -> None:
        """Decides something of the transfer, if it is there at that moment."""
        await asyncio.sleep(rng.uniform(0, 0.04))  # real time: at any moment of the transfer
        what = rng.choice(("commit", "rollback", "a commit", "a rollback", "b commit", "b rollback"))
        if what in ("commit", "rollback"):
            fields = {
                "group": self.topic,
                "txId": tx_id,
                "verdict": what.upper(),
                "operator": "ada",
                "reason": "by chance",
            }
            asked = {"verdict": VERDICT_OF[Outcome[what.upper()]], "decided_by": "operator"}
            self.persons.record(EndAsked, op=tx_id, group=self.topic, tx=tx_id, **asked)
            try:
                answer = await asyncio.to_thread(ask, parse_url(self.served.url), HMQ_RESOLVE, fields, 10.0)
            except HalfmqError:
                done = True  # perhaps
            else:
                done = answer.code == 0
        else:
            bank = next(bank for bank in self.banks if bank.name == what[0])
            done = await asyncio.to_thread(bank.end, bank.branch(tx_id), commit=what.endswith("commit"))
        if done:
            self.forced.setdefault(tx_id, []).append(what)
            self.counts["forced"] += 1

    async def list_damage(self) -> None:
        """What the broker has found in the end."""
        since_us = self.persons._clock()
        answer = await asyncio.to_thread(ask, parse_url(self.served.url), HMQ_DAMAGED, {}, 10.0)
        findings = tuple(
            Damage(group=row.group, tx=row.tx_id, verdict=row.verdict, local=row.local, decided_by=row.decided_by)  # type: ignore[arg-type]
            for row in DAMAGED.decode(answer.body)
            if row.group == self.topic
        )
        self.persons.record(DamageListed, findings=findings, since_us=since_us)

    async def heal(self) -> None:
        """Whoever starts now ends everything."""

        async def is_over() -> bool:
            async def nothing_more(teller: Teller) -> None: ...

            self.counts["healed"] += 1
            await self.process(f"healing {self.counts['healed']}", Faults(self.rng, 0.0, 0.0), nothing_more)
            busy = any(bank.busy for bank in self.banks)
            return not busy and not self.journal and not any(bank.listed() for bank in self.banks)

        await until(is_over, "nothing is prepared, and everything was compared")


@pytest.mark.parametrize(
    "driver", [pytest.param(one, id=one.name, marks=MARKS[one.database]) for one in DRIVERS if not one.is_async]
)
async def test_banks_broker_and_consumers_agree_or_a_finding_names_what_was_forced(
    driver: Driver, served: Served, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = f"{seed_of_commit()}-{driver.name}"
    rng = random.Random(seed)
    where, name = located(request, driver, tmp_path)
    banks = [Bank(url, one) for url, one in zip(bank_urls(driver.database, where, name, tmp_path), "ab", strict=True)]
    system = Chance(served, banks, f"t-{driver.name}", rng)
    numbers: asyncio.Queue[int] = asyncio.Queue()
    for number in range(1, RUNS + 1):
        numbers.put_nowait(number)
    kills = served.kills
    async with killed_now_and_then(served, random.Random(f"kills {seed}")):
        await asyncio.gather(*[system.slot(slot, numbers) for slot in range(2)])
    await system.heal()
    await system.list_damage()
    async with AsyncClient(served.url, group=system.topic) as mq:
        verdicts = {number: await mq.coordinator("reader").outcome(tx_id) for number, tx_id in system.begun.items()}
        assert not await mq.coordinator("transfers").recover(), "nothing is undecided"
    committed = sorted(number for number, verdict in verdicts.items() if verdict == COMMITTED)
    print(
        f"{seed}: {RUNS} transfers, {len(committed)} committed, {dict(system.counts)}, {len(system.findings)} findings, "
        f"{served.kills - kills} kills of the broker"
    )
    assert sorted(map(int, await asyncio.to_thread(visible, served, system.topic))) == committed, system.story
    report = check_events([event for history in system.histories for event in history.events])
    assert report.clean, [one.text() for one in report.violations]
    assert report.looked[At.EPOCHS].looked > RUNS / 2
    found = {(tx_id, bank): outcome for tx_id, outcome, bank in system.findings}
    for bank in banks:
        there = set(bank.rows())
        for number, tx_id in system.begun.items():
            said = found.get((tx_id, bank.name))
            what = (tx_id, bank.name, said, system.forced.get(tx_id), system.story)
            if (number in there) != (verdicts[number] == COMMITTED):
                assert said == (Outcome.COMMIT if number in there else Outcome.ROLLBACK).name, what
            # A verdict that was forced before the branches were there may be found, and then fulfilled by a process that was paused.
            assert said is None or tx_id in system.forced, what
        bank.close()
    assert report.looked[At.DAMAGE_STAYS].looked == len({tx_id for tx_id, _, _ in system.findings})
    if RUNS >= 100:
        assert system.counts["faults"] > RUNS / 10
        assert system.counts["forced"] > RUNS / 50
        assert system.counts["coordinator-superseded"] > RUNS / 50
