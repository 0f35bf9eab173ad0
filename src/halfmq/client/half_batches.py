"""The messages of a large transaction as half batches: one request, one table row and one entry in the broker's memory for hundreds.

Only a halfmq broker has them. Messages for one queue stay in their order; a delayed message cannot be in a half batch.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from halfmq.client.routing import DEFAULT_QUEUES
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.wire.remoting.codes import HMQ_PREPARE_BATCH
from halfmq.wire.remoting.half_batches import PrepareFields, prepare_ext
from halfmq.wire.remoting.header import encode_request

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
    return encode_request(HMQ_PREPARE_BATCH, opaque, prepare_ext(fields), batch.payload)
