"""Branches of Try/Confirm/Cancel: each call once, all confirmed with the initiator's COMMIT or all cancelled without it."""

import pytest
from tests.support.tales import C, R, Tale

from halfmq.testing.history.events import Logged, Verdict
from halfmq.testing.history.report import DUPLICATE, PHANTOM, STUCK, TORN, UNREQUESTED, At


def tale(*calls: str, outcome: str = "") -> Tale:
    """``calls``: such as "1 try". ``outcome``: of the initiator's transaction."""
    made = Tale()
    for call in calls:
        made.branch(*call.split())
    if outcome:
        made.local(outcome=outcome)  # type: ignore[arg-type]
    made.settled()
    return made


def test_all_confirmed_or_all_cancelled_is_clean_and_counted() -> None:
    for end, outcome in (("confirm", C), ("cancel", R)):
        report = tale("1 try", "2 try", f"1 {end}", f"2 {end}", outcome=outcome).report()
        assert report.clean
        checks = (At.BRANCH_CALLS, At.BRANCH_ENDS, At.BRANCH_HELD, At.BRANCHES_WHOLE, At.BRANCH_VERDICT)
        assert [report.looked[check].looked for check in checks] == [2, 2, 2, 1, 1]
    assert tale("1 try", "1 cancel", "2 empty", outcome=R).found() == {}
    assert tale("1 try", "1 cancel").found() == {}, "the initiator's outcome is not known"


@pytest.mark.parametrize(
    ("calls", "outcome", "kind", "sentence"),
    [
        (("1 try", "1 confirm", "1 confirm"), C, DUPLICATE, "the confirm of branch 1 had its effect 2 times"),
        (("1 try", "1 try"), "", DUPLICATE, "the try of branch 1 had its effect 2 times"),
        (("1 try", "1 confirm", "1 cancel"), C, PHANTOM, "branch 1 is confirmed and cancelled"),
        (("1 empty", "1 try"), R, PHANTOM, "branch 1 was cancelled before it was tried"),
        (("1 confirm",), C, PHANTOM, "the confirm of branch 1 had an effect, but it was never tried"),
        (("1 cancel",), R, PHANTOM, "the cancel of branch 1 had an effect, but it was never tried"),
        (
            ("1 try", "1 confirm"),
            "",
            UNREQUESTED,
            "the confirm of branch 1 was handled, but nobody requested COMMITTED",
        ),
        (("1 empty",), C, UNREQUESTED, "the empty of branch 1 was handled, but the database says COMMITTED"),
        (("1 try", "1 confirm", "2 empty"), C, TORN, "one of its branches is confirmed, and one is cancelled"),
        (
            ("1 try", "1 confirm"),
            R,
            UNREQUESTED,
            "the confirm of branch 1 was handled, but the database says ROLLED_BACK",
        ),
        (("1 try", "1 cancel"), C, UNREQUESTED, "the cancel of branch 1 was handled, but the database says COMMITTED"),
        (
            ("1 try", "2 try", "1 confirm", "2 cancel"),
            C,
            TORN,
            "one of its branches is confirmed, and one is cancelled",
        ),
        (("1 try", "1 confirm", "2 try"), C, STUCK, "branch 2 is still held"),
    ],
)
def test_what_contradicts_is_reported_once(calls: tuple[str, ...], outcome: str, kind: str, sentence: str) -> None:
    made = tale(*calls, outcome=outcome)
    assert made.found() == {kind: 1}
    assert made.sentence().startswith(sentence)


def ended(call: str, verdict: Verdict, outcome: Verdict | None, by: str = "operator", **began: object) -> Tale:
    """Somebody gives the verdict, whatever the database did, and a branch gets the call."""
    made = Tale(**began)
    made.branch("1", "try")
    made.half()
    made.end(verdict=verdict, by=by)
    if outcome is not None:
        made.local(outcome=outcome, marker=True)
        if outcome != verdict:
            made.reported(outcome, verdict)
    made.branch("1", call)
    made.settled()
    if outcome is not None and outcome != verdict:
        made.listed((verdict, outcome), by=by)
    return made


def test_an_end_follows_the_verdict_of_whoever_may_force_it() -> None:
    for by, verdict, began in (
        ("operator", C, {}),
        ("operator", R, {}),
        ("coordinator", C, {}),
        ("coordinator", R, {}),
        ("policy", R, {"policy_groups": ("g",)}),
    ):
        outcome, call, other = (R, "confirm", "cancel") if verdict == C else (C, "cancel", "confirm")
        assert ended(call, verdict, outcome, by, **began).found() == {}, (by, verdict)
        torn = ended(other, verdict, outcome, by, **began)
        assert torn.found() == {UNREQUESTED: 1}, (by, verdict)
        assert torn.sentence().endswith(f"of branch 1 was handled, but the verdict is {verdict}")
    assert ended("cancel", C, None).found() == {UNREQUESTED: 1}
    assert ended("confirm", C, R, "application").found() == {UNREQUESTED: 1}, "and once only"


def test_a_confirm_comes_after_somebody_requested_the_commit() -> None:
    made = Tale()
    made.branch("1", "try")
    made.half()
    made.branch("1", "confirm")
    made.end()
    made.local()
    assert made.found() == {UNREQUESTED: 1}
    assert made.sentence().endswith("was handled, but that was 10 us before COMMITTED was requested")


def test_what_is_not_concluded_of_branches() -> None:
    assert tale("1 cancel", "1 try", outcome=R).found() == {}, "effects are recorded after their commits"
    made = Tale()
    made.branch("1", "try")
    made.settled("g")
    assert made.found() == {}, "nobody can decide"
    fallen_back = Tale()
    fallen_back.branch("1", "try")
    fallen_back.half(message="M")
    fallen_back.written("M")
    fallen_back.local()
    fallen_back.end(verdict=R)
    fallen_back.branch("1", "confirm")
    assert fallen_back.found() == {}, "its messages went to the outbox"


def test_a_rollback_by_a_fence_needs_no_request_unless_it_was_prepared() -> None:
    for prepared in (False, True):
        made = Tale()
        if prepared:
            made.add(Logged, kind="half", offset=32, tx="T", group="g")
        made.add(Logged, kind="rollback", offset=64, group="g", tx="T", decided_by="fence")
        assert (made.found() == {}) is not prepared
