"""The rows of the marker table in the database, by Django's connections. ``sql.rules.marker`` says what they mean, ``sql.rules.check`` what
a check does with them, ``sql.rules.table_identity`` what the reserved rows are."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, assert_never

from django.db import DatabaseError, IntegrityError, transaction

from halfmq.client.user_code import plain_result
from halfmq.django.database import connection_to, is_lock_wait, short_transaction
from halfmq.django.tables import MARKERS_TABLE
from halfmq.errors import UsageError
from halfmq.sql.rules.check import FENCE_LOCK_WAIT_MS, CheckResult, Reply, Step, answer_check, run
from halfmq.sql.rules.marker import (
    COMMITTED,
    FENCED,
    PREPARED,
    PRUNE_ROWS_MAX,
    OldRow,
    Pruned,
    Seen,
    WhichUndecided,
    keys_to_read,
    prunable_before_ms,
    pruned,
    seen,
)
from halfmq.sql.rules.table_identity import (
    HORIZON,
    IDENTITY_BITS,
    LOOK_AGAIN_S,
    RESERVED,
    Bounds,
    Origin,
    bounds_of,
    first_horizon_ms,
    horizon_value,
    reserved_rows,
)

_INSERT: Final = f"INSERT INTO {MARKERS_TABLE} (tx_id, outcome, written_at_ms) VALUES (%s, %s, %s)"  # nosec B608 # noqa: S608 - names of ours
_FIND: Final = f"FROM {MARKERS_TABLE} WHERE tx_id"


def wall_ms() -> int:
    """The wall clock, ms since 1970."""
    return time.time_ns() // 1_000_000


def _places(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


class MarkerRows:
    """Writes, checks and prunes the markers in the database of one alias. Remembers only the table's identity."""

    def __init__(self, using: str, now_ms: Callable[[], int] = wall_ms) -> None:
        self._using = using
        self._now_ms = now_ms
        #: The table's identity, and the database in which it was read: tests switch to another one under the same alias.
        self._known: tuple[str, int] | None = None
        #: When the table is next read within somebody's transaction, on the monotonic clock.
        self._not_before_s = 0.0

    # --- identity ------------------------------------------------------------------------------------------------

    def establish(self, connection: Any, lock_wait_ms: int = FENCE_LOCK_WAIT_MS) -> None:
        """Create the identity rows if they are missing, in short transactions; ``connection`` has none open. Does nothing if the identity
        is known. If another transaction holds a lock, it returns, and the next caller tries again.

        Raises:
            DatabaseError: any other error, such as a missing table.
        """
        if self._known_in(connection) is not None:
            return
        try:
            bounds = self._read_alone(connection, lock_wait_ms)
            if bounds is None:
                try:
                    with short_transaction(connection, lock_wait_ms) as cursor:
                        self._insert_reserved(cursor, first_horizon_ms(self._now_ms()))
                except IntegrityError:
                    pass  # another process made them, and committed
                bounds = self._read_alone(connection, lock_wait_ms)
        except DatabaseError as error:
            if is_lock_wait(error, connection):
                return
            raise
        if bounds is not None:
            self._keep(connection, bounds.identity)

    def establish_again(self) -> None:
        """As ``establish``, after the table was created or emptied. Within a transaction nothing is written: that identity might be rolled
        back after a half message has named it."""
        self.forget()
        connection = connection_to(self._using)
        if not connection.in_atomic_block:
            self.establish(connection)

    def read(self, cursor: Any) -> Bounds | None:
        """The reserved rows. None: the table has no identity yet."""
        cursor.execute(f"SELECT tx_id, written_at_ms {_FIND} IN ({_places(RESERVED)})", list(RESERVED))
        return bounds_of({row[0]: int(row[1]) for row in cursor.fetchall()})

    def _origin(self, connection: Any, cursor: Any, written_at_ms: int) -> str:
        """HMQ_TX_MARKER for a marker written now; empty while the table has no identity."""
        identity = self._known_in(connection)
        if identity is None:
            if time.monotonic() < self._not_before_s:
                return ""
            bounds = self.read(cursor)
            if bounds is None:
                self._not_before_s = time.monotonic() + LOOK_AGAIN_S
                return ""
            identity = bounds.identity
            self._keep(connection, identity)
        return Origin(identity, written_at_ms).text()

    def forget(self) -> None:
        """Read the identity again before the next marker is written."""
        self._known = None
        self._not_before_s = 0.0

    def _known_in(self, connection: Any) -> int | None:
        known = self._known
        return known[1] if known is not None and known[0] == str(connection.settings_dict["NAME"]) else None

    def _keep(self, connection: Any, identity: int) -> None:
        self._known = str(connection.settings_dict["NAME"]), identity

    def _read_alone(self, connection: Any, lock_wait_ms: int) -> Bounds | None:
        with short_transaction(connection, lock_wait_ms) as cursor:
            return self.read(cursor)

    @staticmethod
    def _insert_reserved(cursor: Any, horizon_ms: int) -> None:
        for key, value in reserved_rows(secrets.randbits(IDENTITY_BITS), horizon_ms).items():
            cursor.execute(_INSERT, [key, COMMITTED, value])

    # --- the block -----------------------------------------------------------------------------------------------

    def write(self, connection: Any, tx_id: str) -> str:
        """Insert ``(tx_id, 'P')`` in the open transaction. Returns the HMQ_TX_MARKER property for the halves, which may be empty.

        Raises:
            IntegrityError: a check has inserted a rollback marker, or the id was used before. Roll back.
        """
        with connection.cursor() as cursor:
            cursor.execute(_INSERT, [tx_id, PREPARED, now_ms := self._now_ms()])
            # After the row: on SQLite a transaction that has only read fails at once where it would wait for the commit of another one.
            return self._origin(connection, cursor, now_ms)

    def confirm(self, connection: Any, tx_id: str, condition: str) -> int:
        """Turn the marker into ``(tx_id, 'C')`` if it is still PREPARED and ``condition`` holds. Returns the number of rows: 0 or 1."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {MARKERS_TABLE} SET outcome = %s WHERE tx_id = %s AND outcome = %s AND {condition}",  # nosec B608 # noqa: S608 - names of ours
                [COMMITTED, tx_id, PREPARED],
            )
            return int(cursor.rowcount)

    def delete(self, connection: Any, tx_id: str, condition: str) -> int:
        """As ``confirm``, for a transaction that sends no messages: its marker is deleted."""
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE {_FIND} = %s AND outcome = %s AND {condition}", [tx_id, PREPARED])
            return int(cursor.rowcount)

    def look(self, cursor: Any, tx_id: str) -> Seen:
        """Read the marker and the identity rows in one statement, without locks.

        Raises:
            UsageError: the table matched another id: its collation is not binary.
        """
        keys = keys_to_read(tx_id)
        cursor.execute(f"SELECT tx_id, outcome, written_at_ms {_FIND} IN ({_places(keys)})", list(keys))
        return seen(cursor.fetchall(), tx_id, MARKERS_TABLE)

    # --- a check -------------------------------------------------------------------------------------------------

    def decide(
        self,
        connection: Any,
        tx_id: str,
        *,
        origin: str = "",
        prepared_at_ms: int | None = None,
        may_fence: bool = True,
        lock_wait_ms: int = FENCE_LOCK_WAIT_MS,
    ) -> CheckResult:
        """Answer a check of ``tx_id``: COMMIT, ROLLBACK (final) or UNKNOWN. ``connection`` has no open transaction; each step runs in a
        short one of its own. ``origin``: HMQ_TX_MARKER of the half; ``prepared_at_ms``: when the broker stored it, used if ``origin`` is
        empty. Without ``may_fence`` no rollback marker is inserted.

        Raises:
            DatabaseError: any error except a lock, such as a lost connection. Nothing is decided.
        """
        steps = answer_check(MARKERS_TABLE, origin, prepared_at_ms, may_fence=may_fence)
        return run(steps, lambda step: self._execute(connection, tx_id, step, lock_wait_ms))

    def _execute(self, connection: Any, tx_id: str, step: Step, lock_wait_ms: int) -> Seen | Reply:
        try:
            match step:
                case Step.LOOK:
                    with short_transaction(connection, lock_wait_ms) as cursor:
                        return self.look(cursor, tx_id)
                case Step.ESTABLISH:
                    self.establish(connection, lock_wait_ms)
                case Step.FORGET_IDENTITY:
                    self.forget()
                case Step.INSERT_FENCE:
                    return self._insert_fence(connection, tx_id, lock_wait_ms)
                case Step.FENCE_PREPARED:
                    return self._fence_prepared(connection, tx_id, lock_wait_ms)
                case _:
                    assert_never(step)
        except DatabaseError as error:
            if is_lock_wait(error, connection):
                return Reply.LOCKED
            raise
        return Reply.DONE

    def _insert_fence(self, connection: Any, tx_id: str, lock_wait_ms: int) -> Reply:
        try:
            with short_transaction(connection, lock_wait_ms) as cursor:
                cursor.execute(_INSERT, [tx_id, FENCED, self._now_ms()])
        except IntegrityError:
            return Reply.CONFLICT
        return Reply.DONE

    def _fence_prepared(self, connection: Any, tx_id: str, lock_wait_ms: int) -> Reply:
        with short_transaction(connection, lock_wait_ms) as cursor:
            cursor.execute(
                f"UPDATE {MARKERS_TABLE} SET outcome = %s WHERE tx_id = %s AND outcome = %s",  # nosec B608 # noqa: S608 - names of ours
                [FENCED, tx_id, PREPARED],
            )
            return Reply.DONE if cursor.rowcount == 1 else Reply.CONFLICT

    # --- pruning -------------------------------------------------------------------------------------------------

    def prune(self, *, older_than_s: float, undecided: WhichUndecided) -> int:
        """Delete at most 1,000 rows older than ``older_than_s`` seconds, in a transaction of its own, except those of transactions that are
        undecided at the broker. Returns the number deleted; repeat until it is 0.

        Raises:
            UsageError: ``older_than_s`` is too small.
        """
        for gone in self._prunable(older_than_s, undecided):
            self._forget_rows(connection_to(self._using), gone)
            return len(gone.ids)
        return 0

    def count_prunable(self, *, older_than_s: float, undecided: WhichUndecided) -> int:
        """How many rows ``prune`` would delete, if it were repeated until it returns 0. Changes nothing.

        Raises:
            UsageError: as ``prune``.
        """
        return sum(len(gone.ids) for gone in self._prunable(older_than_s, undecided))

    def _prunable(self, older_than_s: float, undecided: WhichUndecided) -> Iterator[Pruned]:
        """The rows of each page, oldest first, without those that stay."""
        until_ms = prunable_before_ms(self._now_ms(), older_than_s)
        after: OldRow | None = None
        connection = connection_to(self._using)
        while rows := self._old(connection, until_ms, after):
            keep = plain_result(undecided([tx_id for _, tx_id in rows]), "undecided=", "mq.undecided of a Client")
            if gone := pruned(rows, keep):
                yield gone
            after = rows[-1]

    def _old(self, connection: Any, until_ms: int, after: OldRow | None) -> list[OldRow]:
        later, values = "", list[object]()
        if after is not None:
            later = "AND (written_at_ms > %s OR (written_at_ms = %s AND tx_id > %s))"
            values = [after[0], after[0], after[1]]
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT written_at_ms, tx_id {_FIND} NOT IN ({_places(RESERVED)}) AND written_at_ms < %s {later} "
                f"ORDER BY written_at_ms, tx_id LIMIT {PRUNE_ROWS_MAX}",
                [*RESERVED, until_ms, *values],
            )
            return [(int(row[0]), str(row[1])) for row in cursor.fetchall()]

    def _forget_rows(self, connection: Any, gone: Pruned) -> None:
        self.establish(connection)
        with transaction.atomic(using=self._using, durable=True), connection.cursor() as cursor:
            horizon = horizon_value(gone.horizon_ms)
            cursor.execute(
                f"UPDATE {MARKERS_TABLE} SET written_at_ms = %s WHERE tx_id = %s AND written_at_ms < %s",  # nosec B608 # noqa: S608 - names of ours
                [horizon, HORIZON, horizon],
            )
            bounds = self.read(cursor)
            if bounds is None or bounds.horizon_ms < gone.horizon_ms:
                raise UsageError(
                    f"another process changed {HORIZON} of {MARKERS_TABLE} behind this transaction's snapshot",
                    hint="prune again; READ COMMITTED is enough for pruning",
                )
            cursor.execute(f"DELETE {_FIND} IN ({_places(gone.ids)})", gone.ids)
