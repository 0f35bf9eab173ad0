"""HMQ_POSITION, a command of halfmq: the bounds of all queues of some topics at one log position.

A reader of several queues (Spark, reconciliation) must not see part of a transaction. With one request per queue (30, 31) the end
offsets would be from different times. Here all are from the same high watermark, so each transaction is completely below or
completely above them.

    request   code 29001, ext ``topics``: names, separated by commas
    response  code 0, ext ``store`` (UUID, 32 hex digits), ``epoch``, ``position``; body JSON
              {"orders": {"id": 3, "queues": [[0, 10], [0, 12]]}}
              queues by number, each [first offset, end offset: one past the last message below the position]

Topics that do not exist are not in the response. The id of a topic is never used again, so a reader that pulls by name knows from it
whether the topic was deleted and created again meanwhile. Messages below an end offset are durable and can be pulled (11) at once.
RocketMQ responds with REQUEST_CODE_NOT_SUPPORTED (3), which identifies it. The code fits in the 16 bits of a binary header. Pure
functions.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import ProtocolError

EXT_TOPICS: Final = "topics"
EXT_STORE: Final = "store"
EXT_EPOCH: Final = "epoch"
EXT_POSITION: Final = "position"


class TopicBounds(NamedTuple):
    """Bounds of a topic. ``queues[n]``: (first offset, end offset) of queue n."""

    topic_id: int
    queues: tuple[tuple[int, int], ...]


class PositionAnswer(NamedTuple):
    """A response. ``store``: 32 hex digits; ``position``: the high watermark, below which everything is durable."""

    store: str
    epoch: int
    position: int
    topics: dict[str, TopicBounds]


class _Bounds(msgspec.Struct):
    id: int
    queues: list[tuple[int, int]]


_BODY: Final = msgspec.json.Decoder(dict[str, _Bounds])


def request_ext(topics: Iterable[str]) -> dict[str, str]:
    """Ext fields of the request. Topic names cannot contain commas."""
    return {EXT_TOPICS: ",".join(topics)}


def asked_topics(ext: Mapping[str, str]) -> tuple[str, ...]:
    """Topics of the request, in order and without duplicates. Empty: only the position is requested."""
    return tuple(dict.fromkeys(name for name in ext.get(EXT_TOPICS, "").split(",") if name))


def encode_answer(answer: PositionAnswer) -> tuple[dict[str, str], bytes]:
    """The response: (ext fields, body)."""
    ext = {EXT_STORE: answer.store, EXT_EPOCH: str(answer.epoch), EXT_POSITION: str(answer.position)}
    body = {name: {"id": bounds.topic_id, "queues": bounds.queues} for name, bounds in answer.topics.items()}
    return ext, msgspec.json.encode(body)


def decode_answer(ext: Mapping[str, str], body: bytes | bytearray | memoryview) -> PositionAnswer:
    """Decode the response.

    Raises:
        ProtocolError: a field is missing or invalid, or the body is malformed.
    """
    try:
        topics = _BODY.decode(body)
        store, epoch, position = ext[EXT_STORE], int(ext[EXT_EPOCH]), int(ext[EXT_POSITION])
    except (KeyError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ProtocolError(f"a response to HMQ_POSITION is malformed: {error!r}") from error
    for name, bounds in topics.items():
        if any(not 0 <= first <= end for first, end in bounds.queues):
            raise ProtocolError(f"a response to HMQ_POSITION has invalid bounds for topic {name!r}: {bounds.queues}")
    named = {name: TopicBounds(bounds.id, tuple(bounds.queues)) for name, bounds in topics.items()}
    return PositionAnswer(store, epoch, position, named)
