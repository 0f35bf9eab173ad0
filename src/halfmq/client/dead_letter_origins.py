"""Which dead-letter topic a message was handed back from. In the retry queue it names only the topic where it was before it
went dead, so where one member reads several dead-letter topics for several consumers, it must remember.

A message that went dead in two groups has two letters with one id, and their retries look the same. Which is which does
not matter, but each reader must be given one: the topic that handed back last, and was given nothing since, is the next.

What is forgotten (too old, or handed back by another process) goes to the only reader there is, or back once more.
"""

from collections.abc import Container
from typing import Final

#: Messages. About 2 MB; as many as one queue may have open.
REMEMBERED_MAX: Final = 10_000


class DeadLetterOrigins:
    """One for each member of a group."""

    def __init__(self) -> None:
        #: By message id, the one that was handed back last at the end: its topics, the next one first.
        self._topics: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def handed_back(self, message_id: str, topic: str) -> None:
        others = [other for other in self._topics.pop(message_id, ()) if other != topic]
        self._topics[message_id] = [topic, *others]
        if len(self._topics) > REMEMBERED_MAX:
            del self._topics[next(iter(self._topics))]

    def origin(self, message_id: str, consumed: Container[str]) -> str | None:
        """Whose the next delivery of this message is: one of the ``consumed`` topics if it can be. None: not remembered."""
        topics = self._topics.get(message_id)
        if topics is None:
            return None
        origin = next((topic for topic in topics if topic in consumed), topics[0])
        topics.remove(origin)
        topics.append(origin)
        return origin
