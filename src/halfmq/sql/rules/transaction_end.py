"""Notices that a database transaction has ended although nobody ended it through the library, from its begin on.

A deadlock on MariaDB rolls all of it back, ``INSERT OR ROLLBACK`` on SQLite, COMMIT as text anywhere. The driver begins the next one
without a word, so an application that catches the error and goes on would write its messages without the rows before them.
``transaction_proof`` shows this from the first row of halfmq on; what ended before that row is known here, and the row is refused.

What may end it is seen in three ways: the text of a statement, the driver's word on its connection, and after an error on MySQL and MariaDB
a question, since a response with an error says nothing about the transaction.
"""

from collections.abc import Callable
from typing import Final

from halfmq.errors import UsageError
from halfmq.sql.rules.driver_errors import mysql_error_number
from halfmq.sql.rules.statements import Effect, first_words, read
from halfmq.sql.rules.transaction_proof import Status, driver_status, has_flags

#: MySQL and MariaDB: InnoDB has rolled back all of the transaction. A record has changed since the snapshot (MariaDB), too many locks, a
#: deadlock. The server's flag may still say that it is open: seen in one of some hundred deadlocks, MariaDB 10.11.
_ROLLED_BACK: Final = frozenset({1020, 1206, 1213})
_LOCK_WAIT_TIMEOUT: Final = 1205
FAILED: Final = ", which failed,"
_UNSEEN: Final = "the driver's connection was committed or rolled back"


class EndDetector:
    """One transaction of a connection. ``before`` and ``after`` each statement, ``failed`` instead of ``after``."""

    __slots__ = ("_was_open", "ended_by")

    def __init__(self) -> None:
        #: What has ended it, for people; empty: it goes on.
        self.ended_by = ""
        #: There was something to lose. A driver opens the transaction with its first statement only.
        self._was_open = False

    def before(self, statement: str, product: str, status: Status) -> None:
        """``status``: of the connection, before ``statement``."""
        if self._was_open and not self.ended_by:
            if status is Status.NONE:
                self.ended_by = _UNSEEN
            elif would_end(statement, product):
                self.ended_by = first_words(statement)

    def after(self, statement: str, status: Status) -> None:
        """``status``: of the connection, after ``statement``, which has succeeded."""
        if status is not Status.NONE:  # a driver that says nothing: it is open after any statement
            self._was_open = True
        elif self._was_open and not self.ended_by:
            self.ended_by = first_words(statement)

    def failed(self, statement: str, status: Callable[[], Status]) -> None:
        """``status``: as after the error, see ``status_after_error``; asked only if there is something to lose."""
        if self._was_open and not self.ended_by and status() is Status.NONE:
            self.ended_by = first_words(statement) + FAILED


def would_end(statement: str, product: str) -> bool:
    """Whether its text shows that it ends the transaction."""
    found = read(statement, product)
    return found is not None and found.effect is Effect.ENDS_TRANSACTION


def status_after_error(product: str, driver: object, error: BaseException, ask: Callable[[str], object]) -> Status:
    """The status of the connection after ``error``. ``driver``: the driver's own connection. ``ask`` executes a query on it, and returns
    the value that it reads; called on MySQL and MariaDB only."""
    if product not in ("mysql", "mariadb"):
        return driver_status(product, driver)
    number = mysql_error_number(error)
    if number in _ROLLED_BACK:
        return Status.NONE
    try:
        if number == _LOCK_WAIT_TIMEOUT:
            return Status.NONE if ask("SELECT @@innodb_rollback_on_timeout") else Status.OPEN
        if has_flags(driver):
            ask("SELECT 1")  # only its flags count
            return driver_status(product, driver)
        return Status.OPEN if ask("SELECT @@in_transaction") else Status.NONE
    except Exception:  # noqa: BLE001 - of any driver: MySQL has no such variable, or there are results that nobody has read
        return Status.UNKNOWN


def refuse_ended(ended_by: str, savepoint: str) -> None:
    """Before a row of halfmq is written: raise UsageError if the transaction has ended. ``savepoint``: how the library sets one."""
    if not ended_by:
        return
    if ended_by.startswith("'RELEASE"):
        hint = (
            "sqlite3 begins a transaction with the first row that is written, so write one before the first savepoint"
        )
    elif ended_by.endswith(FAILED):
        hint = f"roll back, and run all of it again; put a statement whose error you catch into {savepoint}"
    else:
        hint = "roll back; leave COMMIT and ROLLBACK to the library, and what commits by itself to a transaction of its own"
    raise UsageError(
        f"{ended_by} has ended the database transaction before this row of halfmq: what was written before is not in it",
        hint=hint,
    )
