"""A producer that follows the rules of the Java client (4.9), in raw frames.

``DefaultMQProducerImpl``: a send is tried three times in total, with the same UNIQ_KEY, on the next queue, if there is no response
or one of the codes 1, 2, 14, 16, 17, 204, 205. ``endTransaction`` is one-way and never repeated. Checks are answered
one-way on the connection on which they arrived. A connection without a response is closed, and another one opened.
"""

import asyncio
import json
import random

from halfmq.client.outcome import Outcome
from halfmq.model import properties
from halfmq.model.properties import CHECK_IMMUNITY_SECONDS
from halfmq.model.stored_message import decode as decode_message
from tests.simulation.database import Database, DatabaseError, DatabaseSession, Duplicate
from tests.simulation.machine import Machine, Surroundings
from tests.simulation.raw_connection import LineLost, RawLine
from tests.simulation.tags import draw_tag
from tests.support.raw_client import Answer, end_ext, send_ext
from tests.support.virtual_loop import ProcessLoop

#: ``DefaultMQProducer`` ``retryResponseCodes``.
SEND_RETRY_CODES = frozenset({1, 2, 14, 16, 17, 204, 205})
_WANTED = {Outcome.COMMIT: 8, Outcome.ROLLBACK: 12, Outcome.UNKNOWN: 0}


class StockProducer(Machine):
    def __init__(self, name: str, around: Surroundings, group: str, database: Database) -> None:
        super().__init__(name, around)
        self.group = group
        self.database = database
        self._serial = 0
        self._queue = 0
        self._line: RawLine | None = None
        self._opening = asyncio.Lock()

    def died(self, process: ProcessLoop) -> None:
        self._line = None
        self.database.client_died(process)

    async def main(self, process: ProcessLoop) -> None:
        self._opening = asyncio.Lock()
        self.spawn(process, self._heartbeats(process))
        await asyncio.sleep(0.3)
        while self.around.working:
            await asyncio.sleep(self.around.swarm.think_ms / 1000 * self.rng.random() * 2)
            self.busy += 1
            try:
                if self.rng.random() < 0.75:
                    await self._transaction(process)
                else:
                    await self._send(process, self._unique(process), {})
            except LineLost:
                self.around.chronicle.counts["stock client gave up"] += 1
            self.busy -= 1

    # --- connections -------------------------------------------------------------------------------------------------

    async def _heartbeats(self, process: ProcessLoop) -> None:
        while True:
            pause_s = 5.0
            try:
                await self._open(process)
            except LineLost:
                pause_s = 0.5
            await asyncio.sleep(pause_s)

    async def _open(self, process: ProcessLoop) -> RawLine:
        async with self._opening:
            line = self._line
            if line is None or line.lost:
                line = await RawLine.open(process, self.around.network, self.name, self._on_push)
                self._line = line
        body = {
            "clientID": f"{self.name}@{self.lives}",
            "producerDataSet": [{"groupName": self.group}],
            "consumerDataSet": [],
        }
        try:
            await line.ask(34, {}, json.dumps(body).encode())
        except LineLost:
            self._close()
            raise
        return line

    def _close(self) -> None:
        """4.9 closes a connection on which a request timed out (``clientCloseSocketIfTimeout``)."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    async def _ready(self, process: ProcessLoop) -> RawLine:
        line = self._line
        return line if line is not None and not line.lost else await self._open(process)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _unique(self, process: ProcessLoop) -> str:
        self._serial += 1
        return f"{self.name.upper()}{self.lives:04X}{self._serial:08X}"

    async def _send(self, process: ProcessLoop, unique: str, pairs: dict[str, str]) -> Answer | None:
        """The response with code 0, or None if it was refused.

        Raises:
            LineLost: no response to the last attempt.
        """
        swarm, rng = self.around.swarm, self.rng
        topic = rng.choice(swarm.topics)
        body = rng.randbytes(rng.choice(swarm.body_bytes))
        transactional = "TRAN_MSG" in pairs
        tag = draw_tag(random.Random(unique))
        if tag is not None:
            pairs = {**pairs, "TAGS": tag}
        answer: Answer | None = None
        for attempt in range(3):
            self._queue += 1
            queue = self._queue % swarm.queues
            ext = send_ext(
                topic,
                self.group,
                queue,
                {"UNIQ_KEY": unique, **pairs},
                queues=swarm.queues,
                sys_flag=4 if transactional else 0,
            )
            try:
                line = await self._ready(process)
                answer = await line.ask(310, ext, body, timeout_s=swarm.attempt_timeout_ms / 1000)
            except LineLost:
                self._close()
                if attempt == 2:
                    raise
                continue
            if answer.code not in SEND_RETRY_CODES:
                break
        return answer if answer is not None and answer.code == 0 else None

    async def _transaction(self, process: ProcessLoop) -> None:
        unique = self._unique(process)
        pairs = {"TRAN_MSG": "true", "PGROUP": self.group}
        if self.rng.random() < self.around.swarm.own_immunity:
            self.around.chronicle.counts["knob immunity of its own"] += 1
            pairs[CHECK_IMMUNITY_SECONDS] = self.rng.choice(("0", "1", "3", "-1"))
        half = await self._send(process, unique, pairs)
        if half is None:
            return
        outcome = await self._local(process, unique)
        if self._line is not None and not self._line.lost and self.rng.random() >= self.around.swarm.silent:
            self._line.tell(37, end_ext(half, unique, _WANTED[outcome], group=self.group))

    async def _local(self, process: ProcessLoop, unique: str) -> Outcome:
        if self.rng.random() < 0.15:
            return self.rng.choice((Outcome.ROLLBACK, Outcome.UNKNOWN))
        session = DatabaseSession(self.database, process)
        try:
            await self.database.ask(process, lambda: session.insert_marker(unique))
        except DatabaseError as error:
            session.rollback()
            return Outcome.ROLLBACK if isinstance(error, Duplicate) else Outcome.UNKNOWN
        try:
            await self.database.ask(process, session.commit)
        except Duplicate:
            return Outcome.ROLLBACK
        except DatabaseError:
            return Outcome.UNKNOWN
        return Outcome.COMMIT

    # --- checks ------------------------------------------------------------------------------------------------------

    def _on_push(self, line: RawLine, push: Answer) -> None:
        if push.code == 39 and self.process is not None:
            self.spawn(self.process, self._answer_check(self.process, line, push))

    async def _answer_check(self, process: ProcessLoop, line: RawLine, push: Answer) -> None:
        message = decode_message(push.body)[0]
        pairs = properties.to_dict(message.properties)
        unique = pairs["UNIQ_KEY"]
        tx_id = pairs.get("HMQ_TX_ID", unique)
        outcome = Outcome.UNKNOWN
        if self.rng.random() >= self.around.swarm.unknown or not self.around.working:
            try:
                outcome = await self.database.ask(process, lambda: self.database.decide(tx_id, may_fence=True))
            except DatabaseError:
                outcome = Outcome.UNKNOWN
        line.tell(
            37,
            {
                "producerGroup": self.group,
                "tranStateTableOffset": push.ext["tranStateTableOffset"],
                "commitLogOffset": push.ext["commitLogOffset"],
                "commitOrRollback": str(_WANTED[outcome]),
                "fromTransactionCheck": "true",
                "msgId": unique,
                "transactionId": push.ext["transactionId"],
            },
        )
