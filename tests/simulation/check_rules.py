"""Rules for checks, verified where clients receive them, pushed or fetched; and which policies were requested."""

from collections import Counter

from halfmq.testing.history.events import CheckReceived
from halfmq.wire.remoting.producer_groups import ProducerChange
from tests.simulation.promises import Violation

#: Broker time is stamped once per batch, in whole ms.
_SLACK_MS = 2


class CheckLooks:
    def __init__(self, grace_ms: int, counts: Counter[str]) -> None:
        """``grace_ms``: the shortest grace period of any start of the broker."""
        #: Total by which the broker's wall clock was stepped forward: a restart takes it for elapsed time.
        self.ahead_ms = 0
        #: By group: requested changes of limits and policy.
        self.changes: dict[str, list[ProducerChange]] = {}
        self._immunity_ms = grace_ms
        self._counts = counts
        #: (group, transaction) -> end of its grace period, virtual us, and whether the message set it.
        self._immune_until_us: dict[tuple[str, str], tuple[int, bool]] = {}

    def half(self, pairs: dict[str, str], now_us: int) -> None:
        """A half leaves its producer. It is stored later, so its grace period ends no earlier than this computes."""
        text = pairs.get("CHECK_IMMUNITY_TIME_IN_SECONDS", "")
        own = text.isdigit()
        ms = int(text) * 1_000 if own else self._immunity_ms
        key = pairs.get("PGROUP", ""), pairs.get("HMQ_TX_ID") or pairs.get("UNIQ_KEY", "")
        self._immune_until_us.setdefault(key, (now_us + 1_000 * ms, own))

    def check(self, event: CheckReceived) -> None:
        """
        Raises:
            Violation: the grace period of its transaction has not ended.
        """
        until_us, own = self._immune_until_us.get((event.group, event.tx), (0, False))
        self._counts[f"look immunity{' of its own' if own else ''}"] += 1
        early_us = until_us - event.t_us - 1_000 * (self.ahead_ms + _SLACK_MS)
        if early_us > 0:
            raise Violation(f"Validity: {event.tx} is immune for another {early_us:,} us, and is asked about", event.tx)
