"""Publishes to Apache RocketMQ, with the client of halfmq.

A row becomes a message with the row's message id as UNIQ_KEY, its properties as they are, and the order key as sharding key.

What it promises:

- **Order**: messages of an order key go to the same queue, one after the confirmation of the other, for as long as the topic's number of
  queues stays. Consumers see that order if they consume orderly.
- **Duplicates**: after a time-out, a lost connection or a killed relay, of what was sent and not confirmed: RocketMQ does not compare message ids.
  A duplicate has the same UNIQ_KEY.
- **Durability**: that of the broker's configuration. With ``flushDiskType=ASYNC_FLUSH``, RocketMQ's default, a confirmed message survives the kill of
  the broker's process, but not the loss of power; with SYNC_FLUSH it is on disk. With ``brokerRole=SYNC_MASTER`` it is on a replica, too. A
  broker that could not do what it is configured for says so (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE): such a message is not
  confirmed, and published again.

It also publishes to a halfmq broker, with the same promises. That broker can do better: ``halfmq.relay.halfmq``.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from halfmq.client.async_client import AsyncClient
from halfmq.client.connector import parse_url
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Receipt
from halfmq.client.retry import RETRIABLE
from halfmq.errors import HalfmqError, RequestFailed, UsageError
from halfmq.model import properties as names
from halfmq.relay.publisher import Batch, OutboxMessage, Published
from halfmq.relay.waves import Sent, publish_in_waves

#: In one batch.
MESSAGES_MAX: Final = 500
#: For one message, with the attempts of the client.
TIMEOUT_S: Final = 10.0
_STORED: Final = "SEND_OK"


class RocketMqPublisher:
    """``url``, ``client``: as for ``AsyncClient``. ``timeout_s``: for one message, with the attempts of the client, in seconds."""

    def __init__(
        self, url: str, *, messages_max: int = MESSAGES_MAX, timeout_s: float = TIMEOUT_S, **client: Any
    ) -> None:
        self._servers = ";".join(map(str, parse_url(url)))
        self._client = AsyncClient(url, timeout=timeout_s, **client)
        self._messages_max = messages_max
        self._connecting = asyncio.Lock()
        #: The last batch was not answered.
        self._is_doubtful = False

    @property
    def name(self) -> str:
        """See ``Publisher``."""
        return f"rocketmq {self._servers}"

    @property
    def messages_max(self) -> int:
        """See ``Publisher``."""
        return self._messages_max

    async def open(self) -> None:
        """See ``Publisher``."""
        async with self._connecting:
            if not self._client.is_open:
                await self._client.connect()

    async def close(self) -> None:
        """See ``Publisher``."""
        await self._client.close()

    async def publish(self, batch: Batch) -> Published:
        """See ``Publisher``."""
        await self.open()
        published = await publish_in_waves(batch.messages, self._send, careful=self._is_doubtful)
        self._is_doubtful = bool(published.unavailable)
        return published

    async def recover(self, batch: Batch) -> Published:
        """See ``Publisher``. RocketMQ finds a message by its id, but not the absence of one that is still on its way."""
        return Published(frozenset())

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
