"""HMQ_FITTING, a command of halfmq: how many messages of a queue fit into a number of bytes.

A reader that plans by size (Spark's ``maxBytesPerTrigger``) must not transfer the messages twice.

    request   code 29012, ext ``topic``, ``queueId``, ``offset`` and ``end``: messages [offset, end); ``bytes``: their stored sizes
              together are at most this
    response  code 0, ext ``count`` and ``bytes`` of the messages from ``offset`` on that fit

The broker examines a bounded number of messages, so ``count`` may be smaller: ask again at ``offset`` + ``count`` for the rest. Only
0 means that the next message does not fit, or does not exist. RocketMQ responds with REQUEST_CODE_NOT_SUPPORTED (3). Pure functions.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from halfmq.errors import ProtocolError

EXT_COUNT: Final = "count"
EXT_BYTES: Final = "bytes"


class FittingRequest(NamedTuple):
    """A request. ``offset`` and ``end``: queue offsets; ``bytes_max``: bytes."""

    topic: str
    queue_id: int
    offset: int
    end: int
    bytes_max: int


def fitting_ext(request: FittingRequest) -> dict[str, str]:
    """Ext fields of the request."""
    return {
        "topic": request.topic,
        "queueId": str(request.queue_id),
        "offset": str(request.offset),
        "end": str(request.end),
        EXT_BYTES: str(request.bytes_max),
    }


def encode_fitting(count: int, size_bytes: int) -> dict[str, str]:
    """Ext fields of the response."""
    return {EXT_COUNT: str(count), EXT_BYTES: str(size_bytes)}


def decode_fitting(ext: Mapping[str, str]) -> tuple[int, int]:
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
