"""Verdicts of others that contradict the database: each is found once, stays until it is forgotten, and nothing else is a finding."""

from collections.abc import Callable

import pytest
from tests.support.tales import C, R, Tale

from halfmq.testing.history.events import Started
from halfmq.testing.history.report import CHANGED, DUPLICATE, LOST, NOT_DURABLE, PHANTOM, UNREQUESTED, At

FOUND = (C, R)


def forced(by: str = "operator", *, marker: bool = True, **began: object) -> Tale:
    """Somebody commits a transaction whose database rolled back."""
    made = Tale(**began)
    made.half()
    made.local(outcome=R, marker=marker)
    made.end(verdict=C, by=by)
    return made


def test_what_is_found_stays_and_is_forgotten_is_clean_and_counted() -> None:
    for by in ("operator", "coordinator"):
        made = forced(by)
        made.reported(R, C)
        made.listed(FOUND, by=by)
        made.settled()
        made.listed(FOUND, by=by)
        report = made.report()
        assert report.clean, report.violations
        checks = (At.DAMAGE_SAID, At.DAMAGE_ONCE, At.DAMAGE_STAYS, At.DAMAGE_FOUND)
        assert [report.looked[check].looked for check in checks] == [1, 2, 1, 1]
        made.forgotten()
        made.listed()
        assert made.found() == {}


def of_a_policy(group: str) -> Tale:
    made = Tale(policy_groups=(group,))
    made.half()
    made.local(outcome=C, marker=True)
    made.end(verdict=R, by="policy")
    made.reported(C, R)
    made.listed((R, C), by="policy")
    return made


def test_a_policy_is_named_only_where_there_is_one() -> None:
    assert of_a_policy("g").found() == {}
    assert of_a_policy("other").found() == {UNREQUESTED: 1}


def lost(made: Tale) -> None:
    made.settled()
    made.listed()


def gone_after_a_report(made: Tale) -> None:
    made.reported(R, C)
    made.listed()


def gone_after_a_list(made: Tale) -> None:
    made.reported(R, None, outcome=None)
    made.listed(FOUND)
    made.listed()


def gone_after_a_list_with_a_refusal(made: Tale) -> None:
    made.reported(R, C)
    made.listed(FOUND)
    made.forgotten("refused")
    made.listed()


def gone_before_it_was_asked_for(made: Tale) -> None:
    made.reported(R, C)
    made.listed()
    made.forgotten()
    made.listed()


def twice(made: Tale) -> None:
    made.reported(R, C)
    made.listed(FOUND, FOUND)


def of_somebody_else(made: Tale) -> None:
    made.reported(R, C)
    made.listed(FOUND, by="policy")


def without_a_contradiction(made: Tale) -> None:
    made.reported(R, C)
    made.listed((C, C))


def with_another_verdict(made: Tale) -> None:
    made.reported(R, C)
    made.listed((R, C))


@pytest.mark.parametrize(
    ("then", "kind", "sentence"),
    [
        (lost, LOST, "it is COMMITTED, its marker says ROLLED_BACK, and the history settled, but there is no finding"),
        (gone_after_a_report, NOT_DURABLE, "its finding is not in the list of 180 us, although a report of it was confirmed at 170 us"),
        (gone_after_a_list, NOT_DURABLE, "its finding is not in the list of 180 us, although it was listed at 170 us"),
        (gone_after_a_list_with_a_refusal, NOT_DURABLE, "its finding is not in the list of 210 us, although a report of it was confirmed at 170 us"),
        (gone_before_it_was_asked_for, NOT_DURABLE, "its finding is not in the list of 180 us"),
        (twice, DUPLICATE, "a list has 2 findings of it"),
        (of_somebody_else, PHANTOM, "a finding says that COMMITTED was decided by policy; no such request was there"),
        (without_a_contradiction, PHANTOM, "a finding says that verdict and database are both COMMITTED"),
        (with_another_verdict, CHANGED, "two verdicts: COMMITTED acknowledged at 150 us, ROLLED_BACK acknowledged at 180 us"),
    ],
)  # fmt: skip
def test_what_contradicts_is_reported_once(then: Callable[[Tale], None], kind: str, sentence: str) -> None:
    made = forced()
    then(made)
    assert made.found() == {kind: 1}
    assert made.sentence().startswith(sentence)


def test_a_finding_needs_somebody_who_reported_it() -> None:
    for reports, found in (((), {PHANTOM: 1}), ((C,), {PHANTOM: 1}), ((C, R), {})):
        made = Tale()
        made.half()
        made.end(verdict=C, by="operator")
        for said in reports:
            made.reported(said, C)
        made.listed(FOUND, by="operator")
        assert made.found() == found, reports
    early = Tale()
    early.half()
    early.end(verdict=C, by="coordinator")
    early.listed(FOUND)
    early.reported(R, C)
    assert early.found() == {PHANTOM: 1}


def test_a_finding_names_somebody_who_requested_the_verdict() -> None:
    deciders = ("application", "operator", "policy", "coordinator")
    for by in deciders[1:]:
        for named in deciders:
            made = Tale(policy_groups=("g",))
            made.half()
            made.end(verdict=R, by=by)
            made.reported(C, R)
            made.listed((R, C), by=named)
            assert made.found() == ({} if named == by else {PHANTOM: 1}), (by, named)


def test_an_application_has_several_names() -> None:
    for by, named in (("application", "producer"), ("check", "marker")):
        made = Tale()
        made.half()
        made.end(verdict=C, by=by)
        made.reported(R, C)
        made.listed(FOUND, by=named)
        assert made.found() == {}, named


def test_what_a_policy_decided_may_be_recorded_later() -> None:
    for by, found in (("policy", {}), ("coordinator", {PHANTOM: 1})):
        made = Tale(policy_groups=("g",))
        made.half()
        made.end(verdict=R, outcome=None, by="operator")
        made.reported(C, R)
        made.listed((R, C), by=by)
        made.end(verdict=R, by=by)
        assert made.found() == found, by


def test_the_log_knows_who_decided() -> None:
    for logged in ("operator", "coordinator"):
        made = Tale()
        made.half(offset=10)
        made.end(verdict=R, by="coordinator")
        made.end(verdict=R, by="operator")
        made.log("half", 10, tx="T", message="T")
        made.log("rollback", 20, tx="T", decided_by=logged)
        made.reported(C, R)
        made.listed((R, C), by="operator")
        assert made.found() == ({} if logged == "operator" else {PHANTOM: 1}), logged


def test_a_marker_counts_as_reported_once() -> None:
    """The client compares it without being recorded."""
    for marker, outcome, found in ((True, None, {}), (True, "refused", {}), (False, None, {PHANTOM: 1}), (False, "refused", {PHANTOM: 1})):  # fmt: skip
        made = forced(marker=marker)
        if outcome:
            made.reported(R, None, outcome=outcome)
        made.listed(FOUND, by="operator")
        assert made.found() == found, (marker, outcome)
        made.forgotten()
        made.listed(FOUND, by="operator")
        assert made.found() == {PHANTOM: 1}, (marker, outcome)


def test_what_was_forgotten_comes_back_only_with_another_report() -> None:
    made = forced()
    made.reported(R, C)
    made.listed(FOUND)
    made.forgotten(None)
    made.listed(FOUND)
    assert made.found() == {}, "that request may have done nothing"
    made.forgotten()
    made.listed()
    made.listed(FOUND)
    assert made.found() == {PHANTOM: 1}
    assert made.sentence().startswith("a finding says that the database did ROLLED_BACK, which nobody had reported since it was forgotten at 210 us")  # fmt: skip
    again = forced()
    again.reported(R, C)
    again.forgotten()
    again.reported(R, C)
    again.listed(FOUND)
    assert again.found() == {}
    again.listed()
    assert again.found() == {NOT_DURABLE: 1}, "it was listed after it was forgotten"


def test_a_request_to_forget_is_only_for_what_was_there() -> None:
    for told in (0, 1):
        made = forced()
        for _ in range(told):
            made.reported(R, C)
        made.forgotten()
        made.reported(R, C)
        made.listed()
        assert made.found() == {NOT_DURABLE: 1}, told
        # A reader of markers may have been asked before it was forgotten.
        late = forced()
        late.reported(R, C, marker=True)
        late.forgotten()
        late.reported(R, C, marker=True)
        late.listed()
        assert late.found() == {}


def test_a_coordinators_verdict_may_contradict_what_somebody_reports() -> None:
    made = forced("coordinator", marker=False)
    made.reported(R, C)
    made.settled()
    made.listed(FOUND, by="coordinator")
    assert made.found() == {}
    refused = forced("coordinator", marker=False)
    refused.reported(R, None, outcome="refused")
    assert refused.found() == {UNREQUESTED: 1}


def test_nothing_is_missed_that_nobody_could_find() -> None:
    assert forced().found() == {}
    unlisted = forced()
    unlisted.listed()  # the history has not settled
    assert unlisted.found() == {}
    unmarked = forced(marker=False)
    lost(unmarked)
    assert unmarked.found() == {}
    dead = forced()
    dead.settled("g")
    dead.listed()
    assert dead.found() == {}
    pending = forced()
    pending.reported(R, None, outcome=None)
    pending.listed()
    assert pending.found() == {}


def test_a_coordinators_verdict_without_a_marker_may_not_contradict_the_database() -> None:
    assert forced("coordinator", marker=False).found() == {UNREQUESTED: 1}


def test_a_power_loss_may_take_a_finding() -> None:
    made = forced(durability="memory")
    made.reported(R, C)
    made.listed(FOUND)
    made.add(Started, whom="broker", epoch=2, durability="memory", log_end=10)
    made.listed()
    assert made.found() == {}


def test_a_power_loss_may_bring_a_finding_back() -> None:
    made = forced(durability="memory")
    made.reported(R, C)
    made.listed(FOUND)
    made.forgotten()
    made.add(Started, whom="broker", epoch=2, durability="memory", log_end=10)
    made.listed(FOUND)
    assert made.found() == {}
