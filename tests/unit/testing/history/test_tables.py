"""Rows that exceed the memory budget come back from the database: all of them, complete, and in order."""

import random

import pytest

from halfmq.testing.history.tables import GroupedTable, Row, SortedTable, Tables

#: More than the memory budget below.
MUCH = 1 << 30


@pytest.fixture
def tables() -> Tables:
    return Tables(8 << 20)


@pytest.mark.parametrize("spills", [(), (1_000, 1_001, 3_000), range(0, 5_000, 100), (4_999,)])
def test_groups_contain_all_rows_of_a_key(tables: Tables, spills: tuple[int, ...]) -> None:
    table = GroupedTable(tables, "rows")
    rng = random.Random(1)
    rows = [(f"k{rng.randrange(200)}", number, None) for number in range(5_000)]
    for number, row in enumerate(rows):
        table.add(row)
        if number in spills:
            assert tables.bound(MUCH)
            assert tables.rows_held == 0
    assert len(table) == len(rows)
    groups = list(table.groups())
    assert sorted(row for group in groups for row in group) == sorted(rows)
    assert all({row[0] for row in group} == {group[0][0]} for group in groups)
    assert len(groups) == 200
    assert bool(tables.spilled_bytes) == bool(spills)
    assert len(table) == 0
    assert list(table.groups()) == []


def test_a_table_can_be_filled_again_after_it_was_read(tables: Tables) -> None:
    table = GroupedTable(tables, "rows")
    for number in (1, 2):
        table.add(("a", number))
        tables.bound(MUCH)
        assert list(table.groups()) == [[("a", number)]]
    table.add(("a", 3))
    assert list(table.groups()) == [[("a", 3)]]


def test_other_tables_are_filled_and_spilled_while_groups_are_read(tables: Tables) -> None:
    first, second = GroupedTable(tables, "first"), GroupedTable(tables, "second")
    for number in range(100):
        first.add((f"k{number}", number))
    tables.bound(MUCH)
    for group in first.groups():
        second.add(("all", group[0][1]))
        tables.bound(MUCH)
    (group,) = second.groups()
    assert sorted(row[1] for row in group) == list(range(100))


@pytest.mark.parametrize("spills", [(), (0, 700, 1_400, 2_100, 2_800)])
def test_rows_are_sorted(tables: Tables, spills: tuple[int, ...]) -> None:
    table = SortedTable(tables, "rows", 2)
    rng = random.Random(2)
    rows: list[Row] = [(rng.randrange(9), number, f"m{number}") for number in range(3_000)]
    rng.shuffle(rows)
    for number, row in enumerate(rows):
        table.add(row)
        if number in spills:
            tables.bound(MUCH)
    assert list(table.sorted()) == sorted(rows)


def test_nothing_is_spilled_while_everything_fits(tables: Tables) -> None:
    table = SortedTable(tables, "rows", 1)
    for row in ((2,), (1,)):
        table.add(row)
    assert not tables.bound(1_000)
    assert list(table.sorted()) == [(1,), (2,)]
    assert tables.spilled_bytes == 0
