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

from halfmq.client.blocking import Answer, Connections, NameServers, Sent, Unavailable
from halfmq.client.refusals import PASSING, refused
from halfmq.client.routing import DEFAULT_QUEUES, TEMPLATE_TOPIC
from halfmq.errors import NotAuthorized, RequestFailed, TransactionIncomplete, TransactionRefused, UsageError
from halfmq.model.address import Address
from halfmq.model.query_batch import QueryBatch
from halfmq.model.text_fields import write_fields
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.sink.encoder import Payload
from halfmq.spark.sink.options import AT_LEAST_ONCE, SinkOptions
from halfmq.wire.remoting.codes import (
    EXT_VERDICT,
    HMQ_DECIDE,
    HMQ_DECISION,
    HMQ_PREPARE_BATCH,
    ResponseCode,
)
from halfmq.wire.remoting.half_batches import (
    EXT_FENCED,
    EXT_MISSING,
    EXT_OTHER_STREAM,
    DecisionAnswer,
    PrepareFields,
    WinnerRow,
    decide_ext,
    decision_ext,
    encode_winners,
    read_answer,
)
from halfmq.wire.remoting.route import WRITE

_T = TypeVar("_T")

#: Half batches on the way: enough that the broker syncs one while the next is encoded and the one after is received.
IN_FLIGHT_MAX: Final = 3
#: ``TransactionRefused.standing`` of a batch whose rows are visible.
COMMITTED: Final = "COMMITTED"
#: Hint if a batch comes again with other content.
CONTRADICTION: Final = "do not delete or restore a checkpoint of a query that writes with this name; a new txnAppId writes everything again"


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
        self._group = options.group
        self._deadline = RetryDeadline(options.broker_timeout_ms)
        self._connections = Connections(options.url.security, on_open=self._opened)
        self._names = NameServers(options.url, self._connections)
        self._address: Address | None = None
        #: Half batches that are not confirmed, by index, in order.
        self._unconfirmed: OrderedDict[int, _Sent] = OrderedDict()
        #: The index of each that is on the way on the current connection.
        self._on_the_way: dict[Sent, int] = {}

    def close(self) -> None:
        self._connections.close()

    # --- decisions

    def decision(self, batch: QueryBatch) -> DecisionAnswer:
        """Whether the batch is decided, and the store host for payloads.

        Raises:
            TransactionRefused: a later run of the query has begun, or the query belongs to another stream.
            UsageError: the broker is not a halfmq broker.
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
        return found

    def decide(self, batch: QueryBatch, digest: bytes, winners: Sequence[WinnerRow], *, is_last: bool = False) -> bool:
        """Decide the batch: the messages of ``winners`` become visible, those of other attempts never. Whether it was decided before.

        ``is_last``: the query has no further batches, so the broker may forget it later.

        Raises:
            TransactionRefused: it was decided with another digest, or a later run has begun.
            TransactionIncomplete: half batches of a winner are missing, so nothing was decided.
        """
        fields = decide_ext(self._group, batch, digest, is_last=is_last)
        answer = self._until(HMQ_DECIDE, fields, encode_winners(winners))
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
            delayed=int(payload.delayed) or None, query_topic=batch.topic or None, stream=batch.stream or None,
        )  # fmt: skip
        self._unconfirmed[index] = _Sent(fields, payload)
        self._deadline.until(lambda: self._push(IN_FLIGHT_MAX - 1), self._name())

    def finish(self) -> None:
        """Wait until all half batches are durable. Raises as ``prepare``."""
        self._deadline.until(lambda: self._push(0), self._name())

    def _push(self, left_max: int) -> None:
        """Send what is not on the way, then receive until at most ``left_max`` half batches are not confirmed."""
        address = self._find()
        self._connections.connected(address)  # before this is asked: nothing is on the way on a new connection
        there = set(self._on_the_way.values())
        for index, (fields, payload) in self._unconfirmed.items():
            if index not in there:
                sent = self._connections.send(address, HMQ_PREPARE_BATCH, write_fields(fields), payload.content)
                self._on_the_way[sent] = index
        refused: dict[int, Answer] = {}
        # After a refusal all others are awaited: they may fail only because of it, and the lowest says why.
        while self._on_the_way and (refused or len(self._unconfirmed) > left_max):
            sent = next(iter(self._on_the_way))
            answer = self._connections.receive(sent)
            index = self._on_the_way.pop(sent)
            if answer.code == ResponseCode.SUCCESS:
                del self._unconfirmed[index]
            else:
                refused[index] = answer
        if refused:
            lowest = min(refused)
            fields, _ = self._unconfirmed[lowest]
            answer = refused[lowest]
            if answer.ext.get(EXT_VERDICT) == COMMITTED:
                raise AlreadyDecided
            _refused(answer, f"half batch {lowest} of attempt {fields.attempt}, for topic {fields.topic}")

    def _opened(self, address: Address) -> None:
        """What was on the way on an earlier connection to the address is lost."""
        self._on_the_way = {sent: index for sent, index in self._on_the_way.items() if sent.address != address}

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
        route = self._deadline.until(lambda: self._names.route(topic), self._name())
        return None if route is None else sum(data.write_queues for data in route.queues if data.permission & WRITE)

    # --- requests

    def local_host(self) -> bytes:
        """Our address for messages: 4 bytes of IP and an int32 port."""

        def attempt() -> bytes:
            host, port = self._connections.connected(self._find()).local_host
            try:
                return socket.inet_aton(host) + port.to_bytes(4, "big")
            except OSError:  # IPv6
                return bytes(4) + port.to_bytes(4, "big")

        return self._deadline.until(attempt, self._name())

    def _until(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> Answer:
        """The response of the broker, also of an error, but not one that passes."""

        def attempt() -> Answer:
            answer = self._connections.ask(self._find(), code, fields, body)
            _raise_if_temporary(answer)
            return answer

        return self._deadline.until(attempt, self._name())

    def _find(self) -> Address:
        """Address of the broker, as name servers tell."""
        if self._address is None or self._address not in self._connections:
            brokers = self._names.registered()
            if len(brokers) > 1:
                named = ", ".join(f"{name} ({data.master_text})" for name, data in sorted(brokers.items()))
                raise UsageError(
                    f"the name server knows several brokers: {named}; a query writes to one",
                    hint="if it is a halfmq broker: url=rocketmq:// and its address, since it is a name server too. Several brokers of Apache "
                    f"RocketMQ can be written with option guarantee={AT_LEAST_ONCE}: rows then become visible one by one, and may be repeated",
                )
            self._address = next((data.master for data in brokers.values()), None)
            if self._address is None:
                raise Unavailable(f"{self._names} knows no broker")
        return self._address

    def _name(self) -> str:
        return f"broker of {self._names}"


def _raise_if_temporary(answer: Answer) -> None:
    if answer.code in PASSING:
        raise Unavailable(f"refused with code {answer.code}: {answer.remark or 'no reason given'}")


def _refused(answer: Answer, what: str) -> NoReturn:
    """Raise what a response other than a success means.

    Raises:
        Unavailable: a temporary refusal.
        RequestFailed: a permanent one.
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
        hint = CONTRADICTION if standing == COMMITTED else "start the query again: it repeats the batch"
        raise TransactionRefused(text, standing=standing, hint=hint)
    raise refused(answer.code, text)
