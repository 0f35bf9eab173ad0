"""Response bodies of 105 (route of a topic), 106 (brokers of a cluster) and 206 (names of topics).

The JSON must be compact: the Go client splits ``brokerAddrs`` at commas and colons. Broker ids are quoted only for clients from
4.9.4 on, since older Go clients do not remove the quotes; Java and C++ accept both.
Source: RocketMQ ``TopicRouteData``, ``ClientRequestProcessor``; rocketmq-client-go ``internal/route.go``.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from halfmq.errors import ProtocolError, UsageError
from halfmq.model.address import Address, parse_address
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.codes import V4_9_4

#: ``perm`` of a queue.
READ: Final = 4
WRITE: Final = 2
MASTER_ID: Final = 0


class QueueData(NamedTuple):
    """Queues of the topic on a broker. ``permission``: bits READ, WRITE."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int
    topic_sys_flag: int = 0


class BrokerData(NamedTuple):
    """A broker; ``addresses`` maps broker ids to ``host:port``, 0 is the master."""

    cluster: str
    broker_name: str
    addresses: dict[int, str]

    @property
    def master_text(self) -> str:
        """What its master says of its address, for the text of an error."""
        return self.addresses.get(MASTER_ID, "no master")

    @property
    def master(self) -> Address | None:
        """Address of its master; None if there is none, or what it says of itself is no address."""
        try:
            return parse_address(self.addresses.get(MASTER_ID, ""), None)
        except UsageError:
            return None


class Route(NamedTuple):
    """Brokers and queues of a topic."""

    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    #: ``brokerA:4;brokerB:4`` of an ordered topic.
    order_conf: str = ""

    def masters(self) -> dict[str, Address]:
        """The addresses of the masters by the name of their broker."""
        return {data.broker_name: master for data in self.brokers if (master := data.master) is not None}


def encode_route(route: Route, version: int, *, standard_json: bool = False) -> bytes:
    """Body of 105 for a client of this ``version`` (or one that requested standard JSON)."""
    quoted = standard_json or version >= V4_9_4
    parts = [b'{"brokerDatas":[' + b",".join(_broker(data, quoted=quoted) for data in route.brokers) + b"]"]
    parts.append(b',"filterServerTable":{}')
    if route.order_conf:
        parts.append(b',"orderTopicConf":' + java_json.dumps(route.order_conf))
    parts.append(b',"queueDatas":' + java_json.dumps([_queue(data) for data in route.queues]) + b"}")
    return b"".join(parts)


def encode_cluster_info(brokers: Iterable[BrokerData], version: int) -> bytes:
    """Body of 106 for a client of this ``version``."""
    quoted = version >= V4_9_4
    clusters: dict[str, list[str]] = {}
    table = []
    for data in brokers:
        clusters.setdefault(data.cluster, []).append(data.broker_name)
        table.append(java_json.dumps(data.broker_name) + b":" + _broker(data, quoted=quoted))
    return b'{"brokerAddrTable":{%b},"clusterAddrTable":%b}' % (b",".join(table), java_json.dumps(clusters))


def _broker(data: BrokerData, *, quoted: bool) -> bytes:
    return b'{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}' % (
        java_json.dumps_integer_keys(data.addresses, quoted=quoted),
        java_json.dumps(data.broker_name),
        java_json.dumps(data.cluster),
    )


def _queue(data: QueueData) -> dict[str, object]:
    return {
        "brokerName": data.broker_name,
        "perm": data.permission,
        "readQueueNums": data.read_queues,
        "topicSysFlag": data.topic_sys_flag,
        "writeQueueNums": data.write_queues,
    }


def decode_route(body: bytes) -> Route:
    """Body of 105 from any name server.

    Raises:
        ProtocolError: malformed or incomplete.
    """
    data = java_json.loads(body)
    try:
        return Route(
            tuple(_read_broker(item) for item in data.get("brokerDatas") or ()),
            tuple(_read_queue(item) for item in data.get("queueDatas") or ()),
            data.get("orderTopicConf") or "",
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a route is malformed: {error!r}") from error


def decode_cluster_info(body: bytes) -> tuple[BrokerData, ...]:
    """Body of 106 from any name server: all its brokers.

    Raises:
        ProtocolError: malformed or incomplete.
    """
    data = java_json.loads(body)
    try:
        return tuple(_read_broker(item) for item in (data.get("brokerAddrTable") or {}).values())
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a list of brokers is malformed: {error!r}") from error


def decode_topic_list(body: bytes) -> tuple[str, ...]:
    """Body of 206 from any name server: the names of all topics, in any order.

    Raises:
        ProtocolError: malformed.
    """
    data = java_json.loads(body)
    try:
        return tuple(str(name) for name in data.get("topicList") or ())
    except (AttributeError, TypeError) as error:
        raise ProtocolError(f"a list of topics is malformed: {error!r}") from error


def _read_broker(item: Any) -> BrokerData:
    addresses = {int(number): str(address) for number, address in item["brokerAddrs"].items()}
    return BrokerData(str(item.get("cluster") or ""), str(item["brokerName"]), addresses)


def _read_queue(item: Any) -> QueueData:
    flag = item.get("topicSysFlag", item.get("topicSynFlag", 0))  # misspelt up to 4.8
    return QueueData(
        str(item["brokerName"]),
        int(item["readQueueNums"]),
        int(item["writeQueueNums"]),
        int(item["perm"]),
        int(flag or 0),
    )
