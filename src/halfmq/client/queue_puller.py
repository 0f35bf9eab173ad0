"""Reads one assigned queue of a consumer group: first offset, pull loop, acknowledgements and commits.

The committed offset never passes an unacknowledged message. A message that the application neither acknowledges nor hands
back is delivered again to the next owner of the queue.

Pull requests carry no commit offset, although the protocol allows it. RocketMQ handles pulls and commits on different threads,
and the last one handled wins (``ConsumerOffsetManager.commitOffset``): an offset in a queued pull could overwrite a later
commit, and the last message would be redelivered. So a commit is a separate request, with one in flight per queue.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, Final

from halfmq import limits
from halfmq.client import redelivery_timers
from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.dead_letter_origins import DeadLetterOrigins
from halfmq.client.key_order import Entry, KeyOrder
from halfmq.client.log import log
from halfmq.client.message import Message
from halfmq.client.offset_tracker import OffsetTracker
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.refusals import refusal
from halfmq.client.request_reply import behind, patience_s, send_reply
from halfmq.client.retry_policy import Retry
from halfmq.client.routing import QueueRef
from halfmq.client.start_position import Start, ask, committed_offset, place, start_offset
from halfmq.client.user_code import spawn
from halfmq.errors import ConnectError, HalfmqError, MissingDependency, ProtocolError, RequestFailed
from halfmq.model.properties import DLQ_ORIGIN_TOPIC
from halfmq.printable import printable
from halfmq.wire.remoting.codes import (
    EXT_ATTEMPT,
    EXT_DELAY_MS,
    EXT_FAILURE,
    EXT_NOT_CONSUMED,
    PullFlag,
    RequestCode,
    ResponseCode,
)
from halfmq.wire.remoting.fields import PulledReply
from halfmq.wire.remoting.heartbeat import Subscription
from halfmq.wire.remoting.message_codec import PulledMessage, split_pull, unpack

#: How long a broker may hold a pull that finds nothing. Precedent: RocketMQ ``brokerSuspendMaxTimeMillis``.
SUSPEND_MS: Final = 15_000
#: The broker's timer has a precision of 5 s; the Java client waits 30 s in all.
_PULL_TIMEOUT_S: Final = SUSPEND_MS / 1000 + 10.0
_PULL_MESSAGES: Final = 256
#: Maximum of unacknowledged messages per queue; pulling pauses at it.
_OPEN_MAX: Final = 10_000
#: Decompressed bytes of buffered bodies, of all queues of a consumer together, at which pulling and decompressing pause. One body may
#: exceed it. Pulled messages that wait for capacity stay compressed, at most ``limits.PULL_BYTES_MAX`` (or one message) per queue.
#: Compression ratios reach a thousand, so a bound per queue would bound nothing. Precedent: RocketMQ ``pullThresholdSizeForQueue`` = 100
#: MiB for each queue, compressed.
PREFETCH_BYTES: Final = 64 * 1024 * 1024
#: Buffered redeliveries of one consumer, at which pulling from the group's retry queue pauses, for all consumers of the group.
#: Not ``prefetch``, which may be small and concerns one consumer only.
_RETRIES_MAX: Final = 1_000
#: Pause after an error response. Precedent: RocketMQ ``pullTimeDelayMillsWhenException``.
_REFUSED_PAUSE_S: Final = 3.0
#: A message with a damaged body is pulled again after this; the pause doubles each time. The first one is short, since the
#: damage may have happened in transit.
_DAMAGED_PAUSE_S: Final = 1.0
_DAMAGED_PAUSE_MAX_S: Final = 60.0
_DAMAGED: Final = "is damaged: its CRC differs from the stored one."
_CHECK_THE_DISK: Final = " If this persists, check the broker's disk (halfmq store verify)."
#: A message that could not be handed back is delivered again in this process after this.
_LOCAL_RETRY_S: Final = 5.0
#: Attempts, at least, of a message that is handed back because its topic is not consumed here. For Apache RocketMQ, which counts that
#: as an attempt; its own default (``retryMaxTimes``), nearly five hours. With fewer the message would die of members that cannot handle it.
_ATTEMPTS_OF_OTHERS: Final = 16
#: Maximum of topics for which that is logged, once for each.
_NOT_CONSUMED_LOGGED_MAX: Final = 100
#: An unchanged offset is committed again after this, since a late commit of the previous owner may have overwritten it.
#: Precedent: RocketMQ commits all offsets every 5 s (``persistConsumerOffsetInterval``).
_RECOMMIT_S: Final = 10.0
_NO_SPAN: Final = nullcontext()


class CommitOutcome(Enum):
    """The result of ``QueuePuller.commit``."""

    #: The broker has the offset: committed now, or before on this connection.
    KNOWN = "known"
    #: The start offset is not known yet.
    NOTHING = "nothing"
    REFUSED = "refused"
    #: It may have been committed.
    NO_ANSWER = "no answer"


class _Capacity:
    """A bound on buffered messages and bytes; ``available`` is set while more may be added."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self.available = asyncio.Event()
        self.available.set()

    def changed(self, messages: int, size: int) -> None:
        """Account for added (or with negative values removed) messages. An empty buffer always accepts one message."""
        self._messages += messages
        self._bytes += size
        if self._messages < self._messages_max and self._bytes < self._bytes_max:
            self.available.set()
        else:
            self.available.clear()


class Feed:
    """The prefetch buffer of one consumer: messages from all its queues, in arrival order.

    Redeliveries have separate capacity, since the retry queue is read for all consumers of the group: a stalled consumer
    holds up the redeliveries of the others only when its own fill that capacity.
    """

    def __init__(self, prefetch: int, prefetch_bytes: int = PREFETCH_BYTES, retry: Retry | None = None) -> None:
        """``retry``: of its consumer, for each of its messages."""
        self.retry = retry
        self._capacity = _Capacity(prefetch, prefetch_bytes)
        self._retry_capacity = _Capacity(_RETRIES_MAX, prefetch_bytes)
        self._waiting: deque[Entry[QueuePuller]] = deque()
        #: Set if messages of one key are handled in order by concurrent handlers. Messages that wait in it count as buffered.
        self.key_order: KeyOrder[QueuePuller] | None = None
        self._arrived = asyncio.Event()
        self.closed = False

    def put(self, puller: "QueuePuller", message: Message) -> None:
        """Add a message. Ignored when closed: the message stays uncommitted, and is delivered again to the group."""
        if self.closed:
            return
        self._waiting.append(Entry(puller, message))
        self._capacity_of(puller).changed(1, len(message.body))
        self._arrived.set()

    def put_back(self, message: Message) -> None:
        """Return a taken message that did not reach the application to the front."""
        puller = message._required_delivery()
        assert isinstance(puller, QueuePuller)
        self.put(puller, message)
        self._waiting.rotate(1)

    def _capacity_of(self, puller: "QueuePuller") -> _Capacity:
        return self._retry_capacity if puller.is_retry else self._capacity

    def take(self) -> Message | None:
        """The next message whose queue is still assigned to this member; None if there is none, or the feed is closed."""
        message = None
        while self._waiting and message is None:
            entry = self._waiting.popleft()
            if self.key_order is not None and not self.key_order.enter(entry):
                continue
            puller, candidate = entry
            self._capacity_of(puller).changed(-1, -len(candidate.body))
            if puller.released:
                self.handled(candidate)
            else:
                message = candidate
        if not self._waiting and not self.closed:
            self._arrived.clear()
        return message

    def handled(self, message: Message) -> None:
        """Unblock the key of ``message``: its next message may be taken."""
        following = None if self.key_order is None else self.key_order.leave(message)
        if following is not None and not self.closed:
            self._waiting.appendleft(following)
            self._arrived.set()

    def again(self, message: Message, after_s: float) -> None:
        """Deliver a failed message again after ``after_s`` seconds, before others of its key. It counts as buffered until then."""
        puller = message._required_delivery()
        assert isinstance(puller, QueuePuller)
        self._capacity_of(puller).changed(1, len(message.body))
        redelivery_timers.call_later(after_s, self._requeue, Entry(puller, message))

    def _requeue(self, entry: "Entry[QueuePuller]") -> None:
        if not self.closed:
            self._waiting.append(entry)  # at the end, so that failing keys do not starve the others
            self._arrived.set()

    def is_full(self, *, of_retries: bool) -> bool:
        """Whether the capacity for redeliveries, or for other messages, is used up."""
        return not (self._retry_capacity if of_retries else self._capacity).available.is_set()

    async def arrival(self) -> None:
        """Wait until there may be a message, or the feed is closed."""
        await self._arrived.wait()

    async def wait_for_capacity(self, *, of_retries: bool) -> None:
        """Wait until a message may be added, or a redelivery. Once the feed is closed it never returns, so cancel the waiting task; for
        redeliveries it returns at once, since other feeds share the retry queue."""
        await (self._retry_capacity if of_retries else self._capacity).available.wait()

    def close(self) -> None:
        """Drop all buffered messages; they are delivered again to the group."""
        self.closed = True
        self._waiting.clear()
        self._arrived.set()
        self._capacity.available.clear()
        self._retry_capacity.available.set()


class QueuePuller:
    """Reads one queue. The group member runs ``run`` as a task, cancels it, commits once more, and calls ``release``."""

    def __init__(
        self,
        context: ClientContext,
        group: str,
        queue: QueueRef,
        subscription: Subscription,
        feeds: "dict[str, Feed]",
        dead_letters: DeadLetterOrigins,
        start: Start,
        retries: int,
        not_consumed: set[str],
        commit_start: "Callable[[QueuePuller], Awaitable[None]] | None" = None,
    ) -> None:
        """``commit_start``: commits the start offset before the first pull, if the group has no committed offset."""
        self.queue = queue
        #: A retry queue, read for all consumers of the group in this client.
        self.is_retry = queue.topic == f"%RETRY%{group}"
        self.released = False
        self._context = context
        self._group = group
        self._subscription = subscription
        #: By topic; owned by the group member, which adds and removes.
        self._feeds = feeds
        #: Owned by the group member.
        self._dead_letters = dead_letters
        #: Dead-letter topics of open messages, by offset in a retry queue.
        self._origins: dict[int, str] = {}
        self._start = start
        self._retries = retries
        #: Topics of redelivered messages that have no consumer here, as logged; owned by the group member.
        self._not_consumed = not_consumed
        self._commit_start = commit_start
        self._tracker: OffsetTracker | None = None
        self._committed = -1
        #: The connection on which it was committed; after a restart the broker may have lost it.
        self._committed_at: Connection | None = None
        #: On the loop's clock.
        self._recommit_at = 0.0
        #: Response code of the last commit.
        self._refused_with: int = ResponseCode.SUCCESS
        #: Response code of the last pull; None: the response could not be decoded.
        self._pull_refused_with: int | None = ResponseCode.SUCCESS
        self._committing = asyncio.Lock()
        self._acked = asyncio.Event()
        #: Offsets of messages that were handed back after the release, to warn once for each.
        self._moved: set[int] = set()
        #: Offsets of messages that could not be handed back and will be delivered again here; acknowledgements are ignored until then.
        self._again: set[int] = set()
        #: Set when a feed is added.
        self._joined = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._damaged_pause_s = _DAMAGED_PAUSE_S

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pull until cancelled."""
        pause_s = 0.1
        while True:
            try:
                if self._tracker is None:
                    offset = await self._first_offset()
                    self._tracker = OffsetTracker(offset)
                if self._commit_start is not None:
                    await self._commit_first(self._commit_start)
                await self._wait_for_capacity(self._tracker)
                await self._pull(self._tracker)
                pause_s = 0.1
                self._pull_refused_with = ResponseCode.SUCCESS
            except (ConnectError, NotSent, NoAnswer) as error:
                log.debug("%s: %s; retry in %.1f s", self.queue, error, pause_s)
                self._context.router.mark_stale(self.queue.topic)
                await asyncio.sleep(pause_s * self._context.rng.uniform(0.7, 1.0))
                pause_s = min(2 * pause_s, 2.0)
            except (RequestFailed, ProtocolError) as error:
                self._log_refused(error)
                await asyncio.sleep(_REFUSED_PAUSE_S)

    def _log_refused(self, error: RequestFailed | ProtocolError) -> None:
        """Log an error response once, until the code changes or a pull succeeds."""
        code = error.response_code if isinstance(error, RequestFailed) else None
        if code != self._pull_refused_with:
            log.warning("pulling %s: %s; retried until it succeeds, and logged once", self.queue, error)
            if code == ResponseCode.TOPIC_NOT_EXIST:
                self._context.router.forget(self.queue.topic)
        self._pull_refused_with = code

    @property
    def is_without_topic(self) -> bool:
        """The last pull failed because the topic does not exist."""
        return self._pull_refused_with == ResponseCode.TOPIC_NOT_EXIST

    async def _wait_for_capacity(self, tracker: OffsetTracker) -> None:
        if self.is_retry:
            while True:
                for feed in list(self._feeds.values()):
                    await feed.wait_for_capacity(of_retries=True)
                if not all(feed.closed for feed in self._feeds.values()):
                    break
                self._joined.clear()  # until a consumer joins
                await self._joined.wait()
        else:
            await self._feeds[self.queue.topic].wait_for_capacity(of_retries=False)
        while len(tracker) >= _OPEN_MAX:
            log.warning("%s: %d messages are not acknowledged; nothing more is pulled", self.queue, len(tracker))
            self._acked.clear()
            await self._acked.wait()

    def _has_capacity(self, tracker: OffsetTracker) -> bool:
        feeds = self._feeds.values() if self.is_retry else filter(None, (self._feeds.get(self.queue.topic),))
        return len(tracker) < _OPEN_MAX and not any(feed.is_full(of_retries=self.is_retry) for feed in feeds)

    async def _first_offset(self) -> int:
        """The group's committed offset; without one, that of ``start``."""
        offset = await committed_offset(self._context, self._group, self.queue)
        if offset is None:
            return await start_offset(self._context, self.queue, self._start)
        self._commit_start = None
        return offset

    async def _commit_first(self, commit_start: "Callable[[QueuePuller], Awaitable[None]]") -> None:
        """Commit the start offset before pulling. Otherwise, if this member is killed, the next owner would compute a later
        start and skip messages.

        If the broker rejects the commit, the queue is read anyway, since it may reject it forever; that is logged, and retried
        with the periodic commits. If it does not respond, the commit is retried first.
        """
        await commit_start(self)
        if self._committed < 0 and self._refused_with == ResponseCode.SUCCESS:
            raise NoAnswer("the start offset is not committed yet")
        self._commit_start = None

    async def _pull(self, tracker: OffsetTracker) -> None:
        ext = place(
            self.queue,
            consumerGroup=self._group,
            queueOffset=str(tracker.next_offset),
            maxMsgNums=str(_PULL_MESSAGES),
            maxMsgBytes=str(limits.PULL_BYTES_MAX),
            sysFlag=str(int(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)),
            commitOffset="0",  # required by RocketMQ brokers, ignored without its flag
            suspendTimeoutMillis=str(SUSPEND_MS),
            subscription=self._subscription.expression,
            subVersion=str(self._subscription.version),
            expressionType=self._subscription.expression_type,
        )
        answer = await ask(self._context, self.queue, RequestCode.PULL_MESSAGE, ext, _PULL_TIMEOUT_S)
        match answer.code:
            case ResponseCode.SUCCESS:
                pulled, following = split_pull(answer.body), answer.read(PulledReply).next_begin_offset
                answer.body = b""  # free the memory: the messages may wait long for capacity
                unusable = await self._take(tracker, pulled)
                if unusable is not None:
                    await self._stay_at(tracker, *unusable)
                else:
                    self._damaged_pause_s = _DAMAGED_PAUSE_S
                    tracker.pulled_up_to(following)
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                tracker.pulled_up_to(answer.read(PulledReply).next_begin_offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                offset = answer.read(PulledReply).next_begin_offset
                log.warning("%s: offset %d no longer exists, continuing at %d", self.queue, tracker.next_offset, offset)
                tracker.restart(offset)
                self._origins.clear()
            case ResponseCode.FLOW_CONTROL | ResponseCode.SYSTEM_BUSY:
                await asyncio.sleep(0.1)
            case ResponseCode.GO_AWAY:
                raise NoAnswer("the broker is stopping")
            case _:
                raise refusal(answer.code, answer.remark, f"pull of {self.queue}")

    async def _take(self, tracker: OffsetTracker, pulled: list[PulledMessage]) -> tuple[Message, str] | None:
        """Deliver pulled messages to the feeds, up to the first one with an unusable body: returns that one and the reason.

        Each is decompressed only when there is capacity, which pulls of other queues may have used up meanwhile.
        """
        wanted = self._subscription.tags
        for packed in pulled:
            message = Message(packed.message, packed.log_offset, packed.message.body, self)
            # The broker filters by hash; two tags may share one.
            if wanted and message.tag not in wanted:
                continue
            if not packed.whole:
                return message, _DAMAGED
            # Allows commits of all messages before this one while it waits.
            tracker.pulled_up_to(message.offset)
            while not self._has_capacity(tracker):  # all waiting queues wake up, and one of them uses it
                await self._wait_for_capacity(tracker)
            try:
                stored = unpack(packed).message
            except (ProtocolError, MissingDependency) as error:
                return message, f"cannot be unpacked: {error}."
            if stored is not packed.message:
                message = Message(stored, packed.log_offset, stored.body, self)
            tracker.delivered(message.offset)
            self._deliver(message)
        return None

    def _deliver(self, message: Message) -> None:
        """Deliver to the consumer of the message's topic. A redelivery of a topic that no consumer here reads is handed back:
        delivered to another consumer it would be lost for the right one. Left unacknowledged it would stay here for as long as this
        member runs, and then come again together with everything after it.
        """
        self._again.discard(message.offset)
        if self.released:
            return  # the new owner of the queue receives it
        feed = self._feed_of(message)
        if feed is not None:
            if self._context.telemetry is not None:
                self._context.telemetry.received(message.topic, self._group)
            message._retry = feed.retry
            message._settled = ""  # it may be here again, because it could not be handed back
            feed.put(self, message)
            return
        self._log_not_consumed(message.topic)
        spawn(self._tasks, self._send_back(message, 0, not_consumed=True), "handing a message back failed")

    def _log_not_consumed(self, topic: str) -> None:
        """Once for each topic."""
        if topic in self._not_consumed or len(self._not_consumed) >= _NOT_CONSUMED_LOGGED_MAX:
            return
        self._not_consumed.add(topic)
        log.warning(
            "a message of topic %s was redelivered to group %s, and came to this client, which does not consume that topic in this group. It is "
            "handed back for another member, and after some hours it is a dead letter of its group. Consume the same topics in every "
            "process of the group, or give the consumers of %s a group of their own; logged once",
            printable(topic), self._group, printable(topic),
        )  # fmt: skip

    def _feed_of(self, message: Message) -> Feed | None:
        feed = self._feeds.get(self.queue.topic) or self._feeds.get(message.topic)
        if feed is not None:
            return feed
        origin = self._dead_letters.origin(message.message_id, self._feeds)
        if origin is not None:
            self._origins[message.offset] = origin
            return self._feeds.get(origin)
        able: set[Feed] = set()
        if message.topic == self.queue.topic:  # sent by a tool directly to the retry topic
            able = set(self._feeds.values())
        elif (
            DLQ_ORIGIN_TOPIC in message.properties
        ):  # was read from a dead-letter topic, and names only its original topic
            able = {feed for topic, feed in self._feeds.items() if topic.startswith("%DLQ%")}
        return able.pop() if len(able) == 1 else None

    async def _stay_at(self, tracker: OffsetTracker, message: Message, why: str) -> None:
        """Log an unusable body, and pull it again after a pause. It is neither delivered nor skipped: damage in transit is gone
        with the next pull, and anything else is for an operator to decide."""
        log.error(
            "the body of message %s, topic %s, queue %d of %s, offset %d, %s"
            " It is neither delivered nor skipped for group %s; it is pulled again in %g s.%s"
            " To skip it, set the group's offset to %d",
            message.message_id, self.queue.topic, self.queue.queue, self.queue.broker, message.offset, why,
            self._group, self._damaged_pause_s, _CHECK_THE_DISK if why == _DAMAGED else "",
            message.offset + 1,
        )  # fmt: skip
        tracker.pulled_up_to(message.offset)
        await asyncio.sleep(self._damaged_pause_s)
        self._damaged_pause_s = min(2 * self._damaged_pause_s, _DAMAGED_PAUSE_MAX_S)

    # --- acknowledgements: see ``Delivery`` -----------------------------------------------------------------

    def ack(self, message: Message) -> None:
        if message.offset in self._again:
            return
        if self._tracker is None or self.released or not self._tracker.done(message.offset):
            log.debug("%r is not open here any more", message)
        self._origins.pop(message.offset, None)
        self._acked.set()

    async def retry(self, message: Message, delay: float | None) -> None:
        await self._send_back(message, 0 if delay is None else delay_level(delay), delay)

    def handling(self, message: Message) -> AbstractContextManager[object]:
        telemetry = self._context.telemetry
        if telemetry is None:
            return _NO_SPAN
        return telemetry.processing(message, self._group, self._context.router.address_of(self.queue.broker))

    def after_failure(self, message: Message) -> str:
        if message.attempt <= self._retries or self.released:
            return "it is delivered again later"
        return f"this attempt was its last, and it goes to the dead-letter queue %DLQ%{self._group}"

    async def reject(self, message: Message) -> None:
        await self._send_back(message, -1)

    async def reply(self, message: Message, reply: OutgoingMessage) -> None:
        # To the broker that had the request: there its requester is connected.
        self._context.refuse_other_loop("this message")
        patient_s = patience_s(message, self._context.clock.wall_ms())
        telemetry = self._context.telemetry
        if telemetry is None:
            await send_reply(self._context, self.queue.broker, self._group, reply, patient_s)
            return
        with telemetry.sending([reply]) as operation:
            operation.answered(self._context.router.address_of(self.queue.broker))
            await send_reply(self._context, self.queue.broker, self._group, operation.outgoing[0], patient_s)

    async def answer(self, work: Coroutine[Any, Any, None], size_bytes: int) -> None:
        await behind(self._context, work, size_bytes)

    async def _send_back(
        self, message: Message, level: int, delay: float | None = None, *, not_consumed: bool = False
    ) -> None:
        """``delay``: exact, seconds, for brokers that know more than levels. ``not_consumed``: no consumer here reads its topic."""
        self._context.refuse_other_loop("this message")
        if self.released:
            self._warn_moved(message, level)
            return
        origin = self._origins.get(message.offset) if self.is_retry else self.queue.topic
        if origin is not None and origin.startswith("%DLQ%"):
            self._dead_letters.handed_back(message.message_id, origin)
        ext = {
            "offset": str(message.log_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(max(self._retries, _ATTEMPTS_OF_OTHERS) if not_consumed else self._retries),
        }
        if delay is not None:
            ext[EXT_DELAY_MS] = str(round(delay * 1000))
        if not_consumed:
            ext[EXT_NOT_CONSUMED] = "true"
            ext[EXT_FAILURE] = (
                f"NotConsumed: group {self._group} has a member that does not consume topic {printable(message.topic)}: "
                f"client {self._context.membership.client_id}"
            )
        elif message._failure:
            ext[EXT_FAILURE] = message._failure
        if message._handled_here:
            ext[EXT_ATTEMPT] = str(message.attempt)
        try:
            await self._hand_back(ext)
        except HalfmqError as error:
            if self.released:
                self._warn_moved(message, level)
                return
            # The broker may have executed it; a duplicate delivery is allowed, a lost message is not.
            log.warning("%r could not be handed back (%s); it is delivered again here", message, error)
            self._again.add(message.offset)
            redelivery_timers.call_later(_LOCAL_RETRY_S, self._deliver, message)
        else:
            self.ack(message)

    def _warn_moved(self, message: Message, level: int) -> None:
        """Warn, once per message, that handing it back has no effect. The broker would accept it, but the new owner of the queue
        receives the message anyway: sending it back too would duplicate it, also in the dead-letter queue.
        """
        if message.offset in self._moved:
            return
        self._moved.add(message.offset)
        log.warning(
            "%r is not %s: its queue was released meanwhile, and the message is delivered again to the queue's new owner",
            message, "rejected" if level < 0 else "handed back",
        )  # fmt: skip

    async def _hand_back(self, ext: dict[str, str]) -> None:
        attempts = self._context.attempts(f"handing back {ext['originMsgId']}")
        while True:
            try:
                connection = await attempts.within(self._context.broker(self.queue.broker))
                answer = await connection.request(
                    RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout_s=attempts.timeout_s()
                )
            except (ConnectError, NotSent, NoAnswer) as error:
                await attempts.lost(error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                return
            # Code 1 means "no such message" and is permanent. On Apache RocketMQ it may be transient; then the message is
            # delivered again here, and may be handed back again.
            await attempts.refused(
                refusal(answer.code, answer.remark, "handing a message back"),
                permanent=answer.code == ResponseCode.SYSTEM_ERROR,
            )

    # --- commits --------------------------------------------------------------------------------------------------

    async def commit(self, connection: Connection, timeout_s: float) -> CommitOutcome:
        """Commit the current offset, if it changed, was not acknowledged, or is due for a repeated commit (``_RECOMMIT_S``).

        Only one commit is in flight, so that an older offset never overwrites a newer one.
        """
        async with self._committing:
            if self._tracker is None:
                return CommitOutcome.NOTHING
            offset = self._tracker.committable
            now_s = asyncio.get_running_loop().time()
            if offset == self._committed and connection is self._committed_at and now_s < self._recommit_at:
                return CommitOutcome.KNOWN
            ext = place(self.queue, consumerGroup=self._group, commitOffset=str(offset))
            try:
                answer = await connection.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext, timeout_s=timeout_s)
            except (NotSent, NoAnswer) as error:
                self._committed_at = None
                log.debug("commit of %s: %s", self.queue, error)
                return CommitOutcome.NO_ANSWER
            if answer.code != ResponseCode.SUCCESS:
                self._committed_at = None
                if answer.code != self._refused_with:
                    log.warning(
                        "commit of offset %d in %s: %d %s; retried until it is accepted, and logged once",
                        offset, self.queue, answer.code, answer.remark,
                    )  # fmt: skip
                self._refused_with = answer.code
                return CommitOutcome.REFUSED
            self._committed, self._committed_at = offset, connection
            self._refused_with = ResponseCode.SUCCESS
            self._recommit_at = now_s + _RECOMMIT_S
            return CommitOutcome.KNOWN

    def joined(self) -> None:
        """A feed was added: continue reading a retry queue that waited because all feeds were closed."""
        self._joined.set()

    def release(self) -> None:
        """The queue is no longer assigned to this member: ignore later acknowledgements."""
        self.released = True
        self._acked.set()


def delay_level(delay_s: float) -> int:
    """The shortest standard delay level of at least ``delay_s`` seconds, or the longest one."""
    for number, level_ms in enumerate(limits.DELAY_LEVELS_MS, 1):
        if level_ms >= delay_s * 1000:
            return number
    return len(limits.DELAY_LEVELS_MS)
