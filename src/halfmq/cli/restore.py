"""``halfmq restore BACKUP DATA``: a new store from a backup."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from halfmq.broker.restore import RestoredStore, restore
from halfmq.cli import output
from halfmq.cli.exit_status import exit_text
from halfmq.cli.main import path
from halfmq.cli.requests import Commands, Json
from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.model.durations import span
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy

_COMMANDS: Final = Commands("halfmq restore")
app = typer.Typer(help="Restore a backup into a new store.", add_completion=False)
#: Undecided transactions in text; JSON has all.
_SHOWN_MAX: Final = 100


@app.command(epilog=exit_text("halfmq restore"))
def restore_(
    backup: Annotated[
        Path, typer.Argument(parser=path, metavar="BACKUP", help="Directory of a backup, as `halfmq backup` made it.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            parser=path, metavar="DATA", help="Directory of the new store, for `halfmq serve --data`; empty or new."
        ),
    ],
    position: Annotated[
        int | None,
        typer.Option(min=1, help="Restore only up to the last batch that ends at or before this log offset."),
    ] = None,
    at_time: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Restore only what the broker wrote up to this time, such as 2026-11-28T20:15:00Z.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a new store from a backup, and list the transactions that are undecided in it.

    The store gets an id of its own, so that readers of the one before notice. What was undecided is checked again when the broker runs. A
    commit is then accepted; a rollback waits for an operator (`halfmq tx`), since the transaction may have been committed after the backup.
    """
    with _COMMANDS.reported():
        if position is not None and at_time:
            raise UsageError("--position and --time: only one of them")
        time_ms = _ms(at_time) if at_time else None
        try:
            made = restore(RealDisk(), SystemEntropy(), backup, data, position=position, time_ms=time_ms)
        except OSError as error:
            raise EnvironmentFailed(
                f"{error.filename or data}: {error.strerror or error}",
                hint="what was written so far is no store: remove the directory, and restore again",
            ) from error
    if as_json:
        document = {**made._asdict(), "undecided": [one._asdict() for one in made.undecided]}
        output.document(msgspec.json.encode(document))
        return
    _print(made, data)


def _ms(text: str) -> int:
    """
    Raises:
        UsageError: it is no time, or says no time zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(f"--time {text!r} is not a time with a zone, such as 2026-11-28T20:15:00Z")
    return round(found.timestamp() * 1_000)


def _print(made: RestoredStore, data: Path) -> None:
    written = datetime.fromtimestamp(made.time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    output.say(
        f"{data} is store {made.store}, restored from store {made.restored_from} up to position {made.position}, written at {written}",
        f"{len(made.undecided)} transactions are undecided"
        + (
            ": their producers are checked; a rollback waits for an operator (halfmq tx list)" if made.undecided else ""
        ),
    )
    if made.undecided:
        now_ms = time.time_ns() // 1_000_000
        output.table(
            ("GROUP", "ID", "AGE", "TOPICS"),
            (
                (one.group, one.tx_id, span(max(0, now_ms - one.prepared_at_ms)), ", ".join(one.topics))
                for one in made.undecided[:_SHOWN_MAX]
            ),
        )
    if len(made.undecided) > _SHOWN_MAX:
        output.say(f"and {len(made.undecided) - _SHOWN_MAX} more, which --json lists")
