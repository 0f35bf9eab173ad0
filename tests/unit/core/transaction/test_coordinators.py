"""Which process of somebody else's coordinator may prepare and settle, and that nobody else settles for it (decision 0067)."""

from typing import Any

import pytest
from tests.support.core_log import CoreLog, changed, end, half, half_batch, part, producer, refused, sent
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.base import base_payload
from halfmq.core.base_bytes import coordinator_bytes
from halfmq.core.commands import (
    Actor,
    CopyForward,
    ForgetCoordinator,
    RequestedVerdict,
    ResolveTransaction,
    SetProducer,
    SetTopic,
    TakeEpoch,
    TrimLog,
)
from halfmq.core.decision import CoordinatorForgotten, Done, EpochTaken, Noted, Refused, Settled, Why
from halfmq.core.transaction.listing import undecided_of_coordinator
from halfmq.core.transaction.story import story
from halfmq.model.coordinator import Coordinator, parse_coordinator
from halfmq.model.ids import ANY_HALF
from halfmq.model.records import Committed, CoordinatorEpoch, CopiedHalf, DecidedBy, OperatorActed, Parked, RolledBack
from halfmq.model.settings import COORDINATORS_PART, BrokerSettings, PastLimit, ProducerSettings

NAME = "transfers"
KEY = "PG", NAME
ADA = Actor("ada", "a test", "10.0.0.1:5")
COMMIT, ROLLBACK, UNKNOWN = RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK, RequestedVerdict.UNKNOWN


def take(log: CoreLog, by: str, name: str = NAME, group: str = "PG") -> int:
    reply = log.do(TakeEpoch(group, name, by))
    assert isinstance(reply, EpochTaken), reply
    return reply.epoch


def prepare(
    log: CoreLog, tx_id: str, epoch: int, *, name: str = NAME, count: int = 1, index: int = 0, **more: str
) -> Any:
    return log.do(part(tx_id, index, count, HMQ_COORDINATOR=f"{epoch} {name}", **more))


def settle(log: CoreLog, tx_id: str, epoch: int, wanted: RequestedVerdict = COMMIT, *, name: str = NAME) -> Any:
    """By the id alone."""
    asked = end(tx_id, None, wanted, half_index=ANY_HALF, log_offset=ANY_HALF)
    return log.do(changed(asked, coordinator=Coordinator(name, epoch), decided_by=DecidedBy.COORDINATOR))


def undecided(log: CoreLog, listed_max: int = 1_000) -> list[str]:
    """The ids on all pages."""
    found, first = [], 0
    while True:
        total, first, rows = undecided_of_coordinator(log.state, KEY, listed_max, log.now_ms, first)
        found += [row.tx_id for row in rows]
        assert {row.coordinator for row in rows} <= {NAME}
        if not first:
            assert total == len(found)
            return found


def test_each_process_gets_a_higher_epoch_and_the_same_one_if_it_asks_again() -> None:
    log = CoreLog()
    assert take(log, "a") == 1
    assert take(log, "a") == 1, "the answer was lost"
    assert take(log, "b") == 2
    assert take(log, "a", "others") == 3, "epochs rise over all coordinators"
    assert take(log, "a", group="G2") == 4
    assert [(one.name, one.epoch, one.taken_by) for one in log.of(CoordinatorEpoch)] == [
        (NAME, 1, "a"), (NAME, 2, "b"), ("others", 3, "a"), (NAME, 4, "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("kept", ["redo", "snapshot", "base"])
def test_epochs_and_what_waits_for_them_survive_a_start(kept: str) -> None:
    log = CoreLog()
    take(log, "a")
    epoch = take(log, "b")
    sent(prepare(log, "T1", epoch))
    log.later(60_000)
    for _ in range(2):
        log.roll()
    if kept == "base":
        start = next(
            offset
            for offset in log.state.bases
            if offset > log.state.producer_groups["PG"].undecided["T1"].halves[0].offset
        )
        while log.do(CopyForward(start, 100)) == Done(again=True):
            pass
        assert log.do(TrimLog(start)) == Done()
        (copied,) = log.of(CopiedHalf)
        assert copied.coordinator == Coordinator(NAME, epoch)
        assert not [one for batch in log.remaining() for one in batch.records if isinstance(one, CoordinatorEpoch)]
    log.state = log.reloaded(log.snapshot()) if kept == "snapshot" else log.redone()
    check(log.state)
    assert undecided(log) == ["T1"]
    refused(prepare(log, "T2", epoch - 1), Why.SUPERSEDED)
    refused(settle(log, "T1", epoch - 1), Why.SUPERSEDED)
    assert take(log, "b") == epoch, "it is known who took it"
    assert take(log, "c") == epoch + 1
    assert settle(log, "T1", epoch + 1).committed
    check(log.state)


@pytest.mark.parametrize(("epoch", "says"), [(1, "b took over with epoch 2"), (3, "never this one")])
def test_what_another_epoch_sends_is_refused_before_anything_is_written(epoch: int, says: str) -> None:
    log = CoreLog()
    take(log, "a")
    take(log, "b")
    sent(prepare(log, "T1", 2))
    sent(prepare(log, "T2", 2))
    settle(log, "T2", 2)
    before = log.state.log_end
    for reply in (
        prepare(log, "T3", epoch),
        prepare(log, "T1", epoch),
        prepare(log, "new-topic", epoch, topic="never-made"),
        settle(log, "T1", epoch),
        settle(log, "T1", epoch, ROLLBACK),
        settle(log, "T1", epoch, UNKNOWN),
        settle(log, "T2", epoch),
        settle(log, "T4", epoch),
    ):
        assert says in refused(reply, Why.SUPERSEDED).text
    assert log.state.log_end == before
    assert "never-made" not in log.state.topics_by_name
    assert "no such coordinator" in refused(prepare(log, "T3", 1, name="other"), Why.SUPERSEDED).text


def test_the_newest_epoch_settles_by_the_id_alone_what_earlier_ones_prepared_and_the_first_verdict_stands() -> None:
    log = CoreLog()
    take(log, "a")
    for tx_id in ("T1", "T2"):
        sent(prepare(log, tx_id, 1))
    take(log, "b")
    first = settle(log, "T1", 2)
    assert (first.committed, first.repeated) == (True, False)
    assert settle(log, "T1", 2) == changed(first, repeated=True)
    assert refused(settle(log, "T1", 2, ROLLBACK), Why.VERDICT_CONFLICT).standing == "COMMITTED"
    assert settle(log, "T2", 2, ROLLBACK).committed is False
    assert [one.decided_by for one in (*log.of(Committed), *log.of(RolledBack))] == [DecidedBy.COORDINATOR] * 2
    assert "decided by its coordinator" in story(log.state, "PG", "T1", log.now_ms)[0]
    refused(settle(log, "T9", 2), Why.NOT_FOUND)
    check(log.state)


def test_an_incomplete_transaction_is_not_committed_and_is_rolled_back() -> None:
    log = CoreLog()
    take(log, "a")
    sent(prepare(log, "T1", 1, count=0))
    take(log, "b")
    refused(settle(log, "T1", 2), Why.INCOMPLETE)
    refused(prepare(log, "T1", 2, index=1, count=2), Why.STILL_UNDECIDED)
    assert settle(log, "T1", 2, ROLLBACK).committed is False


def test_a_half_of_another_coordinator_or_of_none_does_not_join() -> None:
    log = CoreLog()
    take(log, "a")
    take(log, "a", "other")
    sent(prepare(log, "T1", 1, count=0))
    for reply in (
        prepare(log, "T1", 2, name="other", index=1, count=2),
        log.do(part("T1", 1, 2)),
        log.do(half_batch("T1", "", index=1)),
    ):
        refused(reply, Why.STILL_UNDECIDED)
    sent(log.do(part("T2", 0)))
    refused(prepare(log, "T2", 1, index=1, count=2), Why.STILL_UNDECIDED)
    check(log.state)


def test_nobody_else_settles_it_but_an_operator() -> None:
    """Seen: recovery answered a check with ROLLBACK while the coordinator logged its commit."""
    log = CoreLog()
    take(log, "a")
    take(log, "a", "other")
    place = prepare(log, "T1", 1)
    for by in (DecidedBy.PRODUCER, DecidedBy.CHECK, DecidedBy.MARKER):
        for wanted in (COMMIT, ROLLBACK):
            asked = changed(end("T1", place, wanted), decided_by=by)
            assert f"its coordinator '{NAME}' alone" in refused(log.do(asked), Why.OF_COORDINATOR).text
    assert isinstance(log.do(end("T1", place, UNKNOWN)), Noted)
    refused(settle(log, "T1", 2, name="other"), Why.OF_COORDINATOR)
    sent(log.do(half("T2")))
    refused(settle(log, "T2", 1), Why.OF_COORDINATOR)
    assert undecided(log) == ["T1"]
    settled = log.do(ResolveTransaction("PG", "T1", COMMIT, "ada", by=ADA))
    assert isinstance(settled, Settled)
    assert refused(settle(log, "T1", 1, ROLLBACK), Why.VERDICT_CONFLICT).standing == "COMMITTED"
    assert undecided(log) == []
    check(log.state)


def test_checks_wait_for_its_grace_period_and_a_parked_one_is_settled_by_its_coordinator() -> None:
    log = CoreLog()
    log.do(SetProducer(ProducerSettings("PG", 0, PastLimit.WAIT, 300_000)))
    log.session(producer(1, log.now_ms))
    take(log, "a")
    sent(prepare(log, "T1", 1, CHECK_IMMUNITY_TIME_IN_SECONDS="60"))
    assert log.checks_after(59_900) == [], "grace"
    take(log, "b")
    assert story(log.state, "PG", "T1", log.now_ms)[-1] == (
        "It waits for its coordinator transfers; it was prepared in epoch 1 (b took over with epoch 2). A check cannot settle it, and an operator can."
    )
    assert [one.tx_id for one in log.checks_after(1_000)] == ["T1"]
    log.run_to(log.now_ms + 600_000)
    assert log.of(Parked)
    assert "It waits for its coordinator" in story(log.state, "PG", "T1", log.now_ms)[-1]
    assert settle(log, "T1", 2).committed
    check(log.state)


def test_all_pages_have_every_transaction_whatever_is_settled_between_them() -> None:
    log = CoreLog()
    take(log, "a")
    ids = [f"T{number}" for number in range(9)]
    for tx_id in ids:
        sent(prepare(log, tx_id, 1))
        sent(log.do(half(f"{tx_id}-other")))
    assert undecided(log, 2) == ids
    _, first, rows = undecided_of_coordinator(log.state, KEY, 4, log.now_ms, 0)
    for tx_id in ("T0", "T4"):
        settle(log, tx_id, 1)
    _, first, more = undecided_of_coordinator(log.state, KEY, 4, log.now_ms, first)
    assert [row.tx_id for row in (*rows, *more)] == ["T0", "T1", "T2", "T3", "T5", "T6", "T7", "T8"]
    assert first == 0
    assert {(row.coordinator, row.epoch) for row in more} == {(NAME, 1)}


def test_a_forgotten_coordinator_never_gets_an_epoch_of_its_past() -> None:
    log = CoreLog()
    forget = ForgetCoordinator("PG", NAME, ADA)
    refused(log.do(forget), Why.NOT_FOUND)
    take(log, "a")
    sent(prepare(log, "T1", 1))
    assert "T1" in refused(log.do(forget), Why.NOT_NOW).text
    settle(log, "T1", 1)
    before = log.state.derived.base_bytes
    assert log.do(forget) == CoordinatorForgotten(1)
    assert log.state.derived.base_bytes < before
    (acted,) = log.of(OperatorActed)
    assert (acted.subject, acted.name, acted.reason) == (NAME, "ada", "a test")
    refused(settle(log, "T1", 1), Why.SUPERSEDED)
    log.roll()
    start = max(log.state.bases)
    log.later(log.settings.dedup_window_ms)
    while log.do(CopyForward(start, 100)) == Done(again=True):
        pass
    assert log.do(TrimLog(start)) == Done()
    log.state = log.redone()
    check(log.state)
    assert take(log, "b") == 2
    refused(prepare(log, "T2", 1), Why.SUPERSEDED)


def test_a_group_has_as_many_coordinators_as_it_may_and_all_of_them_a_part_of_a_base() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 18))
    for number in range(limits.COORDINATORS_PER_GROUP_MAX):
        take(log, "a", f"c{number}")
    text = refused(log.do(TakeEpoch("PG", "more", "a")), Why.LIMIT_REACHED).text
    assert "`halfmq coordinator forget`" in text
    take(log, "b", "c0")
    for number in range(limits.COORDINATORS_MAX):
        reply = log.do(TakeEpoch(f"G{number}", "c".ljust(64, "x"), "t" * limits.EPOCH_TAKER_BYTES_MAX))
        if isinstance(reply, Refused):
            break
    assert f"of {COORDINATORS_PART.bytes_max(1 << 18)} bytes in the base" in refused(reply, Why.LIMIT_REACHED).text
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes
    check(log.state)
    take(log, "b", "c1")


@pytest.mark.parametrize("limit", ["COORDINATORS_PER_GROUP_MAX", "COORDINATORS_MAX"])
def test_a_new_coordinator_takes_the_place_of_the_one_that_is_idle_for_longest(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: 64 groups with 16 made-up names each locked every new coordinator out, for ever."""
    monkeypatch.setattr(limits, limit, 3)
    log = CoreLog()
    for name in ("busy", "taken-again", "idle"):
        take(log, "a", name)
    take(log, "b", "taken-again")
    sent(prepare(log, "T1", 1, name="busy"))
    log.later(limits.COORDINATOR_IDLE_MS)
    text = refused(log.do(TakeEpoch("PG", "new", "a")), Why.LIMIT_REACHED).text
    assert "gives way 60 minutes after" in text
    assert "`halfmq coordinator list`" in text
    assert "`halfmq coordinator forget`" in text
    log.later(1)
    assert log.do(TakeEpoch("PG", "new", "a")) == EpochTaken(5, gave_way=(("PG", "idle"),))
    assert [(one.name, one.epoch) for one in log.of(CoordinatorEpoch)][-2:] == [("idle", 0), ("new", 5)]
    assert "gave way" in refused(prepare(log, "T2", 3, name="idle"), Why.SUPERSEDED).text
    assert log.do(TakeEpoch("PG", "newer", "a")) == EpochTaken(6, gave_way=(("PG", "taken-again"),))
    refused(log.do(TakeEpoch("PG", "newest", "a")), Why.LIMIT_REACHED)
    check(log.state)
    log.state = log.redone()
    check(log.state)
    assert sorted(name for _, name in log.state.coordinators) == ["busy", "new", "newer"]
    assert settle(log, "T1", 1, name="busy").committed
    assert log.do(TakeEpoch("PG", "idle", "c")) == EpochTaken(7, gave_way=(("PG", "busy"),)), "never one of its past"
    refused(prepare(log, "T2", 3, name="idle"), Why.SUPERSEDED)


def test_as_many_give_way_as_the_part_of_a_base_needs() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 18))
    for number in range(limits.COORDINATORS_MAX):
        if isinstance(log.do(TakeEpoch(f"G{number}", "c", "a")), Refused):
            break
    log.later(limits.COORDINATOR_IDLE_MS + 1)
    most = COORDINATORS_PART.bytes_max(1 << 18)
    reply = log.do(TakeEpoch("G" * limits.GROUP_CHARS_MAX, "c" * limits.COORDINATOR_NAME_CHARS_MAX, "a"))
    assert reply.gave_way == (("G0", "c"), ("G1", "c"), ("G2", "c"))
    assert sum(coordinator_bytes(*item) for item in log.state.coordinators.items()) <= most
    check(log.state)


def test_none_of_another_group_gives_way_to_one_of_a_full_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COORDINATORS_PER_GROUP_MAX", 1)
    log = CoreLog()
    take(log, "a", group="other")
    log.later(limits.COORDINATOR_IDLE_MS + 1)
    take(log, "a")
    refused(log.do(TakeEpoch("PG", "more", "a")), Why.LIMIT_REACHED)


def test_a_coordinator_is_taken_over_also_where_a_base_has_no_space() -> None:
    """Else nobody would settle what it has prepared."""
    log = CoreLog(BrokerSettings(segment_bytes=1 << 18))
    take(log, "a")
    number = 0
    while log.do(SetTopic(f"fill-{number}".ljust(100, "x"), 1, 1, 6)) == Done():
        number += 1
    assert "base" in refused(log.do(TakeEpoch("PG", "more", "a")), Why.LIMIT_REACHED).text
    for by in ("t" * limits.EPOCH_TAKER_BYTES_MAX, "\u00e9" * (limits.EPOCH_TAKER_BYTES_MAX // 2), "b"):
        take(log, by)
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes
    check(log.state)


def test_a_coordinator_has_as_many_undecided_transactions_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_UNDECIDED_MAX", 2)
    log = CoreLog()
    take(log, "a")
    sent(prepare(log, "T1", 1, count=0))
    sent(prepare(log, "T2", 1))
    assert "as many as it may" in refused(prepare(log, "T3", 1), Why.LIMIT_REACHED).text
    sent(prepare(log, "T1", 1, index=1, count=2))
    sent(log.do(part("T4", 0, 1)))
    settle(log, "T2", 1)
    sent(prepare(log, "T3", 1))


def test_halves_that_come_back_out_of_order_are_one_transaction() -> None:
    """After a trim a copy of the first half may come behind that of the second one; its number is the lowest of both."""
    log = CoreLog()
    take(log, "a")
    sent(prepare(log, "T1", 1, count=0))
    sent(prepare(log, "T1", 1, index=1, count=2))
    assert list(log.state.derived.undecided_of_coordinator[KEY].values()) == ["T1"]
    assert undecided(log) == ["T1"]
    check(log.state)
    for number in (2, 1, 0):
        sent(prepare(log, "T2", 1, index=number, count=3 * (number == 2)))
        check(log.state)
    assert undecided(log) == ["T1", "T2"]


def test_a_store_without_coordinators_has_the_bases_of_earlier_versions() -> None:
    log = CoreLog()
    before = base_payload(log.state)
    take(log, "a")
    assert base_payload(log.state) != before
    log.do(ForgetCoordinator("PG", NAME, ADA))
    assert base_payload(log.state) != before, "the highest epoch stays"


@pytest.mark.parametrize(
    "text", ["", "5", "5 ", " a", "a 5", "-1 a", "5  a", "5 a b", "5 " + "a" * 65, "9" * 19 + " a", "5 ä", "\u0665 a"]
)
def test_a_half_whose_coordinator_is_malformed_is_refused(text: str) -> None:
    assert parse_coordinator(text) is None
    if text:
        refused(CoreLog().do(part("T1", 0, 1, HMQ_COORDINATOR=text)), Why.INVALID_PARAMETER)


def test_the_text_of_a_coordinator_is_read_back() -> None:
    for one in (Coordinator("a", 1), Coordinator("A.b_c:d-" + "x" * 56, 10**17)):
        assert parse_coordinator(one.text) == one
