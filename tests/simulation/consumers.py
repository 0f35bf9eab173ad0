"""Who reads: a consumer group of our client, with all that may become of a message, and a watcher of whole queues."""

import asyncio

from halfmq.client.consumer import Consumer
from halfmq.client.message import Message
from halfmq.errors import ConnectError, HalfmqError
from halfmq.model.stored_message import StoredMessage
from tests.simulation.closing import seen, seen_of
from tests.simulation.machine import Machine, SimulatedClient
from tests.simulation.raw_line import LineLost, RawLine
from tests.support.raw_client import pull_ext
from tests.support.virtual_loop import ProcessLoop

READERS = "readers"
WATCH = "watch"


class GroupConsumer(Machine):
    """One member of the consumer group: acknowledges, hands back, rejects, forgets, and dies in between."""

    async def main(self, process: ProcessLoop) -> None:
        client = self.client(process, READERS)
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
        """A drawn number of messages; then it leaves the group in good order, to join anew."""
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
            message.ack()
        elif draw < 0.94:
            await message.retry(self.rng.choice((1, 5)))
        elif draw < 0.97:
            await message.reject()
        else:
            await asyncio.sleep(self.rng.random())
            await message.retry()


class Watcher(Machine):
    """Reads every queue from its beginning, again and again, as far as it goes."""

    async def main(self, process: ProcessLoop) -> None:
        swarm = self.around.swarm
        #: (topic, queue) -> next offset. A watcher that was killed begins anew.
        places = {(topic, queue): 0 for topic in swarm.topics for queue in range(max(4, swarm.queues))}
        while True:
            try:
                line = await RawLine.open(process, self.around.network, self.name)
                while True:
                    await self._look(process, line, places)
            except LineLost:
                await asyncio.sleep(0.2)

    async def _look(self, process: ProcessLoop, line: RawLine, places: dict[tuple[str, int], int]) -> None:
        """
        Raises:
            LineLost: the connection is no good any more.
        """
        swarm = self.around.swarm
        for (topic, queue), offset in places.items():
            answer = await line.ask(11, pull_ext(topic, WATCH, queue, offset, count=1_000))
            if answer.code == 0:
                for event in seen_of(answer.body, self.around.chronicle.now_us, process.name, WATCH):
                    self.around.chronicle.note(event)
                    places[topic, queue] = event.queue_offset + 1
            elif answer.code == 21:
                places[topic, queue] = int(answer.ext["nextBeginOffset"])
        await asyncio.sleep((1.0 + self.rng.random()) * swarm.pace if self.around.working else 20.0)
