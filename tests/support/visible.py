"""What a consumer sees of a topic."""

import asyncio
from typing import Final, Protocol

from tests.support.half_batches import bodies
from tests.support.raw_client import RawClient

#: Of a topic that the sink creates.
QUEUES: Final = 4


class HasPort(Protocol):
    """A broker: ``Served``, or ``halfmq.testing.Broker``."""

    @property
    def port(self) -> int: ...


def visible(broker: HasPort, topic: str) -> list[bytes]:
    """All messages of a topic, queue by queue, each queue in order."""
    return [body for queue in visible_by_queue(broker, topic)[topic] for body in queue]


def visible_by_queue(broker: HasPort, *topics: str) -> dict[str, list[list[bytes]]]:
    """For each topic, the messages of each queue in order."""

    async def read() -> dict[str, list[list[bytes]]]:
        client = await RawClient.connect(broker.port)
        try:
            return {topic: [await bodies(client, topic, queue) for queue in range(QUEUES)] for topic in topics}
        finally:
            await client.close()

    return asyncio.run(read())
