"""The records of a verdict on a transaction of half batches, and of a copy."""

from collections.abc import Collection, Iterable

from msgspec.structs import astuple, replace

from halfmq.core.decision import Decision, Settled, WakeQueue
from halfmq.core.state import Half, State, Undecided, next_offset
from halfmq.core.transaction.next_check import to_number
from halfmq.model.placement import segment_start
from halfmq.model.records import BatchRef, CopiedHalfBatch, Decided, DecidedBy, Record, decided_size


def commit_batches(state: State, known: Undecided, decided_by: DecidedBy) -> Decision:
    """The verdict COMMIT on a complete transaction of half batches that is not a batch of a query."""
    offset = next_offset(state)
    segment = segment_start(offset, state.settings.segment_bytes)
    copies: list[Record] = []
    halves = list(known.halves)
    for number, half in enumerate(known.halves):
        if half.offset < segment:
            copies.append(copy_half_batch(known, half, offset))
            halves[number] = replace(half, offset=offset)
            offset += half.message_bytes
    record, wakes = decided_record(state, known.group, known.tx_id, halves, {""}, decided_by, b"", offset)
    return Decision((*copies, record), Settled(known.group, known.tx_id, True, record.offset, False), wakes)


def copy_half_batch(known: Undecided, half: Half, offset: int) -> CopiedHalfBatch:
    """The record that copies the half batch ``half`` to ``offset``, with everything that redo from there needs."""
    assert half.batch is not None
    attempt, messages, checksum, entries_checksum, has_keys, delayed_entries, *of_query = astuple(half.batch)
    record = CopiedHalfBatch(
        offset, half.message_bytes, half.offset, half.first_offset, half.topic_id, half.queue_id, half.half_index,
        known.group, known.tx_id, attempt, half.index, known.count, messages, checksum, entries_checksum, has_keys,
        known.prepared_at_ms, known.grace_until_ms, known.checks, to_number(known.next_check), delayed_entries,
        *of_query,
    )  # fmt: skip
    return replace(record, has_marker=half.has_marker) if half.has_marker else record


def decided_record(
    state: State, group: str, tx_id: str, halves: Iterable[Half], won: Collection[str], decided_by: DecidedBy, digest: bytes,
    offset: int, is_last: bool = False, query_topic: str = "", stream: str = "",
) -> tuple[Decided, tuple[WakeQueue, ...]]:  # fmt: skip
    """(record at ``offset``, queues to wake): the half batches of attempts in ``won`` become visible, others never. With delays, their messages
    wait for their time from now on.
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
    size = decided_size(group, tx_id, digest, len(refs), len(lost), query_topic, stream)
    record = Decided(
        offset, size, group, tx_id, decided_by, digest, tuple(refs), tuple(lost), is_last, query_topic, stream
    )
    return record, tuple(wakes)
