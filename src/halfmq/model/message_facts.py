"""Values in a message's properties that determine its visibility: read by ``broker.services`` when a send arrives, by ``core`` when it
sends a message back, and by ``store`` from the disk.

All must get the same values, or a queue entry written live would differ from one written by redo.
"""

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.model.cached import Cached
from halfmq.model.coordinator import Coordinator, parse_coordinator
from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.properties import (
    CHECK_IMMUNITY_SECONDS,
    DELAY,
    HMQ_ADVICE,
    HMQ_BRANCH,
    HMQ_COMMENT,
    HMQ_COORDINATOR,
    HMQ_TX_COUNT,
    HMQ_TX_ID,
    HMQ_TX_INDEX,
    HMQ_TX_MARKER,
    HMQ_TX_NAME,
    HMQ_USER,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PGROUP,
    PROPERTY_SEPARATOR,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    cut,
    find,
)
from halfmq.model.users import is_user_name

#: The sign distinguishes an absolute time from a duration.
NO_DELAY: Final = 0
#: Longer than any delay that is accepted.
INVALID_DELAY: Final = 1 << 62
#: Maximum grace period that a half may request, ms; without a maximum it might never be checked.
#: Equal to the longest timer (RocketMQ ``timerMaxDelaySec``).
GRACE_MAX_MS: Final = 3 * 86_400_000
_HMQ_TX_ID: Final = HMQ_TX_ID.encode()
_HMQ_COORDINATOR: Final = HMQ_COORDINATOR.encode()
_HMQ_TX_MARKER: Final = HMQ_TX_MARKER.encode()
_HMQ_USER: Final = HMQ_USER.encode()
_CHECK_IMMUNITY_SECONDS: Final = CHECK_IMMUNITY_SECONDS.encode()
_DELAY: Final = DELAY.encode()
_TIMER_DELAY_SEC: Final = TIMER_DELAY_SEC.encode()
_TIMER_DELAY_MS: Final = TIMER_DELAY_MS.encode()
_TIMER_DELIVER_MS: Final = TIMER_DELIVER_MS.encode()
#: Properties of almost every half message, in the order of ``common_values``.
_COMMON: Final = tuple([name.encode() for name in (TRAN_MSG, PGROUP, UNIQ_KEY, TAGS, KEYS)])
#: Other properties that matter when a message is sent.
_RARE: Final = frozenset(
    {
        name.encode()
        for name in (
            HMQ_TX_ID, HMQ_TX_INDEX, HMQ_TX_COUNT, CHECK_IMMUNITY_SECONDS, DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS,
            TIMER_DELIVER_MS, TRACE_ON, HMQ_COORDINATOR, HMQ_USER,
        )
    }
)  # fmt: skip
_NO_PAIRS: Final[tuple[Mapping[bytes, bytes]]] = ({},)

#: (all pairs if a name of ``_RARE`` may be among them, else empty; values of TRAN_MSG, PGROUP, UNIQ_KEY, TAGS, KEYS, b"" where missing).
CommonValues = tuple[Mapping[bytes, bytes], bytes, bytes, bytes, bytes, bytes]

#: (names, match of a whole property string with these names in this order, reader of the values of ``_COMMON`` from a match; None: there
#: are names of ``_RARE``) of recent messages, newest first. A client writes the same names in the same order again and again, and
#: a match takes half the time of a split.
_Values = tuple[bytes, bytes, bytes, bytes, bytes]
_Layout = tuple[
    tuple[bytes, ...], Callable[[bytes], re.Match[bytes] | None], Callable[[re.Match[bytes]], _Values] | None
]
_layouts: list[_Layout] = []
_LAYOUTS_MAX: Final = 4
#: One of this many strings without a known layout is learned: that takes some 200 us, and clients choose the names.
_LEARNED_OF: Final = 64
_LAYOUT_NAMES_MAX: Final = 32
_LAYOUT_BYTES_MAX: Final = 1_024
_misses = itertools.count(1)


#: Java's hash of a TAGS value, signed 32 bit, as in RocketMQ's consume queue; 0 for none. A tag may be as long as a property string, so
#: these are at most 32 MiB.
tag_hashes: Final[Cached[bytes, int]] = Cached(lambda tags: java_string_hash(tags.decode("utf-8", "replace")), 1_024)


def pairs_of(properties: bytes) -> dict[bytes, bytes]:
    """The property string as a dictionary, by the reader rules of ``properties``.

    For decisions that need many names of one message: from about five names on this is cheaper than calls of ``find``.
    """
    for names, match, _ in _layouts:
        found = match(properties)
        if found is not None:
            return dict(zip(names, found.groups(), strict=False))  # the last group after the values is always empty
    return _cut(properties)


def common_values(properties: bytes) -> CommonValues:
    """The common values, without creating a dictionary if the layout of the properties is known and has no rare name."""
    for names, match, common in _layouts:
        found = match(properties)
        if found is not None:
            if common is not None:
                return _NO_PAIRS + common(found)
            pairs = dict(zip(names, found.groups(), strict=False))
            break
    else:
        pairs = _cut(properties)
    get = pairs.get
    tran_msg, group, unique_id, tags, keys = _COMMON
    return pairs, get(tran_msg, b""), get(group, b""), get(unique_id, b""), get(tags, b""), get(keys, b"")


def matters_to_a_send(names: Collection[bytes]) -> bool:
    """Whether one of these names makes a half or a delay, or says something else about how the message is sent."""
    return not _RARE.isdisjoint(names) or _COMMON[0] in names


def _cut(properties: bytes) -> dict[bytes, bytes]:
    pairs = cut(properties, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
    if not next(_misses) % _LEARNED_OF:
        _learn(properties)
    return pairs


def _learn(properties: bytes) -> None:
    whole = properties.removesuffix(PROPERTY_SEPARATOR)
    names = tuple([piece.partition(NAME_VALUE_SEPARATOR)[0] for piece in whole.split(PROPERTY_SEPARATOR)])
    if len(names) > _LAYOUT_NAMES_MAX or sum(map(len, names)) > _LAYOUT_BYTES_MAX:
        return
    # A value may contain 0x01, as in ``_cut``. Excluding one byte, a search takes a third of what it takes excluding two.
    pattern = b"\x02".join([re.escape(name) + b"\x01([^\x02]+)" for name in names]) + b"\x02?()"
    match = re.compile(pattern).fullmatch
    if match(properties) is not None:  # otherwise it violates the rules
        numbers = {name: number for number, name in enumerate(names, 1)}  # of two pairs with one name the last wins
        groups = [numbers.get(name, len(names) + 1) for name in _COMMON]
        common: Callable[[re.Match[bytes]], _Values] | None = itemgetter(*groups) if _RARE.isdisjoint(names) else None
        _layouts.insert(0, (names, match, common))
        del _layouts[_LAYOUTS_MAX:]


def tag_hash_of(properties: bytes) -> int:
    """0 without TAGS, as in RocketMQ."""
    tags = find(properties, TAGS)
    return tag_hashes[tags] if tags else 0


def key_hash_of(properties: bytes) -> int:
    """``hash64`` of the unique id (UNIQ_KEY); 0 without one. Stored messages always have one."""
    unique_id = find(properties, UNIQ_KEY)
    return hash64(unique_id) if unique_id else 0


def delay_of(properties: bytes) -> int:
    """``delay_in`` of the stored message with these properties: what cannot be read was accepted by an earlier release, as no delay."""
    if b"DELAY" not in properties and b"TIMER_" not in properties:
        return NO_DELAY
    delay = delay_in(pairs_of(properties))
    return NO_DELAY if delay == INVALID_DELAY else delay


def delay_in(pairs: Mapping[bytes, bytes]) -> int:
    """When the message becomes visible: 0 at once, n > 0: n ms after it is stored or committed, n < 0: at broker time -n ms.

    DELAY (a standard level, from 1; higher ones count as the last) takes precedence over TIMER_DELAY_SEC, TIMER_DELAY_MS and
    TIMER_DELIVER_MS. INVALID_DELAY: the first of these that is there is not a number of 64 bits. RocketMQ ignores that, and delivers at
    once what was to come later.
    """
    level = _number(pairs.get(_DELAY))
    if level == INVALID_DELAY:
        return INVALID_DELAY
    if level > 0:
        return limits.DELAY_LEVELS_MS[min(level, len(limits.DELAY_LEVELS_MS)) - 1]
    if (seconds := _number(pairs.get(_TIMER_DELAY_SEC))) > 0:
        return min(seconds * 1_000, INVALID_DELAY)
    if (span := _number(pairs.get(_TIMER_DELAY_MS))) > 0:
        return span
    if (at := _number(pairs.get(_TIMER_DELIVER_MS))) > 0:
        return at if at == INVALID_DELAY else -at
    return NO_DELAY


def grace_in(pairs: Mapping[bytes, bytes]) -> int:
    """Requested grace period before the first check, ms: CHECK_IMMUNITY_TIME_IN_SECONDS. -1: the broker's setting, also for -1 and invalid
    values, as in RocketMQ.

    It is measured in broker time from the storage of the half, never by the client's clock: in RocketMQ a client whose clock is ahead makes
    the age negative and is checked at once.
    """
    text = pairs.get(_CHECK_IMMUNITY_SECONDS)
    if text is None or not text.isdigit() or len(text) > 12:
        return -1
    return min(int(text) * 1_000, GRACE_MAX_MS)


def coordinator_in(pairs: Mapping[bytes, bytes]) -> Coordinator | None:
    """The coordinator of a half; None if it has none, or a malformed one, which is refused where it is sent."""
    text = pairs.get(_HMQ_COORDINATOR)
    return None if text is None else parse_coordinator(text.decode("ascii", "replace"))


def coordinator_of(properties: bytes) -> Coordinator | None:
    """``coordinator_in`` of a stored half with these properties."""
    text = find(properties, HMQ_COORDINATOR) if _HMQ_COORDINATOR in properties else None
    return None if text is None else parse_coordinator(text.decode("ascii", "replace"))


def user_in(pairs: Mapping[bytes, bytes]) -> str:
    """The user who sent a half, as the broker wrote it; "" if none did."""
    text = pairs.get(_HMQ_USER)
    return "" if text is None else _user(text)


def user_of(properties: bytes) -> str:
    """``user_in`` of a stored half with these properties."""
    text = find(properties, HMQ_USER) if _HMQ_USER in properties else None
    return "" if text is None else _user(text)


def _user(text: bytes) -> str:
    name = text.decode("ascii", "replace")
    return name if is_user_name(name) else ""


def plain_facts(values: CommonValues) -> tuple[int, int, bytes]:
    """The last three fields of a ``MessageRecord``: tag hash, key hash, KEYS."""
    _, _, _, unique_id, tags, keys = values
    return tag_hashes[tags], hash64(unique_id) if unique_id else 0, keys


def half_facts(values: CommonValues) -> tuple[int, int, int, int, int, bytes, bool]:
    """The last fields of a ``HalfRecord``: tag hash, key hash, id hash, delay, grace period, KEYS, whether it has a marker."""
    pairs, _, _, unique_id, tags, keys = values
    key_hash = hash64(unique_id) if unique_id else 0
    if not pairs:
        return tag_hashes[tags], key_hash, key_hash, NO_DELAY, -1, keys, False
    tx_id = pairs.get(_HMQ_TX_ID)
    id_hash = key_hash if tx_id is None else hash64(tx_id)
    marked = bool(tx_id and pairs.get(_HMQ_TX_MARKER))
    return tag_hashes[tags], key_hash, id_hash, delay_in(pairs), grace_in(pairs), keys, marked


def has_marker(properties: bytes) -> bool:
    """As ``half_facts`` says it. A marker counts only beside HMQ_TX_ID, as our client writes it: then all pairs are read."""
    return find(properties, HMQ_TX_ID) is not None and find(properties, HMQ_TX_MARKER) is not None


class HalfNotes(NamedTuple):
    """What an application says of its transaction to whoever looks at it or decides in its place. It decides nothing itself."""

    #: Of its check function, at most ``limits.NAME_CHARS_SHOWN`` characters.
    name: str = ""
    #: "COMMIT", "ROLLBACK", or "": what the application would do, if in doubt.
    advice: str = ""
    #: For people, at most ``limits.COMMENT_CHARS_MAX`` characters; any character may be in it.
    comment: str = ""
    #: What its coordinator calls it, at most ``limits.BRANCH_CHARS_MAX`` characters.
    branch: str = ""


_NOTES: Final = tuple([f"\x02{name}\x01".encode() for name in (HMQ_TX_NAME, HMQ_ADVICE, HMQ_COMMENT, HMQ_BRANCH)])
_NOTES_CHARS: Final = (limits.NAME_CHARS_SHOWN, 8, limits.COMMENT_CHARS_MAX, limits.BRANCH_CHARS_MAX)
_ADVICE: Final = frozenset({"COMMIT", "ROLLBACK"})
#: UTF-8 has at most so many bytes for a character.
_UTF8_BYTES_MAX: Final = 4


def notes_in(properties: bytes) -> HalfNotes:
    """The notes in a property string. About 10 us for the longest one, whatever is in it: of several values of a name the last counts, also
    if it is empty.
    """
    text = PROPERTY_SEPARATOR + properties
    found = []
    for key, chars_max in zip(_NOTES, _NOTES_CHARS, strict=True):
        at = text.rfind(key)
        value = b""
        if at >= 0:
            start = at + len(key)
            value = text[start : start + _UTF8_BYTES_MAX * chars_max].partition(PROPERTY_SEPARATOR)[0]
        found.append(value.decode("utf-8", "replace")[:chars_max])
    name, advice, comment, branch = found
    return HalfNotes(name, advice if advice in _ADVICE else "", comment, branch)


def _number(text: bytes | None) -> int:
    if text is None:
        return 0
    if text.isdigit() and len(text) < 20:
        return min(int(text), INVALID_DELAY)
    return 0 if text[:1] == b"-" and text[1:].isdigit() else INVALID_DELAY
