"""Room in the base: it opens every segment, and behind it there must be room for a decision of half a segment.

Topics, consumer groups, limits of producer groups and consumer offsets stand in it, so who makes a new one of these asks
here first. What is there already may be changed and committed always, and taken away.

Offsets are committed often. What they leave is counted once, and counts down with each new one (``State.offsets_room``)
until something else asks for room or gives some back; ``transaction.invariants`` compares it with the count.
"""

from typing import Final

from halfmq.core.base import base_payload
from halfmq.core.decision import Refused, Why
from halfmq.core.state import State
from halfmq.model.placement import aligned
from halfmq.model.records import BATCH_HEADER_BYTES, base_size
from halfmq.model.settings import ProducerSettings

#: Bytes that one topic, queue, group, limits of a producer group or offset may take in a base, names not counted.
TOPIC_BYTES: Final = 48
QUEUE_BYTES: Final = 9
GROUP_BYTES: Final = 32
_PRODUCER_BYTES: Final = 64
_OFFSET_BYTES: Final = 18


def base_bytes_bound(state: State) -> int:
    """At least as many bytes as the base of the next segment takes, with the offsets that are still to be logged."""
    bound = 128
    for topic in state.topics_by_id.values():
        bound += TOPIC_BYTES + len(topic.name) + QUEUE_BYTES * len(topic.ends)
    for group in state.groups:
        bound += GROUP_BYTES + len(group)
    for settings in state.producer_settings.values():
        bound += _producer_bytes(settings)
    for group, offsets in state.offsets.items():
        bound += GROUP_BYTES + len(group) + _OFFSET_BYTES * len(offsets)
    for group, fresh in state.fresh_offsets.items():
        if fresh:
            logged = state.offsets.get(group)
            bound += _OFFSET_BYTES * (len(fresh) if logged is None else len(fresh.keys() - logged.keys()))
            bound += GROUP_BYTES + len(group) if logged is None else 0
    return bound


def _producer_bytes(settings: ProducerSettings) -> int:
    return _PRODUCER_BYTES + len(settings.name) + len(settings.set_by.encode())


def _base_bytes_max(state: State) -> int:
    """A decision may take half a segment; the base gets what is left but one sixteenth."""
    return state.settings.segment_bytes * 7 // 16


def base_has_room(state: State, more_bytes: int) -> bool:
    """Whether so many bytes more of anything but offsets have room. The caller may take them at once."""
    count_anew(state)
    return base_bytes_bound(state) + more_bytes <= _base_bytes_max(state)


def count_anew(state: State) -> None:
    """What is decided now changes the room for offsets."""
    state.offsets_room = None


def no_room(state: State, what: str) -> Refused:
    """The refusal of ``what``, a sentence."""
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: topics, groups, their limits and consumer offsets would not fit the head of a segment of "
        f"{state.settings.segment_bytes} bytes; delete topics that nobody needs, or take a store with larger segments",
    )


def refuse_producer(state: State, settings: ProducerSettings) -> Refused | None:
    """Why these limits have no room, where they take more than what stands; None: they have."""
    count_anew(state)
    before = state.producer_settings.get(settings.name)
    more = _producer_bytes(settings) - (_producer_bytes(before) if before is not None else 0)
    if settings.is_default or more <= 0 or base_has_room(state, more):
        return None
    return no_room(state, f"the limits of producer group {settings.name!r} were not set")


# --- offsets ---------------------------------------------------------------------------------------------------


def take_offset_room(state: State, group: str) -> bool:
    """Take the room of one more offset of the group, which the caller notes at once. False: there is none."""
    room = _offsets_room(state)
    needed = _offset_bytes(state, group)
    if needed > room:
        return False
    state.offsets_room = room - needed
    return True


def is_room_for_offset(state: State, group: str) -> bool:
    return _offset_bytes(state, group) <= _offsets_room(state)


def _offset_bytes(state: State, group: str) -> int:
    first = group not in state.offsets and not state.fresh_offsets.get(group)
    return _OFFSET_BYTES + (GROUP_BYTES + len(group) if first else 0)


def _offsets_room(state: State) -> int:
    room = state.offsets_room
    if room is None:
        room = state.offsets_room = _base_bytes_max(state) - base_bytes_bound(state)
    return room


def offsets_room_is_right(state: State) -> bool:
    """For ``transaction.invariants``."""
    room = state.offsets_room
    return room is None or room == _base_bytes_max(state) - base_bytes_bound(state)


# --- a store that is too full already --------------------------------------------------------------------------


def why_no_base(state: State, more_bytes: int) -> str:
    """Why the next segment cannot begin with a base and ``more_bytes`` of records behind it; "": it can.

    Only a store from before all of these asked for room is ever that full.
    """
    segment_bytes = state.settings.segment_bytes
    bound = base_bytes_bound(state)
    if bound <= _base_bytes_max(state):
        return ""
    size = base_size(base_payload(state))
    if aligned(BATCH_HEADER_BYTES + size + more_bytes) <= segment_bytes:
        return ""
    return (
        f"topics, groups, their limits and consumer offsets take {size} bytes of the head of each log segment, which leaves "
        f"no room in one of {segment_bytes} bytes"
    )
