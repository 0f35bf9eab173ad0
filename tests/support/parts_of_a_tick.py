"""A single part of a tick, or a single lock request: the event before it, the decision, and its events, as in the engine."""

from collections.abc import Iterable

from halfmq.core.commands import LockQueues
from halfmq.core.decision import Effect, Locked
from halfmq.core.events import QueuesUnlocked, TimePassed
from halfmq.core.queues.ordering import Queue, decide_lock, locks_expired
from halfmq.core.session import apply_session
from halfmq.core.state import State
from halfmq.core.transaction.check_schedule import send_checks
from halfmq.core.transaction.policy import enforce
from halfmq.model.records import BATCH_HEADER_BYTES, Record

#: Records, effects, and whether there is more to do.
Part = tuple[list[Record], list[Effect], bool]


def checks_of_a_tick(state: State, bytes_max: int, now_ms: int) -> Part:
    apply_session(state, TimePassed(now_ms))
    records, effects, events, more = send_checks(state, state.log_end + BATCH_HEADER_BYTES, bytes_max, now_ms)
    for event in events:
        apply_session(state, event)
    return records, effects, more


def policies_of_a_tick(state: State, bytes_max: int, now_ms: int) -> Part:
    apply_session(state, TimePassed(now_ms))
    records, effects, events, more = enforce(state, state.log_end + BATCH_HEADER_BYTES, bytes_max, now_ms, ())
    for event in events:
        apply_session(state, event)
    return records, effects, more


def lock_queues(state: State, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> tuple[Queue, ...]:
    """The queues that the client gets; nothing is logged."""
    command = LockQueues(group, client_id, tuple(queues))
    apply_session(state, locks_expired(state, command, now_ms))
    decision = decide_lock(state, command, now_ms)
    for event in decision.events:
        apply_session(state, event)
    assert isinstance(decision.reply, Locked)
    return decision.reply.queues


def unlock_queues(state: State, group: str, client_id: str, queues: Iterable[Queue]) -> None:
    apply_session(state, QueuesUnlocked(group, client_id, tuple(queues)))
