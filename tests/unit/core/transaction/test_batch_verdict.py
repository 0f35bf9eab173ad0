"""The verdict record of half batches: which messages become visible where."""

from tests.support.core_log import CoreLog, end, half_batch, sent, winner
from tests.support.durable_digest import durable_digest

from halfmq.core.commands import CopyForward, DecideBatch, TrimLog
from halfmq.core.copies import copy_half
from halfmq.core.decision import BatchDecided, Done, Sent
from halfmq.core.state import Undecided
from halfmq.core.transaction.batch_verdict import commit_batches, decided_record
from halfmq.model.half_batch import delayed_items
from halfmq.model.placement import SEGMENT_BYTES_MIN
from halfmq.model.query_batch import QueryBatch
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
    copy = copy_half(known, known.halves[1], 5_000)
    assert isinstance(copy, CopiedHalfBatch)
    assert (copy.offset, copy.source, copy.half.first_offset, copy.size) == (
        5_000,
        original.offset,
        original.offset,
        original.size,
    )
    assert (copy.half.batch, copy.half.messages, copy.half.index, copy.half.queue_id) == (original.batch, 2, 1, 1)
    assert (copy.group, copy.tx_id, copy.half.attempt, copy.count) == ("PG", "T1", "", 3)


def delayed_and_others() -> CoreLog:
    """Half batches for one queue, of which the second has delays."""
    log = CoreLog()
    for index in range(3):
        delays = (700, 5) if index == 1 else ()
        sent(log.do(half_batch("T1", "", index=index, count=3 * (index == 2), messages=2, delays=delays)))
    return log


def test_half_batch_with_delays_takes_no_place_in_its_queue_and_wakes_nobody() -> None:
    log = delayed_and_others()
    known = log.state.producer_groups["PG"].undecided["T1"]
    record, wakes = decided_record(log.state, "PG", "T1", known.halves, {""}, DecidedBy.PRODUCER, b"", 1_000)
    assert [(ref.queue_offset, ref.messages) for ref in record.refs] == [(0, 2), (-1, 2), (2, 2)]
    assert [wake.queue_id for wake in wakes] == [0]
    only = (known.halves[1],)
    record, wakes = decided_record(log.state, "PG", "T1", only, {""}, DecidedBy.PRODUCER, b"", 1_000)
    assert ([ref.queue_offset for ref in record.refs], wakes) == ([-1], ())


def test_copy_keeps_the_delays_and_its_messages_are_released_from_it() -> None:
    log = delayed_and_others()
    original: HalfBatch = log.of(HalfBatch)[1]
    log.roll()
    known = log.state.producer_groups["PG"].undecided["T1"]
    place = sent_place(known)
    log.do(end("T1", place, half_index=known.halves[0].half_index))
    copy: CopiedHalfBatch = log.of(CopiedHalfBatch)[1]
    assert copy.half.batch is not None
    assert copy.half.batch.delayed_entries == original.batch.delayed_entries != b""
    items = list(delayed_items(original.batch.delayed_entries))
    assert sorted((one.first_offset, one.offset, one.message_bytes) for one in log.state.delayed.values()) == [
        (original.offset + item.at, copy.offset + item.at, item.message_bytes) for item in items
    ]
    assert durable_digest(log.redone()) == durable_digest(log.state)


def test_redo_after_an_interrupted_trim_takes_the_messages_from_their_copies() -> None:
    """A decision ties two segments, of which a killed broker removed the first: redo meets it without its half batches."""
    log = CoreLog()
    found = [half_batch(index=index, size=9_000, delays=(700, 60_000)) for index in range(5)]
    for command in found:
        sent(log.do(command))
    log.roll()
    second = log.state.log_end
    assert isinstance(
        log.do(DecideBatch(1, "PG", QueryBatch("q1", 0, "r1"), bytes(16), (winner(*found),))), BatchDecided
    )
    log.run_to(log.now_ms + 1_000)
    log.roll()
    third = max(log.state.bases)
    while log.do(CopyForward(third, 100)) == Done(again=True):
        pass
    assert log.do(TrimLog(third, ())) == Done()
    assert len(log.state.delayed) == 5
    redone = log.redone([batch for batch in log.batches if batch.offset >= second - second % SEGMENT_BYTES_MIN])
    whole, left = durable_digest(log.state), durable_digest(redone)
    for part in ("delayed", "topics", "pending", "queries", "undecided"):
        assert left[part] == whole[part], part
    assert durable_digest(log.redone()) == whole


def sent_place(known: Undecided) -> Sent:
    """What the reply to the first half batch said."""
    half = known.halves[0]
    return Sent(half.first_offset, half.queue_id, half.half_index, "")
