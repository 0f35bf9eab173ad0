"""HMQ_POSITION, a command of halfmq: the bounds of all queues of some topics at one log position.

A reader of several queues (Spark, reconciliation) must not see part of a transaction. With one request per queue (30, 31) the end
offsets would be from different times. Here all are from the same high watermark, so each transaction is completely below or
completely above them.

    request   code 29001, ext ``topics``: names, separated by commas
    response  code 0, ext ``store`` (UUID, 32 hex digits), ``epoch``, ``position``; body JSON
              {"orders": {"id": 3, "queues": [[0, 10], [0, 12]]}}
              queues by number, each [first offset, end offset: one past the last message below the position]

With a body, the request also asks for the sizes of some messages, from which a reader estimates the bytes of a range:

    request   body JSON {"orders": [[0, 5], [1, 7]]}: queue, offset; at most ``SIZE_SAMPLES_MAX``, others are ignored
    response  the topic in the body also has {"sizes": [[16, 4711], [0, 0]]}: for each, how many messages from the offset on were looked
              at, at most ``SIZE_SAMPLE_MESSAGES``, and their bytes in the log; 0 messages: there are none, or they cannot be read

Topics that do not exist are not in the response. The id of a topic is never used again, so a reader that pulls by name knows from it
whether the topic was deleted and created again meanwhile. Messages below an end offset are durable and can be pulled (11) at once.
RocketMQ responds with REQUEST_CODE_NOT_SUPPORTED (3), which identifies it. The code fits in the 16 bits of a binary header. Pure
functions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import ProtocolError
from halfmq.limits import SIZE_SAMPLES_MAX, TOPICS_MAX
from halfmq.wire.remoting.java_json import at_most
from halfmq.wire.remoting.names import names_in

EXT_TOPICS: Final = "topics"
EXT_STORE: Final = "store"
EXT_EPOCH: Final = "epoch"
EXT_POSITION: Final = "position"


class TopicBounds(NamedTuple):
    """Bounds of a topic. ``queues[n]``: (first offset, end offset) of queue n. ``sizes``: (messages, their bytes) of each sample."""

    topic_id: int
    queues: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...] = ()


class PositionAnswer(NamedTuple):
    """A response. ``store``: 32 hex digits; ``position``: the high watermark, below which everything is durable."""

    store: str
    epoch: int
    position: int
    topics: dict[str, TopicBounds]


class _Bounds(msgspec.Struct, omit_defaults=True):
    id: int
    queues: Sequence[tuple[int, int]]
    sizes: Sequence[tuple[int, int]] = ()


_BODY: Final = msgspec.json.Decoder(dict[str, _Bounds])
#: Body of the request: so many samples of as many topics have a third of it.
_SAMPLES_BYTES_MAX: Final = 1 << 16
_SAMPLES: Final = msgspec.json.Decoder(dict[str, list[tuple[int, int]]])


def request_ext(topics: Iterable[str]) -> dict[str, str]:
    """Ext fields of the request. Topic names cannot contain commas."""
    return {EXT_TOPICS: ",".join(topics)}


def asked_topics(ext: Mapping[str, str]) -> tuple[str, ...]:
    """Topics of the request, in order and without duplicates. Empty: only the position is requested.

    Raises:
        ProtocolError: more than there can be.
    """
    return names_in(ext.get(EXT_TOPICS, ""), ",", TOPICS_MAX)


def encode_samples(samples: Mapping[str, Sequence[tuple[int, int]]]) -> bytes:
    """Body of the request: (queue, offset) of the first message of each sample, by topic. At most ``SIZE_SAMPLES_MAX`` in all."""
    return msgspec.json.encode(samples)


def asked_samples(body: bytes | bytearray | memoryview) -> dict[str, list[tuple[int, int]]]:
    """The samples of the request, at most ``SIZE_SAMPLES_MAX`` in all.

    Raises:
        ProtocolError: the body is malformed.
    """
    if not body:
        return {}
    try:
        samples = _SAMPLES.decode(at_most(body, _SAMPLES_BYTES_MAX))
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ProtocolError(f"a request HMQ_POSITION is malformed: {error!r}") from error
    left = SIZE_SAMPLES_MAX
    for topic, named in samples.items():
        samples[topic] = named[:left]
        left -= len(samples[topic])
    return samples


def encode_answer(answer: PositionAnswer) -> tuple[dict[str, str], bytes]:
    """The response: (ext fields, body)."""
    ext = {EXT_STORE: answer.store, EXT_EPOCH: str(answer.epoch), EXT_POSITION: str(answer.position)}
    body = {name: _Bounds(*bounds) for name, bounds in answer.topics.items()}
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
        if any(count < 0 or size < count for count, size in bounds.sizes):
            raise ProtocolError(f"a response to HMQ_POSITION has invalid sizes for topic {name!r}: {bounds.sizes}")
    named = {name: TopicBounds(bounds.id, tuple(bounds.queues), tuple(bounds.sizes)) for name, bounds in topics.items()}
    return PositionAnswer(store, epoch, position, named)
