"""When a transaction counts as ended: the three signs, on drivers that say much, little and nothing."""

from contextlib import nullcontext
from functools import partial
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
        detector.before(statement, product, before, partial(Status, before))
        detector.after(statement, product, then)
    return detector.ended_by


@pytest.mark.parametrize(
    ("steps", "ended_by"),
    [
        ([(INSERT, Status.NONE, Status.OPEN), (INSERT, Status.OPEN, Status.OPEN)], ""),
        ([("SELECT 1", Status.NONE, Status.NONE), (INSERT, Status.NONE, Status.OPEN)], ""),  # it begins with the INSERT
        ([("COMMIT", Status.NONE, Status.NONE), (INSERT, Status.NONE, Status.OPEN)], ""),  # nothing was open
        ([(INSERT, Status.NONE, Status.OPEN), ("CALL p()", Status.OPEN, Status.OPEN), (INSERT, Status.NONE, Status.OPEN)], "'CALL p()'"),
        ([(INSERT, Status.NONE, Status.NONE), (INSERT, Status.NONE, Status.NONE)], ""),  # flags that are never set
        ([(INSERT, Status.NONE, Status.NONE), ("COMMIT", Status.NONE, Status.NONE)], "'COMMIT'"),
        ([(INSERT, Status.NONE, Status.OPEN), ("BEGIN", Status.OPEN, Status.OPEN)], "'BEGIN'"),  # of MySQL: it commits
        ([(INSERT, Status.NONE, Status.OPEN), ("ROLLBACK TO a", Status.OPEN, Status.OPEN)], ""),
        ([(INSERT, Status.NONE, Status.OPEN), (INSERT, Status.NONE, Status.OPEN)], "the driver's connection"),
        ([("SELECT 1", Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE)], ""),  # nothing was changed
        ([("SAVEPOINT a", Status.NONE, Status.OPEN), ("RELEASE a", Status.OPEN, Status.NONE)], ""),
        ([(INSERT, Status.UNKNOWN, Status.UNKNOWN), ("COMMIT", Status.UNKNOWN, Status.UNKNOWN)], "'COMMIT'"),
        ([(INSERT, Status.NONE, Status.OPEN), ("ROLLBACK", Status.FAILED, Status.NONE)], "'ROLLBACK'"),
        ([(INSERT, Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE), (INSERT, Status.NONE, Status.OPEN)], "'COMMIT'"),
        ([("CREATE TABLE a (i INT)", Status.NONE, Status.NONE), ("CREATE TABLE b (i INT)", Status.NONE, Status.NONE)], ""),
        ([("WITH a AS (SELECT 1) SELECT 1", Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE)], ""),
        ([("WITH a AS (SELECT 1) DELETE b", Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE)], "'COMMIT'"),
        ([("-- a\n(SELECT 1)", Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE)], ""),
        ([("SET STATEMENT a=1 FOR INSERT b", Status.NONE, Status.OPEN), ("COMMIT", Status.OPEN, Status.NONE)], "'COMMIT'"),
    ],
)  # fmt: skip
def test_what_has_ended_it(steps: list[tuple[str, Status, Status]], ended_by: str) -> None:
    found = after(*steps)
    assert found.startswith(ended_by), found
    assert bool(found) == bool(ended_by)


def test_the_server_is_asked_only_if_there_is_something_to_lose() -> None:
    detector = EndDetector()
    detector.before(INSERT, "mysql", Status.NONE, lambda: pytest.fail("asked"))
    detector.failed("SELECT 1", "mysql", lambda: pytest.fail("asked"))
    detector.after(INSERT, "mysql", Status.OPEN)
    detector.failed(INSERT, "mysql", lambda: Status.OPEN)
    assert detector.ended_by == ""
    detector.failed(INSERT, "mysql", lambda: Status.NONE)
    assert detector.ended_by == f"{INSERT!r}, which failed,"


class Driver(NamedTuple):
    """Of MySQL. ``server_status``: None if it does not say."""

    server_status: Any = None


OPEN, NOTHING = Driver(1), Driver(2)


def test_on_postgresql_every_statement_may_change_rows() -> None:
    steps = ("SELECT place()", Status.NONE, Status.OPEN), ("ROLLBACK", Status.OPEN, Status.NONE)
    assert after(*steps, product="postgresql") == "'ROLLBACK'"


@pytest.mark.parametrize(
    "statement",
    [
        "CALL p()",
        " execute immediate 'ROLLBACK'",
        "/*! ROLLBACK */",
        "/*M! ROLLBACK */",
        "/* a */ CALL p()",
        "-- a\nCALL p()",
        "SET STATEMENT a=1 FOR CALL p()",
        "IF 1 THEN ROLLBACK; END IF",
        "BEGIN NOT ATOMIC ROLLBACK; END",
        "something new",
    ],
)
@pytest.mark.parametrize("status", [Status.NONE, Status.OPEN, Status.UNKNOWN])
def test_after_a_statement_that_hides_its_effect_the_server_is_asked(statement: str, status: Status) -> None:
    detector = EndDetector()
    detector.after("SELECT 1", "mysql", Status.OPEN)
    detector.before(INSERT, "mysql", Status.OPEN, lambda: pytest.fail("there is nothing to lose"))
    detector.after(INSERT, "mysql", Status.OPEN)
    detector.after(statement, "mysql", Status.OPEN)
    detector.before(INSERT, "mysql", Status.OPEN, lambda: status)
    assert bool(detector.ended_by) == (status is Status.NONE)
    detector.before(INSERT, "mysql", Status.OPEN, lambda: pytest.fail("asked twice"))


@pytest.mark.parametrize("about", ["SELECT ROW_COUNT()", "SELECT FOUND_ROWS ()", "SHOW WARNINGS"])
def test_no_question_comes_between_a_statement_and_what_is_asked_about_it(about: str) -> None:
    detector = EndDetector()
    detector.after(INSERT, "mysql", Status.OPEN)
    detector.after("CALL p()", "mysql", Status.OPEN)
    detector.before(about, "mysql", Status.NONE, lambda: pytest.fail("asked"))
    detector.after(about, "mysql", Status.NONE)
    detector.before(INSERT, "mysql", Status.NONE, lambda: Status.NONE)
    assert detector.ended_by == "'CALL p()'"


def test_where_the_server_says_nothing_the_text_counts() -> None:
    for statement, ended_by in (("CREATE TABLE t (i INT)", "'CREATE TABLE t (i INT)'"), ("CALL p()", "")):
        detector = EndDetector()
        detector.after(INSERT, "mysql", Status.UNKNOWN)
        detector.after(statement, "mysql", Status.UNKNOWN)
        detector.before(INSERT, "mysql", Status.UNKNOWN, lambda: Status.UNKNOWN)
        assert detector.ended_by == ended_by


@pytest.mark.parametrize("product", ["sqlite", "mysql"])
def test_of_a_statement_that_fails_some_rows_may_be_there(product: str) -> None:
    for now, ended_by in ((Status.OPEN, "'ROLLBACK'"), (Status.NONE, "")):
        detector = EndDetector()
        detector.failed(INSERT, product, partial(Status, now))
        detector.before("ROLLBACK", product, now, partial(Status, now))
        assert detector.ended_by == ended_by


def test_flags_that_go_down_are_asked_about_once() -> None:
    detector = EndDetector()
    detector.after(INSERT, "mysql", Status.OPEN)
    detector.before("SELECT 1", "mysql", Status.OPEN, lambda: pytest.fail("asked"))
    detector.before(INSERT, "mysql", Status.NONE, lambda: Status.OPEN)
    detector.before(INSERT, "mysql", Status.NONE, lambda: pytest.fail("asked twice"))
    assert detector.ended_by == ""


NO_VARIABLE = Exception(1193, "Unknown system variable")


class Server:
    """Answers queries. MySQL has no ``@@in_transaction``; its response to ``DO 1`` has the flags."""

    def __init__(self, driver: Driver, answers: dict[str, int]) -> None:
        self.driver, self.answers, self.asked = driver, answers, list[str]()

    def ask(self, query: str) -> object:
        self.asked.append(query)
        if query not in self.answers:
            raise NO_VARIABLE
        return self.answers[query]


@pytest.mark.parametrize(
    ("number", "driver", "answers", "status"),
    [
        (1213, OPEN, {}, Status.NONE),  # the flag may be stale
        (1020, OPEN, {}, Status.NONE),
        (1206, Driver(), {}, Status.NONE),
        (1062, NOTHING, {"SELECT @@in_transaction": 1}, Status.OPEN),  # whatever the flags say
        (1644, OPEN, {"SELECT @@in_transaction": 0}, Status.NONE),  # a procedure that has rolled back, and then failed
        (1062, OPEN, {"DO 1": 0}, Status.OPEN),
        (1644, NOTHING, {"DO 1": 0}, Status.NONE),
        (1644, OPEN, {}, Status.UNKNOWN),
        (1644, Driver(), {}, Status.UNKNOWN),  # MySQL by mysqlclient
        (1205, OPEN, {"SELECT @@innodb_rollback_on_timeout": 0}, Status.OPEN),
        (1205, OPEN, {"SELECT @@innodb_rollback_on_timeout": 1}, Status.NONE),
        (1205, Driver(), {}, Status.UNKNOWN),
    ],
)
def test_status_after_an_error_of_mysql(number: int, driver: Driver, answers: dict[str, int], status: Status) -> None:
    server = Server(driver, answers)
    assert status_after_error("mysql", driver, Exception(number, "text"), server.ask) is status


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
    detector = EndDetector()
    refuse_ended(detector, INSERT, "mysql", is_of_halfmq=True, savepoint="a savepoint")
    detector.ended_by = ended_by
    refuse_ended(detector, INSERT, "mysql", is_of_halfmq=False, savepoint="a savepoint")
    with pytest.raises(UsageError, match="has ended the database transaction before this row") as raised:
        refuse_ended(detector, INSERT, "mysql", is_of_halfmq=True, savepoint="a savepoint")
    assert hint in raised.value.hint


def test_what_follows_a_row_of_halfmq_in_a_transaction_that_has_ended_is_refused() -> None:
    detector = EndDetector()
    detector.ended_by, detector.has_rows = "'ROLLBACK'", True
    refuse_ended(detector, "ROLLBACK TO SAVEPOINT a", "mysql", is_of_halfmq=False, savepoint="a savepoint")
    with pytest.raises(UsageError, match="with a row of halfmq in it"):
        refuse_ended(detector, INSERT, "mysql", is_of_halfmq=False, savepoint="a savepoint")


@pytest.mark.parametrize(
    ("ended_by", "status", "problem"),
    [
        (f"{INSERT!r}, which failed,", Status.NONE, "which is rolled back"),
        ("'rollback'", Status.OPEN, "which is rolled back"),
        ("", Status.FAILED, "an earlier statement has failed"),
        ("", Status.OPEN, ""),
        ("'COMMIT'", Status.NONE, ""),  # it is committed
        ("'RELEASE SAVEPOINT a'", Status.NONE, ""),
    ],
)
def test_a_row_of_halfmq_that_was_rolled_back_is_not_committed_in_silence(
    ended_by: str, status: Status, problem: str
) -> None:
    detector = EndDetector()
    detector.failed(INSERT, "postgresql", lambda: status)
    detector.ended_by = ended_by
    detector.before_commit("postgresql", status, lambda: pytest.fail("asked"))  # there is none
    detector.has_rows = True
    with pytest.raises(UsageError, match=problem) if problem else nullcontext():
        detector.before_commit("postgresql", status, lambda: pytest.fail("asked"))
