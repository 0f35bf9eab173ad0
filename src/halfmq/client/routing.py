"""Topic routes: queried from the name servers, cached, and refreshed when a broker does not respond; and who in a
consumer group reads which queue.

A route older than ``REFRESH_S`` is used while a new one is fetched. If a name server no longer knows a topic (a broker
restarts and has not registered again), the last route is used for ``FORGOTTEN_S``.

Each member of a group computes its share without a coordinator, so all must use the same algorithm, RocketMQ's
``AllocateMessageQueueAveragely``; a group may include Java clients.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from halfmq.client.connection import Answer, NoAnswer, NotSent
from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.connector import LOST_HINT
from halfmq.client.log import log
from halfmq.client.refusals import refusal
from halfmq.errors import ConnectError, ProtocolError, TopicNotFound
from halfmq.model.address import Address
from halfmq.model.ids import java_string_hash
from halfmq.wire.remoting import route as routes
from halfmq.wire.remoting.codes import RequestCode, ResponseCode

#: Precedent: RocketMQ ``pollNameServerInterval``.
REFRESH_S: Final = 30.0
#: Minimum interval between route queries for one topic after failures, seconds.
STALE_S: Final = 0.5
FORGOTTEN_S: Final = 60.0
#: The template topic (RocketMQ's AUTO_CREATE_TOPIC_KEY_TOPIC): brokers that have it create topics on first use.
TEMPLATE_TOPIC: Final = "TBW102"
#: Queues of a topic that is created by a send. Precedent: RocketMQ ``defaultTopicQueueNums``.
DEFAULT_QUEUES: Final = 4
#: Lifetime of a route derived from the template topic, seconds; the real one exists after the first send.
_GUESS_S: Final = 1.0
_REQUEST_TIMEOUT_S: Final = 3.0


class QueueRef(NamedTuple):
    """One queue of one topic on one broker. Sorts as RocketMQ's ``MessageQueue`` does: topic, broker, number."""

    topic: str
    broker: str
    queue: int


def allocate(queues: Iterable[QueueRef], members: Iterable[str], me: str) -> Sequence[QueueRef]:
    """The contiguous range of ``queues`` for member ``me``. Empty if ``me`` is not in ``members`` or has no share.

    With n queues, m members and r = n mod m, the first r members get one queue more than the others.
    """
    ordered = sorted(queues)
    ids = sorted(set(members))
    if me not in ids:
        return ()
    position = ids.index(me)
    share, rest = divmod(len(ordered), len(ids))
    if position < rest:
        start = position * (share + 1)
        return ordered[start : start + share + 1]
    start = position * share + rest
    return ordered[start : start + share]


class Target(NamedTuple):
    """A writable queue: broker name, its address, queue number."""

    broker: str
    address: Address
    queue: int


class Route(NamedTuple):
    """The route of one topic. ``guessed``: derived from the template topic, because the topic does not exist yet."""

    topic: str
    writable: tuple[Target, ...]
    readable: tuple[QueueRef, ...]
    brokers: dict[str, Address]
    guessed: bool
    fetched_at: float


class NameServers:
    """Queries the name servers; keeps using one while it responds."""

    def __init__(self, addresses: Sequence[Address], connection_pool: ConnectionPool) -> None:
        self._addresses = tuple(addresses)
        self._links = connection_pool
        self._current = 0

    async def ask(self, code: int, ext: dict[str, str]) -> Answer:
        """Send a request to the first name server that responds.

        Raises:
            ConnectError: none responded.
        """
        first_error: Exception | None = None
        for step in range(len(self._addresses)):
            index = (self._current + step) % len(self._addresses)
            try:
                connection = await self._links.get(self._addresses[index])
                answer = await connection.request(code, ext, timeout_s=_REQUEST_TIMEOUT_S)
            except (ConnectError, NotSent, NoAnswer) as error:
                first_error = first_error or error
                continue
            self._current = index
            return answer
        if isinstance(first_error, ConnectError):
            raise first_error
        raise ConnectError(f"no name server answers: {first_error}", hint=LOST_HINT) from first_error


class Router:
    """Caches routes by topic, and chooses the queue to send to."""

    def __init__(self, names: NameServers, rng: random.Random) -> None:
        self._names = names
        self._rng = rng
        self._routes: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Task[Route]] = {}
        self._turns: dict[str, int] = {}
        self._brokers: dict[str, Address] = {}

    def brokers(self) -> dict[str, Address]:
        """Addresses of all brokers seen in any route, by name. Heartbeats go to these."""
        return dict(self._brokers)

    def address_of(self, broker: str) -> Address | None:
        """The address of the broker named ``broker``, if a route named it."""
        return self._brokers.get(broker)

    async def learn_brokers(self) -> None:
        """Find brokers: by the route of the template topic, or in the list of all where no broker creates topics on first use.

        Raises:
            ConnectError: no name server answers, or it knows no broker.
        """
        try:
            await self._fetch(TEMPLATE_TOPIC)
        except TopicNotFound:
            await self.all_brokers()
        if not self._brokers:
            raise ConnectError("the name server knows no broker", hint="has the broker registered there?")

    async def all_brokers(self) -> list[str]:
        """Names of all brokers that have a master, as the name server knows them now; ``address_of`` knows them afterwards.

        Raises:
            ConnectError: no name server answers.
        """
        answer = await self._names.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, "the list of brokers")
        found = {}
        for broker in routes.decode_cluster_info(answer.body):
            if broker.master is not None:
                found[broker.broker_name] = broker.master
        self._brokers.update(found)
        return sorted(found)

    async def route(self, topic: str, *, max_age_s: float = REFRESH_S) -> Route:
        """The route of an existing topic, at most ``max_age_s`` old.

        Raises:
            TopicNotFound: no name server knows it. ConnectError: no name server responds, and no route is cached.
        """
        known = self._routes.get(topic)
        if known is not None and not known.guessed and known.fetched_at + max_age_s > self._now():
            return known
        try:
            return await self._fetch(topic)
        except ConnectError:
            if known is None or known.guessed:
                raise
            return known

    async def publish_route(self, topic: str) -> Route:
        """The route for sending; derived from the template topic if the topic does not exist yet.

        Raises:
            TopicNotFound: it does not exist, and no broker creates topics on first use. ConnectError: as ``route``.
        """
        known = self.cached(topic)
        if known is not None:
            return known
        known = self._routes.get(topic)
        try:
            return await self._fetch(topic)
        except ConnectError:
            if known is None:
                raise
            return known
        except TopicNotFound:
            guess = await self._guess(topic)
            if guess is None:
                raise
            return guess

    def cached(self, topic: str) -> Route | None:
        """The route for sending if it is cached and usable, else None. Fast path before ``publish_route``."""
        known = self._routes.get(topic)
        if known is None:
            return None
        age = self._now() - known.fetched_at
        if age < (_GUESS_S if known.guessed else REFRESH_S):
            return known
        if known.guessed or age >= FORGOTTEN_S:
            return None
        self._refresh_later(topic)
        return known

    async def _guess(self, topic: str) -> Route | None:
        try:
            template = await self.route(TEMPLATE_TOPIC)
        except TopicNotFound:
            return None
        writable = tuple(target for target in template.writable if target.queue < DEFAULT_QUEUES)
        if not writable:
            return None
        route = Route(topic, writable, (), template.brokers, True, self._now())
        self._routes[topic] = route
        return route

    def forget(self, topic: str) -> None:
        """Drop the cached route: a broker reported that the topic does not exist."""
        self._routes.pop(topic, None)

    def mark_stale(self, topic: str) -> None:
        """A broker of this topic did not respond: refresh the route in the background, at most every ``STALE_S``."""
        known = self._routes.get(topic)
        if known is not None and self._now() - known.fetched_at > STALE_S:
            self._refresh_later(topic)

    def mark_stale_at(self, address: Address) -> None:
        """As ``mark_stale``, for one topic whose route names this address of a broker, which may have moved."""
        for topic, route in self._routes.items():
            if address in route.brokers.values():
                self.mark_stale(topic)
                return

    def _refresh_later(self, topic: str) -> None:
        if topic not in self._fetching:
            task = self._start(topic)
            task.add_done_callback(_seen)

    async def _fetch(self, topic: str) -> Route:
        task = self._fetching.get(topic) or self._start(topic)
        return await asyncio.shield(task)

    def _start(self, topic: str) -> "asyncio.Task[Route]":
        task = self._fetching[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
        task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        task.add_done_callback(_seen)
        return task

    async def _ask(self, topic: str) -> Route:
        answer = await self._names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code != ResponseCode.SUCCESS:
            known = self._routes.get(topic)
            if known is not None and not known.guessed and self._now() - known.fetched_at < FORGOTTEN_S:
                return known
            self._routes.pop(topic, None)
            raise refusal(answer.code, answer.remark, f"route of topic {topic}")
        route = self._read(topic, answer.body)
        self._routes[topic] = route
        self._brokers.update(route.brokers)
        return route

    def _read(self, topic: str, body: bytes) -> Route:
        data = routes.decode_route(body)
        brokers = data.masters()
        writable: list[Target] = []
        readable: list[QueueRef] = []
        for queues in data.queues:
            name = queues.broker_name
            address = brokers.get(name)
            if address is None:
                continue
            if queues.permission & routes.WRITE:
                writable.extend(Target(name, address, number) for number in range(queues.write_queues))
            if queues.permission & routes.READ:
                readable.extend(QueueRef(topic, name, number) for number in range(queues.read_queues))
        return Route(topic, tuple(writable), tuple(readable), brokers, False, self._now())

    def choose(self, route: Route, sharding_key: str = "", failed: Sequence[Target] = ()) -> Target:
        """The next queue, round robin; avoids the brokers of ``failed`` targets, or at least those queues, if possible.

        A sharding key always maps to the same queue, even if it is among ``failed``, to keep the order.

        Raises:
            TopicNotFound: the topic has no writable queue.
        """
        targets = route.writable
        if not targets:
            raise TopicNotFound(f"topic {route.topic} has no queue to write to", response_code=17)
        if sharding_key:
            # Precedent: RocketMQ SelectMessageQueueByHash, so that Java producers choose the same queue.
            return targets[abs(java_string_hash(sharding_key)) % len(targets)]
        turn = self._turns.get(route.topic)
        if turn is None:
            turn = self._rng.randrange(len(targets))
        self._turns[route.topic] = turn + 1
        if failed:
            bad = {target.broker for target in failed}
            others = [target for target in targets if target.broker not in bad] or [
                target for target in targets if target not in failed
            ]
            targets = tuple(others) or targets
        return targets[turn % len(targets)]

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _seen(task: "asyncio.Task[Route]") -> None:
    """Retrieve the exception of a background refresh; a caller who needs the route queries again and gets its own."""
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        if not isinstance(error, ConnectError | TopicNotFound | ProtocolError):
            log.error("reading a route failed", exc_info=error)
