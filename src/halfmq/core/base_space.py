"""Limits on the size of a base. It opens every segment, and after it there must be space for a decision of half a segment.

A base contains topics, consumer groups, limits of producer groups and consumer offsets, so code that adds one of these asks here
first. Existing ones may always be changed, committed and removed.
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
    """The refusal if a base has no space for ``more_bytes`` of items that clients create by naming them; else None.

    Such items may not use the last quarter of a base, which is reserved for offsets, limits of producer groups, and items that an
    administrator creates.
    """
    most = named_bytes_max(state.settings.segment_bytes)
    if state.derived.base_bytes + more_bytes <= most:
        return None
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: items that clients create by naming them may take {most} bytes of the base of a segment of "
        f"{state.settings.segment_bytes} bytes, and {state.derived.base_bytes} are taken; delete unused topics or groups, create "
        "it by hand, or use a store with larger segments",
    )


def base_has_space(view: View, more_bytes: int) -> bool:
    """Whether a base has space for ``more_bytes`` of any item. The caller may use it at once."""
    return view.derived.base_bytes + more_bytes <= _base_bytes_max(view)


def no_space(state: State, what: str) -> Refused:
    """The refusal of ``what``, a sentence."""
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: topics, groups, their limits, consumer offsets and queries would not fit in the base of a segment of "
        f"{state.settings.segment_bytes} bytes; delete unused topics or groups, or use a store with larger segments",
    )


def refuse_producer(state: State, settings: ProducerSettings) -> Refused | None:
    """The refusal if these limits are larger than the current ones and do not fit; else None."""
    more = producer_bytes(settings) - producer_bytes(state.producer_settings.get(settings.name))
    if settings.is_default or more <= 0 or base_has_space(state, more):
        return None
    return no_space(state, f"the limits of producer group {settings.name!r} were not set")


# --- offsets ---------------------------------------------------------------------------------------------------


def has_space_for_offset(view: View, group: str) -> bool:
    """Whether there is space for one more offset of the group."""
    return base_has_space(view, OFFSET_BYTES + (0 if group in view.offsets else group_bytes(group)))


# --- a store that is too full already --------------------------------------------------------------------------


def why_no_base(state: State, more_bytes: int) -> str:
    """Why the next segment cannot begin with a base and ``more_bytes`` of records; "" if it can.

    Only a store of a version without these limits can be that full.
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
