"""Durable state as rows, so that a restart redoes only the log after them. The store keeps the bytes and knows nothing of them.

Three steps, because they run in three places: ``snapshot_rows`` on the loop, between two batches, copies references
only; ``encode_rows`` on another thread, while the state goes on, works on tuples that nobody changes; ``load_rows`` at
start, before ``apply`` redoes the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from halfmq.core.apply import add_delayed, count_undecided, schedule
from halfmq.core.base import group_payload, producer_payload, read_group, read_producer, read_topic, topic_payload
from halfmq.core.base_bytes import keep_queues, set_offset
from halfmq.core.copies import note_copy
from halfmq.core.state import Delayed, SentOnce, State, Undecided, Verdict
from halfmq.errors import InvariantViolated
from halfmq.model.settings import BrokerSettings

_VERSION: Final = 1
#: Rows per chunk: a chunk is encoded in about a millisecond, so that the loop's thread gets its turn.
_CHUNK_ROWS: Final = 1_024
_LENGTH_BYTES: Final = 4
_new = tuple.__new__

#: (log end, log start, batch time ms, epoch, next topic id, next half index)
_Head = tuple[int, int, int, int, int, int]
_TopicRow = tuple[bytes, list[int], list[int]]
_OffsetRow = tuple[str, list[tuple[int, int, int]]]
_EarlierVerdict = tuple[str, str, bool, int, int, int | tuple[int, ...], int | tuple[int, ...]]
_BaseRow = tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]


class Snapshot(NamedTuple):
    """Rows by kind, as captured. Encode them before they are too many to keep beside the live state."""

    position: int
    rows: tuple[tuple[str, Sequence[Any]], ...]


def snapshot_rows(state: State) -> Snapshot:
    """Capture durable state at ``state.log_end``, between two batches.

    Raises:
        InvariantViolated: a batch is open, so there is no position that redo could go on from.
    """
    if state.batch_open or not state.loaded:
        raise InvariantViolated("a snapshot is taken between batches of a log that has a base")
    head: _Head = (
        state.log_end, state.log_start, state.batch_time_ms, state.epoch, state.next_topic_id, state.next_half_index,
    )  # fmt: skip
    topics: list[_TopicRow] = [
        (topic_payload(t.topic_id, t.name, t.read_queues, t.write_queues, t.permission), list(t.ends), list(t.mins))
        for t in state.topics_by_id.values()
    ]
    offsets: list[_OffsetRow] = [
        (group, [(*key, offset) for key, offset in entries.items()]) for group, entries in state.offsets.items()
    ]
    undecided: list[Undecided] = []
    for group in state.producer_groups.values():
        undecided += group.undecided.values()
    return Snapshot(
        state.log_end,
        (
            ("head", [head]),
            # One row, since version 1 passes over what comes behind its first number: the jumps.
            ("immunity", [state.epoch_immunity_ms, *[number for jump in state.jumps for number in jump]]),
            ("topics", topics),
            ("groups", [group_payload(settings, state.holders.get(name)) for name, settings in state.groups.items()]),
            ("producers", [producer_payload(settings) for settings in state.producer_settings.values()]),
            ("offsets", offsets),
            ("bases", list(state.bases.items())),
            ("undecided", undecided),
            ("delayed", list(state.delayed.values())),
            ("decided", list(state.verdicts)),
            ("sent", list(state.sent)),
        ),
    )


def encode_rows(snapshot: Snapshot) -> Iterator[bytes]:
    """The capture as chunks; only their concatenation counts. Runs on any thread."""
    encode = msgspec.msgpack.Encoder().encode
    rows_of_all = 0
    for kind, rows in snapshot.rows:
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = rows[start : start + _CHUNK_ROWS]
            rows_of_all += len(part)
            yield _framed(encode((_VERSION, kind, encode(part))))
    yield _framed(encode((_VERSION, "end", encode([rows_of_all]))))


def _framed(chunk: bytes) -> bytes:
    return len(chunk).to_bytes(_LENGTH_BYTES, "big") + chunk


def load_rows(settings: BrokerSettings, chunks: Iterable[bytes]) -> State:
    """The state that ``chunks`` hold; redo the log from ``state.log_end`` into it.

    Raises:
        InvariantViolated: not all rows, or of another version. The log alone is enough: load without the snapshot.
    """
    state = State(settings)
    rows_of_all = 0
    said = -1
    for frame in _frames(chunks):
        version, kind, content = _decode_frame(frame)
        if version != _VERSION:
            raise InvariantViolated(f"snapshot of version {version}; this version reads {_VERSION}")
        if kind == "end":
            (said,) = _decode_end(content)
        else:
            decode, load = _LOADERS[kind]
            rows = decode(content)
            rows_of_all += len(rows)
            load(state, rows)
    if said != rows_of_all:
        raise InvariantViolated(f"snapshot with {rows_of_all} rows; its end says {said}")
    state.loaded = True
    heapify(state.derived.delayed_heap)
    return state


def _frames(chunks: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big")
            if len(buffer) < end:
                break
            yield bytes(buffer[_LENGTH_BYTES:end])
            del buffer[:end]
    if buffer:
        raise InvariantViolated(f"snapshot ends inside a chunk, {len(buffer)} bytes are left over")


def _load_head(state: State, rows: list[_Head]) -> None:
    (
        state.log_end, state.log_start, state.batch_time_ms, state.epoch, state.next_topic_id, state.next_half_index,
    ) = rows[0]  # fmt: skip


def _load_immunity(state: State, rows: list[int]) -> None:
    """A snapshot of an earlier version has none: the settings of now say it, as where the start of the epoch does not."""
    state.epoch_immunity_ms = rows[0]
    state.jumps = tuple(zip(rows[1::3], rows[2::3], rows[3::3], strict=True))


def _load_topics(state: State, rows: list[_TopicRow]) -> None:
    for payload, ends, mins in rows:
        topic = read_topic(state, payload)
        keep_queues(state, topic, len(ends))
        topic.ends[:] = ends
        topic.mins[:] = mins


def _load_groups(state: State, rows: list[bytes]) -> None:
    for payload in rows:
        read_group(state, payload)


def _load_producers(state: State, rows: list[bytes]) -> None:
    for payload in rows:
        read_producer(state, payload)


def _load_offsets(state: State, rows: list[_OffsetRow]) -> None:
    for group, entries in rows:
        for topic_id, queue_id, offset in entries:
            set_offset(state, group, (topic_id, queue_id), offset)


def _load_bases(state: State, rows: list[_BaseRow]) -> None:
    state.bases.update(rows)


def _load_undecided(state: State, rows: list[Undecided]) -> None:
    for row in rows:
        group = state.producer_group(row.group)
        known = replace(row, group=group.name)  # one string for the group's name, not one per row
        count_undecided(state, group)
        group.undecided[known.tx_id] = known
        schedule(state, group, known.tx_id, known.next_check_at_ms)
        for half in known.halves:
            group.derived.bytes += half.message_bytes
            state.derived.undecided_bytes += half.message_bytes
            state.topics_by_id[half.topic_id].derived.pending += 1
            note_copy(state, half)


def _load_delayed(state: State, rows: list[Delayed]) -> None:
    for row in rows:
        add_delayed(state, row)


def _load_verdicts(state: State, rows: list[Verdict]) -> None:
    for row in rows:
        group = state.producer_group(row.group)
        verdict = replace(row, group=group.name)
        group.settled[verdict.tx_id] = verdict
        state.verdicts.append(verdict)


def _load_verdicts_without_who(state: State, rows: list[_EarlierVerdict]) -> None:
    """Of a snapshot that does not say who decided."""
    _load_verdicts(state, [Verdict(*row, 0) for row in rows])


def _load_sent(state: State, rows: list[SentOnce]) -> None:
    for row in rows:
        sent = replace(row, connection=0)  # of another run: its connection is nobody's now
        state.sent.append(sent)
        topic = state.topics_by_id.get(row.topic_id)
        if topic is not None:
            topic.derived.sent[row.unique_id] = sent


_decode_frame: Final = msgspec.msgpack.Decoder(tuple[int, str, bytes]).decode
_decode_end: Final = msgspec.msgpack.Decoder(list[int]).decode
_LOADERS: Final[dict[str, tuple[Callable[[bytes], list[Any]], Callable[[State, Any], None]]]] = {
    "head": (msgspec.msgpack.Decoder(list[_Head]).decode, _load_head),
    "immunity": (msgspec.msgpack.Decoder(list[int]).decode, _load_immunity),
    "topics": (msgspec.msgpack.Decoder(list[_TopicRow]).decode, _load_topics),
    "groups": (msgspec.msgpack.Decoder(list[bytes]).decode, _load_groups),
    "producers": (msgspec.msgpack.Decoder(list[bytes]).decode, _load_producers),
    "offsets": (msgspec.msgpack.Decoder(list[_OffsetRow]).decode, _load_offsets),
    "bases": (msgspec.msgpack.Decoder(list[_BaseRow]).decode, _load_bases),
    "undecided": (msgspec.msgpack.Decoder(list[Undecided]).decode, _load_undecided),
    "delayed": (msgspec.msgpack.Decoder(list[Delayed]).decode, _load_delayed),
    "decided": (msgspec.msgpack.Decoder(list[Verdict]).decode, _load_verdicts),
    "verdicts": (msgspec.msgpack.Decoder(list[_EarlierVerdict]).decode, _load_verdicts_without_who),
    "sent": (msgspec.msgpack.Decoder(list[SentOnce]).decode, _load_sent),
}
