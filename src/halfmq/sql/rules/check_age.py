"""When a check may insert a rollback marker."""

from collections.abc import Callable
from typing import Final, Protocol

#: Transactions remembered by ``AgeGuard``.
_YOUNG_MAX: Final = 65_536


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
