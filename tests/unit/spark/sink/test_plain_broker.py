"""Sends of ordinary messages: order within a queue, brokers that are away or busy, refusals, routes."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.scripted_server import ScriptedServer
from tests.support.sink_runs import options

from halfmq.errors import ConnectError, HalfmqError, NotAuthorized, RequestFailed, TopicNotFound
from halfmq.spark.sink.at_least_once import IN_FLIGHT_MAX, Content, Place, PlainBrokers, places_of
from halfmq.spark.sink.columns import ANY_QUEUE
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.route import BrokerData, QueueData, Route, encode_cluster_info, encode_route

READ_WRITE = 6


def one(body: bytes) -> Content:
    return Content(RequestCode.SEND_MESSAGE_V2, "UNIQ_KEY\x01A\x02", body)


class Cluster:
    """A name server and two brokers of topic T with two queues each; ``answers``: what a broker responds, by its name."""

    def __init__(self) -> None:
        self.names = ScriptedServer(self._route)
        self.brokers = {name: ScriptedServer(lambda request, name=name: self._send(name, request)) for name in "ab"}  # type: ignore[misc]
        self.answers: dict[str, Callable[[Request[Any]], bytes | None]] = {}
        self.stored: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.routes = {"T": [QueueData("b", 2, 2, READ_WRITE), QueueData("a", 2, 2, READ_WRITE)]}
        self.made: list[PlainBrokers] = []

    def client(self, first: int = 0, **given: str) -> PlainBrokers:
        self.made.append(PlainBrokers(options(self.names.port, **{"brokerTimeout": "2", **given}), first))
        return self.made[-1]

    def data(self) -> tuple[BrokerData, ...]:
        return tuple(BrokerData("c", name, {0: f"127.0.0.1:{one.port}"}) for name, one in self.brokers.items())

    def _route(self, request: Request[Any]) -> bytes:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return encode_response(request, 0, body=encode_cluster_info(self.data(), 500))
        queues = self.routes.get(request.ext.topic)
        if queues is None:
            return encode_response(request, 17, "no topic route info")
        return encode_response(request, 0, body=encode_route(Route(self.data(), tuple(queues)), 500))

    def _send(self, name: str, request: Request[Any]) -> bytes | None:
        if name in self.answers:
            return self.answers[name](request)
        return self.store(name, request)

    def store(self, name: str, request: Request[Any], code: int = 0) -> bytes:
        self.stored[name, request.ext.queue_id].append(bytes(request.body))
        return encode_response(request, code, ext={"msgId": "", "queueId": 0, "queueOffset": 0})

    def close(self) -> None:
        for client in self.made:
            client.close()
        for server in (self.names, *self.brokers.values()):
            server.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def all_stored(cluster: Cluster) -> list[bytes]:
    return sorted(body for bodies in cluster.stored.values() for body in bodies)


# --- queues ---------------------------------------------------------------------------------------------------


def test_queues_are_those_of_masters_that_may_be_written_in_the_order_of_rocketmq() -> None:
    queues = (
        QueueData("b", 1, 2, READ_WRITE), QueueData("a", 9, 1, 2), QueueData("no master", 1, 1, READ_WRITE), QueueData("c", 1, 1, 4),
    )  # fmt: skip
    data = (
        BrokerData("x", "a", {0: "h:1"}), BrokerData("x", "b", {0: "h:2", 1: "h:3"}), BrokerData("x", "c", {0: "h:4"}),
        BrokerData("x", "no master", {1: "h:5"}),
    )  # fmt: skip
    assert places_of(Route(data, queues)) == [Place("a", 0), Place("b", 0), Place("b", 1)]


def test_messages_are_distributed_over_all_queues(cluster: Cluster) -> None:
    client = cluster.client(first=3)
    assert (client.queues("T"), client.brokers("T")) == (4, ["a", "b"])
    for number in range(8):
        client.send("T", ANY_QUEUE, one(b"%d" % number))
    client.finish()
    assert {place: len(bodies) for place, bodies in cluster.stored.items()} == {(n, q): 2 for n in "ab" for q in (0, 1)}


def test_topic_that_brokers_create_on_first_use(cluster: Cluster) -> None:
    cluster.routes["TBW102"] = [QueueData("a", 8, 8, 7)]
    client = cluster.client()
    assert (client.queues("new"), client.brokers("new")) == (4, ["a"])
    client.send("new", 2, one(b"x"))
    client.finish()
    ((code, fields),) = [(request.code, request.ext) for request in cluster.brokers["a"].requests]
    assert (code, fields.group, fields.topic, fields.default_queues, fields.queue_id) == (
        310,
        "halfmq-spark",
        "new",
        4,
        2,
    )
    assert (fields.sys_flag, fields.flag, fields.properties) == (0, 0, "UNIQ_KEY\x01A\x02")
    assert abs(fields.born_time_ms - time.time() * 1_000) < 600_000
    assert not fields.sent_again


def test_topic_that_nobody_creates_and_one_that_cannot_be_written(cluster: Cluster) -> None:
    cluster.routes["read-only"] = [QueueData("a", 2, 2, 4)]
    with pytest.raises(TopicNotFound, match=r"create none on first use .mqadmin updateTopic -t new"):
        cluster.client().queues("new")
    with pytest.raises(NotAuthorized, match="no queue to write to"):
        cluster.client().queues("read-only")


def test_name_server_without_brokers_is_waited_for(cluster: Cluster) -> None:
    brokers, routes = cluster.brokers, cluster.routes
    cluster.brokers, cluster.routes = {}, {}
    with pytest.raises(ConnectError, match="the name server knows no broker"):
        cluster.client(brokerTimeout="100ms").queues("T")
    client = cluster.client(brokerTimeout="60")
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(client.queues("T")))
    asking.start()
    cluster.routes = routes  # first: a broker without the topic is no reason to wait
    cluster.brokers = brokers
    asking.join(60)
    assert found == [4]


# --- order, and what is on the way --------------------------------------------------------------------------------


def test_a_queue_gets_one_request_at_a_time_and_all_a_few(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.routes["T"] = [QueueData("a", IN_FLIGHT_MAX + 1, IN_FLIGHT_MAX + 1, READ_WRITE)]
    client = cluster.client(brokerTimeout="60")
    seen: list[bytes | None] = []  # bodies that are sent, and None for each wait for a response
    start, receive = client._start, client._receive
    monkeypatch.setattr(client, "_start", lambda sending: seen.append(sending.content.body) or start(sending))
    monkeypatch.setattr(client, "_receive", lambda sending: seen.append(None) or receive(sending))
    client.send("T", 0, one(b"first"))
    client.send("T", 0, one(b"second"))
    client.finish()
    assert seen == [b"first", None, b"second", None]
    assert cluster.stored["a", 0] == [b"first", b"second"]
    seen.clear()
    for number in range(IN_FLIGHT_MAX + 1):
        client.send("T", number, one(b"%d" % number))
    assert seen == [*(b"%d" % number for number in range(IN_FLIGHT_MAX)), None, b"%d" % IN_FLIGHT_MAX]
    client.finish()


# --- failures ---------------------------------------------------------------------------------------------------


def test_lost_response_is_repeated_in_its_queue_and_the_next_message_comes_after_it(cluster: Cluster) -> None:
    lost = [True, True]

    def answer(request: Request[Any]) -> bytes | None:
        stored = cluster.store("a", request)
        return None if lost and lost.pop() else stored

    cluster.answers["a"] = answer
    client = cluster.client(brokerTimeout="60")
    client.send("T", 1, one(b"first"))
    client.send("T", 1, one(b"second"))
    client.finish()
    assert cluster.stored["a", 1] == [b"first", b"first", b"first", b"second"]
    assert [request.ext.sent_again for request in cluster.brokers["a"].requests] == [False, True, True, False]


@pytest.mark.parametrize("how", ["away", "busy"])
def test_other_messages_go_to_another_broker(cluster: Cluster, how: str) -> None:
    if how == "away":
        cluster.brokers["a"].close()
    else:
        cluster.answers["a"] = lambda request: encode_response(request, 2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
    cluster.routes["T"] = [QueueData(name, 8, 8, READ_WRITE) for name in "ab"]
    client = cluster.client(brokerTimeout="60")
    for number in range(40):
        client.send("T", ANY_QUEUE, one(b"%d" % number))
    client.finish()
    assert all_stored(cluster) == sorted(b"%d" % number for number in range(40))
    assert {name for name, _ in cluster.stored} == {"b"}
    assert len(cluster.brokers["a"].requests) <= IN_FLIGHT_MAX  # and then it is left alone


def test_queue_that_the_rows_name_is_waited_for(cluster: Cluster) -> None:
    busy = [True] * 3
    cluster.answers["b"] = lambda request: (
        encode_response(request, 2, "busy") if busy and busy.pop() else cluster.store("b", request)
    )
    client = cluster.client(brokerTimeout="60")
    client.send("T", 2, one(b"x"))
    client.finish()
    assert dict(cluster.stored) == {("b", 0): [b"x"]}


def test_queue_of_a_broker_that_is_away_does_not_delay_the_others(cluster: Cluster) -> None:
    cluster.answers["b"] = lambda request: encode_response(request, 2, "busy")
    client = cluster.client(brokerTimeout="60")
    client.send("T", 2, one(b"waits"))
    for number in range(20):
        client.send("T", number % 2, one(b"%d" % number))
    assert len(cluster.brokers["b"].requests) <= 2
    assert len(all_stored(cluster)) >= 20 - IN_FLIGHT_MAX
    del cluster.answers["b"]
    client.finish()
    assert cluster.stored["b", 0] == [b"waits"]
    assert len(all_stored(cluster)) == 21


def test_broker_that_comes_back_at_another_address(cluster: Cluster) -> None:
    client = cluster.client(brokerTimeout="60")
    client.send("T", 2, one(b"x"))
    client.finish()
    cluster.brokers["b"].close()
    cluster.brokers["b"] = ScriptedServer(lambda request: cluster.store("b", request))
    client.send("T", 2, one(b"y"))
    client.finish()
    assert cluster.stored["b", 0] == [b"x", b"y"]


def test_broker_that_stays_away(cluster: Cluster) -> None:
    cluster.answers["b"] = lambda request: encode_response(request, 1, "disk error")
    client = cluster.client(brokerTimeout="100ms")
    client.send("T", 2, one(b"x"))
    with pytest.raises(ConnectError, match=r"broker b refused with code 1: disk error; waited 0.1 s"):
        client.finish()


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (16, NotAuthorized, "topic T, queue 1 of broker a: no"),
        (17, TopicNotFound, "topic T, queue 1 of broker a: no"),
        (13, RequestFailed, "larger than the broker's maxMessageSize; option maxHalfBatchBytes"),
        (29, RequestFailed, "topic T, queue 1 of broker a: no"),
        (3, RequestFailed, "the server is not a broker"),
    ],
)
def test_permanent_refusal_fails_at_once(cluster: Cluster, code: int, kind: type[HalfmqError], said: str) -> None:
    cluster.answers["a"] = lambda request: encode_response(request, code, "no")
    client = cluster.client()
    client.send("T", 1, one(b"x"))
    with pytest.raises(kind, match=said):
        client.finish()
    assert len(cluster.brokers["a"].requests) == 1


def test_message_that_is_stored_with_less_than_the_broker_should_is_not_sent_again_but_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """10: not synced in time; 12: not copied in time; 11: no slave. RocketMQ's producers do not send these again either."""
    codes = [11, 12, 12, 10]
    cluster.answers["a"] = lambda request: cluster.store("a", request, codes.pop())
    client = cluster.client()
    with caplog.at_level(logging.WARNING, "halfmq.spark"):
        for number in range(4):
            client.send("T", 0, one(b"%d" % number))
        client.finish()
    assert cluster.stored["a", 0] == [b"0", b"1", b"2", b"3"]
    told = [name for name in ("FLUSH_DISK", "FLUSH_SLAVE", "SLAVE_NOT") if name in caplog.text]
    assert (len(told), len(caplog.records)) == (3, 3)  # each once
