"""The table of verdicts is whole and agrees with promise 1."""

from halfmq.core.commands import RequestedVerdict
from halfmq.core.transaction.states import OUTCOMES, Outcome, TransactionState, standing_state


def test_every_state_answers_every_wish() -> None:
    assert set(OUTCOMES) == {(state, wanted) for state in TransactionState for wanted in RequestedVerdict}


def test_only_an_undecided_transaction_is_settled() -> None:
    settling = {state for (state, _), outcome in OUTCOMES.items() if outcome is Outcome.SETTLES}
    assert settling == {TransactionState.UNDECIDED}


def test_the_opposite_verdict_is_always_a_conflict_and_the_same_never() -> None:
    for committed, same, opposite in (
        (True, RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK),
        (False, RequestedVerdict.ROLLBACK, RequestedVerdict.COMMIT),
    ):
        assert OUTCOMES[standing_state(committed), same] is Outcome.REPEATS
        assert OUTCOMES[standing_state(committed), opposite] is Outcome.CONFLICTS
