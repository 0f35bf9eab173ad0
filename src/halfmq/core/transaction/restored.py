"""Transactions that were undecided when the store was restored from a backup: nobody but an operator rolls them back.

The backup may be older than what producers know. A transaction that is undecided in it may have been committed since: its consumers acted
on it, and its marker may have been pruned, which is allowed after a commit. A check then finds no marker and says ROLLBACK, or
a coordinator that forgot a finished transaction presumes it aborted. A commit, in contrast, is said only by who knows of one. So COMMIT is
accepted from everybody who could give it before, and a ROLLBACK parks the transaction until an operator has looked.

Half indexes grow, and copies keep them: a transaction is from before the restore if one of its halves is.

A batch of a query that a later run supersedes is still rolled back (``transaction.batches``): its query decides anew.
"""

from halfmq.core.decision import Refused, Why
from halfmq.core.state import State, Undecided
from halfmq.model.records import DecidedBy, Parked, ParkedBecause, parked_size


def waits_for_operator(state: State, known: Undecided) -> bool:
    """Whether only an operator may roll the transaction back."""
    before = state.restored_half_index
    return any(half.half_index < before for half in known.halves)


def park_restored(known: Undecided, decided_by: DecidedBy, offset: int) -> Parked:
    """The record at ``offset`` that parks the transaction. ``decided_by``: who requested its rollback."""
    return Parked(
        offset, parked_size(known.group, known.tx_id), known.group, known.tx_id, known.halves[0].half_index, known.checks,
        decided_by, ParkedBecause.RESTORED,
    )  # fmt: skip


def refusal(known: Undecided) -> Refused:
    """The reply to a rollback that is not accepted."""
    return Refused(
        Why.AFTER_RESTORE,
        f"transaction {known.tx_id!r} was undecided when this store was restored from a backup, and may have been committed after that: "
        "it is parked until an operator decides (halfmq tx)",
    )
