"""This client as a member of one consumer group: which queues are ours, and the tasks that read them.

Every member decides alone, from the same route and the same member list, by the same rule; so members agree without
talking to each other, Java members included. Decided anew every 20 s, when the broker says that members changed (40),
after a reconnect, and at the start.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from halfmq.client.allocation import QueueRef, allocate
from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.dead_letter_origins import DeadLetterOrigins
from halfmq.client.log import log
from halfmq.client.plumbing import Plumbing
from halfmq.client.queue_puller import CommitOutcome, Feed, QueuePuller, Start
from halfmq.client.routing import Route
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, TopicNotFound, UsageError
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import decode_member_list
from halfmq.wire.remoting.heartbeat import ConsumerGroup, Subscription, tags_of

#: Precedent: RocketMQ ``RebalanceService``.
REBALANCE_S: Final = 20.0
#: While something is missing (a topic that does not exist yet, a broker that does not answer) it is tried sooner.
_UNSETTLED_S: Final = 1.0
#: Offsets are committed this often when they moved.
COMMIT_S: Final = 1.0
_COMMIT_TIMEOUT_S: Final = 3.0
_LEAVE_TIMEOUT_S: Final = 1.0
#: As long as one question to a name server may take.
_SEE_TIMEOUT_S: Final = 3.0
_FROM_WHERE: Final = {
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class _Place:
    """One topic on one broker, as a place for offsets."""

    def __init__(self) -> None:
        #: Where a commit was taken; a broker that was started again may have forgotten it.
        self.told_on: Connection | None = None
        self.first = asyncio.Lock()


class GroupMember:
    """One per group and client. Consumers subscribe and unsubscribe; the last one to go ends it."""

    def __init__(self, plumbing: Plumbing, group: str, start: Start, retries: int) -> None:
        self.group = group
        self.start = start
        self.retries = retries
        self._plumbing = plumbing
        self._retry_topic = f"%RETRY%{group}"
        #: By topic, the retry topic included.
        self._subscriptions: dict[str, Subscription] = {}
        #: By topic, without the retry topic.
        self._feeds: dict[str, Feed] = {}
        self._dead_letters = DeadLetterOrigins()
        self._pullers: dict[QueueRef, tuple[QueuePuller, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: What goes on to its end whoever is cancelled: half-way, the group would count on a member that nobody reads.
        self._ending: set[asyncio.Task[None]] = set()
        #: Given up, and not committed yet: taken up again only then, or it would start where the group was before.
        self._releasing: set[QueueRef] = set()
        #: By broker and topic.
        self._places: dict[tuple[str, str], _Place] = {}
        self._missing: set[str] = set()
        #: By topic: the queues that it had when this member took it up. What comes later holds nothing from before.
        self._at_first: dict[str, frozenset[QueueRef]] = {}

    @property
    def is_idle(self) -> bool:
        return not self._feeds

    @property
    def is_leaving(self) -> bool:
        """Its last consumer is gone, and the brokers are being told."""
        return self.is_idle and bool(self._ending)

    def assigned(self) -> list[QueueRef]:
        """The queues that are ours now."""
        return sorted(self._pullers)

    # --- subscriptions --------------------------------------------------------------------------------------------

    async def subscribe(self, topics: "tuple[str, ...]", tags: str, feed: Feed) -> None:
        """Take up ``topics``; tells every broker at once. Not for a member that was idle: its end may be under way.

        Raises:
            UsageError: this client consumes one of them with this group already.
        """
        for topic in topics:
            if topic in self._feeds:
                raise UsageError(f"group {self.group} consumes topic {topic} in this client already")
        version = self._plumbing.clock.wall_ms()
        for topic in topics:
            self._subscriptions[topic] = Subscription(topic, tags, tags_of(tags), version)
            self._feeds[topic] = feed
        for puller, _ in self._pullers.values():
            puller.joined()
        self._subscriptions[self._retry_topic] = Subscription(self._retry_topic, "*", (), version)
        try:
            if self.start.where != "earliest":
                await self._see_what_is_there(topics, feed)
            if not self.is_idle:  # else it was closed meanwhile
                await self._announce()
        except BaseException:
            self._give_up(topics)
            raise
        if not self.is_idle and not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._rebalance_loop()), loop.create_task(self._commit_loop())]
        self.rebalance_soon()

    async def _see_what_is_there(self, topics: "tuple[str, ...]", feed: Feed) -> None:
        """Before ``subscribe`` returns: what the application makes from then on, it wants to read from its beginning.

        Where nobody tells in time, the first rebalance that is told sees what is there.
        """

        async def see(topic: str) -> None:
            try:
                there = frozenset((await self._plumbing.router.route(topic, max_age_s=0)).readable)
            except TopicNotFound:
                there = frozenset()
            except (ConnectError, RequestFailed, ProtocolError) as error:
                log.debug("what is there of %s/%s: %s", self.group, topic, error)
                return
            if self._feeds.get(topic) is feed:  # not given up meanwhile
                self._at_first[topic] = there

        try:
            async with asyncio.timeout(_SEE_TIMEOUT_S):
                await asyncio.gather(*(see(topic) for topic in topics))
        except TimeoutError:
            log.debug("what is there of %s: no answer yet", self.group)

    async def unsubscribe(self, topics: "tuple[str, ...]") -> None:
        """Give ``topics`` up: commits, and with the last topic leaves the group so that others take over at once.

        Cancelled, it goes on in the background; ``close`` waits for it.
        """
        await asyncio.shield(self._give_up(topics))

    def _give_up(self, topics: "tuple[str, ...]") -> "asyncio.Task[None]":
        for topic in topics:
            self._subscriptions.pop(topic, None)
            self._feeds.pop(topic, None)
            self._at_first.pop(topic, None)
        if self.is_idle:
            self._subscriptions.clear()  # a rebalance under way takes nothing up any more
        # The retry queues are released too: what waits here of these topics must be pulled anew by whoever has a reader.
        given_up = {*topics, self._retry_topic}
        self._release([queue for queue in self._pullers if queue.topic in given_up])
        return self._to_its_end(self._tell_given_up, self.is_idle, set(self._ending))

    async def _tell_given_up(self, is_last: bool, before: "set[asyncio.Task[None]]") -> None:
        await asyncio.wait(before)  # whoever takes the queues over starts at what is committed
        if is_last:
            await self._leave()
        elif not self.is_idle:  # else the last one, which waits for this one, tells
            await self._announce()

    async def close(self) -> None:
        """Give everything up, and wait for what others gave up; open iterations end."""
        for feed in set(self._feeds.values()):
            feed.close()
        if not self.is_idle:
            self._give_up(tuple(self._feeds))
        await self.ended()

    async def ended(self) -> None:
        """Nothing that was given up waits for a broker any more."""
        while self._ending:
            await asyncio.wait(self._ending)

    def _to_its_end(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work(*arguments))  # raises first where no loop runs any more
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._ending.discard(task)
        if not task.cancelled() and task.exception() is not None:  # whoever waited may be gone
            log.error("giving up queues of group %s failed", self.group, exc_info=task.exception())

    async def _announce(self) -> None:
        plumbing = self._plumbing
        consumer = ConsumerGroup(
            self.group,
            "CONSUME_PASSIVELY",
            "CLUSTERING",
            _FROM_WHERE[self.start.where],
            tuple(self._subscriptions[topic] for topic in sorted(self._subscriptions)),
        )
        plumbing.membership.set_consumer(consumer)
        for connection in plumbing.brokers.established():
            try:
                await plumbing.membership.heartbeat(connection)
            except (NotSent, NoAnswer) as error:
                log.debug("heartbeat to %s: %s", connection.address, error)

    async def _leave(self) -> None:
        plumbing = self._plumbing
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        plumbing.membership.remove_consumer(self.group)
        for connection in plumbing.brokers.established():
            try:
                await plumbing.membership.leave_consumer(connection, self.group, _LEAVE_TIMEOUT_S)
            except (NotSent, NoAnswer) as error:
                log.debug("leaving group %s at %s: %s", self.group, connection.address, error)

    # --- rebalance ------------------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Members or connections changed."""
        self._wake.set()

    async def _rebalance_loop(self) -> None:
        unsettled_s = _UNSETTLED_S
        while True:
            self._wake.clear()
            if await self._rebalance():
                pause_s, unsettled_s = REBALANCE_S, _UNSETTLED_S
            else:
                pause_s, unsettled_s = unsettled_s, min(unsettled_s * 1.5, REBALANCE_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                unsettled_s = _UNSETTLED_S
            except TimeoutError:
                pass  # nobody woke it: a look now and then finds what was not told

    async def _rebalance(self) -> bool:
        """True when every topic has its decision."""
        settled = True
        for topic in sorted(self._subscriptions):
            try:
                settled = await self._rebalance_topic(topic) and settled
                self._missing.discard(topic)
            except TopicNotFound:
                settled = False
                self._at_first[topic] = frozenset()
                self._let_go(topic)
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

    def _let_go(self, topic: str) -> None:
        """No name server knows ``topic``. They may have been started anew; its broker knows whether it was deleted."""
        gone = [
            queue for queue, (puller, _) in self._pullers.items() if queue.topic == topic and puller.is_without_topic
        ]
        if gone:
            log.warning("topic %s is gone; group %s gives up %s, and waits for it", topic, self.group, gone)
            self._release(gone)

    async def _rebalance_topic(self, topic: str) -> bool:
        """False: the broker does not count us among the members; our heartbeat may be on its way."""
        route = await self._plumbing.router.route(topic, max_age_s=REBALANCE_S / 2)
        at_first = self._at_first.setdefault(topic, frozenset(route.readable))
        for address in route.brokers.values():
            await self._plumbing.brokers.get(address)  # introduces us to each broker of the topic
        client_id = self._plumbing.membership.client_id
        members = await self._members(route)
        mine = set(allocate(route.readable, members, client_id))
        gone = [queue for queue in self._pullers if queue.topic == topic and queue not in mine]
        if gone:
            log.info("group %s gives up %s", self.group, gone)
            self._release(gone)
        for queue in sorted(mine - self._pullers.keys() - self._releasing):
            self._take_up(queue, self.start if queue in at_first else Start("earliest"))
        return client_id in members

    async def _members(self, route: Route) -> tuple[str, ...]:
        ext = {"consumerGroup": self.group}
        failure: Exception | None = None
        for address in route.brokers.values():
            try:
                connection = await self._plumbing.brokers.get(address)
                answer = await connection.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
            except (ConnectError, NotSent, NoAnswer) as error:
                failure = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                return decode_member_list(answer.body)
            failure = RequestFailed(f"members of {self.group}: {answer.remark}", response_code=answer.code)
        raise failure or ConnectError(f"topic {route.topic} has no broker")

    def _take_up(self, queue: QueueRef, start: Start) -> None:
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            return
        log.info("group %s takes up %s", self.group, queue)
        # Who comes next finds the earliest message again by himself, but not what was the latest one now.
        commit_first = None if self.start.where == "earliest" or queue.topic == self._retry_topic else self._commit_one
        puller = QueuePuller(
            self._plumbing,
            self.group,
            queue,
            subscription,
            self._feeds,
            self._dead_letters,
            start,
            self.retries,
            self._plumbing.rng,
            commit_first,
        )
        self._pullers[queue] = puller, asyncio.get_running_loop().create_task(self._run(puller))

    async def _run(self, puller: QueuePuller) -> None:
        try:
            await puller.run()
        except Exception:  # noqa: BLE001 - the application's code or a bug; logged, and the service goes on
            # A bug of ours must not end in a queue that silently stands still.
            log.exception("the reader of %s failed; it is started anew", puller.queue)
            await asyncio.sleep(_UNSETTLED_S)
            self._pullers.pop(puller.queue, None)
            puller.release()
            self.rebalance_soon()

    def _release(self, queues: list[QueueRef]) -> None:
        """Stop reading, commit what is done; what is buffered here comes again elsewhere."""
        released = [self._pullers.pop(queue) for queue in queues]
        self._releasing.update(queues)
        for _, task in released:
            task.cancel()
        self._to_its_end(self._last_commit, [puller for puller, _ in released])

    async def _last_commit(self, released: list[QueuePuller]) -> None:
        try:
            await self._commit(released, _LEAVE_TIMEOUT_S)
        finally:
            for puller in released:
                puller.release()
                self._releasing.discard(puller.queue)
            self.rebalance_soon()  # what is ours again by now was left out until here

    # --- offsets --------------------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()

    async def commit(self) -> None:
        """Commit what moved; returns when the brokers know or did not answer."""
        await self._commit([puller for puller, _ in self._pullers.values()], _COMMIT_TIMEOUT_S)

    async def _commit_one(self, puller: QueuePuller) -> None:
        await self._commit([puller], _COMMIT_TIMEOUT_S)

    async def _commit(self, pullers: list[QueuePuller], timeout_s: float) -> None:
        queues: dict[tuple[str, str], list[QueuePuller]] = {}
        for puller in pullers:
            queues.setdefault((puller.queue.broker, puller.queue.topic), []).append(puller)
        await asyncio.gather(*(self._commit_in(where, waiting, timeout_s) for where, waiting in queues.items()))

    async def _commit_in(self, where: tuple[str, str], waiting: list[QueuePuller], timeout_s: float) -> None:
        """Commit: of the queues of one topic on one broker the first alone, the others when the broker knows one.

        An Apache RocketMQ broker handles commits on several threads, and of the first ones of a group and topic that it
        handles at once it keeps one (``ConsumerOffsetManager.commitOffset``; apache/rocketmq #10700, #10988): what was
        acknowledged in the other queues came again. A broker that does not answer the first is not asked for the others.
        One that refuses it (its disk is full) is asked for all others at once. It has kept none, so first ones may meet
        there: that costs a redelivery, and one after the other they would hold up the leaving by an answer for each queue.
        """
        place = self._places.setdefault(where, _Place())
        async with place.first:
            connection = self._plumbing.established(where[0])
            if connection is None:
                return
            while waiting and place.told_on is not connection:
                match await waiting.pop().commit(connection, timeout_s):
                    case CommitOutcome.KNOWN:
                        place.told_on = connection
                    case CommitOutcome.REFUSED:
                        break
                    case CommitOutcome.NO_ANSWER:
                        return
                    case CommitOutcome.NOTHING:
                        pass
        await asyncio.gather(*(puller.commit(connection, timeout_s) for puller in waiting))
