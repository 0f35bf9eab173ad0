"""What name servers say: which brokers there are, and which have a topic. Blocking requests; they raise Unavailable if no server responds."""

from collections.abc import Iterable, Sequence

from halfmq.model.urls import server_host
from halfmq.spark.network.connection import Address, Connections, check_success
from halfmq.spark.retry_deadline import Unavailable
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.route import (
    MASTER_ID,
    READ,
    BrokerData,
    Route,
    decode_cluster_info,
    decode_route,
    decode_topic_list,
)


class NameServers:
    """The servers of one installation. ``connections`` are the caller's, who closes them."""

    def __init__(self, servers: Sequence[Address], connections: Connections) -> None:
        self._servers = servers
        self._connections = connections
        #: Index of the server that responded last.
        self._server = 0

    def __str__(self) -> str:
        return "rocketmq://" + ";".join(f"{host}:{port}" for host, port in self._servers)

    def registered(self) -> dict[str, BrokerData]:
        """The brokers, by name."""
        answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        check_success(answer, "the list of brokers")
        return {data.broker_name: data for data in decode_cluster_info(answer.body)}

    def topics(self) -> tuple[str, ...]:
        """Names of all topics."""
        answer = self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        check_success(answer, "the list of topics")
        return decode_topic_list(answer.body)

    def route(self, topic: str) -> Route | None:
        """Brokers of the topic; None if it does not exist."""
        answer = self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        check_success(answer, f"the route of topic {topic}")
        return decode_route(answer.body)

    def routed(self, topics: Iterable[str]) -> set[str]:
        """The brokers from which one of ``topics`` can be read."""
        routes = [self.route(topic) for topic in topics]
        return {data.broker_name for route in routes if route for data in route.queues if data.permission & READ}

    def _ask(self, code: int, fields: dict[str, object]) -> Request[dict[str, str]]:
        """Send the request to the server that responded last, else to the others."""
        reasons = []
        for _ in self._servers:
            try:
                return self._connections.ask(self._servers[self._server], code, fields)
            except Unavailable as reason:
                reasons.append(str(reason))
                self._server = (self._server + 1) % len(self._servers)
        raise Unavailable("; ".join(reasons))


def addresses(broker: BrokerData) -> str:
    """The address of its master, for the text of an error."""
    return broker.addresses.get(MASTER_ID, "no master")


def master(broker: BrokerData) -> Address | None:
    """Address of its master; slaves are not read, since they may lag the plan."""
    host, _, port = broker.addresses.get(MASTER_ID, "").rpartition(":")
    return (server_host(host), int(port)) if host and port.isdecimal() else None
