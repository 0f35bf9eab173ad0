"""What a message's properties say about where it may go and when: read by ``core`` at prepare, by ``store`` from disk.

Both must come to the same values, or a queue entry written live and one written by redo would differ.
"""

from functools import lru_cache
from typing import Any, Final

from halfmq import limits
from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.properties import DELAY, TAGS, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, UNIQ_KEY, find

#: An absolute time is told from a span by its sign.
NO_DELAY: Final = 0
_TAGS: Final = TAGS.encode()
_UNIQ_KEY: Final = UNIQ_KEY.encode()
_DELAY: Final = DELAY.encode()
_TIMER_DELAY_SEC: Final = TIMER_DELAY_SEC.encode()
_TIMER_DELAY_MS: Final = TIMER_DELAY_MS.encode()
_TIMER_DELIVER_MS: Final = TIMER_DELIVER_MS.encode()


# A tag may have as many bytes as a property string, so these are 32 MiB at most.
@lru_cache(maxsize=1_024)
def tag_hash(tags: bytes) -> int:
    """Java's hash of a TAGS value, signed 32 bit, as RocketMQ keeps it in the consume queue."""
    return java_string_hash(tags.decode("utf-8", "replace"))


def pairs_of(properties: bytes) -> dict[bytes, bytes]:
    """The property string as a dictionary, by the reader rules of ``properties``.

    For decisions that need many names of one message: from about five on this is cheaper than ``find`` for each.
    """
    # Comprehension and dict() cost two thirds of the loop below, which knows what they do not: pieces without 0x01,
    # and pairs without a value, of which an earlier pair of the same name may have one.
    whole = properties[:-1] if properties.endswith(b"\x02") else properties
    pieces: Any = [piece.split(b"\x01", 1) for piece in whole.split(b"\x02")]
    try:
        pairs: dict[bytes, bytes] = dict(pieces)
    except ValueError:
        return _any_pairs_of(properties)
    return _any_pairs_of(properties) if b"" in pairs.values() else pairs


def _any_pairs_of(properties: bytes) -> dict[bytes, bytes]:
    pairs = {}
    for piece in properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if value:
            pairs[name] = value
    return pairs


def tag_hash_of(properties: bytes) -> int:
    """0 without TAGS, as in RocketMQ."""
    tags = find(properties, TAGS)
    return tag_hash(tags) if tags else 0


def key_hash_of(properties: bytes) -> int:
    """``hash64`` of the unique id (UNIQ_KEY); 0 without one. Stored messages always have one."""
    unique_id = find(properties, UNIQ_KEY)
    return hash64(unique_id) if unique_id else 0


def delay_of(properties: bytes) -> int:
    """``delay_in`` the message with these properties."""
    return delay_in(pairs_of(properties)) if b"DELAY" in properties or b"TIMER_" in properties else NO_DELAY


def delay_in(pairs: dict[bytes, bytes]) -> int:
    """When the message may be seen: 0 at once, n > 0: n ms after it is stored or committed, n < 0: at broker time -n ms.

    DELAY (a standard level, from 1; more than the last means the last) wins over TIMER_DELAY_SEC, TIMER_DELAY_MS and
    TIMER_DELIVER_MS. What is not a number says nothing, as in RocketMQ.
    """
    level = _number(pairs.get(_DELAY))
    if level > 0:
        return limits.DELAY_LEVELS_MS[min(level, len(limits.DELAY_LEVELS_MS)) - 1]
    if (seconds := _number(pairs.get(_TIMER_DELAY_SEC))) > 0:
        return seconds * 1_000
    if (span := _number(pairs.get(_TIMER_DELAY_MS))) > 0:
        return span
    if (at := _number(pairs.get(_TIMER_DELIVER_MS))) > 0:
        return -at
    return NO_DELAY


def half_facts(pairs: dict[bytes, bytes]) -> tuple[int, int, int]:
    """(tag hash, key hash, delay) of a half message: what its queue entry will say at commit."""
    tags = pairs.get(_TAGS)
    unique_id = pairs.get(_UNIQ_KEY)
    delay = NO_DELAY
    if _DELAY in pairs or _TIMER_DELAY_SEC in pairs or _TIMER_DELAY_MS in pairs or _TIMER_DELIVER_MS in pairs:
        delay = delay_in(pairs)
    return tag_hash(tags) if tags else 0, hash64(unique_id) if unique_id else 0, delay


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and len(text) < 20 and text.isdigit() else 0
