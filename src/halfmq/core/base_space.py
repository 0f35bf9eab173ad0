"""Space in the base: it opens every segment, and after it there must be space for a decision of half a segment.

Topics, consumer groups, limits of producer groups and consumer offsets stand in it, so who makes a new one of these asks
here first. What is there already may be changed and committed always, and taken away.
"""

from halfmq.core.base import base_payload
from halfmq.core.base_bytes import OFFSET_BYTES, group_bytes, producer_bytes
from halfmq.core.decision import Refused, Why
from halfmq.core.state import State
from halfmq.core.view import View
from halfmq.model.placement import aligned
from halfmq.model.records import BATCH_HEADER_BYTES, base_size
from halfmq.model.settings import ProducerSettings, base_bytes_max, named_bytes_max


def _base_bytes_max(view: View) -> int:
    return base_bytes_max(view.settings.segment_bytes)


def refuse_named(state: State, more_bytes: int, what: str) -> Refused | None:
    """Why there is no space for so many bytes of what clients make by naming it; None: there is.

    They leave a quarter of a base to offsets, to limits of producer groups, and to what an administrator makes.
    """
    most = named_bytes_max(state.settings.segment_bytes)
    if state.derived.base_bytes + more_bytes <= most:
        return None
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: items that clients create by naming them may take {most} bytes of the base of a segment of "
        f"{state.settings.segment_bytes} bytes, and {state.derived.base_bytes} are taken; delete topics or groups that nobody needs, make "
        "it by hand, or take a store with larger segments",
    )


def base_has_space(view: View, more_bytes: int) -> bool:
    """Whether so many bytes more of anything have space. The caller may take them at once."""
    return view.derived.base_bytes + more_bytes <= _base_bytes_max(view)


def no_space(state: State, what: str) -> Refused:
    """The refusal of ``what``, a sentence."""
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: topics, groups, their limits and consumer offsets would not fit in the base of a segment of "
        f"{state.settings.segment_bytes} bytes; delete unused topics or groups, or use a store with larger segments",
    )


def refuse_producer(state: State, settings: ProducerSettings) -> Refused | None:
    """Why these limits have no space, where they take more than what stands; None: they have."""
    more = producer_bytes(settings) - producer_bytes(state.producer_settings.get(settings.name))
    if settings.is_default or more <= 0 or base_has_space(state, more):
        return None
    return no_space(state, f"the limits of producer group {settings.name!r} were not set")


# --- offsets ---------------------------------------------------------------------------------------------------


def has_space_for_offset(view: View, group: str) -> bool:
    """Whether one more offset of the group has space."""
    return base_has_space(view, OFFSET_BYTES + (0 if group in view.offsets else group_bytes(group)))


# --- a store that is too full already --------------------------------------------------------------------------


def why_no_base(state: State, more_bytes: int) -> str:
    """Why the next segment cannot begin with a base and ``more_bytes`` of records after it; "": it can.

    Only a store from before all of these asked for space is ever that full.
    """
    segment_bytes = state.settings.segment_bytes
    if state.derived.base_bytes <= _base_bytes_max(state):
        return ""
    size = base_size(base_payload(state))
    if aligned(BATCH_HEADER_BYTES + size + more_bytes) <= segment_bytes:
        return ""
    return (
        f"topics, groups, their limits and consumer offsets take {size} bytes of the head of each log segment, which leaves "
        f"no space in one of {segment_bytes} bytes"
    )
