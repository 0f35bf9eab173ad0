"""Which messages of a queue a subscription wants, by tag.

The broker compares 32-bit hashes from the queue entry, without reading the message; clients compare the strings again, so
a collision costs bytes and is never seen. The grammar is RocketMQ's: tags between ``||``, trimmed, empty ones dropped;
``*`` or nothing means every message.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from halfmq.model.message_facts import tag_hash

TAG: Final = "TAG"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """``hashes`` None: every message."""

    hashes: frozenset[int] | None

    def wants(self, hash_of_tag: int) -> bool:
        return self.hashes is None or hash_of_tag in self.hashes


@dataclass(frozen=True, slots=True)
class FilterRefused:
    """Answer ``SUBSCRIPTION_PARSE_FAILED`` or, for an expression type that is not offered, ``SYSTEM_ERROR``."""

    text: str
    unknown_type: bool


@lru_cache(maxsize=4_096)
def parse_filter(expression: str, expression_type: str = TAG) -> TagFilter | FilterRefused:
    """The filter of a subscription. An absent type means TAG, as in RocketMQ."""
    if expression_type not in ("", TAG):
        return FilterRefused(f"expression type {expression_type!r} is not offered here, TAG is", True)
    if expression.strip() in ("", "*"):
        return TagFilter(None)
    tags = [tag.strip() for tag in expression.split("||")]
    hashes = frozenset(tag_hash(tag.encode()) for tag in tags if tag)
    if not hashes:
        return FilterRefused(f"expression {expression!r} names no tag", False)
    return TagFilter(hashes)
