"""The verdict record of half batches: which messages become visible where."""

from tests.support.core_log import CoreLog, half_batch, sent

from halfmq.core.transaction.batch_verdict import commit_batches, copy_half_batch, decided_record
from halfmq.model.records import CopiedHalfBatch, Decided, DecidedBy, HalfBatch


def two_queues() -> CoreLog:
    log = CoreLog()
    for index, queue in enumerate((0, 1, 0)):
        sent(log.do(half_batch("T1", "", index=index, count=3 * (index == 2), queue=queue, messages=index + 1)))
    return log


def test_each_queue_continues_where_it_ends() -> None:
    log = two_queues()
    known = log.state.producer_groups["PG"].undecided["T1"]
    record, wakes = decided_record(log.state, "PG", "T1", known.halves, {""}, DecidedBy.PRODUCER, b"", 1_000)
    assert [(ref.queue_id, ref.queue_offset, ref.messages) for ref in record.refs] == [(0, 0, 1), (1, 0, 2), (0, 1, 3)]
    assert {wake.queue_id for wake in wakes} == {0, 1}
    assert record.lost == ()


def test_half_batches_of_other_attempts_are_lost() -> None:
    log = two_queues()
    known = log.state.producer_groups["PG"].undecided["T1"]
    record, wakes = decided_record(log.state, "PG", "T1", known.halves, {"other"}, DecidedBy.PRODUCER, b"", 1_000)
    assert (record.refs, record.lost, wakes) == ((), (0, 1, 2), ())


def test_commit_copies_what_is_in_an_older_segment_first() -> None:
    log = two_queues()
    log.roll()
    known = log.state.producer_groups["PG"].undecided["T1"]
    records = commit_batches(log.state, known, DecidedBy.PRODUCER).records
    assert [type(record) for record in records] == [CopiedHalfBatch] * 3 + [Decided]
    last = records[-1]
    assert isinstance(last, Decided)
    assert [ref.offset for ref in last.refs] == [record.offset for record in records[:-1]]


def test_copy_has_everything_that_redo_needs() -> None:
    log = two_queues()
    known = log.state.producer_groups["PG"].undecided["T1"]
    original: HalfBatch = log.of(HalfBatch)[1]
    copy = copy_half_batch(known, known.halves[1], 5_000)
    assert (copy.offset, copy.source, copy.first_offset, copy.size) == (
        5_000,
        original.offset,
        original.offset,
        original.size,
    )
    assert (copy.messages, copy.checksum, copy.index, copy.queue_id) == (2, original.checksum, 1, 1)
    assert (copy.group, copy.tx_id, copy.attempt, copy.count) == ("PG", "T1", "", 3)
