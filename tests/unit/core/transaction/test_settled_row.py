"""Operators get a verdict that memory forgot as END gets it: from the row of the transaction table, through the decision."""

import pytest
from tests.support.core_log import CoreLog, end, half

from halfmq.core.commands import CheckNow, RequestedVerdict, ResolveTransaction, SettledRow
from halfmq.core.decision import Refused, Settled, Why
from halfmq.core.transaction.story import story
from halfmq.model.ids import hash64
from halfmq.model.records import DecidedBy
from halfmq.model.settings import BrokerSettings


def forgetful(tx_ids: tuple[str, ...] = ("T1", "T2")) -> tuple[CoreLog, SettledRow]:
    """(a log whose memory has the last verdict only, the row of the first, which was committed)."""
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    verdicts = []
    for tx_id in tx_ids:
        reply = log.do(half(tx_id))
        verdicts.append((reply, log.do(end(tx_id, reply, RequestedVerdict.COMMIT))))
    (prepared, settled) = verdicts[0]
    assert isinstance(settled, Settled)
    row = SettledRow(
        prepared.queue_offset, prepared.log_offset, True, settled.position, hash64(tx_ids[0].encode()), hash64(b"PG"),
        DecidedBy.CHECK, log.now_ms, 2,
    )  # fmt: skip
    return log, row


def test_resolving_with_the_row_repeats_the_verdict_or_is_refused_with_it() -> None:
    log, row = forgetful()
    for settled, expected in ((None, Refused), (row, Settled)):
        reply = log.do(ResolveTransaction("PG", "T1", RequestedVerdict.COMMIT, "ada", settled))
        assert isinstance(reply, expected)
    assert reply == Settled("PG", "T1", True, row.verdict_position, True)
    refused = log.do(ResolveTransaction("PG", "T1", RequestedVerdict.ROLLBACK, "ada", row))
    assert isinstance(refused, Refused)
    assert (refused.why, refused.standing, refused.position) == (
        Why.VERDICT_CONFLICT,
        "COMMITTED",
        row.verdict_position,
    )


def test_asking_now_with_the_row_says_that_it_is_settled() -> None:
    log, row = forgetful()
    refused = log.do(CheckNow("PG", "T1", row))
    assert isinstance(refused, Refused)
    assert (refused.why, refused.standing, refused.position) == (Why.ALREADY_SETTLED, "COMMITTED", row.verdict_position)


def test_a_row_whose_verdict_was_trimmed_away_is_past_retention() -> None:
    log, row = forgetful()
    log.state.log_start = row.verdict_position + 1
    for command in (ResolveTransaction("PG", "T1", RequestedVerdict.COMMIT, "ada", row), CheckNow("PG", "T1", row)):
        refused = log.do(command)
        assert isinstance(refused, Refused)
        assert refused.why is Why.NOT_FOUND
    log.state.log_start = row.verdict_position
    assert isinstance(log.do(ResolveTransaction("PG", "T1", RequestedVerdict.COMMIT, "ada", row)), Settled)
    refused = log.do(CheckNow("PG", "T1", row))
    assert isinstance(refused, Refused)
    assert refused.why is Why.ALREADY_SETTLED


@pytest.mark.parametrize(("group", "tx_id"), [("PG", "T9"), ("PH", "T1")])
def test_a_row_of_another_transaction_is_not_believed(group: str, tx_id: str) -> None:
    log, row = forgetful()
    assert isinstance(log.do(ResolveTransaction(group, tx_id, RequestedVerdict.COMMIT, "ada", row)), Refused)


def test_what_memory_knows_counts_whatever_the_row_says() -> None:
    log, row = forgetful()
    refused = log.do(ResolveTransaction("PG", "T2", RequestedVerdict.ROLLBACK, "ada", row))
    assert isinstance(refused, Refused)
    assert refused.standing == "COMMITTED"
    log.do(half("T3"))
    assert log.do(ResolveTransaction("PG", "T3", RequestedVerdict.ROLLBACK, "ada", row)).committed is False


def test_the_story_of_a_row_says_verdict_place_and_who() -> None:
    log, row = forgetful()
    log.later(5_000)
    (sentence,) = story(log.state, "PG", "T1", log.now_ms, row=row)
    assert sentence == (
        f"Transaction T1 of producer group PG is COMMITTED since 5 s ago, at log position {row.verdict_position}, decided "
        "by its producer, in response to a check; its 2 messages became visible at that position."
    )
    (sentence,) = story(log.state, "PG", "T1", log.now_ms, looked="Nowhere.")
    assert sentence.endswith("not among the recent verdicts. Nowhere.")
