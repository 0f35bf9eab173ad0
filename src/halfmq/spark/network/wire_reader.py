"""Plans reads from halfmq brokers or a cluster of Apache RocketMQ, over the network. ``raw_reader`` and ``pull_reader`` read.

A halfmq broker responds to HMQ_POSITION with the bounds of all queues at one log position, so a plan never splits a transaction: each is on
one broker. RocketMQ does not have this command: the reader queries the queues one after the other. (There a transaction has one
message.) Brokers come and go one by one, so a snapshot of several says which of them responded.

Sockets block, since a Spark task does nothing else meanwhile. A request that fails with its connection is repeated on a new one.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from halfmq import limits
from halfmq.client.blocking import Answer, Connections, NameServers, NotTrusted, Unavailable, check_success
from halfmq.client.log import logger
from halfmq.client.refusals import RETRIABLE
from halfmq.errors import ProtocolError, UsageError
from halfmq.model.address import Address
from halfmq.model.queue_reads import Position
from halfmq.spark.network.broker_source import Answers, Source, source_of
from halfmq.spark.network.pull_reader import Lost, PullReader
from halfmq.spark.network.queue_lookups import QueueLookups, RocketmqBounds, in_words, pull_fields
from halfmq.spark.network.raw_reader import RawReader
from halfmq.spark.options import Options
from halfmq.spark.plan.data_loss import wait_reason
from halfmq.spark.plan.offsets import (
    NO_POSITION,
    QueueBoundsSnapshot,
    QueueName,
    StreamOffset,
    is_rocketmq,
    merged_snapshot,
    queue_broker,
    queue_number,
)
from halfmq.spark.plan.partitions import QueueRange, Ranges, sample_start
from halfmq.spark.retry_deadline import Attempts, RetryDeadline
from halfmq.spark.rows.stored_rows import StoredRows
from halfmq.wire.remoting.attributes import change_body, hold_set
from halfmq.wire.remoting.codes import HMQ_POSITION, RequestCode, ResponseCode
from halfmq.wire.remoting.position import decode_answer, encode_samples, request_ext
from halfmq.wire.remoting.route import BrokerData

T = TypeVar("T")

_log: Final = logger("halfmq.spark")
#: How often a query asks whether other brokers have its topics, besides after a broken connection. Precedent: RocketMQ's clients.
IDENTIFY_S: Final = 30.0
#: How often a snapshot is repeated at once because new topics of the pattern were created meanwhile.
_REPEATS_MAX: Final = 16


class WireReader:
    """Reads from the brokers that ``options.url`` names know: a ``source.Reader``."""

    def __init__(self, options: Options, deadline: RetryDeadline) -> None:
        self._subscription = options.subscription
        #: The topics to read; with a pattern, those that exist.
        self._topics = options.topics
        self._group = options.group
        self._deadline = deadline
        self._lookups = QueueLookups(self._ask_queue, options.group, deadline)
        #: Where the group of ``publish`` exists. After a connection was opened another broker may be there.
        self._published: set[Address] = set()
        #: The store of each connected halfmq broker, if it was asked.
        self._stores: dict[Address, str] = {}
        assert options.url is not None
        self.security = options.url.security
        self._connections = Connections(self.security, self._opened)
        self._names = NameServers(options.url, self._connections)
        self._pulled = PullReader(self._address_in_cluster, self._connections, deadline, options.group)
        self._raw = RawReader(self, deadline, options.group)
        #: Position at which the pattern chose ``_topics``. Several brokers have none, so there it chooses for each snapshot.
        self._chosen_at = NO_POSITION
        #: What the name server led to, and when to ask it again.
        self._source: Source | None = None
        self._identify_at = 0.0
        #: Addresses of several brokers by name, as the name server last told.
        self._brokers: dict[str, Address] = {}
        self._attempts = Attempts()
        self._rocketmq = RocketmqBounds(self._names, self._connections, self._attempts)

    def close(self) -> None:
        self._connections.close()
        self._raw.close()

    def _opened(self, address: Address) -> None:
        self._published.discard(address)
        self._stores.pop(address, None)

    # --- planning

    def snapshot(self, known: Collection[str] = ()) -> QueueBoundsSnapshot:
        return self._deadline.until(lambda: self._try_snapshot(known), f"brokers of {self._names}")

    def _try_snapshot(self, known: Collection[str]) -> QueueBoundsSnapshot:
        """With a pattern, the topics are requested once more after the position: topics that did not exist before may have messages of
        a transaction below it.
        """
        for _ in range(_REPEATS_MAX):
            snapshot = self._snapshot_of_topics(known)
            if not self._subscription.pattern or snapshot.position == self._chosen_at != NO_POSITION:
                return snapshot
            existing = self._existing(known)
            is_complete = set(existing) <= set(self._topics)
            if existing != self._topics:
                self._topics = existing
                self._identify_at = 0.0  # they may be on other brokers
            if is_complete:
                self._chosen_at = snapshot.position
                return snapshot
        raise Unavailable("new topics are created all the time")

    def _existing(self, known: Collection[str]) -> tuple[str, ...]:
        """The topics of the name server that the pattern matches."""
        topics = self._names.topics()
        brokers = self._names.registered().values() if self._find_source(known).is_rocketmq else ()
        return self._subscription.chosen(
            topics, {data.broker_name for data in brokers} | {data.cluster for data in brokers}
        )

    def _snapshot_of_topics(self, known: Collection[str]) -> QueueBoundsSnapshot:
        source = self._find_source(known, recheck=True)
        if source.is_rocketmq:
            return self._rocketmq.snapshot(self._topics)
        if source.is_several:
            return self._several_snapshot(source)
        ((name, broker),) = source.brokers.items()
        return self._bounds(name, broker.address)

    def _several_snapshot(self, source: Source) -> QueueBoundsSnapshot:
        """A broker that fails now is away, too."""
        found = {}
        away = dict(source.away)
        for name, broker in source.brokers.items():
            try:
                found[name] = self._attempts.of(name, partial(self._bounds, name, broker.address))
            except Unavailable as reason:
                away[name] = str(reason)
        return merged_snapshot(found, away)

    def _bounds(self, name: str, address: Address) -> QueueBoundsSnapshot:
        """The bounds of all queues of a halfmq broker, at one position."""
        at = self._position(address, self._topics)
        if at is None:
            self._source = None
            raise Unavailable(f"a RocketMQ broker has replaced the halfmq broker {name}")
        queues = {
            (topic, str(number)): bounds
            for topic, found in at.topics.items()
            for number, bounds in enumerate(found.queues)
        }
        topics = {topic: found.topic_id for topic, found in at.topics.items()}
        return QueueBoundsSnapshot(at.store, at.epoch, at.position, queues, topics)

    def size_samples(self, sliced: Sequence[QueueRange]) -> list[tuple[int, int]] | None:
        source = self._source
        if source is None:
            return None
        by_address: dict[Address, list[int]] = {}
        for number, one in enumerate(sliced):
            broker = source.brokers.get(one.broker) if one.broker else source.only
            if broker is None:
                return None  # it is away, or a RocketMQ broker
            by_address.setdefault(broker.address, []).append(number)
        found: dict[int, tuple[int, int]] = {}
        try:
            for address, numbers in by_address.items():
                for first in range(0, len(numbers), limits.SIZE_SAMPLES_MAX):
                    chunk = numbers[first : first + limits.SIZE_SAMPLES_MAX]
                    sizes = self._sizes(address, [sliced[number] for number in chunk])
                    if sizes is None:
                        return None
                    found |= zip(chunk, sizes, strict=True)
        except Unavailable:
            return None
        return [found[number] for number in range(len(sliced))]

    def _sizes(self, address: Address, sliced: Sequence[QueueRange]) -> list[tuple[int, int]] | None:
        """See ``size_samples``; of one broker, in one request."""
        # The response lists the samples of each topic; slices are ordered by topic.
        samples: dict[str, list[tuple[int, int]]] = {}
        for one in sliced:
            samples.setdefault(one.topic, []).append((one.queue, sample_start(one)))
        at = self._position(address, tuple(samples), encode_samples(samples))
        found: list[tuple[int, int]] = []
        for topic, asked in samples.items():
            sizes = at.topics[topic].sizes if at is not None and topic in at.topics else ()
            if len(sizes) != len(asked):
                return None  # the topic was just deleted
            found += sizes
        return found

    def offsets_at(
        self, times_ms: Mapping[QueueName, int], snapshot: QueueBoundsSnapshot
    ) -> dict[QueueName, int | None]:
        return {queue: self._lookups.offset_at(queue, time_ms, snapshot) for queue, time_ms in times_ms.items()}

    def fitting(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        return self._lookups.fitting(queue, start, end, bytes_max, snapshot)

    def publish(self, offset: StreamOffset) -> None:
        """Commit the offsets for ``group``, for statistics of consumers, and for retention that waits for them.

        Raises:
            Unavailable: a broker is away; the offsets of the others were sent.
        """
        snapshot = QueueBoundsSnapshot(offset.store, offset.epoch, offset.position, {}, {}, {}, offset.stores)
        away: Unavailable | None = None
        for queue, at in offset.queues.items():
            try:
                self._publish_queue(self._address_of(queue, snapshot), queue, at)
            except Unavailable as reason:
                away = reason
        if away is not None:
            raise away

    def hold(self, topics: Sequence[str]) -> bool:
        """Let retention wait until ``group`` has read ``topics``. The age limit of the group's hold stays as it is. False: no broker has
        the topics yet, call it again.

        Raises:
            UsageError: it is a RocketMQ broker. Unavailable: a broker is away. RequestFailed: it rejected the hold.
        """
        source = self._find_source()
        if source.is_rocketmq:
            raise UsageError(f"hold needs a halfmq broker, {self._names} is a RocketMQ cluster", hint="remove hold")
        body = change_body(self._group, hold_set(topics))
        for broker in source.brokers.values():
            answer = self._connections.ask(broker.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
            check_success(answer, f"the hold of group {self._group}")
        return bool(source.brokers)

    def _publish_queue(self, address: Address, queue: QueueName, at: int) -> None:
        topic, name = queue
        number = queue_number(name)
        if address not in self._published:
            # A pull creates the group, if it does not exist. Whether it finds messages does not matter.
            self._connections.ask(address, RequestCode.PULL_MESSAGE, pull_fields(self._group, topic, number, at, 1))
            self._published.add(address)
        fields = {"consumerGroup": self._group, "topic": topic, "queueId": number, "commitOffset": at}
        self._connections.send(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)

    def _ask_queue(
        self, queue: QueueName, snapshot: QueueBoundsSnapshot, code: int, fields: Mapping[str, object]
    ) -> Answer:
        """Ask the broker of a queue. A pull may be answered by a rejection."""
        answer = self._connections.ask(self._address_of(queue, snapshot), code, dict(fields))
        if code != RequestCode.PULL_MESSAGE or answer.code in RETRIABLE:
            check_success(answer, f"request {code} for {in_words(queue)}")
        return answer

    def _address_of(self, queue: QueueName, snapshot: QueueBoundsSnapshot) -> Address:
        """Address of the broker that has the queue.

        Raises:
            Unavailable: another store is at its address, or it is not in the route.
        """
        topic, name = queue
        broker = queue_broker(name)
        if is_rocketmq(snapshot.store):
            return self._address_in_cluster(topic, broker)
        if broker:
            address = self._registered_address(broker)
            if self._store_at(address) == snapshot.stores[broker].store:
                return address
        elif (found := self._find_source().with_store(snapshot.store)) is not None:
            return found.address
        raise Unavailable("another store is at the address of the broker")

    def _position(self, address: Address, topics: tuple[str, ...], body: bytes = b"") -> Position | None:
        """``topics`` of a halfmq broker at its position; None if the broker is a RocketMQ broker."""
        answer = self._connections.ask(address, HMQ_POSITION, request_ext(topics), body)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        check_success(answer, f"HMQ_POSITION to {address}")
        return decode_answer(answer.ext, answer.body)

    def _find_source(self, known: Collection[str] = (), *, recheck: bool = False) -> Source:
        """What to read. Halfmq brokers are cached until a connection breaks; ``recheck``: at most for ``IDENTIFY_S``. ``known``: see
        ``snapshot``; without it, brokers that were found with it are as good.

        Raises:
            UsageError: halfmq and RocketMQ brokers have the topics.
        """
        cached = self._source if self._is_current(self._source, known) else None
        if cached is not None and not (recheck and time.monotonic() >= self._identify_at):
            return cached
        try:
            self._source = self._identify(known)
        except Unavailable:
            if not self._is_current(cached, known) or cached is None:
                raise
            return cached
        self._identify_at = time.monotonic() + IDENTIFY_S
        return self._source

    def _is_current(self, source: Source | None, known: Collection[str]) -> bool:
        """Whether ``source`` was of halfmq brokers that are all still connected, also those of ``known``."""
        return (
            source is not None
            and bool(source.brokers)
            and not source.away
            and all(name in source.brokers for name in known)
            and (source.is_several or not known)
            and all(broker.address in self._connections for broker in source.brokers.values())
        )

    def _identify(self, known: Collection[str]) -> Source:
        """Ask the name server for the brokers that have the topics, and these who they are.

        HMQ_POSITION goes to brokers only, since name servers before 5.0 do not respond to unknown commands.
        """
        registered = self._names.registered()
        routed = registered.keys() & self._names.routed(self._topics) if len(registered) > 1 or known else set()
        answers = Answers({}, set(), {})
        asked = sorted(routed | (registered.keys() & set(known)) or registered)
        for name in asked:
            address = registered[name].master
            if address is None:
                answers.away[name] = "its master is not registered"
                continue
            try:
                ask = partial(self._position, address, self._topics)
                at = self._attempts.of(name, ask) if len(asked) > 1 else ask()
            except Unavailable as reason:
                if len(asked) == 1 and isinstance(reason, NotTrusted):
                    raise
                answers.away[name] = str(reason)
                continue
            if at is None:
                answers.rocketmq.add(name)
            else:
                answers.halfmq[name] = (address, at)
        return source_of(registered, routed, known, answers, self._topics)

    def only_broker(self, what: str) -> tuple[Address, str]:
        """(address, store) of the one halfmq broker that the name server knows. ``what``: what needs it, for the text of an error.

        Raises:
            UsageError: it knows Apache RocketMQ, or several brokers.
        """
        source = self._find_source(recheck=True)
        if source.only is not None:
            return source.only.address, source.only.store
        named = ", ".join(f"{name} ({data.master_text})" for name, data in sorted(self._names.registered().items()))
        if source.is_rocketmq:
            raise UsageError(
                f"{what} needs the transaction table of a halfmq broker; Apache RocketMQ keeps no table of transactions and their "
                f"outcomes, and {self._names} knows {named}",
                hint="read its messages, without `view`",
            )
        raise UsageError(
            f"{what} reads one halfmq broker; {self._names} knows several brokers: {named}",
            hint="url=rocketmq:// and the address of the broker, which is a name server too",
        )

    # --- reading

    def read(self, ranges: Ranges, lost: Lost) -> Iterator[StoredRows]:
        if self._subscription.pattern:
            self._topics = tuple(sorted({one.topic for one in ranges.ranges}))
        for one in ranges.ranges:
            store = ranges.store_of(one)
            if is_rocketmq(store):
                yield from self._pulled.read_range(one, lost)
            else:
                yield from self._raw.read_range(one, store, lost)

    def is_planned_topic(self, one: QueueRange, store: str, begin: int, lost: Lost) -> bool:
        """Whether the planned topic is still there; otherwise messages from ``begin`` on are lost."""
        address = self.address_of(one, store, lost)
        if address is None:
            return False
        at = self._position(address, (one.topic,))
        if at is None or at.store != store:
            self.look_up_again(address, broken=False)
            raise Unavailable("another store is at the address of the broker")
        found = at.topics.get(one.topic)
        if found is not None and found.topic_id == one.topic_id:
            return True
        lost(
            f"topic {one.topic} no longer exists{f' on broker {one.broker}' if one.broker else ''}"
            if found is None
            else f"topic {one.topic} was deleted and created again: messages {begin} to {one.end - 1} of queue "
            f"{f'{one.broker}:' if one.broker else ''}{one.queue} no longer exist"
        )
        return False

    def address_of(self, one: QueueRange, store: str, lost: Lost) -> Address | None:
        """Address of the broker with the planned store; None: it no longer exists, which ``lost`` was told."""
        if not one.broker:
            return self._address_of_store(store, lost)
        address = self._registered_address(one.broker)
        there = self._store_at(address)
        if there == store:
            return address
        lost(f"broker {one.broker} has store {there}, but store {store} was planned")
        return None

    def intact(self, address: Address, read: Callable[[], T | None], close: Callable[[], None], what: str) -> T:
        """The result of ``read``, a request to the broker at the address; None: the checksum of the response is wrong. ``read`` is then
        called once more, after ``close``: a checksum that is wrong again on a new connection is not the network's fault.

        Raises:
            ProtocolError: both were wrong, or ``read`` raised it. Unavailable: as ``read``.
        """
        for is_last in (False, True):
            try:
                found = read()
            except (Unavailable, ProtocolError) as error:
                close()
                if isinstance(error, Unavailable):
                    self.look_up_again(address, broken=True)
                raise
            if found is not None:
                return found
            close()
            if not is_last:
                _log.warning("halfmq: a response of %s has a wrong checksum; reading it again", address)
        raise ProtocolError(f"{what} has a wrong checksum")

    def look_up_again(self, address: Address, *, broken: bool) -> None:
        """The address may no longer be that of the store: look it up again. ``broken``: nobody responds there."""
        self._source = None
        self._stores.pop(address, None)
        if broken:
            self._connections.drop(address)

    def _address_of_store(self, planned: str, lost: Lost) -> Address | None:
        """Address of the halfmq broker with the planned store; None if another store has taken its place, whose queue offsets would
        be meaningless. A broker without the topics is another broker of the name server, and the planned one is away.
        """
        source = self._find_source()
        broker = source.with_store(planned)
        if broker is not None:
            return broker.address
        if source.is_several or not source.has_topics:
            there = QueueBoundsSnapshot(source.store, 0, NO_POSITION, {}, {})
            raise Unavailable(wait_reason(planned, there, self._subscription.in_words()))
        lost(f"this is store {source.store}, but store {planned} was planned")
        return None

    def _address_in_cluster(self, topic: str, broker: str) -> Address:
        """Address of a RocketMQ broker that has the topic, from the route; from a new one after a connection broke."""
        return self._cached_address(broker, lambda: route.brokers if (route := self._names.route(topic)) else ())

    def _registered_address(self, broker: str) -> Address:
        """Address of one of several halfmq brokers, which need not have the topic any more."""
        return self._cached_address(broker, lambda: self._names.registered().values())

    def _cached_address(self, broker: str, look_up: Callable[[], Iterable[BrokerData]]) -> Address:
        known = self._brokers.get(broker)
        if known is not None and known in self._connections:
            return known
        address = next((data.master for data in look_up() if data.broker_name == broker), None)
        if address is None:
            raise Unavailable(f"broker {broker} is not registered with the name server")
        self._brokers[broker] = address
        return address

    def _store_at(self, address: Address) -> str:
        """The store of the halfmq broker at the address."""
        if address not in self._stores or address not in self._connections:
            at = self._position(address, ())
            if at is None:
                raise Unavailable("a RocketMQ broker has replaced the halfmq broker")
            self._stores[address] = at.store
        return self._stores[address]
