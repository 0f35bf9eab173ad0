"""The layout of a message in the log and in pull responses: RocketMQ's stored layout, versions 1 and 2.

It is here because three packages must agree on it without depending on each other: ``core`` (replies contain log offsets, so it
must know encoded sizes), ``store`` (writes it) and ``wire`` (decodes it in clients).

    fixed fields up to the body (``layout.STORED_MESSAGE``; hosts of 8 or 20 bytes) | body | topic length 1 or 2 | topic
    properties length 2 | properties

Big-endian. Hosts are IP and int32 port; 20 bytes if the sys flag says IPv6. Version 2 has a two-byte topic length and is written only if
the topic is longer than 127 bytes. Source: RocketMQ ``MessageExtEncoder``, ``MessageDecoder``.
"""

import struct
from typing import Final, NamedTuple

from halfmq.model.checksum import crc32
from halfmq.model.layout import STORED_MESSAGE, Layout
from halfmq.model.properties import append

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

SYS_HOSTS_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

#: Places of fixed fields from the start of the message, with IPv4 hosts where that matters; see ``fixed_fields``.
AT_QUEUE_ID: Final = STORED_MESSAGE.at["queue_id"]
AT_QUEUE_OFFSET: Final = STORED_MESSAGE.at["queue_offset"]
AT_PHYSICAL_OFFSET: Final = STORED_MESSAGE.at["physical_offset"]
AT_SYS_FLAG: Final = STORED_MESSAGE.at["sys_flag"]
AT_BODY_V4: Final = STORED_MESSAGE.size
#: Bytes of a packed host.
_HOST_V4: Final = 8
_HOST_V6: Final = 20
#: Additional bytes of an IPv6 host.
V6_MORE: Final = _HOST_V6 - _HOST_V4
#: By the two bits ``SYS_HOSTS_V6`` of the sys flag.
_BY_HOSTS: Final = [
    Layout(size=None, **STORED_MESSAGE.fields | dict.fromkeys(hosts, f"{_HOST_V6}s"))
    for hosts in ((), ("born_host",), ("store_host",), ("born_host", "store_host"))
]
#: What differs in the copies that leave: store time, prepared offset.
_PLACES: Final = [(fields.at["store_time_ms"], fields.at["prepared_offset"]) for fields in _BY_HOSTS]
_TOPIC_V1_MAX: Final = 127
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">I")
#: Of a message with IPv4 hosts, from its start: body CRC, sys flag, body length.
body_fields: Final = STORED_MESSAGE.only(body_crc="I", sys_flag="I", body_bytes="i").unpack_from
Buffer = bytes | bytearray | memoryview


def fixed_fields(sys_flag: int) -> Layout:
    """The layout of a message up to its body."""
    return _BY_HOSTS[sys_flag >> 4 & 3]


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
    fixed = AT_BODY_V4 - 2 * _HOST_V4 + born_host_bytes + store_host_bytes
    return fixed + body_bytes + (1 if topic_bytes <= _TOPIC_V1_MAX else 2) + topic_bytes + 2 + properties_bytes


def encode(message: StoredMessage, physical_offset: int) -> tuple[bytes, bytes, bytes]:
    """(before the body, the body, after the body). The three are written separately, so the body is not copied.

    The sys flag's host bits are set here from the length of the hosts.
    """
    topic = message.topic.encode()
    is_short = len(topic) <= _TOPIC_V1_MAX
    (_, queue_id, queue_offset, flag, sys_flag, born_time_ms, born_host, store_time_ms, store_host, reconsume_times,
     prepared_offset, body, body_crc, properties) = message  # fmt: skip
    tail = b"".join(
        (len(topic).to_bytes(1 if is_short else 2, "big"), topic, len(properties).to_bytes(2, "big"), properties)
    )
    hosts = (len(born_host) == _HOST_V6) * SYS_BORN_HOST_V6 | (len(store_host) == _HOST_V6) * SYS_STORE_HOST_V6
    fields = fixed_fields(hosts)
    head = fields.pack(
        fields.size + len(body) + len(tail), MAGIC_V1 if is_short else MAGIC_V2, body_crc, queue_id, flag, queue_offset,
        physical_offset, sys_flag | hosts, born_time_ms, born_host, store_time_ms, store_host, reconsume_times,
        prepared_offset, len(body),
    )  # fmt: skip
    return head, body, tail


class BodyPlace(NamedTuple):
    """Place of a body, counted from the start of the buffer, and the CRC that its message states."""

    start: int
    end: int
    crc: int


def body_place(buffer: Buffer, message_start: int) -> BodyPlace:
    """Place of the body of the message that starts at ``message_start``. It trusts the bytes; the caller checks bounds.

    Raises:
        struct.error: the buffer ends before the fixed fields do.
    """
    crc, sys_flag, length = body_fields(buffer, message_start)
    start = message_start + AT_BODY_V4
    if sys_flag & SYS_HOSTS_V6:
        start = message_start + fixed_fields(sys_flag).size
        (length,) = struct.unpack_from(">i", buffer, start - 4)
    return BodyPlace(start, start + length, crc)


def topic_width(buffer: Buffer, message_start: int) -> int:
    """Bytes of the topic's length in the message that starts at ``message_start``, which is at the end of its body."""
    return 1 if int.from_bytes(buffer[message_start + 4 : message_start + 8], "big") == MAGIC_V1 else 2


def properties_from(buffer: Buffer, message_start: int) -> int:
    """Where the properties of the message that starts at ``message_start`` begin; they are its end. Trusts and raises as ``body_place``."""
    topic_at = body_place(buffer, message_start).end
    width = topic_width(buffer, message_start)
    return topic_at + width + int.from_bytes(buffer[topic_at : topic_at + width], "big") + 2


def decode(buffer: Buffer, at: int = 0) -> tuple[StoredMessage, int, int]:
    """(message, its physical offset, its encoded size) of the message that starts at ``at``.

    Raises:
        ValueError: no complete message starts there (wrong magic, or inconsistent lengths).
    """
    view = memoryview(buffer)
    try:
        (sys_flag,) = _INT32.unpack_from(view, at + AT_SYS_FLAG)
        fields = fixed_fields(sys_flag)
        (total, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_time_ms, born_host,
         store_time_ms, store_host, reconsume_times, prepared_offset, body_bytes) = fields.unpack_from(view, at)  # fmt: skip
        if magic not in (MAGIC_V1, MAGIC_V2) or at + total > len(view):
            raise ValueError(f"no stored message at {at}: magic {magic:#x}, size {total}")
        place = at + fields.size
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
        topic, queue_id, queue_offset, flag, sys_flag, born_time_ms, born_host, store_time_ms, store_host,
        reconsume_times, prepared_offset, body, body_crc, properties,
    )  # fmt: skip
    return message, physical_offset, total


def with_properties(stored: bytes, added: bytes, bytes_max: int) -> bytes:
    """The stored message with a property string after its own, and sizes that fit; unchanged if it would have more than ``bytes_max``.

    Raises:
        ValueError: not a stored message.
    """
    message, _, size = decode(stored)
    text = append(message.properties, added)
    if len(text) > bytes_max:
        return stored
    at = size - len(message.properties) - 2
    total = at + 2 + len(text)
    return b"".join((total.to_bytes(4, "big"), stored[4:at], len(text).to_bytes(2, "big"), text))


# --- what leaves differs from what is stored ---------------------------------------------------------------------


def patch_committed(buffer: bytearray, at: int, queue_offset: int, store_time_ms: int, prepared_offset: int) -> None:
    """Turn the copy of a half at ``at`` into the committed message for consumers.

    It gets transaction bits 8, the queue offset and the store time of the commit, and ``prepared_offset``, the half's first offset.
    """
    sys_flag = _INT32.unpack_from(buffer, at + AT_SYS_FLAG)[0]
    _INT32.pack_into(buffer, at + AT_SYS_FLAG, sys_flag & ~SYS_TRANSACTION_MASK | SYS_COMMITTED)
    store_time_at, prepared_offset_at = _PLACES[sys_flag >> 4 & 3]
    _INT64.pack_into(buffer, at + AT_QUEUE_OFFSET, queue_offset)
    _INT64.pack_into(buffer, at + store_time_at, store_time_ms)
    _INT64.pack_into(buffer, at + prepared_offset_at, prepared_offset)


def patch_released(buffer: bytearray, at: int, queue_offset: int, store_time_ms: int) -> None:
    """Set the queue offset of the copy of a delayed message at ``at``, and the time at which it became visible."""
    _INT64.pack_into(buffer, at + AT_QUEUE_OFFSET, queue_offset)
    sys_flag = _INT32.unpack_from(buffer, at + AT_SYS_FLAG)[0]
    _INT64.pack_into(buffer, at + _PLACES[sys_flag >> 4 & 3][0], store_time_ms)
