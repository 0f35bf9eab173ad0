"""Guards the transaction of a session until it is committed, as ``rules.transaction_proof`` says.

It refuses the session's commit and statements that would end the transaction, and executes the proof.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import ColumnElement, Connection, text, true
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from halfmq.errors import UsageError
from halfmq.sql.alchemy.connection_events import unwatch, unwatch_session, wake, watch, watch_session
from halfmq.sql.rules import transaction_proof
from halfmq.sql.rules.driver_status import Status, commits_by_itself, driver_status
from halfmq.sql.rules.savepoints import Savepoint, Savepoints
from halfmq.sql.rules.transaction_proof import (
    BY_SAVEPOINT,
    Refusal,
    is_committable,
    is_failed_transaction,
    is_missing_savepoint,
    refusal,
)

WRITTEN_BY_THIS: Final = text(transaction_proof.WRITTEN_BY_THIS)
_SWALLOWED: Final = "do not catch a database error inside the block and go on; put the statement that may fail into session.begin_nested()"
_UNSEEN: Final = "a statement, or the driver, has committed it or rolled it back"
_BY_A_HOOK: Final = "what runs in before_commit has ended it, or a statement there has failed"


def _status(connection: Connection) -> Status:
    return driver_status(connection.dialect.name, connection.connection.driver_connection)


def refuse_autocommit(connection: Connection, place: str) -> None:
    """Raise UsageError if each statement would be committed by itself, so that nothing could be rolled back. Call it before the first."""
    option = connection.get_execution_options().get("isolation_level")
    default = getattr(connection.dialect, "_on_connect_isolation_level", None)
    by_option = "AUTOCOMMIT" in (option, default if option is None else None)
    if by_option or commits_by_itself(connection.dialect.name, connection.connection.driver_connection):
        raise UsageError(
            f"the connection is in autocommit (AUTOCOMMIT): {place} could not roll anything back",
            hint="use another isolation level for this session's engine, and no autocommit in its connect_args",
        )


class TransactionGuard:
    """Guards the transaction that is open on ``connection``. Made before the row is written; ``start`` after that, ``prove`` before
    COMMIT, ``stop`` in any case.

    ``place``: what the user calls it, for messages. ``on_rollback_to`` is called with each savepoint that was rolled back to.
    ``may_commit``: asked at a commit of the session before ``prove``; True lets it pass.
    """

    def __init__(
        self,
        session: Session,
        connection: Connection,
        place: str,
        *,
        on_rollback_to: Callable[[Savepoint], None] = lambda _: None,
        may_commit: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session = session
        self._connection = connection
        self._place = place
        self._transaction = session.get_transaction()
        self._on_rollback_to = on_rollback_to
        self._may_commit = may_commit
        self._by_savepoint = connection.dialect.name in BY_SAVEPOINT
        self._savepoint = f"halfmq_{id(self):x}"
        #: A statement was reported; and it is guarded.
        self._hears = self._is_guarded = False
        self._is_proven = False
        #: A statement was executed after ``prove``: the caller's hooks run there.
        self._is_stale = False
        #: Connections of transactions that the session began after it had ended the guarded one.
        self._refused: list[Connection] = []
        self.savepoints = Savepoints()
        #: COMMIT was handed to the driver; and it has returned without an error.
        self.commit_sent = self.is_committed = False
        self._is_there: Callable[[], bool] = lambda: True
        self._watched_before = watch(connection, self)
        self._session_before = watch_session(session, self)

    def start(self) -> None:
        """Guard from here on."""
        if not self._hears:
            wake(self._connection)
        if self._by_savepoint:
            self._connection.exec_driver_sql(f"SAVEPOINT {self._savepoint}")
            self.savepoints.open = ()
        self._is_guarded = True

    def stop(self) -> None:
        """Guard no longer. May be called again."""
        self._is_guarded = False
        unwatch(self._connection, self, self._watched_before)
        unwatch_session(self._session, self, self._session_before)
        for connection in self._refused:
            unwatch(connection, self)

    @property
    def written_by_this(self) -> ColumnElement[bool]:
        """The condition on a row, for ``prove``: the open transaction wrote it. True where the database cannot tell."""
        if self._connection.dialect.name == "postgresql":
            return WRITTEN_BY_THIS  # type: ignore[return-value]
        return true()

    def refuse_ended(self) -> None:
        """Raise UsageError if the session has ended the transaction."""
        if self._session.get_transaction() is not self._transaction:
            raise UsageError(
                f"the session was committed or rolled back inside {self._place}",
                hint=f"leave that to {self._place}; what was committed before is committed without the rest",
            )

    def flush(self) -> None:
        """Write what the session still holds, and release its savepoints, as its commit would. Before ``prove``."""
        self.refuse_ended()
        self._session.flush()
        while (savepoint := self._session.get_nested_transaction()) is not None:
            savepoint.commit()

    def prove(self, affected: Callable[[], int], is_there: Callable[[], bool]) -> None:
        """Prove that the transaction is still the one of ``start``. ``affected`` executes a statement about the row, with the condition
        ``written_by_this``, and returns how many rows it found. ``is_there`` is asked once more before COMMIT, if a hook has executed
        statements since.

        From here on the session may be committed.

        Raises:
            UsageError: the transaction has ended, or can only be rolled back. Roll back: nothing else is possible.
            DBAPIError: the database's own error, such as a lost connection.
        """
        if statement := self.savepoints.unknown_rollback:
            raise UsageError(
                f"{_first_words(statement)} inside {self._place} went back to a savepoint that nobody saw, so which "
                "messages to send is unknown",
                hint="set savepoints with session.begin_nested(), connection.begin_nested(), or a statement of their own",
            )
        if self._by_savepoint:
            with self._failed_transaction_said():
                self._release()
        self.prove_again(affected, is_there)
        self._is_proven = True

    def prove_again(self, affected: Callable[[], int], is_there: Callable[[], bool]) -> None:
        """As ``prove``, by another statement about the row, which comes after the first proof and before the session's commit."""
        with self._failed_transaction_said():
            found = affected()
        if found != 1:
            raise self._ended(_UNSEEN)
        self._is_there, self._is_stale = is_there, False

    @contextmanager
    def _failed_transaction_said(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if not is_failed_transaction(error):
                raise
            raise self._ended("a statement has failed, after which the database only rolls back") from error

    def _release(self) -> None:
        try:
            self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {self._savepoint}")
        except DBAPIError as error:
            if error.connection_invalidated or not is_missing_savepoint(error):
                raise
            raise self._ended(_UNSEEN) from error

    def _ended(self, how: str) -> UsageError:
        return UsageError(f"the database transaction of {self._place} ended before its end: {how}", hint=_SWALLOWED)

    # --- what ``connection_events`` tells

    def before_statement(self, connection: Connection, statement: str) -> None:
        """Refuse what would end the transaction, and everything once it has ended."""
        self._hears = True
        if not self._is_guarded:
            return
        if connection is not self._connection:
            self.refuse_ended()
        refused = refusal(statement, connection.dialect.name, _status(connection))
        if refused is Refusal.WOULD_END:
            raise UsageError(
                f"{_first_words(statement)} inside {self._place} would end its transaction",
                hint=f"leave COMMIT and ROLLBACK to {self._place}; statements that commit by themselves go before or after it",
            )
        if refused is Refusal.HAS_ENDED:
            raise self._ended(_UNSEEN)
        self._is_stale = True

    def after_statement(self, connection: Connection, statement: str) -> None:
        """Follow the savepoints."""
        undone = self.savepoints.executed(statement, connection.dialect.name)
        if undone is not None:
            self._on_rollback_to(undone)

    def begun(self, session: Session, connection: Connection) -> None:
        """Nothing is written in another transaction: this one ends with the block, and the other would not."""
        if self._is_guarded and not self._is_proven and session.get_transaction() is not self._transaction:
            self._refused.append(connection)
            watch(connection, self)
            wake(connection)

    def committed(self) -> None:
        """What is raised from here on is not an error of COMMIT."""
        self.is_committed = self.commit_sent

    def before_commit(self) -> None:
        """Refuse a commit that is not the one after ``prove``."""
        if not self._is_guarded:
            return
        if not self._is_proven:
            if self._may_commit():
                return
            raise UsageError(
                f"the session is committed inside {self._place}",
                hint=f"leave that to {self._place}; nothing was committed",
            )
        if not is_committable(_status(self._connection)):
            raise self._ended(_BY_A_HOOK)
        with self._failed_transaction_said():
            if self._is_stale and not self._is_there():
                raise self._ended(_BY_A_HOOK)
        self.commit_sent = True


def _first_words(statement: str) -> str:
    return repr(" ".join(statement.split())[:60])
