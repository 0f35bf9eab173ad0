"""The records of a verdict on a transaction of half batches."""

from collections.abc import Collection, Iterable

from msgspec.structs import astuple

from halfmq.core.copies import halves_in_segment
from halfmq.core.decision import Decision, Settled, WakeQueue
from halfmq.core.state import State, Undecided, next_offset
from halfmq.model.records import BatchRef, Decided, DecidedBy, Half, decided_size


def commit_batches(state: State, known: Undecided, decided_by: DecidedBy) -> Decision:
    """The verdict COMMIT on a complete transaction of half batches that is not a batch of a query."""
    copies, halves, offset = halves_in_segment(state, known, next_offset(state))
    record, wakes = decided_record(state, known.group, known.tx_id, halves, {""}, decided_by, b"", offset)
    return Decision((*copies, record), Settled(known.group, known.tx_id, True, record.offset, False), wakes)


def decided_record(
    state: State, group: str, tx_id: str, halves: Iterable[Half], won: Collection[str], decided_by: DecidedBy, digest: bytes,
    offset: int, is_last: bool = False, query_topic: str = "", stream: str = "", user: str = "",
) -> tuple[Decided, tuple[WakeQueue, ...]]:  # fmt: skip
    """(record at ``offset``, queues to wake): the half batches of attempts in ``won`` become visible, others never. With delays, their
    messages wait for their time from now on.
    """
    refs: list[BatchRef] = []
    lost: list[int] = []
    ends: dict[tuple[int, int], int] = {}
    wakes: dict[WakeQueue, None] = {}
    for half in halves:  # 16,384 at most, and the loop serves nobody meanwhile: each property costs a call
        _, half_index, at, first_offset, topic_id, queue_id, message_bytes, _, _, _, batch, _ = astuple(half)
        assert batch is not None
        if batch.attempt not in won:
            lost.append(half_index)
            continue
        queue_offset = -1
        if not batch.delayed_entries:
            queue = (topic_id, queue_id)
            if queue not in ends:
                topic = state.topics_by_id[topic_id]
                ends[queue] = topic.ends[queue_id]
                wakes[topic.wakes[queue_id][0]] = None
            queue_offset = ends[queue]
            ends[queue] = queue_offset + batch.messages
        refs.append(
            BatchRef(at, first_offset, half_index, queue_offset, message_bytes, batch.messages, topic_id, queue_id)
        )
    size = decided_size(group, tx_id, digest, len(refs), len(lost), query_topic, stream, user)
    record = Decided(
        offset, size, group, tx_id, decided_by, digest, tuple(refs), tuple(lost), is_last, query_topic, stream, user
    )
    return record, tuple(wakes)
