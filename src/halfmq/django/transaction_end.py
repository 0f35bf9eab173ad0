"""Notices that the transaction of ``atomic`` has ended although Django did not end it, and then refuses the rows of halfmq.

As ``sql.rules.transaction_end`` says. Django tells nobody that a transaction begins. What changes with each is the list of its functions of
``on_commit``, which changes as well when a savepoint is rolled back; a function that does nothing, and that Django then keeps, tells these
apart.

It is also where a table of halfmq is seen to be missing, whoever needs it.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from django.db import Error as AnyError
from django.db import connections
from django.db.backends.signals import connection_created

from halfmq.django.database import no_table, status, text_of
from halfmq.django.tables import INBOX_TABLE, MARKERS_TABLE, OUTBOX_TABLE, TABLES
from halfmq.sql.rules.driver_errors import missing_table
from halfmq.sql.rules.statements import Effect, read
from halfmq.sql.rules.transaction_end import EndDetector, asked_status, refuse_ended, status_after_error

#: Of any table of halfmq; the lanes have a name that begins as the outbox's.
_WRITES_TO_HALFMQ: Final = re.compile(
    rf"\s*(?:INSERT|UPDATE|DELETE)\b[^(]*?\b(?:{MARKERS_TABLE}|{INBOX_TABLE}|{OUTBOX_TABLE})", re.IGNORECASE
)


def watch_all() -> None:
    """Watch the transactions of each connection, open or opened from now on. May be called again."""
    connection_created.connect(_opened, dispatch_uid="halfmq.transaction_end")
    for connection in connections.all(initialized_only=True):
        _opened(connection=connection)


def _opened(*, connection: Any, **_: Any) -> None:
    wrappers = connection.execute_wrappers
    if not any(isinstance(one, _Watch) for one in wrappers):  # the connection was opened again
        # The first one: leaving ``execute_wrapper`` removes the last.
        wrappers.insert(0, _Watch(connection))


class _Watch:
    """Django calls it around each statement."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._detector = EndDetector()
        #: ``run_on_commit`` of the detector's transaction.
        self._functions: list[Any] | None = None
        #: ``_kept`` is in it.
        self._is_kept = False

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        connection = self._connection
        try:
            if not connection.in_atomic_block:
                return execute(sql, params, many, context)
            return self._in_transaction(execute, sql, params, many, context)
        except AnyError as error:
            statement = sql if isinstance(sql, str) else ""  # those of halfmq are
            if (missing := missing_table(error, statement, TABLES)) is not None:
                raise no_table([missing], connection.alias) from error
            raise

    def _in_transaction(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        connection = self._connection
        statement, product = text_of(sql, connection), connection.vendor
        detector = self._current()
        detector.before(
            statement, product, status(connection), lambda: asked_status(product, connection.connection, self._ask)
        )
        is_of_halfmq = _WRITES_TO_HALFMQ.match(statement) is not None
        refuse_ended(
            detector, statement, product, is_of_halfmq=is_of_halfmq, savepoint="a transaction.atomic of its own"
        )
        self._keep_through(statement)
        try:
            result = execute(sql, params, many, context)
        except AnyError as error:
            if connection.connection is not None:
                cause = error
                detector.failed(
                    statement,
                    product,
                    lambda: status_after_error(product, connection.connection, cause, self._ask),
                )
            raise
        detector.after(statement, product, status(connection))
        detector.has_rows |= is_of_halfmq
        return result

    def _current(self) -> EndDetector:
        """The detector of the transaction that is open."""
        functions = self._connection.run_on_commit
        is_kept = self._is_kept and any(function is _kept for _, function, *_ in functions)
        if functions is not self._functions and not is_kept:
            self._detector = EndDetector()
        if is_kept:
            functions[:] = [one for one in functions if one[1] is not _kept]
        self._functions, self._is_kept = functions, False
        return self._detector

    def _keep_through(self, statement: str) -> None:
        """Before a savepoint is rolled back. A TestCase would see the function among those that it captures, and its transaction is never
        committed."""
        connection = self._connection
        found = read(statement, connection.vendor)
        if found is None or found.effect is not Effect.ROLLBACK_TO:
            return
        blocks = connection.atomic_blocks  # empty: the outermost one is being left, with autocommit off
        if blocks and blocks[0]._from_testcase:
            return
        connection.run_on_commit.append((set(), _kept, True))  # as ``on_commit`` does, but of no savepoint
        self._is_kept = True

    def _ask(self, query: str) -> object:
        with self._connection.connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


def _kept() -> None:
    """Does nothing: its place among the functions counts."""
