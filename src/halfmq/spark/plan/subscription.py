"""Which topics a query reads: ``subscribe`` names them, ``subscribePattern`` chooses among those that exist. Pure functions.

Both readers choose here, so that a query with a pattern reads the same topics over the network and from files.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX
from halfmq.core.topics import NOT_FOR_CLIENTS
from halfmq.model.ids import REPLY_TOPIC_SUFFIX

#: Topics of brokers besides ``NOT_FOR_CLIENTS``: traces, timers and POP (RocketMQ ``TopicValidator``, in both cases), and benchmarks.
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_SYSTEM: Final = NOT_FOR_CLIENTS | {"BenchmarkTest"}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics of a query. Exactly one of ``names`` and ``pattern`` is not empty.

    ``pattern``: a regular expression in Python's syntax that must match the whole name (Spark's Kafka source uses Java's).
    """

    names: tuple[str, ...] = ()
    pattern: str = ""

    def includes(self, topic: str) -> bool:
        """Whether the query reads ``topic`` if it exists."""
        if not self.pattern:
            return topic in self.names
        return not self._is_hidden(topic) and re.fullmatch(self.pattern, topic) is not None

    def chosen(self, topics: Iterable[str], brokers: Iterable[str] = ()) -> tuple[str, ...]:
        """The topics to read among those that exist, sorted; with ``names``, these in any case, since they may be created later.

        ``brokers``: names of brokers and clusters. Apache RocketMQ has topics of the same names, which a pattern does not match.
        """
        if not self.pattern:
            return self.names
        own = set(brokers)
        own |= {name + REPLY_TOPIC_SUFFIX for name in own}
        return tuple(sorted(topic for topic in set(topics) - own if self.includes(topic)))

    def in_words(self) -> str:
        """For the text of an error."""
        return f"a topic that matches {self.pattern!r}" if self.pattern else f"topic {', '.join(self.names)}"

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern}" if self.pattern else f"subscribe={','.join(self.names)}"

    def _is_hidden(self, topic: str) -> bool:
        """Whether the pattern cannot match ``topic``: topics of brokers, and retries and dead letters unless it contains their prefix."""
        if topic in _SYSTEM or topic.startswith(_SYSTEM_PREFIXES):
            return True
        return any(topic.startswith(prefix) and prefix not in self.pattern for prefix in (RETRY_PREFIX, DLQ_PREFIX))
