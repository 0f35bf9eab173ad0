"""``halfmq store verify``: check the whole store and report problems with a remedy. Read-only.

    log           every batch: header, checksum, the CRC of every body, the sequence of segments; references of verdicts lead to
                  halves of their own segment or to half batches, no half is settled twice, an operator's action follows the record of the
                  operator
    queues        every expected entry is at its place with the expected fields, and there are no others
    transactions  every row agrees with the log, or is newer
    keys          every token of KEYS is in the index, in log order
    settled_ids   every verdict of a transaction whose id an application chose is in the index, in log order, and nothing else is
    checkpoint    each slot, and its snapshot, byte by byte
    topics        the file is readable and contains the topics of the log

It works beside a running broker: it compares what is before the high watermark, where a broker changes only what time changes (rows are
settled, checks counted, old segments removed). It also checks the log after that position; a torn end there is only a note, since
a broker may be writing it, or the next start will cut it.

Damage of the log requires a backup. Any other damage does not, since everything else can be rebuilt from an undamaged log. If the log is
damaged as well, the remedy for the rest is to restore the log first.
"""

import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import HalfmqError, StoreDamaged, UsageError, WrongVersion
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import ITEM_HEAD_BYTES, item_places
from halfmq.model.placement import segment_start
from halfmq.model.records import (
    HALF_BATCH_PAYLOAD_AT,
    BatchRef,
    Committed,
    Compared,
    CoordinatorEpoch,
    Decided,
    DecidedBy,
    GroupDeleted,
    GroupSet,
    Half,
    HalfBatch,
    Kind,
    OffsetsCommitted,
    OperatorActed,
    OperatorAction,
    ProducerSet,
    QueryForgotten,
    Record,
    Ref,
    Released,
    RolledBack,
    SettingSet,
    TopicDeleted,
    TopicSet,
    Trim,
    UserSet,
)
from halfmq.model.records import Batch as RecordBatch
from halfmq.model.stored_message import AT_QUEUE_OFFSET, body_crc_of, body_place
from halfmq.runtime.disk import Disk, File, RealDisk, RealFile, scratch_directory
from halfmq.store.batch_codec import Header, decode_batch
from halfmq.store.checkpoint import Present, Slot, WholeSnapshot, read_checkpoint, read_snapshot
from halfmq.store.commit_log import BeforeLogStart, CommitLog
from halfmq.store.consume_queue import ConsumeQueues, QueueEntry, list_bases
from halfmq.store.identity import Identity, read_identity
from halfmq.store.indexes import Indexes
from halfmq.store.key_index import KeyIndex
from halfmq.store.layout import (
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    ROW_COMMITTED,
    ROW_EMPTY,
    ROW_ROLLED_BACK,
    ROW_UNDECIDED,
    SEGMENT_ENTRY_BYTES,
    TRANSACTION_FILE_ROWS,
    TRANSACTION_ROW,
    TRANSACTION_ROW_BYTES,
)
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, TornTail
from halfmq.store.open_files import FileKey, OpenFiles
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND
from halfmq.store.segment import SegmentFiles
from halfmq.store.settled_ids import SettledIds
from halfmq.store.topics_file import AT_ONCE_MAX, read_topics
from halfmq.store.transaction_table import TransactionRow, TransactionTable
from halfmq.store.two_slots import Unreadable
from halfmq.store.watermark_page import Watermark, read_watermark_page
from halfmq.store.whole_file import read_whole

#: Types of the record that directly follows an operator's action.
_ACTED: Final[dict[int, type | tuple[type, ...]]] = {
    OperatorAction.COMMIT: (Committed, Decided),
    OperatorAction.ROLL_BACK: RolledBack,
    OperatorAction.SET_PRODUCER: ProducerSet,
    OperatorAction.DELETE_TOPIC: TopicDeleted,
    OperatorAction.SET_TOPIC: TopicSet,
    OperatorAction.SET_GROUP: GroupSet,
    OperatorAction.RESET_OFFSET: OffsetsCommitted,
    OperatorAction.DELETE_GROUP: GroupDeleted,
    OperatorAction.FORGET_QUERY: QueryForgotten,
    OperatorAction.FORGET_COORDINATOR: CoordinatorEpoch,
    OperatorAction.FORGET_DAMAGE: Compared,
    OperatorAction.SET_USER: UserSet,
    OperatorAction.REMOVE_USER: UserSet,
    OperatorAction.SET_SETTING: SettingSet,
    OperatorAction.KICK_CLIENT: OffsetsCommitted,
}
_COUNTED: Final = (
    "batches", "records", "bodies", "body_bytes", "queue_entries", "rows", "keys", "settled_ids", "snapshots",
)  # fmt: skip
#: Maximum number of findings of one kind that are listed; the others are counted.
_LISTED_MAX: Final = 20
#: Number of attempts to list the log while a broker trims it.
_LIST_ATTEMPTS: Final = 5
#: Enough bytes of a record to find its message and half index.
_REF_LOOK_BYTES: Final = max(MESSAGE_AT_BY_KIND) + AT_QUEUE_OFFSET + 8

RESTORE: Final = (
    "stop the broker and restore this segment's file from a backup that was taken after the next segment began, or the "
    "whole directory from any backup; nothing else has these bytes"
)
SHORTER: Final = (
    "after a power loss with durability `memory` nothing has to be done: what followed is lost, and a start continues here; "
    "else restore the directory from a backup"
)
REPORT: Final = (
    "keep the directory and report it: the batch is whole, so it was written like this, and a backup has the same"
)
LOG_FIRST: Final = "first restore the log, then verify again: a difference from a damaged log may be no error"
REMAKE: Final = (
    "stop the broker, remove queues, transactions, keys, settled_ids, topics.json and checkpoint from shard-0, and start it: "
    "they are rebuilt from the log"
)
WRITTEN_ANEW: Final = "nothing to do: the next start writes it"
REDO_MORE: Final = "nothing to do: the next start redoes more of the log"


class Finding(NamedTuple):
    """One problem. ``damage`` False: a note, nothing is lost."""

    damage: bool
    part: str
    what: str
    remedy: str


class Report(NamedTuple):
    """The result of ``verify``: what was found, and how much was checked. Without findings the store is intact as far as checked."""

    findings: tuple[Finding, ...]
    #: What was checked: the names in ``_COUNTED``.
    counted: dict[str, int]
    #: The range of the log that was compared with the indexes.
    log_start: int
    position: int

    @property
    def damaged(self) -> bool:
        return any(finding.damage for finding in self.findings)


class _Findings:
    """Findings in order, the first few of each kind; the others are counted."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._seen: Counter[tuple[str, str]] = Counter()
        self._last: dict[tuple[str, str], Finding] = {}

    def damage(self, part: str, what: str, remedy: str) -> None:
        self._add(Finding(True, part, what, remedy))

    def note(self, part: str, what: str, remedy: str) -> None:
        self._add(Finding(False, part, what, remedy))

    def extend(self, others: "_Findings") -> None:
        """Append the findings of ``others``, in order."""
        for finding in others._findings:
            self._add(finding)
        for kind, count in others._seen.items():
            if count > _LISTED_MAX:
                self._seen[kind] += count - _LISTED_MAX
                self._last[kind] = others._last[kind]

    def _add(self, finding: Finding) -> None:
        kind = (finding.part, finding.remedy)
        self._seen[kind] += 1
        self._last[kind] = finding
        if self._seen[kind] <= _LISTED_MAX:
            self._findings.append(finding)

    def all(self) -> tuple[Finding, ...]:
        more = [
            self._last[kind]._replace(what=f"and {count - _LISTED_MAX} more, the last: {self._last[kind].what}")
            for kind, count in self._seen.items()
            if count > _LISTED_MAX
        ]
        found = (*self._findings, *more)
        if not any(finding.damage and finding.part == "log" for finding in found):
            return found
        return tuple(one._replace(remedy=LOG_FIRST) if one.remedy in (REMAKE, REDO_MORE) else one for one in found)


def verify_store(disk: Disk, directory: Path) -> Report:
    """Check everything in one pass over the log. Changes nothing.

    Raises:
        UsageError: there is no store in ``directory``.
        StoreDamaged, WrongVersion: ``store.json`` itself cannot be read; nothing else was checked.
    """
    identity = read_identity(disk, directory)
    if identity is None:
        raise UsageError(f"{directory} holds no store", hint="give the directory that `halfmq serve --data` got")
    for _ in range(_LIST_ATTEMPTS):
        try:
            return _Walk(disk, directory / "shard-0", identity).run()
        except FileNotFoundError:
            continue  # a running broker trimmed the log between listing and opening
    raise StoreDamaged(f"files of {directory} vanish while they are read", hint="stop the broker, then verify again")


class _Walk:
    def __init__(self, disk: Disk, shard: Path, identity: Identity) -> None:
        self._disk = disk
        self._shard = shard
        self._identity = identity
        self._findings = _Findings()
        self._counted = Counter(dict.fromkeys(_COUNTED, 0))
        self._segments = SegmentFiles(disk, shard / "log", identity.segment_bytes)
        numbers = self._segments.numbers()
        log_end = (max(numbers, default=0) + 1) * identity.segment_bytes
        self._reads = _Log(disk, self._segments, epoch=0, end=log_end, synced_position=log_end)
        self._log_start = numbers[0] * identity.segment_bytes if numbers else 0
        self._position = self._log_start
        #: (offset of the verdict, problem) of each reference to a place before the log: damage unless the verdict is trimmed as well.
        self._before_start: list[tuple[int, str]] = []

    def run(self) -> Report:
        slots = self._checkpoint()
        page = self._published()
        scan = LogScan(self._segments)
        durable = max([page.durable if page is not None else 0, *(slot.position for slot in slots)])
        if self._segments.numbers():
            with scratch_directory() as scratch:
                self._log(scan, durable, page, slots, scratch)
        elif durable or (page is not None and page.position):
            what = f"no segments in {self._shard / 'log'}, but a checkpoint or the high watermark is left"
            self._findings.damage("log", what, "restore the directory from a backup; nothing else has these bytes")
        for slot in slots:
            if slot.position > self._log_start and not scan.batch_ends_at(slot.position):
                what = f"a slot names log offset {slot.position}, where no batch ends"
                self._findings.damage(
                    "checkpoint", what, "restore the directory from a backup; a start refuses this one"
                )
        self._segments.close()
        return Report(self._findings.all(), dict(self._counted), self._log_start, self._position)

    # --- the log

    def _log(self, scan: LogScan, durable: int, page: Watermark | None, slots: tuple[Slot, ...], scratch: Path) -> None:
        rebuilding = page is not None and page.rebuilding
        below = page.position if page is not None and not rebuilding else None
        if rebuilding:
            what = "queues, transactions, keys and settled ids are being rebuilt from the log: not compared with it"
            self._findings.note(
                "published", what, "nothing to do: the broker that does it, or the next start, brings it to an end"
            )
        indexes = _IndexCheck(
            self._disk, self._shard, self._identity, self._findings, self._counted, self._reads, scratch
        )
        if not rebuilding:
            indexes.start(self._log_start, below)
            indexes.checkpoint_at = max((slot.position for slot in slots), default=0)
        for scanned in scan.from_batch(self._log_start, durable):
            if isinstance(scanned, Batch):
                header = scanned.header
                try:
                    records = decode_batch(scanned.view, scanned.place, header)
                except (StoreDamaged, WrongVersion) as error:
                    self._findings.damage("log", str(error), REPORT)
                    records = []
                self._counted["batches"] += 1
                self._counted["records"] += len(records)
                self._check_records(records)
                indexes.trims(records)  # also after the high watermark
                if below is None or header.offset < below:
                    if not rebuilding:
                        indexes.batch(header, records)
                    self._position = header.end
            else:
                self._end(scanned, below)
        if self._log_start > indexes.trimmed_to:
            what = f"the log begins at {self._log_start}, but only what lies before {indexes.trimmed_to} was trimmed"
            self._findings.damage("log", f"{what}: segments between are missing", RESTORE)
        for verdict_at, what in self._before_start:
            if verdict_at >= indexes.trimmed_to:
                self._findings.damage("log", what, REPORT)
        if page is not None and below is not None and page.durable <= self._position < below:
            what = f"the log ends at {self._position}, position {below} is published"
            self._findings.damage("log", what, SHORTER)
        position = self._position
        if not rebuilding:
            indexes.finish(position, below, lambda: not isinstance(next(iter(scan.from_batch(position, 0))), Batch))

    def _end(self, last: EndOfLog | TornTail | CorruptInterior, below: int | None) -> None:
        match last:
            case EndOfLog():
                return
            case TornTail(cut_at, _, why, whole):
                if below is not None and cut_at < below:
                    return  # reported as a log that ends before the high watermark
                what = f"torn end at {cut_at} ({why}), {whole} whole batches after it"
                self._findings.note(
                    "log", what, "nothing to do: it was never acknowledged, a running broker or a start settles it"
                )
            case CorruptInterior(at, file, why, position):
                page = read_watermark_page(self._disk, self._shard / "published")
                if below is not None and at >= below and isinstance(page, Watermark) and page.position > below:
                    return  # a broker is writing there
                self._findings.damage(
                    "log", f"{file} at log offset {at}: {why}; the log was durable to {position}", RESTORE
                )

    def _check_records(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, OperatorActed):
                self._check_acted(record, records)
            message = getattr(record, "message", None)
            if message is not None:
                self._counted["bodies"] += 1
                self._counted["body_bytes"] += len(message.body)
            if isinstance(record, Committed | Released):
                for ref in record.refs:
                    self._check_ref(record, ref)
            if isinstance(record, HalfBatch):
                self._check_half_batch(record)
            if isinstance(record, Decided):
                for batch_ref in record.refs:
                    self._check_batch_ref(record, batch_ref)

    def _check_acted(self, acted: OperatorActed, records: list[Record]) -> None:
        """The record after an operator's record must be the action, in the same batch."""
        what = f"the record at {acted.offset} says who did {acted.action} to {acted.subject!r}"
        following = next((record for record in records if record.offset == acted.offset + acted.size), None)
        if acted.action not in _ACTED:
            return  # an action that a later version added
        if not isinstance(following, _ACTED[acted.action]):
            there = "nothing" if following is None else f"a {type(following).__name__}"
            self._findings.damage("log", f"{what}, but is followed by {there}", REPORT)
        elif isinstance(following, Committed | RolledBack | Decided) and (
            following.tx_id != acted.subject or following.decided_by != DecidedBy.OPERATOR
        ):
            by = following.decided_by
            self._findings.damage(
                "log", f"{what}, but is followed by the verdict of {following.tx_id!r}, decided by {by}", REPORT
            )

    def _check_half_batch(self, record: HalfBatch) -> None:
        """The payload must have its checksum, and each body the CRC that its message states."""
        what = f"the half batch at {record.offset}"
        if crc32(record.payload) != record.batch.checksum:
            self._findings.damage("log", f"{what}: its payload does not have the checksum that it states", RESTORE)
            return
        for from_start, message_bytes in item_places(record.payload, record.batch.messages):
            at = from_start - HALF_BATCH_PAYLOAD_AT + ITEM_HEAD_BYTES
            place = body_place(record.payload, at)
            self._counted["bodies"] += 1
            self._counted["body_bytes"] += place.end - place.start
            wrong = place.end > at + message_bytes
            if wrong or body_crc_of(record.payload[place.start : place.end]) != place.crc:
                text = f"{what}: the body of the message {from_start} bytes after its start does not have the CRC that it states"
                self._findings.damage("log", text, RESTORE)

    def _check_batch_ref(self, record: Decided, ref: BatchRef) -> None:
        """A reference must lead to a half batch of the same size, in this segment or an earlier one that is still there."""
        what = f"the verdict at {record.offset} refers to log offset {ref.offset}"
        try:
            head = self._reads.half_batch_head_at(ref.offset)
            found = self._reads.record_bytes(ref.offset), head.messages, head.half_index
        except (LookupError, StoreDamaged):
            found = None
        if found != (ref.record_bytes, ref.messages, ref.half_index):
            text = f"{what}: no half batch {ref.half_index} of {ref.messages} messages and {ref.record_bytes} bytes lies there"
            if ref.offset < self._log_start:
                self._before_start.append((record.offset, text))
            else:
                self._findings.damage("log", text, REPORT)

    def _check_ref(self, record: Committed | Released, ref: Ref) -> None:
        """The references of a verdict must lead to messages of its own segment."""
        size = self._identity.segment_bytes
        what = f"the verdict at {record.offset} refers to log offset {ref.offset}"
        if segment_start(ref.offset, size) != segment_start(record.offset, size):
            self._findings.damage("log", f"{what}, which lies in another segment", REPORT)
            return
        segment = self._segments.get(ref.offset // size)
        assert segment is not None
        place = ref.offset % size
        head = segment.read(place, _REF_LOOK_BYTES)
        kind = head[0] if head else 0
        message_at = MESSAGE_AT_BY_KIND[kind]
        length = int.from_bytes(head[4:8], "big") - message_at
        if not message_at or length != ref.message_bytes:
            self._findings.damage("log", f"{what}: no message of {ref.message_bytes} bytes lies there", REPORT)
        elif kind in (Kind.HALF, Kind.COPIED_HALF):
            at = message_at + AT_QUEUE_OFFSET
            half_index = int.from_bytes(head[at : at + 8], "big", signed=True)
            if half_index != ref.half_index:
                self._findings.damage(
                    "log", f"{what} as half {ref.half_index}, but half {half_index} is stored there", REPORT
                )

    # --- what only accelerates

    def _checkpoint(self) -> tuple[Slot, ...]:
        found = read_checkpoint(self._disk, self._shard / "checkpoint", self._identity.store_id)
        if isinstance(found, Unreadable):
            self._findings.damage("checkpoint", found.why, REDO_MORE)
        if not isinstance(found, Present):
            return ()
        for slot in found.slots:
            snapshot = read_snapshot(self._disk, self._shard / "snapshots", self._identity.store_id, slot.position)
            if isinstance(snapshot, WholeSnapshot) and snapshot.crc == slot.snapshot_crc:
                self._counted["snapshots"] += 1
            elif slot is found.slots[0]:
                why = snapshot.why if isinstance(snapshot, Unreadable) else "missing, or not the one that was taken"
                self._findings.damage("checkpoint", f"the snapshot of log offset {slot.position}: {why}", REDO_MORE)
        return found.slots

    def _published(self) -> Watermark | None:
        page = read_watermark_page(self._disk, self._shard / "published")
        if isinstance(page, Unreadable):
            self._findings.note("published", page.why, WRITTEN_ANEW)
        if not isinstance(page, Watermark):
            return None
        if page.store != self._identity.store_id:
            what = f"the watermark page is of store {page.store.hex()}"
            self._findings.damage("published", what, WRITTEN_ANEW)
            return None
        return page


#: For problems that no trim explains.
_NO_SEGMENT: Final = 1 << 62
#: After every log offset.
_NO_BOUND: Final = (1 << 63) - 1
_NO_ROW: Final = bytes(TRANSACTION_ROW_BYTES)
#: What a row says of its half from the first record on, and of the verdict.
_OF_HALF: Final = ("original_offset", "message_bytes", "topic_id", "queue_id", "number", "group_hash", "id_hash")
_OF_VERDICT: Final = ("state", "decided_by", "verdict_position", "settled_at_ms", "due_ms")


class _Log(CommitLog):
    """The log of the store, in which each verdict leads to a half batch or to one that was trimmed: ``_check_batch_ref`` reports others."""

    def half_batch_entries(self, offset: int) -> memoryview:
        try:
            return super().half_batch_entries(offset)
        except (LookupError, StoreDamaged) as error:
            raise BeforeLogStart(str(error)) from error


class _ComparedQueues(ConsumeQueues):
    """The queues of the store: entries that are added are compared with the ones that are there, and nothing is written."""

    def __init__(self, disk: Disk, shard: Path, files: OpenFiles, findings: _Findings, segment_bytes: int) -> None:
        super().__init__(disk, shard / "queues", files)
        self._findings = findings
        self._segment_bytes = segment_bytes
        self._added: dict[tuple[int, int], list[bytes]] = {}
        #: (topic, queue) -> next queue offset according to the log.
        self.ends: dict[tuple[int, int], int] = {}
        #: Problems by topic; missing entries also by segment, since a trim explains them.
        self.wrong: dict[tuple[int, int], _Findings] = {}
        self.compared = 0

    def add(self, topic_id: int, queue_id: int, queue_offset: int, entry: bytes) -> None:
        """Compare one entry, or several, by the next ``flush``."""
        queue = topic_id, queue_id
        end = self.ends.get(queue, queue_offset)
        if queue_offset != end:
            self._compare(queue)
            by = QUEUE_ENTRY.unpack_from(entry)[3]
            what = f"topic {topic_id} queue {queue_id} entry {queue_offset}: the record at {by} should give queue offset {end}"
            self._findings.damage("log", what, REPORT)
        self.ends[queue] = queue_offset + len(entry) // QUEUE_ENTRY_BYTES
        self._added.setdefault(queue, []).append(entry)

    def add_many(self, topic_id: int, queue_id: int, queue_offset: int, entries: bytes) -> None:
        self.add(topic_id, queue_id, queue_offset, entries)

    def flush(self) -> None:
        for queue in list(self._added):
            self._compare(queue)

    def delete_topic(self, topic_id: int) -> None:
        """Forget its problems: it has no queues to compare."""
        for of_queue in (self._added, self.ends, self.wrong):
            for queue in [queue for queue in of_queue if queue[0] == topic_id]:
                del of_queue[queue]

    def _compare(self, queue: tuple[int, int]) -> None:
        made = b"".join(self._added.pop(queue, ()))
        first = self.ends[queue] - len(made) // QUEUE_ENTRY_BYTES
        self.compared += len(made) // QUEUE_ENTRY_BYTES
        there = self.read_encoded(*queue, first, self.ends[queue] - first, _NO_BOUND).data
        if there == made:
            return
        for number, expected in enumerate(map(QueueEntry._make, QUEUE_ENTRY.iter_unpack(made))):
            if not expected.message_bytes:
                continue  # its half batch is gone: by an interrupted trim, or it is reported as damage of the log
            where = f"topic {queue[0]} queue {queue[1]} entry {first + number}"
            entry = there[number * QUEUE_ENTRY_BYTES : (number + 1) * QUEUE_ENTRY_BYTES]
            if not entry:
                segment = segment_start(expected.visible_at, self._segment_bytes)
                what = f"{where} is missing; the record at {expected.visible_at} calls for it"
                self.entry_wrong(queue[0], what, segment)
            elif wrong := _differences(QueueEntry._make(QUEUE_ENTRY.unpack(entry)), expected._asdict()):
                self.entry_wrong(queue[0], f"{where} says {wrong}")

    def entry_wrong(self, topic_id: int, what: str, segment: int = _NO_SEGMENT) -> None:
        self.wrong.setdefault((topic_id, segment), _Findings()).damage("queues", what, REMAKE)


class _ComparedFiles(OpenFiles):
    """Key index and settled ids of the store: what is written is compared with what is there."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, writable=False)
        #: File -> the bytes that the log gives it; and its first problem.
        self.ends: dict[Path, int] = {}
        self.wrong: dict[Path, str] = {}

    def create(self, key: FileKey, path: Path, length: int) -> File:
        try:
            return self.get(key, path)
        except FileNotFoundError:
            return _NoFile(path)

    def write(self, file: File, at: int, parts: list[bytes]) -> None:
        made = b"".join(parts)
        there = file.read(at, len(made))
        self.ends[file.path] = at + len(made)
        if there == made or file.path in self.wrong:
            return
        places = range(0, len(made), SEGMENT_ENTRY_BYTES)
        place = next(at for at in places if there[at : at + SEGMENT_ENTRY_BYTES] != made[at : at + SEGMENT_ENTRY_BYTES])
        offset = int.from_bytes(made[place + 8 : place + SEGMENT_ENTRY_BYTES], "big")
        start = int(file.path.stem)
        self.wrong[file.path] = (
            f"the index of segment {start} does not name the message at {offset} where it should"
            if file.path.parent.name == "keys"
            else f"the settled ids of segment {start} do not name the verdict at {offset} where they should"
        )


class _NoFile(RealFile):
    """A file that is not there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, -1)

    def read(self, at: int, length: int) -> bytes:
        return b""


class _RebuiltTable(TransactionTable):
    """The transaction table that the log gives, in a temporary directory."""

    def __init__(self, directory: Path, findings: _Findings) -> None:
        super().__init__(RealDisk(), directory, OpenFiles(RealDisk()))
        self._findings = findings
        self.verdicts = 0
        #: Undecided halves whose row says how often their transaction was checked. Rows of its other halves are updated only at a start.
        self.checked_halves: set[int] = set()

    def first_half_of(self, half: Half, group: str, tx_id: str) -> int:
        # Unknown for half batches: the first one of several attempts may lie before the log.
        return super().first_half_of(half, group, tx_id) if half.batch is None else -1

    def checked(self, half_index: int, checks: int, next_check_at_ms: int) -> None:
        self.checked_halves.add(half_index)
        super().checked(half_index, checks, next_check_at_ms)

    def settled(
        self, half_index: int, state: int, decided_by: int, position: int, now_ms: int, queue_offset: int, due_ms: int
    ) -> None:
        self.verdicts += 1
        self.checked_halves.discard(half_index)
        row = self.row(half_index)
        if row is not None and row.state != ROW_UNDECIDED and row.verdict_position != position:
            what = f"half {half_index} is settled twice, at {row.verdict_position} and at {position}"
            self._findings.damage("log", what, "a transaction has one verdict: " + REPORT)
        super().settled(half_index, state, decided_by, position, now_ms, queue_offset, due_ms)


class _IndexCheck:
    """Makes the indexes again from the records, with the store's own ``Indexes``, and compares.

    Entries of queues, keys and settled ids never change, so each is compared when it is made. Rows of the transaction table change: they
    are made in ``scratch`` and compared at the end.
    """

    def __init__(
        self,
        disk: Disk,
        shard: Path,
        identity: Identity,
        findings: _Findings,
        counted: Counter[str],
        log: CommitLog,
        scratch: Path,
    ) -> None:
        self._disk = disk
        self._shard = shard
        self._findings = findings
        self._counted = counted
        size = identity.segment_bytes
        self._files = OpenFiles(disk, writable=False)
        self._queues = _ComparedQueues(disk, shard, self._files, findings, size)
        self._table = TransactionTable(disk, shard / "transactions", self._files)
        self._scratch = scratch
        self._rebuilt = _RebuiltTable(scratch, findings)
        self._compared = _ComparedFiles(disk)
        self._indexes = Indexes(
            disk,
            shard,
            self._compared,
            queues=self._queues,
            table=self._rebuilt,
            keys=KeyIndex(disk, shard / "keys", self._compared, size),
            settled_ids=SettledIds(disk, shard / "settled_ids", self._compared, size),
            store=identity.store_id.hex(),
            log=log,
        )
        #: Topic id -> (name, log offset of its record).
        self._named: dict[int, tuple[str, int]] = {}
        #: Topics created after it may still be missing in topics.json, if there are many.
        self.checkpoint_at = 0
        #: Indexes reflect a TRIM before the segments are removed: the log before this may exist while its entries do not.
        self.trimmed_to = 0
        self._bound = _NO_BOUND
        self._log_start = 0

    def start(self, log_start: int, below: int | None) -> None:
        self._bound = below if below is not None else _NO_BOUND
        self._log_start = log_start
        self._queues.load(self._bound, log_start)
        needed = len(self._table.bases()) * TRANSACTION_ROW_BYTES * TRANSACTION_FILE_ROWS
        if RealDisk().free_bytes(self._scratch) < needed:
            raise UsageError(
                f"the transaction table is made again in {self._scratch.parent}, which needs up to {needed >> 20} MiB there",
                hint="set TMPDIR to a directory with more space",
            )

    def trims(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, Trim):
                self.trimmed_to = max(self.trimmed_to, record.log_start)

    def batch(self, header: Header, records: list[Record]) -> None:
        try:
            # Without trims: what they remove is compared where it is still there.
            kept = [record for record in records if type(record) is not Trim]
            self._indexes.redo(RecordBatch(header.offset, header.end, header.broker_time_ms, kept))
        except (LookupError, ValueError, struct.error, StoreDamaged) as error:
            what = f"the entries of the batch at {header.offset} cannot be made: {error}"
            self._findings.damage("log", what, RESTORE)
        for record in records:
            if isinstance(record, TopicSet):
                self._named[record.topic_id] = (record.name, record.offset)
            elif isinstance(record, TopicDeleted):
                self._named.pop(record.topic_id, None)

    def finish(self, position: int, below: int | None, log_ends: Callable[[], bool]) -> None:
        """Compare the rest, and check that there is nothing that the log does not require.

        ``log_ends``: whether nothing came after ``position`` meanwhile, so that rows cannot be newer than what was read.
        """
        self._indexes.flush()
        for (topic_id, queue_id), end in self._queues.ends.items():
            has = self._queues.bounds(topic_id, queue_id)[1]
            if below is not None and has != end:
                self._queues.entry_wrong(
                    topic_id, f"topic {topic_id} queue {queue_id} ends at {has}, the log says {end}"
                )
        for (_, segment), wrong in self._queues.wrong.items():
            if segment >= self.trimmed_to:
                self._findings.extend(wrong)
        self._no_more_ids(min(position, self._bound))
        for path, what in self._compared.wrong.items():
            if int(path.stem) >= self.trimmed_to:
                self._findings.damage(path.parent.name, what, REMAKE)
        self._rows(position, log_ends)
        self._topics()
        self._counted["queue_entries"] += self._queues.compared
        for path, end in self._compared.ends.items():
            self._counted[path.parent.name] += end // SEGMENT_ENTRY_BYTES
        self._files.close()
        self._compared.close()

    # --- transactions

    def _rows(self, position: int, log_ends: Callable[[], bool]) -> None:
        self._counted["rows"] += self._rebuilt.verdicts
        for base in self._rebuilt.bases():
            made = self._rebuilt.read_encoded(base, TRANSACTION_FILE_ROWS)
            there = self._table.read_encoded(base, TRANSACTION_FILE_ROWS)
            for at in range(0, len(made), TRANSACTION_ROW_BYTES):
                row = made[at : at + TRANSACTION_ROW_BYTES]
                if row == _NO_ROW:
                    continue
                self._counted["rows"] += 1
                found = there[at : at + TRANSACTION_ROW_BYTES]
                if found != row:
                    half_index = base + at // TRANSACTION_ROW_BYTES
                    self._row(half_index, _row_of(row), _row_of(found.ljust(len(row), b"\0")), position, log_ends)

    def _row(
        self, half_index: int, made: TransactionRow, found: TransactionRow, position: int, log_ends: Callable[[], bool]
    ) -> None:
        """Compare a row with the one that the log gives, which may lack what was before the log, and what came after ``position``.

        A start writes the rows of undecided transactions anew, so what it may put there is not compared: times of the next check, numbers
        of halves, and the time of the transaction instead of this half.
        """
        what = []
        if found.state == ROW_EMPTY:
            # A broker removes files of the table only after the segments with their verdicts.
            if made.state != ROW_EMPTY and not 0 < made.verdict_position < self.trimmed_to:
                what.append(f"the row of half {half_index} is missing")
        elif made.state == ROW_UNDECIDED and found.state != ROW_UNDECIDED and found.verdict_position < position:
            what.append(f"half {half_index} is undecided in the log, its row has a verdict at {found.verdict_position}")
        else:
            wrong = _differences(found, self._expected(half_index, made, found, position))
            if wrong:
                what.append(f"the row of half {half_index} says {wrong}")
            if made.original_offset and found.prepared_at_ms > made.prepared_at_ms:
                came, says = made.prepared_at_ms, found.prepared_at_ms
                what.append(f"half {half_index} came at {came}, its row says prepared at {says}")
            if made.current_offset and made.current_offset != found.current_offset < position:
                what.append(f"half {half_index} lies at {made.current_offset}, its row says {found.current_offset}")
            is_counted = made.first_half == half_index or half_index in self._rebuilt.checked_halves
            if made.state == found.state == ROW_UNDECIDED and is_counted and made.checks != found.checks and log_ends():
                what.append(f"half {half_index} was checked {made.checks} times, its row says {found.checks}")
        for one in what:
            self._findings.damage("transactions", one, REMAKE)

    def _expected(self, half_index: int, made: TransactionRow, found: TransactionRow, position: int) -> dict[str, int]:
        names = list(_OF_HALF) if made.original_offset else []  # else only its verdict is in the log
        if made.original_offset and 0 <= made.first_half != half_index:
            names.append("first_half")
        if made.state in (ROW_COMMITTED, ROW_ROLLED_BACK):
            names += _OF_VERDICT
        # Not visible in the log yet: it may be in the row. 0 in a row of which only this is known: it was never set.
        if made.state == ROW_ROLLED_BACK or made.queue_offset >= (made.state == ROW_EMPTY):
            names.append("queue_offset")
        if found.current_offset >= position:
            names = [name for name in names if name != "message_bytes"]
        return {name: getattr(made, name) for name in names}

    # --- settled ids and topics

    def _no_more_ids(self, below: int) -> None:
        """Check that no file has entries before ``below`` beside the compared ones."""
        directory = self._shard / "settled_ids"
        for start in list_bases(self._disk, directory, ".ids"):
            path = directory / f"{start:020d}.ids"
            at = self._compared.ends.get(path, 0)
            data = read_whole(self._disk, path) or b""
            position = int.from_bytes(data[at + 8 : at + SEGMENT_ENTRY_BYTES], "big")
            if start >= self._log_start and 0 < position < below:
                what = f"the settled ids of segment {start} name a verdict at {position}, where the log has none"
                self._compared.wrong.setdefault(path, what)

    def _topics(self) -> None:
        try:
            _, topics = read_topics(self._disk, self._shard / "topics.json")
        except HalfmqError as error:
            self._findings.damage("topics", str(error), WRITTEN_ANEW)
            return
        has = {topic.topic_id: topic.name for topic in topics}
        many = len(has.keys() | self._named.keys()) > AT_ONCE_MAX
        for topic_id, (name, offset) in self._named.items():
            if many and offset >= self.checkpoint_at:
                continue
            if has.get(topic_id) != name:
                what = f"topics.json does not name topic {topic_id}, {name!r}"
                self._findings.damage("topics", what, WRITTEN_ANEW)


def _row_of(row: bytes) -> TransactionRow:
    return TransactionRow._make(TRANSACTION_ROW.unpack(row))


def _differences(found: QueueEntry | TransactionRow, expected: dict[str, int]) -> str:
    """The fields of ``found`` that differ from ``expected``; empty if none does."""
    return ", ".join(
        f"{name} {getattr(found, name)} instead of {value}"
        for name, value in expected.items()
        if getattr(found, name) != value
    )
