"""Each promise with a title: histories that break it, and that the checker finds them. Or why a history cannot show it.

What is found, and what a history cannot show, is also in docs/check-history.md.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from tests.mutation.hunters import ROOT
from tests.support.tales import C, R, Tale
from tests.support.titled import COORDINATORS, DAMAGE, HANDLERS, TCC, titles

from halfmq.testing.history.events import Fault, Started
from halfmq.testing.history.report import CHECKS, At, Findings

_SECTIONS: Final = (COORDINATORS, HANDLERS, DAMAGE, TCC)
_C1: Final[dict[str, Any]] = {"coordinator": "c", "epoch": 1}
_C2: Final[dict[str, Any]] = {"coordinator": "c", "epoch": 2}
_BY_C: Final[dict[str, Any]] = {"by": "coordinator", **_C1}


class Broken(NamedTuple):
    """A history that breaks a promise: which check finds it, and how what it says begins."""

    check: int
    says: str
    tell: Callable[[Tale], None]


def _an_earlier_epoch_prepares(tale: Tale) -> None:
    tale.epoch(1, "a")
    tale.epoch(2, "b")
    tale.half(**_C1)


def _an_earlier_epoch_settles(tale: Tale) -> None:
    tale.half(**_C1)
    tale.half("U", **_C2)
    tale.end(**_BY_C)


def _an_earlier_epoch_is_told_the_verdict(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(**_BY_C)
    tale.epoch(2, "b")
    tale.end(verdict=R, outcome="settled", stands=C, **_BY_C)


def _settled_by(by: str, **fields: Any) -> Callable[[Tale], None]:
    def tell(tale: Tale) -> None:
        tale.half(**_C1)
        tale.end(by=by, **fields)

    return tell


def _its_coordinator_agrees_later(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(by="check")
    tale.end(**_BY_C)


def _seen_by_a_check_without_response(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(by="check", outcome=None)
    tale.seen()


def _the_log_says(by: str) -> Callable[[Tale], None]:
    def tell(tale: Tale) -> None:
        tale.half(offset=100, **_C1)
        tale.end(by="application", outcome=None)
        tale.end(**_BY_C)
        tale.log("half", 100, tx="T", message="T")
        tale.commit(200, (-1, 100), by=by)

    return tell


def _both_verdicts(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(**_BY_C)
    tale.end(verdict=R, **_BY_C)


def _not_in_the_log(tale: Tale) -> None:
    tale.half(offset=100, **_C1)
    tale.end(position=200, **_BY_C)
    tale.log("half", 100, tx="T", message="T")


def _two_got_one_epoch(tale: Tale) -> None:
    tale.epoch(2, "a")
    tale.epoch(2, "b")
    tale.epoch(2, "b")


def _a_lower_epoch_later(tale: Tale) -> None:
    tale.epoch(2, "a")
    tale.epoch(1, "b")


def _an_epoch_again_after_a_higher_one(tale: Tale) -> None:
    tale.epoch(2, "a")
    tale.epoch(3, "b")
    tale.epoch(2, "a")


def _an_epoch_below_one_that_acted(tale: Tale) -> None:
    tale.half(**_C2)
    tale.epoch(1, "b")


def _handled(tale: Tale, tx: str, outcome: str = C) -> None:
    tale.half(tx, f"{tx}-sent")
    tale.local(tx, outcome=outcome, handled="M", consumer="stock", messages=(f"{tx}-sent",))  # type: ignore[arg-type]
    tale.end(tx, outcome)  # type: ignore[arg-type]


def _handled_twice(tale: Tale) -> None:
    _handled(tale, "handler")
    _handled(tale, "handler again")


def _handled_and_compensated(tale: Tale) -> None:
    _handled(tale, "handler")
    _handled(tale, "on_dead")


def _sent_is_lost(tale: Tale) -> None:
    _handled(tale, "handler")
    tale.settled()
    tale.read(0)


def _sent_by_what_rolled_back(tx: str) -> Callable[[Tale], None]:
    def tell(tale: Tale) -> None:
        _handled(tale, tx, R)
        tale.seen(f"{tx}-sent", tx=tx)

    return tell


def _forced(tale: Tale) -> None:
    """By an operator, who commits what the database rolled back."""
    tale.half()
    tale.local(outcome=R, marker=True)
    tale.end(by="operator")


def _not_found(tale: Tale) -> None:
    _forced(tale)
    tale.settled()
    tale.listed()


def _found_without_contradiction(tale: Tale) -> None:
    tale.half()
    tale.local(outcome=C, marker=True)
    tale.end()
    tale.listed((C, R), by="application")


def _found_of_another(tale: Tale) -> None:
    _forced(tale)
    tale.reported(R, C)
    tale.listed((C, R), by="policy")


def _found_twice(tale: Tale) -> None:
    _forced(tale)
    tale.reported(R, C)
    tale.listed((C, R), (C, R), by="operator")


def _a_block_is_told_that_it_commits(tale: Tale) -> None:
    tale.half()
    tale.end(verdict=R, by="operator")
    tale.local(outcome=C)
    tale.end(verdict=C)


def _gone(tale: Tale) -> None:
    _forced(tale)
    tale.reported(R, C)
    tale.listed((C, R), by="operator")
    tale.restart()
    tale.listed()


def _not_found_again(tale: Tale) -> None:
    _forced(tale)
    tale.reported(R, C)
    tale.forgotten()
    tale.reported(R, C)
    tale.listed()


def _branches(*calls: str, outcome: str = "") -> Callable[[Tale], None]:
    def tell(tale: Tale) -> None:
        tale.half()
        if outcome:
            tale.end(verdict=outcome)  # type: ignore[arg-type]
            tale.local(outcome=outcome)  # type: ignore[arg-type]
        for one in calls:
            tale.branch(*one.split())
        tale.settled(*(() if outcome else ("g",)))

    return tell


def _prepared_after_a_fence(tale: Tale) -> None:
    tale.end(verdict=R, by="fence")
    tale.half()


def _a_fence_rolls_back_what_was_prepared(tale: Tale) -> None:
    tale.half()
    tale.end(verdict=R, by="fence")


#: Of the promises with a title: histories that break it, each found by one check.
FOUND: Final = {
    "One process at a time.": (
        Broken(At.EPOCHS, "epoch 1 of coordinator c requested one of its messages", _an_earlier_epoch_prepares),
        Broken(At.EPOCHS, "epoch 1 of coordinator c requested COMMITTED", _an_earlier_epoch_settles),
        Broken(At.EPOCHS, "epoch 1 of coordinator c requested ROLLED_BACK", _an_earlier_epoch_is_told_the_verdict),
    ),
    "Nobody else settles.": (
        Broken(At.COORDINATED, "COMMITTED had been requested by nobody but application", _settled_by("application")),
        Broken(At.COORDINATED, "COMMITTED had been requested by nobody but check", _settled_by("check")),
        Broken(At.COORDINATED, "COMMITTED had been requested by nobody but marker", _settled_by("marker")),
        Broken(At.COORDINATED, "ROLLED_BACK had been requested by nobody but fence", _settled_by("fence", verdict=R)),
        Broken(At.COORDINATED, "COMMITTED had been requested by nobody but coordinator d", _settled_by("coordinator", coordinator="d", epoch=1)),
        Broken(At.COORDINATED, "COMMITTED had been requested by nobody but check", _its_coordinator_agrees_later),
        Broken(At.COORDINATED, "COMMITTED had been requested by nobody but check", _seen_by_a_check_without_response),
        Broken(At.COORDINATED, "COMMITTED at log offset 200 was decided by application", _the_log_says("application")),
    ),
    "The first verdict is the decision.": (
        Broken(At.AGREEMENT, "two verdicts: ", _both_verdicts),
        Broken(At.DURABLE_LOG, "COMMITTED at log position 200 was acknowledged; the log has no verdict", _not_in_the_log),
        Broken(At.COORDINATED, "COMMITTED at log offset 200 was decided by check", _the_log_says("check")),
        Broken(At.VALIDITY, "COMMITTED at log offset 200 was decided by an operator; no operator requested it", _the_log_says("operator")),
    ),
    "An epoch never comes back,": (
        Broken(At.EPOCHS_RISE, "a and b both got epoch 2 of coordinator c of group g", _two_got_one_epoch),
        Broken(At.EPOCHS_RISE, "b got epoch 1 of coordinator c of group g, after epoch 2", _a_lower_epoch_later),
        Broken(At.EPOCHS_RISE, "a got epoch 2 of coordinator c of group g, after epoch 3", _an_epoch_again_after_a_higher_one),
        Broken(At.EPOCHS_RISE, "b got epoch 1 of coordinator c of group g, after epoch 2", _an_epoch_below_one_that_acted),
    ),
    "Consuming, writing and sending commit together.": (
        Broken(At.HANDLED, "2 transactions of stock that handled it committed", _handled_twice),
        Broken(At.MISSED, "it is committed, and r, which read everything, never received it", _sent_is_lost),
        Broken(At.MESSAGE_PHANTOM, "it was seen, but the database says ROLLED_BACK", _sent_by_what_rolled_back("handler")),
    ),
    "A compensation is in the transaction of the failure.": (
        Broken(At.MESSAGE_PHANTOM, "it was seen, but the database says ROLLED_BACK", _sent_by_what_rolled_back("on_dead")),
    ),
    "A message is handled, compensated, or a dead letter.": (
        Broken(At.HANDLED, "2 transactions of stock that handled it committed", _handled_and_compensated),
    ),
    "A verdict that contradicts the database is found.": (
        Broken(At.DAMAGE_FOUND, "it is COMMITTED, its marker says ROLLED_BACK, and the history settled", _not_found),
        Broken(At.DAMAGE_SAID, "a finding says that the database did ROLLED_BACK, which nobody had reported", _found_without_contradiction),
        Broken(At.DAMAGE_SAID, "a finding says that COMMITTED was decided by policy", _found_of_another),
        Broken(At.DAMAGE_ONCE, "a list has 2 findings of it", _found_twice),
    ),
    "A block that is overruled says so.": (
        Broken(At.AGREEMENT, "two verdicts: ", _a_block_is_told_that_it_commits),
    ),
    "A finding stays.": (
        Broken(At.DAMAGE_STAYS, "its finding is not in the list", _gone),
        Broken(At.DAMAGE_STAYS, "its finding is not in the list", _not_found_again),
    ),
    "A marker is kept until it was compared.": (
        Broken(At.DAMAGE_FOUND, "it is COMMITTED, its marker says ROLLED_BACK, and the history settled", _not_found),
    ),
    "All or none.": (
        Broken(At.BRANCHES_WHOLE, "one of its branches is confirmed, and one is cancelled", _branches("1 try", "2 try", "1 confirm", "2 cancel", outcome=C)),
        Broken(At.BRANCH_VERDICT, "the confirm of branch 1 was handled, but the database says", _branches("1 try", "1 confirm", outcome=R)),
        Broken(At.BRANCH_VERDICT, "the cancel of branch 1 was handled, but the database says", _branches("1 try", "1 cancel", outcome=C)),
        Broken(At.BRANCH_HELD, "branch 2 is still held", _branches("1 try", "2 try", "1 confirm", outcome=C)),
    ),
    "A branch is tried once, and confirmed or cancelled once, never both.": (
        Broken(At.BRANCH_CALLS, "the try of branch 1 had its effect 2 times", _branches("1 try", "1 try")),
        Broken(At.BRANCH_CALLS, "the confirm of branch 1 had its effect 2 times", _branches("1 try", "1 confirm", "1 confirm", outcome=C)),
        Broken(At.BRANCH_CALLS, "the cancel of branch 1 had its effect 2 times", _branches("1 try", "1 cancel", "1 cancel", outcome=R)),
        Broken(At.BRANCH_ENDS, "branch 1 is confirmed and cancelled", _branches("1 try", "1 confirm", "1 cancel", outcome=C)),
    ),
    "A late try is refused.": (
        Broken(At.BRANCH_ENDS, "branch 1 was cancelled before it was tried", _branches("1 empty", "1 try", outcome=R)),
        Broken(At.BRANCH_CALLS, "the try of branch 1 had its effect 2 times", _branches("1 try", "1 cancel", "1 try", outcome=R)),
    ),
    "A yes is committed.": (
        Broken(At.BRANCH_ENDS, "the confirm of branch 1 had an effect, but it was never tried", _branches("1 confirm", outcome=C)),
    ),
    "A fence stands.": (
        Broken(At.FENCED, "it was prepared after a participant was told", _prepared_after_a_fence),
        Broken(At.VALIDITY, "ROLLED_BACK was acknowledged, but nobody requested ROLLED_BACK", _a_fence_rolls_back_what_was_prepared),
    ),
}  # fmt: skip


def test_every_promise_with_a_title_has_histories_that_break_it() -> None:
    assert list(FOUND) == titles(*_SECTIONS)
    assert all(FOUND.values())


def test_the_page_of_the_checker_says_what_shows_each_of_them() -> None:
    page = (ROOT / "docs" / "check-history.md").read_text()
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|(.*)\|$", page, re.MULTILINE)
    assert [title for title, _, _ in rows] == titles(*_SECTIONS)
    for title, found, _ in rows:
        kinds = {CHECKS[one.check].kind for one in FOUND[title]}
        assert set(found.split(", ")) == kinds, title


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(one, id=f"{title[:24]} {number}")
        for title, all_ in FOUND.items()
        for number, one in enumerate(all_)
    ],
)
def test_a_history_that_breaks_a_promise_is_found_by_its_check(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    tale = Tale()
    broken.tell(tale)
    assert tale.found() == {CHECKS[broken.check].kind: 1}
    assert tale.sentence().startswith(broken.says), tale.sentence()
    add = Findings.add
    checks: list[int] = []

    def added(self: Findings, check: int, *fields: object) -> None:
        checks.append(check)
        add(self, check, *fields)  # type: ignore[arg-type]

    monkeypatch.setattr(Findings, "add", added)
    assert tale.report().looked[broken.check].looked
    assert checks == [broken.check]


# --- what proves nothing


def _its_own_process(tale: Tale) -> None:
    tale.epoch(1)
    tale.half(**_C1)
    tale.end(**_BY_C)
    tale.end(by="check")
    tale.end(by="coordinator", verdict=R, outcome="refused", coordinator="d", epoch=1)


def _a_takeover(tale: Tale) -> None:
    tale.epoch(1, "a")
    tale.half(**_C1)
    tale.epoch(2, "b")
    tale.end(outcome="refused", **_BY_C)
    tale.end(by="coordinator", **_C2)
    tale.end(outcome=None, verdict=R, **_BY_C)


def _recoveries_at_the_same_moment(tale: Tale) -> None:
    tale.epoch(2, "a")
    tale.epoch(1, "b", since_us=tale.now - 5)


def _an_answer_that_was_lost(tale: Tale) -> None:
    tale.epoch(2, "a")
    tale.epoch(2, "a")


def _of_other_groups_and_coordinators(tale: Tale) -> None:
    tale.epoch(2, "a")
    tale.epoch(2, "b", coordinator="d")
    tale.epoch(1, "c", group="h")


def _several_brokers(tale: Tale) -> None:
    tale.epoch(5, "a", coordinator="c@one")
    tale.epoch(2, "a", coordinator="c@two")
    tale.half(coordinator="c@two", epoch=2)
    tale.epoch(6, "b", coordinator="c@one")
    tale.end(by="coordinator", coordinator="c@two", epoch=2)


def _an_operator(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(by="operator")
    tale.end(by="check")


def _its_coordinator_without_response(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(outcome=None, **_BY_C)
    tale.end(by="check")
    tale.seen()


def _a_coordinator_that_is_not_named(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(by="coordinator")


def _a_check_without_response(tale: Tale) -> None:
    tale.half(**_C1)
    tale.end(by="check", outcome=None)


def _a_half_without_response(tale: Tale) -> None:
    tale.half(outcome=None, **_C1)
    tale.half(outcome="refused", **_C2)
    tale.end()


def _a_fence(tale: Tale) -> None:
    tale.end(verdict=R, by="fence")
    tale.half(outcome="settled", stands=R)
    tale.half("U")
    tale.end("U", R, by="fence", outcome="refused")
    tale.end("U")


def _a_fence_without_response(tale: Tale) -> None:
    tale.end(verdict=R, by="fence", outcome=None)
    tale.half()


def _a_fence_whose_verdict_is_known_by_a_half(tale: Tale) -> None:
    tale.end(verdict=R, by="fence", outcome=None)
    tale.half(outcome="settled", stands=R)


def _a_fence_whose_verdict_was_trimmed(tale: Tale) -> None:
    tale.end(verdict=R, by="fence", position=100)
    tale.log("trim", 300, log_start=200)
    tale.half(offset=400)
    tale.log("half", 400, tx="T", message="T")


@pytest.mark.parametrize(
    "tell",
    [
        _its_own_process, _a_takeover, _recoveries_at_the_same_moment, _an_answer_that_was_lost, _of_other_groups_and_coordinators,
        _several_brokers, _an_operator, _its_coordinator_without_response, _a_coordinator_that_is_not_named, _a_check_without_response,
        _a_half_without_response, _a_fence, _a_fence_without_response, _a_fence_whose_verdict_is_known_by_a_half, _a_fence_whose_verdict_was_trimmed,
    ],
    ids=lambda tell: tell.__name__.strip("_"),
)  # fmt: skip
def test_what_proves_nothing_is_not_found(tell: Callable[[Tale], None]) -> None:
    tale = Tale()
    tell(tale)
    assert tale.found() == {}, [one.text() for one in tale.report().violations]


def test_a_policy_may_roll_back_what_is_a_coordinators() -> None:
    for policies, found in ((("g",), {}), ((), {"unrequested verdict": 1})):
        tale = Tale(policy_groups=policies)
        tale.half(**_C1)
        tale.end(verdict=R, by="check")
        assert tale.found() == found


def test_a_power_loss_may_take_an_epoch_a_half_and_a_fence() -> None:
    """With durability ``memory``: nothing that was known before it proves anything."""
    for durability, found in (
        ("memory", {}),
        ("fsync", {"unrequested verdict": 4, "verdict changed": 1, "reordered": 1}),
    ):
        tale = Tale(durability=durability)
        tale.epoch(2, "a")
        tale.half(offset=100, **_C2)
        tale.end("V", R, by="fence", position=110)
        tale.add(Fault, what="power", whom="broker")
        tale.add(Started, whom="broker", epoch=2, durability=durability, log_end=50)
        tale.epoch(1, "b")
        tale.epoch(2, "c")
        tale.half("U", offset=50, **_C1)
        tale.end(position=60)
        tale.half("V", offset=70)
        assert tale.found() == found, [one.text() for one in tale.report().violations]
