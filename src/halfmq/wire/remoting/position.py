"""Commands of halfmq for readers of several queues: the bounds of all queues of some topics at one log position, and how many messages of a
queue fit into a number of bytes.

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

A reader that plans by size (Spark's ``maxBytesPerTrigger``) must not transfer the messages twice. It asks with HMQ_FITTING:

    request   code 29011, ext ``topic``, ``queueId``, ``offset`` and ``end``: messages [offset, end); ``bytes``: their stored sizes
              together are at most this
    response  code 0, ext ``count`` and ``bytes`` of the messages from ``offset`` on that fit

The broker examines a bounded number of messages, so ``count`` may be smaller: ask again at ``offset`` + ``count`` for the rest. Only
0 means that the next message does not fit, or does not exist.

RocketMQ responds with REQUEST_CODE_NOT_SUPPORTED (3), which identifies it. Pure functions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import field

from halfmq.errors import ProtocolError
from halfmq.limits import SIZE_SAMPLES_MAX, TOPICS_MAX
from halfmq.model.queue_reads import Position, TopicBounds
from halfmq.model.text_fields import Count32, Count64, Fields, NotEmpty, write_fields
from halfmq.wire.remoting.fields import JsonBody, names_in, read_answer_fields
from halfmq.wire.remoting.java_json import at_most


class PositionFields(Fields, gc=False):
    """The request. ``topics``: names, separated by commas, which they cannot contain; without any only the position is requested."""

    topics: str = ""


class _AnswerFields(Fields, gc=False):
    store: str
    epoch: Count64
    position: Count64


class FittingFields(Fields, gc=False):
    """HMQ_FITTING. ``offset`` and ``end``: queue offsets; ``bytes_max``: bytes."""

    topic: NotEmpty
    queue_id: Count32
    offset: Count64
    end: Count64
    bytes_max: Count64 = field(name="bytes")


class FittingAnswer(Fields, gc=False):
    """The response to HMQ_FITTING."""

    count: Count64
    size_bytes: Count64 = field(name="bytes")


_BODY: Final = JsonBody(dict[str, TopicBounds], "a response to HMQ_POSITION is")
#: Body of the request: so many samples of as many topics have a third of it.
_SAMPLES_BYTES_MAX: Final = 1 << 16
_SAMPLES: Final = JsonBody(dict[str, list[tuple[int, int]]], "a request HMQ_POSITION is")


def request_ext(topics: Iterable[str]) -> dict[str, Any]:
    """Ext fields of the request."""
    return write_fields(PositionFields(",".join(topics)))


def asked_topics(fields: PositionFields) -> tuple[str, ...]:
    """Topics of the request, in order and without duplicates.

    Raises:
        ProtocolError: more than there can be.
    """
    return names_in(fields.topics, ",", TOPICS_MAX)


def encode_samples(samples: Mapping[str, Sequence[tuple[int, int]]]) -> bytes:
    """Body of the request: (queue, offset) of the first message of each sample, by topic. At most ``SIZE_SAMPLES_MAX`` in all."""
    return _SAMPLES.encode(samples)


def asked_samples(body: bytes | bytearray | memoryview) -> dict[str, list[tuple[int, int]]]:
    """The samples of the request, at most ``SIZE_SAMPLES_MAX`` in all.

    Raises:
        ProtocolError: the body is malformed.
    """
    if not body:
        return {}
    samples = _SAMPLES.decode(at_most(body, _SAMPLES_BYTES_MAX))
    left = SIZE_SAMPLES_MAX
    for topic, named in samples.items():
        samples[topic] = named[:left]
        left -= len(samples[topic])
    return samples


def encode_answer(answer: Position) -> tuple[dict[str, Any], bytes]:
    """The response: (ext fields, body)."""
    ext = write_fields(_AnswerFields(answer.store, answer.epoch, answer.position))
    return ext, _BODY.encode(answer.topics)


def decode_answer(ext: Mapping[str, str], body: bytes | bytearray | memoryview) -> Position:
    """Decode the response.

    Raises:
        ProtocolError: a field is missing or invalid, or the body is malformed.
    """
    fields = read_answer_fields(_AnswerFields, ext, "a response to HMQ_POSITION")
    topics = _BODY.decode(body)
    for name, bounds in topics.items():
        if any(not 0 <= first <= end for first, end in bounds.queues):
            raise ProtocolError(f"a response to HMQ_POSITION has invalid bounds for topic {name!r}: {bounds.queues}")
        if any(count < 0 or size < count for count, size in bounds.sizes):
            raise ProtocolError(f"a response to HMQ_POSITION has invalid sizes for topic {name!r}: {bounds.sizes}")
    return Position(fields.store, fields.epoch, fields.position, topics)
