"""Verdicts of others are to be compared with markers; agreement is forgotten, a contradiction stays until an operator forgets it."""

from typing import Any

import pytest
from tests.support.core_log import CoreLog, end, half, part, refused, sent
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check
from tests.unit.core.transaction.test_policy import run, with_policy
from tests.unit.core.transaction.test_retention import trim

from halfmq import limits
from halfmq.core.commands import (
    Actor,
    Compare,
    ForgetDamage,
    RequestedVerdict,
    ResolveTransaction,
)
from halfmq.core.decision import ComparisonMade, NotCompared, Settled, Why
from halfmq.core.snapshot import load_rows
from halfmq.model.records import (
    Committed,
    Compared,
    ComparisonResult,
    DecidedBy,
    OperatorActed,
    OperatorAction,
    RolledBack,
)
from halfmq.model.settings import PastLimit

ADA = Actor("ada", "a test", "10.0.0.1:5")
COMMIT, ROLLBACK = RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK


def marked(tx_id: str, **more: str) -> Any:
    return part(tx_id, 0, 1, HMQ_TX_MARKER="77.5", **more)


def resolve(log: CoreLog, tx_id: str, wanted: RequestedVerdict = ROLLBACK) -> Any:
    return log.do(ResolveTransaction("PG", tx_id, wanted, "ada", by=ADA))


def report(log: CoreLog, tx_id: str, committed: bool, *, is_marker: bool = True, source: str = "sql.mq_tx") -> Any:
    return log.do(Compare("PG", tx_id, committed, source, is_marker))


def results(log: CoreLog) -> list[int]:
    return [one.result for one in log.of(Compared)]


def assert_survives(log: CoreLog) -> None:
    """The state is that of a redo, of a snapshot, and of a redo from the next base on."""
    check(log.state)
    expected = durable_digest(log.state)
    assert durable_digest(log.redone()) == expected
    assert durable_digest(log.reloaded(log.snapshot())) == expected


@pytest.mark.parametrize("wanted", [COMMIT, ROLLBACK])
def test_only_a_verdict_of_others_on_a_transaction_with_a_marker_is_compared(wanted: RequestedVerdict) -> None:
    log = CoreLog()
    log.do(marked("T1"))
    log.do(part("T2", 0, 1))
    stored = sent(log.do(marked("T3")))
    resolve(log, "T1", wanted)
    resolve(log, "T2", wanted)
    assert isinstance(log.do(end("T3", stored, wanted, from_check=True)), Settled)
    assert list(log.state.comparisons) == [("PG", "T1")]
    (one,) = log.state.comparisons.values()
    assert (one.committed, one.decided_by, one.by, one.is_finding) == (
        wanted is COMMIT,
        DecidedBy.OPERATOR,
        "ada",
        False,
    )
    kinds = [
        type(record) for record in log.records if isinstance(record, OperatorActed | Committed | RolledBack | Compared)
    ]
    verdict = Committed if wanted is COMMIT else RolledBack
    assert kinds == [OperatorActed, verdict, Compared, OperatorActed, verdict, verdict]
    assert_survives(log)


@pytest.mark.parametrize("wanted", [COMMIT, ROLLBACK])
def test_agreement_is_forgotten_and_a_contradiction_is_kept(wanted: RequestedVerdict) -> None:
    log = CoreLog()
    for tx_id in ("T1", "T2"):
        log.do(marked(tx_id))
        resolve(log, tx_id, wanted)
    committed = wanted is COMMIT
    assert report(log, "T1", committed) == ComparisonMade("PG", "T1", committed, DecidedBy.OPERATOR, "ada", True)
    assert report(log, "T2", not committed) == ComparisonMade(
        "PG", "T2", committed, DecidedBy.OPERATOR, "ada", False, True
    )
    assert report(log, "T2", committed).is_new is False, "a finding stays one"
    assert results(log) == [ComparisonResult.EXPECTED] * 2 + [ComparisonResult.AGREES, ComparisonResult.CONTRADICTS]
    (found,) = log.state.comparisons.values()
    assert (found.tx_id, found.source, found.is_finding) == ("T2", "sql.mq_tx", True)
    assert log.state.producer_groups["PG"].settled["T2"].committed is committed, "the verdict stays"
    assert_survives(log)


def test_a_finding_is_forgotten_by_an_operator_only_and_the_log_names_him() -> None:
    log = CoreLog()
    log.do(marked("T1"))
    resolve(log, "T1")
    forget = ForgetDamage("PG", "T1", ADA)
    refused(log.do(forget), Why.NOT_NOW)
    report(log, "T1", True)
    assert isinstance(log.do(forget), ComparisonMade)
    assert log.state.comparisons == {}
    *_, acted, forgotten = log.records
    assert (acted.action, acted.name, acted.subject) == (OperatorAction.FORGET_DAMAGE, "ada", "T1")
    assert forgotten.result == ComparisonResult.FORGOTTEN
    refused(log.do(forget), Why.NOT_FOUND)
    assert_survives(log)


def test_another_outcome_is_compared_with_any_verdict_and_does_not_end_the_comparison() -> None:
    log = CoreLog()
    stored = sent(log.do(part("own", 0, 1)))
    log.do(marked("forced"))
    refused(report(log, "own", True, is_marker=False), Why.STILL_UNDECIDED)
    log.do(end("own", stored))
    resolve(log, "forced")
    assert report(log, "own", True, is_marker=False).agrees
    assert report(log, "forced", False, is_marker=False).agrees
    assert [one.is_finding for one in log.state.comparisons.values()] == [False], "its marker may still contradict"
    assert report(log, "own", False, is_marker=True).is_new is False, "no marker was asked about it"
    assert report(log, "own", False, is_marker=False, source="bank A").is_new
    assert log.state.comparisons["PG", "own"].source == "bank A"
    refused(report(log, "nobody", False, is_marker=False), Why.NOT_FOUND)
    assert_survives(log)


def test_verdict_of_a_policy_is_compared() -> None:
    log = with_policy(1, PastLimit.ROLLBACK)
    log.do(marked("T1"))
    run(log, 60_000)
    (one,) = log.state.comparisons.values()
    assert (one.decided_by, one.by, one.committed) == (DecidedBy.POLICY, "", False)
    assert [type(record) for record in log.records[-2:]] == [RolledBack, Compared]
    assert report(log, "T1", True).is_new
    assert_survives(log)


def test_it_survives_the_trim_of_its_half_and_is_not_compared_then() -> None:
    """The redo begins after the half: what is expected must be in the log itself, or the next base would differ."""
    log = CoreLog()
    log.do(marked("T1"))
    log.roll()
    resolve(log, "T1")
    log.roll()
    trim(log, log.settings.segment_bytes)
    assert_survives(log)
    assert [one.is_finding for one in log.state.comparisons.values()] == [False]
    assert isinstance(log.do(ForgetDamage("PG", "T1", ADA)), ComparisonMade), "nobody can compare it any more"
    assert_survives(log)


def test_at_the_maximum_the_verdict_is_given_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPARISONS_MAX", 1)
    log = CoreLog()
    for tx_id in ("T1", "T2"):
        log.do(marked(tx_id))
        assert isinstance(resolve(log, tx_id), Settled)
    assert list(log.state.comparisons) == [("PG", "T1")]
    assert [effect for effect in log.effects if isinstance(effect, NotCompared)] == [NotCompared("PG", "T2")]
    log.do(end("own", sent(log.do(half("own")))))
    refused(report(log, "own", False, is_marker=False), Why.LIMIT_REACHED)
    assert_survives(log)


def test_reports_of_others_leave_space_for_the_verdicts_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a client that contradicted 4,096 transactions of its own, in six seconds; no verdict was compared after that."""
    monkeypatch.setattr(limits, "COMPARISONS_MAX", 3)
    monkeypatch.setattr(limits, "COMPARISONS_REPORTED_MAX", 1)
    log = CoreLog()
    for tx_id in ("own1", "own2"):
        log.do(end(tx_id, sent(log.do(half(tx_id)))))
    assert report(log, "own1", False, is_marker=False).is_new
    refused(report(log, "own2", False, is_marker=False), Why.LIMIT_REACHED)
    for tx_id in ("T1", "T2"):
        log.do(marked(tx_id))
        resolve(log, tx_id)
    assert report(log, "T1", True, is_marker=False, source="bank").is_new, "it has its place already"
    assert set(log.state.comparisons) == {("PG", "own1"), ("PG", "T1"), ("PG", "T2")}
    assert_survives(log)


def test_a_commit_of_a_copied_half_refers_to_the_copy() -> None:
    log = CoreLog()
    log.do(marked("T1"))
    log.roll()
    resolve(log, "T1", COMMIT)
    (verdict,) = log.of(Committed)
    (one,) = log.state.comparisons.values()
    assert one.half_offset == verdict.refs[0].offset
    assert verdict.offset < one.position < log.state.log_end
    assert_survives(log)


def test_findings_are_in_the_next_base() -> None:
    log = CoreLog()
    log.do(marked("T1"))
    resolve(log, "T1")
    report(log, "T1", True)
    log.roll()
    state = load_rows(log.settings, log.snapshot())
    assert state.comparisons == log.state.comparisons != {}
    assert_survives(log)
