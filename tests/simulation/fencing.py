"""Participants that fence: ids that nobody prepares, that somebody is preparing, and that are settled (``fence_rules``)."""

import asyncio

from halfmq.errors import ConnectError
from tests.simulation.fence_rules import FENCED_ID, Fences
from tests.simulation.machine import Expected, Machine, Surroundings
from tests.support.virtual_loop import ProcessLoop


class Fencer(Machine):
    """A participant whose cancels are early, in time, and late."""

    def __init__(self, number: int, around: Surroundings, groups: list[str], broker: str) -> None:
        super().__init__(f"e{number}", around)
        self._groups = groups
        self._broker = broker
        self._serial = 0

    async def main(self, process: ProcessLoop) -> None:
        client = self.client(process, self._groups[0])
        fences = self.around.fences
        while self.around.working:
            await asyncio.sleep(self.around.swarm.think_ms / 1000 * self.rng.random())
            try:
                if not client.is_open:
                    await client.connect()
                tx_id, group, since = self._which(fences)
                asked_us = self.around.chronicle.now_us
                fences.asks(tx_id, asked_us)
                verdict = await client.fence(tx_id, group=group, broker=self._broker, since=since)
                fences.answered(tx_id, group, verdict, asked_us)
                if tx_id not in fences.promises.txs and verdict == "ROLLED_BACK":
                    fences.unused.setdefault(group, []).append(tx_id)
            except ConnectError:
                await asyncio.sleep(0.2 * (1 + self.rng.random()))
            except Expected as error:
                self.around.chronicle.counts[f"fencer {type(error).__name__}"] += 1

    def _which(self, fences: Fences) -> tuple[str, str, int]:
        draw = self.rng.random()
        if draw < 0.3 or not fences.announced:
            self._serial += 1
            return f"{FENCED_ID}{self.name}.{self.lives}_{self._serial}", self.rng.choice(self._groups), fences.log_end
        return self.rng.choice(fences.announced[-3:] if draw < 0.8 else fences.announced)
