"""The three states of a transaction and what a verdict does in each: the table behind promise 1, agreement.

    state         COMMIT wanted            ROLLBACK wanted          UNKNOWN heard
    UNDECIDED     becomes COMMITTED (1)    becomes ROLLED_BACK      stays
    COMMITTED     stands, repeated         refused, COMMITTED       stays
    ROLLED_BACK   refused, ROLLED_BACK     stands, repeated         stays

(1) only when every half that it says it has is here; else refused, and it stays UNDECIDED.
"""

from enum import Enum

from halfmq.core.commands import RequestedVerdict


class TransactionState(Enum):
    UNDECIDED = "UNDECIDED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"


class Outcome(Enum):
    """What the table says."""

    SETTLES = "settles"
    REPEATS = "repeats"
    CONFLICTS = "conflicts"
    STAYS = "stays"


OUTCOMES = {
    (TransactionState.UNDECIDED, RequestedVerdict.COMMIT): Outcome.SETTLES,
    (TransactionState.UNDECIDED, RequestedVerdict.ROLLBACK): Outcome.SETTLES,
    (TransactionState.UNDECIDED, RequestedVerdict.UNKNOWN): Outcome.STAYS,
    (TransactionState.COMMITTED, RequestedVerdict.COMMIT): Outcome.REPEATS,
    (TransactionState.COMMITTED, RequestedVerdict.ROLLBACK): Outcome.CONFLICTS,
    (TransactionState.COMMITTED, RequestedVerdict.UNKNOWN): Outcome.STAYS,
    (TransactionState.ROLLED_BACK, RequestedVerdict.COMMIT): Outcome.CONFLICTS,
    (TransactionState.ROLLED_BACK, RequestedVerdict.ROLLBACK): Outcome.REPEATS,
    (TransactionState.ROLLED_BACK, RequestedVerdict.UNKNOWN): Outcome.STAYS,
}


def standing_state(committed: bool) -> TransactionState:
    return TransactionState.COMMITTED if committed else TransactionState.ROLLED_BACK
