"""Consumers: ``async with mq.consumer("topic", group="billing") as messages``, then iterate over ``messages``."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, Self

from halfmq import limits
from halfmq.client.arguments import StartFrom, checked_count, checked_seconds, checked_text
from halfmq.client.group_member import GroupMember
from halfmq.client.key_order import KeyOrder
from halfmq.client.message import Message
from halfmq.client.outgoing import checked_topic
from halfmq.client.queue_puller import Feed
from halfmq.client.retry_policy import Retry, checked_retry
from halfmq.client.start_position import Start
from halfmq.errors import UsageError
from halfmq.model.ids import checked_name

#: Messages buffered for the application. Precedent: RocketMQ ``pullThresholdForQueue``, for all queues together.
PREFETCH: Final = 1_000


class Batch(list[Message]):
    """A list of messages; empty if none arrived in time."""

    def ack(self) -> None:
        """Acknowledge every message of the batch."""
        for message in self:
            message.ack()

    async def retry(self, delay: float | None = None) -> None:
        """Hand every message back for redelivery; see ``Message.retry``."""
        await asyncio.gather(*(message.retry(delay) for message in self))


class ConsumerSpec:
    """The validated arguments of ``consumer``; nothing is started.

    ``start``: where the group starts in a queue for which it has no committed offset: ``"earliest"`` (default), ``"latest"``
    (the end of the queue when the consumer is entered) or a datetime. Committed offsets always take precedence.

    - The start is committed before the consumer is entered, for all queues of the topic, whoever reads them. So everything that is
      sent from then on is for the group, also if the consumer is left at once.
    - A topic or queue that is younger than the group's start is read from its beginning, whatever ``start`` says.
    - If a broker does not answer within 3 s, the consumer is entered nevertheless, with a warning in the log. Queues whose start is
      not known are then read from what was stored 30 s before, by the broker's clock.

    ``retry``: when a message is redelivered that was handed back, and when it becomes a dead letter; ``retries=5`` is short for
    ``retry=Retry(times=5)``. ``prefetch``: how many messages are buffered, 1,000 by default,
    and never more than 64 MiB of decompressed bodies plus one message. Redelivered messages have a separate buffer of 1,000
    messages and 64 MiB; while it is full, the redeliveries of all consumers of the group in this client are held up.

    All members of a group must consume the same topics, since a redelivered message may go to any of them. A member that
    does not consume its topic hands it back, with a warning in its log. That is no attempt, but it delays the message by 10 s, then 30
    s, 1 min and so on, and after 16 times it is a dead letter. Apache RocketMQ counts it as an attempt.

    Raises:
        UsageError, InvalidName: an argument is wrong.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        tags: str = "*",
        start: StartFrom = "earliest",
        retries: int | None = None,
        prefetch: int | None = None,
        retry: Retry | None = None,
    ) -> None:
        if isinstance(topics, bytes) or not isinstance(topics, Iterable):
            raise UsageError(f"topics={topics!r} names no topic", hint='"orders", or ["orders", "stock"]')
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise UsageError("a consumer needs a topic")
        self.topics = tuple(checked_topic(name) for name in names)
        if group == "":
            raise UsageError("a consumer needs a group", hint='consumer(..., group="billing")')
        self.group = checked_name(group, "group", limits.GROUP_CHARS_MAX)
        self.tags = checked_text(tags, "tags", '"*", or "web || app"')
        self.start = _start(start)
        self.retry = checked_retry(retry, retries)
        self.retries = self.retry.times
        self.prefetch = PREFETCH if prefetch is None else checked_count(prefetch, "prefetch", 1)


def _start(start: StartFrom) -> Start:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError("start is a datetime without a time zone", hint="datetime.now(UTC), for example")
        return Start("timestamp", start)
    if start not in ("earliest", "latest"):
        raise UsageError(f"start={start!r}", hint="'earliest', 'latest' or a datetime with a time zone")
    return Start(start)


class Consumer:
    """A member of a consumer group, made by ``AsyncClient.consumer`` and used as an async context manager.

    Leaving the block commits the acknowledged messages and releases the queues to the other members at once. All other
    messages are delivered again.
    """

    def __init__(self, spec: ConsumerSpec, join: Callable[[ConsumerSpec, Feed], Awaitable[GroupMember]]) -> None:
        self.spec = spec
        #: The statement that opens it, for error hints: ``with`` for a ``BlockingConsumer``.
        self.entered_by = "async with"
        self._join = join
        self._keeps_order = False
        #: The buffer of the open block, or of the one closed last.
        self._feed: Feed | None = None
        #: Set while ``__aenter__`` runs, so that ``stop`` can end it.
        self._entering: Feed | None = None
        self._member: GroupMember | None = None

    async def __aenter__(self) -> Self:
        if self._member is not None or self._entering is not None:
            raise UsageError(
                "this consumer is open already",
                hint="leave its block first; another reader needs a consumer of its own",
            )
        self._feed, self._entering = None, Feed(self.spec.prefetch, retry=self.spec.retry)
        if self._keeps_order:
            self._entering.key_order = KeyOrder()
        try:
            self._member = await self._join(self.spec, self._entering)
            self._feed = self._entering
        finally:
            self._entering = None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the group and end the iteration, like leaving the block. If cancelled, this continues in the background, and
        closing the client waits for it."""
        if self._member is not None:
            self._member.refuse_other_loop()
        self.stop()
        member, self._member = self._member, None
        if member is not None:
            await member.unsubscribe(self.spec.topics)

    def stop(self) -> None:
        """End the iteration. Buffered messages are delivered again to the group. Messages already returned can be acknowledged
        until the block is left.
        """
        for feed in (self._feed, self._entering):
            if feed is not None:
                feed.close()

    # --- concurrent handlers with order per sharding key, for ``App`` ---------------------------------------------------------------------

    def keep_order(self) -> None:
        """Return messages of one sharding key one at a time, in order. Call it before opening the consumer. After each message
        call ``handled`` or ``again``; its key is blocked until then.
        """
        self._keeps_order = True

    def handled(self, message: Message) -> None:
        """The message was acknowledged or given up: unblock its sharding key."""
        self._open_feed().handled(message)

    def again(self, message: Message, after_s: float) -> None:
        """Return the message again after ``after_s`` seconds, before any other message of its key."""
        self._open_feed().again(message, after_s)

    @property
    def is_closed(self) -> bool:
        """Whether it was stopped or closed; raises UsageError if it was never opened."""
        return self._open_feed().closed

    @property
    def member(self) -> GroupMember:
        """The group membership behind it; raises UsageError unless it is open."""
        if self._member is None:
            raise self._not_open()
        return self._member

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self.get()
        if message is None:
            raise StopAsyncIteration
        return message

    async def get(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 - one timeout= everywhere
        """The next message; None when ``timeout`` seconds passed or the consumer was closed."""
        if timeout is not None:
            checked_seconds(timeout, "timeout", zero=True)
        feed = self._open_feed()
        if self._member is not None:
            self._member.refuse_other_loop()
        message = feed.take()
        if message is not None or feed.closed:
            return message
        try:
            async with asyncio.timeout(timeout):
                while message is None and not feed.closed:
                    await feed.arrival()
                    message = feed.take()
        except TimeoutError:
            return None
        return message

    async def take(self, max: int, wait: float) -> Batch:  # noqa: A002 - the word users type
        """Up to ``max`` messages, as soon as there are some; empty after ``wait`` seconds without any."""
        checked_count(max, "max", 1)
        checked_seconds(wait, "wait", zero=True)
        batch = Batch()
        message = await self.get(wait)
        while message is not None:
            batch.append(message)
            message = self._open_feed().take() if len(batch) < max else None
        return batch

    async def batches(self, max: int = 100, wait: float = 1.0) -> AsyncIterator[Batch]:  # noqa: A002
        """Iterate over batches until the consumer is closed; an empty one every ``wait`` seconds without messages."""
        while not self._open_feed().closed:
            yield await self.take(max, wait)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Return messages from ``get`` or ``take`` to the front, because they did not reach the application."""
        for message in reversed(messages):
            self._open_feed().put_back(message)

    def _open_feed(self) -> Feed:
        if self._feed is None:
            raise self._not_open()
        return self._feed

    def _not_open(self) -> UsageError:
        return UsageError("this consumer is not open", hint=f"{self.entered_by} mq.consumer(...) as messages:")
