"""The database side of a transaction block, on a synchronous ``Session``: marker, the user's work, flush, COMMIT.

Both blocks (``rules.block``) use it; that of an ``AsyncSession`` runs it inside ``run_sync``. It does no network I/O to a broker.

What is committed is proven by ``transaction_guard``: neither the return of ``session.commit()`` nor an event of the session is
evidence. A message belongs to the savepoints in which it was collected: those of the session, which may have sent no SAVEPOINT yet, and
those of the database.
"""

from collections.abc import Callable

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction

from halfmq.client.log import logger
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import TransactionReceipt
from halfmq.errors import HalfmqError, UnsupportedCombination, UsageError
from halfmq.model import properties as names
from halfmq.sql.alchemy.errors import commit_failure
from halfmq.sql.alchemy.marker_rows import MarkerRows
from halfmq.sql.alchemy.outbox import Outbox
from halfmq.sql.alchemy.transaction_guard import (
    TransactionGuard,
    enter,
    leave,
    proven_commit,
    refuse_autocommit,
    refuse_nested,
    roll_back,
)
from halfmq.sql.rules.block import CollectedMessages, in_outbox
from halfmq.sql.rules.driver_errors import CommitFailure, FailedCommit
from halfmq.sql.rules.outbox import checked_order_key
from halfmq.sql.rules.statements import Savepoint

_log = logger(__name__)

_PLACE = "the block"


class SessionWork:
    """The ``LocalWork`` of one block, which says what its methods do. After a commit ``abandon`` detaches it."""

    def __init__(
        self, session: Session, markers: MarkerRows, outbox: Outbox | None, tx_id: str, *, place: str = _PLACE
    ) -> None:
        """``outbox``: takes the messages if the broker does not answer. ``place``: what the application calls this, for messages."""
        self._place = place
        self._session = session
        self._markers = markers
        self._outbox = outbox
        self._tx_id = tx_id
        #: Encoded HMQ_TX_MARKER property: table identity and time of the marker.
        self._origin = b""
        self._collected = CollectedMessages()
        self._open = False
        self._guard: TransactionGuard | None = None
        self._transaction: SessionTransaction | None = None
        self._connection: Connection | None = None
        self._engine: Engine | None = None
        #: The session's savepoints that were released, not rolled back.
        self._released: set[SessionTransaction] = set()
        self._hears_savepoints = False

    # --- begin ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        engine = self._refuse_what_cannot_be_atomic()
        enter(self._session, self)
        try:
            if not self._session.in_transaction():
                # Only without an open transaction: a second connection might be the same one, or wait for its locks.
                self._markers.establish(engine)
            # Not session.execute: a routing session may send plain statements to a replica, so the connection is requested
            # by table; and pending objects must not be flushed before the marker.
            connection = self._session.connection(bind_arguments={"clause": self._markers.table})
            refuse_autocommit(connection, self._place)
            self._connection, self._engine = connection, engine
            self._transaction = self._session.get_transaction()
            self._refuse_other_engines()
            self._guard = TransactionGuard(self._session, connection, self._place, on_rollback_to=self._collected.drop)
            origin = self._markers.write(connection, self._tx_id)
            self._origin = names.encode([(names.HMQ_TX_MARKER, origin)])
            self._guard.start()
        except BaseException:
            self.abandon()
            raise
        self._open = True

    def _refuse_what_cannot_be_atomic(self) -> Engine:
        session = self._session
        refuse_nested(session, "send with the outer block's tx.send: one transaction has one outcome")
        if session.in_nested_transaction():
            raise UsageError(
                "the session is inside a savepoint",
                hint="open mq.transaction outside of begin_nested: its end is the end of the whole transaction",
            )
        if session.twophase:
            raise UnsupportedCombination("the session uses two-phase commit", hint="the marker makes it unnecessary")
        bind = session.get_bind(clause=self._markers.table)
        if isinstance(bind, Connection):
            raise UsageError(
                "the session is bound to a connection, so that its commit may not be the connection's commit",
                hint="bind the session to an Engine",
            )
        if self._outbox is not None and session.get_bind(clause=self._outbox.table) is not bind:
            raise UsageError(
                f"the outbox {self._outbox.table.name} is not in the database of the marker {self._markers.table.name}",
                hint="both must be in the database of the business rows",
            )
        return bind

    def _refuse_other_engines(self) -> None:
        """One database transaction, one marker: rows in a second database would commit on their own."""
        assert self._connection is not None
        assert self._transaction is not None
        others = _engines_of(self._transaction) - {self._connection.engine}
        if others:
            raise UsageError(
                f"the session's transaction also uses {', '.join(sorted(_shown(one.url) for one in others))}, "
                f"but the marker {self._markers.table.name} is in {_shown(self._connection.engine.url)}",
                hint="the marker must be in the database of the business rows; use one session per database",
            )

    # --- the user's work -----------------------------------------------------------------------------------------

    def refuse_ended(self) -> None:
        if not self._open:
            raise UsageError(f"{self._place} has ended; messages are sent with its transaction, not after it")
        assert self._guard is not None
        self._guard.refuse_ended()
        if not self._session.is_active:
            raise UsageError(
                "an error has rolled back the session's transaction, or the savepoint that is open",
                hint="catch the error around `with session.begin_nested():`, not inside",
            )

    def collect(self, message: OutgoingMessage) -> None:
        if self._outbox is not None:
            # Now, not only when the broker is away.
            checked_order_key(message.sharding_key)
            # The id that consumers see is the same whichever way it goes.
            message = message._replace(message_id=self._outbox.new_message_id())
        self._collected.add(message, self._open_savepoints())

    def _open_savepoints(self) -> tuple[SessionTransaction | Savepoint, ...]:
        assert self._guard is not None
        found: list[SessionTransaction | Savepoint] = [*self._guard.savepoints.open]
        level = self._session.get_nested_transaction()
        while level is not None and level.nested:
            found.append(level)
            level = level.parent
        if found and not self._hears_savepoints:
            event.listen(self._session, "after_commit", self._on_released)
            event.listen(self._session, "after_transaction_end", self._on_ended)
            self._hears_savepoints = True
        return tuple(found)

    def _on_released(self, session: Session) -> None:
        if (released := session.get_nested_transaction()) is not None:
            self._released.add(released)

    def _on_ended(self, _session: Session, ended: SessionTransaction) -> None:
        # By its end, whatever ended it: a failed flush rolls a savepoint back and reports that of a transaction of its own only.
        if ended.nested and ended not in self._released:
            self._collected.drop(ended)

    # --- the end -------------------------------------------------------------------------------------------------

    def ready(self) -> list[OutgoingMessage]:
        assert self._connection is not None
        assert self._guard is not None
        connection, guard, markers = self._connection, self._guard, self._markers
        guard.flush()
        self._refuse_other_engines()
        write = markers.confirm if self._collected else markers.delete
        guard.prove(
            lambda: write(connection, self._tx_id, guard.written_by_this),
            lambda: not self._collected or markers.look(connection, self._tx_id).outcome is Outcome.COMMIT,
        )
        self._open = False
        return self._collected.halves(self._origin)

    @property
    def may_fall_back(self) -> bool:
        return self._outbox is not None

    def fall_back(self, why: HalfmqError) -> TransactionReceipt:
        assert self._connection is not None
        assert self._guard is not None
        assert self._outbox is not None
        connection, guard, markers = self._connection, self._guard, self._markers
        guard.prove_again(
            lambda: markers.withdraw(connection, self._tx_id),
            lambda: markers.look(connection, self._tx_id).outcome is Outcome.ROLLBACK,
        )
        messages = self._collected.messages()
        _log.info("%s goes to the outbox: %s", self._tx_id, why)
        # Under uvicorn, or where nobody configures logging, nothing else says that the broker is away, or that these need a relay.
        if number := self._outbox.fallbacks.times(None):
            _log.warning(
                "the broker does not take messages, so they go to the outbox %s, and need a relay: %s "
                "(transactions since this was last said: %d)",
                self._outbox.table.fullname, str(why).removesuffix(f" ({why.hint})"), number,
            )  # fmt: skip
        return in_outbox(self._outbox.write(connection, messages), messages)

    def call_after_commit(self, call: Callable[[], None]) -> bool:
        return False  # a hook of the application in the same session may raise before ours

    def commit(self) -> FailedCommit | None:
        assert self._guard is not None
        guard = self._guard
        try:
            self._session.commit()
        except Exception as error:  # noqa: BLE001 - classified, and raised by the block
            if guard.is_committed:  # by a hook, whatever kind of error it is
                return FailedCommit(CommitFailure.UNKNOWN, error)
            return FailedCommit(commit_failure(error, commit_sent=guard.commit_sent), error)
        finally:
            self.abandon()
        if not guard.commit_sent:
            return FailedCommit(
                CommitFailure.UNKNOWN, UsageError("session.commit() returned without a COMMIT of the marker's database")
            )
        self.after_commit()
        return None

    def abandon(self) -> None:
        self.detach()
        self.forget_savepoints()
        roll_back(self._session, self._tx_id)

    # --- where the application ends the transaction itself ----------------------------------------------------------

    def is_of(self, transaction: SessionTransaction) -> bool:
        """Whether it was begun in this transaction."""
        return transaction is self._transaction

    @property
    def is_committed(self) -> bool:
        """Whether a COMMIT after ``ready`` has returned without an error."""
        return self._guard is not None and self._guard.is_committed

    def detach(self) -> None:
        """Leave the session and its connection as before ``begin``, except for listeners. May be called again, also by an event."""
        self._open = False
        leave(self._session, self)
        if self._guard is not None:
            self._guard.stop()

    def forget_savepoints(self) -> None:
        """Remove the listeners, after ``detach``. Not while an event of the session is dispatched."""
        if self._hears_savepoints:
            event.remove(self._session, "after_commit", self._on_released)
            event.remove(self._session, "after_transaction_end", self._on_ended)
            self._hears_savepoints = False

    def after_commit(self) -> None:
        """The transaction ``is_committed``, and has ended."""
        proven_commit(self._session, self._transaction)
        self._establish_for_the_next()

    def _establish_for_the_next(self) -> None:
        """Create the table identity if ``begin`` could not, because a transaction was open: now none is."""
        if self._engine is None or self._origin or self._markers.identity.is_known(self._engine):
            return
        try:
            self._markers.establish(self._engine)
        except SQLAlchemyError:
            _log.debug("no identity for %s yet", self._markers.table.fullname, exc_info=True)


def _shown(url: URL) -> str:
    """The URL for messages, without password and query parameters, which may contain one."""
    return url.set(query={}).render_as_string(hide_password=True)


def _engines_of(transaction: SessionTransaction) -> set[Engine]:
    # SQLAlchemy has no public API for the connections of a session's transaction; the ``after_begin`` event would miss
    # those from before the block. A test fails if the private attribute changes.
    return {entry[0].engine for entry in transaction._connections.values()}
