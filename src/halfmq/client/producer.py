"""Non-transactional sends: single messages, and batches of one topic."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from halfmq import limits
from halfmq.client.connection import Answer, Connection, NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.outgoing import OutgoingMessage, delay_properties
from halfmq.client.receipts import Receipt
from halfmq.client.refusals import STORED, refusal
from halfmq.client.routing import Target
from halfmq.errors import ConnectError, ProtocolError, UsageError
from halfmq.model import properties as names
from halfmq.wire.remoting.message_codec import BatchEntry, encode_send, join_batch

#: MQVersion ordinal of 5.0.0, the first with arbitrary delays; older brokers support only delay levels.
_V5_0_0: Final = 413
#: Bytes of one batch, entry headers and properties included. Below the limit for one body, which Apache RocketMQ applies to
#: the whole batch.
_BATCH_BYTES_MAX: Final = limits.BODY_BYTES_MAX - 64 * 1024
_BATCH_MESSAGES_MAX: Final = 1_024
_ENTRY_BYTES: Final = 22
_BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"


def unique_key(message_id: str) -> bytes:
    """The encoded UNIQ_KEY property."""
    return b"UNIQ_KEY\x01%b\x02" % message_id.encode()


def delays_any_time(connection: Connection) -> bool:
    """Whether the broker supports delays other than the standard levels."""
    return connection.is_halfmq or connection.version >= _V5_0_0


class Producer:
    """Sends messages for one producer group. May be used by several tasks at once."""

    def __init__(self, context: ClientContext, group: str) -> None:
        self._context = context
        self._group = group

    async def send(self, message: OutgoingMessage, timeout_s: float | None = None) -> Receipt:
        """Send one message and wait for its acknowledgement; retries use the same id.

        Raises:
            SendTimeout: it may have been stored. ConnectError: nothing was sent. RequestFailed: the broker rejected it.
        """
        context = self._context
        message_id = message.message_id or context.ids.message_id()
        properties = names.append(message.properties, unique_key(message_id))
        answer, target = await self._deliver(
            message.topic, message.body, properties, message.sharding_key, message.delay_ms, timeout_s, batch=False
        )
        return _receipt(answer, target, message.topic, message_id)

    async def send_many(
        self, topic: str, messages: Sequence[OutgoingMessage], timeout_s: float | None = None
    ) -> list[Receipt]:
        """Send messages of one topic in batches. Each batch is stored atomically, in one queue, in order.

        Raises:
            UsageError: a message has a delay or a sharding key; use ``send``.
            SendTimeout, ConnectError, RequestFailed: as ``send``, for the first failed batch; earlier batches are stored.
        """
        for message in messages:
            if message.delay_ms or message.sharding_key:
                raise UsageError("a batch takes no delay and no sharding key", hint="use send for such a message")
        receipts: list[Receipt] = []
        whole = self._context.attempts(f"send to {topic}", timeout_s)
        for batch in batches(messages):
            receipts += await self._send_batch(topic, batch, whole.left_s())
        return receipts

    async def _send_batch(self, topic: str, batch: Sequence[OutgoingMessage], timeout_s: float | None) -> list[Receipt]:
        ids = [message.message_id or self._context.ids.message_id() for message in batch]
        body = join_batch(
            BatchEntry(0, message.body, names.append(message.properties, unique_key(message_id)))
            for message, message_id in zip(batch, ids, strict=True)
        )
        # No UNIQ_KEY here: brokers up to 5.0 append these properties to those of each entry, and the last one wins.
        answer, target = await self._deliver(topic, body, _BATCH_PROPERTIES, "", 0, timeout_s, batch=True)
        first = _receipt(answer, target, topic, ids[0])
        offset_ids = first.offset_id.split(",")
        if len(offset_ids) != len(ids):
            offset_ids = [offset_ids[0], *[""] * (len(ids) - 1)]
        return [
            Receipt(message_id, topic, first.broker, first.queue, first.offset + index, offset_id, first.status)
            for index, (message_id, offset_id) in enumerate(zip(ids, offset_ids, strict=True))
        ]

    async def _deliver(
        self,
        topic: str,
        body: bytes,
        properties: bytes,
        sharding_key: str,
        delay_ms: int,
        timeout_s: float | None,
        *,
        batch: bool,
    ) -> tuple[Answer, Target]:
        context = self._context
        attempts = context.attempts(f"send to {topic}", timeout_s)
        router = context.router
        failed: list[Target] = []
        while True:
            try:
                route = router.cached(topic)
                if route is None:
                    route = await attempts.within(router.publish_route(topic))
                target = router.choose(route, sharding_key, failed)
                connection = context.brokers.existing(target.address)
                if connection is None:
                    connection = await attempts.within(context.brokers.get(target.address))
                await connection.ready(attempts.timeout_s())
                text = properties
                if delay_ms:
                    text = names.append(properties, delay_properties(delay_ms, any_delay=delays_any_time(connection)))
                opaque = connection.next_opaque()
                frame = encode_send(
                    opaque,
                    group=self._group,
                    topic=topic,
                    queue_id=target.queue,
                    sys_flag=0,
                    born_time_ms=context.clock.wall_ms(),
                    property_string=text,
                    body=body,
                    batch=batch,
                    sent_again=attempts.outcome_unknown,
                )
                answer = await connection.call(opaque, frame, attempts.timeout_s())
            except (ConnectError, NotSent, NoAnswer) as error:
                if isinstance(error, NoAnswer):
                    failed.append(target)
                router.mark_stale(topic)
                await attempts.lost(error)
                continue
            if answer.code in STORED:
                return answer, target
            failed.append(target)
            await attempts.refused(refusal(answer.code, answer.remark, f"send to {topic}"))


def batches(messages: Iterable[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    """Split ``messages`` into batches below the broker's limits; a larger message forms a batch of its own."""
    batch: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        more = _ENTRY_BYTES + len(message.body) + len(message.properties) + 50
        if batch and (size + more > _BATCH_BYTES_MAX or len(batch) >= _BATCH_MESSAGES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += more
    if batch:
        yield batch


def _receipt(answer: Answer, target: Target, topic: str, message_id: str) -> Receipt:
    ext = answer.ext
    try:
        return Receipt(
            message_id,
            topic,
            target.broker,
            int(ext["queueId"]),
            int(ext["queueOffset"]),
            ext["msgId"],
            STORED[answer.code],
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the answer to a send to {topic} lacks a field: {error!r}") from error
