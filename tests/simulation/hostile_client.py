"""A client in a service's group that sends rare requests, and requests that must be rejected.

The verdicts that it requests are not recorded as requested: if the broker follows one, nobody requested that verdict.

    a verdict with wrong offsets         must be rejected, and change nothing
    COMMIT before the last half message  must be rejected; the producers of the group are checked at the end, and roll back
    a delayed message that outlives its segment: retention keeps what is younger than the deduplication window
"""

import asyncio

from tests.simulation.machine import Machine, Surroundings
from tests.simulation.promises import Promises, Violation
from tests.simulation.raw_connection import LineLost, RawLine
from tests.simulation.wire_tap import STRANGERS, WireTap
from tests.support.raw_client import Answer, end_ext, send_ext
from tests.support.virtual_loop import ProcessLoop

_COMMIT, _ROLLBACK = 8, 12


class Stranger(Machine):
    def __init__(self, number: int, around: Surroundings, group: str, tap: WireTap, promises: Promises) -> None:
        super().__init__(f"{STRANGERS}{number}", around)
        self.group = group
        self._tap = tap
        self._promises = promises
        self._serial = 0

    async def main(self, process: ProcessLoop) -> None:
        acts = (self._wrong_offsets, self._wrong_offsets, self._too_early, self._much_later)
        while self.around.working:
            await asyncio.sleep(0.6 * self.rng.random())
            try:
                line = await RawLine.open(process, self.around.network, self.name)
                while self.around.working:
                    await self.rng.choice(acts)(line)
                    await asyncio.sleep(0.8 * self.around.swarm.pace * self.rng.random())
                line.close()
            except LineLost:
                self.around.chronicle.counts["stranger gave up"] += 1

    def _unique(self) -> str:
        self._serial += 1
        return f"{self.name.upper()}{self.lives:04X}{self._serial:08X}"

    async def _send(self, line: RawLine, pairs: dict[str, str], body_bytes: int = 60) -> Answer:
        swarm = self.around.swarm
        flag = 4 if "TRAN_MSG" in pairs else 0
        queue = self.rng.randrange(swarm.queues)
        ext = send_ext(self.rng.choice(swarm.topics), self.group, queue, pairs, queues=swarm.queues, sys_flag=flag)
        return await line.ask(310, ext, self.rng.randbytes(body_bytes))

    async def _wrong_offsets(self, line: RawLine) -> None:
        """A verdict for any undecided transaction, with offsets of another one, or invented ones.

        Raises:
            LineLost: no response.
        """
        places = self._tap.places
        undecided = [tx for tx in self._promises.txs.values() if tx.verdict is None and tx.tx in places]
        if not undecided:
            return
        tx = self.rng.choice(undecided[-5:])
        group, unique, half_index, offset = places[tx.tx]
        ext = {
            "producerGroup": group, "HMQ_TX_ID": tx.tx, "msgId": unique, "fromTransactionCheck": "false",
            "commitOrRollback": str(self.rng.choice((_COMMIT, _ROLLBACK))),
            "tranStateTableOffset": str(half_index + self.rng.choice((0, 1_000_000))),
            "commitLogOffset": str(offset + 64),
        }  # fmt: skip
        answer = await line.ask(37, ext)
        self.around.chronicle.counts["look wrong offsets"] += 1
        # An existing verdict may be reported, also for a wrong request.
        told = tx.verdict is not None or tx.asked or tx.group in self._promises.policy_groups
        if answer.code == 0 and not told:
            raise Violation(
                f"Validity: a verdict on {tx.tx} was taken under offsets that are not its own: {answer}", tx.tx
            )

    async def _too_early(self, line: RawLine) -> None:
        """Send the first of two halves, and COMMIT.

        Raises:
            LineLost: no response.
        """
        unique = self._unique()
        pairs = {
            "UNIQ_KEY": unique, "TRAN_MSG": "true", "PGROUP": self.group, "HMQ_TX_ID": unique, "HMQ_TX_INDEX": "0",
            "HMQ_TX_COUNT": "2",
        }  # fmt: skip
        half = await self._send(line, pairs)
        if half.code != 0:
            return
        answer = await line.ask(37, {**end_ext(half, unique, _COMMIT, group=self.group), "HMQ_TX_ID": unique})
        self.around.chronicle.counts["look incomplete"] += 1
        if answer.code == 0 and answer.ext.get("HMQ_VERDICT") != "ROLLED_BACK":
            raise Violation(f"All or none: one half of two of {unique} was committed: {answer}", unique)

    async def _much_later(self, line: RawLine) -> None:
        """
        Raises:
            LineLost: no response.
        """
        await self._send(
            line, {"UNIQ_KEY": self._unique(), "TIMER_DELAY_MS": str(self.rng.choice((3_000, 30_000, 45_000)))}, 500
        )
