"""Which checks of the history checker find something to examine in a soak's histories."""

from typing import Final

from halfmq.testing.history.report import CHECKS, At

#: Losses by a restart can be counted only if something is missing; no message is delayed, or of an outbox; nobody records what a
#: coordinator, a participant of Try/Confirm/Cancel, or a handler that sends does, nor what was found of verdicts that contradict a
#: database.
PERHAPS_IDLE: Final = frozenset(
    {
        At.DURABLE_RESTART, At.DUE, At.OUTBOX_PHANTOM, At.FALLBACK, At.OUTBOX_MISSED, At.OUTBOX_ORDER,
        At.EPOCHS, At.EPOCHS_RISE, At.COORDINATED, At.FENCED, At.BRANCH_VERDICT, At.BRANCH_ENDS, At.BRANCH_CALLS, At.BRANCHES_WHOLE, At.BRANCH_HELD,
        At.HANDLED, At.DAMAGE_SAID, At.DAMAGE_FOUND, At.DAMAGE_ONCE, At.DAMAGE_STAYS,
    }
)  # fmt: skip
EXAMINED: Final = frozenset(
    {
        At.AGREEMENT, At.VALIDITY, At.MESSAGE_PHANTOM, At.MISSED, At.READERS, At.ONCE, At.WHOLE,
        At.DURABLE_LOG, At.PROGRESS, At.ORDER, At.KEYS, At.TIME,
    }
)  # fmt: skip


def names(checks: frozenset[int]) -> set[str]:
    """As in a round's record."""
    return {f"promise {CHECKS[one].promise}: {CHECKS[one].what}" for one in checks}
