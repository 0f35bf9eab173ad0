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
from halfmq.model import properties as props
from halfmq.model.records import Base, BatchRef, CopiedHalfBatch, Decided, DecidedBy, HalfBatch, Record, RolledBack
from halfmq.model.stored_message import StoredMessage
from halfmq.runtime.disk import Disk
from halfmq.store.dump import KIND_OF, message_in, messages_in, name_of, records_of
from halfmq.testing.history.events import AnyEvent, FileStarted, Logged
from halfmq.testing.history.reader import FileSource

#: Kind of a record -> that of its event. An event that no check compares with what clients recorded is ``other``.
_MESSAGES: Final = {"message": "message", "half": "half", "copied_half": "copy"}
_VERDICTS: Final = {"committed": "commit", "decided": "commit", "rolled_back": "rollback"}
_NOT_COMPARED: Final = frozenset({
    "base", "checked", "compared", "coordinator_epoch", "copied_delayed", "copied_half_batch", "delayed", "epoch_started", "group_deleted", "group_set", "half_batch",
    "offsets", "operator_acted", "parked", "producer_set", "query_forgotten", "released", "restored", "setting_set", "topic_deleted", "topic_set",
    "user_set",
})  # fmt: skip
#: Index of the queries in the payload of a base (``core.base``).
_QUERIES_IN_BASE: Final = 9


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
    record: Any  # the kind says which fields it has
    for record, _, raw in records_of(disk, directory, note=note):
        kind = KIND_OF[type(record)]
        message = message_in(record, raw)
        if kind == "topic_set":
            topics[record.topic_id] = record.name
        elif message is not None:
            topics[getattr(record, "half", record).topic_id] = message.topic
        for fields in batches.take(record, raw):
            yield Logged(t_us=t_us, by=by, kind="batched", **fields)
        fields = _fields(kind, record, message, topics, batches)
        if counts is not None:
            counts[kind] += 1
            if kind in _VERDICTS:
                counts[f"verdict by {_decider(record)}"] += 1
        yield Logged(t_us=t_us, by=by, offset=record.offset, **fields)


class _HalfBatches:
    """The messages of undecided half batches, and the queries whose batches are decided without requests of clients."""

    def __init__(self) -> None:
        #: By half index, the fields of an event for each message, and where it is in the record; a copy replaces what it copies.
        self._undecided: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        #: Offset of the first record; -1: none yet.
        self._first = -1
        #: (producer group, query)
        self._queries: set[tuple[str, str]] = set()

    def take(self, record: Record, raw: memoryview) -> Iterator[dict[str, Any]]:
        """Take a record in log order. Yields the fields of ``batched`` events, which come before that of the record."""
        if self._first < 0:
            self._first = record.offset
        match record:
            case HalfBatch() | CopiedHalfBatch():
                half = record if isinstance(record, HalfBatch) else record.half
                self._undecided[half.half_index] = [(at, _of_message(one)) for at, one in messages_in(raw)]
                if half.batch is not None and half.batch.attempt:
                    self._queries.add((record.group, _query_of(record.tx_id)))
            case Decided():
                if record.digest:
                    self._queries.add((record.group, _query_of(record.tx_id)))
                for ref in record.refs:
                    content = self._undecided.pop(ref.half_index, None)
                    # A killed broker may have removed one of two segments that a verdict ties together: both are trimmed.
                    if content is not None or ref.offset >= self._first:
                        yield from _shown(ref, content, record)
                for half_index in record.lost:
                    self._undecided.pop(half_index, None)
            case RolledBack():
                for half_index in record.half_indexes:
                    self._undecided.pop(half_index, None)
            case Base():
                self._queries.update(_queries_in(record))

    def is_of_query(self, record: Any) -> bool:
        """Whether ``record`` is a verdict on a batch of a query."""
        return (record.group, _query_of(record.tx_id)) in self._queries


def _queries_in(base: Base) -> set[tuple[str, str]]:
    """(producer group, name) of the queries in the state that the payload of ``base`` has; none if it is not one of ``core``."""
    try:
        fields = msgspec.msgpack.decode(base.payload)
    except msgspec.DecodeError:
        return set()
    return {(group, name) for name, group, *_ in (*fields[_QUERIES_IN_BASE:], ())[0]}


def _query_of(tx_id: str) -> str:
    """The name of the query, if ``tx_id`` is a batch of one."""
    name, *rest = tx_id.split(":")
    return name if len(rest) == 2 else ""


def _of_message(message: StoredMessage) -> dict[str, Any]:
    properties = props.to_dict(message.properties)
    return {
        "message": properties.get(props.UNIQ_KEY, ""),
        "topic": message.topic,
        "queue": message.queue_id,
        "crc": message.body_crc,
        "key": properties.get(props.SHARDING_KEY, ""),
    }


def _shown(
    ref: BatchRef, content: list[tuple[int, dict[str, Any]]] | None, record: Decided
) -> Iterator[dict[str, Any]]:
    if content is None:
        raise InvariantViolated(
            f"the verdict at {record.offset} shows a half batch at {ref.offset}, which is not in the log before it"
        )
    for number, (at, fields) in enumerate(content):
        # A delayed message gets its place when it is released.
        queue_offset = ref.queue_offset + number if ref.queue_offset >= 0 else -1
        place = {"offset": ref.offset + at, "queue_offset": queue_offset}
        yield {"group": record.group, "tx": record.tx_id, **place, **fields}


def _decider(record: Any) -> str:
    """Who decided, by the name in histories: the log calls an application that decided for itself ``producer``."""
    return "application" if record.decided_by == DecidedBy.PRODUCER else name_of(DecidedBy, record.decided_by)


def _fields(
    kind: str, record: Any, message: StoredMessage | None, topics: dict[int, str], batches: _HalfBatches
) -> dict[str, Any]:
    if kind in _MESSAGES:
        assert message is not None
        fields = _of_message(message)
        if kind == "message":
            return {"kind": kind, "queue_offset": message.queue_offset, **fields}
        # A half stores its half index in place of the queue offset.
        half = getattr(record, "half", record)
        return {"kind": _MESSAGES[kind], "group": record.group, "tx": record.tx_id, "index": half.index, **fields}
    if kind in _VERDICTS:
        single = record.refs if kind == "committed" else ()
        return {
            "kind": _VERDICTS[kind],
            "group": record.group,
            "tx": record.tx_id,
            "decided_by": "query" if batches.is_of_query(record) else _decider(record),
            "shown": tuple(
                (topics.get(ref.topic_id, f"topic {ref.topic_id}"), ref.queue_id, ref.queue_offset, ref.offset)
                for ref in single
            ),
        }
    if kind == "trim":
        return {"kind": "trim", "log_start": record.log_start}
    if kind not in _NOT_COMPARED:
        raise InvariantViolated(f"nothing says how a record of kind {kind!r} appears in a history")
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
