"""What a consumer sees of a topic."""

import asyncio
from typing import Final

from tests.support.half_batches import bodies
from tests.support.raw_client import RawClient
from tests.support.served import Served

#: Of a topic that the sink creates.
QUEUES: Final = 4


def visible(broker: Served, topic: str) -> list[bytes]:
    """All messages of a topic, queue by queue, each queue in order."""
    return [body for queue in visible_by_queue(broker, topic)[topic] for body in queue]


def visible_by_queue(broker: Served, *topics: str) -> dict[str, list[list[bytes]]]:
    """For each topic, the messages of each queue in order."""

    async def read() -> dict[str, list[list[bytes]]]:
        client = await RawClient.connect(broker.port)
        try:
            return {topic: [await bodies(client, topic, queue) for queue in range(QUEUES)] for topic in topics}
        finally:
            await client.close()

    return asyncio.run(read())
