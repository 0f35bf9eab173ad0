"""How many queries the broker knows, and how they go away (issue 28, 2.3)."""

from typing import Any

import pytest
from tests.support.core_log import CoreLog, half_batch, refused, sent, winner
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.base import base_payload
from halfmq.core.commands import (
    Actor,
    DecideBatch,
    EnsureGroup,
    FindDecision,
    ForgetQuery,
    RequestedVerdict,
    ResolveTransaction,
    SetGroup,
)
from halfmq.core.decision import BatchDecided, DecisionFound, Done, QueryRemoved, Refused, Why
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import Decided, HalfBatch, OperatorActed, QueryForgotten
from halfmq.model.settings import NAMED_PART, QUERIES_PART, BrokerSettings, base_bytes_max

DIGEST = b"d" * 16
ADA = Actor("ada", "a test", "10.0.0.1:5")
SEGMENT = 65_536


def batch(name: str, number: int = 0, topic: str = "T", run: str = "r1") -> QueryBatch:
    return QueryBatch(name, number, run, topic)


def decide(log: CoreLog, one: QueryBatch, digest: bytes = DIGEST) -> Any:
    return log.do(DecideBatch(1, "PG", one, digest, ()))


def flood(log: CoreLog, prefix: str = "stranger") -> tuple[int, str]:
    """Decide batches of new queries with the longest names until one is refused: (number, the refusal's text)."""
    for number in range(100_000):
        name = f"{prefix}{number}".ljust(40, "x")
        reply = decide(log, batch(name, topic="t" * 127))
        if not isinstance(reply, BatchDecided):
            return number, refused(reply, Why.LIMIT_REACHED).text
    raise AssertionError


def assert_survives(log: CoreLog) -> None:
    check(log.state)
    check(log.redone())
    check(log.reloaded(log.snapshot()))
    log.roll()
    log.redone()


def test_names_that_strangers_make_up_leave_space_for_topics_groups_and_the_operators() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT))
    sent(log.do(half_batch(batch("mine"))))
    count, text = flood(log)
    assert count >= 2
    assert "`halfmq query list` shows them, and `halfmq query forget` removes one" in text
    assert log.state.derived.queries_bytes <= QUERIES_PART.bytes_max(SEGMENT)
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes <= NAMED_PART.bytes_max(SEGMENT)
    assert log.do(EnsureGroup("consumers")) == Done()
    refused(log.do(half_batch(batch("late"))), Why.LIMIT_REACHED)
    for number in range(1, limits.QUERY_DECISIONS_MAX + 3):
        reply = decide(log, batch("mine", number))
        assert isinstance(reply, BatchDecided), "what the broker knows goes on"
    assert decide(log, batch("mine", number)).repeated
    assert log.state.derived.queries_bytes <= QUERIES_PART.bytes_max(SEGMENT)
    assert {record.is_whole for record in log.of(QueryForgotten)} == {False}
    assert_survives(log)
    refused(decide(log, batch("later")), Why.LIMIT_REACHED)


def test_queries_do_not_use_the_part_of_the_operators() -> None:
    """Topics that clients name have taken their part: no query takes from the rest."""
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT))
    mine = batch("mine")
    for number in range(1_000):
        reply = log.do(half_batch(mine, f"0.{number}", topic=f"{number}".rjust(127, "t")))
        if isinstance(reply, Refused):
            break
    before = log.state.derived.base_bytes
    assert NAMED_PART.bytes_max(SEGMENT) - 500 < before <= NAMED_PART.bytes_max(SEGMENT)
    text = refused(decide(log, batch("new".ljust(40, "w"), topic="t" * 127)), Why.LIMIT_REACHED).text
    assert "items that clients create by naming them" in text
    assert isinstance(decide(log, mine), BatchDecided), "what is known goes on"
    assert log.do(SetGroup("by-hand", by=ADA)) == Done()
    assert before < log.state.derived.base_bytes <= base_bytes_max(SEGMENT)
    assert_survives(log)


def test_number_of_queries_has_a_maximum() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20, queries_max=2))
    for name in ("a", "b"):
        decide(log, batch(name))
    text = refused(decide(log, batch("a", topic="other", run="r2")), Why.LIMIT_REACHED).text
    assert text.startswith(
        "query a, topic other was not accepted: this broker knows 2 queries, and may know 2 (--queries-max)"
    )
    assert log.do(ForgetQuery("b", "T", ADA)) == QueryRemoved("b", "T", 0)
    assert isinstance(decide(log, batch("a", topic="other", run="r2")), BatchDecided)


def test_query_without_a_decision_goes_after_its_time_and_others_stay() -> None:
    log = CoreLog()
    for name in ("unused", "undecided", "decided"):
        sent(log.do(half_batch(batch(name))))
    log.do(ResolveTransaction("PG", batch("unused").tx_id, RequestedVerdict.ROLLBACK, "ada"))
    command = half_batch(batch("decided"))
    log.do(DecideBatch(1, "PG", batch("decided"), DIGEST, (winner(command),)))
    log.later(limits.QUERY_UNUSED_MS - 1_000)
    log.run_to(log.now_ms)
    assert log.of(QueryForgotten) == []
    log.restart()
    check(log.state)
    log.run_to(log.now_ms + limits.QUERY_UNUSED_MS + 1_000)
    assert [(one.name, one.is_whole) for one in log.of(QueryForgotten)] == [("unused", True)]
    assert [name for name, _ in log.state.queries] == ["undecided", "decided"]
    assert_survives(log)
    sent(log.do(half_batch(batch("unused", run="r2"))))


def test_idle_query_keeps_its_last_decision_and_promise_3_holds() -> None:
    log = CoreLog()
    for number in range(5):
        decide(log, batch("idle", number))
    before = log.state.derived.queries_bytes
    log.run_to(log.now_ms + limits.QUERY_IDLE_MS + 1_000)
    (record,) = log.of(QueryForgotten)
    assert (record.name, record.is_whole) == ("idle", False)
    assert log.state.derived.queries_bytes < before
    assert_survives(log)
    assert decide(log, batch("idle", 4, run="r2")).repeated
    refused(decide(log, batch("idle", 4, run="r2"), b"o" * 16), Why.VERDICT_CONFLICT)
    refused(decide(log, batch("idle", 3, run="r2")), Why.VERDICT_CONFLICT)
    assert log.do(FindDecision(1, batch("idle", 3, run="r2"))) == DecisionFound(True, b"", -1, 4)
    log.run_to(log.now_ms + 2 * limits.QUERY_IDLE_MS)
    assert len(log.of(QueryForgotten)) == 1, "nothing more to forget"
    assert isinstance(decide(log, batch("idle", 5)), BatchDecided)


def test_operator_lets_a_query_be_forgotten_and_the_log_says_who() -> None:
    log = CoreLog()
    decide(log, batch("app", topic="orders"))
    decide(log, batch("app", topic="stock", run="r2"))
    assert log.do(ForgetQuery("app", "orders", ADA)) == QueryRemoved("app", "orders", 0)
    acted, forgotten = log.records[-2:]
    assert isinstance(acted, OperatorActed)
    assert (acted.subject, acted.name, acted.reason) == ("query app, topic orders", "ada", "a test")
    assert isinstance(forgotten, QueryForgotten)
    assert [query.topic for query in log.state.queries.values()] == ["stock"]
    assert_survives(log)
    refused(log.do(ForgetQuery("app", "orders", ADA)), Why.NOT_FOUND)
    assert isinstance(decide(log, batch("app", topic="orders", run="r3")), BatchDecided), "written again"
    assert len(log.of(Decided)) == 3


def test_query_at_work_is_not_forgotten() -> None:
    log = CoreLog()
    sent(log.do(half_batch(batch("app"))))
    text = refused(log.do(ForgetQuery("app", "T", ADA)), Why.NOT_NOW).text
    assert "1 undecided batches" in text
    assert batch("app").tx_id in text
    log.do(ResolveTransaction("PG", batch("app").tx_id, RequestedVerdict.ROLLBACK, "ada"))
    assert log.do(ForgetQuery("app", "T", ADA)) == QueryRemoved("app", "T", -1)
    assert log.of(HalfBatch)


@pytest.mark.parametrize("name", ["unknown", ""])
def test_query_that_is_unknown_is_said(name: str) -> None:
    refused(CoreLog().do(ForgetQuery(name, "", ADA)), Why.NOT_FOUND)
