"""Name server and brokers whose responses a test defines, as halfmq or as RocketMQ shows them, for the Spark source."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql.streaming.datasource import ReadAllAvailable

from halfmq.model.queue_reads import Position, TopicBounds
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqStreamReader
from halfmq.store.layout import QUEUE_ENTRY
from halfmq.wire.remoting import route
from halfmq.wire.remoting.codes import HMQ_FITTING, HMQ_POSITION, HMQ_RAW_READ, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_pull_response_head, encode_response, encode_response_head
from halfmq.wire.remoting.position import (
    FittingAnswer,
    FittingFields,
    PositionFields,
    asked_samples,
    asked_topics,
    encode_answer,
)
from halfmq.wire.remoting.raw_read import BETWEEN_BYTES, HEAD_BYTES, RawReadFields, body_bytes, complete_frame
from tests.support.scripted_server import ScriptedServer

STORE = "ab" * 16
V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
V6 = bytes(15) + b"\x01\x00\x00\x2a\x9f"


def stored(
    at: int, body: bytes | None = None, *, topic: str = "orders", sys_flag: int = 0, host: bytes = V4, time_ms: int = -1
) -> bytes:
    """The message at offset ``at`` of queue 0, as in the log: "body AT", at time 1000 + AT."""
    body = b"body %d" % at if body is None else body
    time_ms = 1_000 + at if time_ms < 0 else time_ms
    made = StoredMessage(topic, 0, at, 0, sys_flag, 1, host, time_ms, V4, 0, 0, body, body_crc_of(body), b"")
    return b"".join(encode(made, at * 100))


class RawReads:
    """What a broker answers to raw reads of one queue, of which all messages have one size."""

    def __init__(self) -> None:
        #: Where each began.
        self.firsts: list[int] = []
        #: Where the last one ended, by connection: each has a thread.
        self._ended: dict[int, int] = {}

    def answer(
        self, request: Request[Any], store: str, topic_id: int, bounds: tuple[int, int], messages_max: int,
        runs: Callable[[int], Sequence[int]], message: Callable[[int], bytes],
    ) -> bytes:  # fmt: skip
        """``runs``: lengths of the runs of so many messages. Messages of odd offsets were no halves."""
        fields = read_fields(RawReadFields, request.ext)
        at = self._ended[threading.get_ident()] if fields.continues else fields.first
        self.firsts.append(at)
        if fields.store != store:
            return encode_response(request, 22, "another store", {"store": store})
        if fields.topic_id != topic_id:
            return encode_response(request, 17, "no such topic")
        if at < bounds[0]:
            return encode_response(request, 21, None, {"nextBeginOffset": bounds[0]})
        if at >= min(bounds[1], fields.end):
            return encode_response(request, 19, None, {"nextBeginOffset": bounds[1]})
        self._ended[threading.get_ident()] = after = min(bounds[1], fields.end, at + messages_max)
        messages = [message(number) for number in range(at, after)]
        data = bytearray(HEAD_BYTES)
        lengths = runs(len(messages))
        places = [(run, place) for run, count in enumerate(lengths) for place in range(count)]
        for number, (run, place) in zip(range(at, after), places, strict=True):
            offset = at * 1_000 + run * 1_000_000 + (BETWEEN_BYTES + len(messages[0])) * place
            half_index = -1 if number % 2 else 5
            data += QUEUE_ENTRY.pack(offset, len(messages[0]), 0, 1, 1_000 + number, half_index, 0)
        data += b"".join(count.to_bytes(4, "big") for count in lengths)
        for content, (_, place) in zip(messages, places, strict=True):
            data += (b"?" * BETWEEN_BYTES if place else b"") + content
        ext = {"entries": len(messages), "runs": len(lengths), "nextBeginOffset": after, "continues": 1}
        return bytes(complete_frame(encode_response_head(request, 0, None, ext, body_bytes(data)), data))


def names(request: Request[Any], brokers: Mapping[str, "Broker"], clusters: Mapping[str, str] | None = None) -> bytes:
    """The response of a name server with these brokers. ``clusters``: those of brokers that are not in "c"."""

    def data(name: str) -> route.BrokerData:
        address = f"127.0.0.1:{brokers[name].server.port}"
        return route.BrokerData((clusters or {}).get(name, "c"), name, {0: address})

    if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
        return encode_response(request, 0, body=route.encode_cluster_info([data(name) for name in brokers], 401))
    having = {name: broker for name, broker in sorted(brokers.items()) if broker.has_topic}
    if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
        own = {"c", "broker-a", "c_REPLY_TOPIC"} if any(broker.stock for broker in brokers.values()) else set()
        topics = sorted(own.union(*(broker.names for broker in having.values())))
        return encode_response(request, 0, body=msgspec.json.encode({"topicList": topics}))
    if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
        return encode_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
    found = [name for name, broker in having.items() if request.ext.topic in broker.names]
    if not found:
        return encode_response(request, ResponseCode.TOPIC_NOT_EXIST, "no topic")
    queues = tuple(route.QueueData(name, 1, 1, 6) for name in found)
    return encode_response(request, 0, body=route.encode_route(route.Route(tuple(map(data, found)), queues), 401))


class Broker:
    """One topic with one queue, offsets ``first`` to ``end``, as halfmq or (``stock``) as RocketMQ shows it."""

    def __init__(self) -> None:
        self.first, self.end = 0, 10
        self.store = STORE
        self.has_topic = True
        #: At itself, as the only name server.
        self.is_registered = True
        self.position = 500
        #: The topics that exist, and those that are created once HMQ_POSITION was answered.
        self.names = ["orders"]
        self.soon: list[str] = []
        #: What it answers to a search by time instead of the right offset.
        self.search_answer: Callable[[int], int] | None = None
        self.topic_id = 3
        self.stock = False
        self.raw_reads = RawReads()
        self.refuse: list[int] = []
        self.refusal_ext: dict[str, str] = {}
        #: Requests with samples; negative: as a broker that ignores them.
        self.sample_requests = 0
        self.drop = 0
        self.pull_messages_max = 4
        #: Messages of a response, by its first offset; otherwise ``pull_messages_max``.
        self.pull_counts: dict[int, int] = {}
        #: Closed with it.
        self.readers: list[WireReader] = []
        self.server = ScriptedServer(self.answer)

    def answer(self, request: Request[Any]) -> bytes | None:
        if self.drop:
            self.drop -= 1
            return None
        if self.refuse:
            return encode_response(request, self.refuse.pop(0), "refused by the test", self.refusal_ext)
        match request.code:
            case int() if request.code == HMQ_POSITION and not self.stock:
                samples = asked_samples(request.body).get("orders", [])
                self.sample_requests += bool(samples)
                sizes = tuple((16, 1_000 + offset) for _, offset in samples) if self.sample_requests >= 0 else ()
                topics = {
                    name: TopicBounds(
                        self.topic_id + number, ((self.first, self.end),), sizes if name == "orders" else ()
                    )
                    for number, name in enumerate(self.names)
                    if self.has_topic and name in asked_topics(read_fields(PositionFields, request.ext))
                }
                self.names, self.soon = self.names + self.soon, []
                ext, body = encode_answer(Position(self.store, 2, self.position, topics))
                return encode_response(request, 0, ext=ext, body=body)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                at = min(max(request.ext.timestamp - 1_000, self.first), self.end)
                at = self.search_answer(at) if self.search_answer else at
                return encode_response(request, 0, ext={"offset": at})
            case int() if request.code == HMQ_FITTING and not self.stock:
                asked = read_fields(FittingFields, request.ext)
                sizes = [len(stored(at)) for at in range(asked.offset, asked.end)][:3]
                fits = [count for count in range(len(sizes) + 1) if sum(sizes[:count]) <= asked.bytes_max]
                return encode_response(request, 0, ext=write_fields(FittingAnswer(fits[-1], sum(sizes[: fits[-1]]))))
            case RequestCode.GET_MIN_OFFSET:
                return encode_response(request, 0, ext={"offset": self.first})
            case RequestCode.GET_MAX_OFFSET:
                return encode_response(request, 0, ext={"offset": self.end})
            case RequestCode.PULL_MESSAGE:
                return self.pull(request)
            case int() if request.code == HMQ_RAW_READ and not self.stock:
                return self.raw(request)
        return names(request, {"broker-a": self} if self.is_registered else {})

    def raw(self, request: Request[Any]) -> bytes:
        """Each message is a run."""
        topic_id = self.topic_id if self.has_topic else -1
        bounds = (self.first, self.end)
        return self.raw_reads.answer(request, self.store, topic_id, bounds, 4, lambda count: [1] * count, stored)

    def pull(self, request: Request[Any]) -> bytes:
        at = request.ext.queue_offset
        if at < self.first:
            return encode_pull_response_head(request, 21, "PULL_OFFSET_MOVED", self.first, self.first, self.end, 0)
        if at >= self.end:
            return encode_pull_response_head(request, 19, "PULL_NOT_FOUND", at, self.first, self.end, 0)
        after = min(self.end, at + self.pull_counts.get(at, self.pull_messages_max))
        body = b"".join(map(stored, range(at, after)))
        return encode_pull_response_head(request, 0, "FOUND", after, self.first, self.end, len(body)) + body


class Cluster:
    """A name server and its brokers. A broker that is not ``registered`` is in none of its responses."""

    def __init__(self, *names: str, stock: bool = True) -> None:
        self.brokers = {name: Broker() for name in names}
        self.registered = set(names)
        #: Clusters of brokers; "c" otherwise.
        self.clusters: dict[str, str] = {}
        #: Closed with it.
        self.streams: list[HalfmqStreamReader] = []
        self.server = ScriptedServer(self.answer)
        for number, broker in enumerate(self.brokers.values()):
            broker.stock = stock
            broker.store = f"{number:032x}"

    def answer(self, request: Request[Any]) -> bytes:
        found = {name: broker for name, broker in self.brokers.items() if name in self.registered}
        return names(request, found, self.clusters)

    def stream(self, **more: str) -> HalfmqStreamReader:
        given = {"url": self.server.url, "subscribe": "orders", "brokerTimeout": "200ms", **more}
        if "subscribePattern" in more:
            del given["subscribe"]
        made = HalfmqStreamReader(parse_options({"startingOffsets": "earliest", **given}).for_stream())
        self.streams.append(made)
        return made

    def only(self, *names: str) -> None:
        """Brokers that have topic "orders"."""
        for name, broker in self.brokers.items():
            broker.has_topic = name in names

    def away(self, name: str) -> None:
        """Unreachable, while the name server does not know yet."""
        self.brokers[name].server.close()

    def close(self) -> None:
        for stream in self.streams:
            stream.stop()
        self.server.close()
        for broker in self.brokers.values():
            broker.server.close()


def read_all(made: HalfmqStreamReader, planned: list[Any]) -> list[Any]:
    return [batch for part in planned for batch in made.read(part)]


BOTH_READ = {"broker-a:0": 10, "broker-b:0": 10}


def end_of(stream: HalfmqStreamReader, start: dict[str, Any] | None = None) -> dict[str, Any]:
    return stream.latestOffset(start or stream.initialOffset(), ReadAllAvailable())
