"""Which savepoints are open, and what a rollback to one of them undoes."""

import pytest

from halfmq.sql.rules.statements import Savepoints


def after(*statements: str, product: str = "postgresql") -> tuple[list[str], list[str | None], str]:
    """(names of those that are open, names of those rolled back to, the rollback to an unknown one)."""
    savepoints = Savepoints()
    undone = [savepoints.executed(statement, product) for statement in statements]
    return (
        [one.name for one in savepoints.open],
        [one.name for one in undone if one is not None],
        savepoints.unknown_rollback,
    )


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["SELECT 1"], ([], [], "")),
        (["SAVEPOINT a", "SAVEPOINT b"], (["a", "b"], [], "")),
        (["SAVEPOINT a", "SAVEPOINT b", "RELEASE a"], ([], [], "")),
        (["SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a"], (["a"], ["a"], "")),
        (["SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO b", "ROLLBACK TO a"], (["a"], ["b", "a"], "")),
        (["SAVEPOINT a", "SAVEPOINT a", "RELEASE a"], (["a"], [], "")),
        (["SAVEPOINT a", "ROLLBACK TO x"], (["a"], [], "ROLLBACK TO x")),
        (["SAVEPOINT a", "RELEASE x"], (["a"], [], "")),
    ],
)
def test_statements(statements: list[str], expected: tuple[list[str], list[str], str]) -> None:
    assert after(*statements) == expected


def test_two_of_one_name_are_two() -> None:
    savepoints = Savepoints()
    for _ in range(2):
        savepoints.executed("SAVEPOINT a", "sqlite")
    outer, inner = savepoints.open
    assert savepoints.executed("ROLLBACK TO A", "sqlite") is inner
    savepoints.executed("RELEASE a", "sqlite")
    assert savepoints.executed("ROLLBACK TO a", "sqlite") is outer
