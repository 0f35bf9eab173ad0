"""The layout of a message in the log and in pull responses: RocketMQ's stored layout, versions 1 and 2.

It is here because three packages must agree on it without depending on each other: ``core`` (replies contain log offsets, so it
must know encoded sizes), ``store`` (writes it) and ``wire`` (decodes it in clients).

    0 total 4 | 4 magic 4 | 8 body CRC 4 | 12 queue id 4 | 16 flag 4 | 20 queue offset 8 | 28 physical offset 8
    36 sys flag 4 | 40 born time 8 | 48 born host 8 or 20 | store time 8 | store host 8 or 20
    reconsume times 4 | prepared transaction offset 8 | body length 4 | body | topic length 1 or 2 | topic
    properties length 2 | properties

Big-endian. Hosts are IP and int32 port; 20 bytes if the sys flag says IPv6. Version 2 has a two-byte topic length and is written only if
the topic is longer than 127 bytes. Source: RocketMQ ``MessageExtEncoder``, ``MessageDecoder``.
"""

import struct
from typing import Final, NamedTuple

from halfmq.model.checksum import crc32

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB

SYS_COMPRESSED: Final = 0x1
SYS_TRANSACTION_MASK: Final = 0xC
SYS_PREPARED: Final = 0x4
SYS_COMMITTED: Final = 0x8
SYS_ROLLED_BACK: Final = 0xC
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_COMPRESSION_TYPE_MASK: Final = 0x700

#: Places of fixed fields from the start of the message; those after the born host move by 12 if it is IPv6.
AT_BODY_CRC: Final = 8
AT_QUEUE_ID: Final = 12
AT_QUEUE_OFFSET: Final = 20
AT_PHYSICAL_OFFSET: Final = 28
AT_SYS_FLAG: Final = 36
AT_BORN_TIME: Final = 40
AT_STORE_TIME_V4: Final = 56
AT_PREPARED_OFFSET_V4: Final = 76
AT_BODY_LENGTH_V4: Final = 84
AT_BODY_V4: Final = 88

_V4: Final = struct.Struct(">IIIiiqqiq8sq8siqi")
_V4_PREFIX: Final = _V4.size  # 88
_COMMON: Final = struct.Struct(">IIIiiqqiq")
_TAIL: Final = struct.Struct(">iqi")
_TOPIC_V1_MAX: Final = 127
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">I")
#: Additional bytes of an IPv6 host.
_V6_MORE: Final = 12

assert _V4_PREFIX == AT_BODY_V4


class StoredMessage(NamedTuple):
    """One message as stored. ``properties`` is the encoded property string; hosts are packed (4 or 16 bytes, int32 port)."""

    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    store_time_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    body_crc: int
    properties: bytes


def body_crc_of(body: bytes) -> int:
    """CRC-32 of the stored body without its sign bit, as RocketMQ writes it."""
    return crc32(body) & 0x7FFFFFFF


def size_of(
    topic_bytes: int, body_bytes: int, properties_bytes: int, born_host_bytes: int = 8, store_host_bytes: int = 8
) -> int:
    """Encoded size, in bytes, without encoding anything."""
    return (
        _V4_PREFIX
        - 16
        + born_host_bytes
        + store_host_bytes
        + body_bytes
        + (1 if topic_bytes <= _TOPIC_V1_MAX else 2)
        + topic_bytes
        + 2
        + properties_bytes
    )


def encode(message: StoredMessage, physical_offset: int) -> tuple[bytes, bytes, bytes]:
    """(before the body, the body, after the body). The three are written separately, so the body is not copied.

    The sys flag's host bits are set here from the length of the hosts.
    """
    topic = message.topic.encode()
    version_1 = len(topic) <= _TOPIC_V1_MAX
    properties = message.properties
    body = message.body
    born_host = message.born_host
    store_host = message.store_host
    tail = (
        bytes((len(topic),)) + topic + len(properties).to_bytes(2, "big") + properties
        if version_1
        else len(topic).to_bytes(2, "big") + topic + len(properties).to_bytes(2, "big") + properties
    )
    magic = MAGIC_V1 if version_1 else MAGIC_V2
    if len(born_host) == 8 and len(store_host) == 8:
        head = _V4.pack(
            _V4_PREFIX + len(body) + len(tail),
            magic,
            message.body_crc,
            message.queue_id,
            message.flag,
            message.queue_offset,
            physical_offset,
            message.sys_flag,
            message.born_time_ms,
            born_host,
            message.store_time_ms,
            store_host,
            message.reconsume_times,
            message.prepared_offset,
            len(body),
        )
        return head, body, tail
    sys_flag = message.sys_flag
    if len(born_host) == 20:
        sys_flag |= SYS_BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= SYS_STORE_HOST_V6
    total = _V4_PREFIX - 16 + len(born_host) + len(store_host) + len(body) + len(tail)
    head = (
        _COMMON.pack(
            total,
            magic,
            message.body_crc,
            message.queue_id,
            message.flag,
            message.queue_offset,
            physical_offset,
            sys_flag,
            message.born_time_ms,
        )
        + born_host
        + message.store_time_ms.to_bytes(8, "big")
        + store_host
        + _TAIL.pack(message.reconsume_times, message.prepared_offset, len(body))
    )
    return head, body, tail


def decode(buffer: bytes | bytearray | memoryview, at: int = 0) -> tuple[StoredMessage, int, int]:
    """(message, its physical offset, its encoded size) of the message that starts at ``at``.

    Raises:
        ValueError: no complete message starts there (wrong magic, or inconsistent lengths).
    """
    view = memoryview(buffer)
    try:
        (
            total,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_time_ms,
        ) = _COMMON.unpack_from(view, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or at + total > len(view):
            raise ValueError(f"no stored message at {at}: magic {magic:#x}, size {total}")
        place = at + 48
        width = 20 if sys_flag & SYS_BORN_HOST_V6 else 8
        born_host = bytes(view[place : place + width])
        place += width
        store_time_ms = int.from_bytes(view[place : place + 8], "big")
        place += 8
        width = 20 if sys_flag & SYS_STORE_HOST_V6 else 8
        store_host = bytes(view[place : place + width])
        place += width
        reconsume_times, prepared_offset, body_bytes = _TAIL.unpack_from(view, place)
        place += _TAIL.size
        body = bytes(view[place : place + body_bytes])
        place += body_bytes
        width = 1 if magic == MAGIC_V1 else 2
        topic_bytes = int.from_bytes(view[place : place + width], "big")
        place += width
        topic = bytes(view[place : place + topic_bytes]).decode()
        place += topic_bytes
        properties_bytes = int.from_bytes(view[place : place + 2], "big")
        place += 2
        properties = bytes(view[place : place + properties_bytes])
        place += properties_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"no stored message at {at}: {error}") from error
    if body_bytes < 0 or place != at + total:
        raise ValueError(f"stored message at {at} says {total} bytes, its fields take {place - at}")
    message = StoredMessage(
        topic,
        queue_id,
        queue_offset,
        flag,
        sys_flag,
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        body_crc,
        properties,
    )
    return message, physical_offset, total


# --- what leaves differs from what is stored ---------------------------------------------------------------------


def patch_committed(buffer: bytearray, at: int, queue_offset: int, store_time_ms: int, prepared_offset: int) -> None:
    """Turn the copy of a half at ``at`` into the committed message for consumers.

    It gets transaction bits 8, the queue offset and the store time of the commit, and ``prepared_offset``, the half's first offset.
    """
    sys_flag = _INT32.unpack_from(buffer, at + AT_SYS_FLAG)[0]
    _INT32.pack_into(buffer, at + AT_SYS_FLAG, sys_flag & ~SYS_TRANSACTION_MASK | SYS_COMMITTED)
    _patch_places(buffer, at, sys_flag, queue_offset, store_time_ms)
    more = (_V6_MORE if sys_flag & SYS_BORN_HOST_V6 else 0) + (_V6_MORE if sys_flag & SYS_STORE_HOST_V6 else 0)
    _INT64.pack_into(buffer, at + AT_PREPARED_OFFSET_V4 + more, prepared_offset)


def patch_released(buffer: bytearray, at: int, queue_offset: int, store_time_ms: int) -> None:
    """Set the queue offset of the copy of a delayed message at ``at``, and the time at which it became visible."""
    _patch_places(buffer, at, _INT32.unpack_from(buffer, at + AT_SYS_FLAG)[0], queue_offset, store_time_ms)


def _patch_places(buffer: bytearray, at: int, sys_flag: int, queue_offset: int, store_time_ms: int) -> None:
    _INT64.pack_into(buffer, at + AT_QUEUE_OFFSET, queue_offset)
    more = _V6_MORE if sys_flag & SYS_BORN_HOST_V6 else 0
    _INT64.pack_into(buffer, at + AT_STORE_TIME_V4 + more, store_time_ms)
