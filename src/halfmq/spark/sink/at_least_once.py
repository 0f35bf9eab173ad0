"""What a task does with ``guarantee=atLeastOnce``: it sends its rows as ordinary messages, Apache RocketMQ's or halfmq's, and ends when
brokers have confirmed all. There is no decision: a row is visible once its broker has stored it, also if the task or the batch fails later.

Of each queue at most one request is on the way, so its messages stay in their order; over all queues a few are. A request without a
response is sent again and may then be stored twice, with the same message ids. A queue that the rows name (or their sharding key) is waited
for. Other messages go to another queue if a broker does not respond or is busy, possibly of another broker, like RocketMQ's producer.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from halfmq.client.blocking import Answer, Connections, NameServers, Sent, Unavailable
from halfmq.client.log import logger
from halfmq.client.refusals import STORED, is_temporary, refusal
from halfmq.client.routing import DEFAULT_QUEUES, TEMPLATE_TOPIC
from halfmq.errors import NotAuthorized, RequestFailed, TopicNotFound, UsageError
from halfmq.model.address import Address
from halfmq.model.query_batch import QueryBatch
from halfmq.model.stored_message import AT_BODY_V4
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Ints
from halfmq.spark.sink.columns import ANY_QUEUE, groups_of
from halfmq.spark.sink.encoder import fixed_column
from halfmq.spark.sink.hashes import ID_PROPERTY_BYTES, put_id_properties, repeatable_ids
from halfmq.spark.sink.options import HALF_BATCH_ROWS, SinkOptions
from halfmq.spark.sink.waiting import Waiting
from halfmq.wire.remoting.codes import EXT_SENT_AGAIN, RequestCode, ResponseCode
from halfmq.wire.remoting.route import WRITE, Route

#: Body and properties of a batch are between these: see ``message_codec.split_batch``.
_ENTRY: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_bytes", ">i4")])
_DIGEST_BYTES: Final = 8
#: RocketMQ adds properties to each message of a batch: those of the request, and the name of its cluster.
_ADDED_BYTES_MAX: Final = 192
#: Of a batch, as RocketMQ's producers have it. No UNIQ_KEY: brokers up to 5.0 append these properties to those of each message.
_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"


class Content(NamedTuple):
    """Messages for one queue, ready to send. ``properties``: a property string, for the header of the request."""

    code: int
    properties: str
    body: bytes


def stored_sizes(rows: pa.RecordBatch, topic: str) -> Ints:
    """Bytes that a broker stores for each row, at most: RocketMQ limits the sum for a batch. ``rows``: of schema ``columns.ROWS``."""
    bodies = pc.binary_length(rows.column(0)).to_numpy()
    properties = pc.binary_length(rows.column(1)).to_numpy()
    sizes: Ints = bodies.astype(np.int64) + properties + (AT_BODY_V4 + 1 + len(topic) + 2 + _ADDED_BYTES_MAX)
    return sizes


def with_ids(rows: pa.RecordBatch, batch: QueryBatch, partition: int, first: int) -> pa.RecordBatch:
    """The rows, of schema ``columns.ROWS``, with UNIQ_KEY in their properties. ``first``: number of rows of the task before these.

    Raises:
        OverflowError: the task has more than 2**32 rows.
    """
    bodies, properties, tag_hashes, delays = rows.columns
    # Not their CRC: of millions of rows in another order, some would agree by chance.
    lengths = fixed_column(
        pc.binary_length(bodies).to_numpy().astype(">u8")
    )  # a body may contain what separates properties
    contents = pc.binary_join_element_wise(lengths, bodies, properties, b"").to_pylist()
    digests = b"".join([blake2b(one, digest_size=_DIGEST_BYTES).digest() for one in contents])
    ids = repeatable_ids(batch, partition, first, np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES))
    named = np.empty((len(ids), ID_PROPERTY_BYTES), np.uint8)
    put_id_properties(named, ids)
    joined = pc.binary_join_element_wise(fixed_column(named), properties, b"")
    return pa.RecordBatch.from_arrays([bodies, joined, tag_hashes, delays], schema=rows.schema)


def encode(rows: pa.RecordBatch) -> Content:
    """The rows as one request. One row is an ordinary message: with the head of a batch it might be larger than what brokers accept."""
    bodies, properties = rows.column(0), rows.column(1)
    if rows.num_rows == 1:
        return Content(RequestCode.SEND_MESSAGE_V2, properties[0].as_py().decode(), bodies[0].as_py())
    body_bytes = pc.binary_length(bodies).to_numpy()
    property_bytes = pc.binary_length(properties).to_numpy()
    entries = np.zeros(rows.num_rows, _ENTRY)
    entries["size"] = body_bytes.astype(np.int64) + property_bytes + (_ENTRY.itemsize + 2)
    entries["body_bytes"] = body_bytes
    lengths = property_bytes.astype(">u2")
    joined = pc.binary_join_element_wise(fixed_column(entries), bodies, fixed_column(lengths), properties, b"")
    content = bytes(memoryview(joined.buffers()[2])[: int(entries["size"].sum(dtype=np.int64))])
    return Content(RequestCode.SEND_BATCH_MESSAGE, _BATCH_PROPERTIES, content)


_log: Final = logger("halfmq.spark")
#: Requests on the way: enough that brokers store one while the next is encoded.
IN_FLIGHT_MAX: Final = 3


class Place(NamedTuple):
    """A queue of a topic."""

    broker: str
    queue: int


@dataclass(eq=False, slots=True)
class _Sending:
    """A request that is not confirmed."""

    topic: str
    place: Place
    content: Content
    is_fixed: bool
    #: None: not on the way.
    sent: Sent | None = None
    #: Whether it was sent before, without a response that settles it.
    is_repeated: bool = False


def places_of(route: Route) -> list[Place]:
    """The queues to write to, in RocketMQ's order, on which the queue of a sharding key depends. Those of brokers without a master are
    missing.
    """
    masters = route.masters()
    return [
        Place(data.broker_name, number)
        for data in sorted(route.queues)
        if data.permission & WRITE and data.broker_name in masters
        for number in range(data.write_queues)
    ]


class PlainBrokers:
    """All brokers of the topics. It connects on first use; the caller must call ``finish`` after the last message, and ``close``.

    Methods raise ConnectError if a broker was unavailable, or refused for the moment, for ``brokerTimeout``.
    """

    def __init__(self, options: SinkOptions, first: int) -> None:
        """``first``: where to begin among the queues."""
        self._group = options.group
        self._deadline = RetryDeadline(options.broker_timeout_ms)
        self._connections = Connections(options.url.security)
        self._names = NameServers(options.url, self._connections)
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
        sending = self._unconfirmed[topic, place] = _Sending(topic, place, content, queue != ANY_QUEUE)
        self._start(sending)

    def finish(self) -> None:
        """Wait until brokers have confirmed all messages. Raises as ``send``."""
        self._settle_until(lambda: not self._unconfirmed)

    def _settle_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._deadline.until(lambda: self._settle_some(condition), self._name())

    def _settle_some(self, condition: Callable[[], bool]) -> None:
        """Receive responses until the condition holds. If nothing is on the way, all is sent again first: not earlier, since connecting to
        a broker that is away may take seconds each time.

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
        elif is_temporary(answer.code, answer.ext):
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
        """Before it is sent again: find where its broker is now, or another queue if no row names this one. Whether it may be sent now: not
        if it should go to a queue that has an unconfirmed request.
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
                STORED[code],
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
            if not self._names.registered():
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
        route, queues_max = self._names.route(topic), None
        if route is None:
            route, queues_max = self._names.route(TEMPLATE_TOPIC), DEFAULT_QUEUES
            if route is None:
                return None
        if not any(data.permission & WRITE and data.write_queues for data in route.queues):
            raise NotAuthorized(f"topic {topic} has no queue to write to", response_code=ResponseCode.NO_PERMISSION)
        self._addresses |= route.masters()
        return [place for place in places_of(route) if queues_max is None or place.queue < queues_max]

    def _learn_addresses(self, topic: str) -> None:
        """A broker may be at another address than before. The known one is kept if the name servers do not know it now."""
        try:
            route = self._names.route(topic)
        except Unavailable:
            return
        if route is not None:
            self._addresses |= route.masters()

    def _name(self) -> str:
        return f"brokers of {self._names}"


def _refused(answer: Answer, sending: _Sending) -> RequestFailed:
    what = f"topic {sending.topic}, queue {sending.place.queue} of broker {sending.place.broker}"
    if answer.code == ResponseCode.MESSAGE_ILLEGAL:
        return RequestFailed(
            f"{what}: {answer.remark or 'no reason given'} (code {answer.code})",
            response_code=answer.code,
            hint="the message, or the request with many of them, is larger than the broker's maxMessageSize; option "
            "maxHalfBatchBytes limits the request",
        )
    return refusal(answer.code, answer.remark or "", what)


@dataclass(frozen=True, slots=True)
class Confirmed(WriterCommitMessage):
    """Number of messages that brokers have confirmed to a task."""

    messages: int


def write(batches: Iterator[pa.RecordBatch], options: SinkOptions, batch: QueryBatch, partition: int) -> Confirmed:
    """Send all rows; brokers have stored them when this returns. After an error any of them may be visible.

    Raises:
        UsageError, InvalidName, MessageTooLarge: a row is invalid.
        ConnectError, RequestFailed: a broker was unavailable for ``brokerTimeout``, or refuses.
    """
    with closing(PlainBrokers(options, partition)) as brokers:
        writer = _Writer(brokers, options, batch, partition)
        for rows in batches:
            writer.add(rows)
        writer.finish()
        return Confirmed(writer.messages)


class _Writer:
    def __init__(self, brokers: PlainBrokers, options: SinkOptions, batch: QueryBatch, partition: int) -> None:
        self._brokers = brokers
        self._topic = options.topic
        self._batch = batch
        self._partition = partition
        self._waiting = Waiting(options.request_bytes, HALF_BATCH_ROWS, stored_sizes, self._send)
        self.messages = 0

    def add(self, batch: pa.RecordBatch) -> None:
        queues_of = self._queues_to_name if _names_queues(batch) else self._brokers.queues
        groups = groups_of(batch, self._topic, queues_of, self._with_ids)
        self._waiting.add(groups)
        self.messages += batch.num_rows

    def finish(self) -> None:
        self._waiting.finish()
        self._brokers.finish()

    def _with_ids(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return with_ids(rows, self._batch, self._partition, self.messages)

    def _send(self, topic: str, queue: int, rows: pa.RecordBatch) -> None:
        self._brokers.send(topic, queue, encode(rows))

    def _queues_to_name(self, topic: str) -> int:
        """Number of queues of a topic whose rows name them. Raises UsageError if several brokers have it."""
        names = self._brokers.brokers(topic)
        if len(names) > 1:
            raise UsageError(
                f"column queue: a number names no queue of topic {topic}, which several brokers have: {', '.join(names)}",
                hint="use column sharding_key, or omit both: the messages are then distributed",
            )
        return self._brokers.queues(topic)


def _names_queues(batch: pa.RecordBatch) -> bool:
    return any(
        name.lower() == "queue" and column.null_count < batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    )
