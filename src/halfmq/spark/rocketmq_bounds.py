"""Bounds of the queues of Apache RocketMQ's brokers, which tell them one by one."""

from collections.abc import Sequence
from functools import partial

from halfmq.spark.connection import Address, Connections, check_success
from halfmq.spark.name_servers import NameServers, master
from halfmq.spark.offsets import NO_POSITION, ROCKETMQ_STORE, QueueBoundsSnapshot, QueueName
from halfmq.spark.retry_deadline import Attempts, Unavailable
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.replies import OffsetReply, read_reply
from halfmq.wire.remoting.route import READ, BrokerData, QueueData


class RocketmqBounds:
    """Snapshots without a position. ``connections`` are the caller's, who closes them."""

    def __init__(self, names: NameServers, connections: Connections, attempts: Attempts) -> None:
        self._names = names
        self._connections = connections
        self._attempts = attempts

    def snapshot(self, topics: Sequence[str]) -> QueueBoundsSnapshot:
        """The bounds of all queues of ``topics``. A broker that leaves or joins meanwhile counts as away, since its topics may be missing
        in the routes.
        """
        registered = self._names.registered()
        routes = {topic: route for topic in topics if (route := self._names.route(topic)) is not None}
        names = registered.keys() & self._names.registered().keys()
        brokers = {name: "" if master(registered[name]) else "its master is not registered" for name in names}
        found: dict[str, dict[QueueName, tuple[int, int]]] = {name: {} for name in names}
        for topic, route in routes.items():
            for data in route.queues:
                name = data.broker_name
                if data.permission & READ and brokers.get(name) == "":
                    try:
                        found[name] |= self._attempts.of(name, partial(self._bounds, topic, data, registered[name]))
                    except Unavailable as reason:
                        brokers[name] = str(reason)
        queues = {queue: bounds for name in names if not brokers[name] for queue, bounds in found[name].items()}
        routed = {data.broker_name for route in routes.values() for data in route.queues} & names
        clusters = sorted({registered[name].cluster for name in routed or registered})
        store = ROCKETMQ_STORE + ",".join(clusters)
        return QueueBoundsSnapshot(store, 0, NO_POSITION, queues, dict.fromkeys(routes, 0), brokers)

    def _bounds(self, topic: str, data: QueueData, broker: BrokerData) -> dict[QueueName, tuple[int, int]]:
        """Bounds of the queues of a topic on one broker, which has a master."""
        address = master(broker)
        assert address is not None
        firsts = self._offsets(address, RequestCode.GET_MIN_OFFSET, topic, data.read_queues)
        ends = self._offsets(address, RequestCode.GET_MAX_OFFSET, topic, data.read_queues)
        return {
            (topic, f"{data.broker_name}:{number}"): (min(first, end), end)
            for number, (first, end) in enumerate(zip(firsts, ends, strict=True))
        }

    def _offsets(self, address: Address, code: RequestCode, topic: str, queues: int) -> list[int]:
        """The offset of each queue of a topic on a broker. All are requested before the first response is awaited."""
        sent = [self._connections.send(address, code, {"topic": topic, "queueId": number}) for number in range(queues)]
        offsets = []
        try:
            for one in sent:
                answer = self._connections.receive(one)
                check_success(answer, code.name)
                offsets.append(read_reply(answer, OffsetReply).offset)
        finally:
            for one in sent[len(offsets) :]:
                one.connection.forget(one.opaque)
        return offsets
