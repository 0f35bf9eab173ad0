"""Each cell of the tables in docs/coordinator.md: a process of the coordinator that is killed, overtaken or cut off at each of its calls,
and a person who decides in its place. At the end both banks, the broker and what consumers see agree, and nothing waits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from halfmq import AsyncClient, compose
from halfmq.client.coordinator import Coordinator
from halfmq.errors import HalfmqError
from halfmq.model.records import DecidedBy
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.codes import HMQ_PRODUCER, HMQ_RESOLVE, HMQ_TRANSACTIONS
from halfmq.wire.remoting.producer_groups import ProducerChange, encode_change
from tests.documents.pages import table
from tests.outbox.test_relay import read, url_of
from tests.support.faults import Faults, Killed, Once
from tests.support.in_process import Running, serving
from tests.support.waiting import soon, until
from tests.systems.transfers import NAME, RECOVER, SETTLE, STEPS, Bank, Teller, bank_urls
from tests.unit.sql.faces import DRIVERS, Driver, located, on

ON_EACH = [on(driver, is_rare=True) for driver in DRIVERS if not driver.is_async]
#: Column of the page -> what happens at the call.
HAPPENS = {
    "killed before it": "kill before",
    "killed after it": "kill after",
    "overtaken before it": "pause before",
    "overtaken after it": "pause after",
    "not sent": "not sent",
    "answer lost": "lost",
}
#: A call that is killed or cut off while it is under way is like one of the others, by chance: test_coordinator_chance.py.
NOTHING = "nothing is left"
QUICK_CHECKS = BrokerSettings(check_interval_ms=20, check_interval_max_ms=20, check_answer_ms=500)
#: What a page of a listing takes at a busy broker.
_PAGE_S = 0.2
ITSELF, NEXT = "the process itself", "the next one"


class Overtaken(Once):
    """Instead of a pause, another process takes over meanwhile, and does all of its work."""

    def __init__(self, step: str, fault: str, overtake: Callable[[], Awaitable[None]]) -> None:
        super().__init__(step, fault, 0.0)
        self._overtake = overtake

    async def _pause(self) -> None:
        await self._overtake()


HEURISTICS = "What happens when a person decides"
COMMIT, ROLLBACK = "and it is to be committed", "and it is to be rolled back"
AGREE = "agree: "
_PERSON = {"operator": "ada", "reason": "it takes too long"}


class Person:
    """What somebody does by hand to a transfer that is prepared and not decided: the rows of the page."""

    def __init__(self, system: "System") -> None:
        self._system = system

    async def _branch(self, bank: int, *, commit: bool) -> None:
        one = self._system.banks[bank]
        assert await asyncio.to_thread(one.end, one.branch("T-1"), commit=commit)

    async def _verdict(self, verdict: str) -> None:
        client = await self._system.broker.client()
        answer = await client.ask(HMQ_RESOLVE, {"group": "bank", "txId": "T-1", "verdict": verdict, **_PERSON})
        assert answer.code == 0, answer

    async def commits_a_branch(self) -> None:
        await self._branch(0, commit=True)

    async def rolls_a_branch_back(self) -> None:
        await self._branch(0, commit=False)

    async def mixes(self) -> None:
        await self._branch(0, commit=True)
        await self._branch(1, commit=False)

    async def commits_at_the_broker(self) -> None:
        await self._verdict("COMMIT")

    async def rolls_back_at_the_broker(self) -> None:
        await self._verdict("ROLLBACK")

    async def has_a_policy(self) -> None:
        """The group of the coordinator got one, and checks of the transfer reach its process, which does not decide."""
        client = await self._system.broker.client()
        body = encode_change(ProducerChange(check_limit=1, past_limit="rollback"))
        answer = await client.ask(HMQ_PRODUCER, {"group": "bank", **_PERSON}, body)
        assert answer.code == 0, answer
        group = self._system.broker.state.producer_groups["bank"]
        await until(lambda: not group.undecided, "the policy rolled it back")
        assert group.settled["T-1"].decided_by == DecidedBy.POLICY

    async def leaves_a_hazard(self) -> None:
        """The branch is rolled back, and nobody can look at the bank until the next process starts."""
        await self.rolls_a_branch_back()
        bank = self._system.banks[0]
        bank.is_away = True


DOES: dict[str, Callable[[Person], Awaitable[None]]] = {
    "heuristic commit of the branch in bank a": Person.commits_a_branch,
    "heuristic rollback of the branch in bank a": Person.rolls_a_branch_back,
    "heuristic mixed: committed in bank a, rolled back in bank b": Person.mixes,
    "heuristic hazard: rolled back in bank a, which then is away": Person.leaves_a_hazard,
    "an operator commits at the broker": Person.commits_at_the_broker,
    "an operator rolls back at the broker": Person.rolls_back_at_the_broker,
    "a policy of the group rolls back at the broker": Person.has_a_policy,
}


class System:
    """Two banks and a broker. ``ended_by``: the process that did something last, by transaction."""

    def __init__(self, broker: Running, banks: list[Bank]) -> None:
        self.broker = broker
        self.banks = banks
        self.journal: dict[str, int] = {}
        self.ended_by: dict[str, str] = {}
        self._clients: list[AsyncClient] = []

    async def teller(self, name: str, faults: Faults | None = None) -> Teller:
        mq = AsyncClient(url_of(self.broker), group="bank", timeout=5)
        await mq.connect()
        self._clients.append(mq)
        made = Teller(name, mq, self.banks, "t", faults or Once("", "", 0), self.journal)
        made.on_ended = lambda tx_id: self.ended_by.__setitem__(tx_id, name)
        return made

    async def next(self) -> None:
        """Another process starts."""
        await (await self.teller(NEXT)).recover()

    async def close(self) -> None:
        for mq in self._clients:
            await mq.close(grace=0)
        for bank in self.banks:
            bank.close()

    async def assert_agrees(self) -> None:
        """Whoever looks sees the same transfers, and nothing waits for anybody."""
        group = self.broker.state.producer_groups.get("bank")
        assert group is None or not group.undecided
        seen = sorted(int(body) for body in await read(self.broker))
        assert [bank.rows() for bank in self.banks] == [seen, seen]
        assert [bank.listed() for bank in self.banks] == [[], []]

    def outcome(self, tx_id: str) -> str:
        """As the cells of the page word it."""
        group = self.broker.state.producer_groups.get("bank")
        verdict = group.settled.get(tx_id) if group is not None else None
        if verdict is None:
            return NOTHING
        return f"{'committed' if verdict.committed else 'rolled back'}, by {self.ended_by[tx_id]}"


@pytest.fixture
async def system(request: pytest.FixtureRequest, tmp_path: Path, driver: Driver) -> AsyncIterator[System]:
    where, name = located(request, driver, tmp_path)
    banks = [Bank(url, one) for url, one in zip(bank_urls(driver.database, where, name, tmp_path), "ab", strict=True)]
    async with serving(tmp_path / "data", settings=QUICK_CHECKS) as broker:
        made = System(broker, banks)
        yield made
        await made.close()


def cells(heading: str) -> dict[tuple[str, str], str]:
    """(row, column) -> text of the table in the page."""
    return {
        (row[""], column): text
        for row in table("docs/coordinator.md", heading)
        for column, text in row.items()
        if column
    }


FAILURES = "What happens when a process fails"


@pytest.mark.parametrize("driver", ON_EACH)
@pytest.mark.parametrize("column", HAPPENS)
@pytest.mark.parametrize("step", STEPS)
async def test_each_failure_at_each_call(system: System, step: str, column: str) -> None:
    if step == RECOVER:
        # There is something to recover only after a process was killed.
        dead = await system.teller("nobody", Once(SETTLE, "kill before", 0))
        await dead.recover()
        with pytest.raises(Killed):
            await dead.transfer("T-1", 1)
    faults = Overtaken(step, HAPPENS[column], system.next)
    teller = await system.teller(ITSELF, faults)
    try:
        await soon(teller.recover())
        await soon(teller.transfer("T-2" if step == RECOVER else "T-1", 1 + (step == RECOVER)))
    except (Killed, HalfmqError):
        await system.next()
    assert faults.story, "it has happened"
    await system.assert_agrees()
    assert system.outcome("T-1") == cells(FAILURES)[step, column]


def test_the_page_has_each_step_and_failure() -> None:
    assert set(cells(FAILURES)) == {(step, column) for step in STEPS for column in HAPPENS}


@pytest.mark.parametrize("driver", ON_EACH)
@pytest.mark.parametrize("column", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("row", DOES)
async def test_each_thing_that_a_person_may_do(system: System, row: str, column: str) -> None:
    teller = await system.teller(ITSELF, Overtaken(SETTLE, "pause before", lambda: DOES[row](Person(system))))
    teller.grace_s = 0.0
    await soon(teller.recover())
    await soon(teller.transfer("T-1", 1, refused=column == ROLLBACK))
    if "hazard" in row:
        assert teller.findings == []
        assert system.journal, "it is not forgotten"
        system.banks[0].is_away = False
        teller = await system.teller(NEXT)
        await teller.recover()
    assert not system.journal
    assert [bank.listed() for bank in system.banks] == [[], []]
    expected = cells(HEURISTICS)[row, column]
    if teller.findings:
        said = ", ".join(f"{outcome.lower()} in bank {bank}" for _, outcome, bank in teller.findings)
        assert expected == f"a finding: {said}".replace("rollback", "rolled back").replace("commit", "committed")
        kept = system.broker.state.comparisons["bank", "T-1"]
        assert teller.findings[-1][2] in kept.source, "the broker keeps it, for `halfmq tx damaged`"
    else:
        await system.assert_agrees()
        assert expected == AGREE + system.outcome("T-1").partition(",")[0]


async def test_more_than_a_page_of_transfers_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.broker.services.transactions.LISTED_MAX", 3)
    async with serving(tmp_path / "data") as broker, AsyncClient(url_of(broker), group="bank") as mq:
        one = mq.coordinator(NAME)
        await one.recover()
        ids = [(await one.prepare([compose("t", str(number))])).tx_id for number in range(10)]
        assert [left.tx_id for left in await mq.coordinator(NAME).recover()] == ids


async def test_each_page_of_what_is_undecided_has_the_time_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a coordinator that left many transactions could never recover."""
    monkeypatch.setattr("halfmq.broker.services.transactions.LISTED_MAX", 1)
    ask = Coordinator._ask

    async def slow(self: Coordinator, broker: str, code: int, *given: Any) -> Any:
        if code == HMQ_TRANSACTIONS:
            await asyncio.sleep(_PAGE_S)  # real time: a slow page
        return await ask(self, broker, code, *given)

    monkeypatch.setattr(Coordinator, "_ask", slow)
    async with (
        serving(tmp_path / "data") as broker,
        AsyncClient(url_of(broker), group="bank", timeout=3 * _PAGE_S) as mq,
    ):
        one = mq.coordinator(NAME)
        await one.recover()
        ids = [(await one.prepare([compose("t", str(number))])).tx_id for number in range(5)]
        assert [left.tx_id for left in await mq.coordinator(NAME).recover()] == ids


def test_the_page_has_each_thing_that_a_person_may_do() -> None:
    assert set(cells(HEURISTICS)) == {(row, column) for row in DOES for column in (COMMIT, ROLLBACK)}
