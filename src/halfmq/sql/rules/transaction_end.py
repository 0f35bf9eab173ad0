"""Notices that a database transaction has ended although nobody ended it through the library, from its begin on.

A deadlock on MariaDB rolls all of it back, ``INSERT OR ROLLBACK`` on SQLite, COMMIT as text anywhere. The driver begins the next one
without a word, so an application that catches the error and goes on would write its messages without the rows before them.
``transaction_proof`` shows this from the first row of halfmq on; what ended before that row is known here, and the row is refused.

What may end it is seen in three ways: the text of a statement, the driver's word on its connection, and on MySQL and MariaDB a question to
the server, after an error and after a statement whose text hides what it does. Only what has changed rows can be lost.
"""

import re
from collections.abc import Callable
from typing import Final

from halfmq.errors import UsageError
from halfmq.sql.rules.driver_errors import mysql_error_number, sqlstate
from halfmq.sql.rules.statements import Effect, first_word, first_words, read
from halfmq.sql.rules.transaction_proof import Status, driver_status, has_flags

_MYSQL: Final = frozenset({"mysql", "mariadb"})
#: MySQL and MariaDB: InnoDB has rolled back all of the transaction. A record has changed since the snapshot (MariaDB), too many locks, a
#: deadlock. The server's flag may still say that it is open: seen in one of some hundred deadlocks, MariaDB 10.11.
_ROLLED_BACK: Final = frozenset({1020, 1206, 1213})
_LOCK_WAIT_TIMEOUT: Final = 1205
FAILED: Final = ", which failed,"
_HINT_FAILED: Final = "roll back, and run all of it again; put a statement whose error you catch into {}"
_UNSEEN: Final = "the driver's connection was committed or rolled back, which"
#: First words of statements that change no row, WITH if it has none of ``_CHANGES``. PostgreSQL's functions may, so there every statement
#: counts; those of MySQL and MariaDB may as well, which is not seen.
_READS: Final = frozenset(
    {
        "SELECT",
        "VALUES",
        "SHOW",
        "SET",
        "USE",
        "DESC",
        "DESCRIBE",
        "EXPLAIN",
        "PRAGMA",
        "SAVEPOINT",
        "RELEASE",
        "ROLLBACK",
    }
)
_CHANGES: Final = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)
#: MySQL and MariaDB: first words of statements that leave the transaction open, unless ``read`` says otherwise. Any other one may have
#: ended it: a procedure, a prepared statement, a comment that is executed, one that commits only sometimes.
_LEAVE_OPEN: Final = _READS | {
    "WITH",
    "TABLE",
    "INSERT",
    "UPDATE",
    "DELETE",
    "REPLACE",
    "DO",
    "XA",
    "PREPARE",
    "DEALLOCATE",
    "GET",
}
#: MariaDB: one statement with settings of its own, such as ``SET STATEMENT max_statement_time=5 FOR CALL p()``.
_SET_STATEMENT: Final = re.compile(r"[^'\"]*?\bSET\s+STATEMENT\b", re.IGNORECASE)
#: MySQL and MariaDB: about the statement before, so that no question may come between.
_ABOUT_THE_LAST: Final = re.compile(
    r"\b(?:ROW_COUNT|FOUND_ROWS)\s*\(|\b(?:WARNINGS|ERRORS|DIAGNOSTICS)\b", re.IGNORECASE
)
#: MySQL and MariaDB: always a new transaction, or none.
_END_FOR_SURE: Final = frozenset({"COMMIT", "ROLLBACK", "BEGIN", "START"})


class EndDetector:
    """One transaction of a connection. ``before`` and ``after`` each statement, ``failed`` instead of ``after``.

    ``ask``: see ``asked_status``; called if there is something to lose, and on MySQL and MariaDB only.
    """

    __slots__ = ("_doubtful", "_has_changed", "_has_failed", "_was_open", "ended_by", "has_rows")

    def __init__(self) -> None:
        #: What has ended it, for people; empty: it goes on.
        self.ended_by = ""
        #: A row of halfmq was written in it; the caller sets that.
        self.has_rows = False
        #: There is something to lose. A driver opens the transaction with its first statement only.
        self._has_changed = False
        #: PostgreSQL: the last statement has failed, so that all are rolled back, or those since a savepoint.
        self._has_failed = False
        #: MySQL and MariaDB: the flags have said so since the server was asked. They are those of responses without rows only.
        self._was_open = False
        #: MySQL and MariaDB: a statement after which only the server knows whether the transaction is open; empty: none.
        self._doubtful = ""

    def before(self, statement: str, product: str, status: Status, ask: Callable[[], Status]) -> None:
        """``status``: of the connection, before ``statement``."""
        if not self._has_changed or self.ended_by:
            return
        if product in _MYSQL:
            if _ABOUT_THE_LAST.search(statement):
                return
            self._settle_doubts(product, status, ask)
        elif status is Status.NONE:
            self.ended_by = _UNSEEN
        is_sure = product not in _MYSQL or first_word(statement) in _END_FOR_SURE
        if is_sure and not self.ended_by and would_end(statement, product):
            self.ended_by = first_words(statement)

    def after(self, statement: str, product: str, status: Status) -> None:
        """``status``: of the connection, after ``statement``, which has succeeded."""
        self._has_failed = False
        self._was_open |= status is Status.OPEN
        if not self._has_changed:
            # PostgreSQL is in no transaction if each statement is committed by itself, and SQLite until a row is written.
            is_open = status is not Status.NONE or product in _MYSQL
            self._has_changed = is_open and _may_change(statement, product)
        elif self.ended_by:
            pass
        elif product in _MYSQL:
            if not _leaves_open(statement, product):
                self._doubtful = statement
        elif status is Status.NONE:
            self.ended_by = first_words(statement)

    def failed(self, statement: str, product: str, status: Callable[[], Status]) -> None:
        """``status``: as after the error, see ``status_after_error``; called if ``statement`` may have left rows or ended the
        transaction."""
        if self.ended_by or not (self._has_changed or _may_change(statement, product)):
            return
        now = status()
        self._has_failed = now is Status.FAILED
        if self._has_changed and now is Status.NONE:
            self.ended_by = first_words(statement) + FAILED
        elif now is Status.OPEN:  # of several rows the first ones may be there
            self._has_changed = True

    def before_commit(self, product: str, status: Status, ask: Callable[[], Status]) -> None:
        """
        Raises:
            UsageError: a row of halfmq was rolled back, and the commit would say that it is there.
        """
        if not self.has_rows:
            return
        if not self.ended_by and product in _MYSQL:
            self._settle_doubts(product, status, ask)
        if self._has_failed and not self.ended_by:
            raise UsageError(
                "an earlier statement has failed, so the database rolls back what should be committed, a row of halfmq with it",
                hint=_HINT_FAILED.format("a savepoint"),
            )
        if self.ended_by.endswith(FAILED) or self.ended_by.upper().startswith(("'ROLLBACK", "'ABORT")):
            raise UsageError(
                f"{self.ended_by} has ended the database transaction with a row of halfmq in it, which is rolled back",
                hint=_HINT_FAILED.format("a savepoint"),
            )

    def _settle_doubts(self, product: str, status: Status, ask: Callable[[], Status]) -> None:
        """MySQL and MariaDB."""
        self._was_open |= status is Status.OPEN
        if not self._doubtful and (not self._was_open or status is not Status.NONE):
            return
        now = ask()
        if now is Status.NONE or (now is Status.UNKNOWN and would_end(self._doubtful, product)):
            self.ended_by = first_words(self._doubtful) if self._doubtful else _UNSEEN
        self._doubtful, self._was_open = "", False


def _may_change(statement: str, product: str) -> bool:
    """Whether the transaction has more to lose after ``statement`` than before it."""
    if product == "postgresql":
        return True
    word = first_word(statement)
    if product in _MYSQL and would_end(statement, product):
        return False  # what it changes is committed
    if word == "WITH":
        return _CHANGES.search(statement) is not None
    return word not in _READS or (product in _MYSQL and _SET_STATEMENT.match(statement) is not None)


def _leaves_open(statement: str, product: str) -> bool:
    return (
        first_word(statement) in _LEAVE_OPEN
        and not would_end(statement, product)
        and _SET_STATEMENT.match(statement) is None
    )


def would_end(statement: str, product: str) -> bool:
    """Whether its text shows that it ends the transaction."""
    found = read(statement, product)
    return found is not None and found.effect is Effect.ENDS_TRANSACTION


def status_after_error(product: str, driver: object, error: BaseException, ask: Callable[[str], object]) -> Status:
    """The status of the connection after ``error``. ``driver``: the driver's own connection. ``ask`` executes a query on it, and returns
    the value that it reads, or None; called on MySQL and MariaDB only."""
    if product not in _MYSQL:
        status = driver_status(product, driver)
        # asyncpg does not say it. An error of the driver has no SQLSTATE, and ends nothing.
        has_failed = product == "postgresql" and status is Status.OPEN and sqlstate(error)
        return Status.FAILED if has_failed else status
    number = mysql_error_number(error)
    if number in _ROLLED_BACK:
        return Status.NONE
    if number == _LOCK_WAIT_TIMEOUT:
        try:
            return Status.NONE if ask("SELECT @@innodb_rollback_on_timeout") else Status.OPEN
        except Exception:  # noqa: BLE001 - of any driver
            return Status.UNKNOWN
    return asked_status(product, driver, ask)


def asked_status(product: str, driver: object, ask: Callable[[str], object]) -> Status:
    """What the server says. Flags do not do: asyncmy never takes one back, and PyMySQL reads none after a SELECT."""
    try:
        return Status.OPEN if ask("SELECT @@in_transaction") else Status.NONE
    except Exception:  # noqa: BLE001 - of any driver: MySQL has no such variable
        if not has_flags(driver):
            return Status.UNKNOWN
    try:
        ask("DO 1")  # its response has new flags
    except Exception:  # noqa: BLE001 - of any driver: results that nobody has read
        return Status.UNKNOWN
    return driver_status(product, driver)


def refuse_ended(detector: EndDetector, statement: str, product: str, *, is_of_halfmq: bool, savepoint: str) -> None:
    """Before ``statement``: raise UsageError if it comes after the end of its transaction, and is a row of halfmq, or anything after one.
    ``savepoint``: how the library sets one."""
    ended_by = detector.ended_by
    if not ended_by:
        return
    if is_of_halfmq:
        problem = "before this row of halfmq: what was written before is not in it"
    elif detector.has_rows and read(statement, product) is None:
        problem = "with a row of halfmq in it: what is written now would be committed without that row"
    else:
        return
    if ended_by.startswith("'RELEASE"):
        hint = (
            "sqlite3 begins a transaction with the first row that is written, so write one before the first savepoint"
        )
    elif ended_by.endswith(FAILED):
        hint = _HINT_FAILED.format(savepoint)
    else:
        hint = "roll back; leave COMMIT and ROLLBACK to the library, and what commits by itself to a transaction of its own"
    raise UsageError(f"{ended_by} has ended the database transaction {problem}", hint=hint)
