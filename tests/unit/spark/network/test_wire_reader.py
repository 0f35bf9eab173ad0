"""Reading over the wire: a halfmq broker, a stock cluster, and everything that goes wrong on the way."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.support.ports import free_port
from tests.support.scripted_cluster import BOTH_READ, STORE, V6, Broker, Cluster, end_of, read_all, stored
from tests.support.scripted_server import ScriptedServer

from halfmq import limits
from halfmq.client.blocking import Connections, NameServers, Unavailable
from halfmq.errors import ConnectError, DataLost, NotAuthorized, ProtocolError, RequestFailed, UsageError
from halfmq.model.address import Address, ServerUrl
from halfmq.model.stored_message import SYS_COMMITTED
from halfmq.model.text_fields import read_fields
from halfmq.spark.network import wire_reader
from halfmq.spark.network.pull_reader import pulled_rows
from halfmq.spark.network.queue_lookups import RocketmqBounds
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import parse_options
from halfmq.spark.plan.offsets import NO_POSITION, QueueBoundsSnapshot, StreamOffset
from halfmq.spark.plan.partitions import QueueRange, Ranges, sample_start
from halfmq.spark.retry_deadline import Attempts, RetryDeadline
from halfmq.spark.rows.stored_rows import record_batch
from halfmq.spark.source import HalfmqBatchReader, HalfmqStreamReader
from halfmq.wire.remoting.codes import EXT_DAMAGED, HMQ_POSITION, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_pull_response_head, encode_response
from halfmq.wire.remoting.raw_read import RawReadFields
from halfmq.wire.remoting.route import BrokerData


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    for source in made.readers:
        source.close()
    made.server.close()


def reader(
    broker: Broker, *, timeout_ms: int = 2_000, topics: str = "orders", url: str = "", pattern: str = ""
) -> WireReader:
    chosen = {"subscribePattern": pattern} if pattern else {"subscribe": topics}
    options = parse_options({"url": url or broker.server.url, **chosen})
    source = WireReader(options, RetryDeadline(timeout_ms))
    broker.readers.append(source)
    return source


def pulled(broker: Broker, start: int, end: int, timeout_ms: int = 2_000) -> tuple[list[int], list[str]]:
    """As ``read``, from RocketMQ."""
    broker.stock = True
    return read(reader(broker, timeout_ms=timeout_ms), start, end, store="rocketmq:c", broker="broker-a")


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
    broker.is_registered = False
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
        "rocketmq:c", 0, NO_POSITION, {("orders", "broker-a:0"): (0, 10)}, {"orders": 0}, {"broker-a": ""}
    )
    assert reader(broker, topics="later").snapshot().store == "rocketmq:c"
    assert read(reader(broker), 2, 9, store="rocketmq:c", broker="broker-a") == ([2, 3, 4, 5, 6, 7, 8], [])


def test_the_offsets_of_all_queues_of_a_stock_broker_are_requested_before_the_first_response(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    send, receive = Connections.send, Connections.receive
    monkeypatch.setattr(Connections, "send", lambda *given: (done.append("sent"), send(*given))[1])
    monkeypatch.setattr(Connections, "receive", lambda *given: (done.append("received"), receive(*given))[1])
    address, connections = Address("127.0.0.1", broker.server.port), Connections(None)
    bounds = RocketmqBounds(NameServers(ServerUrl((address,)), connections), connections, Attempts())
    assert bounds._offsets(address, RequestCode.GET_MAX_OFFSET, "orders", 4) == [10] * 4
    assert done == ["sent"] * 4 + ["received"] * 4
    broker.refuse = [ResponseCode.NO_PERMISSION]
    with pytest.raises(NotAuthorized):
        bounds._offsets(address, RequestCode.GET_MAX_OFFSET, "orders", 3)
    broker.end = 7
    found = bounds._offsets(address, RequestCode.GET_MAX_OFFSET, "orders", 2)
    assert found == [7, 7], "not responses to earlier requests"
    connections.close()


# --- times, sizes, patterns


@pytest.mark.parametrize("stock", [False, True])
def test_offsets_by_time_are_those_of_the_broker_within_the_snapshot(broker: Broker, stock: bool) -> None:
    broker.stock, broker.first = stock, 2
    queue = ("orders", "broker-a:0" if stock else "0")
    source = reader(broker)
    snapshot = source.snapshot()
    broker.end = 20  # messages that came after the snapshot are not in it
    for time_ms, expected in ((0, 2), (1_002, 2), (1_005, 5), (1_009, 9), (1_010, None), (1_015, None), (9_999, None)):
        assert source.offsets_at({queue: time_ms}, snapshot) == {queue: expected}
    asked = [sent.ext for sent in broker.server.requests if sent.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP]
    assert {(ext.topic, ext.queue_id, ext.boundary_type) for ext in asked} == {("orders", 0, "LOWER")}


@pytest.mark.parametrize("wrong", [-1, 1, -3, 4, -100, 100])
def test_a_wrong_answer_of_a_stock_broker_is_corrected(broker: Broker, wrong: int) -> None:
    """RocketMQ 4.x returns the nearest message, and the last one if all are older."""
    broker.stock, broker.first, broker.end = True, 2, 30
    broker.search_answer = lambda at: min(max(at + wrong, 0), broker.end - 1)
    source = reader(broker)
    snapshot = source.snapshot()
    queue = ("orders", "broker-a:0")
    for time_ms, expected in ((0, 2), (1_002, 2), (1_003, 3), (1_017, 17), (1_029, 29), (1_030, None), (5_000, None)):
        assert source.offsets_at({queue: time_ms}, snapshot) == {queue: expected}


def test_a_right_answer_of_a_stock_broker_costs_two_messages(broker: Broker) -> None:
    broker.stock, broker.end = True, 1_000
    source = reader(broker)
    source.offsets_at({("orders", "broker-a:0"): 1_500}, source.snapshot())
    pulls = [sent.ext for sent in broker.server.requests if sent.code == RequestCode.PULL_MESSAGE]
    assert [(pull.queue_offset, pull.messages_max) for pull in pulls] == [(500, 1), (499, 1)]


def test_an_empty_queue_has_no_message_at_any_time(broker: Broker) -> None:
    broker.end = 0
    source = reader(broker)
    assert source.offsets_at({("orders", "0"): 0}, source.snapshot()) == {("orders", "0"): None}


def test_times_are_not_looked_up_in_another_store(broker: Broker) -> None:
    source = reader(broker, timeout_ms=50)
    snapshot = source.snapshot()
    broker.store = "cd" * 16
    source.close()
    with pytest.raises(ConnectError, match="another store"):
        source.offsets_at({("orders", "0"): 0}, snapshot)
    with pytest.raises(ConnectError, match="another store"):
        source.fitting(("orders", "0"), 0, 10, 1_000, snapshot)


def test_what_fits_is_exact_over_several_answers_of_a_halfmq_broker(broker: Broker) -> None:
    source = reader(broker)
    snapshot = source.snapshot()
    sizes = [len(stored(at)) for at in range(10)]
    for count in range(11):
        assert source.fitting(("orders", "0"), 0, 10, sum(sizes[:count]), snapshot) == (count, sum(sizes[:count]))
    assert source.fitting(("orders", "0"), 2, 9, 1 << 40, snapshot) == (7, sum(sizes[2:9]))
    assert source.fitting(("orders", "0"), 2, 9, sizes[2] - 1, snapshot) == (0, 0)
    assert not [sent for sent in broker.server.requests if sent.code == RequestCode.PULL_MESSAGE]


def test_what_fits_is_estimated_from_the_first_messages_where_no_broker_tells_sizes(broker: Broker) -> None:
    broker.stock, broker.end = True, 1_000
    source = reader(broker)
    queue = ("orders", "broker-a:0")
    mean = len(stored(0))
    assert source.fitting(queue, 0, 1_000, 50 * mean, source.snapshot()) == (50, 50 * mean)
    assert source.fitting(queue, 0, 1_000, mean - 1, source.snapshot()) == (0, 0)
    assert source.fitting(queue, 0, 20, 1 << 40, source.snapshot()) == (20, 20 * mean)
    pulls = [sent.ext for sent in broker.server.requests if sent.code == RequestCode.PULL_MESSAGE]
    assert max(pull.messages_max for pull in pulls) <= 32


def test_what_is_past_retention_has_no_size(broker: Broker) -> None:
    broker.stock = True
    source = reader(broker)
    snapshot = source.snapshot()
    broker.first = 5
    assert source.fitting(("orders", "broker-a:0"), 0, 10, 1, snapshot) == (10, 0)


def test_a_busy_broker_is_asked_again_for_sizes(broker: Broker) -> None:
    for broker.stock, queue in ((False, ("orders", "0")), (True, ("orders", "broker-a:0"))):
        source = reader(broker)
        snapshot = source.snapshot()
        broker.refuse = [ResponseCode.SYSTEM_BUSY]
        assert source.fitting(queue, 0, 10, 1 << 40, snapshot) == (10, 10 * len(stored(0)))


@pytest.mark.parametrize("stock", [False, True])
def test_a_pattern_reads_topics_as_they_come_and_go(broker: Broker, stock: bool) -> None:
    broker.stock, broker.names = stock, ["loyalty", "%RETRY%g"]
    source = reader(broker, pattern=".*orders.*|c.*|broker.*")
    assert source.snapshot().topics == {}
    broker.names = ["orders", "%RETRY%orders"]
    broker.position += 100
    assert set(source.snapshot().topics) == {"orders"}
    broker.names = ["orders", "orders-eu"]
    broker.position += 100  # a topic is created in the log
    assert set(source.snapshot().topics) == {"orders", "orders-eu"}
    broker.names = ["orders-eu"]
    broker.position += 100
    assert set(source.snapshot().topics) == {"orders-eu"}


def test_a_topic_created_after_the_list_and_before_the_position_is_in_the_snapshot(broker: Broker) -> None:
    """It may have messages of a transaction whose others are in the snapshot."""
    source = reader(broker, pattern="orders.*")
    source.snapshot()
    broker.position += 100
    broker.soon = ["orders-eu"]
    assert set(source.snapshot().topics) == {"orders", "orders-eu"}


def test_topics_that_are_created_all_the_time_do_not_hold_a_snapshot_for_ever(broker: Broker) -> None:
    source = reader(broker, timeout_ms=0, pattern="orders.*")
    answer = broker.answer

    def creating(request: Request[Any]) -> bytes | None:
        if request.code == HMQ_POSITION:
            broker.soon = [f"orders-{len(broker.names)}"]
        return answer(request)

    broker.server.answer = creating
    with pytest.raises(ConnectError, match="created all the time"):
        source.snapshot()


def test_an_idle_stream_does_not_ask_for_the_topics_again(broker: Broker) -> None:
    source = reader(broker, pattern="orders")
    source.snapshot()
    before = len(broker.server.requests)
    source.snapshot()
    assert [sent.code for sent in broker.server.requests[before:]] == [HMQ_POSITION]


def test_a_task_reads_the_planned_topics_of_a_pattern(broker: Broker) -> None:
    assert read(reader(broker, pattern="ord.*"), 2, 6) == ([2, 3, 4, 5], [])


def test_a_range_is_read_over_several_pulls_and_not_beyond_its_end(broker: Broker) -> None:
    assert pulled(broker, 1, 8) == ([1, 2, 3, 4, 5, 6, 7], [])
    pulls = [request.ext for request in broker.server.requests if request.code == RequestCode.PULL_MESSAGE]
    assert [pull.queue_offset for pull in pulls] == [1, 5]
    assert (pulls[0].bytes_max, pulls[0].group) == (limits.PULL_BYTES_MAX, "TOOLS_CONSUMER")


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


def test_all_name_servers_that_do_not_respond_are_named() -> None:
    dead = [Address("127.0.0.1", free_port()) for _ in range(2)]
    with pytest.raises(Unavailable) as error:
        NameServers(ServerUrl(tuple(dead)), Connections(None)).topics()
    assert all(f"127.0.0.1:{port}" in str(error.value) for _, port in dead)


def test_the_name_server_that_responded_is_asked_first_from_then_on(broker: Broker) -> None:
    connections = Connections(None)
    dead, alive = Address("127.0.0.1", free_port()), Address("127.0.0.1", broker.server.port)
    servers = NameServers(ServerUrl((dead, alive)), connections)
    assert servers.topics() == ("orders",)
    assert servers._server == 1
    connections.close()


def test_only_the_master_of_a_broker_is_read() -> None:
    both = BrokerData("c", "a", {0: "[::1]:10911", 1: "10.0.0.1:10911"})
    assert (both.master, both.master_text) == (("::1", 10911), "[::1]:10911")
    slave = BrokerData("c", "a", {1: "10.0.0.1:10911"})
    assert (slave.master, slave.master_text) == (None, "no master")


def test_refusals_that_waiting_does_not_change_are_raised_at_once(broker: Broker) -> None:
    broker.refuse = [ResponseCode.NO_PERMISSION]
    with pytest.raises(NotAuthorized, match="refused by the test"):
        reader(broker, timeout_ms=60_000).snapshot()
    broker.refuse = [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
    with pytest.raises(RequestFailed, match="refused by the test") as error:
        reader(broker, timeout_ms=60_000).snapshot()
    assert error.value.response_code == 26


def test_damage_is_told_at_once_with_what_the_broker_says(broker: Broker) -> None:
    broker.refuse = [ResponseCode.SYSTEM_ERROR] * 100
    broker.refusal_ext = {EXT_DAMAGED: "true"}
    address = f"127.0.0.1:{broker.server.port}"
    with pytest.raises(RequestFailed, match=f"HMQ_POSITION to {address} was rejected with code 1: refused by the test"):
        _ = reader(broker, timeout_ms=60_000)._position(Address("127.0.0.1", broker.server.port), ("orders",))
    with pytest.raises(RequestFailed, match="refused by the test"):
        reader(broker, timeout_ms=60_000).snapshot()
    assert len(broker.refuse) == 98


def test_code_1_without_damage_may_pass(broker: Broker) -> None:
    broker.refuse = [ResponseCode.SYSTEM_ERROR]
    assert reader(broker).snapshot().position == 500


def test_sizes_of_samples_and_none_from_brokers_that_do_not_tell(broker: Broker) -> None:
    broker.end = 5_000
    source = reader(broker)
    assert source.size_samples([QueueRange("orders", 3, "", 0, 0, 10)]) is None, "no broker is known before a snapshot"
    source.snapshot()
    sliced = [QueueRange("orders", 3, "", 0, at, at + 16) for at in range(0, 4_800, 16)]
    assert len(sliced) > limits.SIZE_SAMPLES_MAX
    samples = source.size_samples(sliced)
    assert samples == [(16, 1_000 + sample_start(one)) for one in sliced]
    assert broker.sample_requests == -(-len(sliced) // limits.SIZE_SAMPLES_MAX)
    broker.sample_requests = -1_000_000  # the topic was just deleted: none
    assert source.size_samples(sliced) is None
    broker.drop = 1
    assert source.size_samples(sliced) is None, "an estimate waits for nobody"


def test_a_rocketmq_cluster_tells_no_sizes(broker: Broker) -> None:
    broker.stock = True
    source = reader(broker)
    source.snapshot()
    assert source.size_samples([QueueRange("orders", 0, "broker-a", 0, 0, 10)]) is None


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
    assert pulled(broker, 1, 8) == ([], ["topic orders no longer exists"])


def test_another_store_behind_the_address_is_a_loss_by_name(broker: Broker) -> None:
    broker.store = "cd" * 16
    found, lost = read(reader(broker), 0, 5)
    assert found == []
    assert lost == [f"this is store {'cd' * 16}, but store {STORE} was planned"]


CREATED_AGAIN = "topic orders was deleted and created again: messages {} to 7 of queue 0 no longer exist"


def test_a_topic_that_was_created_again_before_the_read_is_a_loss_by_name_and_no_row_of_it_is_returned(
    broker: Broker,
) -> None:
    broker.topic_id = 4
    assert read(reader(broker), 1, 8) == ([], [CREATED_AGAIN.format(1)])


@pytest.mark.parametrize("again", [True, False])
def test_a_topic_that_is_deleted_in_the_middle_of_a_read_is_a_loss_by_name(broker: Broker, again: bool) -> None:
    answer = broker.raw

    def raw(request: Request[Any]) -> bytes:
        if broker.raw_reads.firsts:
            broker.topic_id, broker.has_topic = 4, again
        return answer(request)

    broker.raw = raw  # type: ignore[method-assign]
    lost = CREATED_AGAIN.format(5) if again else "topic orders no longer exists"
    assert read(reader(broker), 1, 8) == ([1, 2, 3, 4], [lost])


@pytest.mark.parametrize(("first", "end"), [(0, 0), (0, 2), (9, 12)])
def test_a_topic_that_was_created_again_without_the_planned_offsets_is_not_waited_for(
    broker: Broker, first: int, end: int
) -> None:
    broker.topic_id, broker.first, broker.end = 4, first, end
    assert read(reader(broker, timeout_ms=0), 3, 8) == ([], [CREATED_AGAIN.format(3)])


def test_a_rocketmq_cluster_has_no_ids_of_topics(broker: Broker) -> None:
    broker.stock = True
    assert read(reader(broker), 1, 8, store="rocketmq:c", broker="broker-a") == ([1, 2, 3, 4, 5, 6, 7], [])


@pytest.mark.parametrize("left_out", [{0}, {5}, {2, 3, 6}, {9}])
def test_messages_that_an_answer_leaves_out_are_a_loss_by_name(broker: Broker, left_out: set[int]) -> None:
    """A broker skips what it can no longer read, and says only where to go on."""

    def pull(request: Request[Any]) -> bytes:
        body = b"".join(stored(number) for number in range(10) if number not in left_out)
        return encode_pull_response_head(request, 0, "FOUND", 10, 0, 10, len(body)) + body

    broker.pull = pull  # type: ignore[method-assign]
    found, lost = pulled(broker, 0, 10)
    assert found == [number for number in range(10) if number not in left_out]
    assert lost == [
        f"{len(left_out)} of the messages {min(left_out)} to {max(left_out)} of queue 0 of topic orders on broker broker-a are "
        "missing: the broker skipped them"
    ]


def test_messages_that_come_twice_are_refused(broker: Broker) -> None:
    def pull(request: Request[Any]) -> bytes:
        body = stored(0) + stored(1) + stored(1)
        return encode_pull_response_head(request, 0, "FOUND", 3, 0, 10, len(body)) + body

    broker.pull = pull  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="twice"):
        pulled(broker, 0, 3)


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


def refusing(broker: Broker, damaged: int) -> None:
    """As a halfmq broker responds at a damaged message."""
    answer = broker.raw

    def raw(request: Request[Any]) -> bytes:
        if read_fields(RawReadFields, request.ext).first == damaged:
            return encode_response(
                request, ResponseCode.SYSTEM_ERROR, "its queue entry is damaged", {"nextBeginOffset": damaged}
            )
        return answer(request)

    broker.raw = raw  # type: ignore[method-assign]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_damage_that_the_broker_reports_fails_the_task_or_is_a_warning(
    broker: Broker, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(broker, 2)
    given = {"url": broker.server.url, "subscribe": "orders", "columns": "offset", "failOnDataLoss": fail}
    made = HalfmqBatchReader(parse_options(given))
    part = Ranges(STORE, (QueueRange("orders", 3, "", 0, 2, 6),))
    if fail == "true":
        with pytest.raises(DataLost, match=r"missing or damaged: message 2 of queue 0 .*its queue entry is damaged"):
            list(made.read(part))
    else:
        assert [row for batch in made.read(part) for row in batch.column(0).to_pylist()] == [3, 4, 5]
        assert "message 2 of queue 0 of topic orders cannot be read" in caplog.text


def test_a_system_error_of_a_rocketmq_broker_is_waited_for(broker: Broker) -> None:
    ext = {"suggestWhichBrokerId": 0, "nextBeginOffset": 0, "minOffset": 0, "maxOffset": 10}
    broker.pull = lambda request: encode_response(request, ResponseCode.SYSTEM_ERROR, "an entry is damaged", ext)  # type: ignore[method-assign]
    with pytest.raises(ConnectError, match="an entry is damaged"):
        pulled(broker, 0, 4, timeout_ms=50)


def test_bodies_that_come_over_the_wire_are_verified_whatever_the_options_say(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stock = True
    pull = Broker.pull
    monkeypatch.setattr(Broker, "pull", lambda self, request: pull(self, request).replace(b"body 2", b"bodx 2"))
    made = HalfmqBatchReader(parse_options({"url": broker.server.url, "subscribe": "orders", "columns": "value"}))
    with pytest.raises(DataLost, match="message 2 of queue 0 of topic orders on broker broker-a: its body is damaged"):
        list(made.read(Ranges("rocketmq:c", (QueueRange("orders", 3, "broker-a", 0, 0, 4),))))


# --- several brokers behind one name server


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster("broker-a", "broker-b")
    yield made
    made.close()


def both_read(stream: HalfmqStreamReader) -> dict[str, Any]:
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end["queues"] == {"orders": BOTH_READ}
    return end


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("known", [True, False])
def test_queues_of_a_broker_that_is_away_keep_their_place_and_the_others_are_read(
    cluster: Cluster, fail: str, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """``known``: the name server still lists it."""
    made = cluster.stream(failOnDataLoss=fail)
    start = both_read(made)
    if known:
        cluster.away("broker-b")
        made.stop()
    else:
        cluster.registered.discard("broker-b")
    assert made.latestOffset(start, ReadAllAvailable()) == start
    cluster.brokers["broker-a"].end = 12
    with caplog.at_level(logging.WARNING):
        end = made.latestOffset(start, ReadAllAvailable())
        again = cluster.stream(failOnDataLoss=fail).latestOffset(start, ReadAllAvailable())
    assert end == again
    assert end["queues"] == {"orders": {"broker-a:0": 12, "broker-b:0": 10}}
    assert "broker-b" in caplog.text
    assert "data loss" not in caplog.text
    planned = made.partitions(start, end)
    assert [(one.broker, one.start, one.end) for part in planned for one in part.ranges] == [("broker-a", 10, 12)]


def test_a_broker_that_came_back_is_read_from_where_the_query_was(cluster: Cluster) -> None:
    made = cluster.stream(failOnDataLoss="false")
    start = both_read(made)
    cluster.registered.discard("broker-b")
    cluster.brokers["broker-a"].end = 12
    without = made.latestOffset(start, ReadAllAvailable())
    cluster.registered.add("broker-b")
    cluster.brokers["broker-b"].end = 11
    end = made.latestOffset(without, ReadAllAvailable())
    assert end["queues"] == {"orders": {"broker-a:0": 12, "broker-b:0": 11}}
    planned = made.partitions(without, end)
    assert [(one.broker, one.start, one.end) for part in planned for one in part.ranges] == [("broker-b", 10, 11)]


def test_a_topic_whose_brokers_are_all_away_stays_in_the_offset_and_is_waited_for(cluster: Cluster) -> None:
    start = both_read(cluster.stream())
    cluster.only("broker-b")  # the name server forgets a topic with its last broker
    cluster.registered = {"broker-a"}
    made = cluster.stream(failOnDataLoss="false")
    only_b = {**start, "queues": {"orders": {"broker-b:0": 10}}}
    with pytest.raises(ConnectError, match=r"broker-b.*not registered"):
        made.latestOffset(only_b, ReadAllAvailable())


def test_planned_messages_of_a_broker_that_is_away_are_waited_for_and_it_is_named(cluster: Cluster) -> None:
    made = cluster.stream(failOnDataLoss="false")
    start = made.initialOffset()
    end = both_read(made)
    cluster.registered.discard("broker-b")
    planned = made.partitions(start, end)
    ranges = [(one.broker, one.start, one.end) for part in planned for one in part.ranges]
    assert ranges == [("broker-a", 0, 10), ("broker-b", 0, 10)]
    with pytest.raises(ConnectError, match="broker-b"):
        read_all(made, planned)
    cluster.registered.add("broker-b")
    cluster.away("broker-b")
    with pytest.raises(ConnectError, match="queue 0 of topic orders on broker broker-b"):
        read_all(made, planned)


def test_a_start_a_batch_and_available_now_wait_for_every_broker_of_the_name_server(cluster: Cluster) -> None:
    start = both_read(cluster.stream())
    cluster.away("broker-b")
    with pytest.raises(ConnectError, match="broker-b"):
        cluster.stream().initialOffset()
    batch = HalfmqBatchReader(
        parse_options({"url": cluster.server.url, "subscribe": "orders", "brokerTimeout": "100ms"})
    )
    with pytest.raises(ConnectError, match="broker-b"):
        batch.partitions()
    with pytest.raises(ConnectError, match="broker-b"):
        cluster.stream().prepareForTriggerAvailableNow()
    now = cluster.stream()
    now._target = QueueBoundsSnapshot("rocketmq:c", 0, NO_POSITION, {("orders", "broker-b:0"): (0, 12)}, {"orders": 0})
    with pytest.raises(ConnectError, match="broker-b"):
        now.latestOffset(start, ReadAllAvailable())


def test_a_queue_that_a_present_broker_no_longer_has_is_a_loss(cluster: Cluster) -> None:
    start = both_read(cluster.stream())
    cluster.only("broker-a")
    with pytest.raises(DataLost, match="queue broker-b:0 of topic orders no longer exists"):
        cluster.stream().latestOffset(start, ReadAllAvailable())


@pytest.fixture
def apart() -> Iterator[Cluster]:
    """A cluster that sorts before the one that is read, and joins the name server later."""
    made = Cluster("broker-0", "broker-a", "broker-b")
    made.clusters["broker-0"] = "another"
    made.registered.discard("broker-0")
    yield made
    made.close()


def test_a_second_cluster_behind_the_name_server_is_not_another_store(apart: Cluster) -> None:
    made = apart.stream()
    apart.only("broker-a", "broker-b")
    start = both_read(made)
    apart.registered.add("broker-0")
    assert end_of(made, start) == start
    apart.brokers["broker-b"].end = 11
    end = end_of(made, start)
    assert (end["store"], end["queues"]) == ("rocketmq:c", {"orders": {"broker-a:0": 10, "broker-b:0": 11}})
    apart.registered = {"broker-0"}
    with pytest.raises(ConnectError, match=r"broker-a is away.*broker-b is away"):
        end_of(apart.stream(failOnDataLoss="false"), end)


def test_a_topic_on_two_clusters_is_read_from_both(apart: Cluster) -> None:
    made = apart.stream()
    start = both_read(made)
    apart.registered.add("broker-0")
    end = end_of(made, start)
    assert (end["store"], end["queues"]) == ("rocketmq:another,c", {"orders": {"broker-0:0": 10, **BOTH_READ}})
    apart.registered = {"broker-0"}
    apart.brokers["broker-0"].end = 12
    after = end_of(made, end)
    assert (after["store"], after["queues"]) == ("rocketmq:another,c", {"orders": {"broker-0:0": 12, **BOTH_READ}})
    apart.registered = {"broker-a", "broker-b"}
    apart.brokers["broker-a"].end = 11
    assert end_of(made, after)["queues"]["orders"] == {"broker-0:0": 12, "broker-a:0": 11, "broker-b:0": 10}
    assert end_of(apart.stream(), start)["queues"]["orders"] == {"broker-a:0": 11, "broker-b:0": 10}


def test_another_cluster_with_brokers_of_the_same_names_is_another_store(cluster: Cluster) -> None:
    start = both_read(cluster.stream())
    cluster.clusters = {"broker-a": "d", "broker-b": "d"}
    with pytest.raises(DataLost, match="this is store rocketmq:d, the query has read store rocketmq:c"):
        end_of(cluster.stream(), start)


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Two halfmq brokers behind one name service; "broker-b" has the topic."""
    made = Cluster("broker-a", "broker-b", stock=False)
    made.only("broker-b")
    yield made
    made.close()


def test_of_several_halfmq_brokers_the_one_with_the_topic_is_read(pair: Cluster) -> None:
    made = pair.stream()
    start = made.initialOffset()
    end = end_of(made, start)
    assert (end["store"], end["queues"]) == (pair.brokers["broker-b"].store, {"orders": {"0": 10}})
    assert sum(batch.num_rows for batch in read_all(made, made.partitions(start, end))) == 10
    assert end.pop("from") == {"orders": {"0": 0}}, "only of a first batch"
    pair.brokers["broker-a"].stock = True
    assert end_of(pair.stream(), start) == end
    pair.away("broker-a")
    assert end_of(pair.stream(), start) == end


def test_a_topic_on_halfmq_and_rocketmq_brokers_is_refused_and_they_are_named(pair: Cluster) -> None:
    start = end_of(pair.stream())
    pair.only("broker-a", "broker-b")
    several = end_of(pair.stream())
    pair.brokers["broker-a"].stock = True
    for before in (start, several):
        for made in (pair.stream(), pair.stream(failOnDataLoss="false")):
            with pytest.raises(
                UsageError, match=r"RocketMQ brokers: broker-a .*broker-b .*one query for each"
            ) as refused:
                end_of(made, before)
            assert f"127.0.0.1:{pair.brokers['broker-b'].server.port}" in str(refused.value)


def test_a_name_service_that_is_away_does_not_stop_a_query_whose_broker_responds(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_reader, "IDENTIFY_S", 0.0)
    made = pair.stream()
    start = end_of(made)
    pair.server.close()
    pair.brokers["broker-b"].end = 11
    assert end_of(made, start)["queues"] == {"orders": {"0": 11}}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_another_halfmq_broker_is_not_another_store_while_the_one_that_is_read_is_away(
    pair: Cluster, fail: str
) -> None:
    made = pair.stream(failOnDataLoss=fail)
    start = made.initialOffset()
    end = end_of(made, start)
    planned = made.partitions(start, end)
    pair.registered = {"broker-a"}
    with pytest.raises(ConnectError, match="without topic orders"):
        end_of(pair.stream(failOnDataLoss=fail), end)
    with pytest.raises(ConnectError, match="without topic orders"):
        read_all(made, planned)


@pytest.mark.parametrize("given", [{}, {"subscribePattern": "ord.*"}])
def test_a_topic_that_no_broker_has_yet_is_waited_for_whatever_broker_creates_it(
    pair: Cluster, given: dict[str, str]
) -> None:
    pair.only()
    made = pair.stream(**given)
    start = made.initialOffset()
    assert end_of(made, start) == start
    pair.only("broker-a")
    end = end_of(made, start)
    assert (end["store"], end["queues"]) == (pair.brokers["broker-a"].store, {"orders": {"0": 10}})
    assert sum(batch.num_rows for batch in read_all(made, made.partitions(start, end))) == 10


def test_a_rocketmq_cluster_holds_nothing_and_a_topic_that_no_broker_has_yet_is_held_later(
    pair: Cluster, cluster: Cluster
) -> None:
    holding = {"group": "g", "publishPosition": "true", "hold": "true"}
    with pytest.raises(UsageError, match="hold needs a halfmq broker"):
        cluster.stream(**holding).initialOffset()
    pair.only()
    made = pair.stream(**holding)
    start = made.initialOffset()
    assert made._held == frozenset()
    asked: list[bytes] = []

    def answer(request: Request[Any]) -> bytes | None:
        if request.code != RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            return pair.brokers["broker-b"].answer(request)
        asked.append(bytes(request.body))
        return encode_response(request, 0)

    pair.only("broker-b")
    pair.brokers["broker-b"].server.answer = answer
    end_of(made, end_of(made, start))
    assert asked == [b'{"groupName":"g","attributes":{"+hold.topics":"orders"}}'], "once"


def test_position_is_published_at_the_other_brokers_if_one_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, object]] = []
    options = {"url": "rocketmq://127.0.0.1:1", "subscribe": "t", "group": "g"}
    source = WireReader(parse_options(options), RetryDeadline(100))

    def address_of(queue: tuple[str, str], snapshot: QueueBoundsSnapshot) -> tuple[str, int]:
        if queue[1].startswith("a:"):
            raise Unavailable("broker a is not in the route")
        return ("b", 1)

    monkeypatch.setattr(source, "_address_of", address_of)
    monkeypatch.setattr(source._connections, "ask", lambda *asked: None)
    monkeypatch.setattr(
        source._connections, "send", lambda at, code, fields, *, oneway: told.append((at, fields["commitOffset"]))
    )
    with pytest.raises(Unavailable, match="broker a"):
        source.publish(StreamOffset("rocketmq:c", 0, -1, {("t", "a:0"): 7, ("t", "b:0"): 8, ("t", "b:1"): 9}, {"t": 0}))
    assert told == [(("b", 1), 8), (("b", 1), 9)]
