"""The indexes: consume queues, transaction table, key index, settled ids, topics file. All of them are computed from the log.

``stage`` takes each **durable** batch once, in log order, and ``flush`` writes the resulting entries. Nothing else writes these files. They
can therefore always be rebuilt, and no entry refers to a record that a crash can revert.

Of a trim, entries before the log's start are removed from the queues by the next flush; files of the key index and the settled ids only
once the record is durable: a start notices missing queue files, but not missing keys or ids.

If the disk is full, a flush leaves unwritten entries in memory, and the next flush continues: the indexes lag behind the log and
catch up. Until then the high watermark must not advance.

Recovery: files are complete up to the checkpoint's position. ``open`` reads their ends there, ``redo`` reads the log from there and writes
the same bytes to the same places, ``cut`` zeroes what the log no longer contains, and ``rewrite_undecided`` and ``rewrite_topics`` add what
the snapshot contains. Without a checkpoint ``reset`` first removes all files and the redo creates new ones; readers that have
the old files open can go on.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import InvariantViolated, StoreDamaged, WrongVersion
from halfmq.model import properties as props
from halfmq.model.half_batch import ENTRY_BYTES
from halfmq.model.ids import hash64
from halfmq.model.records import (
    MESSAGE_AT,
    PARKED_MS,
    Base,
    Batch,
    BatchRef,
    Checked,
    Committed,
    Compared,
    CoordinatorEpoch,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    DelayedRecord,
    EpochStarted,
    GroupDeleted,
    GroupSet,
    HalfBatch,
    HalfRecord,
    MessageRecord,
    OffsetsCommitted,
    OperatorActed,
    Parked,
    ProducerSet,
    QueryForgotten,
    Record,
    Ref,
    Released,
    Restored,
    RolledBack,
    SettingSet,
    TopicDeleted,
    TopicSet,
    Trim,
    UserSet,
    for_each_kind,
)
from halfmq.model.steps import Steps
from halfmq.model.stored_message import StoredMessage
from halfmq.runtime.disk import Disk
from halfmq.store.batch_entries import keys_in, queue_entries
from halfmq.store.commit_log import BeforeLogStart, CommitLog
from halfmq.store.consume_queue import ConsumeQueues, QueueEntry, list_queues
from halfmq.store.key_index import KeyIndex, keys_of
from halfmq.store.layout import DELAYED, NO_HALF, QUEUE_ENTRY, ROW_COMMITTED, ROW_ROLLED_BACK
from halfmq.store.open_files import OpenFiles
from halfmq.store.settled_ids import SettledIds
from halfmq.store.topics_file import AT_ONCE_MAX, TopicInfo, read_topics, write_topics
from halfmq.store.transaction_table import TransactionTable, UndecidedHalf

_logger = logging.getLogger("halfmq.store")

#: Records staged between two writes of a redo: enough for long writes, little enough for memory.
_REDO_RECORDS: Final = 16_384
#: Maximum number of rewrites in ``write_late_topics`` if ``flush`` leaves further changes: with constant changes the next flush is
#: near, and a checkpoint must end.
_LATE_ROUNDS_MAX: Final = 8
#: Messages that a search by key reads between two places where it may be interrupted.
_READ_AT_ONCE: Final = 32
#: Messages whose entries are made between two such places, about a millisecond; what a half batch counts besides; and rows of the table.
_MESSAGES_AT_ONCE: Final = 32_768
_HALF_BATCH_COST: Final = 128
_ROWS_AT_ONCE: Final = 512
_pack_entry: Final = QUEUE_ENTRY.pack
#: Records that change no index; that of an operator explains the one after it.
_NOT_INDEXED: Final = (
    GroupSet, OffsetsCommitted, EpochStarted, Base, ProducerSet, GroupDeleted, QueryForgotten, CoordinatorEpoch, Compared,
    UserSet, SettingSet, Restored,
    OperatorActed,
)  # fmt: skip

#: The generation marker of each directory: its files cover the log from its start, or from a checkpoint, without a gap.
_GENERATION_MARKER: Final = "begun"
_DIRECTORIES: Final = ("queues", "transactions", "keys", "settled_ids")


def indexes_are_there(disk: Disk, directory: Path) -> bool:
    """False if somebody removed indexes: then no checkpoint may be used, and they are rebuilt from the log.

    ``reset`` creates a generation marker in each directory, durable with the first checkpoint. This detects missing directories; ``halfmq
    store verify`` detects missing files.
    """
    return all(disk.exists(directory / name / _GENERATION_MARKER) for name in _DIRECTORIES)


class FoundMessage(NamedTuple):
    """A visible message found by its key: its queue, queue offset and entry."""

    queue_id: int
    queue_offset: int
    entry: QueueEntry
    message: StoredMessage


class Indexes:
    """All indexes of a store. One thread writes and reads; ``sync`` may run on any thread."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        files: OpenFiles,
        *,
        queues: ConsumeQueues,
        table: TransactionTable,
        keys: KeyIndex,
        settled_ids: SettledIds,
        store: str,
        log: CommitLog,
    ) -> None:
        """For recovery: as ``open`` returns it, with ``position`` 0. ``store verify`` passes parts that compare what they are given."""
        self._disk = disk
        self._directory = directory
        self._store = store
        self._log = log
        self._files = files
        self.queues: Final = queues
        self.table: Final = table
        self.keys: Final = keys
        self.settled_ids: Final = settled_ids
        #: Undecided halves from ``_halves_from`` on whose transaction's id is not their UNIQ_KEY of the usual length. Of others the verdict
        #: needs no look at its id, which takes 1,600 instructions.
        self._not_unique_ids: set[int] = set()
        self._halves_from = 1 << 62
        self._topics: dict[int, TopicInfo] = {}
        self._topics_changed = False
        #: ``flush`` found the file being written by another thread, which then writes the further changes.
        self._topics_left = False
        #: Held while changes are taken and written: two writers would share one temporary file, and the older could win.
        self._topics_lock = threading.Lock()
        self._redoing = True
        self._staged_records = 0
        #: End of the last staged batch; the indexes contain nothing from there on.
        self.position = 0
        self.log_start = 0
        #: A trim that the files do not reflect yet.
        self._trim_to = 0

    @classmethod
    def open(
        cls,
        disk: Disk,
        shard_dir: Path,
        *,
        store: str,
        segment_bytes: int,
        redo_from: int,
        log_start: int,
        log: CommitLog,
    ) -> "Indexes":
        """Open indexes that are complete up to ``redo_from``. The caller redoes the log from there, then calls ``cut``.

        ``redo_from`` is the checkpoint's position. Without a checkpoint, call ``reset`` before the redo.
        """
        files = OpenFiles(disk)
        indexes = cls(
            disk,
            shard_dir,
            files,
            queues=ConsumeQueues(disk, shard_dir / "queues", files),
            table=TransactionTable(disk, shard_dir / "transactions", files),
            keys=KeyIndex(disk, shard_dir / "keys", files, segment_bytes),
            settled_ids=SettledIds(disk, shard_dir / "settled_ids", files, segment_bytes),
            store=store,
            log=log,
        )
        indexes.position = redo_from
        indexes.log_start = log_start
        indexes.queues.load(redo_from, log_start)
        indexes.table.load()
        indexes.keys.load(redo_from, log.read_message)
        indexes.settled_ids.load(redo_from, log.verdict)
        indexes._read_topics()
        indexes._mark_directories_unsynced(every=redo_from == 0)
        return indexes

    def _mark_directories_unsynced(self, *, every: bool) -> None:
        """Mark names for the first ``sync``: a killed process may have created names without syncing them.

        An existing name may not be on the disk; a checkpoint that relied on it would lose whole queues. A file with an entry before the
        position of a checkpoint was synced by that or an earlier one, with its names; so a start need not sync the directories of idle
        queues. ``every``: names were removed since the checkpoint, or there is none.
        """
        queues = self._directory / "queues"
        if every:
            found = [(topic_id, directory) for topic_id, _, directory in list_queues(self._disk, queues)]
        else:
            found = self.queues.begun
        for topic_id, queue_directory in found:
            self._files.directory_changed(queue_directory)
            self._files.directory_changed(queues / str(topic_id))
        for directory in (*[self._directory / name for name in _DIRECTORIES], self._directory):
            self._files.directory_changed(directory)

    # --- following the log

    def redo(self, batch: Batch) -> None:
        """``stage`` for recovery; it also writes after enough records. ``cut`` ends it."""
        self.stage(batch)
        self._staged_records += len(batch.records)
        if self._staged_records >= _REDO_RECORDS:
            self.flush()

    def stage(self, batch: Batch) -> None:
        """Take a durable batch into memory; readers see it after ``flush``.

        Raises:
            InvariantViolated: out of order, or a queue offset that is not the end of its queue.
        """
        for _ in self.staging(batch):
            pass

    def staging(self, batch: Batch) -> Iterator[None]:
        """``stage``, interrupted where a verdict shows many messages; their entries are written as it goes on."""
        batch_offset, batch_end, broker_time_ms, records = batch
        if batch_offset < self.position:
            raise InvariantViolated(
                f"indexes stand at {self.position} and were given the batch at {batch_offset} again"
            )
        follow = self._INDEX_BY_TYPE
        for record in records:
            if type(record) is Decided:
                yield from self._decided(record, broker_time_ms)
            else:
                follow[type(record)](self, record, broker_time_ms)
        self.position = batch_end

    def flush(self) -> None:
        """Write everything staged.

        Raises:
            OSError: a write failed. The rest stays staged; if the disk was full, retry later.
        """
        self._staged_records = 0
        self.table.flush()
        self.queues.flush()
        self.keys.flush()
        self.settled_ids.flush()
        if self._trim_to:
            self.queues.trim(self._trim_to)
            self._trim_to = 0
        if self._topics_changed and not self._redoing and len(self._topics) <= AT_ONCE_MAX:
            self._topics_left = True  # before the attempt: the holder of the lock checks it after the release
            if self._topics_lock.acquire(blocking=False):  # it may be held during an fsync, and this is the loop
                try:
                    self._write_changed_topics()
                finally:
                    self._topics_lock.release()

    def _half(self, record: HalfRecord, now_ms: int) -> None:
        self.table.prepared(record, now_ms)
        if record.id_hash != record.key_hash or len(record.tx_id) != 32:
            self._not_unique_ids.add(record.half_index)
        if record.keys:
            self.keys.add(record.topic, record.keys, record.offset)

    def _message(self, record: MessageRecord, now_ms: int) -> None:
        offset = record.offset
        entry = _pack_entry(offset, record.size - MESSAGE_AT, record.tag_hash, offset, now_ms, NO_HALF, record.key_hash)
        self.queues.add(record.topic_id, record.queue_id, record.queue_offset, entry)
        if record.keys:
            self.keys.add(record.topic, record.keys, offset)

    def _committed(self, record: Committed, now_ms: int) -> None:
        position = record.offset
        decided_by = record.decided_by
        refs = record.refs
        for ref in refs:
            half_index = ref.half_index
            queue_offset = ref.queue_offset
            self.table.settled(half_index, ROW_COMMITTED, decided_by, position, now_ms, queue_offset, ref.due_ms)
            if not ref.due_ms:
                entry = _pack_entry(
                    ref.offset, ref.message_bytes, ref.tag_hash, position, now_ms, half_index, ref.key_hash
                )
                self.queues.add(ref.topic_id, ref.queue_id, queue_offset, entry)
        if len(refs) > 1:
            halves = [ref.half_index for ref in refs]
            self.table.settled_together(record.group, record.tx_id, halves, halves[0], len(refs))
        first = refs[0].half_index
        if first in self._not_unique_ids or first < self._halves_from:
            self._not_unique_ids.difference_update([ref.half_index for ref in refs])
            self.settled_ids.add(record)

    def _rolled_back(self, record: RolledBack, now_ms: int) -> None:
        position = record.offset
        decided_by = record.decided_by
        halves = record.half_indexes
        # A trim may have removed the first record of a half that was settled before: then its row is created here.
        together = len(halves) > 1 or any(self.table.is_empty(half_index) for half_index in halves)
        for half_index in halves:
            self.table.settled(half_index, ROW_ROLLED_BACK, decided_by, position, now_ms, -1, 0)
        if together:
            self.table.settled_together(record.group, record.tx_id, halves, halves[0], len(halves))
        self._not_unique_ids.difference_update(halves)
        self.settled_ids.add(record)

    def _copied_half(self, record: CopiedHalf, now_ms: int) -> None:
        self.table.copied(record)
        self._add_keys_at(record.offset)

    def _half_batch(self, record: HalfBatch, now_ms: int) -> None:
        self.table.batch_prepared(record, now_ms)
        if record.batch.has_keys:
            topic, messages = keys_in(record.payload, record.batch.messages)
            self.keys.add_many(topic, record.offset, messages)

    def _copied_half_batch(self, record: CopiedHalfBatch, now_ms: int) -> None:
        self.table.copied(record)
        batch = record.half.batch
        if batch is not None and batch.has_keys:
            topic, messages = keys_in(self._log.half_batch_payload(record.offset), batch.messages)
            self.keys.add_many(topic, record.offset, messages)

    def _decided(self, record: Decided, now_ms: int) -> Iterator[None]:
        table = self.table
        position = record.offset
        by = record.decided_by
        done = 0
        for ref in record.refs:
            done += ref.messages + _HALF_BATCH_COST
            if done > _MESSAGES_AT_ONCE:
                done = 0
                yield
            table.settled(ref.half_index, ROW_COMMITTED, by, position, now_ms, ref.queue_offset, 0)
            if ref.queue_offset < 0:
                continue  # its messages are delayed: each gets its entry when it is released
            entries = queue_entries(
                self._entries_of(ref), ref.offset, visible_at=position, store_time_ms=now_ms, half_index=ref.half_index
            )
            for number, part in entries:
                self.queues.add_many(ref.topic_id, ref.queue_id, ref.queue_offset + number, part)
        for number, half_index in enumerate(record.lost):
            if number % _ROWS_AT_ONCE == 0:
                yield
            table.settled(half_index, ROW_ROLLED_BACK, by, position, now_ms, -1, 0)
        halves = (*[ref.half_index for ref in record.refs], *record.lost)
        for start in range(0, len(halves), _ROWS_AT_ONCE):
            yield
            table.settled_together(
                record.group, record.tx_id, halves[start : start + _ROWS_AT_ONCE], halves[0], len(halves)
            )
        self.settled_ids.add(record)

    def _entries_of(self, ref: BatchRef) -> memoryview:
        """The entries of a half batch that a verdict shows.

        A crash may interrupt a trim between the removals of two segments that this verdict ties together. Then a redo of the log alone
        reads the verdict without its half batch. The trim comes later in this log, and removes the places in the queue: nobody reads them.
        """
        try:
            return self._log.half_batch_entries(ref.offset)
        except BeforeLogStart:
            if not self._redoing:
                raise
            return memoryview(bytes(ref.messages * ENTRY_BYTES))

    def _copied_delayed(self, record: CopiedDelayed, now_ms: int) -> None:
        if record.half_index >= 0:
            self.table.moved(record.half_index, record.offset, record.message_bytes)
        self._add_keys_at(record.offset)

    def _delayed(self, record: DelayedRecord, now_ms: int) -> None:
        self.keys.add(record.message.topic, keys_of(record.message), record.offset)

    def _add_keys_at(self, offset: int) -> None:
        message = self._log.read_message(offset)
        self.keys.add(message.topic, keys_of(message), offset)

    def _released(self, record: Released, now_ms: int) -> None:
        for ref in record.refs:
            if ref.half_index >= 0:
                self.table.released(ref.half_index, ref.queue_offset)
            self.queues.add(ref.topic_id, ref.queue_id, ref.queue_offset, _released_entry(ref, record.offset, now_ms))

    def _checked(self, record: Checked, now_ms: int) -> None:
        self.table.checked(record.half_index, record.checks, record.next_check_at_ms)

    def _parked(self, record: Parked, now_ms: int) -> None:
        self.table.park(record.half_index, record.checks, PARKED_MS + record.because, record.decided_by)

    def _topic_set(self, record: TopicSet, now_ms: int) -> None:
        self._topics[record.topic_id] = TopicInfo(
            record.topic_id, record.name, record.read_queues, record.write_queues, record.permission
        )
        self._topics_changed = True

    def _topic_deleted(self, record: TopicDeleted, now_ms: int) -> None:
        if self._redoing:  # the names may be gone already, but not from the disk
            self._files.directory_changed(self._directory / "queues")
        self._topics.pop(record.topic_id, None)
        self._topics_changed = True
        self.queues.delete_topic(record.topic_id)

    def _trim(self, record: Trim, now_ms: int) -> None:
        self.log_start = self._trim_to = record.log_start
        if self._redoing:
            self._mark_directories_unsynced(every=True)

    def _nothing(self, record: Record, now_ms: int) -> None:
        pass

    _INDEX_BY_TYPE: Final[dict[type, Callable[..., None]]] = for_each_kind(
        "_INDEX_BY_TYPE in store/indexes.py",
        {
            HalfRecord: _half,
            Committed: _committed,
            MessageRecord: _message,
            RolledBack: _rolled_back,
            CopiedHalf: _copied_half,
            CopiedDelayed: _copied_delayed,
            DelayedRecord: _delayed,
            Released: _released,
            Checked: _checked,
            Parked: _parked,
            TopicSet: _topic_set,
            TopicDeleted: _topic_deleted,
            Trim: _trim,
            HalfBatch: _half_batch,
            CopiedHalfBatch: _copied_half_batch,
            Decided: _nothing,  # see ``staging``
            **dict.fromkeys(_NOT_INDEXED, _nothing),
        },
    )

    # --- recovery, checkpoints, trims

    def reset(self) -> None:
        """Remove all indexes. A redo from the log's start must follow before anybody reads."""
        self.queues.reset()
        self.table.reset()
        self.keys.reset()
        self.settled_ids.reset()
        self._topics.clear()
        self._topics_changed = True
        self.position = 0
        for name in _DIRECTORIES:
            self._files.create((-3, -3, _DIRECTORIES.index(name)), self._directory / name / _GENERATION_MARKER, 1)

    def cut(self, end: int, next_half_index: int) -> None:
        """End of the redo at the recovered end of the log: remove what lies after it.

        Raises:
            InvariantViolated: the redo went past ``end``.
        """
        if self.position > end:
            raise InvariantViolated(f"indexes stand at {self.position}, after the log's end {end}")
        self.flush()
        self.queues.cut(self.log_start)
        self.table.cut(next_half_index)
        self.keys.cut()
        self.settled_ids.cut()
        self.position = end
        self._halves_from = next_half_index
        self._redoing = False
        if self._topics_changed:
            self._write_topics()

    def rewrite_undecided(self, halves: Iterable[UndecidedHalf]) -> None:
        """Write the rows of all undecided halves from the recovered state: a redo knows only those that it read."""
        for count, half in enumerate(halves, 1):
            self.table.put_undecided(half)
            if count % _REDO_RECORDS == 0:
                self.table.flush()
        self.table.flush()

    def rewrite_topics(self, topics: Iterable[TopicInfo]) -> None:
        """Set all topics from the recovered state: after a trim the log alone does not name them all."""
        wanted = {topic.topic_id: topic for topic in topics}
        if wanted != self._topics or not self._disk.exists(self._directory / "topics.json"):
            self._topics = wanted
            self._write_topics()

    def sync(self) -> None:
        """Make durable what was flushed so far; on any thread. Then a checkpoint at or before that position may be written.

        Raises:
            OSError: write no checkpoint, and poison the store: what reached the disk is unknown.
        """
        self._files.sync()

    def write_late_topics(self) -> bool:
        """Write topics.json if it lags because there are many topics; on any thread. True: readers should read it again.

        Call it before ``sync``, and write the watermark page afterwards: readers read the topics when the page changes.

        Raises:
            OSError: it still lags; if the disk was full, retry later.
        """
        if not self._topics_changed or self._redoing:
            return False
        self._write_topics()
        for _ in range(_LATE_ROUNDS_MAX):
            if not self._topics_left:
                break
            self._write_topics()
        return True

    def close(self) -> None:
        """Write what is staged and close the files.

        Raises:
            OSError: staged entries could not be written; a start rebuilds them.
        """
        try:
            self.flush()
            self.write_late_topics()
        finally:
            self._files.close()

    # --- reading

    def find_by_key(self, topic_id: int, topic: str, key: str, messages_max: int) -> Steps[list[FoundMessage]]:
        """Visible messages of the topic whose UNIQ_KEY is ``key`` or whose KEYS contain it, newest first."""
        wanted = key.encode()
        found: dict[int, FoundMessage] = {}
        named = []
        for more in self.queues.find_key(topic_id, hash64(wanted)):
            named += more
            yield
        named.sort(key=lambda one: one[2].visible_at, reverse=True)
        for number, (queue_id, queue_offset, entry) in enumerate(named):
            if len(found) >= messages_max:
                break
            if not number % _READ_AT_ONCE:
                yield
            message = self._message_at(entry.offset)
            if message is not None and props.find(message.properties, props.UNIQ_KEY) == wanted:
                found[entry.offset] = FoundMessage(queue_id, queue_offset, entry, message)
        for offsets in self.keys.find(topic, key):
            yield
            for number, offset in enumerate(offsets):
                if len(found) >= messages_max:
                    break
                if not number % _READ_AT_ONCE:
                    yield
                message = self._message_at(offset) if offset not in found else None
                if message is None or message.topic != topic:
                    continue
                if wanted in (props.find(message.properties, props.KEYS) or b"").split(b" "):
                    place = yield from self.queues.find_offset(topic_id, message.queue_id, offset)
                    if place is not None:
                        found[offset] = FoundMessage(message.queue_id, place[0], place[1], message)
        newest_first = sorted(found.values(), key=lambda one: one.entry.visible_at, reverse=True)
        return newest_first[:messages_max]

    def _message_at(self, offset: int) -> StoredMessage | None:
        """The message in the record at ``offset``; None if it is past retention."""
        if offset < self.log_start:
            return None
        try:
            return self._log.read_message(offset)
        except BeforeLogStart:
            return None

    def topic_names(self, topic_ids: Iterable[int]) -> dict[int, str]:
        """The names of those topics that exist."""
        return {number: self._topics[number].name for number in topic_ids if number in self._topics}

    # --- topics file

    def _write_topics(self) -> None:
        with self._topics_lock:
            self._write_changed_topics()

    def _write_changed_topics(self) -> None:
        """Call it with the lock held."""
        # Changes made on another thread during the write are written the next time.
        self._topics_changed = self._topics_left = False
        topics = self._topics.copy()  # atomic in the interpreter: the writer's thread may change it meanwhile
        try:
            write_topics(self._disk, self._directory / "topics.json", self._store, topics.values())
        except BaseException:
            self._topics_changed = True
            raise
        self._files.directory_changed(self._directory)

    def _read_topics(self) -> None:
        """Read the file. A start does not depend on it: an unreadable file is written anew."""
        try:
            _, topics = read_topics(self._disk, self._directory / "topics.json")
        except (StoreDamaged, WrongVersion) as error:
            _logger.warning("topics.json is written anew: %s", error)
            self._topics_changed = True
        else:
            self._topics = {topic.topic_id: topic for topic in topics}


def _released_entry(ref: Ref, position: int, now_ms: int) -> bytes:
    half_index = ref.half_index if ref.half_index >= 0 else DELAYED
    return _pack_entry(ref.offset, ref.message_bytes, ref.tag_hash, position, now_ms, half_index, ref.key_hash)
