"""Sends of ordinary messages to the brokers of a topic, Apache RocketMQ's or halfmq, each confirmed by its broker.

Of each queue at most one request is on the way, so its messages stay in their order; over all queues a few are. A request without a response
is sent again and may then be stored twice, with the same message ids.

A queue that the rows name (or their sharding key) is waited for. Other messages go to another queue if a broker does not respond or is busy,
of another broker if there is one. As RocketMQ's producers do it.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from halfmq.client.connector import parse_address
from halfmq.client.log import logger
from halfmq.client.producer import STORED
from halfmq.client.refusals import refusal
from halfmq.client.routing import DEFAULT_QUEUES, TEMPLATE_TOPIC
from halfmq.errors import NotAuthorized, RequestFailed, TopicNotFound
from halfmq.spark.network.connection import TEMPORARY, Address, Connections, Sent
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.sink.columns import ANY_QUEUE
from halfmq.spark.sink.options import SinkOptions
from halfmq.spark.sink.plain_encoder import Content
from halfmq.wire.remoting.codes import EXT_DAMAGED, EXT_SENT_AGAIN, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.route import MASTER_ID, WRITE, Route, decode_cluster_info, decode_route

_log: Final = logger("halfmq.spark")
#: Requests on the way: enough that brokers store one while the next is encoded.
IN_FLIGHT_MAX: Final = 3
_PORT: Final = 10_911


class Place(NamedTuple):
    """A queue of a topic."""

    broker: str
    queue: int


class _Sending:
    """A request that is not confirmed."""

    def __init__(self, topic: str, place: Place, content: Content, *, is_fixed: bool) -> None:
        self.topic = topic
        self.place = place
        self.content = content
        self.is_fixed = is_fixed
        #: None: not on the way.
        self.sent: Sent | None = None
        #: Whether it was sent before, without a response that settles it.
        self.is_repeated = False


def places_of(route: Route) -> list[Place]:
    """The queues to write to, in RocketMQ's order, on which the queue of a sharding key depends. Those of brokers without a master are missing."""
    masters = addresses_of(route)
    return [
        Place(data.broker_name, number)
        for data in sorted(route.queues)
        if data.permission & WRITE and data.broker_name in masters
        for number in range(data.write_queues)
    ]


def addresses_of(route: Route) -> dict[str, Address]:
    """The masters by the name of their broker."""
    found: dict[str, Address] = {}
    for data in route.brokers:
        master = data.addresses.get(MASTER_ID)
        if master:
            found[data.broker_name] = parse_address(master, _PORT)
    return found


class PlainBrokers:
    """All brokers of the topics. It connects on first use; the caller must call ``finish`` after the last message, and ``close``.

    Methods raise ConnectError if a broker was unavailable, or refused for the moment, for ``brokerTimeout``.
    """

    def __init__(self, options: SinkOptions, first: int) -> None:
        """``first``: where to begin among the queues."""
        self._servers = options.servers
        self._group = options.group
        self._deadline = RetryDeadline(options.broker_timeout_ms)
        self._connections = Connections()
        #: Of each topic, as when it was first written: the queue of a sharding key must not change within a task.
        self._places: dict[str, list[Place]] = {}
        self._addresses: dict[str, Address] = {}
        self._turn = first
        #: In the order of their first sending.
        self._unconfirmed: dict[tuple[str, Place], _Sending] = {}
        #: Brokers that failed last. Others are preferred.
        self._away: set[str] = set()
        #: Why a request failed last.
        self._reason = ""
        self._weakly_stored: set[int] = set()

    def close(self) -> None:
        """Close all connections; harmless if repeated."""
        self._connections.close()

    # --- sending

    def send(self, topic: str, queue: int, content: Content) -> None:
        """Send messages to a queue, an index below ``queues``, or to any one (ANY_QUEUE). Returns before they are confirmed.

        Raises:
            RequestFailed: these messages or some before were refused for good, and others may be stored.
        """
        self._settle_until(lambda: len(self._unconfirmed) < IN_FLIGHT_MAX)
        place = self._choose(topic) if queue == ANY_QUEUE else self._known_places(topic)[queue]
        # Also those that move to this place while it is waited for.
        self._settle_until(lambda: (topic, place) not in self._unconfirmed)
        sending = self._unconfirmed[topic, place] = _Sending(topic, place, content, is_fixed=queue != ANY_QUEUE)
        self._start(sending)

    def finish(self) -> None:
        """Wait until brokers have confirmed all messages. Raises as ``send``."""
        self._settle_until(lambda: not self._unconfirmed)

    def _settle_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._deadline.until(lambda: self._settle_some(condition), self._name())

    def _settle_some(self, condition: Callable[[], bool]) -> None:
        """Receive responses until the condition holds. If nothing is on the way, all is sent again first: not earlier, since connecting to a
        broker that is away may take seconds each time.

        Raises:
            Unavailable: nothing is on the way any more.
        """
        if all(one.sent is None for one in self._unconfirmed.values()):
            for sending in list(self._unconfirmed.values()):
                if self._move(sending):
                    self._start(sending)
        while not condition():
            first = next((one for one in self._unconfirmed.values() if one.sent is not None), None)
            if first is None:
                raise Unavailable(self._reason)
            self._receive(first)

    def _start(self, sending: _Sending) -> None:
        """Send it. If that fails, ``_settle_some`` tries again."""
        address = self._addresses[sending.place.broker]
        fields = self._fields(sending)
        try:
            sending.sent = self._connections.send(address, sending.content.code, fields, sending.content.body)
        except Unavailable as reason:
            self._postpone(sending, str(reason))

    def _receive(self, sending: _Sending) -> None:
        """Wait for the response. If it is not confirmed, ``_settle_some`` sends it again."""
        assert sending.sent is not None
        broker = sending.place.broker
        try:
            answer = self._connections.receive(sending.sent)
        except Unavailable as reason:
            self._postpone(sending, str(reason))
            return
        if answer.code in STORED:
            del self._unconfirmed[sending.topic, sending.place]
            self._away.discard(broker)
            self._warn_if_weak(answer.code, broker)
        elif answer.code in TEMPORARY and EXT_DAMAGED not in answer.ext:
            remark = answer.remark or "no reason given"
            self._postpone(sending, f"broker {broker} refused with code {answer.code}: {remark}")
        else:
            raise _refused(answer, sending)

    def _postpone(self, sending: _Sending, reason: str) -> None:
        sending.sent = None
        sending.is_repeated = True
        self._away.add(sending.place.broker)
        self._reason = reason

    def _move(self, sending: _Sending) -> bool:
        """Before it is sent again: find where its broker is now, or another queue if no row names this one. Whether it may be sent now: not if
        it should go to a queue that has an unconfirmed request.
        """
        self._learn_addresses(sending.topic)
        if sending.is_fixed:
            return True
        place = self._choose(sending.topic)
        if (sending.topic, place) in self._unconfirmed:
            return place == sending.place or place.broker in self._away
        del self._unconfirmed[sending.topic, sending.place]
        sending.place = place
        self._unconfirmed[sending.topic, place] = sending
        return True

    def _fields(self, sending: _Sending) -> Mapping[str, object]:
        """Ext of ``SendMessageRequestHeaderV2``."""
        code, properties, _ = sending.content
        return {
            "a": self._group, "b": sending.topic, "c": TEMPLATE_TOPIC, "d": DEFAULT_QUEUES, "e": sending.place.queue,
            "f": 0, "g": time.time_ns() // 1_000_000, "h": 0, "i": properties, "j": 0, "k": False,
            "m": code == RequestCode.SEND_BATCH_MESSAGE, EXT_SENT_AGAIN: True if sending.is_repeated else None,
        }  # fmt: skip

    def _warn_if_weak(self, code: int, broker: str) -> None:
        if code != ResponseCode.SUCCESS and code not in self._weakly_stored:
            self._weakly_stored.add(code)
            _log.warning(
                "broker %s stored messages and answered %s: a crash of it may lose them",
                broker,
                STORED[ResponseCode(code)],
            )

    # --- queues

    def queues(self, topic: str) -> int:
        """Number of queues to write to, over all brokers; of a topic that does not exist, those that brokers will create.

        Raises:
            TopicNotFound: there is no such topic, and brokers create none.
            NotAuthorized: it cannot be written.
        """
        return len(self._known_places(topic))

    def brokers(self, topic: str) -> list[str]:
        """Names of the brokers that have these queues. Raises as ``queues``."""
        return sorted({place.broker for place in self._known_places(topic)})

    def _choose(self, topic: str) -> Place:
        """The next queue in turn, if possible of a broker that did not fail, and without a request on the way."""
        places = self._known_places(topic)
        self._turn += 1
        at = self._turn % len(places)
        return min(
            places[at:] + places[:at],
            key=lambda place: (place.broker in self._away, (topic, place) in self._unconfirmed),
        )

    def _known_places(self, topic: str) -> list[Place]:
        found = self._places.get(topic)
        if found is None:
            found = self._places[topic] = self._deadline.until(lambda: self._find_places(topic), self._name())
        return found

    def _find_places(self, topic: str) -> list[Place]:
        places = self._writable_places(topic)
        if places is None:
            # A name server forgets the topics of a broker that is away; all of them are there again as soon as it knows the broker.
            answer = self._ask_names(RequestCode.GET_BROKER_CLUSTER_INFO, {})
            if answer.code != ResponseCode.SUCCESS or not decode_cluster_info(answer.body):
                raise Unavailable("the name server knows no broker")
            places = self._writable_places(topic)
        if places is None:
            raise TopicNotFound(
                f"no topic {topic}, and the brokers create none on first use",
                response_code=ResponseCode.TOPIC_NOT_EXIST,
                hint=f"mqadmin updateTopic -t {topic}",
            )
        if not places:
            raise Unavailable(f"no broker of topic {topic} has a master")
        return places

    def _writable_places(self, topic: str) -> list[Place] | None:
        """None: the topic does not exist, and no broker creates it."""
        route, queues_max = self._route(topic), None
        if route is None:
            route, queues_max = self._route(TEMPLATE_TOPIC), DEFAULT_QUEUES
            if route is None:
                return None
        if not any(data.permission & WRITE and data.write_queues for data in route.queues):
            raise NotAuthorized(f"topic {topic} has no queue to write to", response_code=ResponseCode.NO_PERMISSION)
        self._addresses |= addresses_of(route)
        return [place for place in places_of(route) if queues_max is None or place.queue < queues_max]

    def _learn_addresses(self, topic: str) -> None:
        """A broker may be at another address than before. The known one is kept if the name servers do not know it now."""
        try:
            route = self._route(topic)
        except Unavailable:
            return
        if route is not None:
            self._addresses |= addresses_of(route)

    def _route(self, topic: str) -> Route | None:
        """None: the name server does not know the topic."""
        answer = self._ask_names(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code in TEMPORARY:
            raise Unavailable(f"the name server refused with code {answer.code}: {answer.remark or 'no reason given'}")
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark or "", f"route of topic {topic}")
        return decode_route(answer.body)

    def _ask_names(self, code: int, fields: Mapping[str, object]) -> Request[dict[str, str]]:
        """The response of the first name server that responds."""
        reasons = []
        for server in self._servers:
            try:
                return self._connections.ask(server, code, fields)
            except Unavailable as reason:
                reasons.append(str(reason))
        raise Unavailable("; ".join(reasons))

    def _name(self) -> str:
        return "brokers of rocketmq://" + ";".join(f"{host}:{port}" for host, port in self._servers)


def _refused(answer: Request[dict[str, str]], sending: _Sending) -> RequestFailed:
    what = f"topic {sending.topic}, queue {sending.place.queue} of broker {sending.place.broker}"
    if answer.code == ResponseCode.MESSAGE_ILLEGAL:
        return RequestFailed(
            f"{what}: {answer.remark or 'no reason given'} (code {answer.code})",
            response_code=answer.code,
            hint="the message, or the request with many of them, is larger than the broker's maxMessageSize; option "
            "maxHalfBatchBytes limits the request",
        )
    return refusal(answer.code, answer.remark or "", what)
