"""Figures, limits and policy of producer groups, without a frame: what is set, who is named, what is said."""

import json
import logging
from typing import Any

import pytest
from tests.support.core_log import half
from tests.support.services import Answered, CoreSequencer, FakeGateway, FakePeer, parts

from halfmq.broker.remoting import producer_groups as producer_groups
from halfmq.broker.remoting.producer_groups import ProducerGroupCommands, log_policy_action
from halfmq.core.commands import Actor, SetProducer
from halfmq.core.decision import PolicyActed
from halfmq.model.records import ParkedBecause
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import GroupPageFields
from halfmq.wire.remoting.producer_groups import ProducerFields


class Stage:
    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.core = self.sequencer.core
        self.gateway = FakeGateway()
        self.peer = FakePeer(9)
        self.said = self.peer.said
        self.answers = self.gateway.answers
        self.groups = ProducerGroupCommands(parts(self.sequencer, gateway=self.gateway, time=self))

    def now_ms(self) -> int:
        return self.core.now_ms

    def change(self, name: str = "PG", operator: str = "ada", reason: str = "", **fields: Any) -> Any:
        """The last response; without fields nothing is changed."""
        body = json.dumps(fields).encode() if fields else b""
        request: Request[Any] = Request(code=29_007, opaque=1, ext=ProducerFields(name, operator, reason), body=body)
        self.groups.limits(self.peer, request)  # type: ignore[arg-type]
        return self.answers[-1] if self.answers else "no answer yet"

    def limits(self, name: str = "PG") -> dict[str, Any]:
        return limits_in(self.change(name))

    def figures(self, group: str, start: int) -> tuple[list[dict[str, Any]], int]:
        self.groups.stats(self.peer, Request(code=29_008, opaque=1, ext=GroupPageFields(group, start)))  # type: ignore[arg-type]
        answer = self.answers[-1]
        return json.loads(answer.body), answer.ext.get("next", 0)


def limits_in(answer: Answered) -> dict[str, Any]:
    assert answer.code == 0, answer
    return json.loads(answer.body)  # type: ignore[no-any-return]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def expected(stage: Stage, name: str = "PG", **other: Any) -> dict[str, Any]:
    broker = stage.core.settings
    return {
        "group": name, "check_limit": 0, "past_limit": "wait", "skip_age_ms": 0, "undecided_max": -1, "undecided_bytes_max": -1,
        "set_by": "", "broker_undecided_max": broker.undecided_max, "broker_undecided_bytes_max": broker.undecided_bytes_max, **other,
    }  # fmt: skip


def test_a_group_that_nobody_knows_has_the_limits_of_the_broker(stage: Stage) -> None:
    assert stage.limits("new") == expected(stage, "new")
    assert stage.sequencer.commands == []


def test_only_what_is_named_changes_and_the_command_names_who_changes_it(stage: Stage) -> None:
    first = stage.change(reason=" ticket 4711 ", check_limit=3, past_limit="rollback")
    changed = {"check_limit": 3, "past_limit": "rollback"}
    assert limits_in(first) == expected(stage, **changed, set_by="ada")
    second = limits_in(stage.change(operator="bob", undecided_max=0))
    assert second == stage.limits() == expected(stage, **changed, undecided_max=0, set_by="bob")
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
    assert [limits_in(answer)["undecided_max"] for answer in stage.answers] == [1, 2]
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
    answer = stage.change(**asked, check_limit=1)
    assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, text)
    assert (stage.sequencer.commands, stage.said) == ([], [])


@pytest.mark.parametrize("name", ["x" * 121, "a b", "a\n"])
def test_a_name_that_no_group_can_have_is_refused(stage: Stage, name: str) -> None:
    for refused in (stage.change(name), stage.change(name, check_limit=1)):
        assert refused.code == ResponseCode.INVALID_PARAMETER
    assert stage.sequencer.commands == []


def test_limits_that_do_not_fit_each_other_are_refused_and_not_said(stage: Stage) -> None:
    refused = stage.change(check_limit=3)
    assert (refused.code, stage.said) == (ResponseCode.INVALID_PARAMETER, [])
    assert stage.limits() == expected(stage)


def test_figures_are_told_of_one_group_or_page_by_page(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_groups, "STATS_PER_PAGE_MAX", 2)
    for number, group in enumerate("ABBC"):
        stage.core.do(half(f"T{number}", group=group))
    first, following = stage.figures("", 0)
    assert [(one["group"], one["undecided"]) for one in first] == [("B", 2), ("A", 1)]
    second, end = stage.figures("", following)
    assert ([one["group"] for one in second], end) == (["C"], 0)
    (only,), following = stage.figures("C", 0)
    assert (only["group"], following) == ("C", 0)
    assert stage.figures("nobody", 0) == ([], 0)


@pytest.mark.parametrize(
    ("rolled_back", "because", "says"),
    [
        (True, ParkedBecause.CHECKS, "transaction T1 of group PG: rolled back by the check policy, after 2 checks"),
        (False, ParkedBecause.AGE, "transaction T1 of group PG: parked by the check policy, because of its age"),
    ],
)
def test_what_a_policy_did_is_said(
    caplog: pytest.LogCaptureFixture, rolled_back: bool, because: ParkedBecause, says: str
) -> None:
    log_policy_action(PolicyActed(group="PG", tx_id="T1", rolled_back=rolled_back, because=because, checks=2))
    assert [record.getMessage() for record in caplog.records] == [says]
