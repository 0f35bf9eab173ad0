"""A backup of a store: copies of the segments of its log, up to one position, and a manifest that says what they contain.

    DIR/backup.json    the manifest, written last: it names what belongs to the backup, with sizes and checksums
    DIR/log/*.seg      segments, named as in the store; the last one ends at the position

Everything else of a store is rebuilt from its log. The files only grow or are removed, and the manifest is replaced as a whole: whenever a
backup is cut off, the manifest before it is still right about the bytes that it names, and what lies after them is ignored.

``verify_batches`` examines batches as a start does. ``cut_before`` finds where a restore to a position or a time ends.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import StoreDamaged, UsageError, WrongVersion
from halfmq.model.checksum import crc32
from halfmq.runtime.disk import Disk, File
from halfmq.store.identity import NAME
from halfmq.store.layout import STORE_FORMATS_READ
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, TornTail
from halfmq.store.segment import SUFFIX, SegmentFiles, segment_name
from halfmq.store.whole_file import read_whole, replacing

MANIFEST: Final = "backup.json"
LOG: Final = "log"
LOCK: Final = "lock"
#: Version of the manifest.
FORMAT: Final = 1
_NEW: Final = MANIFEST + ".new"
_CHUNK: Final = 1 << 20
_ANEW: Final = "make a new backup in another directory"


class SegmentCopy(msgspec.Struct, frozen=True):
    """The first ``bytes`` of one segment. ``start``: its first log offset."""

    start: int
    bytes: int
    #: Hexadecimal, as ``sha256sum`` prints it.
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains: the log of ``store`` from its first segment to ``position``, where a batch ends."""

    format: int = FORMAT
    #: 32 hex digits.
    store: str
    store_format: int
    segment_bytes: int
    position: int
    #: Where the log of the store started. Segments before it may still be in the backup.
    log_start: int
    #: Log offset of the last batch, and its broker time, ms.
    last_batch: int
    time_ms: int
    #: When the backup was made, by the clock of the machine that made it, ms.
    made_ms: int
    #: Version that made it.
    halfmq: str
    #: Ascending, without gaps.
    segments: tuple[SegmentCopy, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum([one.bytes for one in self.segments])


class _Written(msgspec.Struct, frozen=True):
    """The content of the file. ``checksum``: CRC-32 of the bytes of ``backup``."""

    backup: msgspec.Raw
    checksum: int


class Missing(NamedTuple):
    """What a backup still needs of one segment: from byte ``have`` to byte ``bytes`` of it."""

    start: int
    have: int
    bytes: int


class LastBatch(NamedTuple):
    """The last batch of a range that was verified, and how many there were."""

    offset: int
    end: int
    time_ms: int
    batches: int


# --- the manifest ------------------------------------------------------------------------------------------------


def read_manifest(disk: Disk, directory: Path) -> Manifest | None:
    """The manifest of the backup in ``directory``; None: there is none.

    Raises:
        StoreDamaged: it cannot be read. WrongVersion: of a later version.
    """
    path = directory / MANIFEST
    text = read_whole(disk, path)
    if text is None:
        return None
    try:
        written = msgspec.json.decode(text, type=_Written)
        if crc32(bytes(written.backup)) != written.checksum:
            raise StoreDamaged(f"{path} does not have the checksum that it states", hint=_ANEW)
        version = msgspec.json.decode(written.backup, type=dict).get("format")
        if version != FORMAT:
            raise WrongVersion(f"{path} has format {version}, this version of halfmq reads format {FORMAT}")
        manifest = msgspec.json.decode(written.backup, type=Manifest)
        bytes.fromhex(manifest.store)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreDamaged(f"{path} cannot be read: {error}", hint=_ANEW) from error
    if manifest.store_format not in STORE_FORMATS_READ:
        raise WrongVersion(
            f"the backup in {directory} is of a store of format {manifest.store_format}",
            hint="use the version of halfmq that made it, or a later one",
        )
    if not _is_consistent(manifest):
        raise StoreDamaged(f"{path} has impossible values", hint=_ANEW)
    return manifest


def _is_consistent(manifest: Manifest) -> bool:
    """Whether the segments follow each other up to the position."""
    segment_bytes, segments = manifest.segment_bytes, manifest.segments
    if segment_bytes <= 0 or not segments or segments[0].start % segment_bytes or len(manifest.store) != 32:
        return False
    expected = range(segments[0].start, manifest.position, segment_bytes)
    return [(one.start, one.bytes) for one in segments] == [
        (start, min(segment_bytes, manifest.position - start)) for start in expected
    ]


def write_manifest(disk: Disk, directory: Path, manifest: Manifest) -> None:
    """Replace the manifest. Durable on return; the segments must be durable before.

    Raises:
        OSError: the disk failed; the manifest before it stays valid.
    """
    backup = msgspec.json.encode(manifest)
    text = msgspec.json.encode(_Written(msgspec.Raw(backup), crc32(backup))) + b"\n"
    with replacing(disk, directory / MANIFEST, directory / _NEW) as file:
        file.write(0, [text])
    disk.sync_directory(directory)


def refuse_inside(disk: Disk, directory: Path) -> None:
    """Check that ``directory``, in which something is to be made, is not inside a store or a backup.

    Raises:
        UsageError: it is: it would be removed with that, or be taken for a part of it.
    """
    for parent in Path(os.path.realpath(directory)).parents:
        for name, what in ((NAME, "store"), (MANIFEST, "backup")):
            # Where this account may not look, it can make nothing either.
            with suppress(PermissionError):
                if disk.exists(parent / name):
                    raise UsageError(
                        f"{directory} is inside the {what} in {parent}", hint="give a directory outside of it"
                    )


def is_cut_off(disk: Disk, directory: Path) -> bool:
    """Whether ``directory`` is that of a first backup that was cut off: it has no manifest."""
    return (
        not disk.exists(directory / MANIFEST)
        and disk.exists(directory / LOG)
        and why_not_a_backup(disk, directory) is None
    )


def verify_presence(disk: Disk, directory: Path, manifest: Manifest) -> None:
    """
    Raises:
        StoreDamaged: a file that the manifest names is missing.
    """
    for segment in manifest.segments:
        path = copy_path(directory, segment.start)
        if not disk.exists(path):
            raise StoreDamaged(f"{path} is missing", hint=_ANEW)


def why_not_a_backup(disk: Disk, directory: Path) -> str | None:
    """Why ``directory``, which has no manifest, is not free for a first backup; None if it is, also after one that was cut off."""
    for name in disk.list(directory):
        if name not in (LOG, LOCK, _NEW):
            return f"{directory} is not a backup and not empty: it contains {name}"
    for name in disk.list(directory / LOG):
        if not name.endswith(SUFFIX):
            return f"{directory / LOG} is not of a backup: it contains {name}"
    return None


# --- what to copy ------------------------------------------------------------------------------------------------


def missing(manifest: Manifest | None, log_start: int, position: int, segment_bytes: int) -> list[Missing]:
    """What a backup up to ``position`` needs besides what ``manifest`` says it has, in the order of the log. ``log_start``: start of a
    segment.
    """
    have = {one.start: one.bytes for one in manifest.segments} if manifest is not None else {}
    wanted = [
        Missing(start, have.get(start, 0), min(segment_bytes, position - start))
        for start in range(log_start, position, segment_bytes)
    ]
    return [one for one in wanted if one.have < one.bytes]


def copy_path(directory: Path, start: int) -> Path:
    """The file of the segment that starts at ``start``."""
    return directory / LOG / segment_name(start)


def sha256_of(file: File, length: int) -> "hashlib._Hash":
    """The hash of the first ``length`` bytes, which can be continued.

    Raises:
        StoreDamaged: the file is shorter.
    """
    found = hashlib.sha256()
    for at in range(0, length, _CHUNK):
        part = file.read(at, min(_CHUNK, length - at))
        if len(part) < min(_CHUNK, length - at):
            raise StoreDamaged(f"{file.path} has {file.size()} bytes instead of {length}", hint=_ANEW)
        found.update(part)
    return found


def verify_copy(disk: Disk, directory: Path, segment: SegmentCopy) -> None:
    """
    Raises:
        StoreDamaged: the file of the segment is missing, truncated, or does not have its checksum.
    """
    path = copy_path(directory, segment.start)
    if not disk.exists(path):
        raise StoreDamaged(f"{path} is missing", hint=_ANEW)
    with closing(disk.open(path, writable=False)) as file:
        if sha256_of(file, segment.bytes).hexdigest() != segment.sha256:
            raise StoreDamaged(
                f"{path} does not have the checksum that {directory / MANIFEST} states for its first {segment.bytes} bytes",
                hint=_ANEW,
            )


# --- batches -----------------------------------------------------------------------------------------------------


def batches(disk: Disk, directory: Path, segment_bytes: int, start: int, position: int) -> Iterator[Batch]:
    """Every batch from ``start`` (a batch boundary) to ``position``, examined: checksums, bodies, and that each follows the one before.

    Raises:
        StoreDamaged: something is not right, or no batch ends at ``position``.
    """
    files = SegmentFiles(disk, directory / LOG, segment_bytes)
    reached = start
    try:
        if start == position:
            return
        for scanned in LogScan(files).from_batch(start, 0):
            match scanned:
                case Batch(header, _, _):
                    if header.end > position:
                        break
                    yield scanned
                    reached = header.end
                    if reached == position:
                        return
                case EndOfLog(at):
                    raise _damaged(files, at, "the log ends here", position)
                case TornTail(at, _, why, _):
                    raise _damaged(files, at, why, position)
                case CorruptInterior(at, _, why, _):
                    raise _damaged(files, at, why, position)
        raise _damaged(files, reached, "a batch reaches beyond the position of the backup", position)
    finally:
        files.close()


def _damaged(files: SegmentFiles, at: int, why: str, position: int) -> StoreDamaged:
    return StoreDamaged(
        f"{files.path(at // files.segment_bytes)} at log offset {at}: {why}; the log of the backup ends at {position}",
        hint=f"it was damaged where it was copied from, on the way, or here: `halfmq store verify` of the store, and {_ANEW}",
    )


def verify_batches(disk: Disk, directory: Path, segment_bytes: int, start: int, position: int) -> LastBatch:
    """The last batch before ``position``, after all from ``start`` on were examined. Raises as ``batches``."""
    last = LastBatch(start, start, 0, 0)
    for header, _, _ in batches(disk, directory, segment_bytes, start, position):
        last = LastBatch(header.offset, header.end, header.broker_time_ms, last.batches + 1)
    return last


class BackupVerified(NamedTuple):
    """What ``verify_backup`` read."""

    manifest: Manifest
    batches: int


def verify_backup(disk: Disk, directory: Path) -> BackupVerified:
    """Read all of a backup: the checksum of each file, and each batch.

    Raises:
        UsageError: there is no backup. StoreDamaged, WrongVersion: what is wrong with it.
    """
    manifest = existing(disk, directory)
    for segment in manifest.segments:
        verify_copy(disk, directory, segment)
    start = manifest.segments[0].start
    last = verify_batches(disk, directory, manifest.segment_bytes, start, manifest.position)
    return BackupVerified(manifest, last.batches)


def existing(disk: Disk, directory: Path) -> Manifest:
    """The manifest.

    Raises:
        UsageError: there is none. Others: as ``read_manifest``.
    """
    manifest = read_manifest(disk, directory)
    if manifest is None:
        raise UsageError(
            f"{directory} holds no backup: {MANIFEST} is missing",
            hint="a first backup that was cut off has none: run `halfmq backup` again",
        )
    return manifest


def remove_segments(disk: Disk, directory: Path, kept: Sequence[SegmentCopy]) -> list[int]:
    """Remove the files of segments that are not ``kept``, and return their starts. The manifest no longer names them."""
    names = {segment_name(one.start) for one in kept}
    gone = [name for name in disk.list(directory / LOG) if name.endswith(SUFFIX) and name not in names]
    for name in gone:
        disk.remove(directory / LOG / name)
    if gone:
        disk.sync_directory(directory / LOG)
    return [int(name.removesuffix(SUFFIX)) for name in gone]
