"""Reading over the wire: a halfmq broker, a stock cluster, and everything that goes wrong on the way."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.support.scripted_server import ScriptedServer

from halfmq import limits
from halfmq.errors import ConnectError, DataLost, NotAuthorized, ProtocolError, RequestFailed
from halfmq.model.stored_message import SYS_COMMITTED, StoredMessage, body_crc_of, encode
from halfmq.spark.offsets import NO_POSITION, QueueBoundsSnapshot
from halfmq.spark.options import parse_options
from halfmq.spark.partitions import QueueRange, Ranges
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.source import HalfmqBatchReader
from halfmq.spark.stored_rows import record_batch
from halfmq.spark.wire_reader import WireReader, pulled_rows
from halfmq.wire.remoting import route
from halfmq.wire.remoting.codes import HMQ_POSITION, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_pull_response_head, encode_response
from halfmq.wire.remoting.position import (
    PositionAnswer,
    TopicBounds,
    asked_topics,
    encode_answer,
)

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
        self.stock = False
        self.refuse: list[int] = []
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
            return encode_response(request, self.refuse.pop(0), "refused by the test")
        match request.code:
            case int() if request.code == HMQ_POSITION and not self.stock:
                topics = (
                    {"orders": TopicBounds(3, ((self.first, self.end),))}
                    if "orders" in asked_topics(request.ext)
                    else {}
                )
                ext, body = encode_answer(PositionAnswer(self.store, 2, 500, topics))
                return encode_response(request, 0, ext=ext, body=body)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return encode_response(request, 0, body=route.encode_cluster_info(self.brokers(), 401))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if request.ext.topic == "orders":
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


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    for source in made.readers:
        source.close()
    made.server.close()


def reader(broker: Broker, *, timeout_ms: int = 2_000, topics: str = "orders", url: str = "") -> WireReader:
    options = parse_options({"url": url or broker.server.url, "subscribe": topics})
    source = WireReader(options, RetryDeadline(timeout_ms))
    broker.readers.append(source)
    return source


def read(
    source: WireReader, start: int, end: int, *, store: str = STORE, broker: str = ""
) -> tuple[list[int], list[str]]:
    lost: list[str] = []
    found = []
    for rows in source.read(Ranges(store, (QueueRange("orders", 3, broker, 0, start, end),)), lost.append):
        for row in record_batch(rows, ("offset", "value", "broker"), lambda offset, why: None).to_pylist():
            assert row["value"] == b"body %d" % row["offset"]
            assert row["broker"] == (broker or None)
            found.append(row["offset"])
    return found, lost


def test_the_name_server_is_never_asked_what_old_ones_do_not_answer(broker: Broker) -> None:
    names = ScriptedServer(
        lambda request: broker.answer(request) if request.code == RequestCode.GET_BROKER_CLUSTER_INFO else b""
    )
    source = reader(broker, timeout_ms=0, url=names.url)
    assert source.snapshot().position == 500
    assert source.snapshot().position == 500
    assert [request.code for request in names.requests] == [RequestCode.GET_BROKER_CLUSTER_INFO]
    names.close()


def test_no_broker_is_registered_yet(broker: Broker) -> None:
    broker.brokers = lambda: ()  # type: ignore[method-assign]
    with pytest.raises(ConnectError, match="has no brokers"):
        reader(broker, timeout_ms=50).snapshot()


def test_a_halfmq_broker_answers_with_one_position(broker: Broker) -> None:
    assert reader(broker, topics="orders,later").snapshot() == QueueBoundsSnapshot(
        STORE, 2, 500, {("orders", "0"): (0, 10)}, {"orders": 3}
    )


def test_a_stock_cluster_is_asked_queue_by_queue_and_has_no_position(broker: Broker) -> None:
    broker.stock = True
    snapshot = reader(broker, topics="orders,later").snapshot()
    assert snapshot == QueueBoundsSnapshot(
        "rocketmq:c", 0, NO_POSITION, {("orders", "broker-a:0"): (0, 10)}, {"orders": 0}
    )
    assert reader(broker, topics="later").snapshot().store == "rocketmq:c"
    assert read(reader(broker), 2, 9, store="rocketmq:c", broker="broker-a") == ([2, 3, 4, 5, 6, 7, 8], [])


def test_a_range_is_read_over_several_pulls_and_not_beyond_its_end(broker: Broker) -> None:
    assert read(reader(broker), 1, 8) == ([1, 2, 3, 4, 5, 6, 7], [])
    pulls = [request.ext for request in broker.server.requests if request.code == RequestCode.PULL_MESSAGE]
    assert [pull.queue_offset for pull in pulls] == [1, 5]
    assert (pulls[0].max_msg_bytes, pulls[0].consumer_group) == (limits.PULL_BYTES_MAX, "TOOLS_CONSUMER")


def test_lost_connections_and_passing_refusals_are_waited_out(broker: Broker) -> None:
    source = reader(broker)
    broker.drop = 2
    assert source.snapshot().position == 500
    broker.refuse = [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY]
    broker.drop = 1
    assert read(source, 0, 10) == (list(range(10)), [])


def test_nobody_there_for_all_of_the_time(broker: Broker) -> None:
    with pytest.raises(ConnectError, match="brokers of rocketmq"):
        reader(broker, timeout_ms=100, url=f"rocketmq://127.0.0.1:{free_port()}").snapshot()


def test_a_second_name_server_is_tried_at_once(broker: Broker) -> None:
    url = f"rocketmq://127.0.0.1:{free_port()};127.0.0.1:{broker.server.port}"
    assert reader(broker, timeout_ms=0, url=url).snapshot().position == 500


def test_refusals_that_waiting_does_not_change_are_raised_at_once(broker: Broker) -> None:
    broker.refuse = [ResponseCode.NO_PERMISSION]
    with pytest.raises(NotAuthorized, match="refused by the test"):
        reader(broker, timeout_ms=60_000).snapshot()
    broker.refuse = [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
    with pytest.raises(RequestFailed, match="refused by the test") as error:
        reader(broker, timeout_ms=60_000).snapshot()
    assert error.value.response_code == 26


def test_messages_past_retention_are_a_loss_by_name_and_reading_goes_on(broker: Broker) -> None:
    broker.first = 4
    assert read(reader(broker), 1, 8) == (
        [4, 5, 6, 7],
        ["messages 1 to 3 of queue 0 of topic orders are past retention"],
    )
    broker.first = 10
    assert read(reader(broker), 1, 8) == ([], ["messages 1 to 7 of queue 0 of topic orders are past retention"])


def test_a_topic_that_is_gone_is_a_loss_by_name(broker: Broker) -> None:
    broker.pull = lambda request: encode_response(request, ResponseCode.TOPIC_NOT_EXIST, "gone")  # type: ignore[method-assign]
    assert read(reader(broker), 1, 8) == ([], ["topic orders no longer exists"])


def test_another_store_behind_the_address_is_a_loss_by_name(broker: Broker) -> None:
    broker.store = "cd" * 16
    found, lost = read(reader(broker), 0, 5)
    assert found == []
    assert lost == [f"this is store {'cd' * 16}, but store {STORE} was planned"]


def test_another_store_behind_the_address_in_the_middle_of_a_range_is_a_loss_by_name(broker: Broker) -> None:
    answer = broker.pull

    def pull(request: Request[Any]) -> bytes:
        if request.ext.queue_offset == 4 and broker.store == STORE:
            broker.store = "cd" * 16
            broker.drop = 1
        return answer(request)

    broker.pull = pull  # type: ignore[method-assign]
    found, lost = read(reader(broker), 0, 10)
    assert found == [0, 1, 2, 3, 4, 5, 6, 7]
    assert lost == [f"this is store {'cd' * 16}, but store {STORE} was planned"]


@pytest.mark.parametrize("left_out", [{0}, {5}, {2, 3, 6}, {9}])
def test_messages_that_an_answer_leaves_out_are_a_loss_by_name(broker: Broker, left_out: set[int]) -> None:
    """A broker skips what it can no longer read, and says only where to go on."""

    def pull(request: Request[Any]) -> bytes:
        body = b"".join(stored(number, b"body %d" % number) for number in range(10) if number not in left_out)
        return encode_pull_response_head(request, 0, "FOUND", 10, 0, 10, len(body)) + body

    broker.pull = pull  # type: ignore[method-assign]
    found, lost = read(reader(broker), 0, 10)
    assert found == [number for number in range(10) if number not in left_out]
    assert lost == [
        f"{len(left_out)} of the messages {min(left_out)} to {max(left_out)} of queue 0 of topic orders are "
        "missing: the broker skipped them"
    ]


def test_messages_that_come_twice_are_refused(broker: Broker) -> None:
    def pull(request: Request[Any]) -> bytes:
        body = stored(0, b"body 0") + stored(1, b"body 1") + stored(1, b"body 1")
        return encode_pull_response_head(request, 0, "FOUND", 3, 0, 10, len(body)) + body

    broker.pull = pull  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="twice"):
        read(reader(broker), 0, 3)


def test_planned_messages_that_are_not_there_yet_are_waited_for(broker: Broker) -> None:
    broker.end = 5
    with pytest.raises(ConnectError, match="offset 5 was planned"):
        read(reader(broker, timeout_ms=100), 0, 8)


def test_what_is_no_run_of_messages_is_refused() -> None:
    one = QueueRange("orders", 3, "", 0, 0, 10)
    whole = stored(0, b"x")
    for data in (whole[:-1], whole + b"\0" * 100, whole + whole[:50], b"nonsense" * 20):
        with pytest.raises(ProtocolError, match="invalid at byte"):
            pulled_rows(data, one)


def test_pulled_fields_with_either_kind_of_host() -> None:
    data = stored(3, b"a", sys_flag=SYS_COMMITTED) + stored(4, b"b", host=V6) + stored(5, b"behind the range")
    rows = pulled_rows(data, QueueRange("orders", 3, "", 0, 3, 5))
    assert rows.queue_offsets.tolist() == [3, 4]
    assert rows.store_times_ms.tolist() == [1_003, 1_004]
    assert rows.transactional.tolist() == [True, False]


def test_a_reader_can_be_closed_and_used_again(broker: Broker) -> None:
    source = reader(broker)
    source.snapshot()
    source.close()
    assert source.snapshot().position == 500
    source.close()


def test_bodies_that_come_over_the_wire_are_verified_whatever_the_options_say(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = Broker.pull
    monkeypatch.setattr(Broker, "pull", lambda self, request: pull(self, request).replace(b"body 2", b"bodx 2"))
    made = HalfmqBatchReader(parse_options({"url": broker.server.url, "subscribe": "orders", "columns": "value"}))
    with pytest.raises(DataLost, match="message 2 of queue 0 of topic orders: its body is damaged"):
        list(made.read(Ranges(STORE, (QueueRange("orders", 3, "", 0, 0, 4),))))
