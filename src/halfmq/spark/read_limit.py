"""Divides ``maxOffsetsPerTrigger`` among the queues. Pure functions."""

from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=tuple[str, str])


def shares(backlog: Mapping[Name, int], limit: int) -> dict[Name, int]:
    """Number of messages to read from each queue, in proportion to its backlog. The sum is ``min(limit, total backlog)``.

    Each queue with a backlog gets at least one message while the limit allows it, so that small queues do not starve (Spark's
    Kafka source rounds up for the same reason, and may exceed the limit). Remainders go by the largest-remainder method.
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
