"""Who stands behind a decision: the record that says so, directly before the record that it explains.

    [CopiedHalf ...] OperatorActed Committed
    OperatorActed RolledBack | ProducerSet | TopicDeleted | TopicSet | GroupSet [TopicSet] | OffsetsCommitted

Both are records of one decision, so they are in one batch: a crash keeps both or none. ``apply`` does nothing for it; the
record after it is what happened, whoever did it. What is copied for a commit stays before it, since that is where the sequencer
looks for it.

A deletion, and a policy that is taken away, are also how a store comes out of being too full; there they happen without
this record where the segment has no space for it, and the broker's output alone says who. See ``docs/decisions/0035``.
"""

from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.base_space import why_no_base
from halfmq.core.commands import Actor
from halfmq.core.decision import Decision, Settled
from halfmq.core.state import State
from halfmq.model.placement import fits
from halfmq.model.records import CopiedDelayed, CopiedHalf, OperatorActed, OperatorAction, operator_acted_size

#: The longest name of a topic, group or transaction, and more than an address has.
_SUBJECT_CHARS_MAX: Final = limits.RETRY_TOPIC_CHARS_MAX
_PEER_CHARS_MAX: Final = 64


def operator_acted(offset: int, action: OperatorAction, subject: str, by: Actor) -> OperatorActed:
    """The record at ``offset``."""
    subject, peer = subject[:_SUBJECT_CHARS_MAX], by.peer[:_PEER_CHARS_MAX]
    name, reason = by.name[: limits.OPERATOR_CHARS_MAX], by.reason[: limits.REASON_CHARS_MAX]
    size = operator_acted_size(subject, name, reason, peer)
    return OperatorActed(offset, size, action, subject, name, reason, peer)


def acted_bytes(subject: str, by: Actor | None) -> int:
    """What ``signed`` adds to a decision that has records."""
    return 0 if by is None else operator_acted(0, OperatorAction.COMMIT, subject, by).size


def signed(decision: Decision, action: OperatorAction, subject: str, by: Actor | None) -> Decision:
    """``decision`` with who stands behind it, if it has records. The caller has made space for ``acted_bytes``."""
    records = decision.records
    if by is None or not records:
        return decision
    at = 0
    while isinstance(records[at], CopiedHalf | CopiedDelayed):
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
    """``signed``, where the segment has space for it: the caller has made space for ``bytes_if_space``."""
    size = sum([record.size for record in decision.records]) + acted_bytes(subject, by)
    return signed(decision, action, subject, by) if _fits_here(state, size) else decision


def bytes_if_space(state: State, bound: int, subject: str, by: Actor | None) -> int:
    """``bound``, the bytes of the decision alone, and what is added to it where this or the next segment has space."""
    more = bound + acted_bytes(subject, by)
    if more == bound or _fits_here(state, more) or not why_no_base(state, more):
        return more
    return bound


def _fits_here(state: State, size: int) -> bool:
    return fits(state.log_end, state.batch_open, size, state.settings.segment_bytes)
