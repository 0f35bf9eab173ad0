"""Name server and brokers whose responses a test defines, as halfmq or as RocketMQ shows them, for the Spark source."""

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql.streaming.datasource import ReadAllAvailable

from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqStreamReader
from halfmq.spark.wire_reader import WireReader
from halfmq.wire.remoting import fitting, route
from halfmq.wire.remoting.codes import HMQ_FITTING, HMQ_POSITION, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_pull_response_head, encode_response
from halfmq.wire.remoting.position import PositionAnswer, TopicBounds, asked_samples, asked_topics, encode_answer
from tests.support.scripted_server import ScriptedServer

STORE = "ab" * 16
V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
V6 = bytes(15) + b"\x01\x00\x00\x2a\x9f"


def stored(queue_offset: int, body: bytes, *, sys_flag: int = 0, host: bytes = V4) -> bytes:
    made = StoredMessage(
        "orders", 0, queue_offset, 0, sys_flag, 1, host, 1_000 + queue_offset, V4, 0, 0, body, body_crc_of(body), b""
    )
    return b"".join(encode(made, queue_offset * 100))


class Broker:
    """One topic with one queue, offsets ``first`` to ``end``, as halfmq or (``stock``) as RocketMQ shows it."""

    def __init__(self) -> None:
        self.first, self.end = 0, 10
        self.store = STORE
        self.has_topic = True
        self.position = 500
        #: The topics that exist, and those that are created once HMQ_POSITION was answered.
        self.names = ["orders"]
        self.soon: list[str] = []
        #: Whether it knows HMQ_FITTING.
        self.tells_sizes = True
        #: What it answers to a search by time instead of the right offset.
        self.search_answer: Callable[[int], int] | None = None
        self.topic_id = 3
        self.stock = False
        self.refuse: list[int] = []
        self.refusal_ext: dict[str, str] = {}
        #: Requests with samples; negative: as a broker that ignores them.
        self.sample_requests = 0
        self.drop = 0
        self.pull_messages_max = 4
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
                    if self.has_topic and name in asked_topics(request.ext)
                }
                self.names, self.soon = self.names + self.soon, []
                ext, body = encode_answer(PositionAnswer(self.store, 2, self.position, topics))
                return encode_response(request, 0, ext=ext, body=body)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return encode_response(request, 0, body=route.encode_cluster_info(self.brokers(), 401))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                own = ["c", "broker-a", "c_REPLY_TOPIC"] if self.stock else []
                return encode_response(request, 0, body=msgspec.json.encode({"topicList": [*self.names, *own]}))
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                at = min(max(request.ext.timestamp - 1_000, self.first), self.end)
                at = self.search_answer(at) if self.search_answer else at
                return encode_response(request, 0, ext={"offset": at})
            case int() if request.code == HMQ_FITTING and self.tells_sizes and not self.stock:
                asked = fitting.decode_request(request.ext)
                assert isinstance(asked, fitting.FittingRequest)
                sizes = [len(stored(at, b"body %d" % at)) for at in range(asked.offset, asked.end)][:3]
                fits = [count for count in range(len(sizes) + 1) if sum(sizes[:count]) <= asked.bytes_max]
                return encode_response(request, 0, ext=fitting.encode_answer(fits[-1], sum(sizes[: fits[-1]])))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if request.ext.topic in self.names:
                address = {0: f"127.0.0.1:{self.server.port}"}
                found = route.Route(
                    (route.BrokerData("c", "broker-a", address),), (route.QueueData("broker-a", 1, 1, 6),)
                )
                return encode_response(request, 0, body=route.encode_route(found, 401))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return encode_response(request, ResponseCode.TOPIC_NOT_EXIST, "no topic")
            case RequestCode.GET_MIN_OFFSET:
                return encode_response(request, 0, ext={"offset": self.first})
            case RequestCode.GET_MAX_OFFSET:
                return encode_response(request, 0, ext={"offset": self.end})
            case RequestCode.PULL_MESSAGE:
                return self.pull(request)
        return encode_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def brokers(self) -> tuple[route.BrokerData, ...]:
        return (route.BrokerData("c", "broker-a", {0: f"127.0.0.1:{self.server.port}"}),)

    def pull(self, request: Request[Any]) -> bytes:
        at = request.ext.queue_offset
        if at < self.first:
            return encode_pull_response_head(request, 21, "PULL_OFFSET_MOVED", self.first, self.first, self.end, 0)
        if at >= self.end:
            return encode_pull_response_head(request, 19, "PULL_NOT_FOUND", at, self.first, self.end, 0)
        after = min(self.end, at + self.pull_messages_max)
        body = b"".join(stored(number, b"body %d" % number) for number in range(at, after))
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

    def data(self, name: str) -> route.BrokerData:
        return route.BrokerData(self.clusters.get(name, "c"), name, {0: f"127.0.0.1:{self.brokers[name].server.port}"})

    def answer(self, request: Request[Any]) -> bytes:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            found = [self.data(name) for name in self.brokers if name in self.registered]
            return encode_response(request, 0, body=route.encode_cluster_info(found, 401))
        having = [name for name in sorted(self.registered) if self.brokers[name].has_topic]
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            topics = sorted({topic for name in having for topic in self.brokers[name].names})
            return encode_response(request, 0, body=msgspec.json.encode({"topicList": topics}))
        names = [name for name in having if request.ext.topic in self.brokers[name].names]
        if not names:
            return encode_response(request, ResponseCode.TOPIC_NOT_EXIST, "no topic")
        queues = tuple(route.QueueData(name, 1, 1, 6) for name in names)
        found_route = route.Route(tuple(self.data(name) for name in names), queues)
        return encode_response(request, 0, body=route.encode_route(found_route, 401))

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
