"""HMQ_FITTING, a command of halfmq: how many messages of a queue fit into a number of bytes.

A reader that plans by size (Spark's ``maxBytesPerTrigger``) must not transfer the messages twice.

    request   code 29011, ext ``topic``, ``queueId``, ``offset`` and ``end``: messages [offset, end); ``bytes``: their stored sizes
              together are at most this
    response  code 0, ext ``count`` and ``bytes`` of the messages from ``offset`` on that fit

The broker examines a bounded number of messages, so ``count`` may be smaller: ask again at ``offset`` + ``count`` for the rest. Only
0 means that the next message does not fit, or does not exist. RocketMQ responds with REQUEST_CODE_NOT_SUPPORTED (3). Pure functions.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from halfmq.errors import ProtocolError

EXT_TOPIC: Final = "topic"
EXT_QUEUE: Final = "queueId"
EXT_OFFSET: Final = "offset"
EXT_END: Final = "end"
EXT_COUNT: Final = "count"
EXT_BYTES: Final = "bytes"


class FittingRequest(NamedTuple):
    """A request. ``offset`` and ``end``: queue offsets; ``bytes_max``: bytes."""

    topic: str
    queue_id: int
    offset: int
    end: int
    bytes_max: int


def encode_request(request: FittingRequest) -> dict[str, str]:
    """Ext fields of the request."""
    return {
        EXT_TOPIC: request.topic,
        EXT_QUEUE: str(request.queue_id),
        EXT_OFFSET: str(request.offset),
        EXT_END: str(request.end),
        EXT_BYTES: str(request.bytes_max),
    }


def decode_request(ext: Mapping[str, str]) -> FittingRequest | str:
    """The request, or a text that says what is wrong with it."""
    topic = ext.get(EXT_TOPIC, "")
    if not topic:
        return f"{EXT_TOPIC} is missing"
    numbers = []
    for name in (EXT_QUEUE, EXT_OFFSET, EXT_END, EXT_BYTES):
        value = ext.get(name, "")
        if not (value.isascii() and value.isdigit() and len(value) < 20):
            return f"{name} {value[:20]!r}: not a number from 0"
        numbers.append(int(value))
    return FittingRequest(topic, *numbers)


def encode_answer(count: int, size_bytes: int) -> dict[str, str]:
    """Ext fields of the response."""
    return {EXT_COUNT: str(count), EXT_BYTES: str(size_bytes)}


def decode_answer(ext: Mapping[str, str]) -> tuple[int, int]:
    """(count, bytes) of a response.

    Raises:
        ProtocolError: a field is missing or invalid.
    """
    try:
        count, size_bytes = int(ext[EXT_COUNT]), int(ext[EXT_BYTES])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a response to HMQ_FITTING is malformed: {error!r}") from error
    if count < 0 or size_bytes < 0:
        raise ProtocolError(f"a response to HMQ_FITTING has {count} messages of {size_bytes} bytes")
    return count, size_bytes
