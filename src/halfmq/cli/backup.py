"""``halfmq backup DIR``: a copy of the log of a running broker, up to one position, verified after it was written."""

import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from halfmq import __version__, limits
from halfmq.cli import output
from halfmq.cli.exit_status import exit_text
from halfmq.cli.main import path
from halfmq.cli.requests import URL, Commands, Json, Timeout, Url
from halfmq.client.blocking import Connection, Unavailable
from halfmq.errors import ConnectError, EnvironmentFailed, RequestFailed, StoreDamaged, StoreInUse, UsageError
from halfmq.model.address import parse_url
from halfmq.model.placement import SEGMENT_BYTES_MIN
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.runtime.disk import Disk, File, RealDisk
from halfmq.store.backup import (
    LOCK,
    LOG,
    Manifest,
    Missing,
    SegmentCopy,
    copy_path,
    missing,
    read_manifest,
    refuse_inside,
    remove_segments,
    sha256_of,
    verify_batches,
    verify_presence,
    why_not_a_backup,
    write_manifest,
)
from halfmq.store.layout import BATCH_HEADER, STORE_FORMATS_READ
from halfmq.store.whole_file import make_durable
from halfmq.wire.remoting.backup import BackupBeginFields, BackupBegun, BackupReadFields
from halfmq.wire.remoting.codes import HMQ_BACKUP_BEGIN, HMQ_BACKUP_END, HMQ_BACKUP_READ, ResponseCode, code_name

_COMMANDS: Final = Commands("halfmq backup")
app = typer.Typer(help="Back up a running broker.", add_completion=False)
_STORE: Final = re.compile("[0-9a-f]{32}")
#: A response waits for the disk of the broker, and for its checkpoint.
_TIMEOUT_S: Final = 60.0
#: Reads at a time, so that one travels while the next is read. The broker takes twice as many.
_READS: Final = 4
#: How often progress is shown, seconds.
_SHOW_S: Final = 0.5
_ANOTHER: Final = "make the backup in another directory"


class Made(NamedTuple):
    """The result of a backup. Numbers of bytes and segments."""

    store: str
    position: int
    time_ms: int
    segments: int
    bytes: int
    copied_bytes: int
    batches_verified: int
    removed_segments: int


@app.command(epilog=exit_text("halfmq backup"))
def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            parser=path,
            metavar="DIR",
            help="Directory of the backup; empty or new the first time, later it is continued.",
        ),
    ],
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep segments that retention has removed from the broker's log since.")
    ] = False,
    url: Url = URL,
    timeout: Timeout = _TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Copy the log of a running broker up to one position, and read it back. Only what DIR does not have yet is copied.

    The log is all that a restore needs. Users' secrets in it are sealed: the broker's key file is not part of a backup.
    """
    with _COMMANDS.reported():
        try:
            made = _backup(RealDisk(), directory, url, timeout, keep=keep)
        except Unavailable as error:
            raise ConnectError(
                str(error), hint="the backup before this one, if there is one, is still valid; run the command again"
            ) from error
        except OSError as error:
            raise EnvironmentFailed(f"{error.filename or directory}: {error.strerror or error}") from error
    if as_json:
        output.document(msgspec.json.encode(made._asdict()))
        return
    output.say(
        f"backup of store {made.store} up to position {made.position}: {made.segments} segments, {made.bytes:,} bytes",
        f"copied {made.copied_bytes:,} bytes, and verified {made.batches_verified:,} batches"
        + (
            f"; removed {made.removed_segments} segments that the broker no longer has" if made.removed_segments else ""
        ),
    )


def _backup(disk: Disk, directory: Path, url: str, timeout_s: float, *, keep: bool) -> Made:
    _read_manifest(disk, directory)  # refuses a directory that is something else, before anything is created in it
    # A power loss must not keep the manifest's name and lose that of a directory. Each by itself: whoever made both may have been cut off.
    make_durable(disk, directory)
    make_durable(disk, directory / LOG)
    with _locked(disk, directory):
        manifest = _read_manifest(disk, directory)
        server = parse_url(url)
        with closing(Connection.open(server.servers[0], server.security, timeout_s)) as connection:
            source = _Source(connection, manifest)
            first, manifest = _continued(disk, directory, source, manifest, keep=keep)
            begun = source.begun
            parts = missing(manifest, first, begun.position, begun.segment_bytes)
            hashes = _copied(disk, directory, source, manifest, parts)
            source.end()
        known = {one.start: one for one in manifest.segments} if manifest is not None else {}
        oldest = first if manifest is None or not keep else min(first, manifest.segments[0].start)
        copies = [
            SegmentCopy(start, min(begun.segment_bytes, begun.position - start), hashes[start])
            if start in hashes
            else known[start]
            for start in range(oldest, begun.position, begun.segment_bytes)
        ]
        _read_back(disk, directory, [one for one in copies if one.start in hashes])
        verified_from = first if manifest is None else manifest.last_batch
        last = verify_batches(disk, directory, begun.segment_bytes, verified_from, begun.position)
        new = Manifest(
            store=begun.store, store_format=begun.format, segment_bytes=begun.segment_bytes, position=begun.position,
            log_start=begun.log_start, last_batch=last.offset, time_ms=last.time_ms, made_ms=time.time_ns() // 1_000_000,
            halfmq=__version__, segments=tuple(copies),
        )  # fmt: skip
        write_manifest(disk, directory, new)
        # After the manifest, which no longer names them.
        removed = remove_segments(disk, directory, copies)
    copied = sum([part.bytes - part.have for part in parts])
    return Made(new.store, new.position, new.time_ms, len(copies), new.bytes, copied, last.batches, len(removed))


def _read_manifest(disk: Disk, directory: Path) -> Manifest | None:
    """
    Raises:
        UsageError: the directory is not for a backup. StoreDamaged: a file of the backup is missing.
    """
    manifest = read_manifest(disk, directory)
    if manifest is not None:
        verify_presence(disk, directory, manifest)
    elif (why := why_not_a_backup(disk, directory)) is not None:
        raise UsageError(why, hint="give an empty directory, a new one, or one with a backup")
    else:
        refuse_inside(disk, directory)
    return manifest


@contextmanager
def _locked(disk: Disk, directory: Path) -> Iterator[None]:
    held = disk.lock(directory / LOCK)
    if held is None:
        raise StoreInUse(f"another process makes a backup in {directory}", hint="wait until it has ended")
    try:
        yield
    finally:
        held.close()


class _Source:
    """The log of the broker, up to the position of this backup."""

    def __init__(self, connection: Connection, manifest: Manifest | None) -> None:
        self._connection = connection
        self.address = connection.address
        fields = BackupBeginFields(0 if manifest is None else manifest.last_batch)
        opaque = connection.send(HMQ_BACKUP_BEGIN, write_fields(fields))
        try:
            self.begun = read_fields(BackupBegun, self._answer(HMQ_BACKUP_BEGIN, opaque)[0])
        except msgspec.ValidationError as error:
            raise RequestFailed(f"{self.address} responds without a field: {error}") from error
        begun = self.begun
        segment_bytes = begun.segment_bytes
        is_possible = (
            segment_bytes > 0 and segment_bytes % SEGMENT_BYTES_MIN == 0 and begun.log_start % segment_bytes == 0
        )
        if not is_possible or _STORE.fullmatch(begun.store) is None or begun.format not in STORE_FORMATS_READ:
            raise RequestFailed(
                f"{self.address} responds with a store that this version does not know: id {begun.store!r}, format {begun.format}, segments "
                f"of {segment_bytes} bytes, from {begun.log_start}",
                hint="use the version of halfmq that the broker has",
            )

    def read(self, offset: int, end: int) -> Iterator[bytes]:
        """The bytes of the log from ``offset`` to ``end``, which are in one segment, in order."""
        sent: deque[tuple[int, int, int]] = deque()
        while offset < end or sent:
            while offset < end and len(sent) < _READS:
                length = min(limits.BACKUP_READ_BYTES_MAX, end - offset)
                sent.append((self._send(offset, length), offset, length))
                offset += length
            opaque, at, length = sent.popleft()
            part = self._answer(HMQ_BACKUP_READ, opaque)[1]
            while len(part) < length:  # clients of the broker do not read, so its responses are small
                yield part
                at, length = at + len(part), length - len(part)
                part = self._answer(HMQ_BACKUP_READ, self._send(at, length))[1]
            yield part

    def end(self) -> None:
        """The log is copied."""
        self._answer(HMQ_BACKUP_END, self._connection.send(HMQ_BACKUP_END, {}))

    def _send(self, offset: int, length: int) -> int:
        return self._connection.send(HMQ_BACKUP_READ, write_fields(BackupReadFields(offset, length)))

    def _answer(self, code: int, opaque: int) -> tuple[dict[str, str], bytes]:
        answer = self._connection.receive(opaque)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestFailed(
                f"{self.address} does not support backups",
                response_code=answer.code,
                hint="it is not a halfmq broker, or an earlier version",
            )
        body = bytes(answer.body)
        if answer.code != ResponseCode.SUCCESS or (code == HMQ_BACKUP_READ and not body):
            raise RequestFailed(f"{code_name(code)}: {answer.remark} (code {answer.code})", response_code=answer.code)
        return answer.ext, body


def _continued(
    disk: Disk, directory: Path, source: _Source, manifest: Manifest | None, *, keep: bool
) -> tuple[int, Manifest | None]:
    """(where the log that is needed starts, the manifest that this backup continues; None: it begins anew).

    Raises:
        UsageError: the log of the broker does not continue the backup.
    """
    begun = source.begun
    if manifest is None:
        return begun.log_start, None
    if begun.store != manifest.store:
        raise UsageError(
            f"{directory} has a backup of store {manifest.store}, and {source.address} serves store {begun.store}",
            hint=_ANOTHER,
        )
    if begun.position < manifest.position:
        raise UsageError(
            f"the log of {source.address} ends at {begun.position}, before the backup in {directory}, which ends at {manifest.position}: "
            "it lost its end",
            hint=_ANOTHER,
        )
    if begun.log_start > manifest.last_batch:
        if keep:
            raise UsageError(
                f"retention has removed the log up to {begun.log_start}, also what follows the backup, which ends at {manifest.position}",
                hint=f"{_ANOTHER}, or without --keep, which replaces all of it",
            )
        return begun.log_start, None
    at = manifest.last_batch
    # The header has the checksum of the whole batch, so equal headers mean equal batches.
    there = b"".join(source.read(at, at + BATCH_HEADER.size))
    start = at - at % begun.segment_bytes
    with closing(disk.open(copy_path(directory, start), writable=False)) as file:
        if file.read(at - start, BATCH_HEADER.size) != there:
            raise UsageError(
                f"the batch at log offset {at} of {source.address} differs from the one in {directory}: its log lost its end, and "
                "continued with something else",
                hint=_ANOTHER,
            )
    return begun.log_start, manifest


def _copied(
    disk: Disk, directory: Path, source: _Source, manifest: Manifest | None, parts: Sequence[Missing]
) -> dict[int, str]:
    """Write what is missing. Durable on return. Start of each segment that changed -> its checksum, of the bytes that were received."""
    progress = _Progress(sum([part.bytes - part.have for part in parts]))
    known = {one.start: one for one in manifest.segments} if manifest is not None else {}
    hashes: dict[int, str] = {}
    try:
        for part in parts:
            with closing(disk.open(copy_path(directory, part.start), create=True)) as file:
                found = sha256_of(file, part.have)
                if part.have and found.hexdigest() != known[part.start].sha256:
                    raise StoreDamaged(
                        f"{file.path} was changed since the backup before: it does not have its checksum", hint=_ANOTHER
                    )
                file.truncate(part.have)
                at = part.have
                for piece in source.read(part.start + part.have, part.start + part.bytes):
                    file.write(at, [piece])
                    found.update(piece)
                    at += len(piece)
                    progress.add(len(piece))
                file.sync()
            hashes[part.start] = found.hexdigest()
        disk.sync_directory(directory / LOG)
    finally:
        progress.end()
    return hashes


def _read_back(disk: Disk, directory: Path, copies: Sequence[SegmentCopy]) -> None:
    """
    Raises:
        StoreDamaged: the disk returns other bytes than were written.
    """
    for copy in copies:
        file: File
        with closing(disk.open(copy_path(directory, copy.start), writable=False)) as file:
            if sha256_of(file, copy.bytes).hexdigest() != copy.sha256:
                raise StoreDamaged(f"{file.path} reads back other bytes than were written", hint="check the disk")


class _Progress:
    """One line on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._shown_s = 0.0
        self._shows = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """So many more bytes were copied."""
        self._done += count
        now_s = time.monotonic()
        if self._shows and now_s - self._shown_s >= _SHOW_S:
            self._shown_s = now_s
            output.progress(f"{self._done:,} of {self._total:,} bytes copied")

    def end(self) -> None:
        """Leave the line."""
        if self._shown_s:
            output.note("")
