"""What a plan over the network asks about single queues: offsets by time, and how many messages fit into bytes; of RocketMQ also the
bounds.

A halfmq broker answers exactly, and tells the bounds of all queues at once. RocketMQ tells no sizes, and its 4.x versions return the
message nearest to a time, so there some messages are pulled.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from halfmq import limits
from halfmq.client.blocking import Answer, Connections, NameServers, Unavailable, check_success
from halfmq.errors import ProtocolError
from halfmq.model.address import Address
from halfmq.model.stored_message import decode
from halfmq.model.text_fields import write_fields
from halfmq.spark.plan.offsets import (
    NO_POSITION,
    ROCKETMQ_STORE,
    QueueBoundsSnapshot,
    QueueName,
    is_rocketmq,
    queue_number,
)
from halfmq.spark.retry_deadline import Attempts, RetryDeadline
from halfmq.wire.remoting.codes import HMQ_FITTING, PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.fields import OffsetReply, PulledReply
from halfmq.wire.remoting.position import FittingAnswer, FittingFields
from halfmq.wire.remoting.route import READ, BrokerData, QueueData

#: Messages from which the size of others is estimated.
_SAMPLE_MESSAGES: Final = 32

#: Sends a request (code, ext fields) to the broker of a queue and returns the response, which may be a permanent rejection. Raises
#: ``Unavailable`` if there is none, for a temporary rejection, and if the broker no longer has the store of the snapshot.
Ask = Callable[[QueueName, QueueBoundsSnapshot, int, Mapping[str, object]], Answer]


def pull_fields(group: str, topic: str, queue: int, offset: int, messages_max: int) -> dict[str, object]:
    """Fields of a pull request for all messages, which does not wait, and stores no offset."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": messages_max,
        "maxMsgBytes": limits.PULL_BYTES_MAX,
        "sysFlag": int(PullFlag.SUBSCRIPTION),
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }


class QueueLookups:
    """Lookups in the queues of a snapshot. Methods raise ConnectError if the broker is unavailable for ``brokerTimeout``."""

    def __init__(self, ask: Ask, group: str, deadline: RetryDeadline) -> None:
        self._ask = ask
        self._group = group
        self._deadline = deadline

    def offset_at(self, queue: QueueName, time_ms: int, snapshot: QueueBoundsSnapshot) -> int | None:
        """The first message stored at ``time_ms`` (since 1970) or later; None if ``snapshot`` has none.

        RocketMQ 4.x returns the nearest message instead, or any of several with this time, so the answer of a RocketMQ broker is
        compared with the messages themselves, and searched for among them if it is wrong.
        """
        first, end = snapshot.queues[queue]
        if first == end:
            return None
        fields = {"timestamp": time_ms, "boundaryType": "LOWER"}
        answer = self._until(queue, snapshot, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        at = min(max(first, answer.read(OffsetReply).offset), end)
        if is_rocketmq(snapshot.store):
            at = self._checked_offset(queue, at, time_ms, snapshot)
        return None if at == end else at

    def _checked_offset(self, queue: QueueName, at: int, time_ms: int, snapshot: QueueBoundsSnapshot) -> int:
        """The first message at ``time_ms`` or later, which ``at`` may be; the end if all are older."""

        def is_older(offset: int) -> bool:
            return self._store_time_ms(queue, offset, snapshot) < time_ms

        low, high = snapshot.queues[queue]
        if at < high and is_older(at):
            low = at + 1
        else:
            high = at
            if at > low and is_older(at - 1):
                low = at
        while low < high:
            middle = (low + high) // 2
            if is_older(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _store_time_ms(self, queue: QueueName, offset: int, snapshot: QueueBoundsSnapshot) -> int:
        """The store time of a message; -1 if the broker does not have it, as for messages past retention."""
        answer = self._pull(queue, offset, 1, snapshot)
        if answer.code != ResponseCode.SUCCESS:
            return -1
        try:
            return decode(answer.body)[0].store_time_ms
        except ValueError as error:
            raise ProtocolError(f"a pull from {in_words(queue)} did not return a stored message: {error}") from error

    def fitting(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """(number, bytes) of the messages from ``start`` on, before ``end``, whose stored sizes add up to at most ``bytes_max``.

        Of RocketMQ an estimate. A halfmq broker examines a bounded number of messages for each request.
        """
        if is_rocketmq(snapshot.store):
            return self._estimate(queue, start, end, bytes_max, snapshot)
        count = size = 0
        while start + count < end and size < bytes_max:
            request = FittingFields(queue[0], queue_number(queue[1]), start + count, end, bytes_max - size)
            fits = self._until(queue, snapshot, HMQ_FITTING, write_fields(request)).read(FittingAnswer)
            if fits.count == 0:
                break
            count += fits.count
            size += fits.size_bytes
        return count, size

    def _estimate(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """From the mean size of the next messages. What cannot be pulled counts nothing: the read reports it."""
        answer = self._pull(queue, start, min(end - start, _SAMPLE_MESSAGES), snapshot)
        if answer.code != ResponseCode.SUCCESS:
            return end - start, 0
        pulled = max(1, answer.read(PulledReply).next_begin_offset - start)
        mean = max(1, len(answer.body) // pulled)
        count = min(end - start, bytes_max // mean)
        return count, count * mean

    def _pull(self, queue: QueueName, offset: int, messages_max: int, snapshot: QueueBoundsSnapshot) -> Answer:
        fields = pull_fields(self._group, queue[0], queue_number(queue[1]), offset, messages_max)
        return self._until(queue, snapshot, RequestCode.PULL_MESSAGE, fields)

    def _until(
        self, queue: QueueName, snapshot: QueueBoundsSnapshot, code: int, fields: Mapping[str, object]
    ) -> Answer:
        complete = {"topic": queue[0], "queueId": queue_number(queue[1]), **fields}
        return self._deadline.until(partial(self._ask, queue, snapshot, code, complete), in_words(queue))


def in_words(queue: QueueName) -> str:
    return f"queue {queue[1]} of topic {queue[0]}"


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
        brokers = {name: "" if registered[name].master else "its master is not registered" for name in names}
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
        address = broker.master
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
                offsets.append(answer.read(OffsetReply).offset)
        finally:
            for one in sent[len(offsets) :]:
                one.forget()
        return offsets
