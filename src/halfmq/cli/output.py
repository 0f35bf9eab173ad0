"""What the command line prints. Every line goes through here, since most contain text of peers, which ``printable`` makes harmless.

``tests/architecture/test_output.py`` finds what prints otherwise.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import repeat

import typer

from halfmq.printable import printable, printable_json, traceback_lines


def say(*lines: str) -> None:
    """Print results on standard output. A line end within a line is escaped."""
    for line in lines:
        typer.echo(printable(line))


def note(*lines: str) -> None:
    """Print everything else on standard error. A line end within a line is escaped."""
    for line in lines:
        typer.echo(printable(line), err=True)


def document(json: bytes) -> None:
    """Print a JSON document on standard output."""
    sys.stdout.buffer.write(printable_json(json) + b"\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], below: Iterable[str] | None = None) -> None:
    """Print rows on standard output, in columns. ``below``: for each row, a line under it; empty: none."""
    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line, text in zip(lines, ("", *(repeat("", len(lines) - 1) if below is None else below)), strict=True):
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if text:
            say(f"    {text}")


def prompt(text: str) -> str:
    """Ask on standard error, and return what was typed."""
    return str(typer.prompt(printable(text), err=True))


def progress(text: str) -> None:
    """Replace the line of progress on standard error."""
    sys.stderr.write(f"\r{printable(text)}")
    sys.stderr.flush()


def trace(error: BaseException) -> None:
    """Print an exception that nobody expected, with its causes and their places."""
    note(*traceback_lines(error))
