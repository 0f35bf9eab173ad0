"""Copies of messages that are alive in older segments: the records, how many one step makes, and how many bytes there are of them.

Who copies: a commit (``halves_in_segment``), a decision on a batch (``transaction.batches``) and a trim (``transaction.retention``), both
in steps, and a tick that releases delayed messages (``queues.delay``).

``DerivedState.copied`` has the bytes of copies that are still alive, by the segment that contains the copy. Retention by size uses them to
avoid copying the same messages over and over. If undecided and delayed messages exceed the size limit, each trim makes the log as long as
it was, and would trigger the next one. A message that was copied less than a period ago (``limits.COPY_AGAIN_MS``) is therefore copied
again only if it is the smaller part of what the trim frees, so that the cost of copying is a fraction of what was written in the meantime.
See docs/decisions/0026.
"""

from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.state import Delayed, State, Undecided
from halfmq.model.placement import segment_start
from halfmq.model.records import (
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Half,
    copied_delayed_size,
    copied_half_size,
)

#: Bytes that one step copies in addition to its first message, so that a step is short.
COPY_BYTES_MAX: Final = 4 << 20


def step_bytes(state: State) -> int:
    """Bytes that one step copies; its first message whatever its size."""
    return min(COPY_BYTES_MAX, state.record_bytes_max // 2)


def halves_in_segment(
    state: State, known: Undecided, offset: int
) -> tuple[list[CopiedHalf | CopiedHalfBatch], list[Half], int]:
    """(copies of the halves in older segments, all halves with their places after that, offset after the copies, which begin at
    ``offset``).
    """
    segment = segment_start(offset, state.settings.segment_bytes)
    copies: list[CopiedHalf | CopiedHalfBatch] = []
    halves = list(known.halves)
    for number, half in enumerate(known.halves):
        if half.offset < segment:
            copies.append(copy_half(known, half, offset))
            halves[number] = copies[-1].half
            offset += copies[-1].size
    return copies, halves, offset


def copy_half(known: Undecided, half: Half, offset: int) -> CopiedHalf | CopiedHalfBatch:
    """The record that copies ``half`` to ``offset``, with everything that redo from there needs."""
    is_single = half.batch is None
    size = copied_half_size(half.message_bytes) if is_single else half.message_bytes
    return (CopiedHalf if is_single else CopiedHalfBatch)(
        offset, size, half.offset, replace(half, offset=offset), known.group, known.tx_id, known.count,
        known.prepared_at_ms, known.grace_until_ms, known.checks, known.next_check, known.coordinator, known.user,
    )  # fmt: skip


def copy_delayed(delayed: Delayed, offset: int) -> CopiedDelayed:
    """The record that copies a delayed message to ``offset``."""
    return CopiedDelayed(
        offset, copied_delayed_size(delayed.message_bytes), delayed.offset, delayed.first_offset, delayed.half_index,
        delayed.topic_id, delayed.queue_id, delayed.message_bytes, delayed.due_ms, delayed.tag_hash, delayed.key_hash,
    )  # fmt: skip


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
