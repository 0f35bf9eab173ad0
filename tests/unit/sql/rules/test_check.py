"""What a check answers, step by step."""

import pytest

from halfmq.client.outcome import Outcome
from halfmq.sql.rules.check import CheckResult, Reply, Step, answer_check, run
from halfmq.sql.rules.marker import Seen
from halfmq.sql.rules.table_identity import Bounds, Origin

TABLE = Bounds((1 << 62) + 7, 1_000)
#: Began in this table, after its horizon; and before it.
FRESH, PRUNED = (Origin(TABLE.identity, ms).text() for ms in (1_000, 999))
ELSEWHERE = Origin(TABLE.identity + 1, 1_000).text()
ABSENT, PREPARED, COMMITTED, FENCED = (
    Seen(outcome, TABLE) for outcome in (None, Outcome.UNKNOWN, Outcome.COMMIT, Outcome.ROLLBACK)
)
NO_TABLE = Seen(None, None)
DONE, CONFLICT, LOCKED = Reply
LOOK, ESTABLISH, INSERT_FENCE, FENCE_PREPARED, FORGET = Step
COMMIT, ROLLBACK, UNKNOWN = Outcome.COMMIT, Outcome.ROLLBACK, Outcome.UNKNOWN

Script = list[tuple[Step, Seen | Reply]]


def played(script: Script, origin: str, *, may_fence: bool = True) -> CheckResult:
    """The result; each step must be the next one of ``script``, and none may be left over."""
    left = list(script)

    def execute(step: Step) -> Seen | Reply:
        expected, reply = left.pop(0)
        assert step is expected
        return reply

    result = run(answer_check("mq_tx", origin, None, may_fence=may_fence), execute)
    assert left == []
    return result


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([(LOOK, COMMITTED)], COMMIT),
        ([(LOOK, FENCED)], ROLLBACK),
        ([(LOOK, LOCKED)], UNKNOWN),
        ([(LOOK, PREPARED), (FENCE_PREPARED, DONE)], ROLLBACK),
        ([(LOOK, PREPARED), (FENCE_PREPARED, CONFLICT)], UNKNOWN),
        ([(LOOK, PREPARED), (FENCE_PREPARED, LOCKED)], UNKNOWN),
        ([(LOOK, ABSENT), (INSERT_FENCE, DONE)], ROLLBACK),
        ([(LOOK, ABSENT), (INSERT_FENCE, LOCKED)], UNKNOWN),
        ([(LOOK, ABSENT), (INSERT_FENCE, CONFLICT), (LOOK, COMMITTED)], COMMIT),
        ([(LOOK, ABSENT), (INSERT_FENCE, CONFLICT), (LOOK, FENCED)], ROLLBACK),
        ([(LOOK, ABSENT), (INSERT_FENCE, CONFLICT), (LOOK, PREPARED)], UNKNOWN),
        ([(LOOK, ABSENT), (INSERT_FENCE, CONFLICT), (LOOK, ABSENT)], UNKNOWN),
        ([(LOOK, ABSENT), (INSERT_FENCE, CONFLICT), (LOOK, LOCKED)], UNKNOWN),
    ],
)
def test_steps_and_answer(script: Script, expected: Outcome) -> None:
    assert played(script, FRESH) == CheckResult(expected)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([(LOOK, ABSENT), (INSERT_FENCE, DONE)], ROLLBACK),
        ([(LOOK, NO_TABLE), (ESTABLISH, DONE), (LOOK, ABSENT), (INSERT_FENCE, DONE)], ROLLBACK),
        ([(LOOK, NO_TABLE), (ESTABLISH, DONE), (LOOK, COMMITTED)], COMMIT),
        ([(LOOK, NO_TABLE), (ESTABLISH, LOCKED), (LOOK, NO_TABLE)], UNKNOWN),
        ([(LOOK, NO_TABLE), (ESTABLISH, LOCKED), (LOOK, ABSENT), (INSERT_FENCE, DONE)], ROLLBACK),
        ([(LOOK, NO_TABLE), (ESTABLISH, DONE), (LOOK, LOCKED)], UNKNOWN),
        ([(LOOK, Seen(COMMIT, None))], COMMIT),
        ([(LOOK, Seen(UNKNOWN, None)), (FENCE_PREPARED, DONE)], ROLLBACK),
    ],
)
def test_half_without_origin_gives_the_table_an_identity_first(script: Script, expected: Outcome) -> None:
    assert played(script, "") == CheckResult(expected)


@pytest.mark.parametrize(
    ("script", "origin"),
    [
        ([(LOOK, ABSENT)], PRUNED),
        ([(LOOK, ABSENT), (FORGET, DONE)], ELSEWHERE),
        ([(LOOK, ABSENT), (FORGET, DONE)], "of a newer release"),
        ([(LOOK, NO_TABLE), (FORGET, DONE)], FRESH),
    ],
)
@pytest.mark.parametrize("may_fence", [True, False])
def test_absence_that_proves_nothing_is_unknown_and_says_why(script: Script, origin: str, may_fence: bool) -> None:
    outcome, remark = played(script, origin, may_fence=may_fence)
    assert outcome is UNKNOWN
    assert remark


@pytest.mark.parametrize(
    ("looked", "expected"), [(ABSENT, UNKNOWN), (PREPARED, UNKNOWN), (COMMITTED, COMMIT), (FENCED, ROLLBACK)]
)
def test_young_transaction_is_only_looked_at(looked: Seen, expected: Outcome) -> None:
    assert played([(LOOK, looked)], FRESH, may_fence=False) == CheckResult(expected)


def test_error_of_the_database_is_raised_and_nothing_follows() -> None:
    steps = []

    def execute(step: Step) -> Seen | Reply:
        steps.append(step)
        if step is INSERT_FENCE:
            raise StopIteration("even this one")
        return ABSENT

    with pytest.raises(StopIteration, match="even this one"):
        run(answer_check("mq_tx", FRESH, None, may_fence=True), execute)
    assert steps == [LOOK, INSERT_FENCE]
