"""What is refused inside a block, and which errors say that its transaction is over."""

import pytest

from halfmq.sql.rules.transaction_proof import (
    Refusal,
    Status,
    is_committable,
    is_failed_transaction,
    is_missing_savepoint,
    refusal,
)


@pytest.mark.parametrize(
    ("statement", "status", "expected"),
    [
        ("INSERT INTO t VALUES (1)", Status.OPEN, None),
        ("INSERT INTO t VALUES (1)", Status.UNKNOWN, None),
        ("INSERT INTO t VALUES (1)", Status.FAILED, None),  # the database says so itself
        ("INSERT INTO t VALUES (1)", Status.NONE, Refusal.HAS_ENDED),
        ("SAVEPOINT a", Status.OPEN, None),
        ("SAVEPOINT a", Status.NONE, Refusal.HAS_ENDED),
        ("ROLLBACK TO a", Status.OPEN, None),
        ("COMMIT", Status.OPEN, Refusal.WOULD_END),
        ("ROLLBACK", Status.UNKNOWN, Refusal.WOULD_END),
        ("COMMIT", Status.NONE, Refusal.WOULD_END),
    ],
)
def test_refusal(statement: str, status: Status, expected: Refusal | None) -> None:
    assert refusal(statement, "postgresql", status) is expected


def test_commit_is_sent_unless_the_driver_says_that_it_cannot_commit() -> None:
    assert {status for status in Status if is_committable(status)} == {Status.OPEN, Status.UNKNOWN}


class Driver(Exception):
    sqlstate = "25P02"


def test_errors() -> None:
    assert is_failed_transaction(Driver())
    assert not is_failed_transaction(Exception("25P02"))
    assert is_missing_savepoint(Exception("no such savepoint: halfmq_1"))
    assert is_missing_savepoint(Exception(1305, "SAVEPOINT halfmq_1 does not exist"))
    assert not is_missing_savepoint(Exception("disk I/O error"))
