"""What a check of a transaction answers, as steps on its marker, and when it may insert a rollback marker.

The rule yields a step, the adapter executes it in a short transaction of its own, and sends back what came of it. Each step is committed
before its reply, so ROLLBACK is answered only when the rollback marker is durable.

| the marker | first | then |
|---|---|---|
| 'C', 'R' | | COMMIT, ROLLBACK |
| 'P' | FENCE_PREPARED | ROLLBACK; UNKNOWN if it was confirmed, fenced or pruned meanwhile |
| none, and that proves nothing | | UNKNOWN, and why |
| none | INSERT_FENCE | ROLLBACK; if there is a row meanwhile, what it says |

A step that waited for a lock in vain: UNKNOWN. Whoever holds it decides, and the next check reads it.
"""

from collections.abc import Callable, Generator
from enum import Enum
from typing import ClassVar, Final, NamedTuple, Protocol

from halfmq.client.outcome import Outcome
from halfmq.sql.rules.marker import Seen
from halfmq.sql.rules.table_identity import why_absence_is_no_answer

#: How long a check waits for the local transaction's row lock, ms: enough for a slow commit, without blocking other checks.
FENCE_LOCK_WAIT_MS: Final = 500

#: Products on which the check uses READ COMMITTED, to see rows as soon as they are committed. SQLite is always serializable,
#: which with one writer at a time is equivalent.
READ_COMMITTED: Final = frozenset({"postgresql", "mysql", "mariadb", "mssql", "oracle"})


class CheckResult(NamedTuple):
    """The result of a check."""

    outcome: Outcome
    #: With UNKNOWN: why another check against this database will not help; empty if it may.
    remark: str = ""


_UNKNOWN: Final = CheckResult(Outcome.UNKNOWN)


class Step(Enum):
    """What the adapter is to do next."""

    #: Read the marker and the reserved rows. The reply is a ``Seen``.
    LOOK = "look"
    #: Insert the reserved rows if they are missing.
    ESTABLISH = "establish"
    #: Insert ``(tx_id, 'R')``: a plain INSERT. With psycopg the row count of ON CONFLICT is -1, and INSERT IGNORE hides other errors;
    #: a CONFLICT is rare, since the row was just read as absent.
    INSERT_FENCE = "insert the fence"
    #: Turn 'P' into 'R'. CONFLICT: no row was changed.
    FENCE_PREPARED = "fence the prepared marker"
    #: Forget a cached identity of the table, if there is one.
    FORGET_IDENTITY = "forget the identity"


class Reply(Enum):
    """What came of a step. Any other error of the database is raised, and nothing is decided."""

    DONE = "done"
    CONFLICT = "something else was there"
    LOCKED = "another transaction holds the lock"


def answer_check(
    table: str, origin: str, prepared_at_ms: int | None, *, may_fence: bool
) -> Generator[Step, Seen | Reply, CheckResult]:
    """The steps of one check. ``run`` executes them.

    ``origin``: HMQ_TX_MARKER of the half; ``prepared_at_ms``: when the broker stored the half, used if ``origin`` is empty. Without
    ``may_fence`` nothing is written that would stop the transaction.
    """
    found = yield Step.LOOK
    if found == Seen(None, None) and not origin:
        yield Step.ESTABLISH
        found = yield Step.LOOK
        if isinstance(found, Seen) and found.table is None:
            return _UNKNOWN  # blocked by a lock of another transaction
    if not isinstance(found, Seen):
        return _UNKNOWN
    if found.outcome is Outcome.UNKNOWN:
        is_fenced = may_fence and (yield Step.FENCE_PREPARED) is Reply.DONE
        return CheckResult(Outcome.ROLLBACK) if is_fenced else _UNKNOWN
    if found.outcome is not None:
        return CheckResult(found.outcome)
    if why := why_absence_is_no_answer(table, found.table, origin, prepared_at_ms):
        if found.table is None or not origin.startswith(f"{found.table.identity}."):
            yield Step.FORGET_IDENTITY  # this process may have cached an outdated one
        return CheckResult(Outcome.UNKNOWN, why)
    return (yield from _fence()) if may_fence else _UNKNOWN


def _fence() -> Generator[Step, Seen | Reply, CheckResult]:
    inserted = yield Step.INSERT_FENCE
    if inserted is Reply.CONFLICT:
        found = yield Step.LOOK
        # No row: the conflicting transaction has rolled back meanwhile. The next check decides.
        return CheckResult(found.outcome) if isinstance(found, Seen) and found.outcome is not None else _UNKNOWN
    return CheckResult(Outcome.ROLLBACK) if inserted is Reply.DONE else _UNKNOWN


def run(steps: Generator[Step, Seen | Reply, CheckResult], execute: Callable[[Step], Seen | Reply]) -> CheckResult:
    """Execute the steps of a check one after the other."""
    step = next(steps)
    while True:
        reply = execute(step)
        try:
            step = steps.send(reply)
        except StopIteration as end:
            result: CheckResult = end.value
            return result


#: Transactions remembered by ``AgeGuard``.
_YOUNG_MAX: Final = 65_536


class Asked(Protocol):
    """The attributes of the client's ``Transaction`` that a check uses, documented there; it sets the first two."""

    decided_by: str
    remark: str

    @property
    def id(self) -> str: ...

    @property
    def marker(self) -> str: ...

    @property
    def prepared_at_ms(self) -> int | None: ...


class AgeGuard:
    """Prevents rollback markers for recent transactions, which are probably only slow and would be made to fail.

    It protects availability, not agreement: an early rollback marker makes the local commit fail, so both sides agree
    anyway. The age is that of the broker's timestamp, or the time since the first check in this process, whichever is longer,
    so that a slow clock cannot keep a transaction undecided forever.
    """

    #: How far the broker's clock is ahead of the wall clock because a test has moved it, ms; see ``halfmq.testing``.
    ahead_ms: ClassVar[int] = 0

    def __init__(self, min_age_ms: int, now_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._min_age_ms = min_age_ms
        self._now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self._first_asked_ms: dict[str, int] = {}

    def is_new(self, asked: Asked) -> bool:
        """Whether the transaction is younger than ``min_age_ms``."""
        prepared_at_ms = asked.prepared_at_ms
        if prepared_at_ms is not None and self._now_ms() + self.ahead_ms - prepared_at_ms >= self._min_age_ms:
            self._first_asked_ms.pop(asked.id, None)
            return False
        now = self.monotonic_ms()
        if len(self._first_asked_ms) >= _YOUNG_MAX:
            # An evicted transaction counts as younger, which is safe.
            self._first_asked_ms.pop(next(iter(self._first_asked_ms)))
        return now - self._first_asked_ms.setdefault(asked.id, now) < self._min_age_ms
