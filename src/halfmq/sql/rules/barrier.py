"""What a participant of Try/Confirm/Cancel does with a call of one branch, from the rows that the database has of it.

Deliveries repeat, and come in any order: a try may arrive after the cancel of its branch, and a cancel where there was no try. Each call
first writes *the row of the try*, or finds it; whoever inserts it decides, since its key is (gid, branch, try) and the others wait for it.

    call      row of the try     what is done
    try       is new             the handler runs
    try       of a try           nothing: it was repeated
    try       of a cancel        ``LateTry``: the branch was cancelled before it was tried
    cancel    is new             nothing but the row: an empty cancel, which refuses a later try
    cancel    of a cancel        nothing: it was repeated
    confirm   is new             ``BranchConflict``: nothing was tried; rolled back, so that the row is not there
    confirm   of a cancel        ``BranchConflict``

If the row is that of a try, a confirm and a cancel then write a row of their own: the handler runs if that is new and the other of the two
has none. They hold the row of the try from their first statement on, so that one waits for the other.

Source: dtm's barrier of sub-transactions (``branchbarrier.go``), which skips a late try as if it had succeeded; Seata's fence table, 1.5.1.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from halfmq.client.branch import CANCEL, CONFIRM, Branch
from halfmq.errors import BranchConflict, LateTry

#: Of these two a branch gets one.
OPPOSITE: Final[Mapping[str, str]] = {CONFIRM: CANCEL, CANCEL: CONFIRM}


class Step(Enum):
    """What follows from the row of the try."""

    #: Call the handler. The row of the try is its proof.
    RUN = "run"
    #: Nothing was to do, and nothing was written.
    SKIP = "skip"
    #: Nothing is to do, and the row must be committed: it refuses a later try.
    KEEP_ROW = "keep-row"
    #: The row of the call itself decides.
    OWN_ROW = "own-row"


def after_try_row(call: Branch, *, is_new: bool, reason: str) -> Step:
    """``is_new``: this call has inserted the row of the try. ``reason``: the op of the call that did.

    Raises:
        LateTry: the branch was cancelled before. BranchConflict: a confirm of what was not tried. Roll back.
    """
    match call.op:
        case "try" if is_new:
            return Step.RUN
        case "try" if reason == CANCEL:
            raise LateTry(
                f"branch {call.branch} of {call.gid} was cancelled before this try arrived",
                hint="answer that it failed; nothing was written, and nothing will ask for it again",
            )
        case "try":
            return Step.SKIP
        case "cancel" if is_new:
            return Step.KEEP_ROW
        case "cancel" if reason == CANCEL:
            return Step.SKIP
        case "confirm" if is_new:
            raise BranchConflict(
                f"branch {call.branch} of {call.gid} is to be confirmed, and was never tried here",
                hint="the try must use the barrier of the same database, and commit before it answers",
            )
        case "confirm" if reason == CANCEL:
            raise _conflict(call)
        case _:
            return Step.OWN_ROW


def after_own_row(call: Branch, *, is_new: bool, opposite_there: bool) -> bool:
    """Whether the handler of a confirm or cancel is to run. ``opposite_there``: the branch has a row of the other one.

    Raises:
        BranchConflict: it has. Roll back.
    """
    if opposite_there:
        raise _conflict(call)
    return is_new


def _conflict(call: Branch) -> BranchConflict:
    return BranchConflict(
        f"branch {call.branch} of {call.gid} is to be {_PAST[call.op]}, and is {_PAST[OPPOSITE[call.op]]} already",
        hint="nothing was written; a person must compare the databases: the first verdict is final",
    )


_PAST: Final[Mapping[str, str]] = {CONFIRM: "confirmed", CANCEL: "cancelled"}
