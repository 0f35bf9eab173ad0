"""Per-key ordering for concurrent handlers: messages of one sharding key are handled one at a time, in arrival order.

A failed message stays the current one of its key until it succeeds or is given up, and blocks the later ones. This module has
no timers and no policy: the caller waits, and decides what a failure leads to.
"""

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

from halfmq.client.message import Message

_Source = TypeVar("_Source")


class Entry(NamedTuple, Generic[_Source]):
    """A waiting message and its source (the ``QueuePuller`` that pulled it)."""

    source: _Source
    message: Message


#: How long a key is blocked after the first failure, seconds; doubled with each further one. Precedent: RocketMQ
#: ``suspendCurrentQueueTimeMillis`` = 1,000 each time, for the whole queue.
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 600.0


def pause_s(failures: int) -> float:
    """How long to wait after the ``failures``-th consecutive failure of a message, seconds."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 32), PAUSE_MAX_S)


class _KeyQueue(Generic[_Source]):
    """A key with a message in handling, and the messages that wait for it."""

    __slots__ = ("current", "waiting")

    def __init__(self, current: Message) -> None:
        #: The message that is being handled, or will be when it is entered again.
        self.current = current
        self.waiting: deque[Entry[_Source]] = deque()


class KeyOrder(Generic[_Source]):
    """Call ``enter`` before handling a message and ``leave`` after it."""

    def __init__(self) -> None:
        self._busy: dict[tuple[str, str], _KeyQueue[_Source]] = {}

    def enter(self, entry: Entry[_Source]) -> bool:
        """True: handle it now. False: it is queued, and a later ``leave`` returns it."""
        message = entry.message
        key = _key(message)
        if key is None:
            return True
        queue = self._busy.get(key)
        if queue is None:
            self._busy[key] = _KeyQueue(message)
            return True
        if queue.current is message:
            return True
        queue.waiting.append(entry)
        return False

    def leave(self, message: Message) -> Entry[_Source] | None:
        """The message was handled or given up. Returns the next message of its key, which the caller must ``enter``, or None."""
        key = _key(message)
        queue = None if key is None else self._busy.get(key)
        if key is None or queue is None or queue.current is not message:
            return None
        if not queue.waiting:
            del self._busy[key]
            return None
        entry = queue.waiting.popleft()
        queue.current = entry.message
        return entry


def _key(message: Message) -> tuple[str, str] | None:
    """The order is per topic and sharding key. None: the message has no sharding key."""
    sharding_key = message.sharding_key
    return None if sharding_key is None else (message.topic, sharding_key)
