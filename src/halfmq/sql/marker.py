"""The marker row of a local transaction, and the fence that makes its absence final.

One row a transaction: ``(tx_id, 'C')`` is written by the local transaction itself and so becomes visible exactly when
it commits. The check does not merely look: "no row" may mean "not yet". It inserts ``(tx_id, 'R')`` under the same key.
If that succeeds, no later commit of this transaction is possible, since its own insert now fails on the key and takes
the business rows with it. So whoever inserts first decides, and the database is the judge.

Nothing here ever updates a marker or deletes one of the two kinds before the other can no longer arrive. Absence counts only
in the table that the transaction wrote to, and only for times of which nothing was pruned: ``table_identity`` says which.
"""

import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    and_,
    delete,
    insert,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from halfmq import limits
from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.sql.exact_text import exact_text
from halfmq.sql.lock_wait import is_lock_wait, short_transaction
from halfmq.sql.table_identity import (
    PRUNE_AGE_MIN_S,
    RESERVED,
    Bounds,
    TableIdentity,
    bounds_of,
    why_absence_is_no_answer,
)

COMMITTED: Final = "C"
FENCED: Final = "R"
_OUTCOMES: Final = {COMMITTED: Outcome.COMMIT, FENCED: Outcome.ROLLBACK}

#: How long the fence waits for the local transaction's lock, ms. A local transaction that only commits slowly is
#: settled within one check; a longer wait would occupy a checker.
FENCE_LOCK_WAIT_MS: Final = 500

#: Rows deleted by one statement, so that no lock is held long.
PRUNE_ROWS_MAX: Final = 1_000

#: Isolation in which a row is seen as soon as it is committed, and not before. SQLite has only serializable, and
#: with one writer at a time that sees the same.
_READ_COMMITTED: Final = frozenset({"postgresql", "mysql", "mariadb", "mssql", "oracle"})


#: (written at, ms; transaction id) of a row.
OldRow = tuple[int, str]
#: Says which of some transactions the broker still asks about.
WhichUndecided = Callable[[list[str]], Collection[str]]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Seen(NamedTuple):
    #: Of the transaction; None for no row.
    outcome: Outcome | None
    #: None: the table has no identity.
    table: Bounds | None


class Decided(NamedTuple):
    """What a check may say."""

    outcome: Outcome
    #: With UNKNOWN: why asking again here will not help. Empty where it may.
    remark: str = ""


_UNKNOWN: Final = Decided(Outcome.UNKNOWN)


class MarkerRows:
    """The table and the three things done to it. Stateless apart from the table's definition and its known identity."""

    def __init__(self, metadata: MetaData, name: str, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self.table = Table(
            name,
            metadata,
            Column("tx_id", exact_text(limits.TRANSACTION_ID_CHARS_MAX), primary_key=True),
            Column("outcome", String(1), nullable=False),
            Column("written_at_ms", BigInteger, nullable=False, index=True),
            CheckConstraint("outcome IN ('C', 'R')", name=f"ck_{name}_outcome"),
            sqlite_with_rowid=False,  # one tree to write instead of two
        )
        self.identity = TableIdentity(self.table)

    def establish(self, engine: Engine) -> None:
        """Give the table its identity if it has none, on a connection of its own. Nothing happens when it is known.

        Raises:
            DBAPIError: no such table, no right to write, no connection.
        """
        self.identity.establish(engine, self._now_ms(), FENCE_LOCK_WAIT_MS)

    def write(self, connection: Connection, tx_id: str) -> str:
        """Insert ``(tx_id, 'C')`` in the transaction that is open on ``connection``.

        Returns what the halves must carry (HMQ_TX_MARKER): in which table, and when, by the very number in the row.
        Empty while the table has no identity.

        Raises:
            IntegrityError: the check has fenced this transaction, or the id was used before. Roll back.
        """
        origin = self.identity.origin(connection, now_ms := self._now_ms())
        connection.execute(insert(self.table).values(tx_id=tx_id, outcome=COMMITTED, written_at_ms=now_ms).inline())
        return origin

    def erase(self, connection: Connection, tx_id: str) -> None:
        """Take the marker back inside the transaction that wrote it: it turned out to send nothing."""
        connection.execute(delete(self.table).where(self.table.c.tx_id == tx_id))

    def look(self, connection: Connection, tx_id: str) -> Seen:
        """What stands in the table, in one statement. Takes no lock and changes nothing."""
        columns = self.table.c
        found: Outcome | None = None
        reserved = {}
        for row in connection.execute(
            select(columns.tx_id, columns.outcome, columns.written_at_ms).where(columns.tx_id.in_((tx_id, *RESERVED)))
        ):
            if row.tx_id in RESERVED:
                reserved[row.tx_id] = int(row.written_at_ms)
            elif row.tx_id == tx_id:
                found = _OUTCOMES[row.outcome]
            else:
                raise UsageError(
                    f"table {self.table.name} takes {row.tx_id!r} and {tx_id!r} for the same id",
                    hint="its column tx_id must have a binary collation; create it from this metadata",
                )
        return Seen(found, bounds_of(reserved))

    def decide(
        self,
        connection: Connection,
        tx_id: str,
        *,
        origin: str = "",
        prepared_at_ms: int | None = None,
        may_fence: bool = True,
        lock_wait_ms: int = FENCE_LOCK_WAIT_MS,
    ) -> Decided:
        """Decide ``tx_id`` against its own database: COMMIT, ROLLBACK (and then for ever), or UNKNOWN.

        ``connection`` is the caller's to close, and has no transaction open; each step here is a short one of its own.
        ``origin``: what its half carries (see ``write``); ``prepared_at_ms``: when the broker stored it, used where it
        carries nothing. Without ``may_fence`` it only looks. The answer ROLLBACK is given only after the tombstone's own
        COMMIT has returned.

        UNKNOWN: the local transaction still runs (its marker is locked), another writer has the database, or there is
        no row and none may be written yet. With a remark: there is no row, and that proves nothing here.

        Raises:
            DBAPIError: anything else, such as a lost connection. Nothing is decided; ask again.
        """
        connection = self._reading_committed(connection)
        try:
            with short_transaction(connection, lock_wait_ms):
                standing, table = self.look(connection, tx_id)
            if table is None and standing is None and not origin:
                self.identity.establish_on(connection, self._now_ms(), lock_wait_ms)
                with short_transaction(connection, lock_wait_ms):
                    standing, table = self.look(connection, tx_id)
                if table is None:
                    return _UNKNOWN  # somebody was in the way
            if standing is not None:
                return Decided(standing)
            if why := why_absence_is_no_answer(self.table.fullname, table, origin, prepared_at_ms):
                if table is None or not origin.startswith(f"{table.identity}."):
                    self.identity.forget()  # it may be this process that writes an identity of the past
                return Decided(Outcome.UNKNOWN, why)
            return self._fence(connection, tx_id, lock_wait_ms) if may_fence else _UNKNOWN
        except DBAPIError as error:
            if is_lock_wait(error):
                return _UNKNOWN
            raise

    def _fence(self, connection: Connection, tx_id: str, lock_wait_ms: int) -> Decided:
        # A plain INSERT and its IntegrityError: the count of rows is -1 for ON CONFLICT with psycopg, and INSERT IGNORE
        # hides other errors. Conflicts are rare here, since a look came first.
        try:
            with short_transaction(connection, lock_wait_ms):
                connection.execute(
                    insert(self.table).values(tx_id=tx_id, outcome=FENCED, written_at_ms=self._now_ms()).inline()
                )
        except IntegrityError:
            with short_transaction(connection, lock_wait_ms):
                standing, _ = self.look(connection, tx_id)
            # None: what was in the way is gone again, since its transaction rolled back. The next check sees it.
            return _UNKNOWN if standing is None else Decided(standing)
        return Decided(Outcome.ROLLBACK)

    @staticmethod
    def _reading_committed(connection: Connection) -> Connection:
        if connection.dialect.name in _READ_COMMITTED:
            return connection.execution_options(isolation_level="READ COMMITTED")
        return connection

    def prune(self, connection: Connection, *, older_than_s: float, undecided: Collection[str] | WhichUndecided) -> int:
        """Delete rows older than ``older_than_s`` seconds whose transactions have a verdict. The number deleted.

        ``undecided``: asked which of some ids the broker still asks about; or the ids of **all** such transactions.
        Their rows stay whatever their age: without its row a committed transaction would be answered ROLLBACK. Against a
        broker that gives up asking (Apache RocketMQ: 15 times, by default after about 15 minutes) this may be empty, if
        ``older_than_s`` is longer than that.

        Runs in the transaction that is open on ``connection``, at most ``PRUNE_ROWS_MAX`` rows: commit, and call
        again until it returns 0.

        Raises:
            UsageError: ``older_than_s`` is below ``PRUNE_AGE_MIN_S``; a tombstone must outlive every local
                transaction that it may have to stop.
        """
        after: OldRow | None = None
        while rows := self.old(connection, older_than_s=older_than_s, after=after):
            ids = [tx_id for _, tx_id in rows]
            if gone := self.forget(connection, rows, undecided(ids) if callable(undecided) else undecided):
                return gone
            after = rows[-1]
        return 0

    def old(self, connection: Connection, *, older_than_s: float, after: OldRow | None = None) -> list[OldRow]:
        """The oldest rows that are older than ``older_than_s`` seconds, behind ``after``; at most ``PRUNE_ROWS_MAX``.

        Raises:
            UsageError: as ``prune``.
        """
        if older_than_s < PRUNE_AGE_MIN_S:
            raise UsageError(
                f"older_than_s={older_than_s} is less than {PRUNE_AGE_MIN_S:.0f} seconds",
                hint="a marker must outlive every local transaction and the broker's questions about it",
            )
        written, tx_id = self.table.c.written_at_ms, self.table.c.tx_id
        until_ms = self._now_ms() - round(older_than_s * 1000)
        wanted = select(written, tx_id).where(written < until_ms, tx_id.not_in(RESERVED))
        if after is not None:
            wanted = wanted.where(or_(written > after[0], and_(written == after[0], tx_id > after[1])))
        rows = connection.execute(wanted.order_by(written, tx_id).limit(PRUNE_ROWS_MAX))
        return [(int(row[0]), str(row[1])) for row in rows]

    def forget(self, connection: Connection, rows: Collection[OldRow], undecided: Collection[str]) -> int:
        """Delete ``rows`` without those of ``undecided``. The number deleted.

        The prune horizon moves in the same transaction: from then on the absence of a marker as old as these proves
        nothing.

        Raises:
            UsageError: another process changed the horizon in a way that this transaction cannot see.
        """
        keep = set(undecided)
        gone = [row for row in rows if row[1] not in keep]
        if gone:
            horizon_ms = max(written_at_ms for written_at_ms, _ in gone) + 1
            self.identity.move_horizon(connection, horizon_ms, self._now_ms())
            connection.execute(delete(self.table).where(self.table.c.tx_id.in_([tx_id for _, tx_id in gone])))
        return len(gone)

    def restored(self, connection: Connection) -> None:
        """See ``MarkerTable.restored``."""
        self.identity.renew(connection, self._now_ms())
