"""Epochs of coordinators: which process of somebody else's coordinator may prepare and settle (``model.coordinator``).

    TakeEpoch          the next epoch, durable before the reply: from then on what an earlier epoch sends is refused
    SendHalf           with a coordinator: refused unless in its newest epoch, before anything is written
    EndTransaction     the same; and without the coordinator, a transaction that has one is not settled
    ForgetCoordinator  an operator; refused while it has undecided transactions

Peers choose the names, so where there is no space for a new coordinator, others give way to it and are forgotten: those without undecided
transactions whose epoch was taken longest ago, and more than ``COORDINATOR_IDLE_MS``. A process of theirs that comes back is refused until
it takes an epoch again.

So a listing of a coordinator's undecided transactions, made after it took its epoch, is complete: no earlier process can add one to it, and
none can settle one of it. Operators, and the policy of a producer group, settle a coordinator's transactions as any other.

Epochs rise over all coordinators of a store. One that is forgotten, and begins anew, so never gets an epoch that a process of its past may
still have.
"""

from typing import Final

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import coordinator_bytes, refuse_named
from halfmq.core.commands import ForgetCoordinator, TakeEpoch
from halfmq.core.decision import NOTHING, CoordinatorForgotten, Decision, EpochTaken, Refused, Why, refuse
from halfmq.core.schema import coordinator_epoch
from halfmq.core.state import CoordinatorKey, State, TakenEpoch, Undecided, next_offset
from halfmq.model.coordinator import Coordinator
from halfmq.model.records import OperatorAction
from halfmq.model.settings import COORDINATORS_PART

#: The smallest coordinators that make space for the largest one.
_GIVING_WAY_MAX: Final = 4


def decide_take_epoch(state: State, command: TakeEpoch, now_ms: int) -> Decision:
    """Give the coordinator the next epoch, or again the one that this process took.

    Replies: EpochTaken. Refused LIMIT_REACHED: there are as many coordinators as may be, or no space in a base for another one, and none
        that gives way.
    """
    key = command.group, command.name
    known = state.coordinators.get(key)
    if known is not None and known.taken_by == command.taken_by:
        return Decision(NOTHING, EpochTaken(known.epoch))
    # One that is known is taken over whatever space there is: nobody else would settle what it has prepared.
    gone = _giving_way(state, command, now_ms) if known is None else ()
    if isinstance(gone, Refused):
        return Decision(NOTHING, gone)
    epoch = state.coordinator_epoch + 1
    offset = next_offset(state)
    records = []
    for other in gone:
        records.append(coordinator_epoch(offset, other, 0))
        offset += records[-1].size
    records.append(coordinator_epoch(offset, key, epoch, command.taken_by))
    return Decision(tuple(records), EpochTaken(epoch, known.taken_by if known is not None else "", gone))


def _giving_way(state: State, command: TakeEpoch, now_ms: int) -> tuple[CoordinatorKey, ...] | Refused:
    """The coordinators that must be forgotten so that there is space for this new one; or why there is none."""
    what = f"coordinator {command.name!r} of group {command.group!r} was not accepted"
    gone: list[CoordinatorKey] = []
    most = limits.COORDINATORS_PER_GROUP_MAX
    if state.derived.coordinators_of_group.get(command.group, 0) >= most:
        gone = _idle(state, now_ms, command.group)[:1]
        if not gone:
            return _full(f"{what}: the group has {most} coordinators, as many as it may")
    more = coordinator_bytes((command.group, command.name), TakenEpoch(0, command.taken_by, 0))
    taken = sum([coordinator_bytes(*item) for item in state.coordinators.items()])
    freed = sum([coordinator_bytes(key, state.coordinators[key]) for key in gone])
    segment_bytes = state.settings.segment_bytes
    most_bytes = COORDINATORS_PART.bytes_max(segment_bytes)

    def is_full() -> bool:
        return len(state.coordinators) - len(gone) >= limits.COORDINATORS_MAX or taken - freed + more > most_bytes

    if is_full():
        for key in _idle(state, now_ms):
            if not is_full() or len(gone) == _GIVING_WAY_MAX:
                break
            if key not in gone:
                gone.append(key)
                freed += coordinator_bytes(key, state.coordinators[key])
    if len(state.coordinators) - len(gone) >= limits.COORDINATORS_MAX:
        return _full(f"{what}: this broker knows {limits.COORDINATORS_MAX} coordinators, as many as it may")
    if is_full():
        text = f"{len(state.coordinators)} coordinators take {taken} of {most_bytes} bytes in the base of a segment of {segment_bytes} bytes"
        return _full(f"{what}: {text}")
    return refuse_named(state, more - freed, what) or tuple(gone)


def _idle(state: State, now_ms: int, group: str = "") -> list[CoordinatorKey]:
    """The coordinators, of one group or of all, that may give way, first those whose epoch was taken longest ago."""
    busy = state.derived.undecided_of_coordinator
    found = [
        (taken.epoch, key)
        for key, taken in state.coordinators.items()
        if now_ms - taken.taken_at_ms > limits.COORDINATOR_IDLE_MS and not busy.get(key) and group in ("", key[0])
    ]
    return [key for _, key in sorted(found)]


def _full(text: str) -> Refused:
    span = f"{limits.COORDINATOR_IDLE_MS // 60_000} minutes"
    text = f"{text}; one without undecided transactions gives way {span} after its epoch was taken"
    text = f"{text}; `halfmq coordinator list` shows them, and `halfmq coordinator forget` removes one now"
    return Refused(Why.LIMIT_REACHED, text)


def refuse_superseded(state: State, group: str, coordinator: Coordinator) -> Refused | None:
    """Why what this coordinator sends is refused, whatever it is; None if it sends in its newest epoch."""
    known = state.coordinators.get((group, coordinator.name))
    what = f"coordinator {coordinator.name!r} of group {group!r}, epoch {coordinator.epoch}"
    if known is None:
        text = f"{what}: this broker knows no such coordinator; it was forgotten, or gave way to a new one, or this is another store"
    elif coordinator.epoch < known.epoch:
        text = f"{what}: {known.taken_by or 'another process'} took over with epoch {known.epoch}"
    elif coordinator.epoch > known.epoch:
        text = f"{what}: this broker gave it epoch {known.epoch}, and never this one; this is another store, or an older copy"
    else:
        return None
    return Refused(Why.SUPERSEDED, text)


def refuse_another(state: State, group: str, coordinator: Coordinator) -> Refused | None:
    """Why the coordinator may not begin another transaction; None if it may."""
    most = limits.COORDINATOR_UNDECIDED_MAX
    if len(state.derived.undecided_of_coordinator.get((group, coordinator.name), ())) < most:
        return None
    text = f"coordinator {coordinator.name!r} of group {group!r} has {most} undecided transactions, as many as it may; settle some"
    return Refused(Why.LIMIT_REACHED, text)


def refuse_other(known: Undecided, coordinator: Coordinator | None) -> Refused | None:
    """Why ``coordinator``, which is not superseded, may not settle the transaction; None if it may. None: somebody without one asks."""
    theirs = known.coordinator.name if known.coordinator is not None else None
    ours = coordinator.name if coordinator is not None else None
    if theirs == ours:
        return None
    if theirs is None:
        text = f"transaction {known.tx_id!r} has no coordinator: its producer, or an operator, settles it, not {ours!r}"
    else:
        text = f"transaction {known.tx_id!r} is settled by its coordinator {theirs!r} alone, or by an operator"
    return Refused(Why.OF_COORDINATOR, text)


def decide_forget_coordinator(state: State, command: ForgetCoordinator, now_ms: int) -> Decision:
    """An operator lets the broker forget a coordinator.

    Replies:
        CoordinatorForgotten. Refused NOT_FOUND; Refused NOT_NOW: it has undecided transactions.
    """
    key = command.group, command.name
    what = f"coordinator {command.name!r} of group {command.group!r}"
    known = state.coordinators.get(key)
    if known is None:
        return refuse(Why.NOT_FOUND, f"no {what} is known here")
    undecided = state.derived.undecided_of_coordinator.get(key)
    if undecided:
        text = f"{what} has {len(undecided)} undecided transactions, such as {next(iter(undecided.values()))}: it settles them, or `halfmq tx` does"
        return refuse(Why.NOT_NOW, text)
    record = coordinator_epoch(next_offset(state), key, 0)
    decision = Decision((record,), CoordinatorForgotten(known.epoch))
    return signed(decision, OperatorAction.FORGET_COORDINATOR, command.name, command.by)
