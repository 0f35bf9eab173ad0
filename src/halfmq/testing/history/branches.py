"""Third pass, for branches of Try/Confirm/Cancel: what participants wrote, against each other and against the initiator's transaction.

a call of a branch has its effect once                                               duplicate
a branch is not confirmed and cancelled, nor tried where an empty cancel is          phantom
branches are not confirmed without the initiator's COMMIT, nor cancelled with it     unrequested verdict
all branches of a global transaction are confirmed, or all cancelled                 torn
when everything has settled, none is held                                            stuck
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from halfmq.testing.history.facts import Facts
from halfmq.testing.history.report import (
    AT_BRANCH_CALLS,
    AT_BRANCH_ENDS,
    AT_BRANCH_HELD,
    AT_BRANCH_VERDICT,
    AT_BRANCHES_WHOLE,
    Findings,
)

_COMMITTED: Final = "COMMITTED"
#: Call of a branch -> the outcome of the initiator's local transaction that it needs.
_NEEDS: Final = {"confirm": _COMMITTED, "cancel": "ROLLED_BACK"}


class BranchRow(NamedTuple):
    """An effect of a call, that a participant has committed."""

    key: str
    #: BRANCH
    kind: int
    us: int
    place: int
    branch: str
    call: str


class LocalOutcome(Protocol):
    """How the initiator's local transaction ended; ``local`` is empty if that is not known."""

    key: str
    local: str
    local_place: int


class Branches:
    """Checks the branches of global transactions."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings

    def judge(self, transaction: LocalOutcome, rows: Iterable[BranchRow]) -> None:
        """Check those of one global transaction; each contradiction is reported once."""
        by_branch: dict[str, list[BranchRow]] = {}
        for row in rows:
            by_branch.setdefault(row.branch, []).append(row)
        reported = [self._branch(transaction, branch, of) for branch, of in by_branch.items()]
        if any(reported):
            return
        ends = {row.call: row for of in by_branch.values() for row in of if row.call in _NEEDS}
        self._examined(AT_BRANCHES_WHOLE, len(by_branch) > 1)
        if len(ends) > 1:
            text = "one of its branches is confirmed, and one is cancelled"
            self._add(AT_BRANCHES_WHOLE, transaction, text, *ends.values())
        elif transaction.local:
            self._examined(AT_BRANCH_VERDICT, bool(ends))
            for call, row in ends.items():
                if _NEEDS[call] != transaction.local:
                    text = f"the {call} of branch {row.branch} was handled, but the database says {transaction.local}"
                    self._add(AT_BRANCH_VERDICT, transaction, text, row)

    def _branch(self, transaction: LocalOutcome, branch: str, rows: list[BranchRow]) -> bool:
        """Whether something was reported."""
        self._examined(AT_BRANCH_CALLS, True)
        self._examined(AT_BRANCH_ENDS, len(rows) > 1)
        calls = Counter(row.call for row in rows)
        call, times = calls.most_common(1)[0]
        if times > 1:
            self._add(
                AT_BRANCH_CALLS, transaction, f"the {call} of branch {branch} had its effect {times} times", *rows
            )
            return True
        if {"confirm", "cancel"} <= calls.keys():
            self._add(AT_BRANCH_ENDS, transaction, f"branch {branch} is confirmed and cancelled", *rows)
            return True
        if "empty" in calls and len(calls) > 1:
            text = f"branch {branch} was cancelled before it was tried, and the {call if call != 'empty' else 'try'} had an effect"
            self._add(AT_BRANCH_ENDS, transaction, text, *rows)
            return True
        if 0 <= rows[0].us <= self._facts.settled_us:
            self._examined(AT_BRANCH_HELD, "try" in calls)
            if calls.keys() == {"try"}:
                self._add(AT_BRANCH_HELD, transaction, f"branch {branch} is still held", *rows)
                return True
        return False

    def _examined(self, check: int, is_examined: bool) -> None:
        self._findings.examined[check] += is_examined

    def _add(self, check: int, transaction: LocalOutcome, text: str, *rows: BranchRow) -> None:
        places = (transaction.local_place, *(row.place for row in rows))
        self._findings.add(check, transaction.key, "", text, places)
