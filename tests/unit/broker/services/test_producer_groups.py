"""Figures, limits and policy of producer groups, without a frame: what is set, who is named, what is said."""

import logging
from typing import Any

import pytest
from tests.support.core_log import half
from tests.support.services import CoreSequencer, FakePeer

from halfmq.broker.services import producer_groups as producer_groups
from halfmq.broker.services.producer_groups import GroupLimits, LimitsChange, ProducerGroups, log_policy_action
from halfmq.core.commands import Actor, SetProducer
from halfmq.core.decision import PolicyActed, Refused, Why
from halfmq.model.records import ParkedBecause
from halfmq.model.settings import PastLimit, ProducerSettings


class Stage:
    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.core = self.sequencer.core
        self.said: list[tuple[Any, int, str]] = []
        self.answers: list[Any] = []
        self.groups = ProducerGroups(
            self.sequencer,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            lambda logger, level, kind, peer, text, *more: self.said.append((kind, level, text % more)),
        )

    def now_ms(self) -> int:
        return self.core.now_ms

    def change(self, name: str = "PG", operator: str = "ada", reason: str = "", **fields: Any) -> Any:
        self.groups.change(FakePeer(9), name, LimitsChange(**fields), operator, reason, self.answers.append)
        return self.answers[-1] if self.answers else "no answer yet"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def broker_limits(stage: Stage) -> tuple[int, int]:
    return stage.core.settings.undecided_max, stage.core.settings.undecided_bytes_max


def test_a_group_that_nobody_knows_has_the_limits_of_the_broker(stage: Stage) -> None:
    assert stage.groups.limits("new") == GroupLimits(ProducerSettings("new"), *broker_limits(stage))
    assert stage.sequencer.commands == []


def test_only_what_is_named_changes_and_the_command_names_who_changes_it(stage: Stage) -> None:
    first = stage.change(reason=" ticket 4711 ", check_limit=3, past_limit=PastLimit.ROLLBACK)
    assert first.settings == ProducerSettings("PG", 3, PastLimit.ROLLBACK, set_by="ada")
    second = stage.change(operator="bob", undecided_max=0)
    expected = ProducerSettings("PG", 3, PastLimit.ROLLBACK, undecided_max=0, set_by="bob")
    assert second == stage.groups.limits("PG") == GroupLimits(expected, *broker_limits(stage))
    command, other = stage.sequencer.commands
    assert isinstance(command, SetProducer)
    assert command.by == Actor("ada", "ticket 4711", "10.0.0.7:9")
    assert command.only == ("check_limit", "past_limit")
    assert other.only == ("undecided_max",), "0 is a limit, and not nothing"


def test_a_change_is_said_when_it_is_durable_and_answers_with_what_it_set(stage: Stage) -> None:
    stage.sequencer.is_held = True
    stage.change(undecided_max=1)
    stage.change(undecided_max=2)
    assert (stage.answers, stage.said) == ([], [])
    stage.sequencer.release()
    assert [answer.settings.undecided_max for answer in stage.answers] == [1, 2]
    assert [(kind, level) for kind, level, _ in stage.said] == [(("limits", "PG"), logging.WARNING)] * 2
    assert stage.said[0][2] == (
        "operator ada from 10.0.0.7:9 set producer group PG: check limit 0, then wait; skip age 0 ms; at most 1 undecided, "
        "-1 bytes (-1: as the broker's)"
    )


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"name": ""}, "group: which producer group"),
        ({"name": "", "operator": ""}, "group: which producer group"),
        ({"operator": " "}, "operator: who sets this, 1 to 64 characters"),
        ({"operator": "a\nb"}, "operator: who sets this, 1 to 64 characters"),
        ({"reason": "two\nlines"}, "reason: one line of at most 400 characters"),
    ],
)
def test_a_change_by_nobody_or_of_nothing_is_refused(stage: Stage, asked: dict[str, str], text: str) -> None:
    assert stage.change(**asked, check_limit=1) == Refused(Why.INVALID_PARAMETER, text)
    assert (stage.sequencer.commands, stage.said) == ([], [])


@pytest.mark.parametrize("name", ["x" * 121, "a b", "a\n"])
def test_a_name_that_no_group_can_have_is_refused(stage: Stage, name: str) -> None:
    for refused in (stage.groups.limits(name), stage.change(name, check_limit=1)):
        assert isinstance(refused, Refused)
        assert refused.why is Why.INVALID_PARAMETER
    assert stage.sequencer.commands == []


def test_limits_that_do_not_fit_each_other_are_refused_and_not_said(stage: Stage) -> None:
    refused = stage.change(check_limit=3)
    assert (refused.why, stage.said) == (Why.INVALID_PARAMETER, [])
    assert stage.groups.limits("PG") == GroupLimits(ProducerSettings("PG"), *broker_limits(stage))


def test_figures_are_told_of_one_group_or_page_by_page(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_groups, "STATS_PER_PAGE_MAX", 2)
    for number, group in enumerate("ABBC"):
        stage.core.do(half(f"T{number}", group=group))
    first = stage.groups.figures("", 0)
    assert [(one.group, one.undecided) for one in first.groups] == [("B", 2), ("A", 1)]
    second = stage.groups.figures("", first.following)
    assert ([one.group for one in second.groups], second.following) == (["C"], 0)
    (only,), following = stage.groups.figures("C", 0)
    assert (only.group, following) == ("C", 0)
    assert stage.groups.figures("nobody", 0) == ((), 0)


@pytest.mark.parametrize(
    ("rolled_back", "because", "says"),
    [
        (True, ParkedBecause.CHECKS, "the policy of group PG: transaction T1 was rolled back after 2 checks"),
        (False, ParkedBecause.AGE, "the policy of group PG: transaction T1 was parked because of its age"),
    ],
)
def test_what_a_policy_did_is_said(
    caplog: pytest.LogCaptureFixture, rolled_back: bool, because: ParkedBecause, says: str
) -> None:
    log_policy_action(PolicyActed(group="PG", tx_id="T1", rolled_back=rolled_back, because=because, checks=2))
    assert [record.getMessage() for record in caplog.records] == [says]
