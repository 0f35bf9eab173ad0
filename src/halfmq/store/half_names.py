"""Who an undecided half belongs to: producer group, transaction id and number of messages, from its record in the log.

A row of the transaction table contains only hashes of the names. A record without its body has the same names, so it is what leaves
the broker where nobody asked for bodies. Pure functions, which trust that the bytes are a record of a half: the caller checks its kind.
"""

from typing import Final, NamedTuple

from halfmq.model.layout import HALF_BATCH_HEAD, RECORD_HEAD
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT, Kind
from halfmq.model.stored_message import body_place, properties_from
from halfmq.store.record_codec import half_batch_head, half_identity, kind_and_size, message_at

HALF_BATCHES: Final = frozenset({int(Kind.HALF_BATCH), int(Kind.COPIED_HALF_BATCH)})
#: Kinds of records that an undecided row refers to.
HALF_KINDS: Final = frozenset({int(Kind.HALF), int(Kind.COPIED_HALF)}) | HALF_BATCHES
#: Kinds of records that a settled row refers to.
VERDICT_KINDS: Final = frozenset({int(Kind.COMMITTED), int(Kind.ROLLED_BACK), int(Kind.DECIDED)})

_SIZE_AT: Final = RECORD_HEAD.at["record_bytes"]
_PAYLOAD_BYTES_AT: Final = HALF_BATCH_HEAD.at["payload_bytes"]


class HalfNames(NamedTuple):
    """``messages``: 1, or those of a half batch."""

    group: str
    tx_id: str
    messages: int


def half_names(record: bytes | memoryview) -> HalfNames:
    """The names in the record of a half or half batch, with or without its body.

    Raises:
        ValueError, IndexError, struct.error: it is damaged.
    """
    if record[0] in HALF_BATCHES:
        head = half_batch_head(record, 0)
        id_at = HALF_BATCH_PAYLOAD_AT + head.payload_bytes + head.group_bytes
        group = bytes(record[id_at - head.group_bytes : id_at]).decode()
        return HalfNames(group, bytes(record[id_at : id_at + head.id_bytes]).decode(), head.messages)
    properties = bytes(record[properties_from(record, message_at(record[0])) :])
    return HalfNames(*half_identity(properties), 1)


def without_body(record: memoryview) -> bytes:
    """The record of a half without its body, or of a half batch without its messages; its lengths are those of what is left.

    Raises as ``half_names``.
    """
    kind, size = kind_and_size(record, 0)
    if kind in HALF_BATCHES:
        payload_bytes = half_batch_head(record, 0).payload_bytes
        head = bytearray(record[:HALF_BATCH_PAYLOAD_AT])
        head[_PAYLOAD_BYTES_AT : _PAYLOAD_BYTES_AT + 4] = bytes(4)
        head[_SIZE_AT : _SIZE_AT + 4] = (size - payload_bytes).to_bytes(4, "big")
        return bytes(head) + bytes(record[HALF_BATCH_PAYLOAD_AT + payload_bytes : size])
    start = message_at(kind)
    place = body_place(record, start)
    body_bytes = place.end - place.start
    if body_bytes < 0 or place.end > size:
        raise ValueError(f"a body of {body_bytes} bytes in a record of {size}")
    head = bytearray(record[: place.start])
    head[_SIZE_AT : _SIZE_AT + 4] = (size - body_bytes).to_bytes(4, "big")
    head[start : start + 4] = (size - start - body_bytes).to_bytes(4, "big")
    head[place.start - 4 : place.start] = bytes(4)
    return bytes(head) + bytes(record[place.end : size])
