"""From commands to decisions: the only entry to the rules. A decision changes nothing; what the caller does with it: ``decision``."""

from collections.abc import Callable
from typing import Any, Final

from halfmq.core.commands import (
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
    NoteAction,
    NoteTime,
    PrepareBatch,
    RemoveUser,
    ResolveTransaction,
    SendBack,
    SendBatch,
    SendHalf,
    SendMessage,
    SetGroup,
    SetProducer,
    SetSetting,
    SetTopic,
    SetUser,
    TakeEpoch,
    Tick,
    TrimLog,
    UnlockQueues,
    UnsetSetting,
)
from halfmq.core.decision import Decision, DecisionTuple, Done, SendCheck
from halfmq.core.events import LocksExpired, TimePassed, TrimStarted
from halfmq.core.groups import decide_delete_group, decide_ensure_group, decide_set_group
from halfmq.core.queues.delay import release_due
from halfmq.core.queues.offsets import decide_commit_offset, decide_note_action, decide_note_time, log_due
from halfmq.core.queues.ordering import decide_lock, decide_unlock, locks_expired
from halfmq.core.queues.retry import decide_send_back
from halfmq.core.queues.send import decide_send, decide_send_batch, decide_send_half
from halfmq.core.runtime_settings import decide_set_setting, decide_unset_setting
from halfmq.core.state import State, next_offset
from halfmq.core.topics import decide_delete_topic, decide_ensure_topic, decide_set_topic
from halfmq.core.transaction.batches import (
    decide_batch,
    decide_prepare_batch,
    find_decision,
)
from halfmq.core.transaction.check_schedule import (
    decide_check_not_sent,
    decide_check_now,
    decide_check_parked,
    send_checks,
)
from halfmq.core.transaction.comparisons import (
    decide_compare,
    decide_forget_damage,
)
from halfmq.core.transaction.coordinators import (
    decide_forget_coordinator,
    decide_take_epoch,
)
from halfmq.core.transaction.fence import decide_fence
from halfmq.core.transaction.machine import decide_end, decide_resolve
from halfmq.core.transaction.policy import decide_set_producer, enforce
from halfmq.core.transaction.query_limits import (
    decide_forget_query,
    forget_old_queries,
)
from halfmq.core.transaction.retention import decide_copy_forward, decide_trim, trim_started
from halfmq.core.users import decide_remove_user, decide_set_user
from halfmq.model.records import Record


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """The decision on ``command``. ``now_ms``: broker time, which never decreases.

    It may be larger than the segment has space for: then roll, and decide again. Records depend on the segment, and are never moved.
    """
    return Decision._make(DECIDE[type(command)](state, command, now_ms))


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


def _time_passed(state: State, command: Tick, now_ms: int) -> TimePassed:
    return TimePassed(now_ms)


def comes_before(state: State, command: Command, now_ms: int) -> TimePassed | LocksExpired | TrimStarted | None:
    """The session event that precedes the decision, whatever its outcome. None: there is none."""
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
    NoteAction: decide_note_action,
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
    SetUser: decide_set_user,
    RemoveUser: decide_remove_user,
    SetSetting: decide_set_setting,
    UnsetSetting: decide_unset_setting,
}
