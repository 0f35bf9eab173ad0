"""A restore: a new store from a backup, up to a position or a time.

    1. Verify the checksum of every file of the backup.
    2. Replay its log up to the last batch at or before the position or time, as a start does; every batch is examined. This gives the
       transactions that are undecided there.
    3. Write the log from its start to that batch, and after it one batch with a record RESTORED, from which the rules about a restored
       store follow (``core.transaction.restored``). So they are durable with the store itself, and nothing has to remember them.
    4. Write ``store.json``, with a new id, last: a restore that was cut off left no store, and a start refuses it.

The new id is what readers recognise the store by: a checkpoint of Spark names positions of the store before, and is refused. Indexes and
checkpoints are not in a backup; the first start makes them from the log.
"""

from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.core.engine import Engine
from halfmq.core.state import State
from halfmq.errors import InvariantViolated, StoreDamaged, UsageError
from halfmq.model.records import Batch, Trim
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import Disk
from halfmq.runtime.entropy import Entropy
from halfmq.store.backup import Manifest, batches, copy_path, existing, refuse_inside, verify_copy
from halfmq.store.batch_codec import decode_batch, encode_batch
from halfmq.store.identity import Identity, write_identity
from halfmq.store.record_codec import Pieces
from halfmq.store.segment import segment_name
from halfmq.store.store import SHARD
from halfmq.store.whole_file import make_durable

_CHUNK: Final = 1 << 20


class UndecidedInBackup(NamedTuple):
    """A transaction that is undecided in a restored store."""

    group: str
    tx_id: str
    prepared_at_ms: int
    #: Sorted.
    topics: tuple[str, ...]


class RestoredStore(NamedTuple):
    """The result of ``restore``."""

    #: Ids of the new store and of the one that was backed up, 32 hex digits.
    store: str
    restored_from: str
    #: Where the restored log of that store ends, and the broker time of its last batch, ms.
    position: int
    time_ms: int
    log_start: int
    #: Oldest first.
    undecided: tuple[UndecidedInBackup, ...]


class _NoLog:
    """What the engine asks of a log while it replays, and writes one record: nothing is copied, and space is not reserved."""

    def why_not_copied(self, source: int, message_bytes: int) -> str | None:
        raise InvariantViolated("a restore copies no message")

    def why_not_shown(self, offset: int, messages: int) -> str | None:
        raise InvariantViolated("a restore shows no message")

    def reserve_roll(self) -> None:
        """The next segment is written like the others."""


class _Replayed(NamedTuple):
    """The state at ``position``, the end of a batch of this epoch."""

    engine: Engine
    position: int
    epoch: int


def restore(
    disk: Disk,
    entropy: Entropy,
    backup: Path,
    directory: Path,
    *,
    position: int | None = None,
    time_ms: int | None = None,
) -> RestoredStore:
    """Restore ``backup`` into ``directory``, which is empty or new; up to ``position`` or ``time_ms`` (broker time), or all of it.

    Raises:
        UsageError: there is no backup, the directory is not empty, or inside a store or a backup, or the backup cannot be restored to
            that position.
        StoreDamaged, WrongVersion: what is wrong with the backup; nothing was written.
        OSError: the disk failed; remove ``directory``, and restore again.
    """
    manifest = existing(disk, backup)
    refuse_inside(disk, directory)
    _refuse_filled(disk, directory)
    if position is not None and not manifest.segments[0].start < position <= manifest.position:
        raise UsageError(
            f"position {position} is not in the backup in {backup}, whose log is from {manifest.segments[0].start} to {manifest.position}"
        )
    for segment in manifest.segments:
        verify_copy(disk, backup, segment)
    replayed = _replayed(disk, backup, manifest, position, time_ms)
    state = replayed.engine.state
    undecided = _undecided(state)
    old_id = manifest.store
    new_id = entropy.token(16)
    batch = replayed.engine.mark_restored(old_id, replayed.position, state.batch_time_ms)
    log_start = state.log_start
    _write(disk, backup, directory, manifest, log_start, replayed, batch)
    write_identity(disk, directory, Identity(new_id, manifest.segment_bytes))
    return RestoredStore(new_id.hex(), old_id, replayed.position, batch.broker_time_ms, log_start, undecided)


def _refuse_filled(disk: Disk, directory: Path) -> None:
    is_file = directory.exists() and not directory.is_dir()
    # As at a first start: a file system has the latter at its root.
    names = (
        [name for name in disk.list(directory) if not name.startswith(".") and name != "lost+found"]
        if not is_file
        else [directory.name]
    )
    if names:
        raise UsageError(
            f"{directory} is not empty: it contains {names[0]}", hint="give a new directory; a restore replaces nothing"
        )


def _replayed(disk: Disk, backup: Path, manifest: Manifest, position: int | None, time_ms: int | None) -> _Replayed:
    first = manifest.segments[0].start
    engine = Engine(State(BrokerSettings(segment_bytes=manifest.segment_bytes)), _NoLog())
    reached, epoch, trimmed_to = first, 0, 0
    for header, view, place in batches(disk, backup, manifest.segment_bytes, first, manifest.position):
        if (position is not None and header.end > position) or (
            time_ms is not None and header.broker_time_ms > time_ms
        ):
            break
        records = decode_batch(view, place, header)
        try:
            engine.replay(header.offset, header.broker_time_ms, records)
        except InvariantViolated as error:
            raise StoreDamaged(
                f"the batch at log offset {header.offset} of the backup in {backup} cannot be applied: {error}",
                hint="restore it with the version that made it; if that is this one, keep the backup and report it",
            ) from error
        reached, epoch = header.end, header.epoch
        trimmed_to = max([trimmed_to, *[record.log_start for record in records if type(record) is Trim]])
    if reached == first:
        raise UsageError(f"the backup in {backup} begins after that: its first batch is at log offset {first}")
    if first > trimmed_to:
        # What is alive in the segments before it was copied only in front of the record that let the log start there.
        raise UsageError(
            f"at position {reached} the log still needed segments before {first}, which the backup in {backup} no longer has",
            hint="restore a later position; backups with --keep also have earlier ones",
        )
    return _Replayed(engine, reached, epoch)


def _undecided(state: State) -> tuple[UndecidedInBackup, ...]:
    topics = state.topics_by_id
    found = [
        UndecidedInBackup(
            known.group, known.tx_id, known.prepared_at_ms,
            tuple(sorted({topics[half.topic_id].name for half in known.halves if half.topic_id in topics})),
        )
        for group in state.producer_groups.values()
        for known in group.undecided.values()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (one.prepared_at_ms, one.group, one.tx_id)))


def _write(
    disk: Disk, backup: Path, directory: Path, manifest: Manifest, log_start: int, replayed: _Replayed, batch: Batch
) -> None:
    """The segments from ``log_start`` to the replayed position, then ``batch``. Durable on return."""
    log = directory / SHARD / "log"
    make_durable(disk, directory)
    disk.make_directories(log)
    segment_bytes = manifest.segment_bytes
    # The first name of a segment is durable before any of its bytes: a start refuses a log without a store.json, and after a power loss
    # it must not find neither, and make an empty store where most of the log had been written.
    disk.open(log / segment_name(log_start), create=True).close()
    for made in (log, directory / SHARD, directory):
        disk.sync_directory(made)
    for start in range(log_start, replayed.position, segment_bytes):
        length = min(segment_bytes, replayed.position - start)
        with (
            closing(disk.open(copy_path(backup, start), writable=False)) as source,
            closing(disk.open(log / segment_name(start), create=True)) as target,
        ):
            for at in range(0, length, _CHUNK):
                target.write(at, [source.read(at, min(_CHUNK, length - at))])
            target.truncate(segment_bytes)
            target.sync()
    # Everything before it is on the disk, as its header states.
    data = encode_batch(
        batch.records,
        broker_time_ms=batch.broker_time_ms,
        epoch=replayed.epoch,
        durable_position=replayed.position,
        copy=_no_copy,
    )
    start = batch.offset - batch.offset % segment_bytes
    with closing(disk.open(log / segment_name(start), create=True)) as target:
        target.truncate(segment_bytes)
        target.write(batch.offset - start, [data])
        target.sync()
    for made in (log, directory / SHARD, directory):
        disk.sync_directory(made)


def _no_copy(source: int) -> Pieces:
    raise InvariantViolated(f"a restore copies no message, also not the one at {source}")
