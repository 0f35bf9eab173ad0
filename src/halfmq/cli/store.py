"""``halfmq store verify DIR`` and ``halfmq store dump DIR``: look into a store. Neither changes it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from halfmq.cli.main import path
from halfmq.errors import HalfmqError
from halfmq.runtime.disk import File, RealDisk
from halfmq.store.dump import dump_store
from halfmq.store.verify import Report, verify_store

app = typer.Typer(help="Verify or dump a store; neither changes it.", no_args_is_help=True, add_completion=False)

_Directory = Annotated[Path, typer.Argument(parser=path, metavar="DIR", help="What `halfmq serve --data` was given.")]


class ReadOnlyDisk(RealDisk):
    """Opens nothing for writing: a tool that only looks must also run for a user who may not write."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        return super().open(path, create=False, writable=False)


@app.command()
def verify(directory: _Directory) -> None:
    """Check every checksum, every body, and everything derived against the log. Works beside a running broker.

    Exit status: 0 nothing is damaged, 1 something is, 2 there is no store or it cannot be read at all.
    """
    try:
        report = verify_store(ReadOnlyDisk(), directory)
    except (HalfmqError, OSError) as error:
        typer.echo(f"halfmq store verify: {error}", err=True)
        raise typer.Exit(2) from error
    _print(report)
    raise typer.Exit(1 if report.damaged else 0)


@app.command()
def dump(
    directory: _Directory,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", help="First log offset.")] = 0,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; may be repeated.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With message bodies.")] = False,
) -> None:
    """Print every record of the log, one line of JSON each.

    Exit status: 0, 1 for damage on the way, 2 for no store or an unknown kind.
    """
    status = 0
    write = sys.stdout.buffer.write
    try:
        for line in dump_store(
            ReadOnlyDisk(),
            directory,
            start=start,
            kinds=frozenset(kind or ()),
            bodies=bodies,
            note=lambda text: typer.echo(f"halfmq store dump: {text}", err=True),
        ):
            write(line + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.close()  # `| head` has seen enough
    except (HalfmqError, OSError) as error:
        sys.stdout.buffer.flush()
        typer.echo(f"halfmq store dump: {error}", err=True)
        status = 1 if getattr(error, "code", "") == "store-damaged" else 2
    raise typer.Exit(status)


def _print(report: Report) -> None:
    counted = report.counted
    typer.echo(
        f"log {report.log_start} to {report.position}: {counted['batches']:,} batches, {counted['records']:,} records, "
        f"{counted['bodies']:,} bodies ({counted['body_bytes']:,} bytes)"
    )
    typer.echo(
        f"compared: {counted['queue_entries']:,} queue entries, {counted['rows']:,} row facts, {counted['keys']:,} keys, "
        f"{counted['snapshots']:,} snapshots"
    )
    for finding in report.findings:
        typer.echo(f"{'DAMAGED' if finding.damage else 'note'}: {finding.part}: {finding.what}")
        typer.echo(f"    {finding.remedy}")
    typer.echo("damaged" if report.damaged else "whole")
