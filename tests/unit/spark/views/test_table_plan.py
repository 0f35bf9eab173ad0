"""Which rows of the transaction table a task reads."""

import pickle

import numpy as np
import pytest
from tests.unit.spark.views.test_table_rows import table

from halfmq.spark.views.table_plan import TableSnapshot, UndecidedRows, plan_halves, plan_transactions, runs

SNAPSHOT = TableSnapshot("ab" * 16, 9_000, 0, 0, 1_000)
NONE = UndecidedRows(np.empty(0, np.int64), table())
#: Transaction 1 has the halves 5, 400 and 999, transaction 2 only 6, transaction 3 the halves 7 and 8.
OPEN = UndecidedRows(
    np.array([5, 6, 7, 8, 400, 999], np.int64),
    table(
        *[{"id_hash": number, "halves": halves} for number, halves in ((1, 0), (2, 1), (3, 0), (3, 2), (1, 0), (1, 3))]
    ),
)


@pytest.mark.parametrize("tasks", [1, 3, 7])
def test_every_row_is_in_one_task_and_so_is_every_undecided_transaction_of_several_halves(tasks: int) -> None:
    plan = plan_transactions(SNAPSHOT, 0, 1_000, OPEN, tasks, must_have=False)
    assert len(plan) == tasks
    assert [at for one in plan for at in range(one.start, one.end)] == list(range(1_000))
    groups = [group.tolist() for one in plan for group in one.groups]
    assert sorted(groups) == [[5, 400, 999], [7, 8]]
    for one in plan:
        assert all(one.start <= group[0] < one.end for group in one.groups)
        assert one.open_halves.tolist() == [half for half in (5, 7, 8, 400, 999) if one.start <= half < one.end]


def test_a_transaction_belongs_to_its_lowest_half() -> None:
    (task,) = plan_transactions(SNAPSHOT, 6, 500, OPEN, 1, must_have=True)
    assert [group.tolist() for group in task.groups] == [[7, 8]]
    assert task.open_halves.tolist() == [7, 8, 400], "the half 400 is of a transaction that began before"
    assert task.must_have


def test_nothing_to_read() -> None:
    assert plan_transactions(SNAPSHOT, 5, 5, OPEN, None, must_have=False) == []
    assert plan_transactions(SNAPSHOT, 7, 5, NONE, 3, must_have=False) == []
    assert plan_halves(SNAPSHOT, 0, 1_000, NONE, None) == []
    assert plan_halves(SNAPSHOT, 9, 400, OPEN, None) == []


@pytest.mark.parametrize("tasks", [1, 2, 4, 100])
def test_halves_are_divided_by_bytes(tasks: int) -> None:
    halves = np.arange(0, 200, 2)
    rows = table(*[{"message_bytes": 10_000 if half == 100 else 10, "halves": 1} for half in halves])
    plan = plan_halves(SNAPSHOT, 0, 1_000, UndecidedRows(halves, rows), tasks)
    assert 1 <= len(plan) <= tasks
    found = [half for one in plan for half in range(one.start, one.end) if half % 2 == 0]
    assert found == halves.tolist()
    if tasks == 4:
        assert len(plan) > 1


def test_a_task_can_be_sent_to_an_executor() -> None:
    (task,) = plan_transactions(SNAPSHOT, 0, 1_000, OPEN, 1, must_have=False)
    again = pickle.loads(pickle.dumps(task))
    assert again.snapshot == SNAPSHOT
    assert repr(again) == "TableRange(0 to 1000, 2 undecided transactions of several halves)"


def test_rows_near_each_other_are_read_together() -> None:
    assert runs(np.array([], np.int64)) == []
    found = runs(np.array([3, 5, 9, 2_000, 32_767, 32_768]))
    assert found == [(3, 10), (2_000, 2_001), (32_767, 32_768), (32_768, 32_769)]
