"""Sends the half messages of one transaction: pipelined to one broker, retried with the same ids, all or an error.

An unanswered half is sent again only to a halfmq broker, which detects the duplicate by its id. Apache RocketMQ would store a
second half, and COMMIT plus a check of the other half would make the message visible twice; so there the call fails, and
the caller may begin a new transaction, since nothing local has happened yet.

A transaction of many messages without a delay goes to a halfmq broker in half batches: one request, one table row and
one entry in the broker's memory for hundreds. Messages for one queue stay in their order.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.client.connection import Answer, Connection, NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.log import log
from halfmq.client.outgoing import OutgoingMessage, delay_properties
from halfmq.client.receipts import Prepared, PreparedHalf
from halfmq.client.refusals import RETRIABLE, STORED, refusal
from halfmq.client.routing import DEFAULT_QUEUES, Target
from halfmq.errors import (
    ConnectError,
    ProtocolError,
    RequestFailed,
    SendTimeout,
    TransactionRefused,
    UnsupportedCombination,
    UsageError,
)
from halfmq.model import properties as names
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.model.ids import parse_offset_message_id
from halfmq.model.stored_message import SYS_PREPARED
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import EXT_VERDICT, HMQ_DECISION, HMQ_PREPARE_BATCH, ResponseCode
from halfmq.wire.remoting.fields import SentReply
from halfmq.wire.remoting.half_batches import PrepareFields, read_answer, read_place
from halfmq.wire.remoting.header import encode_request
from halfmq.wire.remoting.message_codec import encode_send

#: After ``SendTimeout``, whichever broker it is.
_HINT: Final = (
    "nothing is visible, and the local transaction has not run: roll it back, and begin a new transaction; what is stored of this one is "
    "rolled back when it is checked"
)
Lost = ConnectError | NotSent | NoAnswer


#: From this number of messages on: below it, single halves in one write cost as little.
MESSAGES_MIN: Final = 16
#: Bytes of bodies and properties in a half batch, unless a single message has more: some ms of the broker's event loop.
BATCH_BYTES: Final = 256 << 10


class BatchMessage(NamedTuple):
    """A message of the transaction, complete: its place among all messages, its queue, body and properties."""

    number: int
    topic: str
    queue: int
    body: bytes
    properties: bytes


class OutgoingBatch(NamedTuple):
    """A half batch to send, and the places of its messages among those of the transaction."""

    numbers: tuple[int, ...]
    topic: str
    queue: int
    payload: bytes


def divide(
    messages: Sequence[BatchMessage], *, born_time_ms: int, born_host: bytes, store_host: bytes
) -> list[OutgoingBatch]:
    """The half batches of a transaction, in sending order. ``store_host``: as the broker said; hosts are IP and int32 port."""
    by_queue: dict[tuple[str, int], list[BatchMessage]] = {}
    for message in messages:
        by_queue.setdefault((message.topic, message.queue), []).append(message)
    batches = []
    for (topic, queue), of_queue in by_queue.items():
        for part in _parts(of_queue):
            found = [HalfMessage(0, 0, message.body, message.properties) for message in part]
            payload, _ = build_payload(
                found,
                topic=topic,
                queue_id=queue,
                born_time_ms=born_time_ms,
                born_host=born_host,
                store_host=store_host,
            )
            batches.append(OutgoingBatch(tuple([message.number for message in part]), topic, queue, payload))
    return batches


def _parts(messages: Sequence[BatchMessage]) -> list[list[BatchMessage]]:
    parts: list[list[BatchMessage]] = []
    left = 0
    for message in messages:
        size = len(message.body) + len(message.properties)
        if left < size:
            parts.append([])
            left = BATCH_BYTES
        parts[-1].append(message)
        left -= size
    return parts


def prepare_frame(opaque: int, group: str, tx_id: str, index: int, count: int, batch: OutgoingBatch) -> bytes:
    """The encoded request HMQ_PREPARE_BATCH for half batch ``index`` of ``count``. Every request states the number."""
    fields = PrepareFields(
        group, batch.topic, batch.queue, len(batch.numbers), crc32(batch.payload), index, count, tx_id=tx_id,
        default_queues=DEFAULT_QUEUES,
    )  # fmt: skip
    return encode_request(HMQ_PREPARE_BATCH, opaque, write_fields(fields), batch.payload)


class _Half(NamedTuple):
    """A half to send. ``properties`` are those of a half batch; a single half needs ``of_single`` as well, and a delay its own."""

    message_id: str
    message: OutgoingMessage
    properties: bytes
    of_single: bytes
    target: Target


class Preparation:
    """Prepares one transaction. If ``send`` fails, the halves in ``so_far`` must be rolled back."""

    def __init__(
        self,
        context: ClientContext,
        group: str,
        tx_id: str,
        name: str,
        timeout_s: float | None = None,
        coordinator: str = "",
    ) -> None:
        """``coordinator``: ``Coordinator.text`` of the one that decides it; empty: its producer does."""
        self._context = context
        self._attempts = context.attempts(f"prepare of {tx_id}", timeout_s, hint=_HINT)
        self._group = group
        self._tx_id = tx_id
        self._name = name
        self._coordinator = coordinator
        self._halves: list[_Half] = []
        #: Acknowledged halves by index, including those stored with a weaker durability than configured.
        self._acknowledged: dict[int, PreparedHalf] = {}
        self._atomic = True
        #: The same halves in half batches; None: they are sent one by one.
        self._batches: list[OutgoingBatch] | None = None
        self._may_batch = False
        #: Called with a half that is acknowledged after ``send`` has failed. None: before that.
        self.on_late: Callable[[Prepared], None] | None = None

    def left_s(self) -> float:
        """Remaining time of the call, seconds."""
        return self._attempts.left_s()

    def so_far(self) -> Prepared:
        """The acknowledged halves; all of them once ``send`` has returned."""
        halves = tuple(self._acknowledged[index] for index in sorted(self._acknowledged))
        atomic = self._atomic or len(halves) == 1
        return Prepared(self._tx_id, self._group, self._name, halves, atomic, coordinator=self._coordinator)

    async def compose(
        self, messages: Sequence[OutgoingMessage], pairs: Sequence[tuple[str, str]], broker: str = ""
    ) -> None:
        """Assign each message its id, its index in the transaction and a queue. ``pairs``: further properties of each. ``broker``: the only
        one that is allowed; empty: that of the first message, if possible.

        Raises:
            TopicNotFound, ConnectError: as ``Router.publish_route``.
            UnsupportedCombination: a topic has no queue on ``broker``.
        """
        common = names.encode(
            [
                (names.PGROUP, self._group),
                (names.HMQ_TX_ID, self._tx_id),
                (names.HMQ_TX_NAME, self._name),
                *pairs,
                (names.HMQ_COORDINATOR, self._coordinator),
            ]
        )
        last = len(messages) - 1
        only = broker
        for index, message in enumerate(messages):
            message_id = message.message_id or self._context.ids.message_id()
            own = b"UNIQ_KEY\x01%b\x02" % message_id.encode()
            place = b"TRAN_MSG\x01true\x02HMQ_TX_INDEX\x01%d\x02" % index
            if index == last:
                place += b"HMQ_TX_COUNT\x01%d\x02" % len(messages)
            target = await self._target(message, broker)
            broker = broker or target.broker
            if only and target.broker != only:
                raise UnsupportedCombination(
                    f"topic {message.topic} has no queue on broker {only}",
                    hint="create it there, or send to another broker",
                )
            properties = names.append(message.properties, own + common)
            self._halves.append(_Half(message_id, message, properties, place, target))
        # A half batch says nothing of a coordinator.
        divides = not self._coordinator and not any(message.delay_ms for message in messages)
        self._may_batch = divides and len(messages) >= MESSAGES_MIN

    async def _target(self, message: OutgoingMessage, broker: str) -> Target:
        """Choose a queue, on ``broker`` if the topic has one there, since only one broker can settle all halves atomically."""
        router = self._context.router
        attempts = self._context.attempts(f"transactional send to {message.topic}", self.left_s())
        route = router.cached(message.topic)
        if route is None:
            # A block holds a database connection: see ``send``.
            route = await attempts.find(
                lambda: router.publish_route(message.topic), again=lambda: not self._context.is_away
            )
        elsewhere = [target for target in route.writable if broker and target.broker != broker]
        if len(elsewhere) == len(route.writable):
            elsewhere = []
        return router.choose(route, message.sharding_key, elsewhere)

    async def send(self) -> None:
        """Send all halves, and retry until every one is acknowledged.

        Raises:
            TransactionRefused: the transaction already has a verdict. SendTimeout: an unacknowledged half may be stored.
            ConnectError: not sent. RequestFailed: rejected. UnsupportedCombination: several brokers, or a delay on RocketMQ.
        """
        attempts = self._attempts
        while True:
            failure = await self._send_missing()
            if failure is None:
                return
            self._context.router.mark_stale(self._halves[0].message.topic)
            if isinstance(failure, RequestFailed):
                await attempts.refused(failure)
            elif isinstance(failure, NoAnswer) and not self._atomic:
                raise SendTimeout(f"prepare of {self._tx_id}: {failure}", hint=_HINT) from failure
            else:
                # A block holds a database connection: once no broker answers it ends, as new ones are refused.
                await attempts.lost(failure, again=not self._context.is_away)

    async def _send_missing(self) -> RequestFailed | Lost | None:
        """Send all missing halves in order, in one write. Returns the most significant failure (see ``_weight``), or None."""
        failures: list[RequestFailed | Lost] = []
        waiting: list[tuple[int, Connection, int, asyncio.Future[Answer]]] = []
        try:
            connections = await self._connections()
            if self._may_batch and self._batches is None:
                await self._divide(connections)
            if self._batches is not None:
                return await self._send_missing_batches(connections)
            if len(self._halves) > limits.TRANSACTION_MESSAGES_MAX:
                raise UsageError(
                    f"{len(self._halves)} messages in one transaction; {limits.TRANSACTION_MESSAGES_MAX} are allowed with a delay, "
                    "or at a broker that is not halfmq or too old"
                )
            timeout_s = self._attempts.timeout_s()
            for index, half in enumerate(self._halves):
                if index not in self._acknowledged:
                    connection = connections[half.target.broker]
                    waiting.append((index, connection, *self._start(half, connection, timeout_s)))
        except (ConnectError, NotSent) as error:
            failures.append(error)
        for index, connection, opaque, future in waiting:
            try:
                answer = await future
            except NoAnswer as error:
                failures.append(error)
                connection.when_late(opaque, partial(self._take_late, index, connection))
            else:
                refused = self._take(index, answer, connection)
                if refused is not None:
                    failures.append(refused)
        return min(failures, key=_weight) if failures else None

    async def _divide(self, connections: dict[str, Connection]) -> None:
        """Make half batches of the halves, if their broker supports them; else send them one by one.

        Raises:
            NotSent: the broker did not say whether it does. No half was sent.
        """
        (connection, *others) = connections.values()
        if others or not connection.is_halfmq:
            self._may_batch = False
            return
        try:
            answer = await connection.request(HMQ_DECISION, {}, timeout_s=self._attempts.timeout_s())
        except NoAnswer as error:
            raise NotSent(str(error)) from error
        self._may_batch = False
        if answer.code != ResponseCode.SUCCESS:
            return
        messages = [
            BatchMessage(number, half.message.topic, half.target.queue, half.message.body, half.properties)
            for number, half in enumerate(self._halves)
        ]
        ip = connection.local_ip
        self._batches = divide(
            messages,
            born_time_ms=self._context.clock.wall_ms(),
            born_host=(ip if len(ip) == 4 else bytes(4)) + bytes(4),
            store_host=read_answer(answer.ext).store_host,
        )

    async def _send_missing_batches(self, connections: dict[str, Connection]) -> RequestFailed | Lost | None:
        """As ``_send_missing``, but returns the first failure: the broker takes half batches in order, so others follow from it."""
        (connection,) = connections.values()
        batches = self._batches or []
        timeout_s = self._attempts.timeout_s()
        waiting = []
        for index, batch in enumerate(batches):
            if batch.numbers[0] not in self._acknowledged:
                opaque = connection.next_opaque()
                frame = prepare_frame(opaque, self._group, self._tx_id, index, len(batches), batch)
                waiting.append((batch, connection.call(opaque, frame, timeout_s)))
        failures: list[RequestFailed | Lost] = []
        for batch, future in waiting:
            try:
                answer = await future
            except NoAnswer as error:
                failures.append(error)
                continue
            if answer.code != ResponseCode.SUCCESS:
                what = f"half batch for {batch.topic}"
                failures.append(refusal(answer.code, answer.remark, what, answer.ext.get(EXT_VERDICT, "")))
                continue
            place = read_place(answer.ext)
            for number in batch.numbers:
                self._acknowledge(number, connection, place.log_offset, place.half_index)
        return failures[0] if failures else None

    async def _connections(self) -> dict[str, Connection]:
        """Connections by broker name, after their first heartbeat: what the brokers support is known before writing."""
        context = self._context
        found: dict[str, Connection] = {}
        for half in self._halves:
            name = half.target.broker
            if name not in found:
                address = context.router.address_of(name) or half.target.address
                connection = context.brokers.existing(address)
                if connection is None:
                    connection = await self._attempts.within(context.brokers.get(address))
                found[name] = connection
                await connection.ready(self._attempts.timeout_s())
        self._atomic = all(connection.is_halfmq for connection in found.values())
        if len(found) > 1 and any(connection.is_halfmq for connection in found.values()):
            raise UnsupportedCombination(
                f"transaction {self._tx_id} spans the brokers {', '.join(sorted(found))}",
                hint="a halfmq transaction lives on one broker",
            )
        return found

    def _start(self, half: _Half, connection: Connection, timeout_s: float) -> "tuple[int, asyncio.Future[Answer]]":
        text = names.append(half.properties, half.of_single)
        if half.message.delay_ms:
            if not connection.is_halfmq:
                raise UnsupportedCombination(
                    "this broker cannot delay a transactional message",
                    hint="Apache RocketMQ would lose it; send the delayed message when you consume the first",
                )
            text = names.append(text, delay_properties(half.message.delay_ms, any_delay=True))
        opaque = connection.next_opaque()
        frame = encode_send(
            opaque,
            group=self._group,
            topic=half.message.topic,
            queue_id=half.target.queue,
            sys_flag=SYS_PREPARED,
            born_time_ms=self._context.clock.wall_ms(),
            property_string=text,
            body=half.message.body,
        )
        return opaque, connection.call(opaque, frame, timeout_s)

    def _take_late(self, index: int, connection: Connection, answer: Answer) -> None:
        if self.on_late is not None:
            self._acknowledged.clear()
            try:
                self._take(index, answer, connection)
            except ProtocolError as error:
                log.debug("late answer to a half of %s: %s", self._tx_id, error)
            if self._acknowledged:
                self.on_late(self.so_far())

    def _acknowledge(self, number: int, connection: Connection, log_offset: int, half_index: int) -> None:
        half = self._halves[number]
        self._acknowledged[number] = PreparedHalf(
            half.message_id, half.message.topic, half.target.broker, str(connection.address), log_offset, half_index
        )

    def _take(self, index: int, answer: Answer, connection: Connection) -> RequestFailed | None:
        half = self._halves[index]
        if answer.code not in STORED:
            what = f"half message for {half.message.topic}"
            return refusal(answer.code, answer.remark, what, answer.ext.get(EXT_VERDICT, ""))
        reply = answer.read(SentReply)
        try:
            _, log_offset = parse_offset_message_id(reply.msg_id)
        except ValueError as error:
            raise ProtocolError(f"the answer to a half message names no offset: {error}") from error
        self._acknowledge(index, connection, log_offset, reply.queue_offset)
        if answer.code != ResponseCode.SUCCESS:
            # Stored with a weaker durability than configured. As with the Java client, the local transaction does not run.
            return RequestFailed(f"half message: {STORED[answer.code]}", response_code=answer.code)
        return None


def _weight(failure: RequestFailed | Lost) -> int:
    """Significance, lowest first: an existing verdict, a permanent rejection, an unknown outcome, not sent, a transient rejection."""
    if isinstance(failure, TransactionRefused):
        return 0
    if isinstance(failure, RequestFailed):
        return 4 if failure.response_code in RETRIABLE else 1
    return 2 if isinstance(failure, NoAnswer) else 3
