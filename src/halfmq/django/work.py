"""The database side of a block in Django: marker, the application's work, COMMIT. The ``LocalWork`` of ``sql.rules.block``.

That ``atomic`` was left proves nothing: after ``set_rollback(True)`` it rolls back without an exception, and within another ``atomic`` it
only releases a savepoint. What proves COMMIT is that Django calls the functions of ``on_commit``; the first one of the block sends the
verdict.
"""

from collections.abc import Callable
from typing import Any

from django.db import transaction

from halfmq.client.log import logger
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import TransactionReceipt
from halfmq.django.database import commit_failure, connection_to
from halfmq.django.guard import Guard
from halfmq.django.marker_rows import MarkerRows
from halfmq.errors import HalfmqError, OutcomeMixed, UnsupportedCombination, UsageError
from halfmq.model import properties as names
from halfmq.sql.rules.block import CollectedMessages
from halfmq.sql.rules.driver_errors import CommitFailure, FailedCommit

_log = logger(__name__)


class AtomicWork:
    """The ``LocalWork`` of one block, which says what its methods do."""

    def __init__(self, using: str, markers: MarkerRows, *, durable: bool, tx_id: str) -> None:
        self._using = using
        self._markers = markers
        self._durable = durable
        self._tx_id = tx_id
        self._origin = b""
        self._collected = CollectedMessages()
        self._is_open = False
        self._connection: Any = None
        #: None: left already.
        self._atomic: Any = None
        self._guard: Guard | None = None
        #: No ``atomic`` is around the block.
        self._is_outermost = False
        self._is_committed = False
        self._after_commit: Callable[[], None] | None = None
        #: What sending the verdict has raised, for the caller of the block.
        self._mixed: OutcomeMixed | None = None

    def begin(self) -> None:
        connection = self._connection = connection_to(self._using)
        self._is_outermost = not connection.in_atomic_block
        if self._is_outermost:
            if not connection.get_autocommit():
                raise UnsupportedCombination(
                    f"database {self._using!r} has AUTOCOMMIT off, so that atomic does not commit",
                    hint="mq.atomic needs Django's default, AUTOCOMMIT=True, and no transaction.set_autocommit(False) around it",
                )
            self._markers.establish(connection)
        atomic = transaction.atomic(using=self._using, durable=self._durable)
        try:
            atomic.__enter__()
        except RuntimeError as error:
            raise UsageError(
                f"mq.atomic is inside another atomic block, such as that of ATOMIC_REQUESTS: {error}",
                hint="mq.atomic(durable=False): its messages then become visible when the outermost block commits",
            ) from error
        self._atomic = atomic
        try:
            # The first function of the block: one of the application that raises stops those behind it.
            transaction.on_commit(self._on_commit, using=self._using, robust=True)
            self._guard = Guard(connection, is_outermost=self._is_outermost, on_rollback_to=self._collected.drop)
            origin = self._markers.write(connection, self._tx_id)
            self._origin = names.encode([(names.HMQ_TX_MARKER, origin)])
            self._guard.start()
        except BaseException:
            self.abandon()
            raise
        self._is_open = True

    def refuse_ended(self) -> None:
        if not self._is_open:
            raise UsageError("the block has ended; messages are sent with its transaction, not after it")
        if self._connection.needs_rollback:
            raise UsageError(
                "an error has rolled back the transaction, or the savepoint that is open",
                hint="catch the error around `with transaction.atomic():`, not inside",
            )

    def collect(self, message: OutgoingMessage) -> None:
        assert self._guard is not None
        self._collected.add(message, self._guard.savepoints.open)

    def ready(self) -> list[OutgoingMessage]:
        assert self._guard is not None
        connection, guard, markers = self._connection, self._guard, self._markers
        write = markers.confirm if self._collected else markers.delete
        guard.prove(lambda: write(connection, self._tx_id, guard.written_by_this))
        self._is_open = False
        return self._collected.halves(self._origin)

    @property
    def may_fall_back(self) -> bool:
        return False

    def fall_back(self, why: HalfmqError) -> TransactionReceipt:
        raise NotImplementedError("mq.atomic has no outbox") from why

    def call_after_commit(self, call: Callable[[], None]) -> bool:
        self._after_commit = call
        return True

    def commit(self) -> FailedCommit | None:
        connection, atomic = self._connection, self._atomic
        self._atomic = None
        driver = connection.connection
        is_rolled_back = connection.needs_rollback or connection.closed_in_transaction
        try:
            atomic.__exit__(None, None, None)
        except Exception as error:
            # Of another function of on_commit: it is raised as Django would. Or of a savepoint: the check decides, since what happens to
            # the outer transaction is not known here.
            if self._is_committed or not self._is_outermost:
                raise
            # Django opens another connection on its way out: what counts is that of the transaction.
            is_lost = driver is None or bool(getattr(driver, "closed", False))
            return FailedCommit(
                commit_failure(error, commit_sent=not is_rolled_back, is_connection_lost=is_lost), error
            )
        if self._mixed is not None:
            raise self._mixed
        if self._is_outermost and not self._is_committed:
            meaning = CommitFailure.ROLLED_BACK if is_rolled_back else CommitFailure.UNKNOWN
            return FailedCommit(meaning, UsageError("atomic was left without a COMMIT"))
        return None

    def abandon(self) -> None:
        self._is_open = False
        if self._guard is not None:
            self._guard.stop()
        if (atomic := self._atomic) is not None:
            self._atomic = None
            atomic.__exit__(_RolledBack, _RolledBack(), None)

    # --- called by Django when the outermost block has committed

    def _on_commit(self) -> None:
        self._is_committed = True
        if self._after_commit is None:
            return
        if not self._is_outermost and not self._is_marker_committed():
            _log.warning(
                "the outer block of %s has committed, but not its marker: a statement has ended its transaction. The check settles it",
                self._tx_id,
            )
            return
        try:
            self._after_commit()
        except OutcomeMixed as error:
            if not self._is_outermost:
                raise  # Django logs it
            self._mixed = error

    def _is_marker_committed(self) -> bool:
        """Within an outer block other code may have ended the transaction, and a database does so after a deadlock. Then Django commits
        what followed, and calls this."""
        with self._connection.cursor() as cursor:
            return self._markers.look(cursor, self._tx_id).outcome is Outcome.COMMIT


class _RolledBack(Exception):
    """Tells ``atomic`` to roll back."""
