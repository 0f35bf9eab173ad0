"""What name servers say. ``test_wire_reader`` has more: servers that are away, and those that do not know a topic."""

from collections.abc import Iterator

import pytest
from tests.support.ports import free_port
from tests.support.scripted_cluster import Cluster

from halfmq.spark.connection import Connections
from halfmq.spark.name_servers import NameServers, addresses, master
from halfmq.spark.retry_deadline import Unavailable
from halfmq.wire.remoting.route import BrokerData


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster("broker-a", "broker-b", stock=False)
    made.only("broker-b")
    yield made
    made.close()


def test_the_server_that_responds_is_asked_first_from_then_on(cluster: Cluster, connections: Connections) -> None:
    dead = ("127.0.0.1", free_port())
    servers = NameServers([dead, ("127.0.0.1", cluster.server.port)], connections)
    assert servers.registered().keys() == {"broker-a", "broker-b"}
    assert servers.topics() == ("orders",)
    assert servers.routed(["orders", "later"]) == {"broker-b"}
    assert servers.route("later") is None
    assert servers._server == 1
    assert str(servers) == f"rocketmq://127.0.0.1:{dead[1]};127.0.0.1:{cluster.server.port}"


def test_all_servers_that_do_not_respond_are_named(connections: Connections) -> None:
    dead = [("127.0.0.1", free_port()) for _ in range(2)]
    with pytest.raises(Unavailable) as error:
        NameServers(dead, connections).topics()
    assert all(f"127.0.0.1:{port}" in str(error.value) for _, port in dead)


def test_only_the_master_of_a_broker_is_read() -> None:
    both = BrokerData("c", "a", {0: "[::1]:10911", 1: "10.0.0.1:10911"})
    assert (master(both), addresses(both)) == (("::1", 10911), "[::1]:10911")
    slave = BrokerData("c", "a", {1: "10.0.0.1:10911"})
    assert (master(slave), addresses(slave)) == (None, "no master")
