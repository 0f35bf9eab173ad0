"""After a restore from a backup only an operator rolls back what was undecided in it; and nothing names what comes after it."""

from typing import Any

import pytest
from tests.support.core_log import CoreLog, changed, end, half, half_batch, message, part, producer, refused, sent
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import (
    CheckNow,
    CommitOffset,
    CopyForward,
    EnsureGroup,
    RequestedVerdict,
    ResolveTransaction,
    SetProducer,
    TakeEpoch,
    TrimLog,
)
from halfmq.core.decision import Asked, Done, EpochTaken, PolicyActed, SendCheck, Sent, Settled, Why
from halfmq.core.session import CheckDelivered
from halfmq.core.snapshot import load_rows
from halfmq.core.transaction.listing import oldest_undecided
from halfmq.core.transaction.story import story
from halfmq.model.ids import ANY_HALF
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import DecidedBy, OffsetsCommitted, Parked, ParkedBecause, Restored, RolledBack
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings

COMMIT, ROLLBACK, UNKNOWN = RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK, RequestedVerdict.UNKNOWN
KEPT = ["live", "redo", "snapshot", "base"]


def restored(log: CoreLog, kept: str = "live") -> None:
    """Restored, and started in one of the ways in which the state is known afterwards."""
    log.restore()
    if kept == "base":
        log.roll()
        start = log.state.log_end - log.state.log_end % log.settings.segment_bytes
        while log.do(CopyForward(start, 64)) == Done(again=True):
            pass
        assert log.do(TrimLog(start)) == Done()
        assert not [one for batch in log.remaining() for one in batch.records if isinstance(one, Restored)]
    if kept != "live":
        log.state = log.reloaded(log.snapshot()) if kept == "snapshot" else log.redone()
    check(log.state)


def parked(log: CoreLog, tx_id: str, group: str = "PG") -> Any:
    return log.state.producer_groups[group].undecided[tx_id].parked


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("from_check", [True, False])
def test_a_rollback_waits_for_an_operator_whoever_requests_it(kept: str, from_check: bool) -> None:
    log = CoreLog()
    first = sent(log.do(half("T1")))
    restored(log, kept)
    before = len(log.of(Parked))
    for _ in range(3):
        reply = refused(log.do(end("T1", first, ROLLBACK, from_check=from_check)), Why.AFTER_RESTORE)
        assert (reply.standing, "restored from a backup" in reply.text) == ("", True), (
            "no client takes it for a verdict"
        )
        check(log.state)
    by = DecidedBy.CHECK if from_check else DecidedBy.PRODUCER
    records = log.of(Parked)[before:]
    assert [(one.tx_id, one.decided_by, one.because) for one in records] == [("T1", by, ParkedBecause.RESTORED)]
    assert parked(log, "T1") is ParkedBecause.RESTORED
    (row,) = oldest_undecided(log.state, "", 9, log.now_ms)[1]
    assert row.parked == "restored"
    assert "an operator decides" in " ".join(story(log.state, "PG", "T1", log.now_ms))
    assert durable_digest(log.redone()) == durable_digest(log.state)
    assert not log.of(RolledBack)
    done = log.do(ResolveTransaction("PG", "T1", ROLLBACK, "ada"))
    assert isinstance(done, Settled)
    assert not done.committed
    check(log.state)


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("asks_before", [True, False])
def test_a_commit_is_accepted_also_after_a_rollback_was_not(kept: str, asks_before: bool) -> None:
    log = CoreLog()
    first = sent(log.do(half("T1")))
    restored(log, kept)
    if asks_before:
        refused(log.do(end("T1", first, ROLLBACK)), Why.AFTER_RESTORE)
    done = log.do(end("T1", first, COMMIT, from_check=True))
    assert isinstance(done, Settled)
    assert done.committed
    check(log.state)


def test_checks_go_on_until_a_rollback_and_an_operator_can_ask_again() -> None:
    log = CoreLog()
    first = sent(log.do(half("T1")))
    restored(log, "redo")
    log.session(producer(1, log.now_ms))
    (asked,) = [one for one in log.run_to(log.now_ms + 7_000) if isinstance(one, SendCheck)]
    assert asked.tx_id == "T1"
    refused(log.do(end("T1", first, ROLLBACK, from_check=True)), Why.AFTER_RESTORE)
    assert "T1" not in log.state.producer_groups["PG"].session.in_flight, "the check was answered"
    assert not [one for one in log.run_to(log.now_ms + 3_600_000) if isinstance(one, SendCheck)]
    assert isinstance(log.do(CheckNow("PG", "T1")), Asked)
    assert parked(log, "T1") is None
    refused(log.do(end("T1", first, ROLLBACK, from_check=True)), Why.AFTER_RESTORE)
    assert parked(log, "T1") is ParkedBecause.RESTORED
    check(log.state)


@pytest.mark.parametrize("kept", KEPT)
def test_what_is_prepared_after_the_restore_is_rolled_back_as_ever(kept: str) -> None:
    log = CoreLog()
    sent(log.do(half("T1")))
    restored(log, kept)
    after = sent(log.do(half("T2")))
    done = log.do(end("T2", after, ROLLBACK))
    assert isinstance(done, Settled)
    assert not done.committed


def test_a_transaction_with_halves_from_before_and_after_is_from_before() -> None:
    log = CoreLog()
    sent(log.do(part("T1", 1)))
    restored(log)
    later = log.do(part("T1", 0))
    assert isinstance(later, Sent)
    refused(log.do(end("T1", later, ROLLBACK)), Why.AFTER_RESTORE)
    first = log.state.producer_groups["PG"].undecided["T1"].halves[0]
    assert first.half_index >= log.state.restored_half_index, "the first one by number came after the restore"


def test_a_coordinator_that_presumes_an_abort_is_not_believed_either() -> None:
    log = CoreLog()
    epoch = log.do(TakeEpoch("PG", "transfers", "one"))
    assert isinstance(epoch, EpochTaken)
    sent(log.do(part("T1", 0, 1, HMQ_COORDINATOR=f"{epoch.epoch} transfers")))
    restored(log)
    again = log.do(TakeEpoch("PG", "transfers", "two"))
    assert isinstance(again, EpochTaken)
    known = log.state.producer_groups["PG"].undecided["T1"]
    assert known.coordinator is not None
    asked = end("T1", None, ROLLBACK, half_index=ANY_HALF, log_offset=ANY_HALF)
    by = changed(known.coordinator, epoch=again.epoch)
    asked = changed(asked, coordinator=by, decided_by=DecidedBy.COORDINATOR)
    refused(log.do(asked), Why.AFTER_RESTORE)
    assert isinstance(log.do(changed(asked, wanted=COMMIT)), Settled)


def test_no_process_of_a_coordinator_gets_an_epoch_that_the_lost_log_gave() -> None:
    log = CoreLog()
    assert log.do(TakeEpoch("PG", "transfers", "one")) == EpochTaken(1)
    lost = CoreLog()
    lost.do(TakeEpoch("PG", "transfers", "one"))
    assert lost.do(TakeEpoch("PG", "transfers", "two")) == EpochTaken(2, "one")
    restored(log)
    taken = log.do(TakeEpoch("PG", "transfers", "three"))
    assert taken == EpochTaken(2 + limits.RESTORE_EPOCHS_SKIPPED, "one")


def test_a_policy_that_rolls_back_parks_instead() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, check_interval_ms=1_000))
    log.do(SetProducer(ProducerSettings("PG", 2, PastLimit.ROLLBACK, set_by="ada")))
    sent(log.do(half("T1")))
    restored(log)
    sent(log.do(half("T2")))
    log.session(producer(1, log.now_ms))
    acted: list[PolicyActed] = []
    for _ in range(200):
        for effect in log.run_to(log.now_ms + 500):
            if isinstance(effect, SendCheck):
                log.session(CheckDelivered(effect.group, effect.tx_id, effect.checks, log.now_ms))
            if isinstance(effect, PolicyActed):
                acted.append(effect)
    assert {(one.tx_id, one.because, one.rolled_back) for one in acted} == {
        ("T1", ParkedBecause.RESTORED, False), ("T2", ParkedBecause.CHECKS, True),
    }  # fmt: skip
    assert [one.tx_id for one in log.of(RolledBack)] == ["T2"]
    assert parked(log, "T1") is ParkedBecause.RESTORED
    check(log.state)


def test_a_batch_of_a_query_that_a_later_run_supersedes_is_rolled_back() -> None:
    log = CoreLog()
    batch = QueryBatch("q1", 0, "r1")
    first = sent(log.do(half_batch(batch)))
    restored(log)
    refused(log.do(end(batch.tx_id, first, ROLLBACK)), Why.AFTER_RESTORE)
    sent(log.do(half_batch(batch._replace(run="r2"))))
    assert [one.tx_id for one in log.of(RolledBack)] == [batch.tx_id]


@pytest.mark.parametrize("kept", KEPT)
def test_offsets_past_the_end_of_a_queue_become_its_end(kept: str) -> None:
    log = CoreLog()
    sent(log.do(message("M1")))
    log.do(EnsureGroup("readers"))
    for queue, offset in ((0, 7), (1, 0), (2, 3)):
        assert log.do(CommitOffset("readers", "orders", queue, offset)) == Done()
    topic_id = log.state.topics_by_name["orders"].topic_id
    assert log.state.offsets["readers"] == {(topic_id, 0): 7, (topic_id, 1): 0, (topic_id, 2): 3}
    restored(log, kept)
    assert log.state.offsets["readers"] == {(topic_id, 0): 1, (topic_id, 1): 0, (topic_id, 2): 0}
    # A consumer that still runs says what it knows of the store before.
    log.do(CommitOffset("readers", "orders", 0, 9))
    log.do(CommitOffset("readers", "orders", 3, 9))
    log.later(5_000)
    log.tick()
    assert log.state.offsets["readers"] == {(topic_id, 0): 1, (topic_id, 1): 0, (topic_id, 2): 0, (topic_id, 3): 0}
    assert log.of(OffsetsCommitted)
    assert durable_digest(log.redone()) == durable_digest(log.state)
    assert durable_digest(load_rows(log.settings, log.snapshot())) == durable_digest(log.state)


def test_a_store_that_was_never_restored_has_none_of_this() -> None:
    log = CoreLog()
    first = sent(log.do(half("T1")))
    assert log.state.restored_half_index == -1
    assert isinstance(log.do(end("T1", first, ROLLBACK)), Settled)
    log.do(EnsureGroup("readers"))
    log.do(CommitOffset("readers", "orders", 0, 9))
    assert list(log.state.offsets["readers"].values()) == [9]
    assert isinstance(log.do(end("T1", first, UNKNOWN)), object)


def test_a_restore_may_begin_a_segment() -> None:
    log = CoreLog()
    sent(log.do(half("T1")))
    segment = log.settings.segment_bytes
    before = log.state.log_end
    sent(log.do(message("M0000")))
    more = log.state.log_end - before - len(b"body")
    for number in range(1, 100):
        left = segment - log.state.log_end % segment
        if left < 20_000:
            break
        sent(log.do(message(f"M{number:04}", body=bytes(8_000))))
    sent(log.do(message("M0100", body=bytes(left - more - 64))))
    assert 0 < segment - log.state.log_end % segment < 112
    start = log.state.log_end
    restored(log)
    assert [type(one).__name__ for one in log.batches[-1].records] == ["Base", "Restored"]
    assert log.batches[-1].offset == -(-start // segment) * segment
    assert durable_digest(log.redone()) == durable_digest(log.state)
