"""``halfmq store dump``: every record of the log as one line of JSON, for people and for ``jq``.

A line contains the place of the record (``offset``, ``size``, ``batch``), the batch's ``epoch`` and ``time_ms``, the ``kind``, and the
fields of the record. The properties of a message are an object. Its body is included only on request, as ``body`` if it is
UTF-8, else as ``body_base64``. Payloads of ``core`` are shown as their arrays.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from halfmq.errors import StoreDamaged, UsageError
from halfmq.model import properties as props
from halfmq.model.half_batch import ITEM_HEAD_BYTES, delays_in, item_places
from halfmq.model.records import (
    HALF_BATCH_PAYLOAD_AT,
    TYPE_OF_KIND,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    DecidedBy,
    HalfBatch,
    HalfRecord,
    MessageRecord,
    OperatorAction,
    ParkedBecause,
    Record,
    StoredRecord,
    Trim,
)
from halfmq.model.stored_message import StoredMessage, decode
from halfmq.runtime.disk import Disk
from halfmq.store.batch_codec import Header, decode_batch
from halfmq.store.checkpoint import Present, read_checkpoint
from halfmq.store.identity import read_identity
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, TornTail
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND, half_batch_head
from halfmq.store.segment import SegmentFiles
from halfmq.store.watermark_page import Watermark, read_watermark_page

KIND_OF: Final = {of: kind.name.lower() for kind, of in TYPE_OF_KIND.items()}
KINDS: Final = frozenset(KIND_OF.values())

#: Fields that are decoded from the properties, which are shown anyway.
_IN_PROPERTIES: Final[dict[type, tuple[str, ...]]] = {
    MessageRecord: ("tag_hash", "key_hash", "keys"),
    HalfRecord: ("tag_hash", "key_hash", "id_hash", "delay", "grace_ms", "keys", "coordinator"),
}
_OF_MESSAGE: Final = frozenset(StoredMessage._fields)
_VERIFY: Final = "`halfmq store verify` gives advice"


def dump_store(
    disk: Disk,
    directory: Path,
    *,
    start: int = 0,
    kinds: frozenset[str] = frozenset(),
    bodies: bool = False,
    contents: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[bytes]:
    """Lines without line ends, in log order, from the first record at or after ``start``.

    ``kinds``: only these; empty: all. ``contents``: half batches with each of their messages, as with ``bodies``, but without the bodies;
    ``at`` is the place of a message after the start of the record. ``note`` is called with a description of the end of the log, unless that is a clean end. Read-only, and
    usable beside a running broker; the end may then be a batch that is being written.

    Raises:
        UsageError: no store, or an unknown kind.
        StoreDamaged: damage other than a torn end; the lines before it were returned.
    """
    unknown = kinds - KINDS
    if unknown:
        raise UsageError(f"no such kind: {', '.join(sorted(unknown))}", hint="kinds: " + ", ".join(sorted(KINDS)))
    identity = read_identity(disk, directory)
    if identity is None:
        raise UsageError(f"{directory} holds no store", hint="give the directory that `halfmq serve --data` got")
    files = SegmentFiles(disk, directory / "shard-0" / "log", identity.segment_bytes)
    numbers = files.numbers()
    durable, ended = _said_durable(disk, directory, identity.store_id)
    if not numbers:
        if ended:
            raise StoreDamaged(f"{files.directory} has no segments; there was a log up to {ended}", hint=_VERIFY)
        return
    log_start = trimmed_to = numbers[0] * identity.segment_bytes
    first = max(numbers[0], start // identity.segment_bytes)
    if first == numbers[0]:
        trimmed_to = 0
    reached = start
    try:
        for scanned in LogScan(files).from_batch(first * identity.segment_bytes, durable):
            match scanned:
                case Batch(header, view, place) as batch:
                    reached = header.offset
                    for record in decode_batch(view, place, header) if header.end > start else ():
                        if isinstance(record, Trim):
                            trimmed_to = max(trimmed_to, record.log_start)
                        if record.offset >= start and (not kinds or KIND_OF[type(record)] in kinds):
                            yield _line(record, batch, bodies=bodies, contents=contents or bodies)
                case EndOfLog():
                    pass
                case TornTail(cut_at, _, why, whole):
                    note(f"the log ends at {cut_at}: torn end ({why}), {whole} whole batches after it")
                case CorruptInterior(at, file, why, position):
                    files.close()
                    raise StoreDamaged(
                        f"{file} at log offset {at}: {why}; the log was durable up to {position}",
                        hint=f"{_VERIFY}; records after it: --from",
                    )
    except FileNotFoundError:
        left = SegmentFiles(disk, files.directory, identity.segment_bytes).numbers()
        oldest = min(left, default=0) * identity.segment_bytes
        if oldest <= reached:
            raise
        files.close()
        note(f"a broker trimmed the log meanwhile: continuing at {oldest}")
        yield from dump_store(
            disk, directory, start=max(start, oldest), kinds=kinds, bodies=bodies, contents=contents, note=note
        )
        return
    files.close()
    if log_start > trimmed_to:
        raise StoreDamaged(
            f"the log in {files.directory} begins at {log_start}, but only what lies before {trimmed_to} was trimmed",
            hint=_VERIFY,
        )


def _said_durable(disk: Disk, directory: Path, store_id: bytes) -> tuple[int, int]:
    """(highest durable position, highest end of the log) according to checkpoint and watermark page."""
    checkpoint = read_checkpoint(disk, directory / "shard-0" / "checkpoint", store_id)
    durable = checkpoint.slots[0].position if isinstance(checkpoint, Present) else 0
    page = read_watermark_page(disk, directory / "shard-0" / "published")
    if isinstance(page, Watermark) and page.store == store_id:
        durable = max(durable, page.durable)
        return durable, max(durable, page.position)
    return durable, durable


def _line(record: Record, batch: Batch, *, bodies: bool, contents: bool) -> bytes:
    record_at = batch.place + record.offset - batch.header.offset
    raw = batch.view[record_at : record_at + record.size]
    return msgspec.json.encode(_head(record, batch.header) | _fields(record, raw, bodies=bodies, contents=contents))


def _head(record: Record, header: Header) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "size": record.size,
        "kind": KIND_OF[type(record)],
        "batch": header.offset,
        "epoch": header.epoch,
        "time_ms": header.broker_time_ms,
    }


def _fields(record: Record, raw: memoryview, *, bodies: bool, contents: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    hidden = _IN_PROPERTIES.get(type(record), ())
    for name in record.__struct_fields__[2:]:
        value = getattr(record, name)
        if name in hidden or (name in _OF_MESSAGE and isinstance(record, StoredRecord)):
            continue
        if name == "topic_id" and isinstance(record, StoredRecord):
            fields |= {"topic_id": value, "message": _message(record.message, bodies=bodies)}
            if isinstance(record, HalfRecord):
                fields["half_index"] = record.half_index
        elif name == "payload" and isinstance(record, HalfBatch):
            fields["payload_bytes"] = len(value)
        elif name == "digest":
            fields["digest"] = value.hex()
        elif name == "payload":
            fields["payload"] = _payload(bytes(value))
        elif name == "refs":
            fields["refs"] = [msgspec.structs.asdict(ref) for ref in value]
        elif name == "decided_by":
            fields["decided_by"] = _name_of(DecidedBy, value)
        elif name == "action":
            fields["action"] = _name_of(OperatorAction, value)
        elif name == "because":
            fields["because"] = _name_of(ParkedBecause, value)
        elif name == "delayed_entries":
            fields["delays"] = list(delays_in(value))
        elif name != "source":
            fields[name] = value
    if isinstance(record, CopiedHalf | CopiedDelayed):
        message, _, _ = decode(raw[MESSAGE_AT_BY_KIND[raw[0]] :])
        fields["message"] = _message(message, bodies=bodies)
    if isinstance(record, HalfBatch | CopiedHalfBatch) and contents:
        end = HALF_BATCH_PAYLOAD_AT + half_batch_head(raw, 0).payload_bytes
        items = item_places(bytes(raw[HALF_BATCH_PAYLOAD_AT:end]), record.messages)
        fields["content"] = [
            {"at": at, **_message(decode(raw[at + ITEM_HEAD_BYTES :])[0], bodies=bodies)} for at, _ in items
        ]
    return fields


def _message(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_time_ms": message.born_time_ms,
        "born_host": _host(message.born_host),
        "store_time_ms": message.store_time_ms,
        "store_host": _host(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset,
        "body_bytes": len(message.body),
        "body_crc": message.body_crc,
        "properties": props.to_dict(message.properties),
    }
    if bodies:
        try:
            fields["body"] = message.body.decode()
        except UnicodeDecodeError:
            fields["body_base64"] = b64encode(message.body).decode()
    return fields


def _host(packed: bytes) -> str:
    port = int.from_bytes(packed[-4:], "big")
    if len(packed) == 8:
        return ".".join(map(str, packed[:4])) + f":{port}"
    groups = [packed[at : at + 2].hex() for at in range(0, 16, 2)]
    return "[" + ":".join(groups) + f"]:{port}"


def _payload(payload: bytes) -> Any:
    try:
        return _plain(msgspec.msgpack.decode(payload))
    except msgspec.DecodeError:
        return {"base64": b64encode(payload).decode()}


def _plain(value: Any) -> Any:
    """``value`` as JSON: byte strings as base64, keys as text."""
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value


def _name_of(names: type[IntEnum], number: int) -> str:
    try:
        return names(number).name.lower()
    except ValueError:
        return str(number)
