"""Recovery at a start: examine the disk, choose the case, and later cut what was never acknowledged.

``examine_log`` changes nothing. It checks every byte of the log after the snapshot, so that a store that must be refused is refused before
anything changes, and the following redo can trust what it reads.

``repair`` makes the recovered log the durable log, before the first append:

    cut        everything after the end becomes zero, later segment files are removed, and both are synced: a new batch must not
               precede old ones that a later start could take for its continuation
    rewrite    what lies after the last position known to be durable is written once more, unchanged; the next sync covers it

Bytes are rewritten even if they already read correctly; and zeros are, if the file ``cut`` says that an earlier cut did not end: why is in
docs/decisions/0008-write-again-after-a-crash.md.

A crash in ``repair`` leaves the same torn tail, or less of it, and the next start repeats it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import StoreDamaged, StoreFull
from halfmq.runtime.disk import Disk
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, TornTail
from halfmq.store.recovery_cases import Act, Case, Checkpoint, Evidence, Log, OldestSegment, Tail, case_of
from halfmq.store.segment import SegmentFiles

#: Bytes before the snapshot in which a start checks that batches follow each other; reading them takes a tenth of a second.
LOOK_BACK_BYTES_MAX: Final = 16 << 20
#: File beside the segments while the bytes after the log's end are zeroed.
CUT: Final = "cut"


class CheckpointFound(NamedTuple):
    """One readable checkpoint slot. ``usable``: its snapshot exists and is complete."""

    position: int
    epoch: int
    usable: bool


class Recovery(NamedTuple):
    """What a start found, and what it will do."""

    case: Case
    #: First offset of the oldest segment.
    log_start: int
    #: Where redo starts: the position of the snapshot, if one is used.
    redo_from: int
    #: End of the log; what lies after it is cut.
    end: int
    #: Position known to be durable before this start.
    durable_position: int
    #: Highest epoch found anywhere.
    epoch: int
    #: Where the log leaves a segment -> where it continues, for segments after ``redo_from``.
    rolls: dict[int, int]
    #: One sentence for the broker's log and for `store verify`.
    says: str


def examine_log(files: SegmentFiles, checkpoints: Sequence[CheckpointFound], published: int = 0) -> Recovery:
    """Examine everything and change nothing. ``published``: durable position according to the watermark page.

    Raises:
        StoreDamaged: with file, place and remedy, if the case requires a refusal.
    """
    durable = max([published, *(checkpoint.position for checkpoint in checkpoints)])
    epoch = max((checkpoint.epoch for checkpoint in checkpoints), default=0)
    numbers = files.numbers()
    if not numbers:
        return _decided(
            files, Evidence(Log.EMPTY, _newest(checkpoints, 0)[0], OldestSegment.BLANK, Tail.END), None, durable, epoch
        )
    scan = LogScan(files)
    oldest = numbers[0] * files.segment_bytes
    state, position = _newest(checkpoints, oldest)
    redo_from = position if state is Checkpoint.USABLE else oldest
    missing = _missing_below(files, scan, numbers[0], redo_from)
    if missing is not None:
        evidence = Evidence(Log.GAP, state, OldestSegment.BASE, Tail.CORRUPT)
        return _decided(files, evidence, CorruptInterior(*missing, durable), durable, epoch)
    if state is Checkpoint.USABLE and not scan.batch_ends_at(redo_from):
        at = files.path((redo_from - 1) // files.segment_bytes)
        damage = CorruptInterior(redo_from, at, "no whole batch ends where the checkpoint was taken", durable)
        evidence = Evidence(Log.WHOLE, Checkpoint.PAST_END, OldestSegment.BASE, Tail.CORRUPT)
        return _decided(files, evidence, damage, durable, epoch)
    broken = _broken_before(files, scan, checkpoints, redo_from) if state is Checkpoint.USABLE else None
    if broken is not None:
        place, why = broken
        what = f"before the checkpoint at {redo_from} batches do not follow each other, as when two brokers wrote them: {why}"
        evidence = Evidence(Log.WHOLE, Checkpoint.PAST_END, OldestSegment.BASE, Tail.CORRUPT)
        damage = CorruptInterior(place, files.path(place // files.segment_bytes), what, durable)
        return _decided(files, evidence, damage, durable, epoch)
    front = _front(scan, state, oldest)
    last: EndOfLog | TornTail | CorruptInterior | None = None
    rolls: dict[int, int] = {}
    position = redo_from
    for scanned in scan.from_batch(redo_from, durable):
        if isinstance(scanned, Batch):
            header = scanned.header
            durable = max(durable, header.durable_position)
            if header.offset != position:
                rolls[position] = header.offset
            position = header.end
        else:
            last = scanned
    assert last is not None
    tail = {EndOfLog: Tail.END, TornTail: Tail.TORN, CorruptInterior: Tail.CORRUPT}[type(last)]
    return _decided(files, Evidence(Log.WHOLE, state, front, tail), last, durable, epoch, redo_from, rolls)


def _newest(checkpoints: Sequence[CheckpointFound], oldest: int) -> tuple[Checkpoint, int]:
    """Usability of the checkpoints, and the position of the newest usable one."""
    if not checkpoints:
        return Checkpoint.NONE, 0
    usable = [checkpoint.position for checkpoint in checkpoints if checkpoint.usable]
    if not usable:
        return Checkpoint.UNREADABLE, 0
    position = max(usable)
    return (Checkpoint.USABLE, position) if position >= oldest else (Checkpoint.BEFORE_START, 0)


def _front(scan: LogScan, state: Checkpoint, oldest: int) -> OldestSegment:
    if state is Checkpoint.USABLE or scan.first_batch_has_base(oldest):
        return OldestSegment.BASE
    return OldestSegment.BLANK if oldest == 0 else OldestSegment.NO_BASE


def _missing_below(files: SegmentFiles, scan: LogScan, first: int, redo_from: int) -> tuple[int, Path, str] | None:
    """The first segment before the redo that is missing or too short: (place, file, reason). Zeros at its end may be missing."""
    for number in range(first, -(-redo_from // files.segment_bytes)):
        start = number * files.segment_bytes
        segment = files.get(number)
        files.close_old(start)
        if segment is None:
            return start, files.path(number), "the segment is missing"
        if segment.size != files.segment_bytes:
            holds = redo_from if redo_from <= start + files.segment_bytes else scan.left_at(number)
            if holds is None or start + segment.size < holds:
                why = f"the segment has {segment.size} bytes instead of {files.segment_bytes}"
                return start, files.path(number), why
    return None


def _broken_before(
    files: SegmentFiles, scan: LogScan, checkpoints: Sequence[CheckpointFound], redo_from: int
) -> tuple[int, str] | None:
    """Where the log before the snapshot, from the previous checkpoint or the segment's start on, is not contiguous.

    It is checked because a start does not redo it: consumers would hit the damage one message at a time.
    """
    segment_start = (redo_from - 1) // files.segment_bytes * files.segment_bytes
    start = max([segment_start, *(one.position for one in checkpoints if one.position < redo_from)])
    if start // files.segment_bytes not in files or redo_from - start > LOOK_BACK_BYTES_MAX:
        return None
    return scan.broken_between(start, redo_from)


def _decided(
    files: SegmentFiles,
    evidence: Evidence,
    last: EndOfLog | TornTail | CorruptInterior | None,
    durable: int,
    epoch: int,
    redo_from: int = 0,
    rolls: dict[int, int] | None = None,
) -> Recovery:
    case = case_of(evidence)
    if case.act is Act.REFUSE:
        raise _refusal(files, case, last, durable)
    numbers = files.numbers()
    log_start = numbers[0] * files.segment_bytes if numbers else 0
    durable = max(durable, log_start)  # what was trimmed was durable
    says = f"case {case.letter}: {case.says}"
    match last:
        case EndOfLog(at, seen):
            return Recovery(case, log_start, redo_from, at, durable, max(epoch, seen), rolls or {}, says)
        case TornTail(cut_at, seen, why, whole):
            says += f"; cutting at {cut_at} ({why}), {whole} whole batches after it were never acknowledged"
            return Recovery(case, log_start, redo_from, cut_at, durable, max(epoch, seen), rolls or {}, says)
        case _:
            return Recovery(case, 0, 0, 0, 0, epoch, {}, says)


def _refusal(
    files: SegmentFiles, case: Case, last: EndOfLog | TornTail | CorruptInterior | None, durable: int
) -> StoreDamaged:
    remedy = "nothing was changed; restore the named file from a backup, or start with a new directory"
    text = f"the log in {files.directory} is damaged (case {case.letter}: {case.says})"
    match last:
        case CorruptInterior(at, file, why, position):
            text += f": {file} at log offset {at}: {why}; the log was durable up to {position}"
        case EndOfLog() | TornTail():
            text += f": {files.path(files.numbers()[0])} is the oldest segment; it is damaged, or the one before it is missing"
        case _:
            text += f": there was a log up to {durable}"
    return StoreDamaged(text, hint=remedy)


def repair(disk: Disk, files: SegmentFiles, recovery: Recovery) -> None:
    """Make the disk agree with ``recovery``; see the module. The caller then syncs the log up to its end, now or with its next checkpoint.

    Raises:
        StoreFull: the last segment lost its allocation, and there is no space for it now.
        OSError: the disk failed; nothing may be appended.
    """
    scan = LogScan(files)
    here = recovery.end // files.segment_bytes
    for number in reversed(files.numbers()):
        if number > here:
            if not (scan.is_whole(number) and scan.is_blank(number) and _claimed(files, number)):
                files.remove(number)
        elif number == here:
            # Zeroed and not removed, even if nothing of it remains: a blank segment after it may survive a crash, and must not look like
            # the oldest one of a trimmed log.
            _zero_from(disk, files, number, recovery.end % files.segment_bytes)
    if files.numbers():
        disk.sync_directory(files.directory)
    _write_again(files, max(recovery.durable_position, recovery.redo_from), recovery.end)


def _zero_from(disk: Disk, files: SegmentFiles, number: int, place: int) -> None:
    segment = files.get(number)
    assert segment is not None
    # Its allocation may not have survived; or somebody restored the file, and the copy has holes instead of zeros.
    segment.allocate(files.segment_bytes)
    unfinished = files.directory / CUT
    if segment.nonzero_from(place) is None and not disk.exists(unfinished):
        segment.file.sync()
        return
    disk.open(unfinished, create=True).close()
    for start, end in segment.data_ranges(place):
        segment.file.write(start, [bytes(end - start)])
    segment.file.sync()
    disk.remove(unfinished)


def _claimed(files: SegmentFiles, number: int) -> bool:
    """Allocate the space of a blank segment that will be used next, if necessary; False without space."""
    segment = files.get(number)
    assert segment is not None
    try:
        segment.allocate(files.segment_bytes)
    except StoreFull:
        return False
    segment.file.sync()
    return True


def _write_again(files: SegmentFiles, start: int, end: int) -> None:
    for number in range(start // files.segment_bytes, -(-end // files.segment_bytes)):
        segment = files.get(number)
        assert segment is not None
        stop = min(files.segment_bytes, end - segment.start)
        for place, range_end in segment.data_ranges(max(0, start - segment.start)):
            if place >= stop:
                break
            segment.file.write(place, [segment.read(place, min(range_end, stop) - place)])
        if files.too_many:
            segment.file.sync()
            files.close_old(segment.start + files.segment_bytes)
