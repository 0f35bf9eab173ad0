"""Which query a batch belongs to: name and topic, and one owner (issue 28, 1.5)."""

from typing import Any

import msgspec
import pytest
from tests.support.core_log import CoreLog, half_batch, refused, sent, winner
from tests.support.invariants import check

from halfmq.core import base, schema
from halfmq.core.commands import DecideBatch, FindDecision, RequestedVerdict, ResolveTransaction
from halfmq.core.decision import BatchDecided, DecisionFound, Done, Why
from halfmq.core.transaction.story import story
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import CopiedHalfBatch, Decided, HalfBatch, RolledBack

DIGEST = b"d" * 16
#: Two writes with one name and number, such as those of one ``foreachBatch``; as every write, each has a run of its own. One is of a
#: stream.
ORDERS = QueryBatch("app", 7, "r1", "orders")
STOCK = QueryBatch("app", 7, "r2", "stock", "s-2")
OLD = QueryBatch("app", 7, "r0")
STREAM = QueryBatch("app", 0, "r1", "orders", "s-1")


def write(log: CoreLog, batch: QueryBatch, digest: bytes = DIGEST) -> Any:
    """As the sink does: asks, prepares, decides."""
    found = log.do(FindDecision(1, batch))
    assert isinstance(found, DecisionFound)
    won = ()
    if not found.is_decided:
        command = half_batch(batch, topic=batch.topic if batch.topic not in ("", "*") else "orders")
        sent(log.do(command))
        won = (winner(command),)
    return log.do(DecideBatch(1, "PG", batch, digest, won))


def assert_survives(log: CoreLog) -> None:
    """A snapshot, the log, and a base lead to the same state."""
    check(log.state)
    for state in (log.redone(), log.reloaded(log.snapshot())):
        assert schema.query_rows(state, sorted) == schema.query_rows(log.state, sorted)
        check(state)
    log.roll()
    log.redone()


@pytest.mark.parametrize("second", [STOCK, STOCK._replace(topic="*")])
def test_one_number_of_one_name_is_written_to_each_topic(second: QueryBatch) -> None:
    log = CoreLog()
    for batch in (ORDERS, second):
        assert write(log, batch) == BatchDecided(log.of(Decided)[-1].offset, False)
    assert [(one.tx_id, one.query_topic) for one in log.of(Decided)] == [
        (ORDERS.tx_id, "orders"), (second.tx_id, second.topic)
    ]  # fmt: skip
    for batch in (ORDERS._replace(run="r8"), second._replace(run="r9")):
        assert write(log, batch).repeated
    assert len(log.of(Decided)) == len(log.of(HalfBatch)) == 2
    assert_survives(log)


def test_what_one_topic_does_is_nothing_to_the_other() -> None:
    """Runs, batches that were rolled back, and decisions belong to name and topic."""
    log = CoreLog()
    sent(log.do(half_batch(ORDERS)))
    sent(log.do(half_batch(STOCK, topic="stock")))
    assert log.of(RolledBack) == []
    _, stock = log.of(HalfBatch)
    sent(log.do(half_batch(ORDERS._replace(run="r3"))))
    assert [one.tx_id for one in log.of(RolledBack)] == [ORDERS.tx_id]
    refused(log.do(FindDecision(1, ORDERS)), Why.FENCED)
    assert_survives(log)
    decision = DecideBatch(1, "PG", STOCK, DIGEST, (winner(half_batch(STOCK, topic="stock")),))
    assert log.do(decision) == Done(again=True)
    assert [(one.half.batch.query_topic, one.half.batch.stream, one.size) for one in log.of(CopiedHalfBatch)] == [
        ("stock", "s-2", stock.size)
    ]
    assert_survives(log)
    while (reply := log.do(decision)) == Done(again=True):
        pass
    assert isinstance(reply, BatchDecided)
    assert log.do(FindDecision(1, ORDERS._replace(run="r3"))) == DecisionFound(False, b"", -1, -1)
    assert_survives(log)


def test_run_writes_to_one_topic_so_that_ids_stay_unique() -> None:
    log = CoreLog()
    sent(log.do(half_batch(ORDERS)))
    same_run = STOCK._replace(run="r1")
    assert same_run.tx_id == ORDERS.tx_id
    for command in (
        half_batch(same_run, topic="stock"),
        FindDecision(1, same_run),
        DecideBatch(1, "PG", same_run, DIGEST, ()),
    ):
        assert "run of its own" in refused(log.do(command), Why.INVALID_PARAMETER).text
    assert isinstance(write(log, STOCK), BatchDecided)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (STREAM._replace(run="r2", stream="s-2"), "belongs to stream s-1, not to stream s-2"),
        (STREAM._replace(run="r2", stream=""), "belongs to stream s-1, not to batch writes"),
    ],
)
@pytest.mark.parametrize("decided", [False, True])
def test_second_stream_of_a_name_and_topic_is_refused(other: QueryBatch, text: str, decided: bool) -> None:
    """Also with the number and digest of the first one, which would be taken for a repetition, and its rows lost."""
    log = CoreLog()
    sent(log.do(half_batch(STREAM)))
    if decided:
        assert isinstance(write(log, STREAM), BatchDecided)
    log.state = log.reloaded(log.snapshot())
    for command in (FindDecision(1, other), half_batch(other), DecideBatch(1, "PG", other, DIGEST, ())):
        answer = refused(log.do(command), Why.OTHER_STREAM)
        assert f"query app, topic orders {text}" in answer.text
    assert isinstance(write(log, STREAM._replace(run="r9", batch=1)), BatchDecided), "its own next run"
    assert isinstance(write(log, other._replace(topic="stock")), BatchDecided), "another topic"


def test_stream_cannot_take_over_what_batch_writes_have_begun() -> None:
    log = CoreLog()
    write(log, ORDERS)
    assert (
        "belongs to batch writes, not to stream s-1"
        in refused(log.do(FindDecision(1, STREAM._replace(run="r5"))), Why.OTHER_STREAM).text
    )


@pytest.mark.parametrize("first", [ORDERS, STREAM._replace(batch=7)])
def test_query_of_an_earlier_version_belongs_to_the_first_writer_that_says_its_topic(first: QueryBatch) -> None:
    log = CoreLog()
    write(log, OLD)
    old_rows = schema.query_rows(log.state, sorted)
    assert [len(row) for row in old_rows] == [7], "a base with it is that of an earlier version"
    assert msgspec.msgpack.encode(old_rows) in base.base_payload(log.state)
    assert write(log, first).repeated, "asking alone claims nothing"
    assert schema.query_rows(log.state, sorted) == old_rows
    assert not write(log, first._replace(batch=8)).repeated
    assert log.state.queries["app", ""].topic == "orders"
    assert_survives(log)
    assert not write(log, STOCK._replace(batch=7)).repeated, "the other topic begins its own"
    assert write(log, OLD._replace(run="r9", batch=8)).repeated, "a client of an earlier version means the first one"
    assert_survives(log)


def test_client_of_an_earlier_version_continues_what_a_newer_one_began() -> None:
    log = CoreLog()
    write(log, ORDERS)
    write(log, STOCK)
    assert write(log, OLD._replace(run="r7")).repeated
    assert not write(log, OLD._replace(run="r7", batch=8)).repeated
    assert write(log, ORDERS._replace(run="r8", batch=8)).repeated
    assert_survives(log)


def test_rollback_is_remembered_of_its_query_also_without_its_half_batch() -> None:
    log = CoreLog()
    sent(log.do(half_batch(ORDERS)))
    sent(log.do(half_batch(STOCK, topic="stock")))
    log.do(ResolveTransaction("PG", STOCK.tx_id, RequestedVerdict.ROLLBACK, "ada"))
    assert {query.topic: query.rolled_back_batch for query in log.state.queries.values()} == {"orders": -1, "stock": 7}
    refused(log.do(half_batch(STOCK, topic="stock")), Why.ALREADY_SETTLED)
    assert_survives(log)


def test_operator_reads_which_query_it_is() -> None:
    log = CoreLog()
    sent(log.do(half_batch(STOCK, topic="stock")))
    told = story(log.state, "PG", STOCK.tx_id, log.now_ms)
    assert any(sentence.startswith("It is batch 7 of query app, topic stock, run r2,") for sentence in told), told
