"""Where topics live: asked from the name servers, kept for a while, and asked again when a broker did not answer.

A route that is older than ``REFRESH_S`` is still used while a new one is fetched. A topic that a name server has
forgotten for a moment (a broker restarts and registers anew) keeps its last route for ``FORGOTTEN_S``.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from halfmq.client.allocation import QueueRef
from halfmq.client.connection import Answer, NoAnswer, NotSent
from halfmq.client.connector import Address, parse_address
from halfmq.client.links import Links
from halfmq.client.log import log
from halfmq.client.refusals import refusal
from halfmq.errors import ConnectError, ProtocolError, TopicNotFound
from halfmq.model.ids import java_string_hash
from halfmq.wire.remoting import route as routes
from halfmq.wire.remoting.codes import RequestCode, ResponseCode

#: Precedent: RocketMQ ``pollNameServerInterval``.
REFRESH_S: Final = 30.0
#: The least time between two questions for one topic after failures.
SUSPECT_S: Final = 0.5
FORGOTTEN_S: Final = 60.0
#: The template topic: a broker that has it makes topics on first use.
TEMPLATE_TOPIC: Final = "TBW102"
#: Queues of a topic that our send makes. Precedent: RocketMQ ``defaultTopicQueueNums``.
DEFAULT_QUEUES: Final = 4
#: A route made from the template is only a guess; the real one is there after the first send.
_GUESS_S: Final = 1.0
_REQUEST_TIMEOUT_S: Final = 3.0


class Target(NamedTuple):
    """A queue to send to."""

    broker: str
    address: Address
    queue: int


class Route(NamedTuple):
    """One topic at one moment. ``guessed``: made from the template topic, the topic itself does not exist yet."""

    topic: str
    writable: tuple[Target, ...]
    readable: tuple[QueueRef, ...]
    brokers: dict[str, Address]
    guessed: bool
    fetched_at: float


class NameServers:
    """The list of name servers; stays with one while it answers."""

    def __init__(self, addresses: Sequence[Address], links: Links) -> None:
        self._addresses = tuple(addresses)
        self._links = links
        self._current = 0

    async def ask(self, code: int, ext: dict[str, str]) -> Answer:
        """One question, to the first server that answers.

        Raises:
            ConnectError: none did.
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
        raise ConnectError(f"no name server answers: {first_error}") from first_error


class Router:
    """Routes by topic, and the choice of a queue to send to."""

    def __init__(self, names: NameServers, rng: random.Random) -> None:
        self._names = names
        self._rng = rng
        self._routes: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Task[Route]] = {}
        self._turns: dict[str, int] = {}
        self._brokers: dict[str, Address] = {}

    def brokers(self) -> dict[str, Address]:
        """Every broker that any route named, by name: where heartbeats go."""
        return dict(self._brokers)

    def address_of(self, broker: str) -> Address | None:
        return self._brokers.get(broker)

    async def learn_brokers(self) -> None:
        """Ask for the template topic, which most brokers have. Finding none is no error.

        Raises:
            ConnectError: no name server answers.
        """
        try:
            await self._fetch(TEMPLATE_TOPIC)
        except TopicNotFound:
            log.debug("no broker makes topics on first use; brokers are learnt from the topics in use")

    async def route(self, topic: str, *, max_age_s: float = REFRESH_S) -> Route:
        """The route of an existing topic, at most ``max_age_s`` old.

        Raises:
            TopicNotFound: no name server knows it. ConnectError: no name server answers, and no route is remembered.
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
        """The route to send to, made from the template topic where the topic does not exist yet.

        Raises:
            TopicNotFound: it does not exist and no broker would make it. ConnectError: as above.
        """
        known = self.at_hand(topic)
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

    def at_hand(self, topic: str) -> Route | None:
        """The route to send to if nobody has to be asked for it; the hot path looks here first."""
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
        """A broker of this topic says that there is no such topic: what the name servers say next counts at once."""
        self._routes.pop(topic, None)

    def suspect(self, topic: str) -> None:
        """A broker of this topic did not answer: ask again before the next use, but not in a storm."""
        known = self._routes.get(topic)
        if known is not None and self._now() - known.fetched_at > SUSPECT_S:
            self._refresh_later(topic)

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
            raise refusal(answer.code, answer.remark or "", f"route of topic {topic}")
        route = self._read(topic, answer.body)
        self._routes[topic] = route
        self._brokers.update(route.brokers)
        return route

    def _read(self, topic: str, body: bytes) -> Route:
        data = routes.decode_route(body)
        brokers: dict[str, Address] = {}
        for broker in data.brokers:
            master = broker.addresses.get(routes.MASTER_ID)
            if master:
                brokers[broker.broker_name] = parse_address(master, 10_911)
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
        """The next queue in turn; another one than those that ``failed``, on another broker if there is one.

        A sharding key has its queue whatever failed, because order is what it is for.

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
    """Take notice of a failure that nobody waits for; who needs the route will ask again and be told."""
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        if not isinstance(error, ConnectError | TopicNotFound | ProtocolError):
            log.error("reading a route failed", exc_info=error)
