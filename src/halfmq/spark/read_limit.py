"""How many messages one trigger takes of each queue when it may not take all. Pure."""

from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=tuple[str, str])


def shares(backlog: Mapping[Name, int], limit: int) -> dict[Name, int]:
    """``limit`` messages over the queues in proportion to their backlog; everything where that is not more.

    The shares add up to ``min(limit, whole backlog)`` exactly. Each queue that has something gets at least one while the
    limit allows it, so that a queue with little is not starved by one with much (Spark's Kafka source rounds such a share
    up for the same reason, and may exceed the limit by it). Largest remainders get what rounding leaves.
    """
    waiting = {name: count for name, count in backlog.items() if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    if limit <= len(waiting):
        first = sorted(waiting, key=lambda name: (-waiting[name], name))[:limit]
        return dict.fromkeys(first, 1)
    taken = {name: count * limit // total for name, count in waiting.items()}
    remainders = sorted(waiting, key=lambda name: (-(waiting[name] * limit % total), name))
    for name in remainders[: limit - sum(taken.values())]:
        taken[name] += 1
    for name in sorted(name for name, count in taken.items() if count == 0):
        taken[max(taken, key=taken.__getitem__)] -= 1
        taken[name] = 1
    return taken
