"""Queue assignment within a consumer group: the same result as RocketMQ's ``AllocateMessageQueueAveragely``.

Each member computes its share without a coordinator, so all must use the same algorithm; a group may include Java clients.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class QueueRef(NamedTuple):
    """One queue of one topic on one broker. Sorts as RocketMQ's ``MessageQueue`` does: topic, broker, number."""

    topic: str
    broker: str
    queue: int


def allocate(queues: Iterable[QueueRef], members: Iterable[str], me: str) -> Sequence[QueueRef]:
    """The contiguous range of ``queues`` for member ``me``. Empty if ``me`` is not in ``members`` or has no share.

    With n queues, m members and r = n mod m, the first r members get one queue more than the others.
    """
    ordered = sorted(queues)
    ids = sorted(set(members))
    if me not in ids:
        return ()
    position = ids.index(me)
    share, rest = divmod(len(ordered), len(ids))
    if position < rest:
        start = position * (share + 1)
        return ordered[start : start + share + 1]
    start = position * share + rest
    return ordered[start : start + share]
