"""Verdicts that people and policies gave against a database: each has a finding at the end, and each finding has such a verdict.

The services compare by themselves, with the shipped client and the markers of their databases; operators let the broker forget some
findings.
"""

from typing import Any

from halfmq.core.transaction.comparisons import is_comparable
from halfmq.testing.history.events import AnyEvent, Logged
from tests.simulation.database import Database
from tests.simulation.promises import Promises, Violation


def waiting(state: Any) -> list[str]:
    """Ids of verdicts that a service can still compare."""
    return [tx_id for (_, tx_id), one in state.comparisons.items() if not one.is_finding and is_comparable(state, one)]


def look(
    state: Any, events: list[AnyEvent], promises: Promises, databases: dict[str, Database], marked: set[str],
    forgotten: set[str],
) -> None:  # fmt: skip
    """``marked``: transactions whose halves have a marker. ``forgotten``: findings that an operator may have let the broker forget.

    Raises:
        Violation: a contradiction has no finding, or a finding has no contradiction.
    """
    counts = promises.counts
    for (group, tx_id), one in state.comparisons.items():
        if one.is_finding and group in databases:
            counts["look finding"] += 1
            if one.committed == (databases[group].said(tx_id) == "C"):
                raise Violation(f"Damage: a finding of {tx_id}, on which verdict and database agree", tx_id)
    if promises.forgetful:
        return
    for event in events:
        if type(event) is not Logged or event.decided_by not in ("operator", "policy") or event.tx not in marked:
            continue
        counts["look verdict compared"] += 1
        agrees = (event.kind == "commit") == (databases[event.group].said(event.tx) == "C")
        if agrees or event.tx in forgotten:
            continue
        known = state.comparisons.get((event.group, event.tx))
        if known is None or (not known.is_finding and is_comparable(state, known)):
            raise Violation(
                f"Damage: {event.tx} is decided by {event.decided_by} against its database, and not found", event.tx
            )
        counts["look contradiction found" if known.is_finding else "look contradiction past retention"] += 1
