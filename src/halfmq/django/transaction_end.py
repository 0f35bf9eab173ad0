"""Notices that the transaction of ``atomic`` has ended although Django did not end it, and then refuses the rows of halfmq.

As ``sql.rules.transaction_end`` says. Django tells nobody that a transaction begins, so nothing is kept of one but the mark that it has
ended; and that is a function of its ``on_commit``, since Django forgets those with the transaction.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from django.db import Error as AnyError
from django.db.backends.signals import connection_created

from halfmq.django.database import status
from halfmq.django.tables import INBOX_TABLE, MARKERS_TABLE, OUTBOX_TABLE
from halfmq.sql.rules.statements import first_words
from halfmq.sql.rules.transaction_end import FAILED, refuse_ended, status_after_error, would_end
from halfmq.sql.rules.transaction_proof import Status

#: Of any table of halfmq; the lanes have a name that begins as the outbox's.
_WRITES_TO_HALFMQ: Final = re.compile(
    rf"\s*(?:INSERT|UPDATE|DELETE)\b[^(]*?\b(?:{MARKERS_TABLE}|{INBOX_TABLE}|{OUTBOX_TABLE})", re.IGNORECASE
)


class _Ended:
    """The mark."""

    def __init__(self, ended_by: str) -> None:
        self.ended_by = ended_by

    def __call__(self) -> None:
        """It was committed: no row of halfmq is in it."""


def watch_all() -> None:
    """Watch the transactions of each connection that is opened from now on. May be called again."""
    connection_created.connect(_opened, dispatch_uid="halfmq.transaction_end")


def _opened(*, connection: Any, **_: Any) -> None:
    wrappers = connection.execute_wrappers
    if not any(isinstance(one, _Watch) for one in wrappers):  # the connection was opened again
        # The first one: leaving ``execute_wrapper`` removes the last.
        wrappers.insert(0, _Watch(connection))


class _Watch:
    """Django calls it around each statement."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        connection = self._connection
        if not connection.in_atomic_block and connection.get_autocommit():
            return execute(sql, params, many, context)
        statement = sql if isinstance(sql, str) else sql.as_string(connection.connection)
        if self._is_closed():
            self._mark("the driver's connection, or a statement,")
        if _WRITES_TO_HALFMQ.match(statement):
            refuse_ended(self._ended_by(), "a transaction.atomic of its own")
        ends = would_end(statement, connection.vendor)
        try:
            result = execute(sql, params, many, context)
        except AnyError as error:
            if ends or self._is_ended_by(error):
                self._mark(first_words(statement) + FAILED)
            raise
        if ends:
            self._mark(first_words(statement))
        return result

    def _is_closed(self) -> bool:
        """On SQLite Django executes BEGIN before ``atomic``, so that a transaction is open before any statement in it."""
        connection = self._connection
        return connection.vendor == "sqlite" and connection.in_atomic_block and status(connection) is Status.NONE

    def _is_ended_by(self, error: AnyError) -> bool:
        connection = self._connection
        driver = connection.connection
        if driver is None or connection.vendor == "postgresql":  # which refuses all that follows
            return False

        def ask(query: str) -> object:
            with driver.cursor() as cursor:
                cursor.execute(query)
                (found,) = cursor.fetchone() or (None,)
                return found

        return status_after_error(connection.vendor, driver, error, ask) is Status.NONE

    def _mark(self, ended_by: str) -> None:
        if not self._ended_by():
            # As ``on_commit`` does, but of no savepoint: it stays when one is rolled back.
            self._connection.run_on_commit.append((set(), _Ended(ended_by), True))

    def _ended_by(self) -> str:
        marks = (function for _, function, *_ in self._connection.run_on_commit if isinstance(function, _Ended))
        return next((mark.ended_by for mark in marks), "")
