"""The three states of a transaction and the effect of each verdict: the table behind promise 1, agreement.

    state         COMMIT requested         ROLLBACK requested       UNKNOWN received
    UNDECIDED     becomes COMMITTED (1)    becomes ROLLED_BACK      no change
    COMMITTED     confirmed, repeated      refused, COMMITTED       no change
    ROLLED_BACK   refused, ROLLED_BACK     confirmed, repeated      no change

(1) only if all halves that the transaction states are stored; else refused, and it stays UNDECIDED.

The first row is the code of ``decide_end`` (``machine.py``), the others are ``OF_SETTLED``, which it looks up.
"""

from enum import Enum
from typing import Final

from halfmq.core.commands import RequestedVerdict
from halfmq.model.records import DecidedBy


class TransactionState(Enum):
    """Clients and operators see these values. The last two are final."""

    UNDECIDED = "UNDECIDED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"


class SettledEffect(Enum):
    """The entries of the table for a settled transaction."""

    REPEATS = "repeats"
    CONFLICTS = "conflicts"
    STAYS = "stays"


OF_SETTLED = {
    (TransactionState.COMMITTED, RequestedVerdict.COMMIT): SettledEffect.REPEATS,
    (TransactionState.COMMITTED, RequestedVerdict.ROLLBACK): SettledEffect.CONFLICTS,
    (TransactionState.COMMITTED, RequestedVerdict.UNKNOWN): SettledEffect.STAYS,
    (TransactionState.ROLLED_BACK, RequestedVerdict.COMMIT): SettledEffect.CONFLICTS,
    (TransactionState.ROLLED_BACK, RequestedVerdict.ROLLBACK): SettledEffect.REPEATS,
    (TransactionState.ROLLED_BACK, RequestedVerdict.UNKNOWN): SettledEffect.STAYS,
}


_BY: Final = {
    DecidedBy.PRODUCER: "its producer",
    DecidedBy.CHECK: "its producer, in response to a check",
    DecidedBy.MARKER: "its producer, from the marker table, in response to a check",
    DecidedBy.OPERATOR: "an operator",
    DecidedBy.POLICY: "the policy of its producer group",
    DecidedBy.COORDINATOR: "its coordinator",
    DecidedBy.FENCE: "a fence, before anybody had prepared it",
}


def by_whom(number: int) -> str:
    """For a sentence about a verdict: who gave it; empty if a later version wrote it."""
    return f", decided by {_BY[DecidedBy(number)]}" if number in _BY else ""


def standing_state(committed: bool) -> TransactionState:
    return TransactionState.COMMITTED if committed else TransactionState.ROLLED_BACK
