"""Third pass, for damage: verdicts that contradict the database, against what was reported to the broker and what it lists.

a finding has a contradiction that somebody reported, and whoever gave the verdict         phantom
a contradiction that a reader of markers could find is listed, once everything settled     lost
a list has one finding of a transaction                                                    duplicate
a finding that somebody knew of is in each later list, until somebody asks to forget it    acknowledged but not durable
"""

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from halfmq.testing.history.facts import FAR, Facts
from halfmq.testing.history.report import (
    AT_DAMAGE_FOUND,
    AT_DAMAGE_ONCE,
    AT_DAMAGE_SAID,
    AT_DAMAGE_STAYS,
    Findings,
)
from halfmq.testing.history.scan import FORGOTTEN, LISTED_FINDING, OK, REFUSED, REPORTED

_ROLLED_BACK: Final = "ROLLED_BACK"


class DamageRow(NamedTuple):
    """A report of an outcome, a finding in a list (``us``: when it was received), or a request to forget one."""

    key: str
    #: DAMAGE
    kind: int
    us: int
    place: int
    what: int
    #: What the database did, by the report or the list.
    said: str
    answered_us: int
    answered_place: int
    outcome: int
    #: That of the broker, by its response or the list; empty: not named.
    verdict: str
    by: str


class Known(Protocol):
    """What else is known of the transaction: its group, who requested verdicts, and how its local transaction ended."""

    key: str
    group: str
    operator: tuple[str, ...]
    local: str
    local_us: int
    local_place: int
    has_marker: bool


class DamageFound:
    """Checks what became of verdicts that contradict the database."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings

    def judge(self, transaction: Known, verdict: str, rows: Collection[DamageRow]) -> None:
        """Check one transaction; each contradiction is reported once. ``verdict``: the one that is known otherwise, or empty."""
        contradicts = transaction.has_marker and verdict not in ("", transaction.local) and transaction.local != ""
        if not rows and not contradicts:
            return
        by_what: dict[int, list[DamageRow]] = {REPORTED: [], LISTED_FINDING: [], FORGOTTEN: []}
        for row in sorted(rows):
            by_what[row.what].append(row)
        reports, listed, forgotten = by_what.values()
        if listed and (self._said(transaction, reports, listed) or self._twice(transaction, listed)):
            return
        asked_us = min((row.us for row in forgotten if row.outcome != REFUSED), default=FAR)
        lists = [one for one in self._facts.damage_lists if one[1] < asked_us]
        naming = {row.place for row in listed}
        missing = [one for one in lists if one[2] not in naming]
        if not self._gone(transaction, reports, listed, lists, missing) and contradicts:
            self._lost(transaction, verdict, lists, missing)

    def _said(self, transaction: Known, reports: list[DamageRow], listed: list[DamageRow]) -> bool:
        """Whether a finding says what nobody reported."""
        self._findings.examined[AT_DAMAGE_SAID] += 1
        for row in listed:
            reported = transaction.local == row.said or any(
                report.said == row.said and report.us < row.us and report.outcome != REFUSED for report in reports
            )
            if row.said == row.verdict:
                text = f"a finding says that verdict and database are both {row.verdict}"
            elif not reported:
                says = f"; the database says {transaction.local}" if transaction.local else ""
                text = f"a finding says that the database did {row.said}, which nobody had reported{says}"
            elif row.by == "operator" and row.verdict not in transaction.operator:
                text = f"a finding says that an operator decided {row.verdict}; no operator requested it"
            elif row.by == "policy" and transaction.group not in self._facts.policy_groups:
                text = f"a finding says that a policy decided {row.verdict}; group {transaction.group} has none"
            else:
                continue
            self._add(AT_DAMAGE_SAID, transaction, text, row.place, *(report.place for report in reports))
            return True
        return False

    def _twice(self, transaction: Known, listed: list[DamageRow]) -> bool:
        self._findings.examined[AT_DAMAGE_ONCE] += len(listed)
        place, times = Counter(row.place for row in listed).most_common(1)[0]
        if times > 1:
            self._add(AT_DAMAGE_ONCE, transaction, f"a list has {times} findings of it", place)
        return times > 1

    def _gone(
        self, transaction: Known, reports: list[DamageRow], listed: list[DamageRow],
        lists: list[tuple[int, int, int]], missing: list[tuple[int, int, int]],
    ) -> bool:  # fmt: skip
        """Whether a finding that was listed, or whose report was confirmed, is in no later list."""
        confirmed = [
            (report.answered_us, report.answered_place, "a report of it was confirmed")
            for report in reports
            if report.outcome == OK and report.verdict not in ("", report.said)
        ]
        known = [*confirmed, *((row.us, row.place, "it was listed") for row in listed)]
        if not known or self._facts.acknowledgements_void:
            return False
        first_us, place, why = min(known)
        self._findings.examined[AT_DAMAGE_STAYS] += any(since > first_us for since, _, _ in lists)
        for since, us, at in missing:
            if since > first_us:
                text = f"its finding is not in the list of {us:,} us, although {why} at {first_us:,} us, and nobody let the broker forget it"
                self._add(AT_DAMAGE_STAYS, transaction, text, place, at)
                return True
        return False

    def _lost(
        self, transaction: Known, verdict: str, lists: list[tuple[int, int, int]], missing: list[tuple[int, int, int]]
    ) -> None:  # fmt: skip
        """Report a contradiction that no list names, although the history has settled."""
        settled_us = self._facts.settled_us
        if not transaction.local_us <= settled_us or transaction.group in self._facts.unresolved_groups:
            return
        self._findings.examined[AT_DAMAGE_FOUND] += any(since >= settled_us for since, _, _ in lists)
        for since, _, at in missing:
            if since >= settled_us:
                text = f"it is {verdict}, its marker says {transaction.local}, and the history settled, but there is no finding"
                self._add(AT_DAMAGE_FOUND, transaction, text, transaction.local_place, at)
                return

    def _add(self, check: int, transaction: Known, text: str, *places: int) -> None:
        self._findings.add(check, transaction.key, "", text, places)
