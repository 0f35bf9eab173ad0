"""What participants' fences may do: of ids that nobody prepares, ids that somebody is preparing, and ids that are settled.

never prepared        ROLLED_BACK from then on: nothing of it is taken, and it never commits
prepared, undecided   UNDECIDED, and the fence changes nothing: what was acknowledged before it is rolled back by others only
settled               the verdict that everybody else gets
"""

from typing import Final

from halfmq.testing.history.events import Answered, AnyEvent, HalfSent, Logged
from tests.simulation.promises import Promises, Violation

#: How ids begin that are fenced: like those of Try/Confirm/Cancel, chosen by the application.
FENCED_ID: Final = "tcc."


class Fences:
    """What fences may do, and what they did. ``hear`` comes after ``Promises.hear``."""

    def __init__(self, promises: Promises, *, keeps_all: bool) -> None:
        """``keeps_all``: the log is not trimmed. Who prepares an id after the record of its fence was trimmed is not refused."""
        self._keeps_all = keeps_all
        self.promises = promises
        self.counts = promises.counts
        #: (id, group, end of the log then) of transactions that are about to be prepared, oldest first.
        self.announced: list[tuple[str, str, int]] = []
        #: Fenced ids that nobody has prepared, by group, for a late prepare.
        self.unused: dict[str, list[str]] = {}
        #: Id -> end of the log when it was first fenced, once ROLLED_BACK was answered.
        self.stands: dict[str, int] = {}
        #: Ids that were fenced before anything of them was acknowledged: the fence may have rolled them back.
        self._may_decide: set[str] = set()
        self._first_asked: dict[str, int] = {}
        self._late: dict[str, str] = {}
        self.log_end = 0

    def announce(self, tx_id: str, group: str) -> None:
        self.announced.append((tx_id, group, self.log_end))

    def late(self, group: str) -> str:
        """An id of ``group`` that is fenced, for whoever prepares it nevertheless; empty: there is none."""
        unused = self.unused.get(group)
        return unused.pop() if unused and self._keeps_all else ""

    def asks(self, tx_id: str, now_us: int) -> None:
        self._first_asked.setdefault(tx_id, self.log_end)
        tx = self.promises.txs.get(tx_id)
        if tx is None or not tx.acked:
            self._may_decide.add(tx_id)
            if tx is not None:
                tx.asked.setdefault("ROLLED_BACK", (now_us, "fence"))

    def answered(self, tx_id: str, group: str, verdict: str, asked_us: int) -> None:
        """
        Raises:
            Violation: the answer contradicts what is known of the transaction.
        """
        tx = self.promises.txs.get(tx_id)
        known = "nobody prepared" if tx is None else "known"
        self.counts[f"look fence {known} {verdict}"] += 1
        if tx is not None and tx.verdict is not None and tx.verdict_us < asked_us and tx.verdict[0] != verdict:
            raise Violation(f"Agreement: {tx_id} is {tx.verdict}, and a fence is told {verdict}", tx_id)
        if tx is None and verdict != "ROLLED_BACK":
            raise Violation(f"Fence: nobody has prepared {tx_id}, and it is {verdict}", tx_id)
        if verdict == "ROLLED_BACK":
            if tx is not None and "ROLLED_BACK" not in tx.asked and group not in self.promises.policy_groups:
                raise Violation(f"Validity: a fence has rolled {tx_id} back, which was prepared", tx_id)
            self.stands.setdefault(tx_id, self._first_asked[tx_id])
        elif tx is not None and verdict == "COMMITTED" and "COMMITTED" not in tx.asked:
            raise Violation(f"Validity: a fence is told that {tx_id} is COMMITTED, and nobody said so", tx_id)

    def hear(self, event: AnyEvent) -> None:
        if type(event) is HalfSent:
            if event.tx in self._may_decide:
                self.promises.txs[event.tx].asked.setdefault("ROLLED_BACK", (event.t_us, "fence"))
            if event.tx in self.stands:
                self._late[event.op] = event.tx
        elif type(event) is Answered and event.op in self._late:
            tx_id = self._late.pop(event.op)
            self.counts["look half after a fence"] += 1
            if event.outcome == "ok" and self.stands[tx_id] >= self.promises.log_start:
                raise Violation(f"Fence: {tx_id} was fenced, and a half of it is taken", tx_id)

    def close(self, events: list[AnyEvent]) -> None:
        """
        Raises:
            Violation: a fenced transaction is committed in the log.
        """
        for event in events:
            if type(event) is Logged and event.kind == "commit" and event.tx in self.stands:
                raise Violation(f"Fence: {event.tx} was fenced, and is committed at {event.offset}", event.tx)
        self.counts["look fences of the log"] += len(self.stands)
