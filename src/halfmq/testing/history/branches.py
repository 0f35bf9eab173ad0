"""Third pass, for branches of Try/Confirm/Cancel: what participants wrote, against each other and against the initiator's transaction.

a call of a branch has its effect once                                               duplicate
a branch that was tried is confirmed or cancelled; any other has an empty cancel     phantom
an end needs its verdict: somebody decided it by then, and the database agrees       unrequested verdict
all branches of a global transaction are confirmed, or all cancelled                 torn
when everything has settled, none is held                                            stuck

An effect is recorded after its commit, so the order of two effects is not known.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final

from halfmq.testing.history.facts import BranchRow, Facts, TransactionFacts
from halfmq.testing.history.report import At, Findings

_ROLLED_BACK: Final = "ROLLED_BACK"
#: Call that ends a branch -> the verdict that it needs.
_NEEDS: Final = {"confirm": "COMMITTED", "cancel": _ROLLED_BACK, "empty": _ROLLED_BACK}
_by_time: Final = itemgetter(2, 3)


class Branches:
    """Checks the branches of global transactions."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings

    def judge(
        self, transaction: TransactionFacts, rows: Iterable[BranchRow], why_not: Callable[[str, int], str]
    ) -> None:
        """Check those of one global transaction; each contradiction is reported once.

        ``why_not``: says why a verdict could not be known at a time; empty if it could.
        """
        by_branch: dict[str, list[BranchRow]] = {}
        for row in rows:
            by_branch.setdefault(row.branch, []).append(row)
        wrong = [(found, of) for branch, of in by_branch.items() if (found := self._of_branch(transaction, branch, of))]
        for (check, text), of in wrong:
            self._add(check, transaction, text, *of)
        if wrong:
            return
        ends: dict[str, BranchRow] = {}
        for row in sorted((row for of in by_branch.values() for row in of if row.call in _NEEDS), key=_by_time):
            ends.setdefault(_NEEDS[row.call], row)
        self._examined(At.BRANCHES_WHOLE, len(by_branch) > 1)
        if len(ends) > 1:
            text = "one of its branches is confirmed, and one is cancelled"
            self._add(At.BRANCHES_WHOLE, transaction, text, *ends.values())
            return
        self._examined(At.BRANCH_VERDICT, bool(ends))
        for verdict, row in ends.items():
            if why := why_not(verdict, row.us):
                text = f"the {row.call} of branch {row.branch} was handled, but {why}"
                self._add(At.BRANCH_VERDICT, transaction, text, row)

    def _of_branch(self, transaction: TransactionFacts, branch: str, rows: list[BranchRow]) -> tuple[int, str] | None:
        """(check, text) of what contradicts each other within a branch; None: nothing."""
        self._examined(At.BRANCH_CALLS, True)
        self._examined(At.BRANCH_ENDS, any(row.call in _NEEDS for row in rows))
        calls = Counter(row.call for row in rows)
        call, times = calls.most_common(1)[0]
        if times > 1:
            return At.BRANCH_CALLS, f"the {call} of branch {branch} had its effect {times} times"
        if {"confirm", "cancel"} <= calls.keys():
            return At.BRANCH_ENDS, f"branch {branch} is confirmed and cancelled"
        if "empty" in calls and len(calls) > 1:
            late = call if call != "empty" else "try"
            return At.BRANCH_ENDS, f"branch {branch} was cancelled before it was tried, and the {late} had an effect"
        end = next((call for call in ("confirm", "cancel") if call in calls), "")
        if end and "try" not in calls:
            return At.BRANCH_ENDS, f"the {end} of branch {branch} had an effect, but it was never tried"
        if 0 <= rows[0].us <= self._facts.settled_us and transaction.group not in self._facts.unresolved_groups:
            self._examined(At.BRANCH_HELD, "try" in calls)
            if calls.keys() == {"try"}:
                return At.BRANCH_HELD, f"branch {branch} is still held"
        return None

    def _examined(self, check: int, is_examined: bool) -> None:
        self._findings.examined[check] += is_examined

    def _add(self, check: int, transaction: TransactionFacts, text: str, *rows: BranchRow) -> None:
        places = (transaction.local_place, *transaction.request_place.values(), *(row.place for row in rows))
        self._findings.add(check, transaction.key, "", text, places)
