"""Plans reads from a halfmq broker or a cluster of Apache RocketMQ, over the network. ``raw_reader`` and ``pull_reader`` read.

A halfmq broker responds to HMQ_POSITION with the bounds of all queues at one log position, so a plan never splits a transaction.
RocketMQ does not have this command: the reader queries the queues one after the other. (There a transaction has one message.)
Brokers of a cluster come and go one by one, so a snapshot says which of them responded.

Sockets block, since a Spark task does nothing else meanwhile. A request that fails with its connection is repeated on a new one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from halfmq import limits
from halfmq.errors import UsageError
from halfmq.spark.connection import TEMPORARY, Address, Connections, check_success
from halfmq.spark.data_loss import elsewhere
from halfmq.spark.offsets import (
    NO_POSITION,
    ROCKETMQ_STORE,
    QueueBoundsSnapshot,
    QueueName,
    StreamOffset,
    queue_broker,
    queue_number,
)
from halfmq.spark.options import Options
from halfmq.spark.partitions import QueueRange, Ranges, sample_start
from halfmq.spark.pull_reader import Lost, PullReader
from halfmq.spark.queue_lookups import QueueLookups, in_words, pull_fields
from halfmq.spark.raw_reader import RawReader
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.stored_rows import StoredRows
from halfmq.wire.remoting.codes import HMQ_POSITION, RequestCode, ResponseCode
from halfmq.wire.remoting.group_attributes import change_body, hold_set
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.position import PositionAnswer, decode_answer, encode_samples, request_ext
from halfmq.wire.remoting.replies import OffsetReply, read_reply
from halfmq.wire.remoting.route import (
    MASTER_ID,
    READ,
    BrokerData,
    QueueData,
    Route,
    decode_cluster_info,
    decode_route,
    decode_topic_list,
)

#: How often a query asks whether other brokers have its topics, besides after a broken connection. Precedent: RocketMQ's clients.
IDENTIFY_S: Final = 30.0
#: How often a snapshot is repeated at once because new topics of the pattern were created meanwhile.
_REPEATS_MAX: Final = 16


class _Source(NamedTuple):
    """What is read: a halfmq broker and its ``store``, or RocketMQ's brokers (``address`` is None). ``store`` is empty if several
    brokers may get the topics, and none of them has any yet.
    """

    address: Address | None
    store: str
    has_topics: bool


class WireReader:
    """Reads from the brokers that ``options.servers`` know. The caller must call ``close``."""

    def __init__(self, options: Options, deadline: RetryDeadline) -> None:
        self._servers = options.servers
        self._subscription = options.subscription
        #: The topics to read; with a pattern, those that exist.
        self._topics = options.topics
        self._group = options.group
        self._deadline = deadline
        self._lookups = QueueLookups(self._ask_queue, options.group, deadline)
        #: Where the group of ``publish`` exists. After a connection was opened another broker may be there.
        self._published: set[Address] = set()
        self._connections = Connections(on_open=self._published.discard)
        self._pulled = PullReader(self, self._connections, deadline, options.group)
        self._raw = RawReader(self, deadline, options.group)
        #: Position at which the pattern chose ``_topics``. A RocketMQ cluster has none, so there it chooses for each snapshot.
        self._chosen_at = NO_POSITION
        #: What the name server led to, and when to ask it again.
        self._source: _Source | None = None
        self._identify_at = 0.0
        #: Addresses of a cluster's brokers by name, from the latest route.
        self._brokers: dict[str, Address] = {}
        #: Brokers of a cluster that did not respond: when to ask again, and why they did not.
        self._failed: dict[str, tuple[float, str]] = {}
        #: Index of the server that responded last.
        self._server = 0

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()
        self._raw.close()

    # --- planning

    def snapshot(self) -> QueueBoundsSnapshot:
        """The bounds of all subscribed queues now.

        Raises:
            ConnectError: no broker responded within ``brokerTimeout``.
            RequestFailed: permanent rejection.
        """
        return self._deadline.until(self._try_snapshot, f"brokers of {self._name()}")

    def _try_snapshot(self) -> QueueBoundsSnapshot:
        """With a pattern, the topics are requested once more after the position: topics that did not exist before may have messages of
        a transaction below it.
        """
        for _ in range(_REPEATS_MAX):
            snapshot = self._snapshot_of_topics()
            if not self._subscription.pattern or snapshot.position == self._chosen_at != NO_POSITION:
                return snapshot
            existing = self._existing()
            is_complete = set(existing) <= set(self._topics)
            if existing != self._topics:
                self._topics = existing
                self._identify_at = 0.0  # they may be on other brokers
            if is_complete:
                self._chosen_at = snapshot.position
                return snapshot
        raise Unavailable("new topics are created all the time")

    def _existing(self) -> tuple[str, ...]:
        """The topics of the name server that the pattern matches."""
        answer = self._ask_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        check_success(answer, "the list of topics")
        brokers = self._registered().values() if self._find_source().store == ROCKETMQ_STORE else ()
        names = {data.broker_name for data in brokers} | {data.cluster for data in brokers}
        return self._subscription.chosen(decode_topic_list(answer.body), names)

    def _snapshot_of_topics(self) -> QueueBoundsSnapshot:
        source = self._find_source(recheck=True)
        if source.address is None:
            return (
                self._rocketmq_snapshot(self._registered())
                if source.store
                else QueueBoundsSnapshot("", 0, NO_POSITION, {}, {})
            )
        at = self._position(source.address, self._topics)
        if at is None:
            self._source = None
            raise Unavailable("a RocketMQ broker has replaced the halfmq broker")
        queues = {
            (topic, str(number)): bounds
            for topic, found in at.topics.items()
            for number, bounds in enumerate(found.queues)
        }
        return QueueBoundsSnapshot(
            at.store, at.epoch, at.position, queues, {topic: found.topic_id for topic, found in at.topics.items()}
        )

    def size_samples(self, sliced: Sequence[QueueRange]) -> list[tuple[int, int]] | None:
        """(messages, their bytes) of some messages of each slice, for ``partitions.slice_bytes``; None from a broker that does not tell.

        Only an estimate, so it waits for nobody.
        """
        address = None if self._source is None else self._source.address
        if address is None:
            return None
        found: list[tuple[int, int]] = []
        try:
            for first in range(0, len(sliced), limits.SIZE_SAMPLES_MAX):
                # The response lists the samples of each topic; slices are ordered by topic.
                samples: dict[str, list[tuple[int, int]]] = {}
                for one in sliced[first : first + limits.SIZE_SAMPLES_MAX]:
                    samples.setdefault(one.topic, []).append((one.queue, sample_start(one)))
                at = self._position(address, tuple(samples), encode_samples(samples))
                for topic, asked in samples.items():
                    sizes = at.topics[topic].sizes if at is not None and topic in at.topics else ()
                    if len(sizes) != len(asked):
                        return None  # an older broker, or the topic was just deleted
                    found += sizes
        except Unavailable:
            return None
        return found

    def offsets_at(
        self, times_ms: Mapping[QueueName, int], snapshot: QueueBoundsSnapshot
    ) -> dict[QueueName, int | None]:
        """The first message of each queue stored at its time (ms since 1970) or later; None if ``snapshot`` has none.

        Raises:
            ConnectError, RequestFailed: as ``snapshot``.
        """
        return {queue: self._lookups.offset_at(queue, time_ms, snapshot) for queue, time_ms in times_ms.items()}

    def fitting(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """(number, bytes) of the messages from ``start`` on, before ``end``, whose stored sizes add up to at most ``bytes_max``;
        of a RocketMQ broker an estimate.

        Raises:
            ConnectError, RequestFailed: as ``snapshot``.
        """
        return self._lookups.fitting(queue, start, end, bytes_max, snapshot)

    def publish(self, offset: StreamOffset) -> None:
        """Commit ``offset`` for ``group``, in one-way requests: where a query is, for statistics of consumers.

        Raises:
            Unavailable: a broker is away; the offsets of the others were sent.
        """
        snapshot = QueueBoundsSnapshot(offset.store, offset.epoch, offset.position, {}, {})
        away: Unavailable | None = None
        for queue, at in offset.queues.items():
            try:
                self._publish_queue(self._address_of(queue, snapshot), queue, at)
            except Unavailable as reason:
                away = reason
        if away is not None:
            raise away

    def hold(self, topics: Sequence[str]) -> bool:
        """Let retention of the halfmq broker wait until ``group`` has read ``topics``. The age limit of the group's hold stays as it is.

        False: no broker has the topics yet.

        Raises:
            UsageError: it is a RocketMQ broker. Unavailable: the broker is away. RequestFailed: it rejected the hold.
        """
        source = self._find_source()
        if source.address is None:
            if source.store.startswith(ROCKETMQ_STORE):
                raise UsageError(
                    f"hold needs a halfmq broker, {self._name()} is a RocketMQ cluster", hint="remove hold"
                )
            return False
        body = change_body(self._group, hold_set(topics))
        answer = self._ask(source.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        check_success(answer, f"the hold of group {self._group}")
        return True

    def _publish_queue(self, address: Address, queue: QueueName, at: int) -> None:
        topic, name = queue
        number = queue_number(name)
        if address not in self._published:
            # A pull creates the group, if it does not exist. Whether it finds messages does not matter.
            self._ask(address, RequestCode.PULL_MESSAGE, pull_fields(self._group, topic, number, at, 1))
            self._published.add(address)
        fields = {"consumerGroup": self._group, "topic": topic, "queueId": number, "commitOffset": at}
        self._connections.tell(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    def _ask_queue(
        self, queue: QueueName, snapshot: QueueBoundsSnapshot, code: int, fields: Mapping[str, object]
    ) -> Request[dict[str, str]]:
        """Ask the broker of a queue. A pull, and a command that the broker does not know, may be answered by a rejection."""
        answer = self._ask(self._address_of(queue, snapshot), code, dict(fields))
        is_pull = code == RequestCode.PULL_MESSAGE and answer.code not in TEMPORARY
        if not is_pull and answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            check_success(answer, f"request {code} for {in_words(queue)}")
        return answer

    def _address_of(self, queue: QueueName, snapshot: QueueBoundsSnapshot) -> Address:
        """Address of the broker that has the queue.

        Raises:
            Unavailable: another store is at its address, or it is not in the route.
        """
        topic, name = queue
        if queue_broker(name):
            return self._address_in_cluster(QueueRange(topic, 0, queue_broker(name), queue_number(name), 0, 0))
        source = self._find_source()
        if source.address is None or source.store != snapshot.store:
            raise Unavailable("another store is at the address of the broker")
        return source.address

    def _position(self, address: Address, topics: tuple[str, ...], body: bytes = b"") -> PositionAnswer | None:
        """``topics`` of a halfmq broker at its position; None if the broker is a RocketMQ broker."""
        answer = self._ask(address, HMQ_POSITION, request_ext(topics), body)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        check_success(answer, f"HMQ_POSITION to {address[0]}:{address[1]}")
        return decode_answer(answer.ext, answer.body)

    def _find_source(self, *, recheck: bool = False) -> _Source:
        """What to read. A halfmq broker is cached until its connection breaks; ``recheck``: at most for ``IDENTIFY_S``.

        Raises:
            UsageError: several brokers have the topics, and one of them is a halfmq broker.
        """
        known = self._source if self._source is not None and self._source.address in self._connections else None
        if known is not None and not (recheck and time.monotonic() >= self._identify_at):
            return known
        try:
            self._source = self._identify()
        except Unavailable:
            if known is None or known.address not in self._connections:
                raise
            return known
        self._identify_at = time.monotonic() + IDENTIFY_S
        return self._source

    def _identify(self) -> _Source:
        """Ask the name server for the brokers that have the topics, and these who they are. Others do not matter: they may
        belong to another cluster.

        HMQ_POSITION goes to brokers only, since name servers before 5.0 do not respond to unknown commands.
        """
        registered = self._registered()
        routed = registered.keys() & self._routed() if len(registered) > 1 else set()
        reasons = {}
        rocketmq = set()
        halfmq: dict[str, tuple[Address, PositionAnswer]] = {}
        for name in sorted(routed or registered):
            address = _master(registered[name])
            if address is None:
                reasons[name] = "its master is not registered"
                continue
            try:
                at = self._position(address, self._topics)
            except Unavailable as reason:
                reasons[name] = str(reason)
                continue
            if at is None:
                rocketmq.add(name)
            else:
                halfmq[name] = (address, at)
        serving = [name for name, (_, at) in halfmq.items() if at.topics]
        others = routed & (rocketmq | reasons.keys())
        if serving and len(serving) + len(others) > 1:
            self._refuse_several({name: registered[name] for name in [*serving, *others]})
        if rocketmq and not serving and (routed & rocketmq or not halfmq):
            return _Source(None, ROCKETMQ_STORE, bool(routed) or len(registered) == 1)
        if not halfmq or (not serving and others):
            raise Unavailable(
                "; ".join(f"broker {name}: {why}" for name, why in reasons.items()) or "the name server has no brokers"
            )
        if not serving and len(registered) > 1:
            return _Source(None, "", False)
        address, at = halfmq[serving[0]] if serving else next(iter(halfmq.values()))
        return _Source(address, at.store, bool(serving))

    def only_broker(self, what: str) -> tuple[Address, str]:
        """(address, store) of the one halfmq broker that the name server knows. ``what``: what needs it, for the text of an error.

        Raises:
            UsageError: it knows Apache RocketMQ, or several brokers.
        """
        source = self._find_source(recheck=True)
        if source.address is None:
            named = ", ".join(f"{name} ({_addresses(data)})" for name, data in sorted(self._registered().items()))
            if source.store == ROCKETMQ_STORE:
                raise UsageError(
                    f"{what} needs the transaction table of a halfmq broker; Apache RocketMQ keeps no table of transactions and their "
                    f"outcomes, and {self._name()} knows {named}",
                    hint="read its messages, without `view`",
                )
            raise UsageError(
                f"{what} reads one halfmq broker; {self._name()} knows several brokers: {named}",
                hint="url=rocketmq:// and the address of the broker, which is a name server too",
            )
        return source.address, source.store

    def _routed(self) -> set[str]:
        """The brokers that have subscribed topics, according to the name server."""
        routes = [self._route(topic) for topic in self._topics]
        return {data.broker_name for route in routes if route for data in route.queues if data.permission & READ}

    def _refuse_several(self, brokers: dict[str, BrokerData]) -> NoReturn:
        """An offset contains one store and one position, so a query cannot read from several halfmq brokers."""
        named = ", ".join(f"{name} ({_addresses(brokers[name])})" for name in sorted(brokers))
        raise UsageError(
            f"topics {', '.join(self._topics)} are on several brokers: {named}; a query reads one halfmq broker",
            hint="start one query for each, with url=rocketmq:// and the address of the broker, which is a name server too",
        )

    def _registered(self) -> dict[str, BrokerData]:
        """The brokers that the name server knows, by name."""
        answer = self._ask_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        check_success(answer, "the list of brokers")
        return {data.broker_name: data for data in decode_cluster_info(answer.body)}

    def _rocketmq_snapshot(self, registered: dict[str, BrokerData]) -> QueueBoundsSnapshot:
        """``registered``: from before the routes are requested. A broker that leaves or joins meanwhile counts as away, since its
        topics may be missing in the routes.
        """
        routes = {topic: route for topic in self._topics if (route := self._route(topic)) is not None}
        names = registered.keys() & self._registered().keys()
        brokers = {name: "" if _master(registered[name]) else "its master is not registered" for name in names}
        found: dict[str, dict[QueueName, tuple[int, int]]] = {name: {} for name in names}
        for topic, route in routes.items():
            for data in route.queues:
                name = data.broker_name
                if data.permission & READ and brokers.get(name) == "":
                    try:
                        found[name] |= self._rocketmq_bounds(topic, data, registered[name])
                    except Unavailable as reason:
                        brokers[name] = str(reason)
        queues = {queue: bounds for name in names if not brokers[name] for queue, bounds in found[name].items()}
        routed = {data.broker_name for route in routes.values() for data in route.queues} & names
        clusters = sorted({registered[name].cluster for name in routed or registered})
        topics = dict.fromkeys(routes, 0)
        return QueueBoundsSnapshot(ROCKETMQ_STORE + ",".join(clusters), 0, NO_POSITION, queues, topics, brokers)

    def _rocketmq_bounds(self, topic: str, data: QueueData, broker: BrokerData) -> dict[QueueName, tuple[int, int]]:
        """Bounds of the queues of a topic on one broker.

        Raises:
            Unavailable: it does not respond, or did not a moment ago. At most a fifth of the time is spent on brokers that do not,
                since the others are read meanwhile.
        """
        began = time.monotonic()
        again, why = self._failed.pop(data.broker_name, (began, ""))
        address = _master(broker)
        try:
            if began < again or address is None:
                raise Unavailable(why)
            firsts = self._offsets(address, RequestCode.GET_MIN_OFFSET, topic, data.read_queues)
            ends = self._offsets(address, RequestCode.GET_MAX_OFFSET, topic, data.read_queues)
            return {
                (topic, f"{data.broker_name}:{number}"): (min(first, end), end)
                for number, (first, end) in enumerate(zip(firsts, ends, strict=True))
            }
        except Unavailable as reason:
            now = time.monotonic()
            self._failed[data.broker_name] = (max(again, now + 4 * (now - began)), str(reason))
            raise

    def _offsets(self, address: Address, code: RequestCode, topic: str, queues: int) -> list[int]:
        """The offset of each queue of a topic on a broker. All are requested before the first response is awaited."""
        sent = [self._connections.send(address, code, {"topic": topic, "queueId": number}) for number in range(queues)]
        offsets = []
        try:
            for one in sent:
                answer = self._connections.receive(one)
                check_success(answer, code.name)
                offsets.append(read_reply(answer, OffsetReply).offset)
        finally:
            for one in sent[len(offsets) :]:
                one.connection.forget(one.opaque)
        return offsets

    def _route(self, topic: str) -> Route | None:
        """Brokers of the topic; None if it does not exist."""
        answer = self._ask_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        check_success(answer, f"the route of topic {topic}")
        return decode_route(answer.body)

    # --- reading

    def read(self, ranges: Ranges, lost: Lost) -> Iterator[StoredRows]:
        """The messages of ``ranges``. ``lost`` is called with a sentence about missing ones; if it returns, reading continues after them.

        Rows refer to memory that the next step of the iterator may use again.
        """
        if self._subscription.pattern:
            self._topics = tuple(sorted({one.topic for one in ranges.ranges}))
        for one in ranges.ranges:
            if one.broker or not self._raw.is_supported:
                yield from self._pulled.read_range(one, ranges.store, lost)
                continue
            at = yield from self._raw.read_range(one, ranges.store, lost)
            if at < one.end:
                yield from self._pulled.read_range(one._replace(start=at), ranges.store, lost)

    def is_planned_topic(self, one: QueueRange, store: str, begin: int, lost: Lost) -> bool:
        """Whether what was pulled until now is of the planned topic; otherwise messages from ``begin`` on are lost.

        A pull names the topic, and not its id, so after the topic was deleted and created again it would return other messages. Ids
        only increase: if the broker still has the planned one, all earlier pulls were from it. RocketMQ has no ids.
        """
        if one.broker:
            return True
        address = self._address_of_store(store, lost)
        if address is None:
            return False
        at = self._position(address, (one.topic,))
        if at is None or at.store != store:
            self._source = None
            raise Unavailable("another store is at the address of the broker")
        found = at.topics.get(one.topic)
        if found is not None and found.topic_id == one.topic_id:
            return True
        lost(
            f"topic {one.topic} no longer exists"
            if found is None
            else f"topic {one.topic} was deleted and created again: messages {begin} to {one.end - 1} of queue {one.queue} "
            "no longer exist"
        )
        return False

    def address_of(self, one: QueueRange, store: str, lost: Lost) -> Address | None:
        """See ``pull_reader.Planned``."""
        return self._address_in_cluster(one) if one.broker else self._address_of_store(store, lost)

    def is_elsewhere(self, address: Address, *, broken: bool) -> None:
        """See ``raw_reader.Planned``."""
        self._source = None
        if broken:
            self._connections.drop(address)

    def _address_of_store(self, planned: str, lost: Lost) -> Address | None:
        """Address of the halfmq broker with the planned store; None if another store has taken its place, whose queue offsets would
        be meaningless. A broker without the topics is another broker of the name server, and the planned one is away.
        """
        source = self._find_source()
        if source.store == planned:
            return source.address
        if not source.has_topics:
            raise Unavailable(elsewhere(planned, source.store, self._subscription.in_words()))
        lost(f"this is store {source.store}, but store {planned} was planned")
        return None

    def _address_in_cluster(self, one: QueueRange) -> Address:
        """Address of the broker of the range, from the route; from a new one after a connection broke."""
        known = self._brokers.get(one.broker)
        if known is not None and known in self._connections:
            return known
        route = self._route(one.topic)
        address = next(
            (_master(data) for data in (route.brokers if route else ()) if data.broker_name == one.broker), None
        )
        if address is None:
            raise Unavailable(f"broker {one.broker} is not in the route")
        self._brokers[one.broker] = address
        return address

    # --- requests

    def _ask_servers(self, code: int, fields: dict[str, object] | dict[str, str]) -> Request[dict[str, str]]:
        """Send the request to the server that responded last, else to the others."""
        reasons = []
        for _ in self._servers:
            try:
                return self._ask(self._servers[self._server], code, fields)
            except Unavailable as reason:
                reasons.append(str(reason))
                self._server = (self._server + 1) % len(self._servers)
        raise Unavailable("; ".join(reasons))

    def _ask(
        self, address: Address, code: int, fields: dict[str, object] | dict[str, str], body: bytes = b""
    ) -> Request[dict[str, str]]:
        return self._connections.ask(address, code, fields, body)

    def _name(self) -> str:
        return "rocketmq://" + ";".join(f"{host}:{port}" for host, port in self._servers)


def _addresses(broker: BrokerData) -> str:
    return broker.addresses.get(MASTER_ID, "no master")


def _master(broker: BrokerData) -> Address | None:
    """Address of its master; slaves are not read, since they may lag the plan."""
    host, _, port = broker.addresses.get(MASTER_ID, "").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None
