"""Publishes to Apache RocketMQ, with the client of halfmq.

A row becomes a message with the row's message id as UNIQ_KEY, its properties as they are, and the order key as sharding key.

What it promises beside other targets: docs/decisions/0064-relay-targets.md. Messages of an order key go to the same
queue, for as long as the topic's number of queues stays. A broker that could not do what it is configured for says so
(FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE): such a message is not confirmed, and published again.

It also publishes to a halfmq broker, with the same promises. That broker can do better: ``halfmq.relay.halfmq``.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Unpack

from halfmq.client.arguments import EnvironmentOptions, refuse_misspelt
from halfmq.client.async_client import AsyncClient
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Receipt
from halfmq.client.refusals import RETRIABLE
from halfmq.errors import HalfmqError, RequestFailed, UsageError
from halfmq.model import properties as names
from halfmq.model.address import parse_url
from halfmq.relay.publisher import MESSAGES_MAX, Batch, OutboxMessage, Published
from halfmq.relay.waves import PublisherInWaves, Sent

#: For one message, with the attempts of the client.
TIMEOUT_S: Final = 10.0
_STORED: Final = "SEND_OK"


class RocketMqPublisher(PublisherInWaves):
    """``url``, ``client``: as for ``AsyncClient``. ``timeout_s``: for one message, with the attempts of the client, in seconds."""

    def __init__(
        self,
        url: str,
        *,
        messages_max: int = MESSAGES_MAX,
        timeout_s: float = TIMEOUT_S,
        **client: Unpack[EnvironmentOptions],
    ) -> None:
        refuse_misspelt(client, RocketMqPublisher.__init__)
        if "timeout" in client:
            raise UsageError("RocketMqPublisher has no timeout", hint="timeout_s=, in seconds")
        super().__init__(messages_max)
        self._servers = parse_url(url).addresses
        options: EnvironmentOptions = {**client, "timeout": timeout_s}
        self._client = AsyncClient(url, **options)
        self._connecting = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"rocketmq {self._servers}"

    async def open(self) -> None:
        async with self._connecting:
            if not self._client.is_open:
                await self._client.connect()

    async def close(self) -> None:
        await self._client.close()

    async def publish(self, batch: Batch) -> Published:
        await self.open()
        return await self._publish_in_waves(batch, self._send)

    async def _send(self, wave: Sequence[OutboxMessage]) -> Sent:
        outcomes = await asyncio.gather(
            *(self._client.send(message.topic, _outgoing(message)) for message in wave), return_exceptions=True
        )
        confirmed: set[int] = set()
        refused: dict[int, str] = {}
        why = ""
        for message, outcome in zip(wave, outcomes, strict=True):
            match outcome:
                case Receipt():
                    if outcome.status == _STORED:
                        confirmed.add(message.seq)
                    else:
                        why = f"stored, but {outcome.status}"
                case UsageError():
                    refused[message.seq] = str(outcome)
                case RequestFailed() if outcome.response_code not in RETRIABLE:
                    refused[message.seq] = str(outcome)
                case HalfmqError():
                    why = str(outcome)
                case _:
                    raise outcome
        return Sent(frozenset(confirmed), refused, unavailable=why and f"{self.name}: {why}")


def _outgoing(message: OutboxMessage) -> OutgoingMessage:
    properties = message.properties
    if message.order_key and names.find(properties, names.SHARDING_KEY) is None:
        properties = names.append(properties, names.encode([(names.SHARDING_KEY, message.order_key)]))
    return OutgoingMessage(message.topic, message.body, properties, message.order_key, 0, message.message_id)
