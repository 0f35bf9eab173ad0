"""Remembers from which dead-letter topic a message was handed back.

In the retry queue such a message names only the topic that it had before it became a dead letter. A member that reads
several dead-letter topics for several consumers must remember which of them to deliver the retry to.

A message that became a dead letter in two groups exists twice with one id, and the two retries are indistinguishable. So they
alternate: the next one goes to the topic that handed back last and has received none since.

For an unknown message (evicted, or handed back by another process) ``QueuePuller`` picks the only possible consumer, or hands
the message back once more.
"""

from collections.abc import Container
from typing import Final

#: Remembered messages, about 2 MB: as many as one queue may have unacknowledged.
REMEMBERED_MAX: Final = 10_000


class DeadLetterOrigins:
    """The dead-letter topics of recently handed-back messages, for one group member."""

    def __init__(self) -> None:
        #: Topics by message id, the next one first. Ordered by the last hand-back, for eviction.
        self._topics: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def handed_back(self, message_id: str, topic: str) -> None:
        """The message was handed back by a consumer of the dead-letter ``topic``."""
        others = [other for other in self._topics.pop(message_id, ()) if other != topic]
        self._topics[message_id] = [topic, *others]
        if len(self._topics) > REMEMBERED_MAX:
            del self._topics[next(iter(self._topics))]

    def origin(self, message_id: str, consumed: Container[str]) -> str | None:
        """The topic to which the next delivery belongs, preferably one of ``consumed``. None: the message is unknown."""
        topics = self._topics.get(message_id)
        if topics is None:
            return None
        origin = next((topic for topic in topics if topic in consumed), topics[0])
        topics.remove(origin)
        topics.append(origin)
        return origin
