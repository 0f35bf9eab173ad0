"""The table of verdicts on settled transactions is whole and agrees with promise 1. Undecided ones: test_machine.py."""

from halfmq.core.commands import RequestedVerdict
from halfmq.core.transaction.states import OF_SETTLED, SettledEffect, TransactionState, standing_state


def test_a_settled_transaction_has_an_outcome_of_every_verdict() -> None:
    settled = set(TransactionState) - {TransactionState.UNDECIDED}
    assert set(OF_SETTLED) == {(state, wanted) for state in settled for wanted in RequestedVerdict}


def test_the_opposite_verdict_is_always_a_conflict_and_the_same_never() -> None:
    for committed, same, opposite in (
        (True, RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK),
        (False, RequestedVerdict.ROLLBACK, RequestedVerdict.COMMIT),
    ):
        assert OF_SETTLED[standing_state(committed), same] is SettledEffect.REPEATS
        assert OF_SETTLED[standing_state(committed), opposite] is SettledEffect.CONFLICTS
