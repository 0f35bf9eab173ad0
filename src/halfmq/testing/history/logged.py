"""The log of a store as events, to be compared with the broker's acknowledgements.

Stop the broker first, or use the store of a killed one: records that are acknowledged while the log is read would be reported as
missing. The records are written to a file of lines, so that a violation can show them like any other event.

The messages of half batches have no events of their own until a verdict shows them. Until then their ids and places are held in memory:
those of undecided half batches, which the broker limits.
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
    "base", "checked", "compared", "coordinator_epoch", "copied_delayed", "copied_half_batch", "delayed", "epoch_started", "group_deleted", "group_set", "half_batch",
    "offsets", "operator_acted", "parked", "producer_set", "query_forgotten", "released", "topic_deleted", "topic_set",
})  # fmt: skip
_HALVES: Final = {"half": "half", "copied_half": "copy"}
_HALF_BATCHES: Final = ("half_batch", "copied_half_batch")
#: Index of the queries in the payload of a base (``core.base``).
_QUERIES_IN_BASE: Final = 9
_VERDICTS: Final = {"committed": "commit", "decided": "commit", "rolled_back": "rollback"}


class _Message(msgspec.Struct):
    topic: str
    queue_id: int
    queue_offset: int
    body_crc: int
    properties: dict[str, str]
    #: Of a message in a half batch: bytes from the start of the record to it.
    at: int = 0


class _Ref(msgspec.Struct):
    offset: int
    topic_id: int
    queue_id: int
    queue_offset: int
    half_index: int


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
    half_index: int = -1
    attempt: str = ""
    digest: str = ""
    payload: Any = None
    content: tuple[_Message, ...] = ()
    lost: tuple[int, ...] = ()
    half_indexes: tuple[int, ...] = ()


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
    batches = _HalfBatches()
    yield FileStarted(t_us=t_us, by=by)
    for line in dump_store(disk, directory, contents=True, note=note):
        record = _decode(line)
        if counts is not None:
            counts[record.kind] += 1
            if record.kind in _VERDICTS:
                counts[f"verdict by {_DECIDED_BY.get(record.decided_by, record.decided_by)}"] += 1
        if record.kind == "topic_set":
            topics[record.topic_id] = record.name
        elif record.message is not None and record.topic_id >= 0:
            topics[record.topic_id] = record.message.topic
        for fields in batches.take(record):
            yield Logged(t_us=t_us, by=by, **fields)
        yield Logged(t_us=t_us, by=by, offset=record.offset, **_fields(record, topics, batches))


class _HalfBatches:
    """The messages of undecided half batches, and the queries whose batches are decided without requests of clients."""

    def __init__(self) -> None:
        #: By half index; a copy replaces what it copies.
        self._undecided: dict[int, tuple[_Message, ...]] = {}
        #: Offset of the first record; -1: none yet.
        self._first = -1
        #: (producer group, query)
        self._queries: set[tuple[str, str]] = set()

    def take(self, record: _Record) -> Iterator[dict[str, Any]]:
        """Take a record in log order. Yields the fields of ``batched`` events, which come before that of the record."""
        if self._first < 0:
            self._first = record.offset
        if record.kind in _HALF_BATCHES:
            self._undecided[record.half_index] = record.content
            if record.attempt:
                self._queries.add((record.group, _query_of(record.tx_id)))
        elif record.kind == "decided":
            if record.digest:
                self._queries.add((record.group, _query_of(record.tx_id)))
            for ref in record.refs:
                content = self._undecided.pop(ref.half_index, None)
                # A killed broker may have removed one of two segments that a verdict ties together: both are trimmed.
                if content is not None or ref.offset >= self._first:
                    yield from _shown(ref, content, record)
            for half_index in record.lost:
                self._undecided.pop(half_index, None)
        elif record.kind == "rolled_back":
            for half_index in record.half_indexes:
                self._undecided.pop(half_index, None)
        elif record.kind == "base":
            fields = record.payload if isinstance(record.payload, list) else []
            for name, group, *_ in (*fields[_QUERIES_IN_BASE:], ())[0]:
                self._queries.add((group, name))

    def is_of_query(self, record: _Record) -> bool:
        """Whether ``record`` is a verdict on a batch of a query."""
        return (record.group, _query_of(record.tx_id)) in self._queries


def _query_of(tx_id: str) -> str:
    """The name of the query, if ``tx_id`` is a batch of one."""
    name, *rest = tx_id.split(":")
    return name if len(rest) == 2 else ""


def _shown(ref: _Ref, content: tuple[_Message, ...] | None, record: _Record) -> Iterator[dict[str, Any]]:
    if content is None:
        raise InvariantViolated(
            f"the verdict at {record.offset} shows a half batch at {ref.offset}, which is not in the log before it"
        )
    for number, message in enumerate(content):
        yield {
            "kind": "batched",
            "offset": ref.offset + message.at,
            "group": record.group,
            "tx": record.tx_id,
            "message": message.properties.get("UNIQ_KEY", ""),
            "topic": message.topic,
            "queue": message.queue_id,
            # A delayed message gets its place when it is released.
            "queue_offset": ref.queue_offset + number if ref.queue_offset >= 0 else -1,
            "crc": message.body_crc,
            "key": message.properties.get("__SHARDINGKEY", ""),
        }


def _fields(record: _Record, topics: dict[int, str], batches: _HalfBatches) -> dict[str, Any]:
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
    if record.kind in _VERDICTS:
        by = _DECIDED_BY.get(record.decided_by, record.decided_by)
        single = record.refs if record.kind == "committed" else ()
        return {
            "kind": _VERDICTS[record.kind],
            "group": record.group,
            "tx": record.tx_id,
            "decided_by": "query" if batches.is_of_query(record) else by,
            "shown": tuple(
                (topics.get(ref.topic_id, f"topic {ref.topic_id}"), ref.queue_id, ref.queue_offset, ref.offset)
                for ref in single
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
