"""Where a read starts and ends: offsets or times of the options, and the queue offsets that they mean in a snapshot. Pure functions.

Offsets of queues by time come from the readers (``Reader.offsets_at``). All messages of a transaction have the same store time in a
halfmq store, so a bound by time never splits one.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from halfmq.errors import UsageError
from halfmq.spark.plan.offsets import (
    OFFSET_VERSION,
    SEVERAL_VERSION,
    QueueBoundsSnapshot,
    QueueName,
    queue_broker,
    queue_order,
)
from halfmq.spark.plan.subscription import Subscription

EARLIEST: Final = -2
LATEST: Final = -1
#: Java's long: milliseconds since 1970.
_TIME_MAX_MS: Final = (1 << 63) - 1

_QUEUE: Final = re.compile(r"(?:.+:)?(?:0|[1-9]\d*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets to start or end at. ``queues``: topic -> queue name -> offset, EARLIEST or LATEST; ``everywhere``: EARLIEST or LATEST,
    for all other queues. ``of_stream``: from a stream offset, so a missing queue was deleted; otherwise it is a typing error.
    """

    everywhere: int
    queues: dict[str, dict[str, int]]
    of_stream: bool = False


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Store times to start or end at, ms since 1970. ``queues``: topic -> queue name -> time; ``everywhere_ms``: for all other queues,
    None for their first or last offset.
    """

    everywhere_ms: int | None
    queues: dict[str, dict[str, int]]

    def wanted(self, snapshot: QueueBoundsSnapshot) -> dict[QueueName, int]:
        """The time of each queue of ``snapshot`` that has one.

        Raises:
            UsageError: a queue is named that an existing topic does not have.
        """
        for topic, name, time_ms in _named(self.queues):
            if topic in snapshot.topics and (topic, name) not in snapshot.queues:
                raise _no_such_queue(f"time {time_ms}", topic, name, snapshot)
        named = {
            (topic, name): self.queues.get(topic, {}).get(name, self.everywhere_ms) for topic, name in snapshot.queues
        }
        return {queue: time_ms for queue, time_ms in named.items() if time_ms is not None}


def parse_offsets(name: str, text: str, otherwise: int, subscription: Subscription, hint: str) -> Bounds:
    """``earliest``, ``latest``, or JSON. ``otherwise``: EARLIEST or LATEST, for queues that the JSON does not contain.

    Raises:
        UsageError: invalid; the text contains ``name``, the name of the option.
    """
    if text.lower() in ("earliest", "latest"):
        return Bounds(EARLIEST if text.lower() == "earliest" else LATEST, {})
    of_stream = False
    try:
        decoded = json.loads(text)
        is_offset = isinstance(decoded, dict) and decoded.get("v") in (OFFSET_VERSION, SEVERAL_VERSION)
        if is_offset and isinstance(decoded.get("queues"), dict):
            decoded = decoded["queues"]  # a stream offset, as in checkpoints and progress reports
            of_stream = True
        queues = _of_queues(decoded, "offset", EARLIEST)
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}: {error}", hint=hint) from error
    _check_subscribed(name, queues, subscription)
    return Bounds(otherwise, queues, of_stream)


def parse_time(name: str, text: str) -> TimeBounds:
    """One time for all queues, ms since 1970.

    Raises:
        UsageError: not a number; the text contains ``name``, the name of the option.
    """
    if not (text.isascii() and text.isdecimal() and int(text) <= _TIME_MAX_MS):
        raise UsageError(f"{name} is {text!r}", hint="milliseconds since 1970, a whole number")
    return TimeBounds(int(text), {})


def parse_times(name: str, text: str, subscription: Subscription, hint: str) -> TimeBounds:
    """JSON of times. Queues that it does not contain are read from their start, or to their end.

    Raises:
        UsageError: invalid; the text contains ``name``, the name of the option.
    """
    try:
        queues = _of_queues(json.loads(text), "time", 0)
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}: {error}", hint=hint) from error
    _check_subscribed(name, queues, subscription)
    return TimeBounds(None, queues)


def _check_subscribed(name: str, queues: Mapping[str, object], subscription: Subscription) -> None:
    unsubscribed = sorted(topic for topic in queues if not subscription.includes(topic))
    if unsubscribed:
        raise UsageError(f"{name} contains topics that are not subscribed: {', '.join(unsubscribed)}")


def _of_queues(decoded: Any, what: str, least: int) -> dict[str, dict[str, int]]:
    if not isinstance(decoded, dict) or not all(isinstance(queues, dict) for queues in decoded.values()):
        raise ValueError(f"not of the form {{topic: {{queue: {what}}}}}")
    for topic, queue, value in _named(decoded):
        if not _QUEUE.fullmatch(queue):
            raise ValueError(
                f"{queue!r} is not a queue of {topic}: queues are numbers, of several brokers BROKER:NUMBER"
            )
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _TIME_MAX_MS:
            raise ValueError(f"{what} of {topic}/{queue} is {value!r}")
    return {topic: dict(queues) for topic, queues in decoded.items()}


def _named(queues: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str, int]]:
    return [(topic, name, value) for topic, named in queues.items() for name, value in named.items()]


def _no_such_queue(what: str, topic: str, name: str, snapshot: QueueBoundsSnapshot) -> UsageError:
    there = [queue for _, queue in sorted((queue for queue in snapshot.queues if queue[0] == topic), key=queue_order)]
    several = (
        "several brokers may have it, so its queues have the form BROKER:NUMBER; they"
        if _is_named(there)
        else "its queues"
    )
    return UsageError(
        f"{what} of queue {name} of topic {topic} was requested; there is no such queue",
        hint=f"{several} are {', '.join(there)}",
    )


def _is_named(queues: Iterable[str]) -> bool:
    """Whether the queues have the names of their brokers."""
    return any(queue_broker(name) for name in queues)


def resolved(
    bounds: Bounds | None, otherwise: int, snapshot: QueueBoundsSnapshot, lost: Callable[[str], None]
) -> dict[QueueName, int]:
    """Offsets of all queues of ``snapshot`` according to ``bounds``; if None, all are ``otherwise`` (EARLIEST or LATEST).

    ``lost`` is called for offsets that do not exist; if it returns, the nearest existing offset is used.

    Raises:
        UsageError: ``bounds`` were given by the user and contain a queue that an existing topic does not have.
    """
    bounds = bounds or Bounds(otherwise, {})
    for topic, name, at in _named(bounds.queues):
        if (topic, name) in snapshot.queues:
            continue
        other_form = bool(queue_broker(name)) != _is_named(queue for other, queue in snapshot.queues if other == topic)
        if topic in snapshot.topics and (other_form or not bounds.of_stream):
            raise _no_such_queue(f"offset {at}", topic, name, snapshot)
        if at > 0:
            lost(f"offset {at} of queue {name} of topic {topic} was requested; there is no such queue")
    found = {}
    for (topic, name), (first, end) in snapshot.queues.items():
        at = bounds.queues.get(topic, {}).get(name, bounds.everywhere)
        if at == EARLIEST:
            at = first
        elif at == LATEST:
            at = end
        elif not first <= at <= end:
            contents = f"contains {first} to {end - 1}" if first < end else f"is empty, and its next message is {end}"
            lost(f"offset {at} of queue {name} of topic {topic} was requested; the queue {contents}")
            at = min(max(at, first), end)
        found[topic, name] = at
    return found


def starts_by_time(
    snapshot: QueueBoundsSnapshot,
    wanted: Mapping[QueueName, int],
    found: Mapping[QueueName, int | None],
    *,
    without_match_latest: bool,
) -> dict[QueueName, int]:
    """Where each queue starts: at the offset in ``found``, the first message at its time in ``wanted`` or later; queues without a time
    at their first offset.

    Raises:
        UsageError: all messages of a queue are older than its time (also if it has none), unless ``without_match_latest``: it then
            starts at its end. Precedent: ``startingOffsetsByTimestampStrategy`` of Spark's Kafka source.
    """
    starts = {queue: first for queue, (first, _) in snapshot.queues.items()}
    for queue, time_ms in sorted(wanted.items(), key=lambda item: queue_order(item[0])):
        at = found[queue]
        if at is None and not without_match_latest:
            raise UsageError(
                f"queue {queue[1]} of topic {queue[0]} has no message at or after {time_ms} ms",
                hint="startingOffsetsByTimestampStrategy=latest starts such a queue at its end",
            )
        starts[queue] = snapshot.queues[queue][1] if at is None else at
    return starts


def ends_by_time(snapshot: QueueBoundsSnapshot, found: Mapping[QueueName, int | None]) -> dict[QueueName, int]:
    """Where each queue ends: before the first message at its time or later; without such a message, or without a time, at its end."""
    return {queue: end if (at := found.get(queue)) is None else at for queue, (_, end) in snapshot.queues.items()}
