"""Guards the transaction of a block, as ``sql.rules.transaction_proof`` says: refuses statements that would end it, follows its savepoints,
and proves before its end that it is still the one in which the marker was written.

``connection.commit`` and the like are refused by Django inside ``atomic``. What remains is a statement such as
``cursor.execute("COMMIT")``, and a database that ends a transaction by itself (a deadlock on MariaDB).
"""

from collections.abc import Callable
from typing import Any, Final

from django.db import Error as AnyError

from halfmq.django.database import status, text_of
from halfmq.errors import UsageError
from halfmq.sql.rules import transaction_proof
from halfmq.sql.rules.driver_errors import sqlstate
from halfmq.sql.rules.statements import Savepoint, Savepoints, first_words
from halfmq.sql.rules.transaction_proof import (
    BY_SAVEPOINT,
    Refusal,
    is_failed_transaction,
    is_missing_savepoint,
    refusal,
)

_SWALLOWED: Final = "do not catch a database error inside the block and go on; put the statement that may fail into a transaction.atomic of its own"
_UNSEEN: Final = "a statement, or the database, has committed it or rolled it back"
#: PostgreSQL: SAVEPOINT does not exist, and there is no transaction.
_NO_SAVEPOINT_STATES: Final = frozenset({"3B001", "25P01"})
_ALWAYS: Final = "1 = 1"


class Guard:
    """Guards the transaction that is open on ``connection``. ``start`` after the marker was written, ``prove`` at the end of the block,
    ``stop`` in any case.

    ``is_outermost``: the transaction began with the block. Otherwise the marker is in a savepoint, whose number PostgreSQL gives for the
    row, so that there too a savepoint recognises the transaction. ``block``: what is guarded, for messages.
    """

    def __init__(
        self,
        connection: Any,
        *,
        is_outermost: bool,
        on_rollback_to: Callable[[Savepoint], None] = lambda _: None,
        block: str = "mq.atomic",
    ) -> None:
        self._connection = connection
        self._block = block
        self._by_savepoint = not is_outermost or connection.vendor in BY_SAVEPOINT
        self._by_row = is_outermost and connection.vendor == "postgresql"
        self._on_rollback_to = on_rollback_to
        self._savepoint = f"halfmq_{id(self):x}"
        self._is_guarded = False
        self.savepoints = Savepoints()

    def start(self) -> None:
        """Guard from here on."""
        if self._by_savepoint:
            self._execute(f"SAVEPOINT {self._savepoint}")
        self._connection.execute_wrappers.append(self._around)
        self._is_guarded = True

    def stop(self) -> None:
        """Guard no longer. May be called again."""
        if self._is_guarded:
            self._is_guarded = False
            # Not the last one, if a wrapper of the application was begun in the block and ends after it.
            self._connection.execute_wrappers.remove(self._around)

    @property
    def written_by_this(self) -> str:
        """The condition on a row, for ``prove``: the open transaction wrote it. True where only the savepoint can tell."""
        return transaction_proof.WRITTEN_BY_THIS if self._by_row else _ALWAYS

    def prove(self, affected: Callable[[], int]) -> None:
        """Prove that the transaction is still the one of ``start``, and ``stop``. ``affected`` executes a statement about the row with the
        condition ``written_by_this``, and returns how many rows it found.

        Raises:
            UsageError: the transaction has ended, or can only be rolled back. Roll back: nothing else is possible.
            django.db.Error: the database's own error, such as a lost connection.
        """
        self._refuse_rollback()
        self.stop()
        if statement := self.savepoints.unknown_rollback:
            raise UsageError(
                f"{first_words(statement)} inside {self._block} went back to a savepoint from before it, so which messages to send is unknown",
                hint="roll back the block itself, by an exception",
            )
        try:
            if self._by_savepoint:
                self._release()
            found = affected()
        except AnyError as error:
            if not is_failed_transaction(error):
                raise
            raise self._ended("a statement has failed, after which the database only rolls back") from error
        if found != 1:
            raise self._ended(_UNSEEN)

    def _refuse_rollback(self) -> None:
        """``atomic`` would roll back without a word, and its caller would take it for committed."""
        if self._connection.closed_in_transaction:
            raise UsageError(
                f"the connection was closed inside {self._block}, which has rolled back",
                hint="do not close a connection inside atomic",
            )
        if self._connection.needs_rollback:
            raise UsageError(
                f"the transaction of {self._block} only rolls back: a database error was caught in it, or transaction.set_rollback was called",
                hint="put the statement that may fail into a transaction.atomic of its own; to roll back, raise an exception",
            )

    def _release(self) -> None:
        try:
            self._execute(f"RELEASE SAVEPOINT {self._savepoint}")
        except AnyError as error:
            if not (is_missing_savepoint(error) or sqlstate(error) in _NO_SAVEPOINT_STATES):
                raise
            raise self._ended(_UNSEEN) from error

    def _execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _around(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        connection = self._connection
        statement = text_of(sql, connection)
        match refusal(statement, connection.vendor, status(connection)):
            case Refusal.WOULD_END:
                raise UsageError(
                    f"{first_words(statement)} inside {self._block} would end its transaction",
                    hint="leave COMMIT and ROLLBACK to it; statements that commit by themselves go before or after it",
                )
            case Refusal.HAS_ENDED:
                raise self._ended(_UNSEEN)
        result = execute(sql, params, many, context)
        undone = self.savepoints.executed(statement, connection.vendor)
        if undone is not None:
            self._on_rollback_to(undone)
        return result

    def _ended(self, how: str) -> UsageError:
        return UsageError(f"the database transaction of {self._block} ended before its end: {how}", hint=_SWALLOWED)
