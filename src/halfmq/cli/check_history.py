"""``halfmq check-history FILE...``: checks a recorded history against the ten promises of ``docs/promises.md``."""

import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.main import path
from halfmq.cli.store import ReadOnlyDisk, explained
from halfmq.errors import HalfmqError
from halfmq.testing.history.checker import MEMORY_BYTES, check_files
from halfmq.testing.history.logged import log_source
from halfmq.testing.history.report import Report

app = typer.Typer(help="Check a recorded history against the promises.", add_completion=False)

#: Time until progress is shown, seconds.
_TELL_S: Final = 2.0
_SHOWN: Final = 5


@app.command(epilog=exit_text("halfmq check-history"))
def check_history(
    files: Annotated[
        list[Path],
        typer.Argument(parser=path, metavar="FILE...", help="History files, or directories of *.jsonl files."),
    ],
    log: Annotated[
        Path | None,
        typer.Option(parser=path, metavar="DIR", help="Also check the log in this directory of a stopped broker."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    memory_bytes: Annotated[
        int, typer.Option(help="Memory for collected events, bytes; beyond it they go to a temporary file.")
    ] = MEMORY_BYTES,
    show: Annotated[int, typer.Option(min=0, help="Maximum violations to print of each kind.")] = _SHOWN,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept a history without anything to check.")
    ] = False,
) -> None:
    """Report all violations of the promises in a recorded history. The format: docs/check-history.md."""
    progress = _Progress()
    try:
        with tempfile.TemporaryDirectory(prefix="halfmq-log-") as directory:
            logs = []
            if log is not None:
                if _is_served(log):
                    progress.note(f"a broker is running on {log}: its log may be newer than the history; stop it first")
                progress("reading the log", 0, 1)
                logs.append(log_source(ReadOnlyDisk(), log, Path(directory) / "log.jsonl", progress.note))
            report = check_files(files, logs=logs, memory_bytes=memory_bytes, progress=progress)
    except (HalfmqError, OSError, sqlite3.Error) as error:
        progress.end()
        output.note(f"halfmq check-history: {explained(error)}")
        raise typer.Exit(ExitStatus.USAGE) from error
    progress.end()
    if as_json:
        output.document(report.as_json())
    else:
        _print(report, show)
    if report.looked_at_nothing and not allow_empty:
        output.note(
            "halfmq check-history: the history contains nothing to check: are these the right files? (--allow-empty accepts it)"
        )
        raise typer.Exit(ExitStatus.USAGE)
    raise typer.Exit(ExitStatus.SUCCESS if report.clean else ExitStatus.FAILED)


def _is_served(directory: Path) -> bool:
    """Whether a process holds the lock of the store. Acquires it in shared mode and releases it at once."""
    import fcntl

    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # no store, or never served: reading the log reports it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class _Progress:
    """Progress line on standard error, overwritten in place; only on a terminal, and only in long runs."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _TELL_S
        self._shows = sys.stderr.isatty()
        self._shown = False

    def __call__(self, what: str, done: int, of: int) -> None:
        if self._shows and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _TELL_S / 4
            self._shown = True
            output.progress(f"{what}: {100 * done // max(1, of):>3} %   ")

    def note(self, text: str) -> None:
        self.end()
        output.note(f"halfmq check-history: {text}")

    def end(self) -> None:
        if self._shown:
            output.progress(" " * 40)
            output.progress("")
            self._shown = False


def _print(report: Report, show: int) -> None:
    systems = ", ".join(report.systems) or "unnamed system"
    faults = ", ".join(f"{count:,} x {what}" for what, count in report.faults.items()) or "none"
    output.say(
        f"{systems}: {report.events:,} events in {report.files:,} files, {report.seconds:.1f} s; faults: {faults}"
    )
    if report.torn_lines:
        output.say(f"{report.torn_lines:,} incomplete lines of killed processes ignored")
    row = "{:>7}  {:<28}  {:>9}  {:>12}  {}"
    output.say("", row.format("promise", "violation", "found", "checked", ""))
    told: set[str] = set()
    for one in report.looked:
        first = one.kind not in told
        told.add(one.kind)
        found = f"{one.violations:,}" if first else ""
        looked, what = (f"{one.looked:,}", one.what) if one.looked else ("-", f"nothing to check: {one.what}")
        output.say(row.format(one.promise, one.kind if first else "", found, looked, what))
    if report.duplicates:
        output.say(f"{report.duplicates:,} duplicates of messages of outboxes, in targets where that is legal")
    for note in report.notes:
        output.say(f"note: {note}")
    for kind, count in report.counts.items():
        for violation in report.of_kind(kind)[:show]:
            output.say("", *violation.text().split("\n"))
        if count > show:
            output.say(f"... and {count - show:,} more of kind {kind}")
    if report.looked_at_nothing:
        output.say("", "nothing to check")
    else:
        output.say("", "clean" if report.clean else f"{sum(report.counts.values()):,} violations")
