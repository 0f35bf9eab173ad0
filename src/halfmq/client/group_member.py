"""Membership of this client in one consumer group: rebalancing, and the tasks that read the assigned queues.

Every member computes its assignment from the same route and member list with the same algorithm, so members agree without
communicating, Java members included. A rebalance runs at the start, every 20 s, when the broker reports a membership change
(request 40) and after a reconnect.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.dead_letter_origins import DeadLetterOrigins
from halfmq.client.log import log
from halfmq.client.queue_puller import CommitOutcome, Feed, QueuePuller
from halfmq.client.routing import QueueRef, Route, allocate
from halfmq.client.start_position import EARLIEST, Start, TopicStart, fix_start
from halfmq.client.user_code import spawn
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, TopicNotFound, UsageError
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import decode_member_list
from halfmq.wire.remoting.heartbeat import ConsumerGroup, Subscription, tags_of

#: Precedent: RocketMQ ``RebalanceService``.
REBALANCE_S: Final = 20.0
#: First retry interval while a rebalance is incomplete (a topic does not exist yet, a broker does not respond), seconds.
_UNSETTLED_S: Final = 1.0
#: How long brokers may not list a member whose heartbeat may be in flight, seconds; after that it is logged, at most every
#: ``_UNLISTED_LOGGED_S``.
_UNLISTED_S: Final = 1.0
_UNLISTED_LOGGED_S: Final = 60.0
#: Interval of offset commits, seconds.
COMMIT_S: Final = 1.0
_COMMIT_TIMEOUT_S: Final = 3.0
_LEAVE_TIMEOUT_S: Final = 1.0
_CONSUME_FROM: Final = {
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class _CommitTarget:
    """Commit state of one topic on one broker; see ``GroupMember._commit_in``."""

    def __init__(self) -> None:
        #: The connection on which a commit succeeded; after a restart the broker may have lost it.
        self.committed_on: Connection | None = None
        self.first = asyncio.Lock()


class GroupMember:
    """One per group and client. Consumers subscribe and unsubscribe; when the last one unsubscribes, it leaves the group."""

    def __init__(self, context: ClientContext, group: str, start: Start, retries: int) -> None:
        self.group = group
        self.start = start
        self.retries = retries
        self._context = context
        self._retry_topic = f"%RETRY%{group}"
        #: By topic, the retry topic included.
        self._subscriptions: dict[str, Subscription] = {}
        #: By topic, without the retry topic.
        self._feeds: dict[str, Feed] = {}
        self._dead_letters = DeadLetterOrigins()
        self._pullers: dict[QueueRef, tuple[QueuePuller, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: Releases in progress. They run to completion even if the caller is cancelled; otherwise the group would keep a member
        #: that reads nothing.
        self._ending: set[asyncio.Task[None]] = set()
        #: Released queues whose final commit is pending. Not taken again before it, or they would start at an old offset.
        self._releasing: set[QueueRef] = set()
        #: By broker and topic.
        self._commit_targets: dict[tuple[str, str], _CommitTarget] = {}
        self._missing: set[str] = set()
        #: Topics of redelivered messages that have no consumer here, which is logged once.
        self._not_consumed: set[str] = set()
        #: By topic, without the retry topic. Queues of a topic that is missing here are not taken yet: its start is being fixed.
        self._starts: dict[str, TopicStart] = {}
        #: False: a broker answers, and does not take this client as a member; the consumers get nothing of its queues.
        self.is_listed = True
        #: Since when not, and when that is logged again; on the loop's clock.
        self._unlisted_from: float | None = None
        self._log_unlisted_from = 0.0

    def refuse_other_loop(self) -> None:
        """Raise UsageError in a coroutine of another event loop than the client's."""
        self._context.refuse_other_loop("this consumer")

    @property
    def is_idle(self) -> bool:
        """It has no consumer."""
        return not self._feeds

    @property
    def is_leaving(self) -> bool:
        """Its last consumer has unsubscribed, and the leave requests are not finished."""
        return self.is_idle and bool(self._ending)

    def assigned(self) -> list[QueueRef]:
        """The queues assigned to this member now."""
        return sorted(self._pullers)

    # --- subscriptions --------------------------------------------------------------------------------------------

    async def subscribe(self, topics: "tuple[str, ...]", tags: str, feed: Feed) -> None:
        """Subscribe ``feed`` to ``topics``, and announce it to every broker. Do not call it on a member that became idle.

        Raises:
            UsageError: this client already consumes one of them in this group.
        """
        for topic in topics:
            if topic in self._feeds:
                raise UsageError(f"group {self.group} consumes topic {topic} in this client already")
        version = self._context.clock.wall_ms()
        for topic in topics:
            self._subscriptions[topic] = Subscription(topic, tags, tags_of(tags), version)
            self._feeds[topic] = feed
        for puller, _ in self._pullers.values():
            puller.joined()
        self._subscriptions[self._retry_topic] = Subscription(self._retry_topic, "*", (), version)
        try:
            await self._announce()
            await asyncio.gather(*(self._fix_start(topic, feed) for topic in topics))
        except BaseException:
            self._give_up(topics)
            raise
        if not self.is_idle and not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._rebalance_loop()), loop.create_task(self._commit_loop())]
        self.rebalance_soon()

    async def _fix_start(self, topic: str, feed: Feed) -> None:
        """After the announcement: a broker takes offsets of members only."""
        start = TopicStart({}, EARLIEST)
        if self.start != EARLIEST:
            start = await fix_start(self._context, self.group, topic, self.start, self._members)
        if self._feeds.get(topic) is feed:  # not given up meanwhile
            self._starts[topic] = start

    async def unsubscribe(self, topics: "tuple[str, ...]") -> None:
        """Release ``topics`` after a final commit. With the last topic it leaves the group, so that others take over at once.

        If cancelled, it continues in the background; ``close`` waits for it.
        """
        await asyncio.shield(self._give_up(topics))

    def _give_up(self, topics: "tuple[str, ...]") -> "asyncio.Task[None]":
        for topic in topics:
            self._subscriptions.pop(topic, None)
            self._feeds.pop(topic, None)
            self._starts.pop(topic, None)
        if self.is_idle:
            self._subscriptions.clear()  # a running rebalance takes no more queues
        # The retry queues are released too, so that their buffered messages of these topics are pulled again by a member
        # that has a consumer for them.
        given_up = {*topics, self._retry_topic}
        self._release([queue for queue in self._pullers if queue.topic in given_up])
        return self._run_to_completion(self._finish_give_up(self.is_idle, set(self._ending)))

    async def _finish_give_up(self, is_last: bool, before: "set[asyncio.Task[None]]") -> None:
        await asyncio.wait(before)  # commit first: the next owner starts at the committed offset
        if is_last:
            await self._leave()
        elif not self.is_idle:  # otherwise the last unsubscribe, which waits for this one, announces it
            await self._announce()

    async def close(self) -> None:
        """Release everything, end all iterations, and wait for pending releases."""
        for feed in set(self._feeds.values()):
            feed.close()
        if not self.is_idle:
            self._give_up(tuple(self._feeds))
        await self.ended()

    async def ended(self) -> None:
        """Wait until all releases are finished."""
        while self._ending:
            await asyncio.wait(self._ending)

    def _run_to_completion(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return spawn(self._ending, work, f"giving up queues of group {self.group} failed")

    async def _announce(self) -> None:
        context = self._context
        consumer = ConsumerGroup(
            self.group,
            "CONSUME_PASSIVELY",
            "CLUSTERING",
            _CONSUME_FROM[self.start.where],
            tuple(self._subscriptions[topic] for topic in sorted(self._subscriptions)),
        )
        context.membership.set_consumer(consumer)
        for connection in context.brokers.established():
            try:
                await context.membership.heartbeat(connection)
            except (NotSent, NoAnswer) as error:
                log.debug("heartbeat to %s: %s", connection.address, error)

    async def _leave(self) -> None:
        context = self._context
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        context.membership.remove_consumer(self.group)
        for connection in context.brokers.established():
            try:
                await context.membership.leave_consumer(connection, self.group, _LEAVE_TIMEOUT_S)
            except (NotSent, NoAnswer) as error:
                log.debug("leaving group %s at %s: %s", self.group, connection.address, error)

    # --- rebalance ------------------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Trigger a rebalance: members or connections changed."""
        self._wake.set()

    async def _rebalance_loop(self) -> None:
        unsettled_s = _UNSETTLED_S
        while True:
            self._wake.clear()
            if self._unlisted_from is not None and not self.is_idle:
                await self._announce()  # its group may have been created
            if await self._rebalance():
                pause_s, unsettled_s = REBALANCE_S, _UNSETTLED_S
            else:
                pause_s, unsettled_s = unsettled_s, min(unsettled_s * 1.5, REBALANCE_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                unsettled_s = _UNSETTLED_S
            except TimeoutError:
                pass  # periodic rebalance, in case a notification was lost

    async def _rebalance(self) -> bool:
        """Rebalance every topic. True: all assignments are complete."""
        settled = True
        for topic in sorted(self._subscriptions):
            if topic not in self._starts and topic != self._retry_topic:
                continue  # ``subscribe`` triggers the next rebalance
            try:
                settled = await self._rebalance_topic(topic) and settled
                self._missing.discard(topic)
            except TopicNotFound:
                settled = False
                if topic in self._starts:
                    self._starts[topic] = TopicStart({}, EARLIEST)  # what is created from now on is new
                self._release_deleted(topic)
                if topic not in self._missing and topic != self._retry_topic:
                    self._missing.add(topic)
                    log.info("topic %s does not exist yet; group %s waits for it", topic, self.group)
            except (ConnectError, NotSent, NoAnswer, RequestFailed, ProtocolError) as error:
                settled = False
                log.debug("rebalance of %s/%s: %s", self.group, topic, error)
            except Exception:  # noqa: BLE001 - whatever it is: logged and tried again, or the consumer goes silent
                settled = False
                log.exception("rebalance of %s/%s failed", self.group, topic)
        return settled

    def _release_deleted(self, topic: str) -> None:
        """No name server knows ``topic``. Release its queues only if its broker reports it missing too: the name servers may
        have been restarted."""
        gone = [
            queue for queue, (puller, _) in self._pullers.items() if queue.topic == topic and puller.is_without_topic
        ]
        if gone:
            log.warning("topic %s no longer exists; group %s releases %s, and waits for it", topic, self.group, gone)
            self._release(gone)

    async def _rebalance_topic(self, topic: str) -> bool:
        """False: the broker does not list this client as a member yet; its heartbeat may be in flight."""
        route = await self._context.router.route(topic, max_age_s=REBALANCE_S / 2)
        for address in route.brokers.values():
            await self._context.brokers.get(address)  # the first heartbeat registers this client at each broker
        client_id = self._context.membership.client_id
        try:
            members = await self._members(route)
        except RequestFailed as error:
            if error.response_code == ResponseCode.SYSTEM_ERROR:  # it has no member at all
                self._note_listed(False, str(error))
            raise
        self._note_listed(client_id in members, f"it lists {len(members)} others")
        mine = set(allocate(route.readable, members, client_id))
        gone = [queue for queue in self._pullers if queue.topic == topic and queue not in mine]
        if gone:
            log.info("group %s gives up %s", self.group, gone)
            self._release(gone)
        for queue in sorted(mine - self._pullers.keys() - self._releasing):
            self._take_up(queue)
        return client_id in members

    def _note_listed(self, is_listed: bool, why: str) -> None:
        if is_listed:
            self.is_listed, self._unlisted_from = True, None
            return
        now = asyncio.get_running_loop().time()
        if self._unlisted_from is None:
            self._unlisted_from = now
        self.is_listed = now - self._unlisted_from < _UNLISTED_S
        if not self.is_listed and now >= self._log_unlisted_from:
            self._log_unlisted_from = now + _UNLISTED_LOGGED_S
            log.warning(
                "consumers of group %s get no messages: the broker does not take them as members (%s). If the group does not exist "
                "there and is not created on first use (halfmq serve --no-auto-create-groups; RocketMQ: "
                "autoCreateSubscriptionGroup=false), create it: halfmq group release %s, or mqadmin updateSubGroup",
                self.group, why, self.group,
            )  # fmt: skip

    async def _members(self, route: Route) -> tuple[str, ...]:
        ext = {"consumerGroup": self.group}
        failure: Exception | None = None
        for address in route.brokers.values():
            try:
                connection = await self._context.brokers.get(address)
                answer = await connection.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
            except (ConnectError, NotSent, NoAnswer) as error:
                failure = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                return decode_member_list(answer.body)
            failure = RequestFailed(f"members of {self.group}: {answer.remark}", response_code=answer.code)
        raise failure or ConnectError(f"topic {route.topic} has no broker")

    def _take_up(self, queue: QueueRef) -> None:
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            return
        log.info("group %s starts to consume %s", self.group, queue)
        topic_start = self._starts.get(queue.topic)
        start = EARLIEST if topic_start is None else topic_start.of(queue)
        # The next owner can find the earliest offset by itself, but not another start.
        commit_start = None if self.start == EARLIEST or queue.topic == self._retry_topic else self._commit_one
        puller = QueuePuller(
            self._context,
            self.group,
            queue,
            subscription,
            self._feeds,
            self._dead_letters,
            start,
            self.retries,
            self._not_consumed,
            commit_start,
        )
        self._pullers[queue] = puller, asyncio.get_running_loop().create_task(self._run(puller))

    async def _run(self, puller: QueuePuller) -> None:
        try:
            await puller.run()
        except Exception:  # noqa: BLE001 - the application's code or a bug; logged, and the service goes on
            # A bug here must not leave the queue silently unread.
            log.exception("the reader of %s failed; it is started anew", puller.queue)
            await asyncio.sleep(_UNSETTLED_S)
            self._pullers.pop(puller.queue, None)
            puller.release()
            self.rebalance_soon()

    def _release(self, queues: list[QueueRef]) -> None:
        """Stop reading ``queues`` and commit their offsets; buffered messages are delivered again to the next owner."""
        released = [self._pullers.pop(queue) for queue in queues]
        self._releasing.update(queues)
        for _, task in released:
            task.cancel()
        self._run_to_completion(self._last_commit([puller for puller, _ in released]))

    async def _last_commit(self, released: list[QueuePuller]) -> None:
        try:
            await self._commit(released, _LEAVE_TIMEOUT_S)
        finally:
            for puller in released:
                puller.release()
                self._releasing.discard(puller.queue)
            self.rebalance_soon()  # queues in ``_releasing`` were skipped until now

    # --- offsets --------------------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()

    async def commit(self) -> None:
        """Commit the offsets that changed. Returns when the brokers have responded or timed out."""
        await self._commit([puller for puller, _ in self._pullers.values()], _COMMIT_TIMEOUT_S)

    async def _commit_one(self, puller: QueuePuller) -> None:
        await self._commit([puller], _COMMIT_TIMEOUT_S)

    async def _commit(self, pullers: list[QueuePuller], timeout_s: float) -> None:
        queues: dict[tuple[str, str], list[QueuePuller]] = {}
        for puller in pullers:
            queues.setdefault((puller.queue.broker, puller.queue.topic), []).append(puller)
        await asyncio.gather(*(self._commit_in(where, waiting, timeout_s) for where, waiting in queues.items()))

    async def _commit_in(self, where: tuple[str, str], waiting: list[QueuePuller], timeout_s: float) -> None:
        """Commit the queues of one topic on one broker: the first one alone, then the others concurrently.

        An Apache RocketMQ broker handles commits on several threads, and keeps only one of the first commits of a group and
        topic that it handles concurrently (``ConsumerOffsetManager.commitOffset``; apache/rocketmq #10700, #10988), so that
        messages of the other queues were redelivered. If the broker does not respond to the first commit, the others are
        skipped. If it rejects it (disk full), the others are sent concurrently all the same: at worst that costs a
        redelivery, while one at a time would delay leaving the group by one response for each queue.
        """
        place = self._commit_targets.setdefault(where, _CommitTarget())
        async with place.first:
            connection = self._context.established(where[0])
            if connection is None:
                return
            while waiting and place.committed_on is not connection:
                match await waiting.pop().commit(connection, timeout_s):
                    case CommitOutcome.KNOWN:
                        place.committed_on = connection
                    case CommitOutcome.REFUSED:
                        break
                    case CommitOutcome.NO_ANSWER:
                        return
                    case CommitOutcome.NOTHING:
                        pass
        await asyncio.gather(*(puller.commit(connection, timeout_s) for puller in waiting))
