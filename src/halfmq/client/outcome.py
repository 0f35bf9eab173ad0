"""``Outcome``: what an application reports about its local transaction."""

from enum import Enum


class Outcome(Enum):
    """The answer of a listener or check function. Values are those of ``commitOrRollback`` in END_TRANSACTION.

    UNKNOWN is always safe: the transaction stays undecided, and the broker checks again later.
    """

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0
