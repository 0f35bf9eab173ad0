"""From commands to decisions: the only entry to the rules.

A decision changes nothing. It returns the records to log, and the session events that happen once they are logged. The caller
applies the records and the events before the next decision, appends the records, and withholds reply and effects until the log
is durable up to their end.
"""

from collections.abc import Callable
from typing import Any, Final

from halfmq import limits
from halfmq.core.audit import acted_bytes, bytes_if_space
from halfmq.core.base_bytes import HOLD_BYTES, RARE_BYTES, more_group_bytes
from halfmq.core.commands import (
    Actor,
    CheckNotSent,
    CheckNow,
    CheckParked,
    Command,
    CommitOffset,
    Compare,
    CopyForward,
    DecideBatch,
    DeleteGroup,
    DeleteTopic,
    EndTransaction,
    EnsureGroup,
    EnsureTopic,
    FenceTransaction,
    FindDecision,
    ForgetCoordinator,
    ForgetDamage,
    ForgetQuery,
    LockQueues,
    NoteTime,
    PrepareBatch,
    RequestedVerdict,
    ResolveTransaction,
    SendBack,
    SendBatch,
    SendHalf,
    SendMessage,
    SetGroup,
    SetProducer,
    SetTopic,
    TakeEpoch,
    Tick,
    TrimLog,
    UnlockQueues,
)
from halfmq.core.decision import Decision, DecisionTuple, Done, SendCheck
from halfmq.core.events import LocksExpired, TimePassed, TrimStarted
from halfmq.core.groups import decide_delete_group, decide_ensure_group, decide_set_group
from halfmq.core.queues.delay import next_due_ms, release_due
from halfmq.core.queues.offsets import decide_commit_offset, decide_note_time, log_due, next_log_ms
from halfmq.core.queues.ordering import decide_lock, decide_unlock, holders_bytes_max, is_renewal, locks_expired
from halfmq.core.queues.retry import decide_send_back
from halfmq.core.queues.send import decide_send, decide_send_batch, decide_send_half
from halfmq.core.state import HOLDER_BYTES, State, holders_bytes, next_offset
from halfmq.core.topics import decide_delete_topic, decide_ensure_topic, decide_set_topic
from halfmq.core.transaction.admission import COMMIT_FRAME_BYTES, HALF_FRAME_BYTES
from halfmq.core.transaction.batches import (
    decide_batch,
    decide_batch_bound,
    decide_prepare_batch,
    find_decision,
    prepare_batch_bound,
)
from halfmq.core.transaction.check_schedule import (
    CHECKS_PER_TICK_MAX,
    decide_check_not_sent,
    decide_check_now,
    decide_check_parked,
    next_check_ms,
    send_checks,
)
from halfmq.core.transaction.comparisons import (
    COMPARED_BYTES_MAX,
    compare_bound,
    decide_compare,
    decide_forget_damage,
    forget_damage_bound,
)
from halfmq.core.transaction.coordinators import (
    decide_forget_coordinator,
    decide_take_epoch,
    forget_coordinator_bound,
    take_epoch_bound,
)
from halfmq.core.transaction.fence import decide_fence
from halfmq.core.transaction.machine import decide_end, decide_resolve
from halfmq.core.transaction.policy import decide_set_producer, enforce
from halfmq.core.transaction.query_limits import (
    decide_forget_query,
    forget_old_queries,
    forget_query_bound,
    next_query_ms,
    old_queries_bound,
)
from halfmq.core.transaction.retention import copy_bytes_bound, decide_copy_forward, decide_trim, trim_started
from halfmq.errors import InvariantViolated
from halfmq.model.placement import segment_start
from halfmq.model.records import TRIM_SIZE, DecidedBy, Record, checked_size, copied_delayed_size, released_size

#: Space for a message record without topic, body and properties, but with the properties that the broker adds.
_SEND_FRAME_BYTES: Final = 640
#: Size of the largest CHECKED record: both names at their maximum length.
_CHECKED_BYTES_MAX: Final = checked_size("g" * limits.GROUP_CHARS_MAX, "t" * limits.TRANSACTION_ID_CHARS_MAX)
#: Space for a topic or group record without its name.
_SETTINGS_BYTES: Final = 512
#: As exact as possible: a deletion makes a base smaller, so it must fit even if almost nothing else does.
_TOPIC_DELETED_BYTES_MAX: Final = 32
_PRODUCER_FRAME_BYTES: Final = 80
_HOLD_BYTES_MAX: Final = HOLD_BYTES + (2 + limits.TOPIC_CHARS_MAX) * limits.HOLD_TOPICS_MAX


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """The decision on ``command``. ``now_ms``: broker time, which never decreases.

    The caller has made space for ``size_bound(state, command)`` bytes of records in the segment.
    """
    return Decision._make(DECIDE[type(command)](state, command, now_ms))


def next_deadline_ms(state: State) -> int | None:
    """When to send ``Tick``, broker time ms. 0 or a past time: at once. None: no tick until something else happens."""
    soonest: int | None = None
    for at_ms in (next_check_ms(state), next_due_ms(state), next_log_ms(state), next_query_ms(state)):
        if at_ms is not None and (soonest is None or at_ms < soonest):
            soonest = at_ms
    return soonest


def _decide_tick(state: State, command: Tick, now_ms: int) -> Decision:
    """Due checks, policies, delayed messages, offsets and old queries, a bounded number of each. ``again``: more is already due.

    ``TimePassed`` comes first. Delayed messages that must be copied are released alone, since a copy may fail.
    """
    offset = next_offset(state)
    bytes_max = _tick_bytes(state)
    released, wakes, more_due = release_due(state, offset, bytes_max, now_ms, command.releases_max)
    if len(released) > 1:
        return Decision(tuple(released), Done(again=True), tuple(wakes))
    records: list[Record] = released
    offset += sum([record.size for record in released])
    checks = send_checks(state, offset, bytes_max, now_ms)
    records += checks.records
    offset += sum([record.size for record in checks.records])
    effects = [*wakes, *checks.effects]
    events = checks.events
    more_past = False
    if state.derived.policies:
        asked = {(effect.group, effect.tx_id) for effect in checks.effects if isinstance(effect, SendCheck)}
        acts = enforce(state, offset, bytes_max, now_ms, asked)
        records += acts.records
        effects += acts.effects
        events += acts.events
        more_past = acts.more
        offset += sum([record.size for record in acts.records])
    logged, taken, more_offsets = log_due(state, offset, bytes_max, now_ms)
    if logged is not None:
        records.append(logged)
        offset += logged.size
    forgotten, more_queries = forget_old_queries(state, offset, bytes_max, now_ms)
    records += forgotten
    again = more_due or checks.more or more_past or more_offsets or more_queries
    return Decision(tuple(records), Done(again=again), tuple(effects), (*events, *taken))


def _decide_check_parked(state: State, command: CheckParked, now_ms: int) -> Decision:
    return decide_check_parked(state, command, _tick_bytes(state), now_ms)


def _tick_bytes(state: State) -> int:
    """Maximum record bytes of each part of a tick, and of one step of checking parked transactions."""
    return min(1 << 18, state.record_bytes_max // 8)


# --- how much space a decision may need --------------------------------------------------------------------------


def size_bound(state: State, command: Command) -> int:
    """An upper bound of the record bytes of ``decide(state, command)``, so that the segment can be rolled first.

    It is valid for the current end of the log. After a roll, a commit may have to copy its half messages and need more, but never
    more than a new segment has space for after its base.
    """
    return _BOUND[type(command)](state, command)


def _two_records_bound(state: State, command: Command) -> int:
    """At most two records of settings (a group and its topic), or one check."""
    return _SETTINGS_BYTES * 2


def _send_bound(state: State, command: SendMessage | SendHalf) -> int:
    size = 3 * len(command.topic) + len(command.properties) + len(command.body)
    return _SEND_FRAME_BYTES + size + len(state.settings.cluster)


def _batch_bound(state: State, command: SendBatch) -> int:
    frame = _SEND_FRAME_BYTES + 3 * len(command.topic) + len(state.settings.cluster)
    return _SETTINGS_BYTES + sum([frame + len(one.body) + len(one.properties) for one in command.entries])


def _end_bound(state: State, command: EndTransaction) -> int:
    bound = _verdict_bound(state, command.group, command.tx_id, command.wanted)
    return bound and bound + (COMPARED_BYTES_MAX if command.decided_by >= DecidedBy.OPERATOR else 0)


def _resolve_bound(state: State, command: ResolveTransaction) -> int:
    bound = _verdict_bound(state, command.group, command.tx_id, command.wanted)
    by = command.by or Actor(command.operator)
    return bound and bound + COMPARED_BYTES_MAX + acted_bytes(command.tx_id, by)


def _verdict_bound(state: State, group_name: str, tx_id: str, wanted: RequestedVerdict) -> int:
    group = state.producer_groups.get(group_name)
    known = group.undecided.get(tx_id) if group is not None else None
    if known is None:
        return 0
    halves = known.halves
    bound = COMMIT_FRAME_BYTES + len(halves) * HALF_FRAME_BYTES
    if wanted == RequestedVerdict.COMMIT:
        segment = segment_start(next_offset(state), state.settings.segment_bytes)
        for half in halves:
            if half.offset < segment:
                bound += half.message_bytes
    return bound


def _send_back_bound(state: State, command: SendBack) -> int:
    message = command.message
    if message is None:
        return 0
    size = len(message.properties) + len(message.body) + len(message.topic) + 4 * len(command.group)
    return _SETTINGS_BYTES + 2 * _SEND_FRAME_BYTES + size + 2 * len(state.settings.cluster)


def _tick_bound(state: State, command: Tick) -> int:
    bound = old_queries_bound(state, _tick_bytes(state))
    if not (
        state.session.asking
        or state.derived.group_deadlines
        or state.derived.delayed_heap
        or state.session.offsets_due
        or state.derived.policies
    ):
        return bound
    bound += (3 if state.derived.policies else 2) * _tick_bytes(state) + 1_024
    due_ms = next_due_ms(state)
    if due_ms is not None:
        first = state.delayed[state.derived.delayed_heap[0][1]]
        bound += max(_tick_bytes(state), copied_delayed_size(first.message_bytes) + released_size(1))
    return bound


def _check_parked_bound(state: State, command: CheckParked) -> int:
    group = state.producer_groups.get(command.group)
    asked = min(command.asked_max, CHECKS_PER_TICK_MAX, len(group.derived.parked) if group is not None else 0)
    return min(asked * _CHECKED_BYTES_MAX, _tick_bytes(state))


def _delete_topic_bound(state: State, command: DeleteTopic) -> int:
    return bytes_if_space(state, _TOPIC_DELETED_BYTES_MAX, command.name, command.by)


def _set_topic_bound(state: State, command: SetTopic) -> int:
    return 2 * _SETTINGS_BYTES + acted_bytes(command.name, command.by)


def _commit_offset_bound(state: State, command: CommitOffset) -> int:
    return 2 * _SETTINGS_BYTES + acted_bytes(command.group, command.by)


def _delete_group_bound(state: State, command: DeleteGroup) -> int:
    bound = 2 * _TOPIC_DELETED_BYTES_MAX + min(len(command.name), limits.GROUP_CHARS_MAX)
    return bytes_if_space(state, bound, command.name, command.by)


def _set_producer_bound(state: State, command: SetProducer) -> int:
    name, set_by = command.settings.name, command.settings.set_by
    bound = _PRODUCER_FRAME_BYTES + min(len(name), limits.GROUP_CHARS_MAX)
    return bytes_if_space(state, bound + 4 * min(len(set_by), limits.GROUP_CHARS_MAX), name, command.by)


def _set_group_bound(state: State, command: SetGroup) -> int:
    held = holders_bytes(state.holders.get(command.name, {}))
    wanted = HOLD_BYTES + sum([2 + len(topic) for topic in command.hold_topics or ()])
    held += max(min(wanted, _HOLD_BYTES_MAX), more_group_bytes(state.groups.get(command.name)))
    return 2 * _SETTINGS_BYTES + held + RARE_BYTES + acted_bytes(command.name, command.by)


def _lock_bound(state: State, command: LockQueues | UnlockQueues) -> int:
    """0 for a renewal, which a full disk must not refuse. Never more than ``ordering`` allows for all holders."""
    if type(command) is LockQueues and is_renewal(state, command):
        return 0
    asked = HOLDER_BYTES * (1 + len(command.queues or ())) + 4 * len(command.client_id)
    held = holders_bytes(state.holders.get(command.group, {}))
    settings = _SETTINGS_BYTES + more_group_bytes(state.groups.get(command.group))
    return settings + min(held + asked, max(held, holders_bytes_max(state)))


def _nothing_bound(state: State, command: FindDecision) -> int:
    return 0


def _fence_bound(state: State, command: FenceTransaction) -> int:
    return COMMIT_FRAME_BYTES


def _trim_bound(state: State, command: TrimLog) -> int:
    return TRIM_SIZE


def _time_passed(state: State, command: Tick, now_ms: int) -> TimePassed:
    return TimePassed(now_ms)


def comes_before(state: State, command: Command, now_ms: int) -> TimePassed | LocksExpired | TrimStarted | None:
    """The session event that precedes the decision and its ``size_bound``, whatever their outcome. None: there is none."""
    before = _BEFORE.get(type(command))
    return before(state, command, now_ms) if before is not None else None


_BEFORE: Final[dict[type, Callable[[State, Any, int], TimePassed | LocksExpired | TrimStarted | None]]] = {
    Tick: _time_passed,
    LockQueues: locks_expired,
    CopyForward: trim_started,
}

#: Decision function by type of command; same contract as ``decide``.
DECIDE: Final[dict[type, Callable[[State, Any, int], DecisionTuple]]] = {
    SendMessage: decide_send,
    SendHalf: decide_send_half,
    SendBatch: decide_send_batch,
    EndTransaction: decide_end,
    SendBack: decide_send_back,
    SetTopic: decide_set_topic,
    DeleteTopic: decide_delete_topic,
    DeleteGroup: decide_delete_group,
    SetGroup: decide_set_group,
    EnsureGroup: decide_ensure_group,
    EnsureTopic: decide_ensure_topic,
    CommitOffset: decide_commit_offset,
    CheckNotSent: decide_check_not_sent,
    ResolveTransaction: decide_resolve,
    CheckNow: decide_check_now,
    CheckParked: _decide_check_parked,
    SetProducer: decide_set_producer,
    Tick: _decide_tick,
    NoteTime: decide_note_time,
    CopyForward: decide_copy_forward,
    TrimLog: decide_trim,
    LockQueues: decide_lock,
    UnlockQueues: decide_unlock,
    PrepareBatch: decide_prepare_batch,
    DecideBatch: decide_batch,
    FindDecision: find_decision,
    FenceTransaction: decide_fence,
    ForgetQuery: decide_forget_query,
    TakeEpoch: decide_take_epoch,
    ForgetCoordinator: decide_forget_coordinator,
    Compare: decide_compare,
    ForgetDamage: decide_forget_damage,
}

#: Bound of the records of a decision by type of command; see ``size_bound``.
_BOUND: Final[dict[type, Callable[[State, Any], int]]] = {
    SendMessage: _send_bound,
    SendHalf: _send_bound,
    SendBatch: _batch_bound,
    EndTransaction: _end_bound,
    ResolveTransaction: _resolve_bound,
    CheckParked: _check_parked_bound,
    DeleteTopic: _delete_topic_bound,
    DeleteGroup: _delete_group_bound,
    SetTopic: _set_topic_bound,
    SetGroup: _set_group_bound,
    CommitOffset: _commit_offset_bound,
    SetProducer: _set_producer_bound,
    SendBack: _send_back_bound,
    Tick: _tick_bound,
    CopyForward: copy_bytes_bound,
    TrimLog: _trim_bound,
    LockQueues: _lock_bound,
    UnlockQueues: _lock_bound,
    PrepareBatch: prepare_batch_bound,
    DecideBatch: decide_batch_bound,
    FindDecision: _nothing_bound,
    FenceTransaction: _fence_bound,
    ForgetQuery: forget_query_bound,
    TakeEpoch: take_epoch_bound,
    ForgetCoordinator: forget_coordinator_bound,
    Compare: compare_bound,
    ForgetDamage: forget_damage_bound,
    EnsureGroup: _two_records_bound,
    EnsureTopic: _two_records_bound,
    CheckNotSent: _two_records_bound,
    CheckNow: _two_records_bound,
    NoteTime: _two_records_bound,
}
if _BOUND.keys() != DECIDE.keys():
    raise InvariantViolated("every command needs a decision function and a bound")
