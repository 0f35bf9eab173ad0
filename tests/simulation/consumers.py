"""A consumer group of our client, with an inbox and all possible outcomes of a message; and a reader of whole queues."""

import asyncio

from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError

from halfmq.client.consumer import Consumer
from halfmq.client.message import Message
from halfmq.errors import ConnectError, HalfmqError
from halfmq.model.stored_message import StoredMessage
from halfmq.spark.plan.partitions import QueueRange
from tests.simulation.database import Database, effects, inbox
from tests.simulation.final_checks import seen, seen_of
from tests.simulation.machine import Machine, SimulatedClient, Surroundings
from tests.simulation.raw_connection import LineLost, RawLine
from tests.simulation.raw_reading import RawReading
from tests.simulation.sql_driver import sessions_of
from tests.support.raw_client import pull_ext
from tests.support.virtual_loop import ProcessLoop

READERS = "readers"
WATCH = "watch"
#: Inbox name of a second handler of the same messages; the broker sees only one group.
AUDIT = "audit"
_AUDITED = 0.15
#: Fraction of the handled messages that are sent back instead of acknowledged, so that the inbox sees them again.
_SENT_BACK_ALL_THE_SAME = 0.1


class GroupConsumer(Machine):
    """A member of the consumer group: handles messages through the inbox, sends back, rejects, forgets, and dies in
    between.
    """

    def __init__(self, name: str, around: Surroundings, database: Database) -> None:
        super().__init__(name, around)
        self._database = database

    async def main(self, process: ProcessLoop) -> None:
        client = self.client(process, READERS)
        self._sessions = sessions_of(self._database, process)
        while True:
            try:
                await client.connect()
                swarm = self.around.swarm
                async with client.consumer(list(swarm.topics), tags=swarm.subscription, retries=2) as messages:
                    await self._consume(process, client, messages)
            except ConnectError:
                await asyncio.sleep(0.3)
            except HalfmqError as error:
                self.around.chronicle.counts[f"consumer {type(error).__name__}"] += 1
                await asyncio.sleep(0.3)
            else:
                self.around.chronicle.counts["knob consumer left and joins anew"] += 1
                await client.close()
                await asyncio.sleep(self.rng.random())
                client = self.client(process, READERS)

    async def _consume(self, process: ProcessLoop, client: SimulatedClient, messages: Consumer) -> None:
        """Consume a random number of messages, then leave the group properly and join again."""
        left = self.rng.choice((3, 10, 1 << 30))
        async for message in messages:
            stored: StoredMessage = message._stored
            event = seen(stored, message.log_offset, self.around.chronicle.now_us, process.name, READERS)
            self.around.chronicle.note(event)
            await self._deal_with(message)
            left -= 1
            if left <= 0 and self.around.working:
                return

    async def _deal_with(self, message: Message) -> None:
        draw = self.rng.random()
        if not self.around.working or draw < 0.86:
            await self._handle(message)
        elif draw < 0.94:
            await message.retry(self.rng.choice((1, 5)))
        elif draw < 0.97:
            await message.reject()
        else:
            await asyncio.sleep(self.rng.random())
            await message.retry()

    def died(self, process: ProcessLoop) -> None:
        self._database.client_died(process)

    async def _handle(self, message: Message) -> None:
        counts = self.around.chronicle.counts
        try:
            first = await self._once(message, READERS)
            if self.rng.random() < _AUDITED:
                await self._once(message, AUDIT)
        except SQLAlchemyError as error:
            counts[f"consumer {type(error).__name__}"] += 1
            await message.retry()
            return
        counts["knob inbox: first delivery" if first else "knob inbox: duplicate"] += 1
        if self.around.working and self.rng.random() < _SENT_BACK_ALL_THE_SAME:
            await message.retry(1)
        else:
            message.ack()

    async def _once(self, message: Message, handler: str) -> bool:
        """Whether this handler processed the message for the first time.

        Raises:
            SQLAlchemyError: it may have been processed or not.
        """
        async with self._sessions() as session, inbox.once(session, message, group=handler) as first:
            if first:
                effect = {"handler": handler, "message_id": message.message_id, "topic": message.topic}
                await session.execute(insert(effects).values(effect))
        self._database.handled.add((handler, message.message_id))
        return first


class Watcher(Machine):
    """Reads every queue repeatedly, from its beginning to its end: with pulls, or with raw reads."""

    async def main(self, process: ProcessLoop) -> None:
        swarm = self.around.swarm
        #: (topic, queue) -> next offset. A restarted watcher begins at 0.
        places = {(topic, queue): 0 for topic in swarm.topics for queue in range(max(4, swarm.queues))}
        chronicle = self.around.chronicle
        while True:
            try:
                line = await RawLine.open(process, self.around.network, self.name)
                raw = RawReading(line, self.rng, chronicle.counts, process.name, WATCH, lambda: chronicle.now_us)
                while True:
                    if swarm.raw_watchers:
                        await self._look_raw(raw, places)
                    else:
                        await self._look(process, line, places)
                    await asyncio.sleep((1.0 + self.rng.random()) * swarm.pace if self.around.working else 20.0)
            except LineLost:
                await asyncio.sleep(0.2)

    async def _look(self, process: ProcessLoop, line: RawLine, places: dict[tuple[str, int], int]) -> None:
        """
        Raises:
            LineLost: the connection is unusable.
        """
        for (topic, queue), offset in places.items():
            answer = await line.ask(11, pull_ext(topic, WATCH, queue, offset, count=1_000))
            if answer.code == 0:
                for event in seen_of(answer.body, self.around.chronicle.now_us, process.name, WATCH):
                    self.around.chronicle.note(event)
                    places[topic, queue] = event.queue_offset + 1
            elif answer.code == 21:
                places[topic, queue] = int(answer.ext["nextBeginOffset"])

    async def _look_raw(self, raw: RawReading, places: dict[tuple[str, int], int]) -> None:
        """
        Raises:
            LineLost: the connection is unusable.
        """
        known = await raw.bounds(self.around.swarm.topics)
        if known is None:
            return
        for (topic, queue), offset in places.items():
            bounds = known.topics.get(topic)
            if bounds is None or queue >= len(bounds.queues) or offset >= bounds.queues[queue][1]:
                continue
            end = bounds.queues[queue][1] + self.rng.choice((0, 1_000))  # also what is not visible yet
            one = QueueRange(topic, bounds.topic_id, "", queue, offset, end)
            for read in await raw.read(known.store, one):
                for event in read.found:
                    self.around.chronicle.note(event)
                places[topic, queue] = read.after
