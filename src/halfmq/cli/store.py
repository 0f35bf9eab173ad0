"""``halfmq store verify DIR`` and ``halfmq store dump DIR``. Both are read-only."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.main import path
from halfmq.errors import HalfmqError, StoreDamaged, UsageError
from halfmq.runtime.disk import File, RealDisk
from halfmq.store.backup import MANIFEST, is_cut_off, verify_backup
from halfmq.store.dump import dump_store
from halfmq.store.identity import NAME, not_permitted
from halfmq.store.verify import Report, verify_store

app = typer.Typer(
    help="Verify or dump the files of a store. Both are read-only.", no_args_is_help=True, add_completion=False
)

_Directory = Annotated[
    Path, typer.Argument(parser=path, metavar="DIR", help="Directory of the store, as in `halfmq serve --data`.")
]


class ReadOnlyDisk(RealDisk):
    """Opens files for reading only, so that a user without write permission can use it."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        return super().open(path, create=False, writable=False)


def explained(error: Exception) -> Exception:
    """``error``, with the remedy if the files belong to another account."""
    return not_permitted(error) if isinstance(error, PermissionError) else error


@app.command(epilog=exit_text("halfmq store verify"))
def verify(directory: _Directory) -> None:
    """Verify all checksums and message bodies, and compare all indexes with the log. The broker may be running.

    DIR may also be a backup: then all of its files and batches are read.
    """
    try:
        disk = ReadOnlyDisk()
        if not disk.exists(directory / NAME) and disk.exists(directory / MANIFEST):
            raise typer.Exit(_verify_backup(disk, directory))
        if not disk.exists(directory / NAME) and is_cut_off(disk, directory):
            raise UsageError(
                f"{directory} is a backup that is not complete: {MANIFEST} is missing",
                hint="a first backup was cut off: run `halfmq backup` again",
            )
        report = verify_store(ReadOnlyDisk(), directory)
    except (HalfmqError, OSError) as error:
        output.note(f"halfmq store verify: {explained(error)}")
        raise typer.Exit(ExitStatus.USAGE) from error
    _print(report)
    raise typer.Exit(ExitStatus.FAILED if report.damaged else ExitStatus.SUCCESS)


def _verify_backup(disk: ReadOnlyDisk, directory: Path) -> ExitStatus:
    try:
        manifest, batches = verify_backup(disk, directory)
    except StoreDamaged as error:
        output.say(f"DAMAGED: backup: {error}", "damaged")
        return ExitStatus.FAILED
    output.say(
        f"backup of store {manifest.store}, log {manifest.segments[0].start} to {manifest.position}: "
        f"{len(manifest.segments)} segments, {manifest.bytes:,} bytes, {batches:,} batches",
        "whole",
    )
    return ExitStatus.SUCCESS


@app.command(epilog=exit_text("halfmq store dump"))
def dump(
    directory: _Directory,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", help="Start at this log offset.")] = 0,
    kind: Annotated[list[str] | None, typer.Option(help="Only records of this kind; may be repeated.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Include message bodies.")] = False,
) -> None:
    """Print the records of the log, one JSON document per line."""
    status = ExitStatus.SUCCESS
    try:
        for line in dump_store(
            ReadOnlyDisk(),
            directory,
            start=start,
            kinds=frozenset(kind or ()),
            bodies=bodies,
            note=lambda text: output.note(f"halfmq store dump: {text}"),
        ):
            output.document(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.close()  # the reader, such as `head`, has closed the pipe
    except (HalfmqError, OSError) as error:
        sys.stdout.buffer.flush()
        output.note(f"halfmq store dump: {explained(error)}")
        status = ExitStatus.FAILED if isinstance(error, StoreDamaged) else ExitStatus.USAGE
    raise typer.Exit(status)


def _print(report: Report) -> None:
    counted = report.counted
    output.say(
        f"log {report.log_start} to {report.position}: {counted['batches']:,} batches, {counted['records']:,} records, "
        f"{counted['bodies']:,} bodies ({counted['body_bytes']:,} bytes)"
    )
    output.say(
        f"compared: {counted['queue_entries']:,} queue entries, {counted['rows']:,} row facts, {counted['keys']:,} keys, "
        f"{counted['settled_ids']:,} settled ids, "
        f"{counted['snapshots']:,} snapshots"
    )
    for finding in report.findings:
        output.say(f"{'DAMAGED' if finding.damage else 'note'}: {finding.part}: {finding.what}")
        output.say(f"    {finding.remedy}")
    output.say("damaged" if report.damaged else "whole")
