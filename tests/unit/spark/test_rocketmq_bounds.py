"""Bounds of a RocketMQ cluster. ``test_wire_reader`` has more: brokers that are away, and clusters of one name server."""

from collections.abc import Iterator

import pytest
from tests.support.scripted_cluster import Cluster

from halfmq.errors import NotAuthorized
from halfmq.spark.connection import Connections
from halfmq.spark.name_servers import NameServers
from halfmq.spark.offsets import NO_POSITION, QueueBoundsSnapshot
from halfmq.spark.retry_deadline import Attempts
from halfmq.spark.rocketmq_bounds import RocketmqBounds
from halfmq.wire.remoting.codes import RequestCode, ResponseCode


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster("broker-a", "broker-b")
    yield made
    made.close()


@pytest.fixture
def bounds(cluster: Cluster) -> Iterator[RocketmqBounds]:
    connections = Connections()
    yield RocketmqBounds(NameServers([("127.0.0.1", cluster.server.port)], connections), connections, Attempts())
    connections.close()


def test_a_snapshot_has_the_queues_of_all_brokers_and_no_position(cluster: Cluster, bounds: RocketmqBounds) -> None:
    cluster.brokers["broker-b"].first = 3
    queues = {("orders", "broker-a:0"): (0, 10), ("orders", "broker-b:0"): (3, 10)}
    assert bounds.snapshot(["orders", "later"]) == QueueBoundsSnapshot(
        "rocketmq:c", 0, NO_POSITION, queues, {"orders": 0}, {"broker-a": "", "broker-b": ""}
    )
    cluster.away("broker-b")
    bounds._connections.close()
    snapshot = bounds.snapshot(["orders"])
    assert snapshot.queues.keys() == {("orders", "broker-a:0")}
    assert "refused" in snapshot.brokers["broker-b"]


def test_the_offsets_of_all_queues_are_requested_before_the_first_response(
    cluster: Cluster, bounds: RocketmqBounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    send, receive = Connections.send, Connections.receive
    monkeypatch.setattr(Connections, "send", lambda *given: (done.append("sent"), send(*given))[1])
    monkeypatch.setattr(Connections, "receive", lambda *given: (done.append("received"), receive(*given))[1])
    broker = cluster.brokers["broker-a"]
    address = ("127.0.0.1", broker.server.port)
    assert bounds._offsets(address, RequestCode.GET_MAX_OFFSET, "orders", 4) == [10] * 4
    assert done == ["sent"] * 4 + ["received"] * 4
    broker.refuse = [ResponseCode.NO_PERMISSION]
    with pytest.raises(NotAuthorized):
        bounds._offsets(address, RequestCode.GET_MAX_OFFSET, "orders", 3)
    broker.end = 7
    assert bounds._offsets(address, RequestCode.GET_MAX_OFFSET, "orders", 2) == [7, 7], (
        "not responses to earlier requests"
    )
