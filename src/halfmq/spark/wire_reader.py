"""Reads from a halfmq broker or a cluster of Apache RocketMQ with pull requests.

A halfmq broker responds to HMQ_POSITION with the bounds of all queues at one log position, so a plan never splits a transaction.
RocketMQ does not have this command: the reader queries the queues one after the other. (There a transaction has one message.)

Sockets block, since a Spark task does nothing else meanwhile. A request that fails with its connection is repeated on a new one.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from halfmq import limits
from halfmq.errors import NotAuthorized, ProtocolError, RequestFailed
from halfmq.model.stored_message import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIME_V4,
    AT_SYS_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_COMMITTED,
    SYS_TRANSACTION_MASK,
)
from halfmq.spark.byte_slices import Ints, as_bytes, gather
from halfmq.spark.connection import Address, Connection
from halfmq.spark.offsets import NO_POSITION, ROCKETMQ_STORE, QueueBoundsSnapshot, QueueName
from halfmq.spark.options import Options
from halfmq.spark.partitions import QueueRange, Ranges
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.stored_rows import BATCH_BYTES, BATCH_ROWS, StoredRows
from halfmq.wire.remoting.codes import HMQ_POSITION, PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.position import decode_answer, request_ext
from halfmq.wire.remoting.replies import OffsetReply, PulledReply, read_reply
from halfmq.wire.remoting.route import MASTER_ID, READ, BrokerData, Route, decode_cluster_info, decode_route

#: Responses are merged into record batches up to this size: a quarter of the direct reader's, for a lower latency.
_BATCH_BYTES: Final = BATCH_BYTES // 4
_V6_MORE: Final = 12
_MESSAGE_MIN: Final = 88
#: Temporary rejections: the broker is busy, starting or stopping.
_TEMPORARY: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


class WireReader:
    """Reads from the brokers that ``options.servers`` know. The caller must call ``close``."""

    def __init__(self, options: Options, deadline: RetryDeadline) -> None:
        self._servers = options.servers
        self._topics = options.topics
        self._group = options.group
        self._deadline = deadline
        self._connections: dict[Address, Connection] = {}
        #: Address of the halfmq broker, once identified, and its store at that time.
        self._halfmq: Address | None = None
        self._store = ""
        #: Name of the RocketMQ cluster, once identified.
        self._cluster = ""
        #: Addresses of a cluster's brokers by name, from the latest route.
        self._brokers: dict[str, Address] = {}
        #: Index of the server that responded last.
        self._server = 0

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- planning

    def snapshot(self) -> QueueBoundsSnapshot:
        """The bounds of all subscribed queues now.

        Raises:
            ConnectError: no broker responded within ``brokerTimeout``.
            RequestFailed: permanent rejection.
        """
        return self._deadline.until(self._try_snapshot, f"brokers of {self._name()}")

    def _try_snapshot(self) -> QueueBoundsSnapshot:
        address = self._find_halfmq()
        if address is None:
            return self._rocketmq_snapshot()
        answer = self._ask(address, HMQ_POSITION, request_ext(self._topics))
        _succeeded(answer, "HMQ_POSITION")
        at = decode_answer(answer.ext, answer.body)
        queues = {
            (topic, str(number)): bounds
            for topic, found in at.topics.items()
            for number, bounds in enumerate(found.queues)
        }
        return QueueBoundsSnapshot(
            at.store, at.epoch, at.position, queues, {topic: found.topic_id for topic, found in at.topics.items()}
        )

    def _find_halfmq(self) -> Address | None:
        """Address of the halfmq broker; None for a RocketMQ cluster. Cached until the connection breaks.

        The request goes to a broker, since name servers before 5.0 do not respond to unknown commands.
        """
        if self._halfmq is not None and self._halfmq in self._connections:
            return self._halfmq
        answer = self._ask_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        _succeeded(answer, "the list of brokers")
        first = min(
            (data for data in decode_cluster_info(answer.body) if _master(data)),
            key=lambda data: data.broker_name,
            default=None,
        )
        address = None if first is None else _master(first)
        if first is None or address is None:
            raise Unavailable("the name server has no brokers")
        answer = self._ask(address, HMQ_POSITION, request_ext(()))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._cluster = first.cluster
            return None
        _succeeded(answer, "HMQ_POSITION")
        self._halfmq = address
        self._store = decode_answer(answer.ext, answer.body).store
        return address

    def _rocketmq_snapshot(self) -> QueueBoundsSnapshot:
        queues: dict[QueueName, tuple[int, int]] = {}
        topics = {}
        for topic in self._topics:
            route = self._route(topic)
            if route is None:
                continue
            topics[topic] = 0
            masters = {data.broker_name: data for data in route.brokers}
            for data in route.queues:
                address = _master(masters[data.broker_name]) if data.broker_name in masters else None
                if not data.permission & READ or address is None:
                    continue
                for number in range(data.read_queues):
                    fields = {"topic": topic, "queueId": number}
                    first = self._offset(address, RequestCode.GET_MIN_OFFSET, fields)
                    end = self._offset(address, RequestCode.GET_MAX_OFFSET, fields)
                    queues[topic, f"{data.broker_name}:{number}"] = (min(first, end), end)
        return QueueBoundsSnapshot(f"{ROCKETMQ_STORE}{self._cluster}", 0, NO_POSITION, queues, topics)

    def _offset(self, address: Address, code: RequestCode, fields: dict[str, object]) -> int:
        answer = self._ask(address, code, fields)
        _succeeded(answer, code.name)
        return read_reply(answer, OffsetReply).offset

    def _route(self, topic: str) -> Route | None:
        """Brokers of the topic; None if it does not exist."""
        answer = self._ask_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        _succeeded(answer, f"the route of topic {topic}")
        return decode_route(answer.body)

    # --- reading

    def read(self, ranges: Ranges, lost: Callable[[str], None]) -> Iterator[StoredRows]:
        """The messages of ``ranges``. ``lost`` is called with a sentence about missing ones; if it returns, reading continues after them."""
        if ranges.store.startswith(ROCKETMQ_STORE) or self._is_store(ranges.store, lost):
            for one in ranges.ranges:
                yield from self._read_range(one, ranges.store, lost)

    def _is_store(self, planned: str, lost: Callable[[str], None]) -> bool:
        """Whether the broker still has the planned store: queue offsets of another one would be meaningless."""
        address = self._deadline.until(self._find_halfmq, f"brokers of {self._name()}")
        store = ROCKETMQ_STORE if address is None else self._store
        if store != planned:
            lost(f"this is store {store}, but store {planned} was planned")
        return store == planned

    def _read_range(self, one: QueueRange, store: str, lost: Callable[[str], None]) -> Iterator[StoredRows]:
        """Merge pull responses into batches. ``parts`` contains the messages from ``begin`` to ``at``, except skipped ones."""
        parts: list[bytes] = []
        size = 0
        begin = at = one.start
        while at < one.end:
            body, after = self._pull(one, at, store, lost)
            if body:
                parts.append(body)
                size += len(body)
                at = after
            if parts and (not body or size >= _BATCH_BYTES or at - begin >= BATCH_ROWS or at >= one.end):
                found = pulled_rows(b"".join(parts), one)
                _report_gaps(one, found.queue_offsets, begin, min(at, one.end), lost)
                if len(found.starts):
                    yield found
                parts, size, begin = [], 0, at
            if not body:
                begin = at = after

    def _pull(self, one: QueueRange, at: int, store: str, lost: Callable[[str], None]) -> tuple[bytes, int]:
        """(stored messages from ``at`` on, next offset). The last messages may be beyond the range."""
        fields = {
            "consumerGroup": self._group,
            "topic": one.topic,
            "queueId": one.queue,
            "queueOffset": at,
            "maxMsgNums": min(one.end - at, limits.PULL_MESSAGES_MAX),
            "maxMsgBytes": limits.PULL_BYTES_MAX,
            "sysFlag": int(PullFlag.SUBSCRIPTION),
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        what = f"queue {one.queue} of topic {one.topic}"

        def attempt() -> tuple[bytes, int]:
            address = self._address(one)
            if not one.broker and self._store != store:
                lost(f"this is store {self._store}, but store {store} was planned")
                return b"", one.end
            answer = self._ask(address, RequestCode.PULL_MESSAGE, fields)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                lost(f"topic {one.topic} no longer exists")
                return b"", one.end
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                raise Unavailable(f"offset {at} was planned, but does not exist")
            if answer.code not in (0, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
                _succeeded(answer, f"a pull from {what}")
            after = read_reply(answer, PulledReply).next_begin_offset
            if answer.code == 0:
                if after <= at:
                    raise ProtocolError(f"a pull from {what} at {at} returned next offset {after}")
                return answer.body, after
            if after <= at:
                raise Unavailable(f"the queue ends at {after}, before the planned offset {at}")
            lost(f"messages {at} to {min(after, one.end) - 1} of {what} are past retention")
            return b"", min(after, one.end)

        return self._deadline.until(attempt, what)

    def _address(self, one: QueueRange) -> Address:
        """Address of the broker of the range; in a cluster from the route, again after a connection broke."""
        if not one.broker:
            address = self._find_halfmq()
            if address is None:
                raise Unavailable("this is a RocketMQ broker, but a halfmq broker was planned")
            return address
        known = self._brokers.get(one.broker)
        if known is not None and known in self._connections:
            return known
        route = self._route(one.topic)
        address = next(
            (_master(data) for data in (route.brokers if route else ()) if data.broker_name == one.broker), None
        )
        if address is None:
            raise Unavailable(f"broker {one.broker} is not in the route")
        self._brokers[one.broker] = address
        return address

    # --- requests

    def _ask_servers(self, code: int, fields: dict[str, object] | dict[str, str]) -> Request[dict[str, str]]:
        """Send the request to the server that responded last, else to the others."""
        reasons = []
        for _ in self._servers:
            try:
                return self._ask(self._servers[self._server], code, fields)
            except Unavailable as reason:
                reasons.append(str(reason))
                self._server = (self._server + 1) % len(self._servers)
        raise Unavailable("; ".join(reasons))

    def _ask(self, address: Address, code: int, fields: dict[str, object] | dict[str, str]) -> Request[dict[str, str]]:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection.open(address)
        try:
            return connection.ask(code, fields)
        except (Unavailable, ProtocolError):
            del self._connections[address]
            connection.close()
            raise

    def _name(self) -> str:
        return "rocketmq://" + ";".join(f"{host}:{port}" for host, port in self._servers)


def _master(broker: BrokerData) -> Address | None:
    """Address of its master; slaves are not read, since they may lag the plan."""
    host, _, port = broker.addresses.get(MASTER_ID, "").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


def _succeeded(answer: Request[dict[str, str]], what: str) -> None:
    """Check that the response has code 0.

    Raises:
        Unavailable: temporary rejection.
        NotAuthorized, RequestFailed: permanent rejection.
    """
    if answer.code == ResponseCode.SUCCESS:
        return
    text = f"{what} was rejected with code {answer.code}: {answer.remark or 'no reason given'}"
    if answer.code in _TEMPORARY:
        raise Unavailable(text)
    if answer.code == ResponseCode.NO_PERMISSION:
        raise NotAuthorized(text, response_code=answer.code)
    raise RequestFailed(text, response_code=answer.code)


def pulled_rows(data: bytes, one: QueueRange) -> StoredRows:
    """The messages of one or more pull responses that are within the range.

    Raises:
        ProtocolError: ``data`` is not a sequence of complete stored messages.
    """
    starts, sizes = _walk(data)
    buffer = pa.py_buffer(data)
    content = as_bytes(buffer)
    offsets: Ints = gather(content, starts + AT_QUEUE_OFFSET, ">i8").astype(np.int64)
    inside = (offsets >= one.start) & (offsets < one.end)
    if not inside.all():
        starts, sizes, offsets = starts[inside], sizes[inside], offsets[inside]
    flags = gather(content, starts + AT_SYS_FLAG, ">i4").astype(np.int32)
    v6 = _V6_MORE * ((flags & SYS_BORN_HOST_V6) != 0).astype(np.int64)
    return StoredRows(
        buffer=buffer,
        starts=starts,
        sizes=sizes,
        queue_offsets=offsets,
        store_times_ms=gather(content, starts + AT_STORE_TIME_V4 + v6, ">i8").astype(np.int64),
        transactional=(flags & SYS_TRANSACTION_MASK) == SYS_COMMITTED,
        topic=one.topic,
        broker=one.broker,
        queue=one.queue,
    )


def _report_gaps(one: QueueRange, offsets: Ints, begin: int, end: int, lost: Callable[[str], None]) -> None:
    """Call ``lost`` if messages of [begin, end) are missing: a broker skips what it can no longer read.

    Raises:
        ProtocolError: the messages are not in queue order.
    """
    if not (np.diff(offsets) > 0).all():
        raise ProtocolError(f"messages of queue {one.queue} of topic {one.topic} arrived out of order or twice")
    if len(offsets) < end - begin:
        missing = np.setdiff1d(np.arange(begin, end), offsets)
        lost(
            f"{len(missing)} of the messages {missing[0]} to {missing[-1]} of queue {one.queue} of topic {one.topic} are "
            "missing: the broker skipped them"
        )


def _walk(data: bytes) -> tuple[Ints, Ints]:
    """(starts, sizes) of consecutive stored messages, bytes."""
    starts = []
    at = 0
    end = len(data)
    while at + _MESSAGE_MIN <= end:
        size = int.from_bytes(data[at : at + 4], "big")
        magic = int.from_bytes(data[at + 4 : at + 8], "big")
        if size < _MESSAGE_MIN or magic not in (MAGIC_V1, MAGIC_V2):
            break
        starts.append(at)
        at += size
    if at != end:
        raise ProtocolError(
            f"a pull response of {end} bytes is not a sequence of stored messages: invalid at byte {at}"
        )
    places = np.array(starts, dtype=np.int64)
    return places, np.diff(np.append(places, end))
