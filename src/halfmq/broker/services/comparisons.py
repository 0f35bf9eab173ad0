"""Verdicts compared with markers: what readers of markers shall compare, what they and others report, and the findings.

The decisions are in ``core.transaction.comparisons``.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.actors import actor
from halfmq.broker.services.pages import LISTED_MAX, Page, page_of
from halfmq.broker.services.transactions import Transactions
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import Compare, ForgetDamage
from halfmq.core.decision import ComparisonMade, Failed, Refused, Why
from halfmq.core.state import Comparison
from halfmq.core.transaction.comparisons import is_comparable
from halfmq.core.transaction.states import standing_state
from halfmq.errors import StoreDamaged
from halfmq.model.message_facts import notes_in
from halfmq.model.pending import AwaitedComparison, DamagedTransaction
from halfmq.model.properties import HMQ_TX_MARKER, find
from halfmq.model.records import DecidedBy

log: Final = logging.getLogger("halfmq.operators")

#: Maximum number of comparisons of a page for readers of markers: each is read from the log.
AWAITED_MAX: Final = 128
#: Longer than any marker's property.
_MARKER_BYTES_MAX: Final = 64

_DECIDED_BY: Final = frozenset(int(one) for one in DecidedBy)

Answer = Callable[[ComparisonMade | Refused | Failed], None]


class Comparisons:
    """What is compared, and what was found."""

    def __init__(
        self,
        sequencer: Sequencer,
        time: BrokerTime,
        transactions: Transactions,
        properties_at: Callable[[int], bytes],
    ) -> None:
        """``properties_at``: as in ``Transactions``."""
        self._sequencer = sequencer
        self._time = time
        self._transactions = transactions
        self._properties_at = properties_at
        #: The number of findings, as far as they are durable.
        self.findings = sum(known.is_finding for known in sequencer.view.comparisons.values())

    def awaited(self, group: str, start: int) -> Page[AwaitedComparison]:
        """A page of what a reader of the group's markers shall compare. ``start``: ``following`` of the previous page, or 0."""
        view = self._sequencer.view
        known = [one for one in view.comparisons.values() if one.group == group and is_comparable(view, one)]
        page = page_of(known, AWAITED_MAX, start, self._awaited)
        return Page(page.total, tuple([row for row in page.rows if row is not None]), page.following)

    def _awaited(self, known: Comparison) -> AwaitedComparison | None:
        try:
            properties = self._properties_at(known.half_offset)
        except (LookupError, StoreDamaged):
            return None  # until its segment is restored, or until it is past retention: then it is listed
        marker = (find(properties, HMQ_TX_MARKER) or b"")[:_MARKER_BYTES_MAX].decode("utf-8", "replace")
        return AwaitedComparison(known.tx_id, notes_in(properties).name, marker, known.prepared_at_ms)

    def damaged(self, count: int, start: int) -> tuple[Page[DamagedTransaction], int]:
        """(a page of findings, and of verdicts that nobody can compare any more, oldest verdict first; how many are to be compared)."""
        view, now_ms = self._sequencer.view, self._time.now_ms()
        known = [one for one in view.comparisons.values() if not is_comparable(view, one)]
        known.sort(key=lambda one: one.position)
        count = min(max(count, 1), LISTED_MAX)
        page = page_of(known, count, start, lambda one: _damaged(one, now_ms))
        return page, len(view.comparisons) - len(known)

    def report(
        self, peer: Peer, tx_id: str, group: str, committed: bool, source: str, *, is_marker: bool, answer: Answer
    ) -> None:
        """Somebody says what a local transaction did.

        Refusals: INVALID_PARAMETER: of the names, or no source. STILL_UNDECIDED. NOT_FOUND. LIMIT_REACHED: no space for a finding. NOT_NOW:
            try again.
        """
        if not 0 < len(source) <= limits.COMPARISON_SOURCE_CHARS_MAX:
            text = f"source: who says so, 1 to {limits.COMPARISON_SOURCE_CHARS_MAX} characters"
            answer(Refused(Why.INVALID_PARAMETER, text))
            return

        def made(_: str, reply: Any) -> None:
            if isinstance(reply, ComparisonMade) and reply.is_new:
                self.findings += 1
                log.warning(
                    "DAMAGE: transaction %s of group %s is %s, decided by %s, and %s at %s says that the local transaction %s; "
                    "see `halfmq tx damaged`",
                    reply.tx_id, reply.group, standing_state(reply.committed).value, _who(reply.decided_by, reply.by), source,
                    peer.address, "committed" if committed else "rolled back",
                )  # fmt: skip
            answer(reply)

        def compare(group: str) -> None:
            self._transactions.compare(peer, Compare(group, tx_id, committed, source, is_marker), made)

        self._transactions.with_group(peer, tx_id, group, answer, compare)

    def forget(self, peer: Peer, tx_id: str, group: str, operator: str, reason: str, answer: Answer) -> None:
        """An operator lets the broker forget a finding, or a comparison that nobody can make any more. Empty ``group``: of any group.

        Refusals: INVALID_PARAMETER: of the names, no reason, or several groups have it. NOT_FOUND. NOT_NOW: it may still be compared.
        """
        by = actor(peer, operator, reason, "who lets the broker forget it")
        if isinstance(by, Refused):
            answer(by)
            return
        if not by.reason:
            answer(Refused(Why.INVALID_PARAMETER, "reason: how it was repaired, or why it is forgotten"))
            return
        groups = [of_group for of_group, one in self._sequencer.view.comparisons if one == tx_id]
        if not group and len(groups) > 1:
            answer(Refused(Why.INVALID_PARAMETER, f"group: {len(groups)} groups have a transaction {tx_id}; say which"))
            return

        def forgotten(_: None, reply: Any) -> None:
            if isinstance(reply, ComparisonMade):
                self.findings -= not reply.agrees
                log.warning(
                    "operator %s from %s let the broker forget the %s of transaction %s of group %s; reason: %s",
                    by.name, peer.address, "comparison" if reply.agrees else "damage", reply.tx_id, reply.group, by.reason,
                )  # fmt: skip
            answer(reply)

        self._sequencer.submit(ForgetDamage(group or next(iter(groups), ""), tx_id, by), forgotten)


def _who(decided_by: int, by: str) -> str:
    kind = DecidedBy(decided_by).name.lower() if decided_by in _DECIDED_BY else str(decided_by)
    return f"{kind} {by}" if by else kind


def _damaged(known: Comparison, now_ms: int) -> DamagedTransaction:
    local = standing_state(not known.committed).value if known.is_finding else ""
    return DamagedTransaction(
        known.group,
        known.tx_id,
        standing_state(known.committed).value,
        _who(known.decided_by, ""),
        known.by,
        local,
        known.source,
        max(0, now_ms - known.settled_at_ms),
        max(0, now_ms - known.found_at_ms) if known.is_finding else 0,
        known.position,
    )
