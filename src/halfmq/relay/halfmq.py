"""Publishes to a halfmq broker: no duplicate for as long as its log has the batch's verdict.

A batch is one transaction whose id is the batch's: half messages, then COMMIT. The broker remembers the verdict of a chosen id, so a relay
that takes a batch over learns whether it is committed, and otherwise rolls it back, after which the first relay's COMMIT is refused. All
messages of a batch become visible together, in order by queue.
"""

from typing import TYPE_CHECKING

from halfmq.client.admin import is_halfmq
from halfmq.client.async_client import AsyncClient
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import COMMITTED
from halfmq.client.refusals import RETRIABLE
from halfmq.client.transaction_block import Transaction
from halfmq.errors import (
    ConnectError,
    HalfmqError,
    OutcomeUnknown,
    RequestFailed,
    TransactionIncomplete,
    TransactionRefused,
    TransactionUndecided,
    UsageError,
)
from halfmq.model.address import parse_url
from halfmq.relay.publisher import MESSAGES_MAX, Batch, OutboxMessage, Published

if TYPE_CHECKING:
    from halfmq.client.telemetry import Telemetry


class HalfmqPublisher:
    """``url`` as for ``AsyncClient``. ``group``: producer group of the relay's transactions, which no other program uses: nobody else
    answers their checks. ``broker``: its name, needed if the name server knows several. ``telemetry``: as for ``AsyncClient``: its sends
    and commits have spans and metrics."""

    messages_max = MESSAGES_MAX

    def __init__(
        self,
        url: str,
        *,
        group: str,
        broker: str = "",
        timeout_s: float = 10.0,
        telemetry: "bool | Telemetry" = False,
    ) -> None:
        self._url = url
        self._group = group
        self._broker = broker
        self._timeout_s = timeout_s
        self._telemetry = telemetry
        self._client: AsyncClient | None = None

    @property
    def name(self) -> str:
        return f"halfmq {parse_url(self._url).addresses}"

    async def open(self) -> None:
        """See ``Publisher``. UsageError: there are several brokers, and none was named; or the named one is not known, or is Apache
        RocketMQ."""
        if self._client is not None:
            return
        client = AsyncClient(self._url, group=self._group, timeout=self._timeout_s, telemetry=self._telemetry)
        client.add_check("", _undecided)
        try:
            await client.connect()
            self._broker = self._checked(await client.broker_names())
            if not await is_halfmq(client, self._broker):
                # It forgets an id, and a message whose COMMIT was lost after the rows are deleted.
                raise UsageError(
                    f"broker {self._broker} is Apache RocketMQ, which does not remember the ids of batches",
                    hint="publish with to=RocketMqPublisher(url), of halfmq.relay.rocketmq",
                )
        except BaseException:
            await client.close()
            raise
        self._client = client

    def _checked(self, names: list[str]) -> str:
        """The broker's name."""
        if self._broker and self._broker not in names:
            raise UsageError(f"no broker {self._broker!r}", hint=f"the name server knows {', '.join(names)}")
        if not self._broker and len(names) > 1:
            raise UsageError(
                f"the name server knows the brokers {', '.join(names)}",
                hint="name one with broker=: the one to which a batch was sent must be asked for its verdict",
            )
        return self._broker or names[0]

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def publish(self, batch: Batch) -> Published:
        """See ``Publisher``. All messages or none."""
        everything = Published(frozenset(message.seq for message in batch.messages))
        client = await self._opened()
        try:
            prepared = await client.prepare(
                [_outgoing(message) for message in batch.messages],
                tx_id=batch.id,
                broker=self._broker,
                timeout=self._timeout_s,
            )
            await client.commit(prepared)
        except TransactionRefused as error:
            # Another relay has taken the batch over. It, or what it does next, decides about the rows.
            return everything if error.standing == COMMITTED else Published(frozenset(), unavailable=str(error))
        except (ConnectError, OutcomeUnknown, TransactionIncomplete, TransactionUndecided) as error:
            return Published(frozenset(), unavailable=str(error))
        except UsageError as error:
            return await self._refused(batch, error)
        except RequestFailed as error:
            if error.response_code in RETRIABLE:
                return Published(frozenset(), unavailable=str(error))
            return await self._refused(batch, error)
        return everything

    async def _refused(self, batch: Batch, error: HalfmqError) -> Published:
        """Which message is to blame is known only if it is alone."""
        if len(batch.messages) == 1:
            return Published(frozenset(), {batch.messages[0].seq: str(error)})
        # The broker may have half messages of the others. Once the batch is no longer recorded, nobody would know that nobody commits them.
        recovered = await self.recover(batch)
        return recovered if recovered.confirmed else Published(frozenset(), one_by_one=True)

    async def recover(self, batch: Batch) -> Published:
        """See ``Publisher``. What is not committed is rolled back, so that nobody publishes it under this id any more. A batch that the
        broker does not know, and whose first message it refuses, nobody can publish either.
        """
        if not batch.messages:
            return Published(frozenset())
        client = await self._opened()
        try:
            verdict = await client.settle_earlier(batch.id, _outgoing(batch.messages[0]), broker=self._broker)
        except (OutcomeUnknown, RequestFailed) as error:
            raise ConnectError(f"whether batch {batch.id} is published: {error}") from error
        if verdict == COMMITTED:
            return Published(frozenset(message.seq for message in batch.messages))
        return Published(frozenset())

    async def _opened(self) -> AsyncClient:
        if self._client is None:
            await self.open()
        assert self._client is not None
        return self._client


def _undecided(_transaction: Transaction) -> Outcome:
    """The answer to a check of a batch: the relay that holds its lane settles it, or the next one."""
    return Outcome.UNKNOWN


def _outgoing(message: OutboxMessage) -> OutgoingMessage:
    return OutgoingMessage(
        message.topic, message.body, message.properties, message.order_key, 0, message_id=message.message_id
    )
