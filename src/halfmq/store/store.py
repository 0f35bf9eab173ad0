"""The store: one log, its indexes, and checkpoints for a fast restart. Only the broker writes, and only through ``Store``.

Other packages import other modules of ``store`` for what needs no running store: types of entries and rows, and reading the files of
a store (``halfmq store``, the direct reader of ``halfmq.spark``, the histories of ``halfmq.testing``).

A start, in this order:

    store = Store.open(...)            lock, read store.json, examine the log; refuses here, with nothing changed
    store.snapshot_chunks()            state at ``redo_from``, if there is a snapshot
    for batch in store.redo(): ...     every batch after it; indexes are updated on the way
    store.finish_recovery(...)         cut the torn tail, make the rest durable; now ``append`` is allowed

Then, for each batch: ``append``, ``request_sync``; when ``durable_position`` has reached it: ``publish``. At intervals ``checkpoint``, and
``trim`` once the record of the trim is durable.

Only this file knows the order in which the parts must reach the disk; each step states the reason.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import InvariantViolated, StoreDamaged, StoreFull, StorePoisoned, UsageError, WrongVersion
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MIN
from halfmq.model.records import BATCH_HEADER_BYTES, Batch, Committed, HalfRecord, MessageRecord, RolledBack
from halfmq.model.steps import Steps
from halfmq.runtime.disk import Disk
from halfmq.runtime.entropy import Entropy
from halfmq.store.batch_codec import Header, decode_batch, read_header
from halfmq.store.checkpoint import (
    Present,
    Slot,
    WholeSnapshot,
    read_checkpoint,
    read_snapshot,
    remove_snapshots,
    write_checkpoint,
    write_snapshot,
)
from halfmq.store.commit_log import CommitLog
from halfmq.store.consume_queue import QueueEntry
from halfmq.store.group_flush import GroupFlush, Job, Syncer
from halfmq.store.identity import LOCK_NAME, Identity, StoreLocks, read_identity, take_lock, write_identity
from halfmq.store.identity import NAME as STORE_JSON
from halfmq.store.indexes import FoundMessage, Indexes, indexes_are_there
from halfmq.store.layout import STORE_FORMAT
from halfmq.store.log_scan import LogScan
from halfmq.store.raw_messages import RawBlock, read_block
from halfmq.store.recovery import CheckpointFound, Recovery, examine_log, repair
from halfmq.store.recovery_cases import Act
from halfmq.store.segment import NO_SPACE, SegmentFiles
from halfmq.store.table_block import TableBlock, Wanted
from halfmq.store.table_block import read_block as read_table_block
from halfmq.store.topics_file import TopicInfo
from halfmq.store.transaction_table import UndecidedHalf
from halfmq.store.two_slots import Missing, Unreadable
from halfmq.store.watermark_page import Watermark, WatermarkPage, read_watermark_page

log = logging.getLogger("halfmq.store")

SHARD: Final = "shard-0"
#: Records whose index entries may be written after ``publish``.
_MAY_WAIT: Final = frozenset({HalfRecord, Committed, MessageRecord, RolledBack})
INDEX_RECORDS_MAX: Final = 64


class Durability(Enum):
    """``MEMORY``: a written batch counts as durable; it survives a killed process, but not a power loss. ``FSYNC``: both."""

    MEMORY = "memory"
    FSYNC = "fsync"

    @property
    def syncs(self) -> bool:
        """Whether a batch is durable only when it is synced."""
        return self is not Durability.MEMORY


class Detached(NamedTuple):
    """The files of a trim: starts of segments that left the log, and files of the transaction table to examine."""

    segments: list[int]
    full_tables: list[int]


class _Checkpoints(NamedTuple):
    """The checkpoints at a start: the valid slots, newest first, and the one snapshot to use."""

    slots: tuple[Slot, ...]
    found: tuple[CheckpointFound, ...]
    snapshot: WholeSnapshot | None


def _read_checkpoints(disk: Disk, shard: Path, store_id: bytes) -> _Checkpoints:
    read = read_checkpoint(disk, shard / "checkpoint", store_id)
    match read:
        case Missing():
            return _Checkpoints((), (), None)
        case Unreadable():
            return _Checkpoints((), (CheckpointFound(0, 0, False),), None)
        case Present(slots):
            found = []
            snapshot: WholeSnapshot | None = None
            # A snapshot does not replace indexes: if they are missing they are rebuilt from the log's start.
            followed = indexes_are_there(disk, shard)
            for slot in slots:
                usable = False
                if snapshot is None and followed:  # read the older one only if the newer one is unusable
                    candidate = read_snapshot(disk, shard / "snapshots", store_id, slot.position)
                    if isinstance(candidate, WholeSnapshot) and candidate.crc == slot.snapshot_crc:
                        snapshot, usable = candidate, True
                found.append(CheckpointFound(slot.position, slot.epoch, usable))
            return _Checkpoints(slots, tuple(found), snapshot)


def _is_blank(disk: Disk, shard: Path) -> bool:
    """Whether no start of this store got as far as its first segment, whose name is durable before any reply. If the remaining files do not
    prove that, False.
    """
    if disk.list(shard / "log") or disk.exists(shard / "checkpoint"):
        return False
    match read_watermark_page(disk, shard / "published"):
        case Missing():
            return True
        case Watermark() as page:
            return page.position == page.durable == 0
        case Unreadable():
            return False


def _identity(disk: Disk, directory: Path, entropy: Entropy, segment_bytes: int) -> Identity:
    """The store's identity; created with its directories if there is none.

    Created again, as another store, if another segment size is requested and the log is empty: the first start may have found no space
    for a segment of that size. It is another store so that a reader that knows the old segment size notices.

    The directories are durable before ``store.json``: if that exists and they do not, it is not a first start.
    """
    identity = read_identity(disk, directory)
    shard = directory / SHARD
    log_directory = shard / "log"
    if identity is not None and not disk.exists(log_directory):
        missing = log_directory if disk.exists(shard) else shard
        raise StoreDamaged(
            f"{missing} is missing beside {directory / STORE_JSON}: there was a log",
            hint="bring it back from where it went, or mount it; where there is nothing to keep, remove the directory",
        )
    if identity is None:
        if disk.list(log_directory):
            raise StoreDamaged(f"{directory} contains a log but no store.json", hint="restore store.json from a backup")
        for name in ("checkpoint", "published"):
            if disk.exists(shard / name):
                raise StoreDamaged(
                    f"{shard / name} belongs to a store whose log and store.json are missing",
                    hint="bring them back from where they went; where there is nothing to keep, remove the directory",
                )
    new = identity is None or (identity.segment_bytes != segment_bytes and _is_blank(disk, shard))
    if new:
        if segment_bytes < SEGMENT_BYTES_MIN or segment_bytes % SEGMENT_BYTES_MIN:
            raise UsageError(
                f"a segment of {segment_bytes} bytes", hint=f"give a multiple of {SEGMENT_BYTES_MIN}, below 2 GiB"
            )
        disk.make_directories(log_directory)
    for made in (directory.parent, directory, shard):
        # Sync every name on the path to the log and that of store.json: their creator may have been killed before it did.
        disk.sync_directory(made)
    if identity is None or new:
        identity = Identity(entropy.token(16), segment_bytes)
        write_identity(disk, directory, identity)
    return identity


def _protect(disk: Disk, directory: Path) -> None:
    """Give a store of an earlier version, or of another group, the permissions of new files. Others in ``directory`` are left."""
    results = [disk.protect(directory / name) for name in (STORE_JSON, LOCK_NAME)]
    results += [disk.protect(directory / SHARD, below=True), disk.protect(directory)]
    changed = sum(result.changed for result in results)
    if changed:
        log.info(
            "the permissions of %d files and directories in %s were changed to those of new ones", changed, directory
        )
    for kept in [result.kept for result in results if result.kept is not None][:1]:
        log.warning("%s: other accounts may be able to use it", kept)


def _thread_flush(job: Job) -> Syncer:
    flush = GroupFlush(job)
    flush.start()
    return flush


class Store:
    """For a single writer. Methods run on the writer's thread unless stated otherwise."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        identity: Identity,
        files: SegmentFiles,
        recovery: Recovery,
        checkpoints: _Checkpoints,
        epoch: int,
        locks: StoreLocks,
        *,
        durability: Durability,
        make_syncer: Callable[[Job], Syncer],
        reserve_bytes: int,
    ) -> None:
        """Use ``open``."""
        self.directory = directory
        self._identity = identity
        self.store_id = identity.store_id
        self.segment_bytes = identity.segment_bytes
        self.durability = durability
        self._syncs = durability.syncs
        #: What the start found; ``says`` is for people.
        self.recovery = recovery
        #: Of this start; in every batch. Higher than any epoch that was ever on this disk.
        self.epoch = epoch
        #: Called on the sync thread with the new durable position. Not called with ``MEMORY``.
        self.on_durable: Callable[[int], None] = lambda position: None
        #: Called on the sync thread before and after each sync that replies wait for; ``on_sync_ended`` only if it succeeded.
        self.on_sync_began: Callable[[], None] = lambda: None
        self.on_sync_ended: Callable[[], None] = lambda: None
        #: Called once, on the thread that saw a write or sync fail: stop the process and release no reply. The next append raises the error
        #: as well.
        self.on_failed: Callable[[StorePoisoned], None] = lambda error: None
        #: Called on the thread that found no space for the next segment: refuse new messages until ``check_space`` finds some.
        self.on_space_low: Callable[[], None] = lambda: None
        self.log = CommitLog(
            disk,
            files,
            epoch=self.epoch,
            end=recovery.end,
            synced_position=recovery.durable_position,
            reserve_bytes=reserve_bytes,
            before_make=self.check_locks,
        )
        #: The log's files.
        self.segments = files
        self._disk = disk
        self._locks = locks
        self._make_syncer = make_syncer
        self._syncer: Syncer | None = None
        self._shard = directory / SHARD
        self._slots = checkpoints.slots
        self._snapshot = checkpoints.snapshot if recovery.case.act is Act.REDO_FROM_SNAPSHOT else None
        self._high_watermark = 0
        #: Indexes and page are written up to here; the high watermark is ahead of it while ``_waiting``.
        self._written = 0
        #: (position, broker time ms) of the last ``publish`` that wrote no indexes, and the number of staged records.
        self._waiting: tuple[int, int] | None = None
        self._records_waiting = 0
        #: Durable position in the page.
        self._page_durable = -1
        #: (position, broker time ms) up to which the indexes lag because the disk is full; None if they do not.
        self._lagging: tuple[int, int] | None = None
        #: Indexes may contain entries after the high watermark: they lag, or ``staging`` has begun to write what ``publish`` shows.
        self._is_ahead = False
        #: A checkpoint wrote topics, and the page does not tell readers yet.
        self._topics_were_late = False
        self._page: WatermarkPage | None = None
        #: Number of the segment that was being written at the last check of its file.
        self._looked_to = recovery.end // identity.segment_bytes
        #: Number of a segment -> broker time of its first batch, ms.
        self._began_ms: dict[int, int] = {}
        self.indexes = Indexes.open(
            disk,
            self._shard,
            store=self.uuid,
            segment_bytes=self.segment_bytes,
            redo_from=recovery.redo_from,
            log_start=recovery.log_start,
            log=self.log,
        )
        self.queues = self.indexes.queues
        self.table = self.indexes.table
        #: Write one batch; call ``reserve_roll`` before records are decided that begin a segment.
        self.append = self.log.append
        self.reserve_roll = self.log.reserve_roll
        self.why_not_copied = self.log.why_not_copied
        # Reads for the broker's services, through ports of their own; reads of queues and keys are below.
        self.stored_view = self.log.stored_view
        self.kind_at = self.log.kind_at
        self.first_offset = self.log.first_offset
        self.batched_place = self.log.batched_place
        self.verdict_names = self.log.verdict_names
        self.verdict = self.log.verdict
        self.settled_ids = self.indexes.settled_ids
        self.transaction_row = self.table.row
        self.find_settled = self.table.find_settled
        self.search_settled = self.table.search_settled
        self.topic_names = self.indexes.topic_names
        self.why_not_shown = self.log.why_not_shown
        self.examine_shown = self.log.examine_shown
        self.read_log = self.log.read_at

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
        """Lock the store in ``directory``, creating it if necessary, and determine its state.

        ``segment_bytes`` applies only to a store without a log. A store with a log is not changed before ``redo``.

        Raises:
            StoreInUse: another process holds the lock.
            StoreDamaged: damage other than a torn tail; names file, place and remedy.
            WrongVersion: written by another version.
            UsageError: an invalid segment size.
            OSError: the directory cannot be created or read.
        """
        disk.make_directories(directory)
        locks = take_lock(disk, directory)
        files: SegmentFiles | None = None
        try:
            _protect(disk, directory)
            identity = _identity(disk, directory, entropy, segment_bytes)
            locks.take(directory / SHARD)
            files = SegmentFiles(disk, directory / SHARD / "log", identity.segment_bytes)
            checkpoints = _read_checkpoints(disk, directory / SHARD, identity.store_id)
            read = read_watermark_page(disk, directory / SHARD / "published")
            page = read if isinstance(read, Watermark) and read.store == identity.store_id else None
            found = checkpoints.found
            if page is not None and page.position > 0 and not files.numbers():
                # There was a log: names of segments are durable before anything in them is published.
                found = (*found, CheckpointFound(page.position, page.epoch, False))
            recovery = examine_log(files, found, page.durable if page is not None else 0)
            # A run that crashed before its first batch left its epoch only in the page.
            paged = page.epoch if page is not None else 0
            return cls(
                disk,
                directory,
                identity,
                files,
                recovery,
                checkpoints,
                max(recovery.epoch, paged) + 1,
                locks,
                durability=durability,
                make_syncer=make_syncer,
                reserve_bytes=reserve_bytes,
            )
        except BaseException:
            if files is not None:
                files.close()
            locks.close()
            raise

    @property
    def uuid(self) -> str:
        """The store's id, 32 hex digits."""
        return self.store_id.hex()

    @property
    def format(self) -> int:
        """Format of the store: a start has made it the one of this version."""
        return STORE_FORMAT

    # --- start -----------------------------------------------------------------------------------------------

    def snapshot_chunks(self) -> Iterator[bytes] | None:
        """State at ``redo_from``; None if redo starts at the log's beginning, with its base record."""
        return None if self._snapshot is None else iter(self._snapshot.chunks)

    def why_rebuild(self, queues: Iterable[tuple[int, int, int, int]], log_start: int) -> str | None:
        """Compare queue files with the snapshot's state. If they differ, ignore the snapshot and return the difference.

        ``queues``: (topic id, queue id, first offset, offset after the last entry) of each queue in the state, for a log that starts at
        ``log_start``. If the result is not None, ``redo`` reads the whole log and rebuilds the indexes, so begin with an empty state.

        Raises:
            StoreDamaged: the log before the snapshot, which the rebuild needs, is damaged.
        """
        difference = self.indexes.queues.difference(queues, log_start)
        if difference is not None:
            self._snapshot = None
            self.recovery = examine_log(
                self.segments,
                [CheckpointFound(slot.position, slot.epoch, False) for slot in self._slots],
                self.recovery.durable_position,
            )
        return difference

    def redo(self) -> Iterator[Batch]:
        """Every batch from ``redo_from`` to the log's end, in order. Iterate to the end, then call ``finish_recovery``.

        Indexes are updated on the way; without a snapshot they are rebuilt.

        Raises:
            WrongVersion: a record of a kind that this version does not know.
            StoreDamaged: a record cannot be decoded, although the checksum of its batch is right.
            OSError: the disk failed.
        """
        recovery = self.recovery
        page = self._page = WatermarkPage.open(self._disk, self._shard / "published", self.store_id, self.epoch)
        if recovery.case.act is not Act.REDO_FROM_SNAPSHOT:
            # Before the files are removed, so that readers do not take a part for the whole. Before the checkpoint is removed, and durable:
            # it may be the only evidence of how far the log was durable.
            page.rebuilding(recovery.end, recovery.log_start, recovery.durable_position)
            self._disk.sync_directory(self._shard)
            self._withdraw_checkpoint()
            self.indexes.reset()
        if recovery.case.act is Act.START_EMPTY:
            return
        for header, view, place in LogScan(self.segments).again(recovery.redo_from, recovery.end, recovery.rolls):
            try:
                records = decode_batch(view, place, header)
            except (StoreDamaged, WrongVersion) as error:
                where = self.segments.path(header.offset // self.segment_bytes)
                raise type(error)(f"{where}, batch at log offset {header.offset}: {error}") from error
            batch = Batch(header.offset, header.end, header.broker_time_ms, records)
            self.indexes.redo(batch)
            yield batch

    def _withdraw_checkpoint(self) -> None:
        """A slot states that indexes are complete up to it: it must be gone before they are, also after a power loss."""
        path = self._shard / "checkpoint"
        if self._disk.exists(path):
            self._disk.remove(path)
        self._disk.sync_directory(self._shard)
        self._slots = ()

    def finish_recovery(
        self,
        *,
        next_half_index: int,
        undecided: Iterable[UndecidedHalf],
        topics: Iterable[TopicInfo],
        broker_time_ms: int,
        queue_ends: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        """Cut what was never acknowledged, make the rest durable and readable, and start the sync thread. ``append`` is allowed afterwards.

        The arguments are from the recovered state: it also knows what the log said before the snapshot, or before the log's start.
        ``queue_ends``: (topic id, queue id, next queue offset).

        Raises:
            StoreFull: a new store, and no space for its first segment.
            OSError, StorePoisoned: the disk failed; nothing was lost, start again when it works.
        """
        assert self._page is not None, "finish_recovery before redo"
        fsync = self.durability.syncs
        if self._identity.format != STORE_FORMAT:  # before anything that an earlier version does not know
            write_identity(self._disk, self.directory, self._identity)
            log.info("the store in %s has format %d now: earlier versions cannot open it", self.directory, STORE_FORMAT)
        repair(self._disk, self.segments, self.recovery)
        if fsync:
            self.log.sync(self.log.end)
        self._snapshot = None
        self.indexes.cut(self.log.end, next_half_index)
        self.indexes.rewrite_undecided(undecided)
        self.indexes.rewrite_topics(topics)
        for topic_id, queue_id, end in queue_ends:
            self.indexes.queues.begin_at(topic_id, queue_id, end)
        self._high_watermark = self._written = self.log.end
        self._page.publish(self._high_watermark, self.indexes.log_start, broker_time_ms, self.log.synced_position)
        if not self.segments.numbers():
            self._make_first_segment()
        self.log.prepare_next()
        if fsync:
            self._syncer = self._make_syncer(self._sync)

    def _make_first_segment(self) -> None:
        try:
            self.log.reserve_roll()
        except StoreFull as error:
            raise StoreFull(
                f"no space for a log segment of {self.segment_bytes} bytes: {self.segments.path(0)}",
                hint="free some space there, or choose smaller ones with --segment-bytes: nothing is in the log yet",
            ) from error

    # --- write -----------------------------------------------------------------------------------------------

    @property
    def durable_position(self) -> int:
        """Everything before it survives a crash, as far as ``durability`` promises."""
        return self.log.synced_position if self._syncs else self.log.end

    def request_sync(self, position: int) -> None:
        """Make everything before ``position`` durable soon; ``on_durable`` reports it."""
        if self._syncer is not None:
            self._syncer.request(position)
        elif not self.log.next_is_ready and not self.log.space_low:
            self._prepare_next()

    def _prepare_next(self) -> None:
        if not self.log.prepare_next():
            self.on_space_low()

    def check_space(self) -> bool:
        """Check the free space again, and create the next segment if possible. True: space is low. Any thread, at intervals.

        For lagging indexes call ``catch_up``, on the writer's thread.
        """
        return not self.log.prepare_next()

    def check_locks(self) -> None:
        """Check that the locked directory is still the one under the store's name, and has no other writer. Any thread, at intervals.

        Files are created by name: in a directory that replaced this one they would belong to another store. Where locks have no effect, as
        on some network file systems, the watermark page reveals another writer.

        Raises:
            StorePoisoned: it is not; nothing may be appended or acknowledged any more.
        """
        why = self._locks.why_lost()
        hint = "what was answered is in the directory that was locked: bring it back to its name, then start"
        page = self._page
        if why is None and page is not None and (epoch := page.other_writer()) is not None:
            why = f"another broker, of epoch {epoch}, writes to the store in {self.directory} beside this one, of {self.epoch}"
            hint = "stop it; then run `halfmq store verify`"
        if why is not None:
            self.log.failure = self.log.failure or OSError(errno.ESTALE, why)
            raise StorePoisoned(why, hint=hint)

    def check_written_segment(self) -> tuple[int, str] | None:
        """Check that the file of the segment being written exists and is complete; at intervals, on the thread that unlinks.

        On that thread, since the segments to check may be detached meanwhile, and must not be unlinked before. It checks all segments
        written since the last check, so that a roll hides nothing: a file may have been removed or replaced before it. Truncation is not
        checked for closed segments; ``SegmentFiles.missing`` reports it.

        Returns (number, problem) if only the segment prepared for the next roll is affected: pass the number to ``forget_segment``.

        Raises:
            StorePoisoned: a file was removed, replaced or truncated. Nothing may be appended or acknowledged any more: a start would not
                find it.
            OSError: the check failed.
        """
        end = self.log.end
        written = (end - 1) // self.segment_bytes
        looked = range(min(self._looked_to, written), written + 1) if end else ()
        self._looked_to = max(0, written)
        for number in looked:
            look = self.segments.what_is_wrong if number == written else self.segments.what_became_of
            what = look(number) if number in self.segments else None
            if what is not None:
                self.log.failure = self.log.failure or OSError(errno.ESTALE, what[0])
                raise StorePoisoned(
                    f"{what[0]}, and the log {'continues' if number == written else 'continued'} in it",
                    hint="the broker accepts nothing more, since a start would not find it; bring that file back from where it was "
                    "moved, or from a backup, then start",
                )
        following = -(-end // self.segment_bytes)
        what = self.segments.what_is_wrong(following) if following in self.segments else None
        return None if what is None else (following, what[0])

    def forget_segment(self, number: int) -> bool:
        """Remove a prepared segment that ``check_written_segment`` reported; it is created again before it is needed.

        False if it is already being written; the next check then raises. Writer's thread.
        """
        if number not in self.segments or number * self.segment_bytes < self.log.end:
            return False
        self.segments.forget(number)
        return True

    def _sync(self, position: int) -> None:
        """The sync thread's job. Every failure must be reported: replies wait for it."""
        try:
            self.on_sync_began()
            durable = self.log.sync(position)
            self.on_sync_ended()
            self.on_durable(durable)
            if not self.log.next_is_ready and not self.log.space_low:
                self.on_sync_began()  # replies wait for this as well: the next sync comes after it
                self._prepare_next()
                self.on_sync_ended()
        except StorePoisoned as error:
            self.on_failed(error)
        except Exception as error:  # noqa: BLE001 - the last handler of the thread
            poisoned = StorePoisoned(
                f"the sync thread failed: {type(error).__name__}: {error}", hint="restart to recover"
            )
            poisoned.__cause__ = error
            self.on_failed(poisoned)

    # --- publish, checkpoint, trim ---------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Readers see the log before it: queues, keys, the transaction table, and other processes."""
        return self._high_watermark

    def staging(self, batches: Iterable[Batch]) -> Steps[None]:
        """Do the part of ``publish`` that takes long for a verdict on many messages. Then call ``publish`` without these batches, with
        ``at_once``; nothing else may be published in between.

        Raises:
            OSError: as ``publish``.
        """
        self._before_reading()
        self._is_ahead = True
        for batch in batches:
            yield from self.indexes.staging(batch)

    def publish(self, position: int, broker_time_ms: int, batches: Iterable[Batch], *, at_once: bool = True) -> int:
        """Update the indexes with these batches, the next ones in log order, and let readers read up to ``position``.

        Call it when ``durable_position`` has reached ``position``: what readers have seen must not be reverted.

        ``at_once`` False: the indexes may be written slightly later, together with the following ones, since a write costs more than its
        content. ``indexes_wait`` is then True; call ``write_indexes`` soon. Readers in this process see staged entries; other processes see
        what was written.

        Returns the high watermark. It is below ``position`` while the disk has no space for indexes: the log's promises do not need them,
        so they lag, in memory. Refuse new messages then, so that they are bounded, and call ``catch_up`` at intervals; ``publish`` works as
        before.

        Raises:
            StoreFull: not even the page, whose space is allocated, could be written, so nothing records how far the log is durable. Release
                no reply, and call it again without the batches.
            OSError: a write failed for another reason; stop, a restart repairs the indexes.
        """
        assert self._page is not None, "publish before finish_recovery"
        stage = self.indexes.stage
        for batch in batches:
            stage(batch)
            records = batch.records
            self._records_waiting += len(records)
            at_once = at_once or not _MAY_WAIT.issuperset(map(type, records))
        if at_once or self._lagging is not None or self._records_waiting >= INDEX_RECORDS_MAX:
            return self._follow(position, broker_time_ms)
        synced = self.log.synced_position
        if synced != self._page_durable:
            self._write_watermark(self._page.durable_to, synced)
            self._page_durable = synced
        self._waiting = position, broker_time_ms
        self._high_watermark = position
        return position

    @property
    def indexed_to(self) -> int:
        """``settled_ids`` has every verdict before this log position."""
        return self.indexes.position

    @property
    def indexes_wait(self) -> bool:
        """Whether there are staged entries before the high watermark."""
        return self._waiting is not None

    @property
    def is_lagging(self) -> bool:
        """Whether the indexes lag because the disk is full. ``catch_up`` tries again."""
        return self._lagging is not None

    def write_indexes(self) -> int:
        """Write what ``publish`` left for later. Returns and raises as ``publish``."""
        return self._high_watermark if self._waiting is None else self._follow(*self._waiting)

    def catch_up(self) -> int:
        """Try again to write lagging indexes. Returns and raises as ``publish``."""
        return self._high_watermark if self._lagging is None else self._follow(*self._lagging)

    def _follow(self, position: int, broker_time_ms: int) -> int:
        assert self._page is not None
        self._waiting = None
        self._records_waiting = 0
        self._lagging = position, broker_time_ms
        self._is_ahead = True
        durable = self.log.synced_position
        try:
            self.indexes.flush()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._high_watermark = self._written  # nobody has seen the staged entries
            self._write_watermark(self._page.durable_to, durable)
        else:
            self._write_watermark(self._page.publish, position, self.indexes.log_start, broker_time_ms, durable)
            self._lagging = None
            self._is_ahead = False
            self._page_durable = durable
            self._high_watermark = self._written = position
        return self._high_watermark

    def _before_reading(self) -> None:
        """Write staged entries, so that readers of the indexes see them.

        If that fails, readers see what was written before, and ``on_failed`` is called unless the disk is only full.
        """
        if self._waiting is not None:
            try:
                self._follow(*self._waiting)
            except StoreFull:
                pass  # still lagging, as ``publish`` and ``catch_up`` report
            except OSError as error:
                self.on_failed(StorePoisoned(f"indexes cannot be written: {error}", hint="restart to rebuild them"))
                raise

    def _write_watermark(self, write: Callable[..., None], *what: int) -> None:
        try:
            write(*what)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StoreFull(
                f"no space for the watermark page in {self._shard}", hint="free space on that disk"
            ) from error

    def checkpoint(self, position: int, chunks: Iterable[bytes]) -> None:
        """Let a restart redo from ``position``, with the state there in ``chunks``. Any thread, one at a time.

        ``position`` is published and the end of a batch. First log and indexes become durable, then the snapshot, then the slot that names
        it: each step states only what is already true.

        Raises:
            StorePoisoned: the log failed.
            StoreFull: no space for snapshot or slot; the previous checkpoint stays valid, try again later.
            OSError: indexes or slot failed; the previous checkpoint stays valid. The state of the indexes on the disk is unknown: stop.
        """
        self.check_locks()
        if position > self._written:
            raise InvariantViolated(
                f"a checkpoint at {position} was asked for, the indexes are written up to {self._written}"
            )
        self.log.sync(position)
        try:
            self._topics_were_late = self.indexes.write_late_topics() or self._topics_were_late
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StoreFull(f"no space for topics.json in {self._shard}", hint="free space on that disk") from error
        self.indexes.sync()
        snapshots = self._shard / "snapshots"
        try:
            crc = write_snapshot(self._disk, snapshots, self.store_id, self.epoch, position, chunks)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            remove_snapshots(
                self._disk, snapshots, [kept.position for kept in self._slots]
            )  # including the part written so far
            raise StoreFull(f"no space for a snapshot in {snapshots}", hint="free space on that disk") from error
        self._disk.sync_directory(self._shard)  # the name of the snapshots' directory
        newest = max((slot.sequence for slot in self._slots), default=0)
        slot = Slot(newest + 1, self.epoch, position, crc)
        try:
            write_checkpoint(self._disk, self._shard / "checkpoint", self.store_id, slot)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StoreFull(f"no space for a checkpoint in {self._shard}", hint="free space on that disk") from error
        self._slots = (slot, *(old for old in self._slots if old.sequence == newest))
        remove_snapshots(self._disk, snapshots, [kept.position for kept in self._slots])

    def checkpointed(self) -> None:
        """Call it on the writer's thread after each ``checkpoint``: the page tells readers about topics that it wrote.

        Raises:
            OSError: the watermark page could not be written.
        """
        if self._topics_were_late and self._page is not None:
            self._topics_were_late = False
            self._write_watermark(self._page.durable_to, self.log.synced_position)

    def closed_segments(self) -> Iterator[tuple[int, int, int]]:
        """(start, start of the next one, broker time of the next one's first batch, ms) of full segments, oldest first.

        Without the segment that is being written.
        """
        size = self.segment_bytes
        numbers = [number for number in self.segments.numbers() if number * size < self.log.end]
        for number, following in pairwise(numbers):
            yield number * size, following * size, self._began(following)

    def _began(self, number: int) -> int:
        began = self._began_ms.get(number)
        if began is None:
            segment = self.log.open_segment(number)
            start = number * self.segment_bytes
            header = None
            if segment is not None:
                header = read_header(segment.read(0, BATCH_HEADER_BYTES), 0, start, self.segment_bytes)
            if not isinstance(header, Header):
                raise StoreDamaged(
                    f"{self.segments.path(number)} does not begin with a batch", hint="run `halfmq store verify`"
                )
            began = self._began_ms[number] = header.broker_time_ms
        return began

    def trim(self, log_start: int) -> list[int]:
        """Unlink everything before ``log_start`` at once. Returns the starts of the removed segments.

        The Trim record must be published, so that a restart does not treat them as missing. A serving broker takes the same steps, the slow
        ones on another thread: ``secure_trim``, ``detach``, ``unlink``, ``drop_tables``.

        Raises:
            StorePoisoned: the log failed.
            OSError: as ``unlink``.
        """
        self.secure_trim(log_start)
        gone = self.detach(log_start)
        self.drop_tables(self.unlink(gone, log_start))
        return gone.segments

    def secure_trim(self, log_start: int) -> None:
        """Make the Trim record durable, at every durability level; any thread.

        Removed files without their Trim record would look like damage.

        Raises:
            StorePoisoned: the log failed.
        """
        if not self.durability.syncs and self.log.start < log_start:
            self.log.sync(self._high_watermark)

    def detach(self, log_start: int) -> Detached:
        """Remove everything before ``log_start`` from the log and its indexes. Writer's thread. Pass the result to ``unlink``."""
        gone = self.log.detach(min(log_start, self._high_watermark))
        for start in gone:
            self._began_ms.pop(start // self.segment_bytes, None)
        self.indexes.keys.trim(self.log.start)
        self.indexes.settled_ids.trim(self.log.start)
        return Detached(gone, self.table.full() if gone else [])

    def unlink(self, gone: Detached, log_start: int) -> list[int]:
        """Unlink the detached segments; any thread. Returns files of the transaction table that are obsolete, for ``drop_tables``.

        Raises:
            SegmentStays: a file cannot be removed; it remains, and so do the later ones. The next trim and the next start try again.
            OSError: some files may remain; the next start removes them.
        """
        self.log.unlink(gone.segments)
        return self.table.expired(log_start, gone.full_tables)

    def drop_tables(self, bases: Iterable[int]) -> None:
        """Remove files of the transaction table; writer's thread."""
        for base in bases:
            self.table.drop(base)

    # --- read ------------------------------------------------------------------------------------------------

    def read_queue(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[QueueEntry]:
        """Published entries from ``queue_offset`` on, at most ``entries_max``."""
        self._before_reading()
        return self.queues.read(topic_id, queue_id, queue_offset, entries_max, self._high_watermark)

    def read_raw(
        self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int, bytes_max: int, free_bytes: int,
        *, with_stored_checksums: bool = False,
    ) -> RawBlock:  # fmt: skip
        """Published entries from ``queue_offset`` on, and their stored messages, at most ``bytes_max`` of both; the first message always
        fits. ``free_bytes``: see ``RawBlock.data``. ``with_stored_checksums``: whole half batches are returned with theirs.
        """
        self._before_reading()
        return read_block(
            lambda first, number: self.queues.read_encoded(topic_id, queue_id, first, number, self._high_watermark),
            self.log, queue_offset, entries_max, bytes_max, free_bytes, with_stored_checksums=with_stored_checksums,
        )  # fmt: skip

    def read_table(
        self, first: int, end: int, position: int, wanted: Wanted, rows_max: int, bytes_max: int, free_bytes: int
    ) -> TableBlock:
        """Rows of the transaction table with half indexes [first, end) as of log offset ``position``, with their records; of one file.
        ``rows_max``, ``bytes_max``, ``free_bytes``: see ``table_block.read_block``.
        """
        self._before_reading()
        # Undecided rows are few.
        scanned = rows_max if wanted in (Wanted.ROWS, Wanted.TRANSACTIONS) else limits.TABLE_SCAN_ROWS_MAX
        rows = self.table.read_encoded(first, min(end - first, scanned))
        if not rows:
            after = min([end, *[base for base in self.table.bases() if base > first]])
            return TableBlock(0, after, frozenset(), 0, bytearray(free_bytes))
        return read_table_block(rows, first, self.log, position, wanted, rows_max, bytes_max, free_bytes)

    def first_half(self) -> int:
        """The half index of the first row in the transaction table that may exist."""
        return min(self.table.bases(), default=0)

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """(first published queue offset, offset after the last); (0, 0) for a queue without messages."""
        self._before_reading()
        return self.queues.bounds(topic_id, queue_id, self._high_watermark if self._is_ahead else None)

    def bounds_at(self, topic_id: int, queue_id: int, position: int) -> tuple[int, int]:
        """``bounds`` as they were when the high watermark was at ``position``; the first offset is the one of now."""
        self._before_reading()
        newer = self._is_ahead or position != self._high_watermark
        return self.queues.bounds(topic_id, queue_id, min(position, self._high_watermark) if newer else None)

    def log_began_ms(self) -> int:
        """Broker time of the first batch in the log, ms."""
        return self._began(self.log.start // self.segment_bytes)

    def free_bytes(self) -> int:
        """Free space on the store's disk."""
        return self._disk.free_bytes(self.directory)

    def total_bytes(self) -> int:
        """Size of the file system that the store is on, bytes."""
        return self._disk.total_bytes(self.directory)

    def search_by_time(self, topic_id: int, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Queue offset by store time; see ``ConsumeQueues.search_by_time``."""
        self._before_reading()
        return self.queues.search_by_time(topic_id, queue_id, time_ms, upper=upper)

    def find_offset(self, topic_id: int, queue_id: int, message_offset: int) -> Steps[tuple[int, QueueEntry] | None]:
        """(queue offset, entry) of the visible message whose record is at ``message_offset``; None if it is not visible."""
        self._before_reading()
        found = yield from self.queues.find_offset(topic_id, queue_id, message_offset)
        return found if found is not None and found[1].visible_at < self._high_watermark else None

    def find_by_key(self, topic_id: int, topic: str, key: str, messages_max: int) -> Steps[list[FoundMessage]]:
        """Visible messages of the topic with this unique id or key, newest first."""
        self._before_reading()
        found = yield from self.indexes.find_by_key(topic_id, topic, key, messages_max)
        return [one for one in found if one.entry.visible_at < self._high_watermark]

    # --- end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync what was requested, stop the thread, release the lock."""
        if self._syncer is not None:
            self._syncer.close()
            self._syncer = None
        if self._page is not None:
            if self.log.failure is None:
                with suppress(StoreFull):  # the next start rebuilds them from the log
                    self.write_indexes()
            self._waiting = None
            self._page.close()
            self._page = None
        if self.log.failure is None:
            self._close_indexes()
        self.log.close()
        self._locks.close()

    def _close_indexes(self) -> None:
        try:
            self.indexes.close()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # The indexes still lag: no checkpoint states otherwise, so the next start rebuilds that part from the log.
