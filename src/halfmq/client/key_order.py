"""Which messages may be handled now, where several are handled at once: of one sharding key one at a time, in the order in
which they came. A message that failed keeps its turn until it succeeds or is given up, and holds what comes behind it.

Only the rule: who waits, for how long, and what a failure leads to is with those who call.
"""

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

from halfmq.client.message import Message

_Source = TypeVar("_Source")


class Entry(NamedTuple, Generic[_Source]):
    """A message that waits, and what it came from."""

    source: _Source
    message: Message


#: How long a key waits after a failure, and after twice that each time, seconds. Precedent: RocketMQ
#: ``suspendCurrentQueueTimeMillis`` = 1,000 each time, for the whole queue.
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 600.0


def pause_s(failures: int) -> float:
    """After the ``failures``-th failure of one message in a row."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 32), PAUSE_MAX_S)


class _KeyQueue(Generic[_Source]):
    """One key that is busy."""

    __slots__ = ("behind", "failures", "turn")

    def __init__(self, turn: Message) -> None:
        #: The message that is handled, or is to be the next time that it enters.
        self.turn = turn
        self.failures = 0
        self.behind: deque[Entry[_Source]] = deque()


class KeyOrder(Generic[_Source]):
    """``enter`` before a message is handled, ``leave`` after it."""

    def __init__(self) -> None:
        self._busy: dict[tuple[str, str], _KeyQueue[_Source]] = {}

    def enter(self, entry: Entry[_Source]) -> bool:
        """True: handle it now. False: it is kept, and comes out of ``leave`` when its turn has come."""
        message = entry.message
        key = _key(message)
        if key is None:
            return True
        lane = self._busy.get(key)
        if lane is None:
            self._busy[key] = _KeyQueue(message)
            return True
        if lane.turn is message:
            return True
        lane.behind.append(entry)
        return False

    def leave(self, message: Message) -> Entry[_Source] | None:
        """It was handled, or given up. Gives what waited behind it: let it enter, since nothing else of its key can."""
        key = _key(message)
        lane = None if key is None else self._busy.get(key)
        if key is None or lane is None or lane.turn is not message:
            return None
        if not lane.behind:
            del self._busy[key]
            return None
        entry = lane.behind.popleft()
        lane.turn, lane.failures = entry.message, 0
        return entry

    def failed(self, message: Message) -> int:
        """It stays the one whose turn it is. How often that was, this time included."""
        key = _key(message)
        assert key is not None
        lane = self._busy[key]
        lane.failures += 1
        return lane.failures


def _key(message: Message) -> tuple[str, str] | None:
    """A key orders messages of one topic: they are in one queue."""
    sharding_key = message.sharding_key
    return None if sharding_key is None else (message.topic, sharding_key)
