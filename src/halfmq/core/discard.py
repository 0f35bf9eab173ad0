"""Taking back what a decision noted in session state, when its records are not to happen.

A decision changes nothing durable, but it may note what it has just asked for. Whoever throws one away instead of applying
it says so here, and what was due before is due again: a check that no record stands for is not in flight, what a policy was
about to do is still to be done, offsets are still to be logged. Some of that is then found twice; who takes an entry looks
again, as always.

Not taken back, since nothing depends on it: whose turn it is, and that a fetcher waits (its poll ends with its time, or it
comes again).
"""

from collections.abc import Sequence

from halfmq.core.commands import CarryForward, Command, Tick
from halfmq.core.decision import Effect, SendCheck
from halfmq.core.queues.offsets import log_at
from halfmq.core.state import State, take_turn
from halfmq.model.records import OffsetsCommitted, Record, RolledBack, SetAside


def discard(state: State, command: Command, records: Sequence[Record], effects: Sequence[Effect], now_ms: int) -> None:
    """``decide(state, command, now_ms)`` came to ``records`` and ``effects``, and none of them was or will be applied."""
    if isinstance(command, CarryForward):
        state.carrying = None  # took what it carried off its list: the next step looks anew
    by_itself = isinstance(command, Tick)
    for effect in effects:
        if isinstance(effect, SendCheck):
            _ask_again(state, effect, now_ms, by_itself=by_itself)
    for record in records:
        if by_itself and isinstance(record, OffsetsCommitted):
            _log_again(state, record, now_ms)
        elif by_itself and isinstance(record, RolledBack | SetAside):
            _act_again(state, record)


def _ask_again(state: State, check: SendCheck, now_ms: int, *, by_itself: bool) -> None:
    """``by_itself``: it was due, or a connection had cut its back-off short; else an operator asked, who is refused."""
    group = state.producer_groups.get(check.group)
    known = group.undecided.get(check.tx_id) if group is not None else None
    if group is None or known is None:
        return
    group.in_flight.pop(check.tx_id, None)
    if by_itself:
        (group.ready if known.next_check_at_ms <= now_ms else group.cut).append(check.tx_id)
        take_turn(state, group)


def _act_again(state: State, record: RolledBack | SetAside) -> None:
    group = state.producer_groups.get(record.group)
    if group is not None and group.policy is not None:
        group.policy.past[record.tx_id] = None
        state.looking[record.group] = None


def _log_again(state: State, record: OffsetsCommitted, now_ms: int) -> None:
    for group, topic_id, queue_id, offset in record.entries:
        state.fresh_offsets.setdefault(group, {}).setdefault((topic_id, queue_id), offset)
        log_at(state, group, now_ms)
