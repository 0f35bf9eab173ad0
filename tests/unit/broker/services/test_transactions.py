"""What operators see and decide, without a frame: who is meant, what is looked for where, what is kept, who is named."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.core_log import half, producer
from tests.support.durable_digest import durable_digest
from tests.support.services import CoreSequencer, FakePeer, HandLoop
from tests.support.steps import result_of

from halfmq.broker.services import transactions as transactions
from halfmq.broker.services.group_scan import WAITING_MAX, GroupScan
from halfmq.broker.services.settled_verdict_lookup import Found, Look, Missed, NotSearched
from halfmq.broker.services.transactions import CheckSent, Listing, Story, Transactions
from halfmq.core.commands import CheckNow, CheckParked, RequestedVerdict, ResolveTransaction, SettledRow
from halfmq.core.decision import ParkedChecked, Refused, Settled, Why
from halfmq.errors import StoreDamaged
from halfmq.model.records import DecidedBy, OperatorActed


class Stage:
    """The service over the real core; the transaction table says what ``look`` is, and remembers who was looked for."""

    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.core = self.sequencer.core
        self.loop = HandLoop()
        self.scan = GroupScan(self.core.state, self.loop)  # type: ignore[arg-type]
        self.look_result: Look = Missed("it is not in the table either")
        self.looked_for: list[tuple[str, str]] = []
        self.flushes = 0
        self.acted: Callable[[int], OperatorActed | None] = lambda position: None
        self.properties_at: Callable[[int], bytes] = lambda position: b""
        self.peer = FakePeer(9)
        self.answers: list[Any] = []
        self.service = Transactions(
            self.sequencer,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.scan,
            operator_of=lambda position: self.acted(position),
            user_of=lambda position: "",
            properties_at=lambda position: self.properties_at(position),
            flush=self.flush,
        )

    def now_ms(self) -> int:
        return self.core.now_ms

    def look(self, peer: Any, group: str, tx_id: str, then: Callable[[Look], None]) -> None:
        self.looked_for.append((group, tx_id))
        then(self.look_result)

    def flush(self) -> None:
        self.flushes += 1

    def half(self, tx_id: str, group: str = "PG") -> None:
        self.core.do(half(tx_id, group=group))

    def listed(self, group: str, count_max: int, start: int) -> Listing:
        return result_of(self.service.undecided(group, count_max, start))

    def story(self, tx_id: str, group: str = "") -> Any:
        self.service.story(self.peer, tx_id, group, self.answers.append)
        return self.answers[-1]

    def resolve(
        self, tx_id: str, group: str = "", wanted: RequestedVerdict = RequestedVerdict.COMMIT, **who: str
    ) -> Any:
        named = {"operator": "ada", "reason": "ticket 4711", **who}
        self.service.resolve(self.peer, tx_id, group, wanted, answer=self.answers.append, **named)
        return self.answers[-1]

    def ask(self, tx_id: str, group: str = "") -> Any:
        self.service.ask(self.peer, tx_id, group, self.answers.append)
        return self.answers[-1]

    def undecided_of(self, ids: list[str], group: str = "") -> None:
        self.service.undecided_of(self.peer, ids, group, self.answers.append)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def row(wanted: bool = True, position: int = 7) -> SettledRow:
    return SettledRow(0, 0, wanted, position, 0, 0, DecidedBy.OPERATOR, 1_000, 1)


def ids_of(listing: Listing) -> list[str]:
    return [one.tx_id for one in listing.rows]


# --- lists


def test_one_group_is_listed_page_by_page_the_oldest_first(stage: Stage) -> None:
    for number in range(5):
        stage.half(f"T{number}")
    stage.half("other", "Q")
    first = stage.listed("PG", 2, 0)
    assert (first.total, first.at_ms, first.following, ids_of(first)) == (5, stage.core.now_ms, 2, ["T0", "T1"])
    assert ids_of(stage.listed("PG", 2, 2)) == ["T2", "T3"]
    last = stage.listed("PG", 2, 4)
    assert (last.following, ids_of(last)) == (0, ["T4"])
    assert stage.listed("PG", 2, 99) == Listing(5, stage.core.now_ms, 0, ())
    assert stage.listed("nobody", 2, 0) == Listing(0, stage.core.now_ms, 0, ())


def test_all_groups_are_listed_by_pages_of_groups(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "GROUPS_PER_PAGE_MAX", 2)
    for group in "ABC":
        stage.half(f"of-{group}", group)
    first = stage.listed("", 10, 0)
    assert (first.total, ids_of(first)) == (3, ["of-A", "of-B"])
    second = stage.listed("", 10, first.following)
    assert (second.following, ids_of(second)) == (0, ["of-C"])


@pytest.mark.parametrize(("asked", "listed"), [(0, 1), (-5, 1), (3, 2)])
def test_a_page_has_one_row_at_least_and_no_more_than_may_be(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, asked: int, listed: int
) -> None:
    monkeypatch.setattr(transactions, "LISTED_MAX", 2)
    for number in range(4):
        stage.half(f"T{number}")
    assert len(stage.listed("PG", asked, 0).rows) == listed


def test_a_row_has_the_notes_of_its_first_half_where_that_can_be_read(stage: Stage) -> None:
    stage.half("T0")
    stage.half("T1")
    stage.half("T2")
    first, second, third = (
        known.halves[0].offset for known in stage.core.state.producer_groups["PG"].undecided.values()
    )
    read: list[int] = []

    def properties_at(position: int) -> bytes:
        read.append(position)
        if position == second:
            raise StoreDamaged("gone")
        return b"HMQ_TX_NAME\x01order\x02HMQ_ADVICE\x01COMMIT\x02HMQ_COMMENT\x01ask" if position == first else b"a\x01b"

    stage.properties_at = properties_at
    rows = stage.listed("PG", 10, 0).rows
    assert [(row.name, row.advice, row.comment) for row in rows] == [
        ("order", "COMMIT", "ask"),
        ("", "", ""),
        ("", "", ""),
    ]
    assert read == [first, second, third]
    told = " ".join(stage.story("T0", "PG").sentences)
    assert "Its application advises: if in doubt, commit. Comment: ask." in told
    assert "advises" not in " ".join(stage.story("T2", "PG").sentences)


def test_a_transaction_that_is_settled_while_a_page_is_read_keeps_its_row(stage: Stage) -> None:
    for number in range(40):
        stage.half(f"T{number}")
    stage.properties_at = lambda position: b"HMQ_COMMENT\x01ask"
    steps = stage.service.undecided("PG", 100, 0)
    next(steps)
    stage.core.do(ResolveTransaction("PG", "T39", RequestedVerdict.ROLLBACK, "ada"))
    rows = result_of(steps).rows
    assert (len(rows), rows[0].comment, rows[39].comment) == (40, "ask", "")


# --- stories


def test_story_finds_the_group_and_asks_the_table_only_for_what_memory_does_not_know(stage: Stage) -> None:
    stage.half("T1", "Q")
    told = stage.story("T1")
    assert (told.group, told.state) == ("Q", "UNDECIDED")
    assert "prepared by producer group Q" in told.sentences[0]
    assert (stage.looked_for, stage.flushes > 0) == ([], True)
    assert stage.story("T2").state == "UNKNOWN"
    assert stage.looked_for == [("", "T2")]
    assert "It is not in the table either." in " ".join(stage.answers[-1].sentences)


def test_story_of_a_forgotten_verdict_names_the_operator_whom_the_log_has(stage: Stage) -> None:
    asked: list[int] = []

    def acted(position: int) -> OperatorActed:
        asked.append(position)
        raise LookupError

    stage.look_result = Found("Q", row(False))
    stage.acted = acted
    told = stage.story("T1", "Q")
    assert isinstance(told, Story)
    assert (told.group, told.state, asked) == ("Q", "ROLLED_BACK", [7])
    assert "decided by an operator" in told.sentences[0]


def test_story_of_a_recent_verdict_by_hand_stands_when_its_audit_record_cannot_be_read(stage: Stage) -> None:
    def acted(position: int) -> OperatorActed:
        raise StoreDamaged("damaged")

    stage.acted = acted
    stage.half("T1")
    stage.resolve("T1")
    told = stage.story("T1")
    assert told.state == "COMMITTED"
    assert "decided by an operator" in told.sentences[0]


def test_story_is_refused_for_now_when_the_table_was_not_looked_at(stage: Stage) -> None:
    stage.look_result = NotSearched("many verdicts are looked for")
    assert stage.story("T1") == Refused(Why.NOT_NOW, "many verdicts are looked for")
    stage.half("T1")
    assert stage.story("T1").state == "UNDECIDED"


# --- verdicts and checks by hand


@pytest.mark.parametrize("call", ["story", "resolve", "ask"])
def test_who_is_meant_must_be_possible_and_one(stage: Stage, call: str) -> None:
    asked: Callable[..., Any] = getattr(stage, call)
    for number in range(12):
        stage.half("same", f"G{number}")
    before = durable_digest(stage.core.state)
    for tx_id, group, text in (
        ("", "", "txId: which transaction, 1 to 64 characters"),
        ("x" * 65, "PG", "txId: which transaction, 1 to 64 characters"),
        ("T1", "g" * 121, "group: at most 120 characters"),
        ("same", "", "group: G0, G1, G2, G3, G4, G5, G6, G7, G8, G9 and others each have a transaction same; say which group"),
    ):  # fmt: skip
        assert asked(tx_id, group) == Refused(Why.INVALID_PARAMETER, text)
    assert (stage.sequencer.commands, durable_digest(stage.core.state)) == ([], before)


@pytest.mark.parametrize("call", ["story", "resolve", "ask"])
def test_too_many_searches_of_all_groups_are_refused(stage: Stage, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.broker.services.group_scan.EXAMINED_PER_TURN_MAX", 1)
    for group in "ABC":
        stage.half("T1", group)
    while stage.scan.run(stage.peer, lambda group: 0, lambda: None) is None:  # type: ignore[arg-type]
        pass
    refused = getattr(stage, call)("T1")
    assert (refused.why, "name the group" in refused.text) == (Why.NOT_NOW, True)


def test_verdict_by_hand_names_who_decides_in_the_command_and_in_the_output(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfmq.operators")
    stage.half("T1")
    settled = stage.resolve("T1")
    assert isinstance(settled, Settled)
    assert (settled.group, settled.committed, settled.repeated) == ("PG", True, False)
    (command,) = stage.sequencer.commands
    assert isinstance(command, ResolveTransaction)
    assert (command.group, command.operator, command.by) == ("PG", "ada", ("ada", "ticket 4711", "10.0.0.7:9"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "operator ada from 10.0.0.7:9 decided: COMMIT of transaction T1 of group PG at position "
        f"{settled.position}, reason: ticket 4711"
    )
    assert stage.resolve("T1").repeated
    assert stage.resolve("T1", wanted=RequestedVerdict.ROLLBACK).why is Why.VERDICT_CONFLICT
    assert [kind for kind, _, _ in stage.peer.said] == ["repeated", "verdict"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("operator", ["", "  ", "a\nWARNING forged", "a" * 65])
def test_verdict_without_a_name_is_refused_before_anything_is_looked_for(stage: Stage, operator: str) -> None:
    refused = stage.resolve("", operator=operator)
    assert refused == Refused(Why.INVALID_PARAMETER, "operator: who decides, 1 to 64 characters")
    assert (stage.sequencer.commands, stage.looked_for) == ([], [])


def test_verdict_is_answered_when_it_is_durable(stage: Stage) -> None:
    stage.half("T1")
    stage.sequencer.is_held = True
    stage.service.resolve(stage.peer, "T1", "PG", RequestedVerdict.COMMIT, "ada", "", stage.answers.append)
    assert stage.answers == []
    stage.sequencer.release()
    assert isinstance(stage.answers[0], Settled)


@pytest.mark.parametrize("call", ["resolve", "ask"])
def test_what_memory_has_forgotten_is_decided_again_with_its_row(stage: Stage, call: str) -> None:
    stage.look_result = Found("Q", row())
    getattr(stage, call)("T1")
    assert stage.looked_for == [("", "T1")]
    first, again = stage.sequencer.commands
    assert isinstance(again, ResolveTransaction | CheckNow)
    assert (first.group, first.settled, again.group, again.settled) == ("", None, "Q", row())


@pytest.mark.parametrize(
    ("look", "why"), [(Missed("nor in the table"), Why.NOT_FOUND), (NotSearched("ask again"), Why.NOT_NOW)]
)
def test_what_nobody_knows_is_refused_with_where_was_looked(stage: Stage, look: Look, why: Why) -> None:
    stage.look_result = look
    for refused in (stage.resolve("T1", "PG"), stage.ask("T1", "PG")):
        assert refused.why is why
        assert refused.text.endswith(f"; {look.text}")  # type: ignore[union-attr]
    assert stage.flushes == 2


def test_check_on_request_says_whom_it_goes_to(stage: Stage) -> None:
    stage.half("T1")
    assert stage.ask("T1").why is Why.NOT_NOW, "it is immune"
    stage.core.later(60_000)
    stage.core.session(producer(3, stage.core.now_ms))
    assert stage.ask("T1") == CheckSent("PG", "client-3", 1)


def test_checks_about_what_was_parked_need_a_group(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "halfmq.operators")
    stage.service.ask_parked(stage.peer, "", 5, stage.answers.append)
    assert stage.answers == [Refused(Why.INVALID_PARAMETER, "group: which producer group")]
    assert stage.sequencer.commands == []
    stage.half("T1")
    stage.service.ask_parked(stage.peer, "PG", 5_000, stage.answers.append)
    assert stage.sequencer.commands == [CheckParked("PG", 1_000)]
    assert isinstance(stage.answers[-1], ParkedChecked | Refused)
    assert caplog.records == [], "nobody is asked"


# --- which of these are undecided


def test_those_of_a_group_are_told_at_once_and_nothing_is_kept(stage: Stage) -> None:
    stage.half("T1")
    stage.half("T2", "Q")
    stage.undecided_of(["T2", "T1", "never"], "PG")
    assert (stage.answers, stage.peer.kept) == ([["T1"]], 0)


def test_those_of_any_group_are_told_in_the_order_asked_and_ids_are_kept_for_as_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfmq.broker.services.group_scan.EXAMINED_PER_TURN_MAX", 1)
    for group in "ABC":
        stage.half(f"of-{group}", group)
    stage.undecided_of(["of-C", "x" * 65, "never", "of-A"])
    assert (stage.answers, stage.peer.kept) == ([], 1_024 + 3 * 256)
    while stage.loop.turn():
        pass
    assert (stage.answers, stage.peer.kept, stage.flushes) == ([["of-C", "of-A"]], 0, 1)


def test_nothing_is_kept_of_a_search_that_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.broker.services.group_scan.EXAMINED_PER_TURN_MAX", 1)
    for group in "ABC":
        stage.half("T1", group)
    for _ in range(WAITING_MAX):
        stage.scan.run(stage.peer, lambda group: 0, lambda: None)  # type: ignore[arg-type]
    stage.undecided_of(["T1"])
    assert (stage.answers[0].why, stage.peer.kept) == (Why.NOT_NOW, 0)
