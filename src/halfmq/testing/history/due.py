"""Delayed messages must not be received before they are due.

The delay counts from the first request, for a half from the first COMMIT request: the broker cannot have started it earlier.
The broker uses its own clock, so nothing is checked after a clock step.
"""

from typing import Final

from halfmq.testing.history.facts import Facts
from halfmq.testing.history.report import AT_DUE, Findings

#: Tolerance: RocketMQ's timers have a resolution of one second, and the broker's clock may run slightly faster.
SLACK_US: Final = 1_000_000


def check_due(
    facts: Facts, findings: Findings, tx: str, message: str, due_us: int, seen_us: int, places: tuple[int, ...]
) -> None:
    """Add a violation if the message was received too early. ``due_us``: when it is due; ``places``: of the events to show."""
    if seen_us >= facts.clock_stepped_us:
        return
    findings.examined[AT_DUE] += 1
    if seen_us < due_us - SLACK_US:
        text = f"it was seen at {seen_us:,} us, {due_us - seen_us:,} us before it was due"
        findings.add(AT_DUE, tx, message, text, places)
