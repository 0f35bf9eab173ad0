"""The record of who requested an action, directly before the record of the action.

    [CopiedHalf ...] OperatorActed Committed
    OperatorActed RolledBack | ProducerSet | TopicDeleted | TopicSet | GroupSet [TopicSet] | OffsetsCommitted

Both are records of one decision and thus of one batch: a crash keeps both or none. ``apply`` ignores this record; the record
after it is the action, whoever requested it. Copies for a commit come before it, since the engine expects them first.

A deletion, and the removal of a policy, are also the ways out of a store that is too full. If the segment has no space for this
record they happen without it, and only the broker's log names the operator. See ``docs/decisions/0035``.
"""

from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.base_space import why_no_base
from halfmq.core.commands import Actor
from halfmq.core.decision import Decision, Settled
from halfmq.core.state import State
from halfmq.model.placement import fits
from halfmq.model.records import (
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    OperatorActed,
    OperatorAction,
    operator_acted_size,
)

#: The maximum length of a topic, group or transaction name; more than any address has.
_SUBJECT_CHARS_MAX: Final = limits.RETRY_TOPIC_CHARS_MAX
_PEER_CHARS_MAX: Final = 64


def operator_acted(offset: int, action: OperatorAction, subject: str, by: Actor) -> OperatorActed:
    """The record at ``offset``."""
    subject, peer = subject[:_SUBJECT_CHARS_MAX], by.peer[:_PEER_CHARS_MAX]
    name, reason = by.name[: limits.OPERATOR_CHARS_MAX], by.reason[: limits.REASON_CHARS_MAX]
    size = operator_acted_size(subject, name, reason, peer)
    return OperatorActed(offset, size, action, subject, name, reason, peer)


def acted_bytes(subject: str, by: Actor | None) -> int:
    """Bytes that ``signed`` adds to a decision with records."""
    return 0 if by is None else operator_acted(0, OperatorAction.COMMIT, subject, by).size


def signed(decision: Decision, action: OperatorAction, subject: str, by: Actor | None) -> Decision:
    """``decision`` with the record of its operator, if it has records. The caller has made space for ``acted_bytes``."""
    records = decision.records
    if by is None or not records:
        return decision
    at = 0
    while isinstance(records[at], CopiedHalf | CopiedDelayed | CopiedHalfBatch):
        at += 1
    acted = operator_acted(records[at].offset, action, subject, by)
    moved = [replace(record, offset=record.offset + acted.size) for record in records[at:]]
    reply = decision.reply
    if isinstance(reply, Settled):
        reply = replace(reply, position=reply.position + acted.size)
    return Decision((*records[:at], acted, *moved), reply, decision.effects, decision.events)


# --- what must happen also where a store is too full -----------------------------------------------------------


def signed_if_space(
    state: State, decision: Decision, action: OperatorAction, subject: str, by: Actor | None
) -> Decision:
    """``signed`` if the segment has space for it: the caller has made space for ``bytes_if_space``."""
    size = sum([record.size for record in decision.records]) + acted_bytes(subject, by)
    return signed(decision, action, subject, by) if _fits_here(state, size) else decision


def bytes_if_space(state: State, bound: int, subject: str, by: Actor | None) -> int:
    """``bound``, the bytes of the decision alone, plus the operator's record if this or the next segment has space for it."""
    more = bound + acted_bytes(subject, by)
    if more == bound or _fits_here(state, more) or not why_no_base(state, more):
        return more
    return bound


def _fits_here(state: State, size: int) -> bool:
    return fits(state.log_end, state.batch_open, size, state.settings.segment_bytes)
