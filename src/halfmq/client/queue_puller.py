"""One queue of a consumer group, while it is ours: where to start, the pull loop, acknowledgements, commits.

The offset that is committed never passes an open message. What is handed to the application and neither acknowledged
nor handed back is delivered again, to whoever owns the queue next.

A pull carries no commit, although it could. RocketMQ handles pulls and commits on different threads and stores what it
handles last (``ConsumerOffsetManager.commitOffset``): the offset in a pull that waits for its thread would undo the
commit that was sent behind it and answered before it, and the last message would come again. So a commit is a request of
its own, and the next one of the queue leaves when it is answered.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.client.allocation import QueueRef
from halfmq.client.connection import Answer, Connection, NoAnswer, NotSent
from halfmq.client.dead_letter_origins import DeadLetterOrigins
from halfmq.client.lanes import Entry, Lanes
from halfmq.client.log import log
from halfmq.client.message import Message
from halfmq.client.offset_tracker import OffsetTracker
from halfmq.client.plumbing import Plumbing
from halfmq.client.refusals import refusal
from halfmq.errors import ConnectError, HalfmqError, MissingDependency, ProtocolError, RequestFailed
from halfmq.model.properties import DLQ_ORIGIN_TOPIC
from halfmq.wire.remoting.codes import PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.heartbeat import Subscription
from halfmq.wire.remoting.message_codec import PulledMessage, split_pull, unpack
from halfmq.wire.remoting.replies import OffsetReply, PulledReply, read_reply

#: How long a broker may hold a pull that finds nothing. Precedent: RocketMQ ``brokerSuspendMaxTimeMillis``.
SUSPEND_MS: Final = 15_000
#: A broker's own precision is 5 s; Java's client waits 30 s in all.
_PULL_TIMEOUT_S: Final = SUSPEND_MS / 1000 + 10.0
_PULL_MESSAGES: Final = 256
#: Open messages of one queue, after which nothing more is pulled from it.
_OPEN_MAX: Final = 10_000
#: Bytes of bodies that wait for the application, unpacked, of all queues together, after which nothing more is pulled and
#: nothing of what was pulled is unpacked: one body may pass it, and what waits for room waits as it came, at most
#: ``limits.PULL_BYTES_MAX`` (or one message) for each queue. Packed bodies may be a thousand times smaller than unpacked ones,
#: so a bound for each queue is none. Precedent: RocketMQ ``pullThresholdSizeForQueue`` = 100 MiB for each queue, packed.
PREFETCH_BYTES: Final = 64 * 1024 * 1024
#: Messages that were handed back and wait for one consumer, after which nothing more is pulled from its group's retry queue,
#: for none of its consumers. Not ``prefetch``: that may be small, and is the business of one.
_RETRIES_MAX: Final = 1_000
#: After a refusal. Precedent: RocketMQ ``pullTimeDelayMillsWhenException``.
_REFUSED_PAUSE_S: Final = 3.0
#: A message whose body is damaged is pulled again after this, and after twice that each time. The first pause is short,
#: since it may have happened on the way.
_DAMAGED_PAUSE_S: Final = 1.0
_DAMAGED_PAUSE_MAX_S: Final = 60.0
_DAMAGED: Final = "is damaged: its CRC differs from the stored one."
_LOOK_AT_THE_DISK: Final = "If it stays so, look at the broker's disk (halfmq store verify), and"
#: A message that could not be handed back is delivered again here after this.
_LOCAL_RETRY_S: Final = 5.0
#: An offset that did not move is committed again after this: the last commit of the member that had the queue before may
#: come late, and undo ours. Precedent: RocketMQ says all offsets each 5 s (``persistConsumerOffsetInterval``).
_SAY_AGAIN_S: Final = 10.0


class Start(NamedTuple):
    """Where a group starts in a queue that it has no offset for. ``at`` only with ``timestamp``."""

    where: str
    at: datetime | None = None


class CommitOutcome(Enum):
    #: The broker has the offset: it took it now, or before on this connection.
    KNOWN = "known"
    #: Nothing was read yet.
    NOTHING = "nothing"
    REFUSED = "refused"
    #: It may have been taken.
    NO_ANSWER = "no answer"


class _Room:
    """How much waits of one kind, and whether more of it may come."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self.is_there = asyncio.Event()
        self.is_there.set()

    def changed(self, messages: int, size: int) -> None:
        """An empty one has room, so that one message always fits."""
        self._messages += messages
        self._bytes += size
        if self._messages < self._messages_max and self._bytes < self._bytes_max:
            self.is_there.set()
        else:
            self.is_there.clear()


class Feed:
    """Messages that wait for the application, of all queues of one consumer, in the order in which they came.

    What comes from a retry queue has room of its own. That queue is read for all consumers of the group: one that stalls
    holds up the retries of the others only when this room is full of retries of its own.
    """

    def __init__(self, prefetch: int, prefetch_bytes: int = PREFETCH_BYTES) -> None:
        self._room = _Room(prefetch, prefetch_bytes)
        self._retry_room = _Room(_RETRIES_MAX, prefetch_bytes)
        self._waiting: deque[Entry[QueuePuller]] = deque()
        #: Where several messages are handled at once, and those of one key in their order. What waits in it is counted here.
        self.lanes: Lanes[QueuePuller] | None = None
        self._arrived = asyncio.Event()
        self.closed = False

    def put(self, puller: "QueuePuller", message: Message) -> None:
        """Closed, it takes none: the message stays open, and so uncommitted, and comes again to the group."""
        if self.closed:
            return
        self._waiting.append(Entry(puller, message))
        self._room_of(puller).changed(1, len(message.body))
        self._arrived.set()

    def put_back(self, message: Message) -> None:
        """It was taken, and never reached the application: it is the next one."""
        puller = message._required_delivery()
        assert isinstance(puller, QueuePuller)
        self.put(puller, message)
        self._waiting.rotate(1)

    def _room_of(self, puller: "QueuePuller") -> _Room:
        return self._retry_room if puller.is_retry else self._room

    def take(self) -> Message | None:
        """The next message that is still ours; None when there is none now, or the feed is closed."""
        message = None
        while self._waiting and message is None:
            entry = self._waiting.popleft()
            if self.lanes is not None and not self.lanes.enter(entry):
                continue
            puller, candidate = entry
            self._room_of(puller).changed(-1, -len(candidate.body))
            if puller.released:
                self.handled(candidate)
            else:
                message = candidate
        if not self._waiting and not self.closed:
            self._arrived.clear()
        return message

    def handled(self, message: Message) -> None:
        """In its lane the next one has its turn."""
        following = None if self.lanes is None else self.lanes.leave(message)
        if following is not None and not self.closed:
            self._waiting.appendleft(following)
            self._arrived.set()

    def again(self, message: Message, after_s: float) -> None:
        """It failed, and keeps its turn: it is the next one of its lane, after a while. Until then it is counted as waiting."""
        puller = message._required_delivery()
        assert isinstance(puller, QueuePuller)
        self._room_of(puller).changed(1, len(message.body))
        asyncio.get_running_loop().call_later(after_s, self._have_again, Entry(puller, message))

    def _have_again(self, entry: "Entry[QueuePuller]") -> None:
        if not self.closed:
            self._waiting.append(entry)  # behind other keys: those that fail shall not keep all others waiting
            self._arrived.set()

    def is_full(self, *, of_retries: bool) -> bool:
        """Nothing more of this kind may come."""
        return not (self._retry_room if of_retries else self._room).is_there.is_set()

    async def arrival(self) -> None:
        """Returns when there may be something, or when the feed is closed."""
        await self._arrived.wait()

    async def room(self) -> None:
        """Returns when a message more may come; of a closed feed never, so whoever waits must be cancelled."""
        await self._room.is_there.wait()

    async def retry_room(self) -> None:
        """The same for retries; of a closed feed at once, since it takes none and others have theirs in the same queue."""
        await self._retry_room.is_there.wait()

    def close(self) -> None:
        self.closed = True
        self._waiting.clear()
        self._arrived.set()
        self._room.is_there.clear()
        self._retry_room.is_there.set()


class QueuePuller:
    """The loop of one queue. ``run`` is a task of the group; ``release`` ends it."""

    def __init__(
        self,
        plumbing: Plumbing,
        group: str,
        queue: QueueRef,
        subscription: Subscription,
        feeds: "dict[str, Feed]",
        dead_letters: DeadLetterOrigins,
        start: Start,
        retries: int,
        rng: random.Random,
        commit_first: "Callable[[QueuePuller], Awaitable[None]] | None" = None,
    ) -> None:
        """``commit_first``: commits where this one starts, if the group has no offset there, before anything is pulled."""
        self.queue = queue
        #: Read for all consumers of the group in this client.
        self.is_retry = queue.topic == f"%RETRY%{group}"
        self.released = False
        self._plumbing = plumbing
        self._group = group
        self._subscription = subscription
        #: By topic; shared with the group, which adds and removes.
        self._feeds = feeds
        #: Shared with the group too.
        self._dead_letters = dead_letters
        #: By offset in a retry queue: the dead-letter topic of what is open.
        self._origins: dict[int, str] = {}
        self._start = start
        self._retries = retries
        self._rng = rng
        self._commit_first = commit_first
        self._tracker: OffsetTracker | None = None
        self._committed = -1
        #: Where that is known: a broker that was started again may have forgotten it.
        self._committed_at: Connection | None = None
        #: On the loop's clock.
        self._say_again_at = 0.0
        #: How the last commit that was answered was refused.
        self._refused_with: int = ResponseCode.SUCCESS
        #: The same for pulls; None: the answer could not be read.
        self._pull_refused_with: int | None = ResponseCode.SUCCESS
        self._committing = asyncio.Lock()
        self._acked = asyncio.Event()
        #: Offsets of messages that came back from the application when the queue was given up.
        self._moved: set[int] = set()
        #: Of those that could not be handed back and are delivered again here: what is said of them meanwhile counts for nothing.
        self._again: set[int] = set()
        #: A feed was added.
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
                if self._commit_first is not None:
                    await self._say_where_it_starts(self._commit_first)
                await self._wait_for_room(self._tracker)
                await self._pull(self._tracker)
                pause_s = 0.1
                self._pull_refused_with = ResponseCode.SUCCESS
            except (ConnectError, NotSent, NoAnswer) as error:
                log.debug("%s: %s; again in %.1f s", self.queue, error, pause_s)
                self._plumbing.router.suspect(self.queue.topic)
                await asyncio.sleep(pause_s * self._rng.uniform(0.7, 1.0))
                pause_s = min(2 * pause_s, 2.0)
            except (RequestFailed, ProtocolError) as error:
                self._say_refused(error)
                await asyncio.sleep(_REFUSED_PAUSE_S)

    def _say_refused(self, error: RequestFailed | ProtocolError) -> None:
        """Once, until it is another refusal or went well meanwhile: some never end."""
        code = error.response_code if isinstance(error, RequestFailed) else None
        if code != self._pull_refused_with:
            log.warning("pulling %s: %s; tried again until it goes well, and said once", self.queue, error)
            if code == ResponseCode.TOPIC_NOT_EXIST:
                self._plumbing.router.forget(self.queue.topic)
        self._pull_refused_with = code

    @property
    def is_without_topic(self) -> bool:
        """The broker said last that there is no such topic."""
        return self._pull_refused_with == ResponseCode.TOPIC_NOT_EXIST

    async def _wait_for_room(self, tracker: OffsetTracker) -> None:
        if self.is_retry:
            await self._wait_for_retry_room()
            while all(feed.closed for feed in self._feeds.values()):  # nobody takes anything until somebody joins
                self._joined.clear()
                await self._joined.wait()
                await self._wait_for_retry_room()
        else:
            await self._feeds[self.queue.topic].room()
        while len(tracker) >= _OPEN_MAX:
            log.warning("%s: %d messages are not acknowledged; nothing more is pulled", self.queue, len(tracker))
            self._acked.clear()
            await self._acked.wait()

    def _has_room(self, tracker: OffsetTracker) -> bool:
        feeds = self._feeds.values() if self.is_retry else filter(None, (self._feeds.get(self.queue.topic),))
        return len(tracker) < _OPEN_MAX and not any(feed.is_full(of_retries=self.is_retry) for feed in feeds)

    async def _wait_for_retry_room(self) -> None:
        for feed in list(self._feeds.values()):
            await feed.retry_room()

    async def _ask(self, code: int, ext: dict[str, str], timeout_s: float = 3.0) -> Answer:
        connection = await self._plumbing.broker(self.queue.broker)
        return await connection.request(code, ext, timeout_s=timeout_s)

    def _where(self, **more: str) -> dict[str, str]:
        return {"topic": self.queue.topic, "queueId": str(self.queue.queue), **more}

    async def _first_offset(self) -> int:
        """The group's offset, which needs no first commit; for a queue without one, where ``start`` says. A retry queue starts
        at its beginning.
        """
        answer = await self._ask(
            RequestCode.QUERY_CONSUMER_OFFSET, self._where(consumerGroup=self._group, setZeroIfNotFound="false")
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            code, ext = self._start_question()
            answer = await self._ask(code, ext)
        elif answer.code == ResponseCode.SUCCESS:
            self._commit_first = None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark or "", f"first offset of {self.queue}")
        return read_reply(answer, OffsetReply).offset

    def _start_question(self) -> tuple[int, dict[str, str]]:
        if self._start.where == "earliest" or self.queue.topic.startswith("%RETRY%"):
            return RequestCode.GET_MIN_OFFSET, self._where()
        if self._start.at is not None:
            timestamp = str(round(self._start.at.timestamp() * 1000))
            return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self._where(timestamp=timestamp)
        return RequestCode.GET_MAX_OFFSET, self._where()

    async def _say_where_it_starts(self, commit_first: "Callable[[QueuePuller], Awaitable[None]]") -> None:
        """Else only this member knows: whoever comes when it is killed would start behind messages that the group was given.

        A broker that refuses the commit is pulled from all the same, since it may refuse for ever; that is said, and tried
        again with the other commits. One that does not answer is asked again first.
        """
        await commit_first(self)
        if self._committed < 0 and self._refused_with == ResponseCode.SUCCESS:
            raise NoAnswer("where the group starts is not committed yet")
        self._commit_first = None

    async def _pull(self, tracker: OffsetTracker) -> None:
        ext = self._where(
            consumerGroup=self._group,
            queueOffset=str(tracker.next_offset),
            maxMsgNums=str(_PULL_MESSAGES),
            maxMsgBytes=str(limits.PULL_BYTES_MAX),
            sysFlag=str(int(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)),
            commitOffset="0",  # a stock broker wants the field; without its flag it means nothing
            suspendTimeoutMillis=str(SUSPEND_MS),
            subscription=self._subscription.expression,
            subVersion=str(self._subscription.version),
            expressionType=self._subscription.expression_type,
        )
        answer = await self._ask(RequestCode.PULL_MESSAGE, ext, _PULL_TIMEOUT_S)
        match answer.code:
            case ResponseCode.SUCCESS:
                pulled, following = split_pull(answer.body), read_reply(answer, PulledReply).next_begin_offset
                answer.body = b""  # what follows may wait long
                unusable = await self._take(tracker, pulled)
                if unusable is not None:
                    await self._stay_at(tracker, *unusable)
                else:
                    self._damaged_pause_s = _DAMAGED_PAUSE_S
                    tracker.pulled_up_to(following)
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                tracker.pulled_up_to(read_reply(answer, PulledReply).next_begin_offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                offset = read_reply(answer, PulledReply).next_begin_offset
                log.warning("%s: offset %d is gone, going on at %d", self.queue, tracker.next_offset, offset)
                tracker.restart(offset)
                self._origins.clear()
            case ResponseCode.FLOW_CONTROL | ResponseCode.SYSTEM_BUSY:
                await asyncio.sleep(0.1)
            case ResponseCode.GO_AWAY:
                raise NoAnswer("the broker is stopping")
            case _:
                raise refusal(answer.code, answer.remark or "", f"pull of {self.queue}")

    async def _take(self, tracker: OffsetTracker, pulled: list[PulledMessage]) -> tuple[Message, str] | None:
        """Hand them to the feeds, up to the first one whose body cannot be used: that one is returned, and why.

        Each is unpacked when there is room for it, and not before: the pulls of other queues were answered meanwhile too.
        """
        wanted = self._subscription.tags
        for packed in pulled:
            message = Message(packed.message, packed.log_offset, packed.message.body, self)
            # The broker filters by hash; two tags may share one.
            if wanted and message.tag not in wanted:
                continue
            if not packed.whole:
                return message, _DAMAGED
            # What came before it may be committed, also while this one waits.
            tracker.pulled_up_to(message.offset)
            while not self._has_room(tracker):  # when some is made, all queues wake, and one of them takes it
                await self._wait_for_room(tracker)
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
        """To the consumer of its topic. A message that was handed back by a consumer that is gone, or by another member, whose
        topic nobody here consumes, goes back: acknowledged by another one it would be lost to its own.
        """
        self._again.discard(message.offset)
        if self.released:
            return  # whoever has the queue is given it
        feed = self._feed_of(message)
        if feed is not None:
            feed.put(self, message)
            return
        log.warning("%r came back for a topic that nobody here consumes; handed back", message)
        task = asyncio.get_running_loop().create_task(self.retry(message, None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _feed_of(self, message: Message) -> Feed | None:
        feed = self._feeds.get(self.queue.topic) or self._feeds.get(message.topic)
        if feed is not None:
            return feed
        origin = self._dead_letters.origin(message.message_id, self._feeds)
        if origin is not None:
            self._origins[message.offset] = origin
            return self._feeds.get(origin)
        able: set[Feed] = set()
        if message.topic == self.queue.topic:  # some tool put it there, and it names no topic
            able = set(self._feeds.values())
        elif DLQ_ORIGIN_TOPIC in message.properties:  # read as a dead letter; it still names the topic before that
            able = {feed for topic, feed in self._feeds.items() if topic.startswith("%DLQ%")}
        return able.pop() if len(able) == 1 else None

    async def _stay_at(self, tracker: OffsetTracker, message: Message, why: str) -> None:
        """Say that a body cannot be used, and pull it again after a while. It is neither handed out nor passed: what to do with
        it is for people to decide, and a copy that is damaged only on its way is whole the next time."""
        log.error(
            "the body of message %s, topic %s, queue %d of %s, offset %d, %s"
            " It is not handed out, and group %s does not pass it; pulled again in %g s. %s"
            " set the group's offset to %d to go on without it",
            message.message_id, self.queue.topic, self.queue.queue, self.queue.broker, message.offset, why,
            self._group, self._damaged_pause_s, _LOOK_AT_THE_DISK if why == _DAMAGED else "If it stays so,",
            message.offset + 1,
        )  # fmt: skip
        tracker.pulled_up_to(message.offset)
        await asyncio.sleep(self._damaged_pause_s)
        self._damaged_pause_s = min(2 * self._damaged_pause_s, _DAMAGED_PAUSE_MAX_S)

    # --- what the application says --------------------------------------------------------------------------------

    def ack(self, message: Message) -> None:
        if message.offset in self._again:
            return
        if self._tracker is None or self.released or not self._tracker.done(message.offset):
            log.debug("%r is not open here any more", message)
        self._origins.pop(message.offset, None)
        self._acked.set()

    async def retry(self, message: Message, delay: float | None) -> None:
        await self._send_back(message, 0 if delay is None else delay_level(delay))

    async def reject(self, message: Message) -> None:
        await self._send_back(message, -1)

    async def _send_back(self, message: Message, level: int) -> None:
        if self.released:
            self._say_moved(message, level)
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
            "maxReconsumeTimes": str(self._retries),
        }
        try:
            await self._hand_back(ext)
        except HalfmqError as error:
            if self.released:
                self._say_moved(message, level)
                return
            # Perhaps it was done; delivering it again here as well is the safe side of "at least once".
            log.warning("%r could not be handed back (%s); it is delivered again here", message, error)
            self._again.add(message.offset)
            asyncio.get_running_loop().call_later(_LOCAL_RETRY_S, self._deliver, message)
        else:
            self.ack(message)

    def _say_moved(self, message: Message, level: int) -> None:
        """The broker would still take it, but who has the queue now is given the message anyway, and says of it what this one
        did: sent as well, it would be there twice, and twice among the dead letters. Said once for each.
        """
        if message.offset in self._moved:
            return
        self._moved.add(message.offset)
        log.warning(
            "%r is not %s: its queue was given up meanwhile, and the message is delivered again to whoever has the queue",
            message, "rejected" if level < 0 else "handed back",
        )  # fmt: skip

    async def _hand_back(self, ext: dict[str, str]) -> None:
        attempts = self._plumbing.attempts(f"handing back {ext['originMsgId']}")
        while True:
            try:
                connection = await attempts.within(self._plumbing.broker(self.queue.broker))
                answer = await connection.request(
                    RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout_s=attempts.timeout_s()
                )
            except (ConnectError, NotSent, NoAnswer) as error:
                await attempts.lost(error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                return
            # 1: no such message, which asking again does not change. An Apache RocketMQ broker may mean something that does;
            # then it is delivered again here, and handed back again.
            await attempts.refused(
                refusal(answer.code, answer.remark or "", "handing a message back"),
                stays=answer.code == ResponseCode.SYSTEM_ERROR,
            )

    # --- commits --------------------------------------------------------------------------------------------------

    async def commit(self, connection: Connection, timeout_s: float) -> CommitOutcome:
        """Tell the broker what is done, if it does not know. Without an answer in ``timeout_s`` the next call says it again;
        and now and then, since another member's word may have come behind ours.

        Never two at once: an older one must not arrive behind a newer one.
        """
        async with self._committing:
            if self._tracker is None:
                return CommitOutcome.NOTHING
            offset = self._tracker.committable
            now_s = asyncio.get_running_loop().time()
            if offset == self._committed and connection is self._committed_at and now_s < self._say_again_at:
                return CommitOutcome.KNOWN
            ext = self._where(consumerGroup=self._group, commitOffset=str(offset))
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
                        "commit of offset %d in %s: %d %s; tried again until it is taken, and said once",
                        offset, self.queue, answer.code, answer.remark,
                    )  # fmt: skip
                self._refused_with = answer.code
                return CommitOutcome.REFUSED
            self._committed, self._committed_at = offset, connection
            self._refused_with = ResponseCode.SUCCESS
            self._say_again_at = now_s + _SAY_AGAIN_S
            return CommitOutcome.KNOWN

    def joined(self) -> None:
        """A feed was added. A retry queue whose readers are all closed, and have not left yet, is read again for it."""
        self._joined.set()

    def release(self) -> None:
        """Not ours any more: acknowledgements that come later mean nothing."""
        self.released = True
        self._acked.set()


def delay_level(delay_s: float) -> int:
    """The first standard level that is not shorter than ``delay_s`` seconds; the longest for more."""
    for number, level_ms in enumerate(limits.DELAY_LEVELS_MS, 1):
        if level_ms >= delay_s * 1000:
            return number
    return len(limits.DELAY_LEVELS_MS)
