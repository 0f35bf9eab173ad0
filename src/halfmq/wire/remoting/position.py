"""HMQ_POSITION, a command of ours: one position in the log, and what every queue of some topics holds below it.

A reader that takes several queues at one moment (Spark, reconciliation) must not see half of a transaction. Asking each
queue for its end (30, 31) answers at as many moments as there are queues. This asks once: every end in the answer is cut
at the same published position, so that a transaction lies wholly below all ends or wholly above.

    request  code 29001, ext ``topics`` = names with commas between
    answer   code 0, ext ``store`` (UUID, 32 hex digits), ``epoch``, ``position``; body JSON
             {"orders": {"id": 3, "queues": [[0, 10], [0, 12]]}}
             queues by number, each [first offset still kept, offset behind the last one below the position]

A topic that does not exist is not in the answer. Everything below an end is durable and may be pulled (11) at once.
A stock broker answers REQUEST_CODE_NOT_SUPPORTED (3), which is how the asker learns that it is one. The code fits the
16 bits of the binary header. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import ProtocolError

HMQ_POSITION: Final = 29_001
EXT_TOPICS: Final = "topics"
EXT_STORE: Final = "store"
EXT_EPOCH: Final = "epoch"
EXT_POSITION: Final = "position"


class TopicBounds(NamedTuple):
    """One topic at the position. ``queues[n]`` is (first offset kept, offset behind the last visible one) of queue n."""

    topic_id: int
    queues: tuple[tuple[int, int], ...]


class PositionAnswer(NamedTuple):
    """``store`` in 32 hex digits; ``position`` is the published one: nothing below it can be lost by a crash."""

    store: str
    epoch: int
    position: int
    topics: dict[str, TopicBounds]


class _Bounds(msgspec.Struct):
    id: int
    queues: list[tuple[int, int]]


_BODY: Final = msgspec.json.Decoder(dict[str, _Bounds])


def request_ext(topics: Iterable[str]) -> dict[str, str]:
    """Ext fields of the request. Topic names cannot hold a comma."""
    return {EXT_TOPICS: ",".join(topics)}


def asked_topics(ext: Mapping[str, str]) -> tuple[str, ...]:
    """What the request asks for, in its order, each once. Empty: only the position is wanted."""
    return tuple(dict.fromkeys(name for name in ext.get(EXT_TOPICS, "").split(",") if name))


def encode_answer(answer: PositionAnswer) -> tuple[dict[str, str], bytes]:
    """(ext fields, body)."""
    ext = {EXT_STORE: answer.store, EXT_EPOCH: str(answer.epoch), EXT_POSITION: str(answer.position)}
    body = {name: {"id": bounds.topic_id, "queues": bounds.queues} for name, bounds in answer.topics.items()}
    return ext, msgspec.json.encode(body)


def decode_answer(ext: Mapping[str, str], body: bytes | bytearray | memoryview) -> PositionAnswer:
    """What a broker said.

    Raises:
        ProtocolError: a field is missing or no number, or the body is not as above.
    """
    try:
        topics = _BODY.decode(body)
        store, epoch, position = ext[EXT_STORE], int(ext[EXT_EPOCH]), int(ext[EXT_POSITION])
    except (KeyError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ProtocolError(f"the answer to HMQ_POSITION cannot be read: {error!r}") from error
    for name, bounds in topics.items():
        if any(not 0 <= first <= end for first, end in bounds.queues):
            raise ProtocolError(f"the answer to HMQ_POSITION has impossible bounds for topic {name!r}: {bounds.queues}")
    named = {name: TopicBounds(bounds.id, tuple(bounds.queues)) for name, bounds in topics.items()}
    return PositionAnswer(store, epoch, position, named)
