"""The log of a store as events, to be compared with the broker's acknowledgements.

Stop the broker first, or use the store of a killed one: records that are acknowledged while the log is read would be reported as
missing. The records are written to a file of lines, so that a violation can show them like any other event.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from halfmq.errors import InvariantViolated
from halfmq.runtime.disk import Disk
from halfmq.store.dump import dump_store
from halfmq.testing.history.events import AnyEvent, FileStarted, Logged
from halfmq.testing.history.reader import FileSource

#: The log calls an application that decided for itself ``producer``.
_DECIDED_BY: Final = {"producer": "application"}
#: Kinds of records that no check compares with what clients recorded.
_NOT_COMPARED: Final = frozenset({
    "base", "checked", "copied_delayed", "copied_half_batch", "decided", "delayed", "epoch_started", "group_deleted", "group_set", "half_batch", "offsets", "operator_acted",
    "parked", "producer_set", "released", "topic_deleted", "topic_set",
})  # fmt: skip
_HALVES: Final = {"half": "half", "copied_half": "copy"}


class _Message(msgspec.Struct):
    topic: str
    queue_id: int
    queue_offset: int
    body_crc: int
    properties: dict[str, str]


class _Ref(msgspec.Struct):
    offset: int
    topic_id: int
    queue_id: int
    queue_offset: int


class _Record(msgspec.Struct):
    """The required fields of a line of ``store dump``."""

    offset: int
    kind: str
    topic_id: int = -1
    name: str = ""
    group: str = ""
    tx_id: str = ""
    index: int = 0
    decided_by: str = ""
    log_start: int = -1
    message: _Message | None = None
    refs: tuple[_Ref, ...] = ()


_decode: Final = msgspec.json.Decoder(_Record).decode


def log_events(
    disk: Disk,
    directory: Path,
    *,
    by: str = "log",
    t_us: int = 0,
    note: Callable[[str], None] = lambda text: None,
    counts: Counter[str] | None = None,
) -> Iterator[AnyEvent]:
    """A ``began``, and every record of the store in ``directory``, in order.

    ``note`` is called for a torn end. ``counts`` gets the number of records of each kind, as ``store dump`` names it, and of
    verdicts by decider (``verdict by ...``).

    Raises:
        UsageError: there is no store.
        StoreDamaged: damage that is not a torn end.
    """
    topics: dict[int, str] = {}
    yield FileStarted(t_us=t_us, by=by)
    for line in dump_store(disk, directory, note=note):
        record = _decode(line)
        if counts is not None:
            counts[record.kind] += 1
            if record.kind in ("committed", "rolled_back"):
                counts[f"verdict by {_DECIDED_BY.get(record.decided_by, record.decided_by)}"] += 1
        if record.kind == "topic_set":
            topics[record.topic_id] = record.name
        elif record.message is not None and record.topic_id >= 0:
            topics[record.topic_id] = record.message.topic
        yield Logged(t_us=t_us, by=by, offset=record.offset, **_fields(record, topics))


def _fields(record: _Record, topics: dict[int, str]) -> dict[str, Any]:
    message = record.message
    if message is not None and record.kind in ("message", *_HALVES):
        half = _HALVES.get(record.kind)
        return {
            "kind": half or "message",
            "group": record.group,
            "tx": record.tx_id,
            "index": record.index,
            "message": message.properties.get("UNIQ_KEY", ""),
            "topic": message.topic,
            "queue": message.queue_id,
            # A half stores its half index in this field.
            "queue_offset": -1 if half else message.queue_offset,
            "crc": message.body_crc,
            "key": message.properties.get("__SHARDINGKEY", ""),
        }
    if record.kind in ("committed", "rolled_back"):
        return {
            "kind": "commit" if record.kind == "committed" else "rollback",
            "group": record.group,
            "tx": record.tx_id,
            "decided_by": _DECIDED_BY.get(record.decided_by, record.decided_by),
            "shown": tuple(
                (topics.get(ref.topic_id, f"topic {ref.topic_id}"), ref.queue_id, ref.queue_offset, ref.offset)
                for ref in record.refs
            ),
        }
    if record.kind == "trim":
        return {"kind": "trim", "log_start": record.log_start}
    if record.kind not in _NOT_COMPARED:
        raise InvariantViolated(f"nothing says how a record of kind {record.kind!r} appears in a history")
    return {"kind": "other"}


def write_log(disk: Disk, directory: Path, path: Path, note: Callable[[str], None] = lambda text: None) -> Path:
    """Write ``log_events`` to a file, for ``check_files``.

    Raises:
        UsageError, StoreDamaged: as ``log_events``.
    """
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for event in log_events(disk, directory, note=note):
            file.write(encode(event) + b"\n")
    return path


def log_source(disk: Disk, directory: Path, path: Path, note: Callable[[str], None] = lambda text: None) -> FileSource:
    """``write_log`` as a source for ``check_files``: violations name ``directory`` and log offsets, not ``path``.

    Raises:
        UsageError, StoreDamaged: as ``log_events``.
    """
    return FileSource(write_log(disk, directory, path, note), log_of=directory)
