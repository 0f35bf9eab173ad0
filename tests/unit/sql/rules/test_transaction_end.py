"""When a transaction counts as ended: the three signs, on drivers that say much, little and nothing."""

from typing import Any, NamedTuple

import pytest

from halfmq.errors import UsageError
from halfmq.sql.rules.transaction_end import EndDetector, refuse_ended, status_after_error
from halfmq.sql.rules.transaction_proof import Status

INSERT = "INSERT INTO orders VALUES (1)"


def after(*steps: tuple[str, Status, Status], product: str = "mysql") -> str:
    """What has ended the transaction after statements, each with the status before and after it."""
    detector = EndDetector()
    for statement, before, then in steps:
        detector.before(statement, product, before)
        detector.after(statement, then)
    return detector.ended_by


@pytest.mark.parametrize(
    ("steps", "ended_by"),
    [
        ([(INSERT, Status.NONE, Status.OPEN), (INSERT, Status.OPEN, Status.OPEN)], ""),
        ([("SELECT 1", Status.NONE, Status.NONE), (INSERT, Status.NONE, Status.OPEN)], ""),  # it begins with the INSERT
        ([("COMMIT", Status.NONE, Status.NONE), (INSERT, Status.NONE, Status.OPEN)], ""),  # nothing was open
        ([(INSERT, Status.NONE, Status.OPEN), ("CALL p()", Status.OPEN, Status.NONE)], "'CALL p()'"),
        ([(INSERT, Status.NONE, Status.OPEN), ("BEGIN", Status.OPEN, Status.OPEN)], "'BEGIN'"),  # of MySQL: it commits
        ([(INSERT, Status.NONE, Status.OPEN), ("ROLLBACK TO a", Status.OPEN, Status.OPEN)], ""),
        ([(INSERT, Status.NONE, Status.OPEN), (INSERT, Status.NONE, Status.OPEN)], "the driver's connection"),
        ([(INSERT, Status.UNKNOWN, Status.UNKNOWN), ("COMMIT", Status.UNKNOWN, Status.UNKNOWN)], "'COMMIT'"),
        ([(INSERT, Status.NONE, Status.OPEN), ("ROLLBACK", Status.FAILED, Status.NONE)], "'ROLLBACK'"),
        ([(INSERT, Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE), (INSERT, Status.NONE, Status.OPEN)], "'COMMIT'"),
    ],
)  # fmt: skip
def test_what_has_ended_it(steps: list[tuple[str, Status, Status]], ended_by: str) -> None:
    found = after(*steps)
    assert found.startswith(ended_by), found
    assert bool(found) == bool(ended_by)


def test_the_server_is_asked_only_if_there_is_something_to_lose() -> None:
    detector = EndDetector()
    detector.before(INSERT, "mysql", Status.NONE)
    detector.failed(INSERT, lambda: pytest.fail("asked"))
    detector.after(INSERT, Status.OPEN)
    detector.failed(INSERT, lambda: Status.OPEN)
    assert detector.ended_by == ""
    detector.failed(INSERT, lambda: Status.NONE)
    assert detector.ended_by == f"{INSERT!r}, which failed,"


class Driver(NamedTuple):
    """Of MySQL. ``server_status``: None if it does not say."""

    server_status: Any = None


OPEN, NOTHING = Driver(1), Driver(2)


@pytest.mark.parametrize(
    ("number", "driver", "answers", "status"),
    [
        (1213, OPEN, {}, Status.NONE),  # the flag may be stale
        (1020, OPEN, {}, Status.NONE),
        (1206, Driver(), {}, Status.NONE),
        (1062, OPEN, {"SELECT 1": 1}, Status.OPEN),
        (1644, NOTHING, {"SELECT 1": 1}, Status.NONE),  # a procedure that has rolled back, and then failed
        (1062, Driver(), {"SELECT @@in_transaction": 1}, Status.OPEN),
        (1644, Driver(), {"SELECT @@in_transaction": 0}, Status.NONE),
        (1644, Driver(), {}, Status.UNKNOWN),  # MySQL by mysqlclient
        (1205, OPEN, {"SELECT @@innodb_rollback_on_timeout": 0}, Status.OPEN),
        (1205, OPEN, {"SELECT @@innodb_rollback_on_timeout": 1}, Status.NONE),
        (1205, Driver(), {}, Status.UNKNOWN),
    ],
)
def test_status_after_an_error_of_mysql(number: int, driver: Driver, answers: dict[str, int], status: Status) -> None:
    assert status_after_error("mysql", driver, Exception(number, "text"), answers.__getitem__) is status


def test_other_databases_are_not_asked() -> None:
    class Sqlite(NamedTuple):
        in_transaction: bool

    for is_open, status in ((True, Status.OPEN), (False, Status.NONE)):
        assert status_after_error("sqlite", Sqlite(is_open), Exception("text"), pytest.fail) is status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended_by", "hint"),
    [
        (f"{INSERT!r}, which failed,", "put a statement whose error you catch into a savepoint"),
        ("'COMMIT'", "leave COMMIT and ROLLBACK to the library"),
        ("'RELEASE SAVEPOINT a'", "write one before the first savepoint"),
    ],
)
def test_the_refusal_says_what_to_do(ended_by: str, hint: str) -> None:
    refuse_ended("", "a savepoint")
    with pytest.raises(UsageError, match="has ended the database transaction before this row") as raised:
        refuse_ended(ended_by, "a savepoint")
    assert hint in raised.value.hint
