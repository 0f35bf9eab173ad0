"""Delayed messages: nobody sees one before its time.

The time begins when the message was asked for, and for a half when somebody first said COMMIT: the broker cannot have begun
earlier. It counts by its own clock, so what it does with a clock that was stepped is not judged.
"""

from typing import Final

from halfmq.testing.history.facts import Facts
from halfmq.testing.history.report import AT_DUE, Findings

#: A broker counts in milliseconds, the timers of RocketMQ in whole seconds, and its clock may run a little faster than ours.
SLACK_US: Final = 1_000_000


def check_due(
    facts: Facts, findings: Findings, tx: str, message: str, due_us: int, seen_us: int, places: tuple[int, ...]
) -> None:
    """``due_us``: the earliest that it may be seen. ``places``: of the events that say so, and of the sight."""
    if seen_us >= facts.clock_stepped_us:
        return
    findings.looks[AT_DUE] += 1
    if seen_us < due_us - SLACK_US:
        text = f"it was seen at {seen_us:,} us, {due_us - seen_us:,} us before its time"
        findings.add(AT_DUE, tx, message, text, places)
