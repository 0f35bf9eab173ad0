"""Which queues a member of a group reads, where it leaves that to the broker (400): as members decide it themselves.

Both of RocketMQ's strategies that a broker knows by name. Anything else is shared out like AVG: a group that gets its
queues in another way than it asked for consumes, one that gets no answer does not.
"""

from collections.abc import Iterable
from typing import Final

BY_CIRCLE: Final = "AVG_BY_CIRCLE"


def assigned_queues(strategy: str, queues: int, members: Iterable[str], me: str) -> range:
    """The ids, of queues 0 to ``queues`` - 1, that ``me`` reads; none when it is no member, or there are more members.

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
