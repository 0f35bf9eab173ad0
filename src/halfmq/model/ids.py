"""Identifiers: transaction ids, unique message ids, offset message ids.

A transaction is identified by (producer group, id). An id has at most 64 characters of ``[A-Za-z0-9._:-]`` and is never reused. The id of
RocketMQ clients is the message's UNIQ_KEY; ours has the form of the FMQ source, 3.2.3: client version, client address, start time,
process, connection number, transaction number.

An id is *generated*, by a client that makes each one once, or *chosen* by the application, which may use it again: then the broker
searches for an earlier verdict before it accepts a half. Which it is follows from the id alone and the message's UNIQ_KEY.
"""

import re
from typing import Final

from halfmq import limits
from halfmq.errors import InvalidName
from halfmq.model.cached import Cached
from halfmq.model.checksum import crc32

_ID: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{limits.TRANSACTION_ID_CHARS_MAX}}}")
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
#: An id of ``client.unique_ids`` without its number. One client has one such prefix, so the results are cached by prefix.
_GENERATED_PREFIX: Final = re.compile(r"[0-9]{1,2}-[0-9a-f]{8}-[0-9a-f]{1,16}-[0-9a-f]{1,8}-[0-9a-f]{8}")
_generated_prefixes: Final[Cached[str, bool]] = Cached(
    lambda prefix: len(prefix) < 64 and _GENERATED_PREFIX.fullmatch(prefix) is not None, 1_024
)
#: Length of a UNIQ_KEY of RocketMQ's clients, with an IPv4 or an IPv6 address (``MessageClientIDSetter``), in upper-case hex.
UNIQUE_ID_CHARS: Final = frozenset({32, 56})

#: In place of a half's index and log offset in a verdict: whichever half. For a producer that knows a transaction only by its id, because
#: an earlier process has sent the halves. It may roll back, and not commit: what it has not sent it cannot vouch for. A coordinator in its
#: newest epoch may do both: no other process prepares or settles for it any more.
ANY_HALF: Final = -1

#: Of the topic to which replies of request-reply are sent; its prefix is the cluster.
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"


def is_transaction_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_generated_id(tx_id: str) -> bool:
    """Whether the id has the form of those that our client generates."""
    return _generated_prefixes[tx_id.rpartition("-")[0]]


def is_unique_id(tx_id: str, key_hash: int) -> bool:
    """Whether the id is the UNIQ_KEY of its message, whose ``hash64`` is ``key_hash``, and is as long as RocketMQ's clients make it."""
    # The low half of ``hash64``. If it is equal by chance, a chosen id of this length counts as generated.
    return len(tx_id) in UNIQUE_ID_CHARS and crc32(tx_id.encode()) == key_hash & 0xFFFFFFFF


def is_name(text: str, characters_max: int) -> bool:
    """Whether RocketMQ's ``TopicValidator`` accepts the name."""
    return len(text) <= characters_max and _NAME.fullmatch(text) is not None


def checked_name(text: str, what: str, characters_max: int) -> str:
    """``text`` if RocketMQ's ``TopicValidator`` accepts it.

    Raises:
        InvalidName: with the problem and what is allowed.
    """
    if not isinstance(text, str) or not is_name(text, characters_max):
        raise InvalidName(
            f"{what} {text!r} is not a valid name",
            hint=f"1 to {characters_max} characters, letters, digits and %|_- only",
        )
    return text


def group_problem(name: str) -> str:
    """Why this is no name of a producer group, and what is one; empty: it is one."""
    try:
        checked_name(name, "producer group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return str(error)
    return ""


def offset_message_id(store_host: bytes, log_offset: int) -> str:
    """RocketMQ's ``offsetMsgId``: the broker's address and the log offset in upper-case hex, 32 or 56 characters."""
    return (store_host + log_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """(store host, log offset).

    Raises:
        ValueError: not 32 or 56 hex characters.
    """
    if len(text) not in (32, 56):
        raise ValueError(f"{text!r} is not an offset message id: 32 or 56 hex characters expected")
    raw = bytes.fromhex(text)
    return raw[:-8], int.from_bytes(raw[-8:], "big")


def unsigned_hash64(text: bytes) -> int:
    """The bits of ``hash64`` as an unsigned number, for packing."""
    low = crc32(text)
    return crc32(text, low ^ 0xA5A5A5A5) << 32 | low


def hash64(text: bytes) -> int:
    """A signed 64-bit hash for look-ups in indexes; equal hashes must be verified with the actual key."""
    low = crc32(text)
    high = crc32(text, low ^ 0xA5A5A5A5)
    return (high if high < 0x8000_0000 else high - 0x1_0000_0000) << 32 | low


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``, signed 32 bit, over UTF-16 code units: RocketMQ's tag hash."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H") if text else ():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
