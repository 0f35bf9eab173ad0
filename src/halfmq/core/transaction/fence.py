"""The fence: rolls back an id that nobody has prepared, so that nobody can, and otherwise says what the transaction is.

    FenceTransaction  ->  UNDECIDED      its halves are here, and its producer decides: nothing is changed
                      ->  the verdict    it has one: nothing is changed
                      ->  ROLLED_BACK    nobody prepared it: RolledBack without halves, after which its halves are refused

A participant of Try/Confirm/Cancel asks before it cancels. It does not guess: an initiator prepares before its local COMMIT, so that one
that was fenced before cannot commit, and one that is prepared is left to its own check.
"""

from halfmq.core.commands import FenceTransaction
from halfmq.core.decision import NOTHING, Decision, Fenced, Why, refuse
from halfmq.core.state import State, next_offset
from halfmq.core.transaction.admission import too_many_groups
from halfmq.core.transaction.machine import DISK_FULL, settled_earlier
from halfmq.core.transaction.states import TransactionState, standing_state
from halfmq.model.records import DecidedBy, RolledBack, rolled_back_size


def decide_fence(state: State, command: FenceTransaction, now_ms: int) -> Decision:
    """Roll back what nobody prepared. The first verdict wins, as for ``decide_end``.

    Replies:
        Fenced: what the transaction is from now on, or is already.
        Refused NOT_FOUND: past retention; the log no longer has everything since ``command.since``, so a verdict may have been trimmed. Or
            the log has not come so far: it is not the one in which the transaction began, such as an older copy of it.
            SEARCH_AGAIN: as for ``prepare``. STORE_FULL, LIMIT_REACHED: nothing was changed; ask again later.
    """
    name, tx_id = command.group, command.tx_id
    group = state.producer_groups.get(name)
    if group is not None:
        if tx_id in group.undecided:
            return Decision(NOTHING, Fenced(TransactionState.UNDECIDED.value, -1))
        verdict = group.settled.get(tx_id)
        if verdict is not None:
            return Decision(NOTHING, Fenced(standing_state(verdict.committed).value, verdict.position))
    stands = settled_earlier(state, command)
    if stands is not None:
        is_settled = stands.why is Why.ALREADY_SETTLED
        return Decision(NOTHING, Fenced(stands.standing, stands.position) if is_settled else stands)
    if command.since < state.log_start:
        text = (
            f"transaction {tx_id!r}: unknown, past retention: it began at log position {command.since}, and the log begins at "
            f"{state.log_start}"
        )
        return refuse(Why.NOT_FOUND, text)
    if command.since > state.log_end:
        text = (
            f"transaction {tx_id!r}: unknown here: it began at log position {command.since}, and this log ends at {state.log_end}, so that it is another "
            "log, or an older copy"
        )
        return refuse(Why.NOT_FOUND, text)
    if state.session.disk_full:
        return Decision(NOTHING, DISK_FULL)
    too_many = too_many_groups(state, 1) if group is None else None
    if too_many:
        return refuse(Why.LIMIT_REACHED, too_many)
    offset = next_offset(state)
    user = command.user
    record = RolledBack(offset, rolled_back_size(name, tx_id, 0, user), name, tx_id, DecidedBy.FENCE, (), user)
    return Decision((record,), Fenced(TransactionState.ROLLED_BACK.value, offset))
