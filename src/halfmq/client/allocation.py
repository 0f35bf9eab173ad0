"""Which queues of a topic are mine: RocketMQ's ``AllocateMessageQueueAveragely``, byte for byte.

Members of a group decide alone, so all must decide alike; a group may be shared with Java clients.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class QueueRef(NamedTuple):
    """One queue of one topic on one broker. Sorts as RocketMQ's ``MessageQueue`` does: topic, broker, number."""

    topic: str
    broker: str
    queue: int


def allocate(queues: Iterable[QueueRef], members: Iterable[str], me: str) -> Sequence[QueueRef]:
    """My contiguous range of ``queues``; empty when I am no member (yet) or there are more members than queues.

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
