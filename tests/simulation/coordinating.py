"""Processes of one coordinator, with our client: they take over from each other, prepare, settle, and are killed and paused in between.

Who was not refused although a later epoch was known is found by the history checker (``testing.history.epochs``), from what the wire tap
records: also of requests that the network repeats.
"""

import asyncio
from typing import Final

from halfmq.client.coordinator import Coordinator
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.errors import ConnectError, CoordinatorSuperseded, TransactionRefused
from tests.simulation.machine import Expected, Machine, SimulatedClient, Surroundings
from tests.support.virtual_loop import ProcessLoop

#: Its producer group, which no service has.
COORDINATED: Final = "coordinated"
_NAME: Final = "bank"


class CoordinatorProcess(Machine):
    """One of several processes of the same coordinator. After the work the first one settles what is left."""

    def __init__(self, number: int, around: Surroundings) -> None:
        super().__init__(f"t{number}", around)
        self._is_last = number == 0

    async def main(self, process: ProcessLoop) -> None:
        client = self.client(process, COORDINATED)
        while True:
            try:
                await client.connect()
                break
            except ConnectError:
                await asyncio.sleep(0.2 * (1 + self.rng.random()))
        while self.around.working or self._is_last:
            try:
                await self._take_over(client)
            except Expected as error:
                self.around.chronicle.counts[f"coordinator {type(error).__name__}"] += 1
            await asyncio.sleep((0.3 + self.rng.random()) * (self.around.swarm.pace if self.around.working else 1))

    async def _take_over(self, client: SimulatedClient) -> None:
        """Recover, settle what is left, and work until another process takes over."""
        coordinator = client.coordinator(_NAME)
        left = await coordinator.recover()
        self.around.chronicle.counts["knob coordinator took over"] += 1
        for one in left:
            # Nobody has decided it: the broker's verdict is the log of decisions.
            self.around.chronicle.counts["knob coordinator recovered a transaction"] += 1
            commits = one.is_complete and self.rng.random() < 0.3
            await self._settle(coordinator, one.tx_id, Outcome.COMMIT if commits else Outcome.ROLLBACK)
        while self.around.working:
            await asyncio.sleep(self.around.swarm.think_ms / 1000 * self.rng.random())
            self.busy += 1
            try:
                await self._transfer(coordinator)
            except CoordinatorSuperseded:
                self.around.chronicle.counts["look coordinator superseded"] += 1
                raise
            except Expected as error:
                self.around.chronicle.counts[f"coordinator {type(error).__name__}"] += 1
            finally:
                self.busy -= 1
            if self.rng.random() < 0.05:
                return  # and take over from itself

    async def _transfer(self, coordinator: Coordinator) -> None:
        rng, swarm = self.rng, self.around.swarm
        messages = [
            compose(rng.choice(swarm.topics), rng.randbytes(rng.choice(swarm.body_bytes)))
            for _ in range(rng.choice((1, 2, 3)))
        ]
        prepared = await coordinator.prepare(messages, grace=rng.choice((0, 1, 60)))
        await asyncio.sleep(rng.choice((0, 0, 0.05, 0.5)))  # the other participants
        if rng.random() < 0.2:
            return  # it forgets, as one that dies
        outcome = rng.choice((Outcome.COMMIT, Outcome.COMMIT, Outcome.ROLLBACK))
        await self._settle(coordinator, prepared.tx_id, outcome)
        if rng.random() < 0.2:
            await self._settle(coordinator, prepared.tx_id, rng.choice((Outcome.COMMIT, Outcome.ROLLBACK)))

    async def _settle(self, coordinator: Coordinator, tx_id: str, outcome: Outcome) -> None:
        try:
            await coordinator.settle(tx_id, outcome)
        except TransactionRefused:
            self.around.chronicle.counts["look coordinator gets the first verdict"] += 1
