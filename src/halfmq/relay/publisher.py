"""What a target of the relay does: publish a batch of messages, and say which of them it has confirmed.

The relay records a batch in the database before it publishes it, and deletes the rows of what was confirmed after that. A relay that was
killed in between leaves a recorded batch; the one that takes it over calls ``recover`` first. A target that knows the batch's id answers
which of its messages are published, and makes sure that the killed or paused relay cannot publish the others any more; so nothing is
published twice. Other targets know nothing, and the batch is published again: a duplicate has the same ``message_id``.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

#: Messages of one batch, where a target does not say otherwise. More make it no cheaper.
MESSAGES_MAX: Final = 500


class OutboxMessage(NamedTuple):
    """One row of the outbox, to be published."""

    #: Its place in the outbox.
    seq: int
    #: The same at every attempt, whoever makes it: consumers recognise a duplicate by it. RocketMQ's UNIQ_KEY.
    message_id: str
    topic: str
    body: bytes
    #: RocketMQ's encoded properties as ``halfmq.client.outgoing.compose`` makes them: tag, keys, the application's own.
    properties: bytes
    #: Messages with the same key keep their order. Empty: no order.
    order_key: str
    #: The transaction that wrote the row.
    tx_id: str
    #: When it was written, wall clock of the writing process, ms.
    written_at_ms: int


class Batch(NamedTuple):
    """Messages that are recorded as one batch, in the order of the outbox."""

    #: Unique for ever; a valid transaction id of the broker.
    id: str
    messages: tuple[OutboxMessage, ...]


class Published(NamedTuple):
    """What is known after an attempt. A message in neither of the two is tried again later, and counts as not tried."""

    #: ``seq`` of messages that the target has confirmed: their rows are deleted.
    confirmed: frozenset[int]
    #: ``seq`` of messages that the target has refused for good in this form, with the reason. It may be tried again, but nothing of the
    #: same ``order_key`` before it.
    refused: Mapping[int, str] = {}
    #: The target refused the batch as a whole, and nothing of it is or will be published: its messages are to be published one at a time.
    one_by_one: bool = False
    #: Why the target does not answer at the moment; empty: it does. The relay pauses, and no message counts an attempt.
    unavailable: str = ""


class Publisher(Protocol):
    """A target. The calls of one publisher may overlap, for different batches; two batches never share an ``order_key`` at a time."""

    @property
    def name(self) -> str:
        """The target for messages and logs, without credentials: ``rabbitmq 127.0.0.1:5672``."""
        ...

    @property
    def messages_max(self) -> int:
        """Maximum number of messages of a batch."""
        ...

    async def open(self) -> None:
        """Connect.

        Raises:
            ConnectError: the target does not answer. The relay tries again.
            UsageError, NotAuthorized: it never will, with these settings.
        """
        ...

    async def close(self) -> None:
        """Disconnect. Also called after a failed ``open``."""
        ...

    async def publish(self, batch: Batch) -> Published:
        """Publish, and wait for the confirmations.

        Of each ``order_key`` the messages are published in their order, and none after one that was refused. A message is confirmed when
        the target has stored it as durably as it ever will.

        Raises:
            ConnectError: as ``unavailable``; nothing is known of any message.
        """
        ...

    async def recover(self, batch: Batch) -> Published:
        """Of a batch that an earlier relay may have published, or may still be publishing: which messages are ``confirmed``.

        What is not confirmed will not be published by anybody but the caller from now on, where the target can promise that. A target that
        knows nothing returns ``Published(frozenset())``.

        Raises:
            ConnectError: nothing is known. The batch stays recorded.
        """
        ...
