"""The store: one log, what is derived from it, and what makes a restart fast. The only name that other packages use.

A start, in this order:

    store = Store.open(...)            lock, store.json, look at the log; refuses here, with nothing changed
    store.snapshot_chunks()            state at ``redo_from``, if there is a snapshot
    for batch in store.redo(): ...     every batch behind it; derived files follow as it goes
    store.finish_recovery(...)         cut the torn tail, make the rest durable; now ``append`` may come

Then, for each batch: ``append``, ``request_sync``; when ``durable_position`` has reached it: ``publish``.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import StoreDamaged, StorePoisoned
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT
from halfmq.model.records import Record
from halfmq.model.stored_message import StoredMessage
from halfmq.runtime.disk import Disk
from halfmq.runtime.entropy import Entropy
from halfmq.store.batch_codec import decode_batch
from halfmq.store.commit_log import CommitLog
from halfmq.store.group_flush import GroupFlush, Job, Syncer
from halfmq.store.identity import Identity, read_identity, take_lock, write_identity
from halfmq.store.log_scan import Batch, LogScan
from halfmq.store.recovery import Recovery, find_out, settle
from halfmq.store.recovery_cases import Act
from halfmq.store.segment import SegmentFiles

SHARD: Final = "shard-0"


class Durability(Enum):
    """``MEMORY``: a written batch counts as durable; survives a killed process, not a power loss. ``FSYNC``: both."""

    MEMORY = "memory"
    FSYNC = "fsync"


class ScannedBatch(NamedTuple):
    """One batch of a redo."""

    offset: int
    end: int
    broker_time_ms: int
    epoch: int
    records: list[Record]


def _thread_flush(job: Job) -> Syncer:
    flush = GroupFlush(job)
    flush.start()
    return flush


def _ignore_position(position: int) -> None:
    """Nobody listens."""


def _ignore_failure(error: StorePoisoned) -> None:
    """Nobody listens; the next append raises it."""


class Store:
    """Not for more than one writer. Methods run on the writer's thread where nothing else is said."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        identity: Identity,
        files: SegmentFiles,
        recovery: Recovery,
        held_lock: object,
        *,
        durability: Durability,
        make_syncer: Callable[[Job], Syncer],
        reserve_bytes: int,
    ) -> None:
        """Use ``open``."""
        self.directory = directory
        self.store_id = identity.store_id
        self.segment_bytes = identity.segment_bytes
        self.durability = durability
        #: What the start found; ``says`` is for people.
        self.recovery = recovery
        #: Of this start; every batch carries it. Higher than any that was ever on this disk.
        self.epoch = recovery.epoch + 1
        #: Called on the sync thread with the new durable position. Not called with ``MEMORY``.
        self.on_durable: Callable[[int], None] = _ignore_position
        #: Called once on the thread that saw a write or sync fail: stop the process, let no reply out.
        self.on_failed: Callable[[StorePoisoned], None] = _ignore_failure
        self.log = CommitLog(
            disk,
            files,
            epoch=self.epoch,
            end=recovery.end,
            synced_position=recovery.durable_position,
            reserve_bytes=reserve_bytes,
            sync_new_names=durability is Durability.FSYNC,
        )
        self._disk = disk
        self._files = files
        self._held_lock: object | None = held_lock
        self._make_syncer = make_syncer
        self._syncer: Syncer | None = None
        self._shard = directory / SHARD

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        entropy: Entropy,
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        durability: Durability = Durability.FSYNC,
        make_syncer: Callable[[Job], Syncer] = _thread_flush,
        reserve_bytes: int = limits.DISK_RESERVE_BYTES,
    ) -> "Store":
        """Take the store in ``directory``, made when there is none, and find out what state it is in.

        ``segment_bytes`` counts for a new store only. Nothing of an existing store is changed before ``finish_recovery``.

        Raises:
            StoreInUse: another process has it.
            StoreDamaged: damage that is not a torn tail; names file, place and remedy.
            WrongVersion: written by another version.
            OSError: the directory cannot be made or read.
        """
        disk.make_directories(directory)
        held_lock = take_lock(disk, directory)
        identity = read_identity(disk, directory)
        log_directory = directory / SHARD / "log"
        if identity is None:
            if disk.list(log_directory):
                raise StoreDamaged(
                    f"{directory} holds a log but no store.json", hint="restore store.json from a backup"
                )
            identity = Identity(entropy.token(16), segment_bytes)
            write_identity(disk, directory, identity)
        disk.make_directories(log_directory)
        for made in (directory.parent, directory, directory / SHARD):
            disk.sync_directory(made)  # each name on the way to the log; a crash may have come between
        files = SegmentFiles(disk, log_directory, identity.segment_bytes)
        recovery = find_out(files, [])
        return cls(
            disk,
            directory,
            identity,
            files,
            recovery,
            held_lock,
            durability=durability,
            make_syncer=make_syncer,
            reserve_bytes=reserve_bytes,
        )

    # --- start -----------------------------------------------------------------------------------------------

    @property
    def redo_from(self) -> int:
        """Log offset of the snapshot, or of the log's start."""
        return self.recovery.redo_from

    @property
    def log_start(self) -> int:
        """First log offset that is there; the state's own number may be ahead until ``trim``."""
        return self.log.start

    @property
    def log_end(self) -> int:
        """Where the next batch starts."""
        return self.log.end

    def snapshot_chunks(self) -> Iterator[bytes] | None:
        """State at ``redo_from``; None when the redo starts at the log's beginning, with its base record."""
        return None

    def redo(self) -> Iterator[ScannedBatch]:
        """Every batch from ``redo_from`` to the log's end, in order. Go through all of it, then ``finish_recovery``.

        Raises:
            WrongVersion: a record of a kind that this version does not know.
        """
        if self.recovery.case.act is Act.START_EMPTY:
            return
        for scanned in LogScan(self._files).from_batch(self.redo_from, self.recovery.durable_position):
            if not isinstance(scanned, Batch) or scanned.header.offset >= self.log.end:
                return
            header, view, place = scanned
            records = decode_batch(view, place, header)
            yield ScannedBatch(header.offset, header.end, header.broker_time_ms, header.epoch, records)

    def finish_recovery(self) -> None:
        """Cut what was never answered, make the rest durable, start the sync thread. ``append`` may follow.

        Raises:
            OSError, StorePoisoned: the disk failed; nothing was lost, start again when it works.
        """
        fsync = self.durability is Durability.FSYNC
        settle(self._disk, self._files, self.recovery, rewrite=fsync)
        if fsync:
            self.log.sync(self.log.end)
        self.log.prepare_next()
        if fsync:
            self._syncer = self._make_syncer(self._sync)

    # --- write -----------------------------------------------------------------------------------------------

    @property
    def durable_position(self) -> int:
        """Everything before it survives a crash, at the level that ``durability`` promises."""
        return self.log.synced_position if self.durability is Durability.FSYNC else self.log.end

    @property
    def failure(self) -> OSError | None:
        """Why the log is poisoned; None while it is not."""
        return self.log.failure

    def append(self, records: Sequence[Record], broker_time_ms: int) -> int:
        """One batch in one write; returns the log's end. See ``CommitLog.append``.

        Raises:
            StoreFull: only when the batch begins a segment; nothing was changed. ``reserve_roll`` tells beforehand.
            StorePoisoned: a write or sync failed.
        """
        return self.log.append(records, broker_time_ms)

    def reserve_roll(self) -> None:
        """See to it that a batch may begin the next segment. Call it before records are decided that need it.

        Raises:
            StoreFull: no room on the disk; nothing was changed.
            StorePoisoned: the disk failed.
        """
        self.log.ensure_room_for_roll()

    def request_sync(self, position: int) -> None:
        """Make everything before ``position`` durable soon; ``on_durable`` tells when."""
        if self._syncer is not None:
            self._syncer.request(position)
        elif not self.log.next_is_ready and not self.log.space_low:
            self.log.prepare_next()

    @property
    def free_space_low(self) -> bool:
        """Refuse new messages; verdicts, checks and trims go on in what is left."""
        return self.log.space_low

    def look_at_space(self) -> bool:
        """Look again whether there is room, making the next segment if so. True: space is low. Any thread, now and then."""
        return not self.log.prepare_next()

    def _sync(self, position: int) -> None:
        """The sync thread's job."""
        try:
            durable = self.log.sync(position)
            self.on_durable(durable)
            if not self.log.next_is_ready and not self.log.space_low:
                self.log.prepare_next()
        except StorePoisoned as error:
            self.on_failed(error)

    # --- read ------------------------------------------------------------------------------------------------

    def read_stored(self, offset: int) -> memoryview:
        """The stored message of the record at ``offset``, as it lies in the mapped segment.

        Raises:
            LookupError: before the log's start, or no message there.
        """
        return self.log.stored_view(offset)

    def read_message(self, offset: int) -> tuple[int, StoredMessage]:
        """(record kind, message) of the record at ``offset``.

        Raises:
            LookupError: as ``read_stored``.
        """
        return self.log.read_message(offset)

    # --- end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync what was asked for, stop the thread, give the lock back."""
        if self._syncer is not None:
            self._syncer.close()
            self._syncer = None
        self.log.close()
        lock, self._held_lock = self._held_lock, None
        if hasattr(lock, "close"):
            lock.close()
