"""``halfmq store dump``: every record of the log as one line of JSON, for people and for ``jq``.

A line contains the place of the record (``offset``, ``size``, ``batch``), the batch's ``epoch`` and ``time_ms``, the ``kind``, and the
fields of the record. The properties of a message are an object. Its body is included only on request, as ``body`` if it is
UTF-8, else as ``body_base64``. Payloads of ``core`` are shown as their arrays; of users, neither secrets nor passwords.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from halfmq.errors import StoreDamaged, UsageError
from halfmq.model import properties as props
from halfmq.model.half_batch import ITEM_HEAD_BYTES, delays_in, item_places
from halfmq.model.records import (
    HALF_BATCH_PAYLOAD_AT,
    TYPE_OF_KIND,
    Base,
    BatchFacts,
    Copied,
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
    UserSet,
)
from halfmq.model.stored_message import StoredMessage, decode
from halfmq.model.users import User
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
_NOT_SHOWN: Final[dict[type, tuple[str, ...]]] = {
    MessageRecord: ("tag_hash", "key_hash", "keys"),
    HalfRecord: ("tag_hash", "key_hash", "id_hash", "delay", "grace_ms", "keys", "coordinator"),
    CopiedHalf: ("batch",),
    CopiedHalfBatch: ("message_bytes", "tag_hash", "key_hash", "delay", "coordinator"),
}
#: The first two are shown with the batch; a copy shows the fields of its half.
_NEVER_SHOWN: Final = ("offset", "size", "source", "half")
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
    """``records_of`` as lines without line ends.

    ``kinds``: only these; empty: all. ``contents``: half batches with each of their messages, as with ``bodies``, but without the bodies;
    ``at`` is the place of a message after the start of the record.

    Raises:
        UsageError: an unknown kind.
    """
    unknown = kinds - KINDS
    if unknown:
        raise UsageError(f"no such kind: {', '.join(sorted(unknown))}", hint="kinds: " + ", ".join(sorted(KINDS)))
    for record, header, raw in records_of(disk, directory, start=start, note=note):
        if not kinds or KIND_OF[type(record)] in kinds:
            fields = _head(record, header) | _fields(record, raw, bodies=bodies, contents=contents or bodies)
            yield msgspec.json.encode(fields)


def records_of(
    disk: Disk, directory: Path, *, start: int = 0, note: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Record, Header, memoryview]]:
    """(record, header of its batch, its bytes) in log order, from the first record at or after ``start``.

    ``note`` is called with a description of the end of the log, unless that is a clean end. Read-only, and usable beside a running broker;
    the end may then be a batch that is being written.

    Raises:
        UsageError: there is no store.
        StoreDamaged: damage other than a torn end; the records before it were returned.
    """
    identity = read_identity(disk, directory)
    if identity is None:
        raise UsageError(f"{directory} holds no store", hint="give the directory that `halfmq serve --data` got")
    files = SegmentFiles(disk, directory / "shard-0" / "log", identity.segment_bytes)
    numbers = files.numbers()
    durable, ended = _durable_by_pages(disk, directory, identity.store_id)
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
                case Batch(header, view, place):
                    reached = header.offset
                    for record in decode_batch(view, place, header) if header.end > start else ():
                        if isinstance(record, Trim):
                            trimmed_to = max(trimmed_to, record.log_start)
                        if record.offset >= start:
                            at = place + record.offset - header.offset
                            yield record, header, view[at : at + record.size]
                case EndOfLog():
                    pass
                case TornTail(cut_at, _, why, whole):
                    note(f"the log ends at {cut_at}: torn end ({why}), {whole} whole batches after it")
                case CorruptInterior(at, file, why, position):
                    raise StoreDamaged(
                        f"{file} at log offset {at}: {why}; the log was durable up to {position}",
                        hint=f"{_VERIFY}; records after it: --from",
                    )
    except FileNotFoundError:
        left = SegmentFiles(disk, files.directory, identity.segment_bytes).numbers()
        oldest = min(left, default=0) * identity.segment_bytes
        if oldest <= reached:
            raise
        note(f"a broker trimmed the log meanwhile: continuing at {oldest}")
        yield from records_of(disk, directory, start=max(start, oldest), note=note)
        return
    finally:
        files.close()
    if log_start > trimmed_to:
        raise StoreDamaged(
            f"the log in {files.directory} begins at {log_start}, but only what lies before {trimmed_to} was trimmed",
            hint=_VERIFY,
        )


def _durable_by_pages(disk: Disk, directory: Path, store_id: bytes) -> tuple[int, int]:
    """(highest durable position, highest end of the log) according to checkpoint and watermark page."""
    checkpoint = read_checkpoint(disk, directory / "shard-0" / "checkpoint", store_id)
    durable = checkpoint.slots[0].position if isinstance(checkpoint, Present) else 0
    page = read_watermark_page(disk, directory / "shard-0" / "published")
    if isinstance(page, Watermark) and page.store == store_id:
        durable = max(durable, page.durable)
        return durable, max(durable, page.position)
    return durable, durable


def message_in(record: Record, raw: memoryview) -> StoredMessage | None:
    """The message of a record with these bytes; None if it has none, or several."""
    if isinstance(record, StoredRecord):
        return record.message
    return decode(raw[MESSAGE_AT_BY_KIND[raw[0]] :])[0] if isinstance(record, CopiedHalf | CopiedDelayed) else None


def messages_in(raw: memoryview) -> Iterator[tuple[int, StoredMessage]]:
    """(bytes from the start of the record, message) of each message of a half batch with these bytes."""
    head = half_batch_head(raw, 0)
    for at, _ in item_places(bytes(raw[HALF_BATCH_PAYLOAD_AT:][: head.payload_bytes]), head.messages):
        yield at, decode(raw[at + ITEM_HEAD_BYTES :])[0]


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
    hidden = (*_NEVER_SHOWN, *_NOT_SHOWN.get(type(record), ()))
    values = asdict(record) | (asdict(record.half) if isinstance(record, Copied) else {})
    for name, value in values.items():
        if name in hidden or (name in _OF_MESSAGE and isinstance(record, StoredRecord)):
            continue
        if name == "topic_id" and isinstance(record, StoredRecord):
            fields |= {"topic_id": value, "message": _message(record.message, bodies=bodies)}
            if isinstance(record, HalfRecord):
                fields["half_index"] = record.half_index
        elif name == "payload" and isinstance(record, UserSet):
            fields["user"] = _user(msgspec.msgpack.decode(value)[1])
        elif name == "payload" and isinstance(record, Base):
            fields["payload"] = _base(value)
        elif name == "payload" and isinstance(record, HalfBatch):
            fields["payload_bytes"] = len(value)
        elif isinstance(value, BatchFacts):
            fields |= asdict(value)
            fields["delays"] = list(delays_in(fields.pop("delayed_entries")))
        else:
            fields[name] = _SHOWN[name](value) if name in _SHOWN else value
    message = message_in(record, raw)
    if message is not None and "message" not in fields:
        fields["message"] = _message(message, bodies=bodies)
    if isinstance(record, HalfBatch | CopiedHalfBatch) and contents:
        content = messages_in(raw)
        fields["content"] = [{"at": at, **_message(message, bodies=bodies)} for at, message in content]
    return fields


def _message(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in message._asdict().items():
        if name == "body":
            fields["body_bytes"] = len(value)
        elif name == "properties":
            fields["properties"] = props.to_dict(value)
        else:
            fields[name] = _host(value) if name in ("born_host", "store_host") else value
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


#: Place of the users in the payload of a base (``core.base``), as pairs of name and user.
USERS_IN_BASE: Final = 13


def _base(payload: bytes) -> Any:
    fields = _payload(payload)
    if isinstance(fields, list) and len(fields) > USERS_IN_BASE:
        raw = msgspec.msgpack.decode(payload)[USERS_IN_BASE]
        fields[USERS_IN_BASE] = [{"name": name, "user": _user(user)} for name, user in raw]
    return fields


def _user(raw: Any) -> dict[str, Any] | None:
    """What may be shown of a user."""
    if raw is None:
        return None
    user = msgspec.convert(raw, User)
    return {
        "permissions": list(user.permissions),
        "limits": asdict(user.limits),
        "secrets": len(user.secrets),
    }


def _plain(value: Any) -> Any:
    """``value`` as JSON: byte strings as base64, keys as text."""
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value


def name_of(names: type[IntEnum], number: int) -> str:
    """The name of a number in a record, or the number if this version has none."""
    try:
        return names(number).name.lower()
    except ValueError:
        return str(number)


#: Fields that are not shown as they are.
_SHOWN: Final[dict[str, Callable[[Any], Any]]] = {
    "digest": bytes.hex,
    "payload": _payload,
    "refs": lambda refs: [msgspec.structs.asdict(ref) for ref in refs],
    "decided_by": partial(name_of, DecidedBy),
    "action": partial(name_of, OperatorAction),
    "because": partial(name_of, ParkedBecause),
}
