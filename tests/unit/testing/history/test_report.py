"""The content of a report."""

import json

from tests.support.tales import R, Tale

from halfmq.testing.history.report import CHECKS, KEPT_OF_A_KIND, KINDS, At, Findings, transaction_name


def test_every_kind_has_a_check_that_says_what_it_examines() -> None:
    assert {check.kind for check in CHECKS} == set(KINDS)
    assert {check.promise for check in CHECKS} == {1, 2, 3, 4, 5, 7, 8, 9}


def test_a_check_without_items_to_examine_reports_zero() -> None:
    report = Tale().report()
    assert report.clean
    assert {one.looked for one in report.looked} == {0}
    assert report.looked_at_nothing
    assert json.loads(report.as_json())["looked_at_nothing"]
    tale = Tale()
    tale.plain()
    tale.seen("P")
    assert not tale.report().looked_at_nothing


def test_a_violation_names_transaction_sentence_and_events_with_time_writer_and_line() -> None:
    tale = Tale()
    tale.half()
    tale.local(outcome=R)
    tale.seen()
    (violation,) = tale.report().violations
    assert (violation.transaction, violation.promise) == ("g/T", 2)
    assert [(event.t_us, event.by, event.line) for event in violation.events] == [(130, "p", 4), (140, "p", 5)]
    first, second, *events = violation.text().splitlines()
    assert first == "phantom: g/T message T"
    assert second == "  it was seen, but the database says ROLLED_BACK (promise 2)"
    assert events[1].split()[:4] == ["140", "us", "p", "memory:5"]


def test_the_first_violations_of_a_kind_are_kept_and_all_are_counted() -> None:
    findings = Findings()
    for number in reversed(range(KEPT_OF_A_KIND + 50)):
        findings.add(At.ONCE, f"g\n{number}", "m", "s", (number + 1,))
    kept = findings.kept()
    assert findings.counts["duplicate"] == KEPT_OF_A_KIND + 50
    assert [found.first_place for found in kept] == list(range(1, KEPT_OF_A_KIND + 1))


def test_the_json_report_is_complete() -> None:
    tale = Tale(system="halfmq 0.1.0")
    tale.seen("X")
    told = json.loads(tale.report().as_json())
    assert told["clean"] is False
    assert told["counts"]["phantom"] == 1
    assert told["violations"][0]["events"][0]["line"] == 2
    assert told["event_counts"] == {"began": 1, "seen": 1}
    assert told["systems"] == ["halfmq 0.1.0"]


def test_names_of_transactions() -> None:
    assert transaction_name("group\nid/x") == "group/id/x"
    assert transaction_name("\nid") == "id"
    assert transaction_name("") == ""
