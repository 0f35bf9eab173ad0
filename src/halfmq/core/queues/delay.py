"""Messages that become visible later: delay levels, timers, retries, and halves whose delay starts at their commit.

A delayed message is in the log without a queue entry. When it is due, a Released record assigns its queue offset; not earlier, so
that the offsets of a queue are in the order of visibility. Like a commit, a release refers only to bytes of its own
segment and copies older messages forward first.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

from halfmq import limits
from halfmq.core.commands import RELEASES_MAX
from halfmq.core.copies import copy_delayed
from halfmq.core.decision import Effect, Refused, Why
from halfmq.core.events import DelayedPostponed
from halfmq.core.state import Delayed, State
from halfmq.model.message_facts import INVALID_DELAY
from halfmq.model.placement import segment_start
from halfmq.model.records import REF_BYTES, Record, Ref, Released, copied_delayed_size, released_size

T = TypeVar("T", bound=tuple[Any, ...])


def due_at(delay: int, now_ms: int) -> int:
    """When a message with this delay (``message_facts.delay_of``) becomes visible, broker time ms; 0: at once."""
    if delay > 0:
        return now_ms + delay
    return -delay if -delay > now_ms else 0


def delay_refusal(state: State, delay: int, now_ms: int) -> Refused | None:
    """Why a message with this delay is refused; None if it is accepted. RocketMQ also refuses a delay that is too long with 13.

    It applies when a message is sent or prepared, never at a commit: a commit releases what was accepted, however much is waiting.
    """
    if delay == INVALID_DELAY:
        return Refused(Why.MESSAGE_ILLEGAL, "the delay that the message requests is not a number, or too large for one")
    if due_at(delay, now_ms) > now_ms + limits.TIMER_DELAY_MAX_MS:
        return Refused(
            Why.MESSAGE_ILLEGAL, f"the message requests a delay of more than {limits.TIMER_DELAY_MAX_MS} ms (3 days)"
        )
    most = state.settings.delayed_total_max
    if len(state.delayed) >= most and due_at(delay, now_ms):
        return Refused(
            Why.LIMIT_REACHED,
            f"this broker has {len(state.delayed)} delayed messages, and may have {most} (--delayed-total-max); send it later, "
            "or without a delay",
        )
    return None


def delays_refusal(state: State, delays: Sequence[int], now_ms: int) -> Refused | None:
    """``delay_refusal`` of a half batch whose messages have these delays; None if there are none.

    Those of undecided half batches count as well: there may be millions in one transaction.
    """
    if not delays:
        return None
    latest = min(0, min(delays))
    refused = delay_refusal(state, max(delays), now_ms) or delay_refusal(state, latest, now_ms)
    most = state.settings.delayed_total_max
    if refused is None and len(delays) > most:
        text = (
            f"the half batch has {len(delays)} delayed messages, and this broker may have {most} (--delayed-total-max)"
        )
        return Refused(Why.MESSAGE_ILLEGAL, text)
    undecided = state.derived.undecided_delayed
    if refused is None and len(state.delayed) + undecided + len(delays) > most:
        text = (
            f"this broker has {len(state.delayed)} delayed messages, undecided half batches have {undecided}, and {most} are allowed "
            f"(--delayed-total-max); this half batch has {len(delays)}: send it later, or without delays"
        )
        return Refused(Why.LIMIT_REACHED, text)
    return refused


def next_due_ms(view: State) -> int | None:
    """When the next delayed message is due; None if there is none."""
    return view.derived.delayed_heap[0][0] if view.derived.delayed_heap else None


def note_postponed(state: State, event: DelayedPostponed) -> None:
    """Remove the postponed messages from the heap. Cheap if they are the first ones due."""
    state.session.delayed_postponed.update(event.first_offsets)
    left = set(event.first_offsets)
    heap = state.derived.delayed_heap
    others = []
    while left and heap:
        entry = heappop(heap)
        _, first_offset = entry
        if first_offset in left:
            left.discard(first_offset)
        elif first_offset in state.delayed:
            others.append(entry)
    for entry in others:
        heappush(heap, entry)
    while heap and heap[0][1] not in state.delayed:
        heappop(heap)


def in_order(heap: list[T]) -> Iterator[T]:
    """The entries of a heap of ``heapq`` in ascending order. It does not change; the first n entries take O(n log n)."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        entry, at = heappop(ahead)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(ahead, (heap[child], child))


def _take_due(state: State, bytes_max: int, now_ms: int, messages_max: int) -> tuple[list[Delayed], bool]:
    """(due delayed messages in order of their time, within the bounds; whether there are more)."""
    due: list[Delayed] = []
    taken = 0
    for due_ms, first_offset in in_order(state.derived.delayed_heap):
        delayed = state.delayed.get(first_offset)
        if delayed is None:
            continue  # already released
        if due_ms > now_ms:
            break
        taken += copied_delayed_size(delayed.message_bytes) + REF_BYTES
        if len(due) >= messages_max or (due and taken > bytes_max):
            return due, True
        due.append(delayed)
    return due, False


def release_due(
    state: State, offset: int, bytes_max: int, now_ms: int, messages_max: int = RELEASES_MAX
) -> tuple[list[Record], list[Effect], bool]:
    """(records from ``offset`` on, queues to wake, whether more is due) of the due delayed messages.

    At most ``messages_max``; the first one whatever its size, the others while the total is at most ``bytes_max`` bytes.
    """
    due, more = _take_due(state, bytes_max, now_ms, messages_max)
    if not due:
        return [], [], more
    segment = segment_start(offset, state.settings.segment_bytes)
    records: list[Record] = []
    refs: list[Ref] = []
    ends: dict[tuple[int, int], int] = {}
    wakes: dict[Effect, None] = {}
    for delayed in due:
        place = delayed.offset
        if place < segment:
            records.append(copy_delayed(delayed, offset))
            place = offset
            offset += records[-1].size
        topic = state.topics_by_id[delayed.topic_id]
        queue = (delayed.topic_id, delayed.queue_id)
        queue_offset = ends.get(queue, topic.ends[delayed.queue_id])
        ends[queue] = queue_offset + 1
        wakes[topic.wakes[delayed.queue_id][0]] = None
        refs.append(
            Ref(
                place, delayed.message_bytes, delayed.first_offset, delayed.half_index, delayed.topic_id,
                delayed.queue_id, queue_offset, 0, delayed.tag_hash, delayed.key_hash,
            )
        )  # fmt: skip
    records.append(Released(offset, released_size(len(refs)), tuple(refs)))
    return records, list(wakes), more
