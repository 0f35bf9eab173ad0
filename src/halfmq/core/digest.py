"""Durable state as one comparable value: live, redone, loaded from a snapshot, redone after a trim, it must be the same.

Left out is what redo cannot know and nothing durable depends on: the connection behind a message that may be sent again,
and the first offset of a rolled-back half whose record was trimmed.
"""

from typing import Any

from msgspec.structs import astuple, replace

from halfmq.core.state import State


def durable_digest(state: State) -> dict[str, Any]:
    """Plain tuples by field; compare two with ``==``, or field by field to see what differs."""
    return {
        "log_end": state.log_end,
        "log_start": state.log_start,
        "batch_time_ms": state.batch_time_ms,
        "epoch": state.epoch,
        "epoch_immunity_ms": state.epoch_immunity_ms,
        "jumps": state.jumps,
        "next_topic_id": state.next_topic_id,
        "next_half_index": state.next_half_index,
        "topics": sorted(
            (
                t.topic_id, t.name, t.read_queues, t.write_queues, t.permission, tuple(t.ends), tuple(t.mins), t.derived.pending,
                tuple(sorted((key, astuple(sent)[:7]) for key, sent in t.derived.sent.items())),
            )
            for t in state.topics_by_id.values()
        ),
        "groups": sorted(repr(settings) for settings in state.groups.values()),
        "holders": sorted((group, tuple(sorted(queues.items()))) for group, queues in state.holders.items()),
        "producers": sorted(repr(settings) for settings in state.producer_settings.values()),
        "offsets": sorted((group, tuple(sorted(entries.items()))) for group, entries in state.offsets.items() if entries),
        "undecided": sorted(
            astuple(known) for group in state.producer_groups.values() for known in group.undecided.values()
        ),
        "undecided_bytes": sorted((g.name, g.derived.bytes) for g in state.producer_groups.values() if g.derived.bytes),
        "delayed": sorted(astuple(delayed) for delayed in state.delayed.values()),
        "settled": sorted(
            (name, tx_id, verdict.committed, verdict.position, verdict.settled_at_ms, verdict.half_indexes)
            for name, group in state.producer_groups.items()
            for tx_id, verdict in group.settled.items()
        ),
        "verdicts": [astuple(replace(verdict, first_offsets=0)) for verdict in state.verdicts],
        "sent": [astuple(sent)[:7] for sent in state.sent],
        "bases": sorted(state.bases.items()),
    }  # fmt: skip
