"""The three states of a transaction and what a verdict does in each: the table behind promise 1, agreement.

    state         COMMIT wanted            ROLLBACK wanted          UNKNOWN heard
    UNDECIDED     becomes COMMITTED (1)    becomes ROLLED_BACK      stays
    COMMITTED     stands, repeated         refused, COMMITTED       stays
    ROLLED_BACK   refused, ROLLED_BACK     stands, repeated         stays

(1) only when every half that it says it has is here; else refused, and it stays UNDECIDED.
"""

from enum import Enum

from halfmq.core.commands import Wanted


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
    (TransactionState.UNDECIDED, Wanted.COMMIT): Outcome.SETTLES,
    (TransactionState.UNDECIDED, Wanted.ROLLBACK): Outcome.SETTLES,
    (TransactionState.UNDECIDED, Wanted.UNKNOWN): Outcome.STAYS,
    (TransactionState.COMMITTED, Wanted.COMMIT): Outcome.REPEATS,
    (TransactionState.COMMITTED, Wanted.ROLLBACK): Outcome.CONFLICTS,
    (TransactionState.COMMITTED, Wanted.UNKNOWN): Outcome.STAYS,
    (TransactionState.ROLLED_BACK, Wanted.COMMIT): Outcome.CONFLICTS,
    (TransactionState.ROLLED_BACK, Wanted.ROLLBACK): Outcome.REPEATS,
    (TransactionState.ROLLED_BACK, Wanted.UNKNOWN): Outcome.STAYS,
}


def standing_state(committed: bool) -> TransactionState:
    return TransactionState.COMMITTED if committed else TransactionState.ROLLED_BACK
