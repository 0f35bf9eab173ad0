"""The history checker: recorded events in, violations of the ten promises out.

    report = check_files([Path("history/")])
    assert report.clean, report.violations[0].text()

Four passes. ``scan`` reads every event once and brings answers to their requests; ``messages`` looks at one message
after the other, ``transactions`` at one transaction after the other, ``order`` at the places of each queue and of the
log. Between the passes rows are grouped in memory, or in a temporary database when they outgrow the budget (``tables``): the
history may be larger than the memory.

Time is only used as it can be known: a request happened after it was recorded, an answer before. Two things are in
order when the answer to one came before the request for the other, and else in either order.

In steps, for who has several sources: ``HistoryCheck(...)``, ``take(source)`` for each, ``report()``.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from halfmq.errors import UsageError
from halfmq.testing.history.events import AnyEvent, Logged
from halfmq.testing.history.messages import Messages
from halfmq.testing.history.order import Order, Places
from halfmq.testing.history.reader import EventsSource, FileSource, Source, Sources, files_of
from halfmq.testing.history.report import (
    BY_NOBODY,
    CHECKS,
    PHANTOM,
    Coverage,
    Evidence,
    Finding,
    Findings,
    Report,
    Violation,
    transaction_name,
)
from halfmq.testing.history.scan import Scan
from halfmq.testing.history.tables import GroupedTable, Row, Tables
from halfmq.testing.history.transactions import Transactions

#: Memory for rows, bytes, before they go to a temporary database: a history of a million events stays in memory.
MEMORY_BYTES: Final = 512 << 20
#: What a check takes with hardly any rows.
MEMORY_BYTES_MIN: Final = 8 << 20
#: Memory of rows per byte of the lines that they come from; measured at 2.4.
MEMORY_PER_BYTE: Final = 2.4
#: Memory of a row that a pass makes, per byte of a line: such rows are larger.
MADE_PER_BYTE: Final = 3.5
#: Of a waiting request and its place in memory.
_WAITING_BYTES: Final = 800
#: Groups that are judged between two looks at the memory.
_GROUPS_AT_ONCE: Final = 1_024

#: Hears (what is done, how much of it, of how much).
Progress = Callable[[str, int, int], None]


def check_files(
    paths: Sequence[Path],
    *,
    logs: Sequence[FileSource] = (),
    memory_bytes: int = MEMORY_BYTES,
    progress: Progress = lambda what, done, of: None,
) -> Report:
    """Check the history in these files and directories, with ``logs`` of stores (``logged.log_source``).

    Raises:
        UsageError: a file cannot be read or is no history; says which, where and why.
    """
    files = [*files_of(paths), *logs]
    with HistoryCheck(sum(file.size for file in files), memory_bytes=memory_bytes, progress=progress) as check:
        for file in files:
            check.take(file)
        return check.report()


def check_events(events: Sequence[AnyEvent], *, memory_bytes: int = MEMORY_BYTES) -> Report:
    """Check a history in memory, such as that of ``MemoryRecorder``."""
    source = EventsSource(events)
    with HistoryCheck(source.size, memory_bytes=memory_bytes) as check:
        check.take(source)
        return check.report()


class HistoryCheck:
    """One check. ``size``: bytes of all sources together, at least about. Use as a context manager: it has a database."""

    def __init__(
        self, size: int, *, memory_bytes: int = MEMORY_BYTES, progress: Progress = lambda what, done, of: None
    ) -> None:
        if memory_bytes < MEMORY_BYTES_MIN:
            raise UsageError(f"a memory budget of {memory_bytes:,} bytes", hint=f"at least {MEMORY_BYTES_MIN:,}")
        self._started = time.monotonic()
        self._size = size
        self._progress = progress
        self._tables = Tables(memory_bytes)
        self._scan = Scan(self._tables, memory_bytes // 16 // _WAITING_BYTES)
        self._findings = Findings()
        self._places = Places(self._tables, self._scan.facts)
        self._sources = Sources()
        self._files = 0
        self._read = 0
        #: Memory of the rows that are in memory, bytes, as far as they were read.
        self._held = 0.0
        self._collects_garbage = gc.isenabled()

    def __enter__(self) -> Self:
        # Millions of rows without a cycle among them: looking for one costs more than the check.
        self._collects_garbage = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()
        if self._collects_garbage:
            gc.enable()

    def take(self, source: Source) -> None:
        """Read all of ``source``.

        Raises:
            UsageError: it cannot be read.
        """
        self._files += 1
        base = self._sources.add(source)
        scan = self._scan
        for block in source.blocks():
            scan.block(block, base)
            self._read += block.size
            self._held += block.size * MEMORY_PER_BYTE
            if self._tables.bound(self._held):
                self._held = 0
            self._progress("reading", self._read, max(self._size, self._read))

    def report(self) -> Report:
        """Judge what was taken; once.

        Raises:
            UsageError: no event was read, or what was recorded contradicts itself.
        """
        scan = self._scan
        facts = scan.facts
        events = scan.events
        scan.finish()
        if not events:
            raise UsageError("the history is empty", hint="its files have no event")
        if facts.wrong:
            place, why = min(facts.wrong)
            name, line = self._sources.name_and_line(place)
            more = f", and {len(facts.wrong) - 1} more of the kind" if len(facts.wrong) > 1 else ""
            raise UsageError(f"{name}:{line}: {why}{more}", hint="what was recorded contradicts itself")
        self.judge_collected()
        order = Order(facts, self._findings)
        order.judge(self._places.places.sorted(), lambda count: self._progress("order", count, events))
        order.judge_keys(self._places.database)
        return self._build_report(self._findings)

    def judge_collected(self) -> None:
        """Judge the messages and transactions taken so far. ``report`` does so; what is taken in between must be others."""
        scan, findings = self._scan, self._findings
        scan.finish()
        messages = Messages(scan.facts, findings, scan.transactions, self._places)
        messages.judge(self._groups("messages", scan.messages))
        transactions = Transactions(scan.facts, findings, self._places)
        transactions.judge(self._groups("transactions", scan.transactions))

    def _groups(self, what: str, table: GroupedTable) -> Iterator[list[Row]]:
        """The groups of ``table``, while the tables that their judgement fills are kept within the budget."""
        done, of = 0, len(table)
        row_bytes = MADE_PER_BYTE * self._read / max(1, self._scan.events)
        for number, rows in enumerate(table.groups()):
            if number % _GROUPS_AT_ONCE == 0:
                self._tables.bound(self._tables.rows_held * row_bytes)
                self._progress(what, done, of)
            done += len(rows)
            yield rows

    def _build_report(self, findings: Findings) -> Report:
        scan = self._scan
        facts = scan.facts
        violations = [self._violation(found) for found in findings.kept()]
        order = {kind: number for number, kind in enumerate(findings.counts)}
        violations.sort(
            key=lambda one: (
                order[one.kind], one.events[0].t_us if one.events else -1, one.transaction, one.message, one.sentence,
            )
        )  # fmt: skip
        return Report(
            events=scan.events,
            files=self._files,
            torn_lines=self._sources.torn,
            systems=tuple(sorted(facts.systems)),
            faults=dict(sorted(facts.faults.items())),
            broker_starts=facts.broker_starts,
            event_counts=dict(sorted((kind.__struct_config__.tag, count) for kind, count in scan.counts.items())),  # type: ignore[attr-defined]
            looked=tuple(
                Coverage(check.promise, check.kind, check.what, looked, findings.counts[check.kind])
                for check, looked in zip(CHECKS, findings.looks, strict=True)
            ),
            counts=findings.counts,
            violations=tuple(violations),
            notes=tuple(self._notes()),
            spilled_bytes=self._tables.spilled_bytes,
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _violation(self, found: Finding) -> Violation:
        events = sorted(map(self._evidence, found.places), key=lambda one: (one.t_us, one.by, one.text))
        return Violation(
            found.kind, found.promise, transaction_name(found.tx), found.message, found.sentence, tuple(events)
        )

    def _evidence(self, place: int) -> Evidence:
        name, line = self._sources.name_and_line(place)
        event, text = self._sources.event(place)
        offset = event.offset if isinstance(event, Logged) and self._sources.is_log(place) else -1
        return Evidence(name, line, event.t_us, event.by, text, offset)

    def _notes(self) -> Iterator[str]:
        scan, facts = self._scan, self._scan.facts
        if scan.answers_alone:
            yield f"{scan.answers_alone:,} answers to requests that are in no file: is one missing?"
        if not facts.reads:
            yield "no queue was read to its end (queue_read): nothing can be called lost or torn"
        if facts.settled_us < 0:
            yield "the run did not settle (settled): nothing can be called stuck"
        if not facts.log_records:
            yield "the log was not read (--log DIR): answers are not held against it"
        elif self._findings.counts[BY_NOBODY] or self._findings.counts[PHANTOM]:
            yield (
                "was everybody recorded who sends to this broker? What others send is a phantom, and their verdicts are "
                "decided by nobody"
            )
        if not facts.broker_starts:
            yield "no broker was restarted (started)"
        if facts.acknowledgements_void:
            yield (
                "durability memory, the power failed, and no start says where the log ended (log_end): answers promise "
                "nothing, so nothing is called forgotten"
            )
        elif facts.losses:
            yield f"durability memory: {len(facts.losses)} power losses took back what was answered after the log's end"
