"""Bytes of messages that were copied forward and are still alive, by the segment that contains the copy.

Retention by size uses them to avoid copying the same messages over and over. If undecided and delayed messages exceed the size
limit, each trim makes the log as long as it was, and would trigger the next one. A message that was copied less than a
period ago (``limits.COPY_AGAIN_MS``) is therefore copied again only if it is the smaller part of what the trim frees, so that the
cost of copying is a fraction of what was written in the meantime. See docs/decisions/0026.
"""

from halfmq import limits
from halfmq.core.state import Delayed, Half, State
from halfmq.model.placement import segment_start


def note_copy(state: State, one: Half | Delayed) -> None:
    """Count the message in the segment that contains its copy. No effect for a message that was never copied."""
    if one.offset != one.first_offset:
        segment = segment_start(one.offset, state.settings.segment_bytes)
        state.derived.copied[segment] = state.derived.copied.get(segment, 0) + one.message_bytes


def forget_copy(state: State, one: Half | Delayed) -> None:
    """The message was settled, released, or copied again."""
    if one.offset != one.first_offset:
        segment = segment_start(one.offset, state.settings.segment_bytes)
        left = state.derived.copied[segment] - one.message_bytes
        if left:
            state.derived.copied[segment] = left
        else:
            del state.derived.copied[segment]


def may_copy_again(copied_bytes: int, gone_bytes: int) -> bool:
    """Whether a trim that frees ``gone_bytes`` of log may copy this number of recently copied bytes."""
    return copied_bytes * limits.COPY_AGAIN_PART <= gone_bytes
