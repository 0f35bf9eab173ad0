"""Decisions on half batches and on batches of a query. The rules in one sentence: docs/promises.md, "A batch is decided once"."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, end, half, half_batch, part, producer, refused, sent, winner
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import (
    CopyForward,
    DecideBatch,
    EarlierVerdict,
    FindDecision,
    PrepareBatch,
    RequestedVerdict,
    ResolveTransaction,
    TrimLog,
)
from halfmq.core.decision import BatchDecided, DecisionFound, Done, Refused, Settled, Why
from halfmq.core.session import DiskSpace
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import CopiedHalfBatch, Decided, HalfBatch, RolledBack
from halfmq.model.settings import BrokerSettings

B0 = QueryBatch("q1", 0, "r1")
DIGEST, OTHER = b"d" * 16, b"o" * 16


def decide(log: CoreLog, batch: QueryBatch = B0, *won: list[PrepareBatch], digest: bytes = DIGEST) -> Any:
    return log.do(DecideBatch(1, "PG", batch, digest, tuple(winner(*found) for found in won)))


def prepared(
    log: CoreLog, batch: QueryBatch = B0, attempt: str = "0.1", count: int = 1, **options: Any
) -> list[PrepareBatch]:
    found = [half_batch(batch, attempt, index=index, **options) for index in range(count)]
    for command in found:
        sent(log.do(command))
    return found


def test_nothing_is_visible_before_the_decision_and_only_winners_after_it() -> None:
    log = CoreLog()
    one, lost = prepared(log, count=2), prepared(log, attempt="0.2", messages=5)
    other = prepared(log, attempt="1.3", messages=2, queue=1)
    topic = log.state.topics_by_name["orders"]
    assert topic.ends[:2] == [0, 0]
    reply = decide(log, B0, one, other)
    (record,) = log.of(Decided)
    assert reply == BatchDecided(record.offset, False)
    assert topic.ends[:2] == [6, 2]
    assert [(ref.queue_id, ref.queue_offset, ref.messages) for ref in record.refs] == [(0, 0, 3), (0, 3, 3), (1, 0, 2)]
    assert record.lost == (2,)
    assert log.state.derived.undecided_count == 0
    assert lost[0].facts.messages == 5


def test_messages_of_winners_follow_each_other_in_the_order_of_the_decision() -> None:
    """Not in that of their names, in which "10.10" comes before "2.2" (issue 28, 1.5)."""
    log = CoreLog()
    names = [f"{task}.{task}" for task in range(12)]
    found = {name: prepared(log, attempt=name, count=2) for name in reversed(names)}
    prepared(log, attempt="2.99")
    assert isinstance(decide(log, B0, *(found[name] for name in names)), BatchDecided)
    (record,) = log.of(Decided)
    name_of = {record.offset: (record.batch.attempt, record.index) for record in log.of(HalfBatch)}
    assert [name_of[ref.offset] for ref in record.refs] == [(name, index) for name in names for index in range(2)]
    assert [ref.queue_offset for ref in record.refs] == list(range(0, 72, 3))


def test_first_decision_wins_and_is_repeated_word_for_word() -> None:
    log = CoreLog()
    found = prepared(log)
    first = decide(log, B0, found)
    for won in ([found], [], [[half_batch(B0, "9.9")]]):
        assert decide(log, B0, *won) == BatchDecided(first.position, True)
    answer = refused(decide(log, B0, found, digest=OTHER), Why.VERDICT_CONFLICT)
    assert (answer.standing, answer.position) == ("COMMITTED", first.position)
    assert len(log.of(Decided)) == 1


def test_earlier_batch_counts_as_decided_and_its_content_is_unknown() -> None:
    log = CoreLog()
    decide(log, B0._replace(batch=7))
    refused(decide(log, B0._replace(batch=6)), Why.VERDICT_CONFLICT)
    refused(log.do(half_batch(B0._replace(batch=6))), Why.ALREADY_SETTLED)
    found = log.do(FindDecision(1, B0._replace(batch=6)))
    assert found == DecisionFound(True, b"", -1, 7)
    assert log.do(FindDecision(1, B0._replace(batch=8))) == DecisionFound(False, b"", -1, 7)
    assert log.do(FindDecision(1, B0._replace(query="unknown"))) == DecisionFound(False, b"", -1, -1)


def test_newest_decisions_are_remembered_and_older_ones_contradicted() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 18))
    for batch in range(limits.QUERY_DECISIONS_MAX + 5):
        assert isinstance(decide(log, B0._replace(batch=batch)), BatchDecided)
    assert decide(log, B0._replace(batch=5)).repeated
    refused(decide(log, B0._replace(batch=4)), Why.VERDICT_CONFLICT)


@pytest.mark.parametrize("wrong", ["half_batches", "messages", "checksum", "attempt"])
def test_winner_that_prepared_something_else_decides_nothing(wrong: str) -> None:
    log = CoreLog()
    found = winner(*prepared(log, count=2))
    value = "7.7" if wrong == "attempt" else getattr(found, wrong) + 1
    answer = refused(log.do(DecideBatch(1, "PG", B0, DIGEST, (found._replace(**{wrong: value}),))), Why.INCOMPLETE)
    assert "attempt" in answer.text
    assert log.state.derived.undecided_count == 1
    assert isinstance(log.do(DecideBatch(1, "PG", B0, DIGEST, (found,))), BatchDecided)


def test_half_batch_sent_again_gets_its_first_reply_and_other_content_is_refused() -> None:
    log = CoreLog()
    first = sent(log.do(half_batch()))
    assert sent(log.do(half_batch())) == first
    refused(log.do(half_batch(size=301)), Why.INVALID_PARAMETER)
    refused(log.do(half_batch(queue=1)), Why.INVALID_PARAMETER)
    refused(log.do(half_batch(index=2)), Why.INVALID_PARAMETER)
    assert len(log.of(HalfBatch)) == 1


def test_half_batches_of_attempts_that_come_in_turns_are_each_in_order() -> None:
    log = CoreLog()
    attempts = ("0.1", "1.2", "2.0")
    first = {(name, index): sent(log.do(half_batch(B0, name, index=index))) for index in range(3) for name in attempts}
    for name in (*attempts, "1.1"):
        refused(log.do(half_batch(B0, name, index=4)), Why.INVALID_PARAMETER)
    assert {place: sent(log.do(half_batch(B0, place[0], index=place[1]))) for place in first} == first
    (known,) = log.state.producer_groups["PG"].undecided.values()
    assert [(half.attempt, half.index) for half in known.halves] == sorted(first)


def test_new_run_rolls_back_the_old_one_and_refuses_what_it_still_sends() -> None:
    log = CoreLog()
    old = prepared(log, count=2)
    new_run = B0._replace(run="r2")
    new = prepared(log, new_run, messages=4)
    (gone,) = log.of(RolledBack)
    assert (gone.tx_id, gone.half_indexes) == (B0.tx_id, (0, 1))
    for command in (half_batch(index=2), DecideBatch(1, "PG", B0, DIGEST, (winner(*old),)), FindDecision(1, B0)):
        refused(log.do(command), Why.FENCED)
    assert isinstance(decide(log, new_run, new), BatchDecided)
    assert decide(log, B0, old).repeated, "a decision stands for every run"


def test_decision_of_a_new_run_rolls_back_the_old_one_too() -> None:
    log = CoreLog()
    prepared(log, count=2)
    prepared(log, B0._replace(batch=1))
    assert isinstance(decide(log, B0._replace(batch=1, run="r2")), BatchDecided)
    assert log.state.derived.undecided_count == 0
    assert log.state.derived.undecided_of_query == {}
    refused(log.do(half_batch(B0._replace(batch=2))), Why.FENCED)


def test_batch_that_was_rolled_back_cannot_be_prepared_again_by_its_run() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_ids_max=1))
    prepared(log)
    assert isinstance(log.do(ResolveTransaction("PG", B0.tx_id, RequestedVerdict.ROLLBACK, "ann")), Settled)
    for tx_id in ("T1", "T2"):  # out of the deduplication window
        log.do(end(tx_id, sent(log.do(half(tx_id)))))
    for state in (log.state, log.redone()):
        log.state = state
        answer = refused(log.do(half_batch()), Why.ALREADY_SETTLED)
        assert answer.standing == "ROLLED_BACK"
    found = prepared(log, B0._replace(run="r2"))
    assert isinstance(decide(log, B0._replace(run="r2"), found), BatchDecided)


def test_commit_by_verdict_is_refused_for_a_batch_of_a_query() -> None:
    log = CoreLog()
    reply = sent(log.do(half_batch()))
    refused(log.do(end(B0.tx_id, reply)), Why.INCOMPLETE)
    refused(log.do(ResolveTransaction("PG", B0.tx_id, RequestedVerdict.COMMIT, "ann")), Why.INCOMPLETE)
    assert isinstance(log.do(end(B0.tx_id, reply, RequestedVerdict.ROLLBACK)), Settled)


def test_transaction_of_half_batches_commits_once_it_is_complete() -> None:
    log = CoreLog()
    first = sent(log.do(half_batch("T1", "", index=0)))
    refused(log.do(end("T1", first)), Why.INCOMPLETE)
    refused(log.do(half_batch("T1", "", index=2, count=2)), Why.INVALID_PARAMETER)
    last = sent(log.do(half_batch("T1", "", index=1, count=2, queue=1)))
    reply = log.do(end("T1", last))
    assert isinstance(reply, Settled)
    assert reply.committed
    assert log.do(end("T1", first)) == Settled("PG", "T1", True, reply.position, True)
    assert log.state.topics_by_name["orders"].ends[:2] == [3, 3]
    refused(log.do(half_batch("T1", "", index=0)), Why.ALREADY_SETTLED)


@pytest.mark.parametrize("first", ["half", "half batch"])
def test_single_halves_and_half_batches_do_not_mix(first: str) -> None:
    log = CoreLog()
    commands = [part("T1", 0), half_batch("T1", "", index=1)]
    if first == "half batch":
        commands = [half_batch("T1", "", index=0), part("T1", 1)]
    sent(log.do(commands[0]))
    refused(log.do(commands[1]), Why.STILL_UNDECIDED)


def test_half_batches_of_an_older_segment_are_copied_before_the_decision_in_steps() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20))
    found = prepared(log, count=4, size=100_000)
    log.roll()
    steps = 0
    while decide(log, B0, found) == Done(again=True):
        steps += 1
    assert steps >= 2
    (record,) = log.of(Decided)
    assert [ref.offset for ref in record.refs] == [copy.offset for copy in log.of(CopiedHalfBatch)]
    assert [ref.first_offset for ref in record.refs] == [batch.offset for batch in log.of(HalfBatch)]
    assert log.state.ties == {}


def test_decisions_that_copy_at_the_same_time_all_come_to_an_end() -> None:
    """Each step of one fills the segment in which the copies of the others are (issue 28, 2.1): 3 x 0.3 of a segment, and other sends."""
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20))
    batches = [QueryBatch(f"q{number}", 0, "r1") for number in range(3)]
    found = {batch: prepared(log, batch, count=6, size=50_000) for batch in batches}
    log.roll()
    left, written = list(batches), log.state.log_end
    busy = QueryBatch("busy", 0, "r1")
    for turn in range(60):
        for batch in list(left):
            if isinstance(decide(log, batch, found[batch]), BatchDecided):
                left.remove(batch)
        if not left:
            break
        sent(log.do(half_batch(busy, index=turn, size=40_000)))
    assert left == []
    # Each half batch is copied at most once.
    copies = [copy.source for copy in log.of(CopiedHalfBatch)]
    assert len(copies) == len(set(copies)) <= 18
    assert log.state.log_end - written < 8 << 20
    check(log.state)


def test_batch_larger_than_half_a_segment_is_tied_and_the_next_one_begins_a_segment() -> None:
    log = CoreLog()
    found = [half_batch(index=index, size=9_000) for index in range(5)]
    for command in found:
        sent(log.do(command))
    log.roll()
    assert isinstance(decide(log, B0, found), BatchDecided)
    (record,) = log.of(Decided)
    assert log.state.ties == {record.offset: record.refs[0].offset}
    assert not log.of(CopiedHalfBatch)
    following = sent(log.do(half_batch(B0._replace(batch=1))))
    assert following.log_offset // 65_536 > record.offset // 65_536
    check(log.state)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_bytes_max=5_000))
    refused(log.do(half_batch(size=40_000)), Why.MESSAGE_ILLEGAL)
    refused(log.do(half_batch(size=6_000)), Why.LIMIT_REACHED)
    refused(log.do(half_batch(topic="%RETRY%CG")), Why.NO_PERMISSION)
    sent(log.do(half_batch()))
    refused(log.do(half_batch(index=1, queue=99)), Why.INVALID_PARAMETER)
    refused(log.do(half_batch(index=1, group="OTHER")), Why.WRONG_GROUP)
    log.session(DiskSpace(True))
    refused(log.do(half_batch(index=1)), Why.STORE_FULL)
    assert isinstance(decide(log, B0, [half_batch()]), BatchDecided), "a decision needs no new messages"


def test_number_of_half_batches_is_a_limit_for_which_waiting_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_HALF_BATCHES_MAX", 2)
    log = CoreLog()
    found = prepared(log, count=2)
    assert "send larger ones" in refused(log.do(half_batch(index=2)), Why.MESSAGE_ILLEGAL).text
    assert isinstance(decide(log, B0, found), BatchDecided)


def test_query_has_a_bounded_number_of_undecided_batches() -> None:
    log = CoreLog()
    for batch in range(limits.QUERY_UNDECIDED_MAX):
        prepared(log, B0._replace(batch=batch))
    refused(log.do(half_batch(B0._replace(batch=99))), Why.LIMIT_REACHED)
    assert isinstance(decide(log, B0._replace(batch=3), [half_batch(B0._replace(batch=3))]), BatchDecided)
    assert log.state.derived.undecided_count == limits.QUERY_UNDECIDED_MAX - 4
    prepared(log, B0._replace(batch=99))


def test_queries_are_bounded_by_the_size_of_a_base() -> None:
    log = CoreLog()
    reply: Any = None
    for number in range(100):
        reply = decide(log, QueryBatch(f"q{number}", 0, "r"))
        if isinstance(reply, Refused):
            break
    refused(reply, Why.LIMIT_REACHED)
    log.roll()
    assert decide(log, QueryBatch("q0", 0, "r")).repeated
    for batch in range(1, 105):
        assert isinstance(decide(log, QueryBatch("q0", batch, "r")), BatchDecided)
    log.roll()


def test_half_batch_whose_id_has_a_verdict_in_the_log_only_is_refused_with_it() -> None:
    """As for a half: with what the search found, if it is not trimmed; and not without a complete search."""
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    first = log.do(end("T1", sent(log.do(half_batch("T1", "", count=1)))))
    log.do(end("T2", sent(log.do(half_batch("T2", "", count=1)))))
    assert isinstance(first, Settled)
    again = half_batch("T1", "", count=1)
    refused(log.do(replace(again, searched_to=first.position)), Why.SEARCH_AGAIN)
    found = replace(again, searched_to=log.state.log_end, earlier=EarlierVerdict(True, first.position))
    answer = refused(log.do(found), Why.ALREADY_SETTLED)
    assert (answer.standing, answer.position) == ("COMMITTED", first.position)
    assert len(log.of(HalfBatch)) == 2
    log.state.log_start = first.position + 1
    sent(log.do(found))
    sent(log.do(half_batch("T3", "")))
    sent(log.do(replace(half_batch("T3", "", index=1, count=2), searched_to=1)))  # memory knows the transaction


def test_batch_is_checked_like_any_transaction_and_a_settled_one_is_not() -> None:
    log = CoreLog()
    log.session(producer(7, log.now_ms))
    found = prepared(log, grace_ms=1_000)
    assert [effect.tx_id for effect in log.checks_after(1_500)] == [B0.tx_id]
    decide(log, B0, found)
    assert log.checks_after(600_000) == []


def test_decision_survives_the_trim_of_its_segment() -> None:
    log = CoreLog()
    decide(log, B0, prepared(log))
    first = log.of(Decided)[0].offset
    slow = prepared(log, QueryBatch("slow", 0, "r1"))
    log.roll()
    log.roll()
    start = max(log.state.bases)
    assert log.do(CopyForward(start, 100)) == Done()
    assert log.do(TrimLog(start)) == Done()
    log.restart()
    assert log.state.log_start == start > first
    assert decide(log, B0) == BatchDecided(first, True)
    refused(decide(log, B0, digest=OTHER), Why.VERDICT_CONFLICT)
    assert isinstance(decide(log, QueryBatch("slow", 0, "r1"), slow), BatchDecided)


def test_query_that_is_over_is_forgotten_soon_and_writes_nothing_more() -> None:
    log = CoreLog()
    over = QueryBatch("once", 0, "r1")
    found = prepared(log, over)
    prepared(log, over._replace(batch=1))
    last = DecideBatch(1, "PG", over, DIGEST, (winner(*found),), True)
    first = log.do(last)
    assert [record.tx_id for record in log.of(RolledBack)] == ["once:1:r1"], "nothing is left undecided"
    refused(log.do(half_batch(over._replace(batch=2), "a")), Why.INVALID_PARAMETER)
    refused(decide(log, over._replace(batch=2)), Why.INVALID_PARAMETER)
    log.later(limits.QUERY_UNUSED_MS - 1)
    log.tick()
    assert log.do(last) == BatchDecided(first.position, True)
    log.later(1)
    log.tick()
    assert not log.state.queries
    log.restart()
    assert not log.state.queries


def test_query_that_is_over_is_forgotten_once_its_decision_is_trimmed() -> None:
    log = CoreLog()
    before = log.state.derived.base_bytes
    log.roll()
    log.roll()
    over = QueryBatch("once", 0, "r1")
    found = prepared(log, over)
    last = DecideBatch(1, "PG", over, DIGEST, (winner(*found),), True)
    first = log.do(last)
    decide(log, B0, prepared(log))
    assert log.do(last) == BatchDecided(first.position, True)
    decided_in = first.position - first.position % 65_536
    log.roll()
    for start in sorted(log.state.bases)[1:]:
        assert log.do(CopyForward(start, 100)) == Done()
        assert log.do(TrimLog(start)) == Done()
        log.restart()
        assert (("once", "") in log.state.queries) is (start <= decided_in), start
    assert list(log.state.queries) == [("q1", "")]
    assert decide(log, B0).repeated
    assert log.state.derived.base_bytes < before + 2 * 5_000
    check(log.state)
