"""Durable state as rows, so that a restart redoes only the log after them. The store saves the bytes and does not interpret them.

There are three steps, because they run in three places. ``snapshot_rows`` runs on the loop between two batches and copies only
references. ``encode_rows`` runs on another thread and reads immutable tuples while the state changes. ``load_rows`` runs at a
start, before ``apply`` redoes the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify
from typing import Any, Final, NamedTuple

import msgspec

from halfmq.core.schema import ROW_KINDS
from halfmq.core.state import State
from halfmq.errors import InvariantViolated
from halfmq.model.settings import BrokerSettings

_VERSION: Final = 1
#: Rows per chunk. Encoding one takes about a millisecond, so that the loop's thread can run in between.
_CHUNK_ROWS: Final = 1_024
_LENGTH_BYTES: Final = 4
_LOADERS: Final = {kind.name: (msgspec.msgpack.Decoder(kind.type).decode, kind.load) for kind in ROW_KINDS}
_decode_frame: Final = msgspec.msgpack.Decoder(tuple[int, str, bytes]).decode
_decode_end: Final = msgspec.msgpack.Decoder(list[int]).decode


class Snapshot(NamedTuple):
    """Rows by kind. Encode them soon: they keep old values alive beside the current state."""

    position: int
    rows: tuple[tuple[str, Sequence[Any]], ...]


def snapshot_rows(state: State) -> Snapshot:
    """Capture durable state at ``state.log_end``, between two batches.

    Raises:
        InvariantViolated: a batch is open, so redo could not resume from this position.
    """
    if state.batch_open or not state.loaded:
        raise InvariantViolated("a snapshot is taken between batches of a log that has a base")
    return Snapshot(state.log_end, tuple([(kind.name, kind.rows(state)) for kind in ROW_KINDS]))


def encode_rows(snapshot: Snapshot) -> Iterator[bytes]:
    """Encode the rows as chunks; only their concatenation matters. Runs on any thread."""
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
    """Decode the state in ``chunks``. Redo the log from ``state.log_end`` into it.

    Raises:
        InvariantViolated: rows are missing, or have another version. The log is sufficient: start without the snapshot.
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
