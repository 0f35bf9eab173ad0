"""Guards the transaction of a session until it is committed, as ``rules.transaction_proof`` says.

It refuses the session's commit and statements that would end the transaction, and executes the proof.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import ColumnElement, Connection, event, text, true
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction

from halfmq.client.log import logger
from halfmq.errors import UsageError
from halfmq.sql.alchemy.connection_events import status, unwatch, wake, watch
from halfmq.sql.rules import transaction_proof
from halfmq.sql.rules.statements import Savepoint, Savepoints, first_words
from halfmq.sql.rules.transaction_proof import (
    BY_SAVEPOINT,
    Refusal,
    commits_by_itself,
    is_committable,
    is_failed_transaction,
    is_missing_savepoint,
    refusal,
)

WRITTEN_BY_THIS: Final = text(transaction_proof.WRITTEN_BY_THIS)
_SWALLOWED: Final = "do not catch a database error inside the block and go on; put the statement that may fail into session.begin_nested()"
_UNSEEN: Final = "a statement, or the driver, has committed it or rolled it back"
_BY_A_HOOK: Final = "what runs in before_commit has ended it, or a statement there has failed"


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


_log = logger(__name__)

#: Key in ``Session.info``, which an ``AsyncSession`` shares with its session. The value is a weak reference, so that a block
#: that never ended does not mark the session forever.
_KEY: Final = "halfmq.open_block"
#: Key of a weak reference to the last transaction of the session that a block has committed.
_COMMITTED: Final = "halfmq.committed_by_block"


def enter(session: Session, owner: object) -> None:
    """Mark ``session`` as inside the block ``owner``, until ``leave`` or until ``owner`` is collected."""
    session.info[_KEY] = weakref.ref(owner)


def leave(session: Session, owner: object) -> None:
    """Remove the mark of ``owner``; does nothing if another block set it."""
    reference = session.info.get(_KEY)
    if reference is not None and reference() in (None, owner):
        del session.info[_KEY]


def is_open(session: Session) -> bool:
    """Whether ``session`` is inside a block."""
    reference = session.info.get(_KEY)
    return reference is not None and reference() is not None


def proven_commit(session: Session, transaction: SessionTransaction | None) -> None:
    """A block has committed ``transaction``, and proven it."""
    if transaction is not None:
        session.info[_COMMITTED] = weakref.ref(transaction)


def was_committed_by_block(session: Session, transaction: SessionTransaction | None) -> bool:
    """Whether ``proven_commit`` was called with this transaction last."""
    reference = session.info.get(_COMMITTED)
    return reference is not None and reference() is transaction


def is_guarded(session: Session) -> bool:
    """Whether a block guards the transaction of ``session``, whatever it is for."""
    return _WATCHER_KEY in session.info


def refuse_nested(session: Session, hint: str) -> None:
    """Reject a session that is inside a block.

    Raises:
        UsageError: it is; nothing was written.
    """
    if is_open(session):
        raise UsageError("the session is inside an mq.transaction block, which alone may commit it", hint=hint)


def roll_back(session: Session, what: str) -> None:
    """Roll back after an exception, which the caller raises: where that fails, only the connection is given up."""
    try:
        session.rollback()
    except SQLAlchemyError:  # the connection is lost, or a hook failed during commit
        _log.warning("rollback after %s failed, closing its connection", what, exc_info=True)
        session.invalidate()


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
                f"{first_words(statement)} inside {self._place} went back to a savepoint that nobody saw, so which "
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

    # --- what happens on the connection and in the session; where one of these raises, it does not happen

    def before_statement(self, connection: Connection, statement: str) -> None:
        """Refuse what would end the transaction, and everything once it has ended."""
        self._hears = True
        if not self._is_guarded:
            return
        if connection is not self._connection:
            self.refuse_ended()
        refused = refusal(statement, connection.dialect.name, status(connection))
        if refused is Refusal.WOULD_END:
            raise UsageError(
                f"{first_words(statement)} inside {self._place} would end its transaction",
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
        if not is_committable(status(self._connection)):
            raise self._ended(_BY_A_HOOK)
        with self._failed_transaction_said():
            if self._is_stale and not self._is_there():
                raise self._ended(_BY_A_HOOK)
        self.commit_sent = True


#: Key in ``Session.info``.
_WATCHER_KEY: Final = "halfmq.watcher"


def watch_session(session: Session, watcher: "TransactionGuard") -> "TransactionGuard | None":
    """Call its ``begun``. Returns whom it replaces."""
    before: TransactionGuard | None = session.info.get(_WATCHER_KEY)
    session.info[_WATCHER_KEY] = watcher
    return before


def unwatch_session(session: Session, watcher: "TransactionGuard", before: "TransactionGuard | None" = None) -> None:
    """As ``unwatch``."""
    if session.info.get(_WATCHER_KEY) is watcher:
        if before is None:
            del session.info[_WATCHER_KEY]
        else:
            session.info[_WATCHER_KEY] = before


@event.listens_for(Session, "after_begin")
def _begun(session: Session, _transaction: object, connection: Connection) -> None:
    watcher: TransactionGuard | None = session.info.get(_WATCHER_KEY)
    if watcher is not None:
        watcher.begun(session, connection)


@event.listens_for(Session, "after_commit", insert=True)  # before the application's, which may raise
def _committed(session: Session) -> None:
    watcher: TransactionGuard | None = session.info.get(_WATCHER_KEY)
    if watcher is not None:
        watcher.committed()
