"""How much one trigger of a stream reads: ``maxOffsetsPerTrigger``, ``maxBytesPerTrigger``, ``minOffsetsPerTrigger``. Pure functions.

Spark 4.3 has no composite limit for Python sources, and passes back the one that ``getDefaultReadLimit`` returned. ``Trigger.Once``
passes ``ReadAllAvailable`` instead, whatever the options are. So the object says whether there is a limit, and the options
add those that it cannot hold.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

Name = TypeVar("Name", bound=tuple[str, str])


class Limits(NamedTuple):
    """Limits of a trigger; None: no limit. ``rows_min``: below it the trigger waits."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None

    def default(self) -> ReadLimit:
        """The object for ``getDefaultReadLimit``: a limit, if there is one. See ``of_trigger`` for the others."""
        if self.rows_max is not None:
            return ReadMaxRows(self.rows_max)
        if self.bytes_max is not None:
            return ReadMaxBytes(self.bytes_max)
        return ReadAllAvailable() if self.rows_min is None else ReadMinRows(self.rows_min)

    def of_trigger(self, limit: ReadLimit) -> "Limits":
        """The limits of a trigger to which Spark passed ``limit``."""
        match limit:
            case ReadAllAvailable():
                return Limits()
            case ReadMaxRows(rows):
                return self._replace(rows_max=rows)
            case ReadMaxBytes(size):
                return self._replace(bytes_max=size)
            case ReadMinRows(rows):
                return self._replace(rows_min=rows)
            case _:
                return self


class TriggerDelay:
    """How long a trigger waits for ``minOffsetsPerTrigger``. The first one of a query does not wait: it may have a backlog.

    Precedent: ``delayBatch`` of Spark's Kafka source.
    """

    def __init__(self, longest_ms: int) -> None:
        self._longest_s = longest_ms / 1_000
        #: When the last trigger did not wait; None before the first one.
        self._last_s: float | None = None

    def waits(self, available: int, rows_min: int | None, now_s: float) -> bool:
        """Whether a trigger with this many messages waits. ``now_s``: a monotonic clock, s."""
        if (
            rows_min is not None
            and available < rows_min
            and self._last_s is not None
            and now_s - self._last_s < self._longest_s
        ):
            return True
        self._last_s = now_s
        return False


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


def shares_within_bytes(
    backlog: Mapping[Name, int], bytes_max: int, fitting: Callable[[Name, int, int, int], tuple[int, int]]
) -> dict[Name, int]:
    """Number of messages to read from each queue, at most its ``backlog``, whose sizes together are at most ``bytes_max``.

    If even the first message is larger, that one alone. First each queue gets one message, the longest first, while they fit; then
    each gets bytes in proportion to its backlog; what is left over goes to the longest.

    ``fitting(name, skipped, count, bytes_max)``: (number, bytes) of the messages that fit, of ``count`` messages after the first
    ``skipped`` ones of the backlog.
    """
    order = sorted((name for name, count in backlog.items() if count > 0), key=lambda name: (-backlog[name], name))
    taken = dict.fromkeys(order, 0)
    left = bytes_max

    def take(name: Name, count: int, budget: int) -> None:
        nonlocal left
        if count > 0 and budget > 0:
            fit, size = fitting(name, taken[name], count, budget)
            taken[name] += fit
            left -= size

    for name in order:
        take(name, 1, left)
    budget, total = left, sum(backlog[name] - taken[name] for name in order)
    for name in order:
        rest = backlog[name] - taken[name]
        take(name, rest, min(left, budget * rest // max(total, 1)))
    for name in order:
        take(name, backlog[name] - taken[name], left)
    if order and not any(taken.values()):
        taken[order[0]] = 1
    return {name: count for name, count in taken.items() if count}
