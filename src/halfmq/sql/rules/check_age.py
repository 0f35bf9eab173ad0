"""When a check may insert a rollback marker, and how often one that cannot answer is logged."""

from collections.abc import Callable
from typing import Final, Protocol

#: Transactions remembered by ``AgeGuard``.
_YOUNG_MAX: Final = 65_536

#: Checks that this database cannot answer are logged at most once per interval and table identity, ms: they come every few
#: seconds for each transaction.
_WARN_INTERVAL_MS: Final = 60_000
_WARNED_MAX: Final = 1_024


class Asked(Protocol):
    """The attributes of ``halfmq.client``'s ``Transaction`` that a check uses."""

    #: Set by the check: who answered, for the broker's log, and the reason for UNKNOWN.
    decided_by: str
    remark: str

    @property
    def id(self) -> str:
        """The transaction id."""
        ...

    @property
    def marker(self) -> str:
        """HMQ_TX_MARKER of the half; empty if it has none."""
        ...

    @property
    def prepared_at_ms(self) -> int | None:
        """When the broker stored the first half, wall clock, ms; None if the check did not say."""
        ...


class AgeGuard:
    """Prevents rollback markers for recent transactions, which are probably only slow and would be made to fail.

    It protects availability, not agreement: an early rollback marker makes the local commit fail, so both sides agree
    anyway. The age is that of the broker's timestamp, or the time since the first check in this process, whichever is longer,
    so that a slow clock cannot keep a transaction undecided forever.
    """

    def __init__(self, min_age_ms: int, now_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._min_age_ms = min_age_ms
        self._now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self._first_asked_ms: dict[str, int] = {}

    def is_new(self, asked: Asked) -> bool:
        """Whether the transaction is younger than ``min_age_ms``."""
        prepared_at_ms = asked.prepared_at_ms
        if prepared_at_ms is not None and self._now_ms() - prepared_at_ms >= self._min_age_ms:
            self._first_asked_ms.pop(asked.id, None)
            return False
        now = self.monotonic_ms()
        if len(self._first_asked_ms) >= _YOUNG_MAX:
            # An evicted transaction counts as younger, which is safe.
            self._first_asked_ms.pop(next(iter(self._first_asked_ms)))
        return now - self._first_asked_ms.setdefault(asked.id, now) < self._min_age_ms


class WarningThrottle:
    """Whether a check that has no answer is logged."""

    def __init__(self) -> None:
        #: When it was last logged, by the table identity in the half.
        self._warned_ms: dict[str, int] = {}

    def is_due(self, asked: Asked, now_ms: int) -> bool:
        """Whether to log it now; ``now_ms``: monotonic. By identity: one wrong database concerns many transactions."""
        about = asked.marker.partition(".")[0]
        last_ms = self._warned_ms.get(about)
        if last_ms is not None and now_ms - last_ms < _WARN_INTERVAL_MS:
            return False
        if len(self._warned_ms) >= _WARNED_MAX:
            self._warned_ms.clear()
        self._warned_ms[about] = now_ms
        return True
