"""The three things an application can say about its local transaction."""

from enum import Enum


class Outcome(Enum):
    """What a listener answers. The value is ``commitOrRollback`` of RocketMQ's END_TRANSACTION.

    UNKNOWN is always safe: the broker waits and asks again. It never decides by itself.
    """

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0
