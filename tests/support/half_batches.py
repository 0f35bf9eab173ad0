"""Half batches over raw frames: what a task of a query sends, and the decision of its driver."""

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from halfmq.model.half_batch import HalfMessage, build_payload
from tests.support.raw_client import Answer, RawClient, property_string

PREPARE_BATCH, DECIDE, DECISION = 29_012, 29_013, 29_014
HOST = b"\x7f\x00\x00\x01\x00\x00\x10\x00"


def messages(prefix: str, count: int, **properties: str) -> list[HalfMessage]:
    """``count`` messages with bodies ``PREFIX-NUMBER`` and unique ids."""
    return [
        HalfMessage(0, 0, f"{prefix}-{number}".encode(), property_string(UNIQ_KEY=f"{prefix}{number:032d}", **properties).encode())
        for number in range(count)
    ]  # fmt: skip


@dataclass
class QueryRun:
    """One run of a query: its tasks prepare, its driver decides. ``store_host`` as the broker said."""

    client: RawClient
    store_host: bytes
    query: str = "q1"
    run: str = "r1"
    group: str = "SPARK"
    #: (batch, attempt) -> number of half batches, of messages, sum of checksums.
    prepared: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    @classmethod
    async def begin(cls, client: RawClient, **names: str) -> "QueryRun":
        answer = await client.ask(DECISION, {})
        return cls(client, bytes.fromhex(answer.ext["storeHost"]), **names)

    def payload(self, found: list[HalfMessage], topic: str, queue: int, *, delayed: bool = False) -> bytes:
        return build_payload(
            found,
            topic=topic,
            queue_id=queue,
            born_time_ms=1,
            born_host=HOST,
            store_host=self.store_host,
            delayed=delayed,
        )[0]

    async def prepare(
        self, batch: int, attempt: str, found: list[HalfMessage], *, topic: str = "T", queue: int = 0, **changes: Any
    ) -> Answer:
        """Send the next half batch of an attempt; ``changes``: other fields of the request, or ``payload``."""
        payload = changes.pop("payload", None) or self.payload(found, topic, queue, delayed=changes.get("delayed") == 1)
        sums = self.prepared.setdefault((batch, attempt), [0, 0, 0])
        ext = {
            "group": self.group, "topic": topic, "queueId": queue, "messages": len(found), "checksum": crc32(payload),
            "index": sums[0], "query": self.query, "batch": batch, "run": self.run, "attempt": attempt,
            "defaultTopicQueueNums": 4, **changes,
        }  # fmt: skip
        answer = await self.client.ask(PREPARE_BATCH, {name: str(value) for name, value in ext.items()}, payload)
        if answer.code == 0:
            sums[0] += 1
            sums[1] += len(found)
            sums[2] = (sums[2] + crc32(payload)) & 0xFFFFFFFF
        return answer

    async def decide(self, batch: int, *attempts: str, digest: str = "d", **changes: str) -> Answer:
        ext = {
            "group": self.group, "query": self.query, "batch": str(batch), "run": self.run,
            "digest": digest.encode().hex().rjust(32, "0"), **changes,
        }  # fmt: skip
        rows = [[attempt, *self.prepared.get((batch, attempt), [1, 1, 1])] for attempt in attempts]
        return await self.client.ask(DECIDE, ext, str(rows).replace("'", '"').encode())

    async def bounds(self, topic: str = "T", queue: int = 0) -> tuple[int, int]:
        """First and next offset of the queue."""
        fields = {"topic": topic, "queueId": str(queue)}
        low, high = await self.client.ask(31, fields), await self.client.ask(30, fields)
        return int(low.ext["offset"]), int(high.ext["offset"])

    async def decision(self, batch: int, **more: str) -> Answer:
        return await self.client.ask(DECISION, {"query": self.query, "batch": str(batch), "run": self.run, **more})


async def bodies(client: RawClient, topic: str = "T", queue: int = 0, first: int = 0) -> list[bytes]:
    """Bodies of all messages that a consumer sees in the queue from offset ``first`` on, in order."""
    found: list[bytes] = []
    while True:
        pulled = await client.pull(topic, first + len(found), queue=queue)
        if pulled.code != 0:
            return found
        at = 0
        while at < len(pulled.body):
            size = int.from_bytes(pulled.body[at : at + 4], "big")
            offset = int.from_bytes(pulled.body[at + 20 : at + 28], "big")
            assert offset == first + len(found), f"queue offset {offset} instead of {first + len(found)}"
            length = int.from_bytes(pulled.body[at + 84 : at + 88], "big")
            found.append(pulled.body[at + 88 : at + 88 + length])
            at += size
