"""A check is at a time or parked, and is one number wherever it is stored."""

import pytest

from halfmq.core.transaction.next_check import ParkedCheck, from_number, is_due, to_number
from halfmq.errors import InvariantViolated
from halfmq.model.records import PARKED_MS, ParkedBecause


def test_a_time_is_due_when_it_has_come_and_what_is_parked_never_is() -> None:
    assert [is_due(at_ms, 100) for at_ms in (99, 100, 101)] == [True, True, False]
    assert not any(is_due(one, 1 << 63) for one in ParkedCheck)


def test_what_is_stored_comes_back() -> None:
    assert [from_number(to_number(check)) for check in (0, 7, PARKED_MS - 1, *ParkedCheck)] == [
        0, 7, PARKED_MS - 1, *ParkedCheck,
    ]  # fmt: skip


def test_each_reason_has_the_number_that_files_have_had_for_it() -> None:
    assert [to_number(ParkedCheck.because(reason)) for reason in ParkedBecause] == [(1 << 62) + 1, (1 << 62) + 2]
    assert len(ParkedCheck) == len(ParkedBecause)


@pytest.mark.parametrize("number", [PARKED_MS, PARKED_MS + 3])
def test_a_reason_that_there_is_not_is_refused(number: int) -> None:
    with pytest.raises(InvariantViolated, match=f"reason {number - PARKED_MS}"):
        from_number(number)
