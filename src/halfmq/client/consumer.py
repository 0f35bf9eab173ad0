"""``async with mq.consumer("topic", group="billing") as messages``: messages by iteration."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from halfmq import limits
from halfmq.client.arguments import checked_count, checked_seconds, checked_text
from halfmq.client.group_member import GroupMember
from halfmq.client.key_order import KeyOrder
from halfmq.client.message import Message
from halfmq.client.outgoing import checked_topic
from halfmq.client.queue_puller import Feed, Start
from halfmq.errors import UsageError
from halfmq.model.ids import checked_name

#: Messages that wait here for the application. Precedent: RocketMQ ``pullThresholdForQueue``, for all queues together.
PREFETCH: Final = 1_000


class Batch(list[Message]):
    """Some messages at once; may be empty when none came in time."""

    def ack(self) -> None:
        """Acknowledge all."""
        for message in self:
            message.ack()

    async def retry(self, delay: float | None = None) -> None:
        """Hand all back."""
        await asyncio.gather(*(message.retry(delay) for message in self))


class ConsumerSpec:
    """What to consume, checked; nothing is started.

    ``start``: where the group begins in a queue that it never read: ``"earliest"`` (default: nothing that was sent is
    skipped), ``"latest"`` (the end of the queue when a member takes it up, shortly after it was entered), or a datetime. A
    group that has offsets goes on at them, whatever ``start`` says. A topic, or a queue of it, that is made after the
    consumer was entered begins at its beginning in any case; if no name server could say by then what was there, what is
    there when one says it counts. That holds for each member by itself: for a second member that joins the group while the
    topic or queue is new, it was there before, and where nothing of it is committed yet, ``"latest"`` begins at the end of
    the queues that this member takes, and what they hold is skipped. Whoever must not miss anything says ``"earliest"``.
    Where the group begins is committed before the first message comes, so that whoever takes a queue over goes on there; a
    broker that refuses the commit (a warning says so) is read all the same, and then only this member knows where it began.
    ``retries``: redeliveries before the dead-letter queue. ``prefetch``: messages that may wait here, 1,000 by default, and
    at most 64 MiB of bodies as they were before they were packed, whatever it says, and one more. Beside them 1,000 messages
    may wait that were handed back, and 64 MiB of these; a consumer that stalls until it has so many holds up those of the other
    consumers of its group in this client.

    All members of a group consume the same topics: what one of them hands back comes to any of them. One that does not
    consume its topic hands it back once more, which counts as an attempt.

    Raises:
        UsageError, InvalidName: at once.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        tags: str = "*",
        start: str | datetime = "earliest",
        retries: int = limits.RETRY_TIMES_MAX,
        prefetch: int | None = None,
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
        self.retries = checked_count(retries, "retries", 0)
        self.prefetch = PREFETCH if prefetch is None else checked_count(prefetch, "prefetch", 1)


def _start(start: str | datetime) -> Start:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError("start is a datetime without a time zone", hint="datetime.now(UTC), for example")
        return Start("timestamp", start)
    if start not in ("earliest", "latest"):
        raise UsageError(f"start={start!r}", hint="'earliest', 'latest' or a datetime with a time zone")
    return Start(start)


class Consumer:
    """Made by ``AsyncClient.consumer``; lives inside ``async with``.

    Leaving the block commits what was acknowledged, leaves the rest to be delivered again, and gives the queues to the
    other members at once.
    """

    def __init__(self, spec: ConsumerSpec, join: Callable[[ConsumerSpec, Feed], Awaitable[GroupMember]]) -> None:
        self.spec = spec
        #: For hints; a ``BlockingConsumer`` is entered otherwise.
        self.entered_by = "async with"
        self._join = join
        self._keeps_order = False
        #: Of the block that is open, or was left last.
        self._feed: Feed | None = None
        #: While the block is entered: it may be stopped already.
        self._entering: Feed | None = None
        self._member: GroupMember | None = None

    async def __aenter__(self) -> Self:
        if self._member is not None or self._entering is not None:
            raise UsageError(
                "this consumer is open already",
                hint="leave its block first; another reader needs a consumer of its own",
            )
        self._feed, self._entering = None, Feed(self.spec.prefetch)
        if self._keeps_order:
            self._entering.key_order = KeyOrder()
        try:
            self._member = await self._join(self.spec, self._entering)
            self._feed = self._entering
        finally:
            self._entering = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As leaving the block. Iteration ends. Cancelled, the leaving goes on; closing the client waits for it."""
        self.stop()
        member, self._member = self._member, None
        if member is not None:
            await member.unsubscribe(self.spec.topics)

    def stop(self) -> None:
        """End the iteration: nothing more is handed out, and what waits here is delivered again to the group. Messages that
        were handed out can still be acknowledged until the block is left.
        """
        for feed in (self._feed, self._entering):
            if feed is not None:
                feed.close()

    # --- several at once, in order: for ``App`` ---------------------------------------------------------------------

    def keep_order(self) -> None:
        """Before it is entered: messages of one sharding key are handed out one at a time, in their order. Say ``handled`` of
        each, or ``failed`` and then ``again``: until then nothing more of its key comes.
        """
        self._keeps_order = True

    def handled(self, message: Message) -> None:
        """It was acknowledged, or given up: the next one of its key may come."""
        self._open_feed().handled(message)

    def failed(self, message: Message) -> int:
        """How often this message with a sharding key failed here in a row."""
        key_order = self._open_feed().key_order
        assert key_order is not None
        return key_order.failed(message)

    def again(self, message: Message, after_s: float) -> None:
        """Hand it out once more, before anything else of its key."""
        self._open_feed().again(message, after_s)

    @property
    def is_closed(self) -> bool:
        return self._open_feed().closed

    @property
    def member(self) -> GroupMember:
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
        """Batches until the consumer is closed; an empty one each ``wait`` seconds when nothing comes."""
        while not self._open_feed().closed:
            yield await self.take(max, wait)

    def put_back(self, messages: Sequence[Message]) -> None:
        """What ``get`` or ``take`` gave, when it did not reach the application."""
        for message in reversed(messages):
            self._open_feed().put_back(message)

    def _open_feed(self) -> Feed:
        if self._feed is None:
            raise self._not_open()
        return self._feed

    def _not_open(self) -> UsageError:
        return UsageError("this consumer is not open", hint=f"{self.entered_by} mq.consumer(...) as messages:")
