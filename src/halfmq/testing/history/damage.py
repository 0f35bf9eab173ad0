"""Third pass, for damage: verdicts that contradict the database, against what was reported to the broker and what it lists.

a finding has a contradiction that somebody reported, since it was forgotten if it was,
and names somebody who requested the verdict                                               phantom
a contradiction that a reader of markers could find is listed, once everything settled     lost
a list has one finding of a transaction                                                    duplicate
a finding that somebody knew of is in each later list, until somebody asks to forget it    acknowledged but not durable

Reports, lists and requests to forget are intervals: one precedes another only if it was answered before the other was requested.
"""

from collections import Counter
from collections.abc import Collection
from typing import Final

from halfmq.testing.history.facts import FAR, DamageRow, Facts, TransactionFacts
from halfmq.testing.history.report import At, Findings
from halfmq.testing.history.scan import FORGOTTEN, LISTED_FINDING, OK, REFUSED, REPORTED

#: Names of an application that decides: the broker cannot always tell whether it did by its answer to a check.
_APPLICATION: Final = ("producer", "check", "marker")


def _decider(name: str) -> str:
    return "application" if name in _APPLICATION else name


class DamageFound:
    """Checks what became of verdicts that contradict the database."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings

    def judge(self, transaction: TransactionFacts, verdict: str, rows: Collection[DamageRow]) -> None:
        """Check one transaction; each contradiction is reported once. ``verdict``: the one that is known otherwise, or empty."""
        contradicts = transaction.has_marker and verdict not in ("", transaction.local) and transaction.local != ""
        if not rows and not contradicts:
            return
        by_what: dict[int, list[DamageRow]] = {REPORTED: [], LISTED_FINDING: [], FORGOTTEN: []}
        for row in sorted(rows):
            if row.outcome != REFUSED:
                by_what[row.what].append(row)
        reports, listed, forgotten = by_what.values()
        if listed and (self._said(transaction, reports, listed, forgotten) or self._twice(transaction, listed)):
            return
        naming = {row.place for row in listed}
        missing = [one for one in self._facts.damage_lists if one[2] not in naming]
        if not self._gone(transaction, reports, listed, forgotten, missing) and contradicts:
            self._lost(transaction, verdict, forgotten, missing)

    def _said(
        self,
        transaction: TransactionFacts,
        reports: list[DamageRow],
        listed: list[DamageRow],
        forgotten: list[DamageRow],
    ) -> bool:
        """Whether a finding says what nobody reported or decided."""
        self._findings.examined[At.DAMAGE_SAID] += 1
        done = [one for one in forgotten if one.outcome == OK and not self._facts.acknowledgements_void]
        for row in listed:
            forgotten_us = max((one.us for one in done if one.end_us < row.us), default=-1)
            # The client compares markers without being recorded, but only once.
            reported = (transaction.has_marker and transaction.local == row.said and forgotten_us < 0) or any(
                report.said == row.said and report.us < row.answered_us and report.end_us > forgotten_us
                for report in reports
            )
            if row.said == row.verdict:
                text = f"a finding says that verdict and database are both {row.verdict}"
            elif not reported:
                since = f" since it was forgotten at {forgotten_us:,} us" if forgotten_us >= 0 else ""
                says = f"; the database says {transaction.local}" if transaction.local else ""
                text = f"a finding says that the database did {row.said}, which nobody had reported{since}{says}"
            elif why := self._not_by(transaction, row):
                text = f"a finding says that {row.verdict} was decided by {row.by}; {why}"
            else:
                continue
            places = (row.place, *(one.place for one in (*reports, *forgotten)))
            self._add(At.DAMAGE_SAID, transaction, text, *places)
            return True
        return False

    @staticmethod
    def _not_by(transaction: TransactionFacts, row: DamageRow) -> str:
        """Why its verdict is not that of whom the finding names; empty if it may be."""
        by, logged = _decider(row.by), {_decider(record[5]) for record in transaction.records} - {"", "query"}
        if not by or by in logged:
            return ""
        if logged:
            return f"the log says {min(logged)}"
        # Of a policy nobody knows before it has decided, and perhaps only by the finding.
        requested = any(
            _decider(who) == by and verdict == row.verdict and (us < row.answered_us or by == "policy")
            for (who, verdict), us in transaction.deciders.items()
        )
        return "" if requested else "no such request was there"

    def _twice(self, transaction: TransactionFacts, listed: list[DamageRow]) -> bool:
        self._findings.examined[At.DAMAGE_ONCE] += len(listed)
        place, times = Counter(row.place for row in listed).most_common(1)[0]
        if times > 1:
            self._add(At.DAMAGE_ONCE, transaction, f"a list has {times} findings of it", place)
        return times > 1

    def _gone(
        self, transaction: TransactionFacts, reports: list[DamageRow], listed: list[DamageRow], forgotten: list[DamageRow],
        missing: list[tuple[int, int, int]],
    ) -> bool:  # fmt: skip
        """Whether a finding that was listed, or whose report was confirmed, is in no later list, and nobody forgot it in between."""
        if self._facts.acknowledgements_void:
            return False
        known = [
            row
            for row in (*reports, *listed)
            if row.outcome == OK and row.verdict not in ("", row.said) and not self._is_no_news(row, forgotten)
        ]
        self._findings.examined[At.DAMAGE_STAYS] += any(
            since > row.end_us for row in known for since, _, _ in self._facts.damage_lists
        )
        for since, us, at in missing:
            for row in known:
                if row.end_us < since and not any(row.us < one.end_us and one.us < us for one in forgotten):
                    why = "it was listed" if row.what == LISTED_FINDING else "a report of it was confirmed"
                    text = f"its finding is not in the list of {us:,} us, although {why} at {row.end_us:,} us, and nobody let the broker forget it"
                    places = (row.answered_place or row.place, at)
                    self._add(At.DAMAGE_STAYS, transaction, text, *places)
                    return True
        return False

    @staticmethod
    def _is_no_news(row: DamageRow, forgotten: list[DamageRow]) -> bool:
        """Whether it may be what a marker says of a verdict that was compared and forgotten."""
        return row.what == REPORTED and row.by == "marker" and any(one.us < row.end_us for one in forgotten)

    def _lost(
        self, transaction: TransactionFacts, verdict: str, forgotten: list[DamageRow], missing: list[tuple[int, int, int]]
    ) -> None:  # fmt: skip
        """Report a contradiction that no list names, although the history has settled."""
        settled_us = self._facts.settled_us
        if not transaction.local_us <= settled_us or transaction.group in self._facts.unresolved_groups:
            return
        asked_us = min((row.us for row in forgotten), default=FAR)
        lists = [one for one in self._facts.damage_lists if settled_us <= one[0] < asked_us]
        self._findings.examined[At.DAMAGE_FOUND] += bool(lists)
        for one in missing:
            if one in lists:
                text = f"it is {verdict}, its marker says {transaction.local}, and the history settled, but there is no finding"
                self._add(At.DAMAGE_FOUND, transaction, text, transaction.local_place, one[2])
                return

    def _add(self, check: int, transaction: TransactionFacts, text: str, *places: int) -> None:
        self._findings.add(check, transaction.key, "", text, places)
