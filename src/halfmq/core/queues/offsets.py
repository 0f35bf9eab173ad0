"""Consumer offsets: session state, logged at most once a second for each group; and the response to a group without an offset.

A crash loses at most the last second, so consumers receive those messages again (at-least-once). The first offset in a queue is
logged before the response: without it, a group that began at the end would begin there again and skip what it received in
between.

**A group without an offset.** Only the reply "no offset is stored" makes the client apply its own start position. A new queue, which
still begins at 0, returns offset 0 instead, as in RocketMQ, unless the client declines that. A topic is often created by its
first message, and a group that waited for it, and starts at the end of queues, would otherwise begin after that very message. RocketMQ
treats a queue as new while its first message is in the machine's memory; here it is a number of log bytes, so that the result
does not depend on the machine (``broker.services.queues``). This module decides by the stored offsets; the service knows the
content of the queue.

**If a base has no space for an offset.** Every base contains all offsets. A new one without space is refused and kept for this run
only. After a restart nobody knows whether a group without an offset never committed one or was refused, so it begins at the first
message: it may receive messages again, but never skips any.
"""

from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from halfmq.core.audit import signed
from halfmq.core.base_bytes import has_space_for_offset, no_space
from halfmq.core.commands import CommitOffset, NoteAction, NoteTime
from halfmq.core.decision import DONE, NOTHING, Decision, Done, OffsetNotStored, Why, refuse
from halfmq.core.events import OffsetLogged, OffsetRefused, OffsetReported, OffsetsDrained, TopicRemoved
from halfmq.core.state import State, drop_stale_offsets, next_offset
from halfmq.model.records import OffsetsCommitted, OperatorAction, payload_of, payload_record_size

#: Minimum interval between two records with offsets of a group, ms.
LOG_INTERVAL_MS: Final = 1_000
#: Maximum number of offsets in one record.
ENTRIES_MAX: Final = 1_024
#: Bytes of an entry in a record without the group's name: array head, name head, three numbers.
ENTRY_BYTES: Final = 24


class Stored(NamedTuple):
    offset: int


class NotStored(NamedTuple):
    """No offset is stored. The front door must reply exactly that: clients treat any other refusal as a failure, and do not start to
    consume the queue."""


class PossiblyUnlogged(NamedTuple):
    """No offset is stored, but one may have been refused: the group must not begin after the first message."""


def query_offset(view: State, group: str, topic: str, queue_id: int) -> Stored | NotStored | PossiblyUnlogged:
    """The group's offset in the queue: the newest that it reported, logged or not."""
    found = view.topics_by_name.get(topic)
    if found is None:
        return NotStored()
    key = (found.topic_id, queue_id)
    for offsets in (view.session.fresh_offsets, view.offsets, view.session.offsets_refused):
        offset = offsets.get(group, {}).get(key)
        if offset is not None:
            return Stored(offset)
    return NotStored() if group not in view.groups or has_space_for_offset(view, group) else PossiblyUnlogged()


def decide_commit_offset(state: State, command: CommitOffset, now_ms: int) -> Decision:
    """Accept the offset. A later tick logs it; the first offset in a queue and one set by an operator are logged at once. A lower
    offset is valid: that is how offsets are reset.

    Replies:
        Done. Refused TOPIC_NOT_EXIST, GROUP_NOT_EXIST, INVALID_PARAMETER: the request is invalid. LIMIT_REACHED: it is the group's first
            offset in the queue, and a base has no space for it; it is known until the next start.
    """
    topic = state.topics_by_name.get(command.topic)
    if topic is None:
        return refuse(Why.TOPIC_NOT_EXIST, f"topic {command.topic!r} does not exist")
    if command.group not in state.groups:
        return refuse(Why.GROUP_NOT_EXIST, f"consumer group {command.group!r} does not exist")
    if command.offset < 0 or not 0 <= command.queue_id < len(topic.ends):
        return refuse(Why.INVALID_PARAMETER, f"offset {command.offset} of queue {command.queue_id} cannot be")
    if state.restored_half_index >= 0 and command.offset > topic.ends[command.queue_id]:
        # Of a consumer that read the store before: it would skip new messages.
        command = command._replace(offset=topic.ends[command.queue_id])
    key = (topic.topic_id, command.queue_id)
    fresh = state.session.fresh_offsets.get(command.group, {})
    logged = state.offsets.get(command.group, {}).get(key)
    if not fresh and logged == command.offset:
        return DONE
    is_first = logged is None and key not in fresh
    if is_first or command.by is not None:
        if is_first and not has_space_for_offset(state, command.group):
            return _refuse(state, command, key)
        entry = (command.group, topic.topic_id, command.queue_id, command.offset)
        logged_now = OffsetLogged(command.group, topic.topic_id, command.queue_id)
        decision = Decision((_logged(next_offset(state), [entry]),), Done(), (), (logged_now,))
        return signed(decision, OperatorAction.RESET_OFFSET, command.group, command.by)
    log_at_ms = max(now_ms, state.session.offsets_logged.get(command.group, 0) + LOG_INTERVAL_MS)
    said = OffsetReported(command.group, topic.topic_id, command.queue_id, command.offset, log_at_ms)
    return Decision(NOTHING, Done(), (), (said,))


def _refuse(state: State, command: CommitOffset, key: tuple[int, int]) -> Decision:
    what = (
        f"the offset of group {command.group!r} in queue {command.queue_id} of topic {command.topic!r} was not stored"
    )
    refused = OffsetRefused(command.group, *key, command.offset)
    effect = OffsetNotStored(command.group, command.topic, command.queue_id)
    return Decision(NOTHING, no_space(state, what), (effect,), (refused,))


def next_log_ms(view: State) -> int | None:
    """When a tick has offsets to log; 0: at once. None: not until something else happens."""
    if view.session.offsets_to_log:
        return 0
    return view.session.offsets_due_heap[0][0] if view.session.offsets_due_heap else None


# --- events


def log_at(state: State, group: str, at_ms: int) -> None:
    state.session.offsets_due[group] = at_ms
    heappush(state.session.offsets_due_heap, (at_ms, group))
    drop_stale_offsets(state)


def take_due(state: State, now_ms: int) -> None:
    """Let the next ticks log the groups that are due."""
    heap = state.session.offsets_due_heap
    while heap and heap[0][0] <= now_ms:
        at_ms, group = heappop(heap)
        if state.session.offsets_due.get(group) == at_ms:
            state.session.offsets_to_log[group] = None
    drop_stale_offsets(state)


def note_reported(state: State, event: OffsetReported) -> None:
    state.session.fresh_offsets.setdefault(event.group, {})[event.topic_id, event.queue_id] = event.offset
    if event.group not in state.session.offsets_due:
        log_at(state, event.group, event.log_at_ms)


def note_logged(state: State, event: OffsetLogged) -> None:
    key = (event.topic_id, event.queue_id)
    state.session.offsets_refused.get(event.group, {}).pop(key, None)
    state.session.fresh_offsets.get(event.group, {}).pop(key, None)


def note_refused(state: State, event: OffsetRefused) -> None:
    state.session.offsets_refused.setdefault(event.group, {})[event.topic_id, event.queue_id] = event.offset
    state.topics_by_id[event.topic_id].derived.groups[event.group] = None


def note_taken(state: State, event: OffsetsDrained) -> None:
    fresh = state.session.fresh_offsets.get(event.group, {})
    for key in list(islice(fresh, event.count)):
        del fresh[key]
    if event.all:
        state.session.fresh_offsets.pop(event.group, None)
        state.session.offsets_due.pop(event.group, None)
        state.session.offsets_to_log.pop(event.group, None)
        state.session.offsets_logged[event.group] = event.now_ms
        drop_stale_offsets(state)


def forget_topic(state: State, event: TopicRemoved) -> None:
    for group in event.groups:
        for of_group in (state.session.fresh_offsets.get(group, {}), state.session.offsets_refused.get(group, {})):
            for key in keys_in(of_group, event.topic_id, event.queues):
                del of_group[key]


def keys_in(offsets: dict[tuple[int, int], int], topic_id: int, queues: int) -> list[tuple[int, int]]:
    """Keys of the topic's queues. It iterates over the smaller collection: a group may have one offset in a topic of many queues."""
    if len(offsets) < queues:
        return [(of_topic, queue_id) for of_topic, queue_id in offsets if of_topic == topic_id]
    return [key for queue_id in range(queues) if (key := (topic_id, queue_id)) in offsets]


def forget_offsets(state: State, group: str) -> None:
    """The group was deleted with its offsets."""
    for topic_id, _ in state.session.offsets_refused.get(group, ()):
        if topic_id in state.topics_by_id:
            state.topics_by_id[topic_id].derived.groups.pop(group, None)
    for of_group in (
        state.session.fresh_offsets,
        state.session.offsets_refused,
        state.session.offsets_due,
        state.session.offsets_logged,
    ):
        of_group.pop(group, None)
    state.session.offsets_to_log.pop(group, None)
    drop_stale_offsets(state)


# --- logging


def log_due(
    state: State, offset: int, bytes_max: int, now_ms: int
) -> tuple[OffsetsCommitted | None, list[OffsetsDrained], bool]:
    """(the record at ``offset`` of the due offsets, their number, whether more is due). Call it after ``TimePassed``."""
    entries: list[tuple[str, int, int, int]] = []
    taken: list[OffsetsDrained] = []
    size = 64
    for group in state.session.offsets_to_log:
        fresh = state.session.fresh_offsets.get(group, {})
        count = 0
        for (topic_id, queue_id), at in fresh.items():
            size += ENTRY_BYTES + len(group)
            if len(entries) >= ENTRIES_MAX or size > bytes_max:
                break
            count += 1
            if topic_id in state.topics_by_id:
                entries.append((group, topic_id, queue_id, at))
        taken.append(OffsetsDrained(group, count, count == len(fresh), now_ms))
        if count < len(fresh):
            break
    more = len(taken) < len(state.session.offsets_to_log) or bool(taken and not taken[-1].all)
    return _logged(offset, entries) if entries else None, taken, more


def _logged(offset: int, entries: list[tuple[str, int, int, int]]) -> OffsetsCommitted:
    payload = payload_of(entries)
    return OffsetsCommitted(offset, payload_record_size(payload), tuple(entries), payload)


def decide_note_time(state: State, command: NoteTime, now_ms: int) -> Decision:
    """A record without offsets, which every version reads: its batch contains the time."""
    return Decision((_logged(next_offset(state), []),), Done())


def decide_note_action(state: State, command: NoteAction, now_ms: int) -> Decision:
    """Who did what, before the same record: one of an action needs another one after it."""
    decision = Decision((_logged(next_offset(state), []),), Done())
    return signed(decision, OperatorAction(command.action), command.subject, command.by)


def log_now(state: State, group: str | None) -> None:
    """Make the fresh offsets of ``group`` (None: of all groups) due at the next tick, for an unregistration or a drain."""
    for name in state.session.fresh_offsets if group is None else [group]:
        if state.session.fresh_offsets.get(name):
            log_at(state, name, 0)
