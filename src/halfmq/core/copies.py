"""Where bodies lie that were copied forward and are still alive: bytes by segment, kept as they come and go.

Retention by size asks, so that it does not copy the same bodies round and round: where what is undecided or delayed is more
than it may keep, each trim would make the log as long as it was, and the next look would trim again. A body that was copied
less than a period ago (``limits.COPY_AGAIN_MS``) is copied again only in company: where it is the smaller part of what goes,
so that copying costs a fraction of what was written meanwhile. See docs/decisions/0026.
"""

from halfmq import limits
from halfmq.core.state import Delayed, Half, State
from halfmq.model.placement import segment_start


def note_copy(state: State, one: Half | Delayed) -> None:
    """``one`` lies where it was copied to, from here on. Nothing for what never moved."""
    if one.offset != one.first_offset:
        segment = segment_start(one.offset, state.settings.segment_bytes)
        state.derived.copied[segment] = state.derived.copied.get(segment, 0) + one.message_bytes


def forget_copy(state: State, one: Half | Delayed) -> None:
    """``one`` was settled, shown, or copied on."""
    if one.offset != one.first_offset:
        segment = segment_start(one.offset, state.settings.segment_bytes)
        left = state.derived.copied[segment] - one.message_bytes
        if left:
            state.derived.copied[segment] = left
        else:
            del state.derived.copied[segment]


def may_copy_again(copied_bytes: int, gone_bytes: int) -> bool:
    """Whether a trim that frees ``gone_bytes`` of log may copy this much that was copied a short time ago."""
    return copied_bytes * limits.COPY_AGAIN_PART <= gone_bytes
