"""Which messages a subscription selects: by their tags.

The broker compares 32-bit hashes from the queue entry without reading the message. Clients compare the strings again, so a
collision costs bytes and is never visible. The grammar is RocketMQ's: tags between ``||``, trimmed, empty ones dropped; ``*`` or an
empty expression means all messages.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from halfmq import limits
from halfmq.core.decision import Refused, Why
from halfmq.model.ids import java_string_hash

TAG: Final = "TAG"
#: Thousands of expressions up to this length are cached (about 10 KiB each if they consist of tags), but only a few longer ones.
_SHORT: Final = 256
_SHORT_REMEMBERED: Final = 2_048
_LONG_REMEMBERED: Final = 32
#: Memory of a tag in a filter, bytes.
_TAG_COST: Final = 80
#: Maximum number of characters of an invalid expression in a message.
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class TagFilter:
    """``tag_hashes``: a message whose queue entry has another one is not read; None: all are."""

    tag_hashes: frozenset[int] | None

    @property
    def memory_bytes(self) -> int:
        """Of the tags. Filters of the same expression share it."""
        return _TAG_COST * len(self.tag_hashes or ())


#: What pulls select by. Another kind of expression is a class with these attributes, and a branch of ``parse_filter``.
Filter = TagFilter


def parse_filter(expression: str, expression_type: str = TAG) -> Filter | Refused:
    """The filter of a subscription. An absent type means TAG, as in RocketMQ.

    Refusals: SUBSCRIPTION_PARSE_FAILED, FILTER_NOT_SUPPORTED.
    """
    if expression_type not in ("", TAG):
        text = f"expression type {expression_type[:_SHOWN]!r} is not supported; use TAG"
        return Refused(Why.FILTER_NOT_SUPPORTED, text)
    if len(expression) <= _SHORT:
        return _parsed_short(expression)
    if len(expression) <= limits.EXPRESSION_CHARS_MAX:
        return _parsed_long(expression)
    return Refused(
        Why.SUBSCRIPTION_PARSE_FAILED,
        f"an expression of {len(expression)} characters, at most {limits.EXPRESSION_CHARS_MAX} are read: subscribe to "
        "everything and choose in the consumer, or use fewer tags",
    )


def _parse(expression: str) -> TagFilter | Refused:
    if expression.strip() in ("", "*"):
        return TagFilter(None)
    tags = [tag.strip() for tag in expression.split("||")]
    hashes = frozenset(java_string_hash(tag.encode("utf-8", "replace").decode()) for tag in tags if tag)
    if not hashes:
        return Refused(Why.SUBSCRIPTION_PARSE_FAILED, f"expression {expression[:_SHOWN]!r} names no tag")
    return TagFilter(hashes)


_parsed_short = lru_cache(maxsize=_SHORT_REMEMBERED)(_parse)
_parsed_long = lru_cache(maxsize=_LONG_REMEMBERED)(_parse)
