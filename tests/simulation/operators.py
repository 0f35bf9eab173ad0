"""Operators who list undecided transactions, query the database, and sometimes decide a transaction; and an
administrator who sets limits and policies of producer groups, requests checks, and resumes parked transactions.
"""

import asyncio
from typing import Any

import msgspec

from halfmq.client.outcome import Outcome
from halfmq.wire.remoting.codes import (
    EXT_VERDICT,
    HMQ_ASK,
    HMQ_ASK_PARKED,
    HMQ_DAMAGED,
    HMQ_FORGET_DAMAGE,
    HMQ_PRODUCER,
    HMQ_RESOLVE,
    HMQ_STATS,
    HMQ_STORY,
    HMQ_TRANSACTIONS,
    RequestCode,
)
from tests.simulation.database import Database, DatabaseError
from tests.simulation.machine import Machine, Surroundings
from tests.simulation.promises import Promises, Violation
from tests.simulation.raw_connection import LineLost, RawLine
from tests.support.virtual_loop import ProcessLoop

_WORDS = {Outcome.COMMIT: "COMMIT", Outcome.ROLLBACK: "ROLLBACK"}


class Operator(Machine):
    """Sends the requests of ``halfmq tx``."""

    def __init__(self, name: str, around: Surroundings, databases: dict[str, Database], promises: Promises) -> None:
        super().__init__(name, around)
        self.databases = databases
        self.promises = promises
        #: It is quick, and mostly does not ask the database.
        self._forces = around.swarm.forced
        #: Findings that it asked the broker to forget.
        self.forgotten: set[str] = set()
        #: By topic: the last requested number of queues, which never increases.
        self._queues = dict.fromkeys(around.swarm.topics, around.swarm.queues)

    async def main(self, process: ProcessLoop) -> None:
        while self.around.working:
            await asyncio.sleep((0.5 + 3 * self.rng.random()) * self.around.swarm.pace * (0.1 if self._forces else 1))
            try:
                line = await RawLine.open(process, self.around.network, self.name)
                await self._look(process, line)
                line.close()
            except LineLost:
                self.around.chronicle.counts["operator gave up"] += 1

    async def _look(self, process: ProcessLoop, line: RawLine) -> None:
        """
        Raises:
            LineLost: no response.
        """
        if self._forces and self.rng.random() < 0.2:
            await self._forget(line)
            return
        draw = self.rng.random()
        if draw < 0.3:
            await self._mistake(line)
            return
        if draw < 0.7 and self.around.swarm.narrows:
            await self._narrow(line)
            return
        answer = await line.ask(HMQ_TRANSACTIONS, {"max": "5"})
        rows = msgspec.json.decode(answer.body) if answer.code == 0 else []
        if not rows:
            return
        row = self.rng.choice(rows)
        which = {"group": row["group"], "txId": row["tx_id"]}
        await line.ask(HMQ_STORY, which)
        outcome = await self._find_out(process, row["group"], row["tx_id"])
        if outcome in _WORDS:
            await line.ask(
                HMQ_RESOLVE,
                {
                    **which,
                    "verdict": _WORDS[outcome],
                    "operator": "ann",
                    "reason": "on call",
                },
            )

    async def _forget(self, line: RawLine) -> None:
        """
        Raises:
            LineLost: no response; it may be forgotten.
        """
        answer = await line.ask(HMQ_DAMAGED, {})
        rows = [row for row in msgspec.json.decode(answer.body) if row["local"]] if answer.code == 0 else []
        if rows:
            row = self.rng.choice(rows)
            self.forgotten.add(row["tx_id"])
            named = {"operator": "eve", "reason": "repaired"}
            answer = await line.ask(HMQ_FORGET_DAMAGE, {"group": row["group"], "txId": row["tx_id"], **named})
            self.around.chronicle.counts[f"knob finding forgotten, answer {answer.code}"] += 1

    async def _mistake(self, line: RawLine) -> None:
        """Request the opposite verdict for a decided transaction: must be refused.

        Raises:
            LineLost: no response.
        """
        settled = [tx for tx in self.promises.txs.values() if tx.verdict is not None]
        if settled:
            tx = self.rng.choice(settled)
            assert tx.verdict is not None
            opposite = "ROLLBACK" if tx.verdict[0] == "COMMITTED" else "COMMIT"
            which = {"group": tx.group, "txId": tx.tx, "verdict": opposite}
            await line.ask(HMQ_RESOLVE, {**which, "operator": "bob", "reason": "by mistake"})

    async def _narrow(self, line: RawLine) -> None:
        """Reduce the queues of a topic: permitted only if the removed queues have no messages, and cannot get any.

        Raises:
            LineLost: no response; it may have been executed.
        """
        topic = self.rng.choice(list(self._queues))
        queues = self._queues[topic] = self.rng.randint(1, self._queues[topic])
        ext = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
        answer = await line.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        if queues < self.around.swarm.queues:
            self.around.chronicle.counts[f"knob topic narrowed, answer {answer.code}"] += 1

    async def _find_out(self, process: ProcessLoop, group: str, tx_id: str) -> Outcome:
        """The outcome in the database, inserting a rollback marker if it has none; or, sometimes, a random one."""
        draw = self.rng.random()
        database = self.databases.get(group)
        if draw < (0.6 if self._forces else 0.1):
            outcome = self.rng.choice((Outcome.COMMIT, Outcome.ROLLBACK))
            return outcome if database is not None else Outcome.ROLLBACK  # half batches: only their query commits them
        if draw < 0.5 or database is None:
            return Outcome.UNKNOWN
        try:
            return await database.ask(process, lambda: database.decide(tx_id, may_fence=True))
        except DatabaseError:
            return Outcome.UNKNOWN


class Administrator(Machine):
    """Sends the requests of ``halfmq tx limits``, ``tx check`` and ``tx stats``. At the end it requests checks of all parked ones."""

    def __init__(self, name: str, around: Surroundings, groups: list[str], promises: Promises) -> None:
        super().__init__(name, around)
        self.groups = groups
        self.promises = promises
        administration = around.swarm.administration
        self._limits = [what for what in administration if what != "ask-now"]
        self._asks = "ask-now" in administration
        #: In some seeds all policies are removed before everything heals, in the others they remain.
        self._takes_back = self.rng.random() < 0.4
        #: Whether checks of parked transactions are requested by group, or one by one.
        self._in_bulk = self.rng.random() < 0.5
        #: The first settings of each group.
        self._to_give = [(group, what) for what in self._limits for group in groups]

    async def main(self, process: ProcessLoop) -> None:
        pause_s = 0.1
        while True:
            await asyncio.sleep(pause_s * (0.5 + self.rng.random()))
            try:
                line = await RawLine.open(process, self.around.network, self.name)
                pause_s = await (self._act(line) if self.around.working else self._take_up(line))
                line.close()
            except LineLost:
                self.around.chronicle.counts["operator gave up"] += 1
                pause_s = 0.5

    async def _act(self, line: RawLine) -> float:
        """One random action; returns the time until the next, s.

        Raises:
            LineLost: no response.
        """
        draw = self.rng.random()
        if self._to_give:
            group, what = self._to_give.pop()
            await self._set(line, group, self._change(what))
            return 0.1
        if draw < 0.1:
            await self._read(line)
        elif self._limits and (not self._asks or draw < 0.6):
            await self._set(line, self.rng.choice(self.groups), self._change(self.rng.choice(self._limits)))
        else:
            await self._ask(line, self.rng.choice((1, 20)))
        return 0.8 * self.around.swarm.pace

    def _change(self, what: str) -> dict[str, Any]:
        rng = self.rng
        if rng.random() < 0.15:
            return {"check_limit": 0, "past_limit": "wait", "skip_age_ms": 0, "undecided_max": -1}
        match what:
            case "skip-age":
                return {"skip_age_ms": 60_000}
            case "limits":
                return rng.choice(
                    (
                        {"undecided_max": rng.choice((0, 1, 3, 10))},
                        {"undecided_bytes_max": rng.choice((2_000, 20_000))},
                        {"undecided_max": -1, "undecided_bytes_max": -1},
                    )
                )
            case _:
                return {"check_limit": rng.choice((1, 1, 1, 3)), "past_limit": what}

    async def _set(self, line: RawLine, group: str, change: dict[str, Any]) -> None:
        """
        Raises:
            LineLost: no response; it may have been executed.
        """
        ext = {"group": group, "operator": "ada"}
        answer = await line.ask(HMQ_PRODUCER, ext, msgspec.json.encode(change))
        if answer.code == 0:
            self.around.chronicle.counts[f"knob set {change.get('past_limit') or next(iter(change))}"] += 1

    async def _read(self, line: RawLine) -> None:
        """
        Raises:
            LineLost: no response.
        """
        self.around.chronicle.counts["knob stats read"] += 1
        await line.ask(HMQ_STATS, {})
        await line.ask(HMQ_PRODUCER, {"group": self.rng.choice(self.groups)})

    async def _take_up(self, line: RawLine) -> float:
        """After all work has ended: request checks of parked transactions until they are settled.

        Raises:
            LineLost: no response.
        """
        if self._takes_back:
            for group in self.groups:
                change = {"check_limit": 0, "past_limit": "wait", "skip_age_ms": 0}
                ext = {"group": group, "operator": "ada"}
                await line.ask(HMQ_PRODUCER, ext, msgspec.json.encode(change))
            self._takes_back = False
        return 1.0 if await self._ask(line, 100, only_parked=True) else 4.0

    async def _ask(self, line: RawLine, most: int, *, only_parked: bool = False) -> int:
        """Request a check of a listed transaction, or of all parked ones; returns the number of these.

        Raises:
            LineLost: no response.
        """
        answer = await line.ask(HMQ_TRANSACTIONS, {"max": str(most)})
        rows = msgspec.json.decode(answer.body) if answer.code == 0 else []
        aside = [row for row in rows if row["set_aside"]]
        if only_parked and aside and self._in_bulk:
            return await self._ask_aside(line, sorted({row["group"] for row in aside}))
        self.around.chronicle.counts["seen parked"] += len(aside)
        if not only_parked:
            rows = [self.rng.choice(rows)] if rows else []
        for row in aside if only_parked else rows:
            await self._ask_now(line, row)
        return len(aside)

    async def _ask_aside(self, line: RawLine, groups: list[str]) -> int:
        """
        Raises:
            LineLost: no response.
        """
        for group in groups:
            answer = await line.ask(HMQ_ASK_PARKED, {"group": group, "max": self.rng.choice(("1", "256"))})
            asked = msgspec.json.decode(answer.body) if answer.code == 0 else []
            self.around.chronicle.counts[f"knob asked in bulk, answer {answer.code}"] += 1
            self.around.chronicle.counts["knob asked in bulk, transactions"] += len(asked)
        return len(groups)

    async def _ask_now(self, line: RawLine, row: dict[str, Any]) -> None:
        """
        Raises:
            LineLost: no response.
        """
        counts = self.around.chronicle.counts
        tx = self.promises.txs.get(row["tx_id"])
        known = None if tx is None else tx.verdict
        answer = await line.ask(HMQ_ASK, {"group": row["group"], "txId": row["tx_id"]})
        counts[f"knob asked now, answer {answer.code}{' of one parked' if row['set_aside'] else ''}"] += 1
        if tx is not None and known is not None and tx.verdict == known and not tx.forgotten:
            counts["look agreement of who asks now"] += 1
            if answer.code == 0 or answer.ext.get(EXT_VERDICT, known[0]) != known[0]:
                raise Violation(f"Agreement: {row['tx_id']} is {known}, and is asked about: {answer}", row["tx_id"])
