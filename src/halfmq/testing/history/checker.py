"""The history checker: recorded events in, violations of the ten promises out.

    report = check_files([Path("history/")])
    assert report.clean, report.violations[0].text()

Four passes: ``scan`` reads every event once and joins responses to requests; ``messages`` checks each message,
``transactions`` each transaction, and ``order`` the positions in each queue and in the log. Between passes rows are grouped in
memory, or in a temporary database beyond the memory budget (``tables``), so a history may be larger than memory.

A request happened after it was recorded, a response before. A precedes B only if the response to A was recorded before the
request for B; otherwise either order is legal.

Step by step, for several sources: ``HistoryCheck(...)``, ``take(source)`` for each, ``report()``.
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
    CHECKS,
    PHANTOM,
    UNREQUESTED,
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
#: The smallest memory budget, bytes: what a check needs with few rows.
MEMORY_BYTES_MIN: Final = 8 << 20
#: Memory of rows per byte of their input lines, as measured.
MEMORY_PER_BYTE: Final = 2.4
#: The same for rows produced by a pass, which are larger.
MADE_PER_BYTE: Final = 3.5
#: Memory of one pending request, bytes.
_WAITING_BYTES: Final = 800
#: Groups that are checked between two tests of the memory use.
_GROUPS_AT_ONCE: Final = 1_024

#: Progress callback: (phase, done, total).
Progress = Callable[[str, int, int], None]


def check_files(
    paths: Sequence[Path],
    *,
    logs: Sequence[FileSource] = (),
    memory_bytes: int = MEMORY_BYTES,
    progress: Progress = lambda what, done, of: None,
) -> Report:
    """Check the history in these files and directories, together with ``logs`` of stores (see ``logged.log_source``).

    Raises:
        UsageError: a file is unreadable or not a history; names file, line and reason.
    """
    files = [*files_of(paths), *logs]
    with HistoryCheck(sum(file.size for file in files), memory_bytes=memory_bytes, progress=progress) as check:
        for file in files:
            check.take(file)
        return check.report()


def check_events(events: Sequence[AnyEvent], *, memory_bytes: int = MEMORY_BYTES) -> Report:
    """Check a history in memory, such as ``MemoryRecorder.events``."""
    source = EventsSource(events)
    with HistoryCheck(source.size, memory_bytes=memory_bytes) as check:
        check.take(source)
        return check.report()


class HistoryCheck:
    """One check. ``size``: approximate bytes of all sources. Use it as a context manager, since it holds a database."""

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
        #: Estimated memory of the rows in memory, bytes.
        self._held = 0.0
        self._collects_garbage = gc.isenabled()

    def __enter__(self) -> Self:
        # Millions of rows without reference cycles: garbage collection would cost more than the check.
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
        """Check everything taken, and return the report. Call it once.

        Raises:
            UsageError: no event was read, or the recording contradicts itself.
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
            more = f", and {len(facts.wrong) - 1} more of this kind" if len(facts.wrong) > 1 else ""
            raise UsageError(f"{name}:{line}: {why}{more}", hint="the recording contradicts itself")
        self.judge_collected()
        scan.epochs.judge(facts, self._findings)
        order = Order(facts, self._findings)
        order.judge(self._places.places.sorted(), lambda count: self._progress("order", count, events))
        order.judge_keys(self._places.database)
        order.judge_commits(self._places.commits.sorted())
        return self._build_report(self._findings)

    def judge_collected(self) -> None:
        """Check the messages and transactions taken so far; ``report`` calls it. Later sources must contain others."""
        scan, findings = self._scan, self._findings
        scan.finish()
        messages = Messages(scan.facts, findings, scan.transactions, self._places)
        messages.judge(self._groups("messages", scan.messages))
        transactions = Transactions(scan.facts, findings, self._places, messages.stopped_keys)
        transactions.judge(self._groups("transactions", scan.transactions))

    def _groups(self, what: str, table: GroupedTable) -> Iterator[list[Row]]:
        """The groups of ``table``; keeps the tables that their check fills within the memory budget."""
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
                for check, looked in zip(CHECKS, findings.examined, strict=True)
            ),
            counts=findings.counts,
            duplicates=findings.duplicates,
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
            yield f"{scan.answers_alone:,} responses to requests that are in no file; is a file missing?"
        if not facts.reads:
            yield "no queue was read to its end (queue_read): nothing is reported as lost or torn"
        if facts.settled_us < 0:
            yield "the run did not settle (settled): nothing is reported as stuck"
        if not facts.log_records:
            yield "the log was not read (--log DIR): acknowledgements are not compared with it"
        elif self._findings.counts[UNREQUESTED] or self._findings.counts[PHANTOM]:
            yield (
                "was every sender of this broker recorded? Messages of others are reported as phantoms, and their verdicts as "
                "unrequested"
            )
        if not facts.broker_starts:
            yield "no broker was restarted (started)"
        if facts.acknowledgements_void:
            yield (
                "durability memory, a power loss, and no start states the end of the log (log_end): acknowledgements prove "
                "nothing, so nothing is reported as not durable"
            )
        elif facts.losses:
            yield f"durability memory: {len(facts.losses)} power losses; acknowledgements after the end of the log are ignored"
