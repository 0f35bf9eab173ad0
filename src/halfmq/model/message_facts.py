"""What a message's properties say about where it may go and when: read by ``core`` at prepare, by ``store`` from disk.

Both must come to the same values, or a queue entry written live and one written by redo would differ.
"""

from functools import lru_cache
from typing import Final

from halfmq import limits
from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.properties import DELAY, TAGS, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, UNIQ_KEY, find

#: An absolute time is told from a span by its sign.
NO_DELAY: Final = 0


@lru_cache(maxsize=4_096)
def tag_hash(tags: bytes) -> int:
    """Java's hash of a TAGS value, signed 32 bit, as RocketMQ keeps it in the consume queue."""
    return java_string_hash(tags.decode("utf-8", "replace"))


def tag_hash_of(properties: bytes) -> int:
    """0 without TAGS, as in RocketMQ."""
    if b"TAGS\x01" not in properties:
        return 0
    tags = find(properties, TAGS)
    return tag_hash(tags) if tags else 0


def key_hash_of(properties: bytes) -> int:
    """``hash64`` of the unique id (UNIQ_KEY); 0 without one. Stored messages always have one."""
    unique_id = find(properties, UNIQ_KEY)
    return hash64(unique_id) if unique_id else 0


def delay_of(properties: bytes) -> int:
    """When the message may be seen: 0 at once, n > 0: n ms after it is stored or committed, n < 0: at broker time -n ms.

    DELAY (a standard level, from 1; more than the last means the last) wins over TIMER_DELAY_SEC, TIMER_DELAY_MS and
    TIMER_DELIVER_MS. What is not a number says nothing, as in RocketMQ.
    """
    if b"DELAY" not in properties and b"TIMER_" not in properties:
        return NO_DELAY
    level = _number(find(properties, DELAY))
    if level > 0:
        return limits.DELAY_LEVELS_MS[min(level, len(limits.DELAY_LEVELS_MS)) - 1]
    if (seconds := _number(find(properties, TIMER_DELAY_SEC))) > 0:
        return seconds * 1_000
    if (span := _number(find(properties, TIMER_DELAY_MS))) > 0:
        return span
    if (at := _number(find(properties, TIMER_DELIVER_MS))) > 0:
        return -at
    return NO_DELAY


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and len(text) < 20 and text.isdigit() else 0
