"""When the producer of an undecided transaction is asked next: at a time, or not at all by itself.

The log, the transaction table and snapshots hold it as one number. What lies beyond any time there is a type here, so that
nobody compares a reason with a clock.
"""

from enum import Enum
from typing import TypeAlias

from halfmq.errors import InvariantViolated
from halfmq.model.records import PARKED_MS, ParkedBecause

#: Broker time, ms: the check is due then. A plain number, since hundreds of thousands are kept and the hot path makes one for
#: each half: a struct around it takes 24 bytes (of 520 for a transaction) and 0.04 us.
Scheduled: TypeAlias = int


class Suspended(Enum):
    """No check is sent by itself: a policy parked the transaction. Each value is the number that files hold for it."""

    CHECKS = PARKED_MS + ParkedBecause.CHECKS
    AGE = PARKED_MS + ParkedBecause.AGE

    @classmethod
    def because(cls, reason: int) -> "Suspended":
        """As a record says it."""
        return _suspended(PARKED_MS + reason)


NextCheck: TypeAlias = Scheduled | Suspended


def is_due(check: NextCheck, now_ms: int) -> bool:
    return not isinstance(check, Suspended) and check <= now_ms


def to_number(check: NextCheck) -> int:
    """What a record and a row hold for it."""
    return check.value if isinstance(check, Suspended) else check


def from_number(number: int) -> NextCheck:
    """What a record or a row says.

    Raises:
        InvariantViolated: it names a reason that there is not. The log is not ours.
    """
    return number if number < PARKED_MS else _suspended(number)


def _suspended(number: int) -> Suspended:
    try:
        return Suspended(number)
    except ValueError:
        raise InvariantViolated(f"a check is suspended for reason {number - PARKED_MS}, which there is not") from None
