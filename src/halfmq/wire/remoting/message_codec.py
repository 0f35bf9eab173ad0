"""Messages on the wire: batches, send requests, checks, END_TRANSACTION and pulled messages."""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model import properties, stored_message
from halfmq.model.ids import offset_message_id
from halfmq.model.stored_message import (
    SYS_COMPRESSED,
    StoredMessage,
    body_crc_of,
)
from halfmq.wire.remoting import frame as frames
from halfmq.wire.remoting.codes import (
    EXT_COORDINATOR,
    EXT_DECIDED_BY,
    EXT_SENT_AGAIN,
    EXT_TX_ID,
    LANGUAGE_OURS,
    VERSION_OURS,
    RequestCode,
)
from halfmq.wire.remoting.compression import decompress
from halfmq.wire.remoting.fields import PushedReplyFields
from halfmq.wire.remoting.header import Request, encode_oneway_request, encode_request

_ENTRY_HEAD: Final = struct.Struct(">iiiii")


# --- batches (320) -----------------------------------------------------------------------------------------------


class BatchEntry(NamedTuple):
    """A message of a batch; ``properties`` is a property string."""

    flag: int
    body: bytes
    properties: bytes


def split_batch(body: bytes) -> tuple[BatchEntry, ...]:
    """All of ``batch_entries``."""
    return tuple(batch_entries(body))


def batch_entries(body: bytes) -> Iterator[BatchEntry]:
    """Decode the body of 320: entries of size 4, magic 4, CRC 4, flag 4, body length 4, body, properties length 2, properties.

    Raises:
        ProtocolError: no entry, or inconsistent lengths.
    """
    if not body:
        raise ProtocolError("a batch without a message")
    at = 0
    end = len(body)
    while at < end:
        if end - at < _ENTRY_HEAD.size + 2:
            raise ProtocolError(f"a batch is truncated at {at} of {end} bytes")
        size, _magic, _crc, flag, body_bytes = _ENTRY_HEAD.unpack_from(body, at)
        place = at + _ENTRY_HEAD.size
        stop = at + size
        if body_bytes < 0 or stop > end or place + body_bytes + 2 > stop:
            raise ProtocolError(
                f"an entry of a batch at {at} has size {size} and body size {body_bytes}; the batch has {end} bytes"
            )
        message = body[place : place + body_bytes]
        place += body_bytes
        properties_bytes = int.from_bytes(body[place : place + 2], "big", signed=True)
        place += 2
        if place + properties_bytes != stop:
            raise ProtocolError(
                f"properties of {properties_bytes} bytes do not match the size of their batch entry at {at}"
            )
        yield BatchEntry(flag, message, body[place:stop])
        at = stop


def join_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Encode the body of 320, without compression. The broker rejects messages that are too large."""
    parts: list[bytes] = []
    for flag, body, text in entries:
        size = _ENTRY_HEAD.size + len(body) + 2 + len(text)
        parts += (_ENTRY_HEAD.pack(size, 0, 0, flag, len(body)), body, len(text).to_bytes(2, "big"), text)
    return b"".join(parts)


def with_properties(stored: bytes, added: bytes) -> bytes:
    """Append a property string to a stored message, and adjust its sizes.

    Unchanged if the properties would exceed 32,767 bytes, which Java reads as none.

    Raises:
        ProtocolError: not a stored message.
    """
    try:
        return stored_message.with_properties(stored, added, limits.PROPERTIES_BYTES_MAX)
    except ValueError as error:
        raise ProtocolError(f"not a stored message: {error}") from error


def encode_check(
    opaque: int,
    stored: bytes,
    *,
    half_index: int,
    first_offset: int,
    message_id: str,
    offset_id: str,
    checks: int,
    broker_name: str,
    tx_id: str = "",
) -> bytes:
    """39: the check of a half message's transaction, as a complete frame. ``checks``: number of this check, from 1.

    ``message_id`` is the UNIQ_KEY, ``offset_id`` the offset message id. RocketMQ's client returns ``transactionId`` unchanged, so
    it can identify a transaction with several half messages. Listeners find the number as TRANSACTION_CHECK_TIMES.
    """
    ext = {
        "tranStateTableOffset": half_index,
        "commitLogOffset": first_offset,
        "msgId": message_id,
        "transactionId": tx_id or message_id,
        "offsetMsgId": offset_id,
        "bname": broker_name,
        EXT_TX_ID: tx_id or None,
    }
    return encode_oneway_request(RequestCode.CHECK_TRANSACTION_STATE, opaque, ext, with_check_times(stored, checks))


def with_check_times(stored: bytes, checks: int) -> bytes:
    """The half message with the number of its check as property TRANSACTION_CHECK_TIMES."""
    return with_properties(stored, properties.encode(((properties.TRANSACTION_CHECK_TIMES, str(checks)),)))


# --- the client's side -------------------------------------------------------------------------------------------


class PulledMessage(NamedTuple):
    """A pulled message, possibly compressed; ``unpack`` decompresses it."""

    message: StoredMessage
    #: For 33 and 36.
    log_offset: int
    #: RocketMQ's ``offsetMsgId``: store host and log offset.
    offset_id: str
    #: False: the body is damaged, since its CRC differs from the stored one. The caller must not use it.
    whole: bool


def split_pull(body: bytes) -> list[PulledMessage]:
    """The messages of a pull response, still compressed. The caller calls ``unpack`` when it has the memory.

    Raises:
        ProtocolError: a message is truncated or malformed.
    """
    packed: list[PulledMessage] = []
    at = 0
    while at < len(body):
        message, log_offset, size = _stored_at(body, at)
        # The CRC is that of the compressed body. 0: the broker stored none.
        whole = message.body_crc in (body_crc_of(message.body), 0)
        packed.append(PulledMessage(message, log_offset, offset_message_id(message.store_host, log_offset), whole))
        at += size
    return packed


def unpack(pulled: PulledMessage) -> PulledMessage:
    """Decompress the body and clear the flag; ``pulled`` itself if it is not compressed, or damaged. Raises as ``decompress``."""
    message = pulled.message
    if not pulled.whole or not message.sys_flag & SYS_COMPRESSED:
        return pulled
    plain = decompress(message.body, message.sys_flag)
    return pulled._replace(message=message._replace(body=plain, sys_flag=message.sys_flag & ~SYS_COMPRESSED))


def decode_pulled(body: bytes) -> list[PulledMessage]:
    """Decompressed messages, up to ``limits.UNPACKED_BYTES_MAX`` of decompressed bodies, at least one. The caller must request
    the rest again.

    Raises:
        ProtocolError: a message is truncated or malformed.
        MissingDependency: the package for LZ4 or ZSTD is not installed.
    """
    pulled: list[PulledMessage] = []
    unpacked_bytes = 0
    for packed in split_pull(body):
        one = unpack(packed)
        unpacked_bytes += len(one.message.body) if one is not packed else 0
        if unpacked_bytes > limits.UNPACKED_BYTES_MAX and pulled:
            break
        pulled.append(one)
    return pulled


def read_pushed_reply(request: Request[PushedReplyFields]) -> PulledMessage:
    """The reply that 326 brings, as a message, which no broker has stored; possibly compressed."""
    fields, body = request.ext, request.body
    message = StoredMessage(
        topic=fields.topic,
        queue_id=fields.queue_id,
        queue_offset=0,
        flag=fields.flag,
        sys_flag=fields.sys_flag,
        born_time_ms=fields.born_timestamp,
        born_host=bytes(8),
        store_time_ms=fields.store_timestamp,
        store_host=bytes(8),
        reconsume_times=fields.reconsume_times,
        prepared_offset=0,
        body=body,
        body_crc=body_crc_of(body),
        properties=fields.properties.encode(),
    )
    return PulledMessage(message, 0, "", True)


def _stored_at(body: bytes, at: int) -> tuple[StoredMessage, int, int]:
    try:
        message, log_offset, size = stored_message.decode(body, at)
    except ValueError as error:
        raise ProtocolError(f"invalid message in a pull response: {error}") from error
    if log_offset < 0:
        raise ProtocolError(f"a pulled message has log offset {log_offset}")
    return message, log_offset, size


def encode_send(
    opaque: int,
    *,
    group: str,
    topic: str,
    queue_id: int,
    sys_flag: int,
    born_time_ms: int,
    property_string: bytes,
    body: bytes,
    flag: int = 0,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
    batch: bool = False,
    default_queues: int = 4,
    sent_again: bool = False,
    reply: bool = False,
) -> bytes:
    """310, 320 with ``batch``, or 325 with ``reply``, as a complete frame. Group and topic must be valid names; they are not escaped.

    ``sent_again``: an earlier attempt got no response; a halfmq broker then stores the message only if it is not stored yet.
    """
    last = "" if max_reconsume_times is None else f',"l":"{max_reconsume_times}"'
    if sent_again:
        last += f',"{EXT_SENT_AGAIN}":"true"'
    text = msgspec.json.encode(property_string.decode("utf-8", "replace"))
    header = (
        f'{{"code":{320 if batch else 325 if reply else 310},"extFields":{{"a":"{group}","b":"{topic}","c":"TBW102","d":"{default_queues}"'
        f',"e":"{queue_id}","f":"{sys_flag}","g":"{born_time_ms}","h":"{flag}","i":'.encode()
        + text
        + f',"j":"{reconsume_times}","k":"false"{last},"m":"{"true" if batch else "false"}"}},"flag":0'
        f',"language":"{LANGUAGE_OURS}","opaque":{opaque},"version":{VERSION_OURS}}}'.encode()
    )
    return frames.assemble(header, body)


def encode_end(
    opaque: int,
    *,
    group: str,
    topic: str,
    half_index: int,
    log_offset: int,
    commit_or_rollback: int,
    message_id: str,
    from_check: bool = False,
    decided_by: str = "",
    tx_id: str = "",
    coordinator: str = "",
    remark: str | None = None,
    oneway: bool = True,
) -> bytes:
    """37 as a complete frame. The caller must use ``oneway`` unless the broker has sent HMQ_VERSION: Apache RocketMQ does not
    respond to UNKNOWN."""
    ext = {
        "producerGroup": group,
        "tranStateTableOffset": half_index,
        "commitLogOffset": log_offset,
        "commitOrRollback": commit_or_rollback,
        "msgId": message_id,
        "transactionId": message_id,
        "fromTransactionCheck": from_check,
        "topic": topic,
        EXT_TX_ID: tx_id or None,
        EXT_DECIDED_BY: decided_by or None,
        EXT_COORDINATOR: coordinator or None,
    }
    return encode_request(RequestCode.END_TRANSACTION, opaque, ext, oneway=oneway, remark=remark)
