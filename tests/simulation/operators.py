"""People on call: they look at what is undecided, look into the database, and sometimes settle a transaction by hand."""

import asyncio

import msgspec

from halfmq.client.outcome import Outcome
from halfmq.testing.virtual_loop import ProcessLoop
from halfmq.wire.remoting import operators as wire
from tests.simulation.database import Database, DatabaseError
from tests.simulation.machine import Machine, Surroundings
from tests.simulation.promises import Promises
from tests.simulation.raw_line import LineLost, RawLine

_WORDS = {Outcome.COMMIT: "COMMIT", Outcome.ROLLBACK: "ROLLBACK"}


class Operator(Machine):
    """Asks what ``halfmq tx`` asks."""

    def __init__(self, name: str, around: Surroundings, databases: dict[str, Database], promises: Promises) -> None:
        super().__init__(name, around)
        self.databases = databases
        self.promises = promises

    async def main(self, process: ProcessLoop) -> None:
        while self.around.working:
            await asyncio.sleep(0.5 + 3 * self.dice.random())
            try:
                line = await RawLine.open(process, self.around.network, self.name)
                await self._look(process, line)
                line.close()
            except LineLost:
                self.around.chronicle.counts["operator gave up"] += 1

    async def _look(self, process: ProcessLoop, line: RawLine) -> None:
        """
        Raises:
            LineLost: no answer.
        """
        if self.dice.random() < 0.4:
            await self._mistake(line)
            return
        answer = await line.ask(wire.HMQ_TRANSACTIONS, {wire.EXT_MAX: "5"})
        rows = msgspec.json.decode(answer.body) if answer.code == 0 else []
        if not rows:
            return
        row = self.dice.choice(rows)
        which = {wire.EXT_GROUP: row["group"], wire.EXT_ID: row["tx_id"]}
        await line.ask(wire.HMQ_STORY, which)
        outcome = await self._find_out(process, row["group"], row["tx_id"])
        if outcome in _WORDS:
            await line.ask(
                wire.HMQ_RESOLVE,
                {
                    **which,
                    wire.EXT_VERDICT_WANTED: _WORDS[outcome],
                    wire.EXT_OPERATOR: "ann",
                    wire.EXT_REASON: "on call",
                },
            )

    async def _mistake(self, line: RawLine) -> None:
        """Somebody decides what is decided, the other way round: must be refused.

        Raises:
            LineLost: no answer.
        """
        settled = [tx for tx in self.promises.txs.values() if tx.verdict is not None]
        if settled:
            tx = self.dice.choice(settled)
            assert tx.verdict is not None
            opposite = "ROLLBACK" if tx.verdict[0] == "COMMITTED" else "COMMIT"
            which = {wire.EXT_GROUP: tx.group, wire.EXT_ID: tx.tx, wire.EXT_VERDICT_WANTED: opposite}
            await line.ask(wire.HMQ_RESOLVE, {**which, wire.EXT_OPERATOR: "bob", wire.EXT_REASON: "by mistake"})

    async def _find_out(self, process: ProcessLoop, group: str, tx_id: str) -> Outcome:
        """What the database says, ruled out where it says nothing; or, now and then, whatever comes to mind."""
        draw = self.dice.random()
        if draw < 0.1:
            return self.dice.choice((Outcome.COMMIT, Outcome.ROLLBACK))
        database = self.databases.get(group)
        if draw < 0.5 or database is None:
            return Outcome.UNKNOWN
        try:
            return await database.ask(process, lambda: database.decide(tx_id, may_fence=True))
        except DatabaseError:
            return Outcome.UNKNOWN
