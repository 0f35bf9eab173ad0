"""The result of a reconciliation: for programs (JSON), and for people."""

from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from halfmq.errors import UsageError
from halfmq.printable import printable, printable_json


class Kind(StrEnum):
    """Kinds of differences. A key has one kind: the first that applies, in the order of ``differences.classify``."""

    MISSING = "missing"
    PHANTOM = "phantom"
    DUPLICATED = "duplicated"
    DIFFERENT = "different"
    REPEATED_ROW = "repeated_row"
    ROW_WITHOUT_KEY = "row_without_key"
    UNREADABLE = "unreadable"
    #: No difference: a message that became visible when or after the table was read.
    NEWER = "newer"


MEANING: Final = {
    Kind.MISSING: "rows of the table without a message",
    Kind.PHANTOM: "messages without a row",
    Kind.DUPLICATED: "keys with several messages",
    Kind.DIFFERENT: "keys whose compared columns differ or cannot be read",
    Kind.REPEATED_ROW: "keys with several rows in the table",
    Kind.ROW_WITHOUT_KEY: "rows with NULL in the key",
    Kind.UNREADABLE: "messages without a key that can be read",
    Kind.NEWER: "messages without a row, newer than the table (not counted as differences)",
}


class Values(msgspec.Struct, frozen=True):
    """A compared column of a key, both values as text; None: NULL."""

    column: str
    table: str | None
    messages: str | None


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A key, or a message, with a difference. Places are ``TOPIC/QUEUE/OFFSET``; ``reason``: what is wrong with the body of the message."""

    key: dict[str, str | None]
    rows: int
    messages: int
    values: list[Values] = []
    first_message: str | None = None
    last_message: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None and not self.rows and None in self.key.values():
            return f"{self.first_message or 'a message'}: {self.reason}"
        parts = [", ".join(f"{name} {_shown(value)}" for name, value in self.key.items())]
        parts += [f"{one.column}: table {_shown(one.table)}, message {_shown(one.messages)}" for one in self.values]
        if self.rows > 1:
            parts.append(f"{self.rows} rows")
        if self.messages > 1:
            parts.append(f"{self.messages} messages")
        if self.first_message is not None:
            last = f" ... {self.last_message}" if self.last_message not in (None, self.first_message) else ""
            parts.append(f"{self.first_message}{last}")
        if self.reason is not None:
            parts.append(self.reason)
        return "; ".join(parts)


def _shown(value: str | None) -> str:
    return "NULL" if value is None else value


class Total(msgspec.Struct, frozen=True):
    """Sums of a column over all rows, and over all messages that are readable and not newer; exact. ``off``: messages - table."""

    column: str
    table: Decimal
    messages: Decimal
    off: Decimal
    differs: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """``counts``: of ``Kind``, all of them. ``messages_read`` includes unreadable ones."""

    table: str
    messages: str
    #: ISO 8601, UTC: the table was read then.
    read_at: str
    rows: int
    messages_read: int
    #: Keys with one row and one message whose compared columns are equal.
    equal: int
    counts: dict[Kind, int]
    #: Messages beyond the first of duplicated keys.
    extra_messages: int
    compared: list[str]
    totals: list[Total] = []
    examples: dict[Kind, list[Example]] = {}
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        """Keys, rows and messages with a difference, and totals that differ."""
        found = sum(count for kind, count in self.counts.items() if kind is not Kind.NEWER)
        return found + sum(one.differs for one in self.totals)


class _Encoded(Result, frozen=True, kw_only=True):
    differences_found: int


def to_json(result: Result) -> bytes:
    """The fields of ``Result``, and ``differences_found``."""
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    return printable_json(
        msgspec.json.format(msgspec.json.encode(_Encoded(**fields, differences_found=result.differences)))
    )


def from_json(path: Path) -> Result:
    """Raises UsageError: no such file, or not the JSON of a reconciliation."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path} is not the result of a reconciliation: {error}", hint="the file of reconcile --json"
        ) from error


def show(result: Result, console: Console) -> None:
    for what, count, where in (
        ("table", result.rows, result.table),
        ("messages", result.messages_read, result.messages),
    ):
        console.print(Text(printable(f"{what:<9} {count:>12,}  {where}")), soft_wrap=True, highlight=False)
    if result.totals:
        console.print(_totals(result.totals))
    counts = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=False)
    counts.add_column(justify="right")
    counts.add_column(no_wrap=True)
    counts.add_column(style="dim")
    counts.add_row(f"{result.equal:,}", "equal", "keys with one row and one message, and equal columns")
    for kind, count in shown_counts(result):
        style = "red" if count and kind is not Kind.NEWER else ""
        more = ""
        if kind is Kind.DUPLICATED and count:
            more = f"; {result.extra_messages:,} too many"
        elif kind is Kind.MISSING and count and result.counts.get(Kind.UNREADABLE):
            more = "; see unreadable"
        counts.add_row(Text(f"{count:,}", style), Text(kind.replace("_", " "), style), MEANING[kind] + more)
    console.print(counts)
    for kind, found in result.examples.items():
        for number, example in enumerate(found):
            line = Text("  ").append(f"{kind.replace('_', ' '):<16}" if number == 0 else " " * 16, "red")
            console.print(line.append(printable(str(example))), soft_wrap=True, highlight=False)
        left = result.counts[kind] - len(found)
        if left > 0:
            console.print(Text(f"  {'':<16}and {left:,} more", "dim"))
    verdict = Text("no differences", "green")
    if result.differences:
        verdict = Text(f"{result.differences:,} difference{'s' if result.differences > 1 else ''}", "red")
    console.print(Text("Result: ").append(verdict).append(f" ({result.seconds:.1f} s)"), highlight=False)


def _totals(totals: list[Total]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("sum of")
    for name in ("table", "messages", "difference"):
        table.add_column(name, justify="right")
    for one in totals:
        off = Text(f"{one.off:+,f}", "red" if one.differs else "")
        table.add_row(Text(printable(one.column)), f"{one.table:,f}", f"{one.messages:,f}", off)
    return table


def shown_counts(result: Result) -> Iterator[tuple[Kind, int]]:
    """The four kinds that every reconciliation names, and others that were found."""
    for kind in Kind:
        count = result.counts.get(kind, 0)
        if count or kind in (Kind.MISSING, Kind.PHANTOM, Kind.DUPLICATED, Kind.DIFFERENT):
            yield kind, count
