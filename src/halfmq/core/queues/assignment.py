"""Which queues a member of a group reads if it leaves the assignment to the broker (400); the result equals that of the clients.

Both of RocketMQ's strategies that a broker knows by name are supported. Any other name is treated as AVG: a group with another
assignment than it requested consumes, one without a response does not.
"""

from collections.abc import Iterable
from typing import Final

BY_CIRCLE: Final = "AVG_BY_CIRCLE"


def assigned_queues(strategy: str, queues: int, members: Iterable[str], me: str) -> range:
    """The queue ids, of 0 to ``queues`` - 1, that ``me`` reads; none if it is not a member, or if there are more members than queues.

    Source: RocketMQ ``AllocateMessageQueueAveragely`` and ``AllocateMessageQueueAveragelyByCircle``.
    """
    ids = sorted(set(members))
    if me not in ids:
        return range(0)
    position = ids.index(me)
    if strategy == BY_CIRCLE:
        return range(position, queues, len(ids))
    share, rest = divmod(queues, len(ids))
    start = position * share + min(position, rest)
    return range(start, start + share + (position < rest))
