"""Messages in a transaction that the application commits itself, with an ``AsyncSession``: ``MarkerTable.join_async``.

The steps are those of a block (``rules.block``), called by the events of the session. ``before_commit`` of the outermost transaction: the
last statements, then the half messages. ``after_transaction_end``: the verdict COMMIT, if COMMIT was acknowledged. Anything else is left to
the check, which reads the marker: an event does not tell why a transaction has ended, and a wrong ROLLBACK could not be taken back.

A session has the first of these listeners from its first message on; a listener must not be removed while its event is dispatched. Every
session has the second, since it must come before those of the application: one that raises keeps the others from being called.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only

from halfmq.client import forks
from halfmq.client.arguments import PrepareOptions
from halfmq.client.marker_table import TransactionCalls
from halfmq.client.receipts import Prepared
from halfmq.errors import UsageError
from halfmq.sql.alchemy.marker_rows import MarkerRows
from halfmq.sql.alchemy.session_work import SessionWork
from halfmq.sql.alchemy.transaction_guard import is_guarded
from halfmq.sql.rules.block import SqlTransaction, send_commit

_T = TypeVar("_T")

#: Keys in ``Session.info``: what was joined last; the lock of ``one_at_a_time``.
_KEY: Final = "halfmq.joined"
_LOCK_KEY: Final = "halfmq.joining"
_PLACE: Final = "the transaction of a message"


def one_at_a_time(session: Session) -> asyncio.Lock:
    """Held while a task joins: before the first has written its marker, another one would find a guarded session, and nothing joined."""
    lock: asyncio.Lock = session.info.setdefault(_LOCK_KEY, asyncio.Lock())
    return lock


def join(
    session: Session, markers: MarkerRows, calls: TransactionCalls, name: str, options: PrepareOptions
) -> SqlTransaction:
    """The transaction of ``session``, which is begun if none is open. Called in the greenlet of an ``AsyncSession``.

    Raises:
        UsageError: it is inside a savepoint, a block of ``mq.transaction`` or of an inbox, or has another marker table already.
        Exception: the database's own, for the marker: it is rolled back.
    """
    before: _Joined | None = session.info.get(_KEY)
    if before is not None:
        if not before.has_ended:
            before.refuse_other(markers)
            return before.transaction
        before.work.forget_savepoints()
    if is_guarded(session):
        raise UsageError(
            "the session is inside a block that commits it",
            hint="send with mq.transaction(session, ...) in it; or commit the session yourself, with Inbox.claim in its transaction",
        )
    joined = _Joined(session, markers, calls, name, options)
    joined.work.begin()
    if before is None:
        event.listen(session, "before_commit", _before_commit)
    session.info[_KEY] = joined
    return joined.transaction


class _Joined:
    """From the first message of a transaction to its end."""

    def __init__(
        self, session: Session, markers: MarkerRows, calls: TransactionCalls, name: str, options: PrepareOptions
    ) -> None:
        self._markers = markers
        self._calls = calls
        self._name = name
        self._options = options
        tx_id = calls.new_transaction_id()
        self.work = SessionWork(session, markers, None, tx_id, place=_PLACE)
        self.transaction = SqlTransaction(tx_id, self.work)
        self._begun_in = forks.generation
        self._is_ready = False
        self._prepared: Prepared | None = None
        self.has_ended = False

    def refuse_other(self, markers: MarkerRows) -> None:
        if markers is not self._markers:
            raise UsageError(
                f"this transaction has a marker in {self._markers.table.name}, so it cannot have one in {markers.table.name}",
                hint="one transaction has one outcome, and one marker",
            )

    def before_commit(self) -> None:
        """Raises: any exception; nothing is committed, and the application must roll back."""
        if self._is_ready:
            raise UsageError(
                f"the messages of {self.transaction.id} were not prepared, so that it can only be rolled back",
                hint="do not commit again after commit() has raised",
            )
        forks.refuse_in_child(
            self._begun_in, f"transaction {self.transaction.id}", "leave its commit to the parent; fork outside of it"
        )
        self._is_ready = True
        messages = self.work.ready()
        if messages:
            self._prepared = _wait(
                self._calls.prepare(messages, tx_id=self.transaction.id, name=self._name, **self._options)
            )

    def after_end(self) -> None:
        """Raises: OutcomeMixed: it is committed, and somebody has rolled back its messages."""
        self.has_ended = True
        self.work.detach()
        if self.work.is_committed:
            self.work.after_commit()
            if self._prepared is not None:
                self.transaction._receipt = _wait(send_commit(self._calls, self._prepared))


def _wait(call: Awaitable[_T]) -> _T:
    """The result of ``call``, which runs in the task that waits for the session."""
    return await_only(call)


def _before_commit(session: Session) -> None:
    joined: _Joined = session.info[_KEY]
    if not joined.has_ended and not session.in_nested_transaction():
        joined.before_commit()


@event.listens_for(Session, "after_transaction_end", insert=True)
def _after_transaction_end(session: Session, ended: SessionTransaction) -> None:
    joined: _Joined | None = session.info.get(_KEY)
    if joined is not None and not joined.has_ended and joined.work.is_of(ended):
        joined.after_end()
