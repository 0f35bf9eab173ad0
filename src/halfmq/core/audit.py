"""The record of who requested an action, directly before the record of the action.

    [CopiedHalf ...] OperatorActed Committed
    OperatorActed RolledBack | ProducerSet | TopicDeleted | TopicSet | GroupSet [TopicSet] | OffsetsCommitted

Both are records of one decision and thus of one batch: a crash keeps both or none. ``apply`` ignores this record; the record
after it is the action, whoever requested it. Copies for a commit come before it, since the engine expects them first.

See ``docs/decisions/0035``.
"""

from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.commands import Actor
from halfmq.core.decision import Decision, Settled
from halfmq.model.records import (
    Copied,
    CopiedDelayed,
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


def signed(decision: Decision, action: OperatorAction, subject: str, by: Actor | None) -> Decision:
    """``decision`` with the record of its operator, if it has records."""
    records = decision.records
    if by is None or not records:
        return decision
    at = 0
    while isinstance(records[at], Copied | CopiedDelayed):
        at += 1
    acted = operator_acted(records[at].offset, action, subject, by)
    moved = [replace(record, offset=record.offset + acted.size) for record in records[at:]]
    reply = decision.reply
    if isinstance(reply, Settled):
        reply = replace(reply, position=reply.position + acted.size)
    return decision._replace(records=(*records[:at], acted, *moved), reply=reply)
