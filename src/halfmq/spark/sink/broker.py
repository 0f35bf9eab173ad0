"""The sink's requests to a halfmq broker: HMQ_DECISION, HMQ_PREPARE_BATCH, HMQ_DECIDE, and routes.

All of them may be repeated: a half batch has an index in its attempt, and the first decision on a batch stands. So a request whose
connection broke is sent again on a new one.

Half batches go out without waiting for the response to the one before, a few at a time, and in order: the broker refuses index n + 1
without n. So after a failure all that are not confirmed are sent again from the lowest index.
"""

import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn, TypeVar

from halfmq.client.routing import DEFAULT_QUEUES, TEMPLATE_TOPIC
from halfmq.errors import NotAuthorized, RequestFailed, TransactionIncomplete, TransactionRefused, UsageError
from halfmq.model.query_batch import QueryBatch
from halfmq.model.urls import server_host
from halfmq.spark.network.connection import Address, Connection
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.sink.encoder import Payload
from halfmq.spark.sink.options import AT_LEAST_ONCE, SinkOptions
from halfmq.wire.remoting.codes import (
    EXT_VERDICT,
    HMQ_DECIDE,
    HMQ_DECISION,
    HMQ_PREPARE_BATCH,
    RequestCode,
    ResponseCode,
)
from halfmq.wire.remoting.half_batches import (
    EXT_FENCED,
    EXT_MISSING,
    EXT_OTHER_STREAM,
    DecideFields,
    DecisionAnswer,
    PrepareFields,
    WinnerRow,
    decide_ext,
    decision_ext,
    encode_winners,
    prepare_ext,
    read_answer,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.route import MASTER_ID, WRITE, decode_cluster_info, decode_route

Answer = Request[dict[str, str]]
_T = TypeVar("_T")

#: Half batches on the way: enough that the broker syncs one while the next is encoded and the one after is received.
IN_FLIGHT_MAX: Final = 3
#: Refusals that pass: the broker is busy, starting or stopping.
_TEMPORARY: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
#: ``TransactionRefused.standing`` of a batch whose rows are visible.
COMMITTED: Final = "COMMITTED"


class AlreadyDecided(Exception):
    """The batch is decided, so nothing of it needs to be sent. Not an error: the sink handles it."""


class _Sent(NamedTuple):
    fields: PrepareFields
    payload: Payload


class SinkBroker:
    """The one broker that the sink writes to. It connects on first use; the caller must call ``close``.

    Methods raise ConnectError if no broker responded for ``brokerTimeout``, UsageError if the url leads to none of halfmq or to several.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._servers = options.servers
        self._group = options.group
        self._deadline = RetryDeadline(options.broker_timeout_ms)
        self._connections: dict[Address, Connection] = {}
        self._address: Address | None = None
        #: Half batches that are not confirmed, by index, in order.
        self._unconfirmed: OrderedDict[int, _Sent] = OrderedDict()
        #: Request number -> index, of those that are on the way on the current connection.
        self._on_the_way: dict[int, int] = {}

    def close(self) -> None:
        """Close all connections; harmless if repeated."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- decisions

    def decision(self, batch: QueryBatch) -> DecisionAnswer:
        """Whether the batch is decided, and the store host for payloads.

        Raises:
            TransactionRefused: a later run of the query has begun, or the query belongs to another stream.
            UsageError: the broker is not a halfmq broker, or one of an earlier version without half batches or topics of queries.
        """
        answer = self._until(HMQ_DECISION, decision_ext(batch))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise UsageError(
                "the broker does not know half batches, which the sink needs to write exactly once",
                hint=f"write to a halfmq broker. A query of its own can write to Apache RocketMQ with option guarantee={AT_LEAST_ONCE}: its rows become "
                "visible one by one, also those of a batch that fails, and a repeated attempt sends them again",
            )
        if answer.code != ResponseCode.SUCCESS:
            _refused(answer, batch.text)
        found = read_answer(answer.ext)
        if len(found.store_host) != 8:
            raise UsageError("the broker has an IPv6 address, which half batches do not support")
        if found.query_topic != batch.topic:
            raise UsageError(
                f"the broker is of an earlier version, which knows a query by its name alone: of several topics of {batch.query} it would keep "
                "the rows of one",
                hint="upgrade the broker; brokers are upgraded before the applications that write with Spark",
            )
        return found

    def decide(self, batch: QueryBatch, digest: bytes, winners: Sequence[WinnerRow], *, is_last: bool = False) -> bool:
        """Decide the batch: the messages of ``winners`` become visible, those of other attempts never. Whether it was decided before.

        ``is_last``: the query has no further batches, so the broker may forget it later.

        Raises:
            TransactionRefused: it was decided with another digest, or a later run has begun.
            TransactionIncomplete: half batches of a winner are missing, so nothing was decided.
        """
        fields = DecideFields(self._group, batch, digest, is_last)
        answer = self._until(HMQ_DECIDE, decide_ext(fields), encode_winners(winners))
        if answer.code != ResponseCode.SUCCESS:
            _refused(answer, f"the decision on {batch.text}")
        return answer.ext.get("repeated") == "true"

    # --- half batches

    def prepare(self, batch: QueryBatch, attempt: str, index: int, topic: str, queue: int, payload: Payload) -> None:
        """Send half batch ``index`` of an attempt; they must come in order. The caller must call ``finish`` after the last.

        Raises:
            AlreadyDecided: the batch is decided, so the attempt is obsolete.
            TransactionRefused: a later run has begun, or the batch was rolled back.
            RequestFailed: this half batch or one before was refused for good.
        """
        fields = PrepareFields(
            self._group, topic, queue, payload.messages, payload.checksum, index, query=batch.query, batch=batch.batch,
            run=batch.run, attempt=attempt, default_queues=DEFAULT_QUEUES,
            delayed=int(payload.delayed), query_topic=batch.topic, stream=batch.stream,
        )  # fmt: skip
        self._unconfirmed[index] = _Sent(fields, payload)
        self._deadline.until(lambda: self._push(IN_FLIGHT_MAX - 1), self._name())

    def finish(self) -> None:
        """Wait until all half batches are durable. Raises as ``prepare``."""
        self._deadline.until(lambda: self._push(0), self._name())

    def _push(self, left_max: int) -> None:
        """Send what is not on the way, then receive until at most ``left_max`` half batches are not confirmed."""
        address = self._find()
        connection = self._connections.get(address)
        if connection is None:
            self._on_the_way.clear()
            connection = self._connect(address)
        try:
            there = set(self._on_the_way.values())
            for index, (fields, payload) in self._unconfirmed.items():
                if index not in there:
                    self._on_the_way[connection.send(HMQ_PREPARE_BATCH, prepare_ext(fields), payload.content)] = index
            refused: dict[int, Answer] = {}
            # After a refusal all others are awaited: they may fail only because of it, and the lowest says why.
            while self._on_the_way and (refused or len(self._unconfirmed) > left_max):
                number = next(iter(self._on_the_way))
                answer = connection.receive(number)
                index = self._on_the_way.pop(number)
                if answer.code == ResponseCode.SUCCESS:
                    del self._unconfirmed[index]
                else:
                    refused[index] = answer
        except BaseException:
            self._drop(address)
            raise
        if refused:
            lowest = min(refused)
            fields, _ = self._unconfirmed[lowest]
            answer = refused[lowest]
            if answer.ext.get(EXT_VERDICT) == COMMITTED:
                raise AlreadyDecided
            _refused(answer, f"half batch {lowest} of attempt {fields.attempt}, for topic {fields.topic}")

    # --- routes

    def write_queues(self, topic: str) -> int:
        """Number of queues to write to; of a topic that does not exist, what the broker will create.

        Raises:
            RequestFailed: the topic cannot be written.
        """
        found = self._write_queues(topic)
        if found is None:
            template = self._write_queues(TEMPLATE_TOPIC)
            if not template:
                raise RequestFailed(
                    f"no topic {topic}, and the broker creates none on first use",
                    response_code=ResponseCode.TOPIC_NOT_EXIST,
                    hint=f"mqadmin updateTopic -t {topic}, or start the broker with --auto-create-topics",
                )
            return min(template, DEFAULT_QUEUES)
        if not found:
            raise NotAuthorized(f"topic {topic} has no queue to write to", response_code=ResponseCode.NO_PERMISSION)
        return found

    def _write_queues(self, topic: str) -> int | None:
        """None: the topic does not exist."""
        fields = {"topic": topic, "acceptStandardJsonOnly": True}
        answer = self._until(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            _refused(answer, f"the route of topic {topic}")
        return sum(data.write_queues for data in decode_route(answer.body).queues if data.permission & WRITE)

    # --- requests

    def local_host(self) -> bytes:
        """Our address for messages: 4 bytes of IP and an int32 port."""

        def attempt() -> bytes:
            address = self._find()
            host, port = (self._connections.get(address) or self._connect(address)).local_host
            try:
                return socket.inet_aton(host) + port.to_bytes(4, "big")
            except OSError:  # IPv6
                return bytes(4) + port.to_bytes(4, "big")

        return self._deadline.until(attempt, self._name())

    def _until(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> Answer:
        """The response of the broker, also of an error, but not one that passes."""

        def attempt() -> Answer:
            answer = self._ask(self._find(), code, fields, body)
            _raise_if_temporary(answer)
            return answer

        return self._deadline.until(attempt, self._name())

    def _find(self) -> Address:
        """Address of the broker, from the first name server that responds."""
        if self._address is not None and self._address in self._connections:
            return self._address
        reasons = []
        for server in self._servers:
            try:
                answer = self._ask(server, RequestCode.GET_BROKER_CLUSTER_INFO, {})
            except Unavailable as reason:
                reasons.append(str(reason))
                continue
            if answer.code != ResponseCode.SUCCESS:
                _refused(answer, "the list of brokers")
            masters = {data.broker_name: data.addresses.get(MASTER_ID, "") for data in decode_cluster_info(answer.body)}
            if len(masters) > 1:
                named = ", ".join(f"{name} ({address or 'no master'})" for name, address in sorted(masters.items()))
                raise UsageError(
                    f"the name server knows several brokers: {named}; a query writes to one",
                    hint="if it is a halfmq broker: url=rocketmq:// and its address, since it is a name server too. Several brokers of Apache "
                    f"RocketMQ can be written with option guarantee={AT_LEAST_ONCE}: rows then become visible one by one, and may be repeated",
                )
            host, _, port = next(iter(masters.values()), "").rpartition(":")
            if host and port.isdecimal():
                self._address = (server_host(host), int(port))
                return self._address
            reasons.append(f"{server[0]}:{server[1]} knows no broker")
        raise Unavailable("; ".join(reasons))

    def _ask(self, address: Address, code: int, fields: Mapping[str, object], body: bytes = b"") -> Answer:
        connection = self._connections.get(address) or self._connect(address)
        try:
            return connection.ask(code, fields, body)
        except BaseException:
            self._drop(address)
            raise

    def _connect(self, address: Address) -> Connection:
        connection = self._connections[address] = Connection.open(address)
        return connection

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
        self._on_the_way.clear()

    def _name(self) -> str:
        return "broker of rocketmq://" + ";".join(f"{host}:{port}" for host, port in self._servers)


def _raise_if_temporary(answer: Answer) -> None:
    if answer.code in _TEMPORARY:
        raise Unavailable(f"refused with code {answer.code}: {answer.remark or 'no reason given'}")


def _refused(answer: Answer, what: str) -> NoReturn:
    """Raise what a response other than a success means.

    Raises:
        Unavailable: a temporary refusal.
        TransactionRefused, TransactionIncomplete, NotAuthorized, RequestFailed: a permanent one.
    """
    _raise_if_temporary(answer)
    text = f"{what}: the broker refused it: {answer.remark or f'code {answer.code}'}"
    if EXT_FENCED in answer.ext:
        raise TransactionRefused(text, hint="another run of this query writes to the broker; only the newest one may")
    if EXT_OTHER_STREAM in answer.ext:
        raise TransactionRefused(
            text,
            hint="give each stream, and batch writes beside it, a txnAppId or topic of its own. A new checkpoint is a new stream: it writes "
            "everything again, with a new txnAppId",
        )
    if EXT_MISSING in answer.ext:
        raise TransactionIncomplete(text, hint="start the query again: it repeats the batch")
    if EXT_VERDICT in answer.ext:
        standing = answer.ext[EXT_VERDICT]
        hint = (
            "do not delete or restore a checkpoint of a query that writes with this name; a new txnAppId writes everything again"
            if standing == COMMITTED
            else "start the query again: it repeats the batch"
        )
        raise TransactionRefused(text, standing=standing, hint=hint)
    if answer.code == ResponseCode.NO_PERMISSION:
        raise NotAuthorized(text, response_code=answer.code)
    raise RequestFailed(text, response_code=answer.code)
