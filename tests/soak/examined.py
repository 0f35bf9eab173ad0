"""Which checks of the history checker find something to examine in a soak's histories."""

from typing import Final

from halfmq.testing.history import report

#: Losses by a restart can be counted only if something is missing; no message is delayed, or of an outbox; nobody records what a coordinator,
#: a participant of Try/Confirm/Cancel, or a handler that sends does, nor what was found of verdicts that contradict a database.
PERHAPS_IDLE: Final = frozenset(
    {
        report.AT_DURABLE_RESTART, report.AT_DUE, report.AT_OUTBOX_PHANTOM, report.AT_FALLBACK, report.AT_OUTBOX_MISSED, report.AT_OUTBOX_ORDER,
        report.AT_EPOCHS, report.AT_BRANCH_VERDICT, report.AT_BRANCH_ENDS, report.AT_BRANCH_CALLS, report.AT_BRANCHES_WHOLE, report.AT_BRANCH_HELD,
        report.AT_HANDLED, report.AT_DAMAGE_SAID, report.AT_DAMAGE_FOUND, report.AT_DAMAGE_ONCE, report.AT_DAMAGE_STAYS,
    }
)  # fmt: skip
EXAMINED: Final = frozenset(
    {
        report.AT_AGREEMENT, report.AT_VALIDITY, report.AT_PHANTOM, report.AT_MISSED, report.AT_READERS, report.AT_ONCE, report.AT_WHOLE,
        report.AT_DURABLE_LOG, report.AT_PROGRESS, report.AT_ORDER, report.AT_KEYS, report.AT_TIME,
    }
)  # fmt: skip


def names(checks: frozenset[int]) -> set[str]:
    """As in a round's record."""
    return {f"promise {report.CHECKS[one].promise}: {report.CHECKS[one].what}" for one in checks}
