"""The table of lettered cases: every combination of what a start may find matches exactly one."""

from collections.abc import Callable
from itertools import product

import pytest

from halfmq.store.recovery_cases import CASES, Act, Checkpoint, Evidence, Log, OldestSegment, Tail, case_of

ALL = [Evidence(*found) for found in product(Log, Checkpoint, OldestSegment, Tail)]


@pytest.mark.parametrize("evidence", ALL)
def test_exactly_one_case_matches(evidence: Evidence) -> None:
    assert [case.letter for case in CASES if case.matches(evidence)] == [case_of(evidence).letter]


def test_every_case_is_reached_and_has_its_own_letter_and_sentence() -> None:
    assert {case_of(evidence).letter for evidence in ALL} == {case.letter for case in CASES}
    assert len({case.letter for case in CASES}) == len({case.says for case in CASES}) == len(CASES)


def where(condition: Callable[[Evidence], bool]) -> list[Evidence]:
    found = [evidence for evidence in ALL if condition(evidence)]
    assert found, "nothing to look at"
    return found


def test_corruption_is_always_refused_where_the_log_was_read() -> None:
    for evidence in where(lambda one: one.log is Log.WHOLE and one.tail is Tail.CORRUPT):
        assert case_of(evidence).act is Act.REFUSE, evidence


def test_only_a_torn_tail_is_cut() -> None:
    for evidence in where(lambda one: case_of(one).cut):
        assert evidence.tail is Tail.TORN, evidence
        assert case_of(evidence).act is not Act.REFUSE, evidence


def test_a_torn_tail_that_is_not_cut_is_refused() -> None:
    for evidence in where(lambda one: one.tail is Tail.TORN and one.log is Log.WHOLE and not case_of(one).cut):
        assert case_of(evidence).act is Act.REFUSE, evidence


def test_a_snapshot_is_used_only_where_it_can_be() -> None:
    for evidence in where(lambda one: case_of(one).act is Act.REDO_FROM_SNAPSHOT):
        assert evidence.checkpoint is Checkpoint.USABLE, evidence


def test_an_empty_start_never_forgets_a_log() -> None:
    for evidence in where(lambda one: case_of(one).act is Act.START_EMPTY):
        assert evidence.log is Log.EMPTY or evidence.front is OldestSegment.BLANK, evidence
        assert evidence.checkpoint is not Checkpoint.USABLE, evidence
