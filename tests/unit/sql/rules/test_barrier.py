"""What is done with a call of a branch, for every row that the database may have of it."""

from typing import NamedTuple

import pytest

from halfmq.client.branch import CANCEL, CONFIRM, TRY
from halfmq.errors import BranchConflict, BranchRefused, LateTry
from halfmq.sql.rules.barrier import Step, after_own_row, after_try_row


class Call(NamedTuple):
    gid: str
    branch: str
    op: str


#: (op, the row of the try is new, whose call inserted it) -> what follows.
AFTER_TRY = {
    (TRY, True, TRY): Step.RUN,
    (TRY, False, TRY): Step.SKIP,
    (TRY, False, CANCEL): LateTry,
    (CANCEL, True, CANCEL): Step.KEEP_ROW,
    (CANCEL, False, CANCEL): Step.SKIP,
    (CANCEL, False, TRY): Step.OWN_ROW,
    (CONFIRM, True, CONFIRM): BranchConflict,
    (CONFIRM, False, CANCEL): BranchConflict,
    (CONFIRM, False, TRY): Step.OWN_ROW,
}


@pytest.mark.parametrize("facts", AFTER_TRY, ids=str)
def test_row_of_the_try(facts: tuple[str, bool, str]) -> None:
    op, is_new, reason = facts
    expected = AFTER_TRY[facts]
    if isinstance(expected, Step):
        assert after_try_row(Call("g", "1", op), is_new=is_new, reason=reason) is expected
        return
    with pytest.raises(expected) as refused:
        after_try_row(Call("g", "1", op), is_new=is_new, reason=reason)
    assert isinstance(refused.value, BranchRefused)
    assert not refused.value.retriable


@pytest.mark.parametrize("op", [CONFIRM, CANCEL])
def test_own_row_runs_once_and_never_after_the_other_one(op: str) -> None:
    call = Call("g", "1", op)
    assert after_own_row(call, is_new=True, opposite_there=False)
    assert not after_own_row(call, is_new=False, opposite_there=False)
    for is_new in (True, False):
        with pytest.raises(BranchConflict):
            after_own_row(call, is_new=is_new, opposite_there=True)
