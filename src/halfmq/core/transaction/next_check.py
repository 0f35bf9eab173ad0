"""The next check of an undecided transaction: a time, or a reason why there is none.

The log, the transaction table and snapshots store it as one number. Here a reason is a separate type, so that it is never compared
with a time.
"""

from enum import Enum
from typing import TypeAlias

from halfmq.errors import InvariantViolated
from halfmq.model.records import PARKED_MS, ParkedBecause

#: Broker time of the check, ms. A plain number, since hundreds of thousands are in memory and the hot path creates one for each
#: half: a struct around it takes 24 bytes (of 520 for a transaction) and 0.04 us.
Scheduled: TypeAlias = int


class ParkedCheck(Enum):
    """No check is sent automatically: a policy parked the transaction. The values are the numbers in files."""

    CHECKS = PARKED_MS + ParkedBecause.CHECKS
    AGE = PARKED_MS + ParkedBecause.AGE

    @classmethod
    def because(cls, reason: int) -> "ParkedCheck":
        """The member for the reason in a record."""
        return _parked(PARKED_MS + reason)


NextCheck: TypeAlias = Scheduled | ParkedCheck


def is_due(check: NextCheck, now_ms: int) -> bool:
    return not isinstance(check, ParkedCheck) and check <= now_ms


def to_number(check: NextCheck) -> int:
    """The number for a record and a row."""
    return check.value if isinstance(check, ParkedCheck) else check


def from_number(number: int) -> NextCheck:
    """The value of a number in a record or a row.

    Raises:
        InvariantViolated: an unknown reason. The log was not written by this state machine.
    """
    return number if number < PARKED_MS else _parked(number)


def _parked(number: int) -> ParkedCheck:
    try:
        return ParkedCheck(number)
    except ValueError:
        raise InvariantViolated(f"unknown parking reason {number - PARKED_MS} of a transaction") from None
