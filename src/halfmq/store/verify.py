"""``halfmq store verify``: check the whole store and report problems with a remedy. Read-only.

    log           every batch: header, checksum, the CRC of every body, the sequence of segments; references of verdicts lead to
                  halves of their own segment or to half batches, no half is settled twice, an operator's action follows the record of the operator
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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import HalfmqError, StoreDamaged, UsageError, WrongVersion
from halfmq.model import properties as props
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import ENTRY, ENTRY_BYTES, ITEM_HEAD_BYTES, item_places
from halfmq.model.ids import hash64
from halfmq.model.message_facts import tag_hashes
from halfmq.model.placement import segment_start
from halfmq.model.records import (
    HALF_BATCH_PAYLOAD_AT,
    MESSAGE_AT,
    Base,
    BatchRef,
    Checked,
    Committed,
    Compared,
    CoordinatorEpoch,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    DecidedBy,
    DelayedRecord,
    EpochStarted,
    GroupDeleted,
    GroupSet,
    HalfBatch,
    HalfRecord,
    Kind,
    MessageRecord,
    OffsetsCommitted,
    OperatorActed,
    OperatorAction,
    Parked,
    ProducerSet,
    QueryForgotten,
    Record,
    Ref,
    Released,
    RolledBack,
    TopicDeleted,
    TopicSet,
    Trim,
    for_each_kind,
)
from halfmq.model.stored_message import AT_QUEUE_OFFSET, StoredMessage, body_crc_of
from halfmq.runtime.disk import Disk
from halfmq.store.batch_codec import decode_batch
from halfmq.store.checkpoint import Present, Slot, read_checkpoint
from halfmq.store.consume_queue import ConsumeQueues, QueueEntry, list_bases
from halfmq.store.identity import Identity, read_identity
from halfmq.store.key_index import key_hashes, keys_of
from halfmq.store.layout import (
    DELAYED,
    KEY_ENTRY,
    NO_HALF,
    ROW_COMMITTED,
    ROW_ROLLED_BACK,
    ROW_UNDECIDED,
    SETTLED_ID_ENTRY,
)
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, TornTail
from halfmq.store.open_files import OpenFiles
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND, HalfBatchHead, body_place, half_batch_head
from halfmq.store.segment import SegmentFiles
from halfmq.store.settled_ids import id_hash, is_chosen
from halfmq.store.snapshot import WholeSnapshot, read_snapshot
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
}
#: Maximum number of findings of one kind that are listed; the others are counted.
_TOLD_MAX: Final = 20
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
    #: Number of checked batches, records, bodies, body_bytes, queue_entries, rows, keys, settled_ids, snapshots.
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
            if count > _TOLD_MAX:
                self._seen[kind] += count - _TOLD_MAX
                self._last[kind] = others._last[kind]

    def _add(self, finding: Finding) -> None:
        kind = (finding.part, finding.remedy)
        self._seen[kind] += 1
        self._last[kind] = finding
        if self._seen[kind] <= _TOLD_MAX:
            self._findings.append(finding)

    def all(self) -> tuple[Finding, ...]:
        more = [
            self._last[kind]._replace(what=f"and {count - _TOLD_MAX} more, the last: {self._last[kind].what}")
            for kind, count in self._seen.items()
            if count > _TOLD_MAX
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
        self._counted: Counter[str] = Counter(
            batches=0,
            records=0,
            bodies=0,
            body_bytes=0,
            queue_entries=0,
            rows=0,
            keys=0,
            settled_ids=0,
            snapshots=0,
        )
        self._segments = SegmentFiles(disk, shard / "log", identity.segment_bytes)
        numbers = self._segments.numbers()
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
            self._log(scan, durable, page, slots)
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

    def _log(self, scan: LogScan, durable: int, page: Watermark | None, slots: tuple[Slot, ...]) -> None:
        rebuilding = page is not None and page.rebuilding
        below = page.position if page is not None and not rebuilding else None
        if rebuilding:
            what = "queues, transactions, keys and settled ids are being rebuilt from the log: not compared with it"
            self._findings.note(
                "published", what, "nothing to do: the broker that does it, or the next start, brings it to an end"
            )
        indexes = _IndexCheck(self._disk, self._shard, self._identity, self._findings, self._counted, self._entries_of)
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
                        indexes.batch(header.broker_time_ms, records)
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
        if crc32(record.payload) != record.checksum:
            self._findings.damage("log", f"{what}: its payload does not have the checksum that it states", RESTORE)
            return
        for from_start, message_bytes in item_places(record.payload, record.messages):
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
        found = self._half_batch_at(ref.offset)
        expected = ref.record_bytes, ref.messages, ref.half_index
        if found is None or (found[0], found[1].messages, found[1].half_index) != expected:
            text = f"{what}: no half batch {ref.half_index} of {ref.messages} messages and {ref.record_bytes} bytes lies there"
            if ref.offset < self._log_start:
                self._before_start.append((record.offset, text))
            else:
                self._findings.damage("log", text, REPORT)

    def _half_batch_at(self, offset: int) -> tuple[int, HalfBatchHead] | None:
        """(size, head) of the half batch record at ``offset``; None if there is none."""
        segment = self._segments.get(offset // self._identity.segment_bytes)
        if segment is None or offset < self._log_start:
            return None
        raw = segment.read(offset % self._identity.segment_bytes, HALF_BATCH_PAYLOAD_AT)
        if len(raw) < HALF_BATCH_PAYLOAD_AT or raw[0] not in (Kind.HALF_BATCH, Kind.COPIED_HALF_BATCH):
            return None
        return int.from_bytes(raw[4:8], "big"), half_batch_head(raw, 0)

    def _entries_of(self, offset: int) -> bytes:
        """The entries of the half batch at ``offset``; b"" if there is none, which ``_check_batch_ref`` reports."""
        found = self._half_batch_at(offset)
        if found is None:
            return b""
        length = found[1].messages * ENTRY_BYTES
        start = offset % self._identity.segment_bytes + HALF_BATCH_PAYLOAD_AT + found[1].payload_bytes - length
        segment = self._segments.get(offset // self._identity.segment_bytes)
        entries = segment.read(start, length) if segment is not None else b""
        return entries if len(entries) == length else b""

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


class _IndexCheck:
    """Compares the indexes with the records, batch by batch."""

    def __init__(
        self,
        disk: Disk,
        shard: Path,
        identity: Identity,
        findings: _Findings,
        counted: Counter[str],
        entries_of: Callable[[int], bytes],
    ) -> None:
        """``entries_of``: the entries of the half batch at a log offset, ``b""`` if there is none."""
        self._disk = disk
        self._shard = shard
        self._identity = identity
        self._findings = findings
        self._counted = counted
        self._entries_of = entries_of
        files = OpenFiles(disk, writable=False)
        self._files = files
        self._queues = ConsumeQueues(disk, shard / "queues", files)
        self._table = TransactionTable(disk, shard / "transactions", files)
        #: (topic, queue) -> next queue offset according to the log.
        self._ends: dict[tuple[int, int], int] = {}
        #: Problems of entries by topic, since a topic that is deleted later has no queues to compare; missing entries also by segment.
        self._wrong: dict[tuple[int, int], _Findings] = {}
        self._deleted: set[int] = set()
        #: Topic id -> (name, log offset of its record).
        self._named: dict[int, tuple[str, int]] = {}
        #: Topics created after it may still be missing in topics.json, if there are many.
        self.checkpoint_at = 0
        self._undecided: set[int] = set()
        #: (group, id) -> half index of the first half, for transactions of several halves whose first half was read.
        self._firsts: dict[tuple[str, str], int] = {}
        #: (group, id) of an undecided transaction -> (first half, number of checks) of its last record. Rows of its other halves are updated only
        #: at a start.
        self._checks: dict[tuple[str, str], tuple[int, int]] = {}
        self._settled: dict[int, int] = {}
        self._key_data: dict[int, bytes] = {}
        self._key_at: Counter[int] = Counter()
        #: By segment.
        self._keys_wrong: dict[int, str] = {}
        #: As for the keys, of the settled ids.
        self._id_data: dict[int, bytes] = {}
        self._id_at: Counter[int] = Counter()
        self._ids_wrong: dict[int, str] = {}
        #: Indexes reflect a TRIM before the segments are removed: the log before this may exist while its entries do not.
        self.trimmed_to = 0
        self._bound = 1 << 62
        self._log_start = 0

    def start(self, log_start: int, below: int | None) -> None:
        self._bound = below if below is not None else 1 << 62
        self._log_start = log_start
        self._queues.load(self._bound, log_start)

    def trims(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, Trim):
                self.trimmed_to = max(self.trimmed_to, record.log_start)

    def batch(self, now_ms: int, records: list[Record]) -> None:
        for record in records:
            check = self._CHECKS.get(type(record))
            if check is not None:
                check(self, record, now_ms)

    def finish(self, position: int, below: int | None, log_ends: Callable[[], bool]) -> None:
        """Check that there is nothing that the log does not require; what it requires was checked on the way.

        ``log_ends``: whether nothing came after ``position`` meanwhile, so that rows cannot be newer than what was read.
        """
        for (topic_id, queue_id), end in self._ends.items():
            has = self._queues.bounds(topic_id, queue_id)[1]
            if below is not None and has != end:
                self._entry_wrong(topic_id, f"topic {topic_id} queue {queue_id} ends at {has}, the log says {end}")
        for (topic_id, segment), wrong in self._wrong.items():
            if topic_id not in self._deleted and segment >= self.trimmed_to:
                self._findings.extend(wrong)
        for segment, what in self._keys_wrong.items():
            if segment >= self.trimmed_to:
                self._findings.damage("keys", what, REMAKE)
        self._no_more_ids(min(position, self._bound))
        for segment, what in self._ids_wrong.items():
            if segment >= self.trimmed_to:
                self._findings.damage("settled_ids", what, REMAKE)
        for half_index in sorted(self._undecided):
            row = self._table.row(half_index)
            if row is not None and row.state != ROW_UNDECIDED and row.verdict_position < position:
                what = f"half {half_index} is undecided in the log, its row has a verdict at {row.verdict_position}"
                self._findings.damage("transactions", what, REMAKE)
        for half_index, checks in self._checks.values():
            row = self._table.row(half_index)
            if row is not None and row.state == ROW_UNDECIDED and row.checks != checks and log_ends():
                what = f"half {half_index} was checked {checks} times, its row says {row.checks}"
                self._findings.damage("transactions", what, REMAKE)
        self._topics()
        self._files.close()

    # --- queues

    def _plain(self, record: MessageRecord, now_ms: int) -> None:
        message = record.message
        tag = props.find(message.properties, props.TAGS)
        entry = QueueEntry(
            record.offset,
            record.size - MESSAGE_AT,
            tag_hashes[tag or b""],
            record.offset,
            now_ms,
            NO_HALF,
            hash64(record.unique_id.encode()) if record.unique_id else 0,
        )
        self._entry(record.topic_id, message.queue_id, message.queue_offset, entry)
        self._keys(message, record.offset)

    def _ref_entry(self, ref: Ref, position: int, now_ms: int) -> None:
        half_index = ref.half_index if ref.half_index >= 0 else DELAYED
        entry = QueueEntry(ref.offset, ref.message_bytes, ref.tag_hash, position, now_ms, half_index, ref.key_hash)
        self._entry(ref.topic_id, ref.queue_id, ref.queue_offset, entry)

    def _entry(self, topic_id: int, queue_id: int, queue_offset: int, expected: QueueEntry) -> None:
        self._counted["queue_entries"] += 1
        where = f"topic {topic_id} queue {queue_id} entry {queue_offset}"
        next_offset = self._ends.get((topic_id, queue_id), queue_offset)
        if queue_offset != next_offset:
            what = f"{where}: the record at {expected.visible_at} should give queue offset {next_offset}"
            self._findings.damage("log", what, REPORT)
        self._ends[(topic_id, queue_id)] = queue_offset + 1
        found = self._queues.read(topic_id, queue_id, queue_offset, 1, self._bound)
        if not found:
            segment = segment_start(expected.visible_at, self._identity.segment_bytes)
            self._entry_wrong(
                topic_id, f"{where} is missing; the record at {expected.visible_at} calls for it", segment
            )
        elif found[0] != expected:
            self._entry_wrong(topic_id, f"{where} says {_differences(found[0], expected._asdict())}")

    def _entry_wrong(self, topic_id: int, what: str, segment: int = _NO_SEGMENT) -> None:
        self._wrong.setdefault((topic_id, segment), _Findings()).damage("queues", what, REMAKE)

    # --- transactions

    def _half(self, record: HalfRecord, now_ms: int) -> None:
        self._undecided.add(record.half_index)
        message = record.message
        expected: dict[str, int] = {}
        if record.index == 0 and record.count != 1:
            self._firsts[record.group, record.tx_id] = record.half_index
        elif record.index and (first := self._firsts.get((record.group, record.tx_id))) is not None:
            expected["first_half"] = first
        row = self._row(
            record.half_index,
            original_offset=record.offset,
            message_bytes=record.size - MESSAGE_AT,
            topic_id=record.topic_id,
            queue_id=message.queue_id,
            number=record.index,
            group_hash=hash64(record.group.encode()),
            id_hash=hash64(record.tx_id.encode()),
            **expected,
        )
        # Rows written again (at a start, by a copy) contain the time at which the transaction began, not after this half.
        if row is not None and row.prepared_at_ms > now_ms:
            what = f"half {record.half_index} came at {now_ms}, its row says prepared at {row.prepared_at_ms}"
            self._findings.damage("transactions", what, REMAKE)
        self._keys(message, record.offset)

    def _copied_half(self, record: CopiedHalf, now_ms: int) -> None:
        self._undecided.add(record.half_index)
        if record.index == 0:
            self._checks[record.group, record.tx_id] = record.half_index, record.checks
        row = self._row(
            record.half_index,
            original_offset=record.first_offset,
            topic_id=record.topic_id,
            message_bytes=record.message_bytes,
            group_hash=hash64(record.group.encode()),
            id_hash=hash64(record.tx_id.encode()),
        )
        if row is not None and row.current_offset < record.offset:
            what = f"half {record.half_index} lies at {record.offset}, its row says {row.current_offset}"
            self._findings.damage("transactions", what, REMAKE)
        self._keys_of_copied(record.offset)

    def _committed(self, record: Committed, now_ms: int) -> None:
        self._ended(record, [ref.half_index for ref in record.refs])
        self._settled_id(record)
        for ref in record.refs:
            expected: dict[str, int] = {
                "state": ROW_COMMITTED,
                "decided_by": record.decided_by,
                "verdict_position": record.offset,
                "settled_at_ms": now_ms,
                "due_ms": ref.due_ms,
            }
            if not ref.due_ms:
                expected["queue_offset"] = ref.queue_offset
                self._ref_entry(ref, record.offset, now_ms)
            self._row(ref.half_index, **expected)

    def _half_batch(self, record: HalfBatch | CopiedHalfBatch, now_ms: int) -> None:
        self._undecided.add(record.half_index)
        row = self._row(
            record.half_index,
            original_offset=record.first_offset if isinstance(record, CopiedHalfBatch) else record.offset,
            topic_id=record.topic_id,
            queue_id=record.queue_id,
            message_bytes=record.size,
            number=record.index,
            group_hash=hash64(record.group.encode()),
            id_hash=hash64(record.tx_id.encode()),
        )
        if row is not None and row.current_offset < record.offset:
            what = f"half batch {record.half_index} lies at {record.offset}, its row says {row.current_offset}"
            self._findings.damage("transactions", what, REMAKE)
        if record.has_keys:
            places = [from_start for from_start, _, _, _ in ENTRY.iter_unpack(self._entries_of(record.offset))]
            for from_start in places:
                self._keys_of_copied(record.offset + from_start)

    def _decided(self, record: Decided, now_ms: int) -> None:
        settled = {"decided_by": record.decided_by, "verdict_position": record.offset, "settled_at_ms": now_ms}
        self._ended(record, (*[ref.half_index for ref in record.refs], *record.lost))
        self._settled_id(record)
        for ref in record.refs:
            if ref.queue_offset >= 0:
                for number, entry in enumerate(self._shown_by(record, ref, now_ms)):
                    self._entry(ref.topic_id, ref.queue_id, ref.queue_offset + number, entry)
                # Without its half batch, which an interrupted trim may have removed, there are no entries to compare.
                self._ends[ref.topic_id, ref.queue_id] = ref.queue_offset + ref.messages
            self._row(ref.half_index, state=ROW_COMMITTED, queue_offset=ref.queue_offset, **settled)
        for half_index in record.lost:
            self._row(half_index, state=ROW_ROLLED_BACK, queue_offset=-1, **settled)

    def _shown_by(self, record: Decided, ref: BatchRef, now_ms: int) -> Iterator[QueueEntry]:
        """The queue entries of a half batch."""
        for from_start, message_bytes, tag_hash, key_hash in ENTRY.iter_unpack(self._entries_of(ref.offset)):
            yield QueueEntry(
                ref.offset + from_start, message_bytes, tag_hash, record.offset, now_ms, ref.half_index, key_hash
            )

    def _rolled_back(self, record: RolledBack, now_ms: int) -> None:
        self._ended(record, record.half_indexes)
        self._settled_id(record)
        for half_index in record.half_indexes:
            self._row(
                half_index,
                state=ROW_ROLLED_BACK,
                decided_by=record.decided_by,
                verdict_position=record.offset,
                settled_at_ms=now_ms,
                queue_offset=-1,
            )

    def _released(self, record: Released, now_ms: int) -> None:
        for ref in record.refs:
            self._ref_entry(ref, record.offset, now_ms)
            index = ref.half_index
            # If half and verdict are trimmed, a rebuilt table has no row for it.
            if index in self._settled or (index >= 0 and self._table.row(index) is not None):
                self._row(index, queue_offset=ref.queue_offset)

    def _checked(self, record: Checked | Parked, now_ms: int) -> None:
        if record.half_index in self._undecided:
            self._checks[record.group, record.tx_id] = record.half_index, record.checks

    def _ended(self, verdict: Committed | RolledBack | Decided, half_indexes: Iterable[int]) -> None:
        self._checks.pop((verdict.group, verdict.tx_id), None)
        self._firsts.pop((verdict.group, verdict.tx_id), None)
        for half_index in half_indexes:
            self._undecided.discard(half_index)
            before = self._settled.setdefault(half_index, verdict.offset)
            if before != verdict.offset:
                what = f"half {half_index} is settled twice, at {before} and at {verdict.offset}"
                self._findings.damage("log", what, "a transaction has one verdict: " + REPORT)

    def _row(self, half_index: int, **expected: int) -> TransactionRow | None:
        self._counted["rows"] += 1
        row = self._table.row(half_index)
        if row is None:
            self._findings.damage("transactions", f"the row of half {half_index} is missing", REMAKE)
            return None
        wrong = _differences(row, expected)
        if wrong:
            self._findings.damage("transactions", f"the row of half {half_index} says {wrong}", REMAKE)
        return row

    # --- settled ids, keys and topics

    def _settled_id(self, record: Committed | RolledBack | Decided) -> None:
        if not is_chosen(record):
            return
        self._counted["settled_ids"] += 1
        start = segment_start(record.offset, self._identity.segment_bytes)
        if start not in self._id_data:
            path = self._shard / "settled_ids" / f"{start:020d}.ids"
            self._id_data = {start: read_whole(self._disk, path) or b""}
        at = self._id_at[start]
        self._id_at[start] = at + SETTLED_ID_ENTRY.size
        entry = SETTLED_ID_ENTRY.pack(id_hash(record.group, record.tx_id), record.offset)
        if self._id_data[start][at : at + SETTLED_ID_ENTRY.size] != entry:
            what = f"the settled ids of segment {start} do not name the verdict at {record.offset} where they should"
            self._ids_wrong.setdefault(start, what)

    def _no_more_ids(self, below: int) -> None:
        """Check that no file has entries before ``below`` beside the compared ones."""
        directory = self._shard / "settled_ids"
        for start in list_bases(self._disk, directory, ".ids"):
            at = self._id_at[start]
            data = read_whole(self._disk, directory / f"{start:020d}.ids") or b""
            position = int.from_bytes(data[at + 8 : at + 16], "big")
            if start >= self._log_start and 0 < position < below:
                what = f"the settled ids of segment {start} name a verdict at {position}, where the log has none"
                self._ids_wrong.setdefault(start, what)

    def _delayed(self, record: DelayedRecord, now_ms: int) -> None:
        self._keys(record.message, record.offset)

    def _copied_delayed(self, record: CopiedDelayed, now_ms: int) -> None:
        self._keys_of_copied(record.offset)

    def _keys_of_copied(self, offset: int) -> None:
        """Compare the keys of a copied message with the index at its offset: the record has no properties."""
        start, data = self._key_file(offset)
        while data[self._key_at[start] + 8 : self._key_at[start] + 16] == offset.to_bytes(8, "big"):
            self._key_at[start] += KEY_ENTRY.size

    def _keys(self, message: StoredMessage, offset: int) -> None:
        for value in key_hashes(message.topic, keys_of(message)):
            self._counted["keys"] += 1
            start, data = self._key_file(offset)
            at = self._key_at[start]
            self._key_at[start] = at + KEY_ENTRY.size
            if data[at : at + KEY_ENTRY.size] != KEY_ENTRY.pack(value, offset):
                what = f"the index of segment {start} does not name the message at {offset} where it should"
                self._keys_wrong.setdefault(start, what)

    def _key_file(self, offset: int) -> tuple[int, bytes]:
        start = segment_start(offset, self._identity.segment_bytes)
        if start not in self._key_data:
            path = self._shard / "keys" / f"{start:020d}.key"
            self._key_data = {start: read_whole(self._disk, path) or b""}
        return start, self._key_data[start]

    def _topic_set(self, record: TopicSet, now_ms: int) -> None:
        self._named[record.topic_id] = (record.name, record.offset)

    def _topic_deleted(self, record: TopicDeleted, now_ms: int) -> None:
        self._deleted.add(record.topic_id)

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
            if topic_id not in self._deleted and has.get(topic_id) != name:
                what = f"topics.json does not name topic {topic_id}, {name!r}"
                self._findings.damage("topics", what, WRITTEN_ANEW)

    _CHECKS: Final[dict[type, Callable[..., None]]] = for_each_kind(
        {
            MessageRecord: _plain,
            HalfRecord: _half,
            CopiedHalf: _copied_half,
            Committed: _committed,
            RolledBack: _rolled_back,
            Released: _released,
            Checked: _checked,
            Parked: _checked,
            DelayedRecord: _delayed,
            CopiedDelayed: _copied_delayed,
            TopicSet: _topic_set,
            TopicDeleted: _topic_deleted,
            HalfBatch: _half_batch,
            CopiedHalfBatch: _half_batch,
            Decided: _decided,
        },
        nothing=(
            GroupSet,
            OffsetsCommitted,
            EpochStarted,
            Base,
            ProducerSet,
            GroupDeleted,
            OperatorActed,
            QueryForgotten,
            CoordinatorEpoch,
            Compared,
            Trim,
        ),
    )


def _differences(found: QueueEntry | TransactionRow, expected: dict[str, int]) -> str:
    """The fields of ``found`` that differ from ``expected``; empty if none does."""
    return ", ".join(
        f"{name} {getattr(found, name)} instead of {value}"
        for name, value in expected.items()
        if getattr(found, name) != value
    )
